"""The tokenizer of a GGUF file as the files of a Hugging Face folder: tokenizer.json,
tokenizer_config.json, and the tokens at which generation ends.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.gguf.file import Array, GgufFile
from ropewalk.interop.gguf.tokenizer import tokenizer_of

#: name in Hugging Face's files -> key of a GGUF file
SPECIAL = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "unk": "tokenizer.ggml.unknown_token_id",
    "pad": "tokenizer.ggml.padding_token_id",
}
TOKENS = "tokenizer.ggml.tokens"
#: keys of further tokens at which llama.cpp ends generation
END_KEYS = ("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
#: tokens at which llama.cpp ends generation because of their text (llama-vocab.cpp)
END_TEXTS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "[e~[",
)


@dataclass(frozen=True)
class GgufTokenizerFiles:
    """The tokenizer and the special tokens of a GGUF file, read from it when they are written."""

    file: GgufFile

    def token_ids(self) -> dict[str, Any]:
        """Return bos_token_id, eos_token_id (a list if generation ends at several tokens) and
        pad_token_id; None for those that the file does not have.
        """
        ids = {f"{name}_token_id": self._id(SPECIAL[name]) for name in ("bos", "eos", "pad")}
        by_key = [ids["eos_token_id"], *map(self._id, END_KEYS)]
        by_text = [i for i, token in enumerate(self._tokens()) if token in END_TEXTS]
        ends = [i for i in dict.fromkeys([*by_key, *by_text]) if i is not None]
        return {**ids, "eos_token_id": ends if len(ends) > 1 else ends[0] if ends else None}

    def files(self, token_ids: Mapping[str, Any]) -> dict[str, bytes]:
        """Return the contents of the Hugging Face files by name. A tokenizer that cannot be built
        is left out, with a warning.

        token_ids  the ids that generation_config.json gets, without those that are None; the file
                   is left out if no id remains
        """
        given = {key: value for key, value in token_ids.items() if value is not None}
        files = {"generation_config.json": _json(given)} if given else {}
        if self.file.metadata.get("tokenizer.ggml.model", "none") == "none":
            return files  # the GGUF file has no tokenizer
        try:
            built, tokens = tokenizer_of(self.file), self._tokens()
        except (RopeError, OSError) as error:
            text = f"{self.file.path.name}: its tokenizer is not saved ({error})"
            warnings.warn(text, UserWarning, stacklevel=3)
            return files
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
        }
        for name, key in SPECIAL.items():
            index = self._id(key)
            if index is not None:
                config[f"{name}_token"] = tokens[index]
        length = self.file.metadata.get(f"{self.file.architecture}.context_length")
        template = self.file.metadata.get("tokenizer.chat_template")
        if isinstance(length, int):
            config["model_max_length"] = length
        if isinstance(template, str):
            config["chat_template"] = template
        return files | {
            "tokenizer.json": built.to_str(pretty=True).encode("utf-8"),
            "tokenizer_config.json": _json(config),
        }

    def gguf_keys(self, vocab_size: int) -> dict[str, Any] | None:
        """Return the metadata of the tokenizer as the file has it, for a new file; None if the file
        has no tokenizer. An array is (entries, GGUF's number of their type).

        vocab_size  the number of tokens of the model; raise an error if the file has another
        """
        metadata = self.file.metadata
        if metadata.get("tokenizer.ggml.model", "none") == "none":
            return None
        if (tokens := len(self.file.array(TOKENS))) != vocab_size:
            raise RopeError(TOKENS, f"must be {vocab_size} tokens, as many as in the model", tokens)
        return {
            key: (self.file.array(key), value.type_id) if isinstance(value, Array) else value
            for key, value in metadata.items()
            # an integer is written with 32 bits, without a sign
            if key.startswith("tokenizer.") and (type(value) is not int or 0 <= value < 1 << 32)
        }

    def _tokens(self) -> list[str]:
        """Return the tokens of the file; [] if it has none, or if the file is no longer there."""
        try:
            return self.file.array(TOKENS)
        except (RopeError, OSError):
            return []

    def _id(self, key: str) -> int | None:
        """Return the index of a special token; None if the file has none, or no token at that
        index.
        """
        index, tokens = self.file.metadata.get(key), self.file.metadata.get(TOKENS)
        if type(index) is not int or not isinstance(tokens, Array):
            return None
        return index if 0 <= index < tokens.length else None


def _json(value: dict[str, Any]) -> bytes:
    """Return the contents of a JSON file."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8")
