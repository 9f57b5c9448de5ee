"""Write the tokenizer of a Hugging Face folder as the metadata of a GGUF file, if it is a byte-level
BPE that splits text as llama.cpp can.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ropewalk.errors import MissingExtra, RopeError
from ropewalk.gguf.file import MAX_STRINGS
from ropewalk.interop.checkpoint.safetensors_file import parse_object
from ropewalk.interop.gguf.tokenizer import CONTROL, PATTERNS, USER_DEFINED, splitter
from ropewalk.interop.gguf.tokenizer_files import END_KEYS, SPECIAL, TOKENS

#: GGUF's types of ordinary tokens, and of rows of the embeddings without a token
NORMAL, UNUSED = 1, 5


def tokenizer_keys(
    files: Mapping[str, bytes], token_ids: Mapping[str, Any], vocab_size: int
) -> dict[str, Any]:
    """Return the GGUF metadata keys of the tokenizer of a Hugging Face folder.

    files       contents of tokenizer.json and, if there are, tokenizer_config.json and
                chat_template.jinja
    token_ids   bos_token_id, eos_token_id (or a list of them) and pad_token_id, None if unknown
    vocab_size  rows of the embeddings; llama.cpp needs a token for each, so unused ones are added
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtra("tokenizer of a GGUF file", "tokenizers", "gguf") from None
    if "tokenizer.json" not in files:
        raise RopeError("tokenizer.json", "must be in the folder", sorted(files))
    text = files["tokenizer.json"].decode("utf-8", "replace")
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the package has no class of its own for it
        raise RopeError("tokenizer.json", "must be a tokenizer", str(error)) from None
    body = json.loads(text)
    kind = body["model"].get("type")
    if kind != "BPE" or body["model"].get("byte_fallback"):
        raise RopeError("model of tokenizer.json", "must be a BPE of bytes", kind)
    names = {index: token for token, index in tokenizer.get_vocab().items()}
    if not names or max(names) >= min(vocab_size, MAX_STRINGS):
        rule = f"must be at most as many as the {vocab_size} rows of the embeddings"
        raise RopeError("tokens of tokenizer.json", rule, max(names, default=0) + 1)
    added = tokenizer.get_added_tokens_decoder()
    types = {i: CONTROL if added[i].special else USER_DEFINED for i in added}
    merges = [
        " ".join(each) if isinstance(each, list) else each for each in body["model"]["merges"]
    ]
    keys = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _pre(body.get("pre_tokenizer")),
        TOKENS: [names.get(i, f"[PAD{i}]") for i in range(vocab_size)],
        "tokenizer.ggml.token_type": [
            types.get(i, NORMAL if i in names else UNUSED) for i in range(vocab_size)
        ],
        "tokenizer.ggml.merges": merges,
    }
    ends = token_ids.get("eos_token_id")
    # further tokens at which generation ends have keys of their own, as many as END_KEYS
    first, *others = ends if isinstance(ends, list) else [ends]
    ids = {
        SPECIAL["bos"]: token_ids.get("bos_token_id"),
        SPECIAL["eos"]: first,
        SPECIAL["pad"]: token_ids.get("pad_token_id"),
        **dict(zip(END_KEYS, others, strict=False)),
    }
    keys |= {key: i for key, i in ids.items() if isinstance(i, int) and i < vocab_size}
    # a tokenizer that adds the BOS token adds it to any text
    starts_with = tokenizer.encode("a").ids[:1]
    keys["tokenizer.ggml.add_bos_token"] = starts_with == [token_ids.get("bos_token_id")]
    if (template := _chat_template(files)) is not None:
        keys["tokenizer.chat_template"] = template
    return keys


def _pre(pre_tokenizer: Any) -> str:
    """Return llama.cpp's name of a pre-tokenizer; raise an error if it is none of PATTERNS."""
    from tokenizers import Tokenizer, models

    for pre in PATTERNS:
        # compare with the JSON of the pre-tokenizer that we would build; the tokenizer around it is
        # empty
        known = Tokenizer(models.BPE())
        known.pre_tokenizer = splitter(pre)
        if _plain(json.loads(known.to_str())["pre_tokenizer"]) == _plain(pre_tokenizer):
            return pre
    rule = f"must split text as one of {', '.join(PATTERNS)}"
    raise RopeError("pre_tokenizer of tokenizer.json", rule, pre_tokenizer)


def _plain(value: Any) -> Any:
    """Return a part of tokenizer.json without `trim_offsets`, which changes no token."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items() if key != "trim_offsets"}
    return value


def _chat_template(files: Mapping[str, bytes]) -> str | None:
    """Return the chat template of a folder; None if it has none, or several."""
    if "chat_template.jinja" in files:
        return files["chat_template.jinja"].decode("utf-8", "replace")
    name = "tokenizer_config.json"
    template = parse_object(files[name], name).get("chat_template") if name in files else None
    return template if isinstance(template, str) else None
