"""The tokenizer of a checkpoint folder: the files that `save` copies to the new folder."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.interop.checkpoint.safetensors_file import parse_object

GENERATION = "generation_config.json"
#: the tokenizer files of transformers, the chat template, and the settings of generation
NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    GENERATION,
)
#: larger files are not copied
MAX_BYTES = 256 << 20


@dataclass(frozen=True)
class FolderTokenizerFiles:
    """The tokenizer and the special tokens of a folder, read from it when they are written.

    names  the files of NAMES that the folder has
    ids    what `token_ids` returns
    """

    path: Path
    names: tuple[str, ...]
    ids: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path, config: Mapping[str, Any]) -> FolderTokenizerFiles:
        """Return the tokenizer of the folder `path`, whose config.json holds `config`."""
        names = tuple(name for name in NAMES if (path / name).is_file())
        keys = ("bos_token_id", "eos_token_id", "pad_token_id")
        return cls(path.absolute(), names, {key: _ids(config.get(key)) for key in keys})

    def token_ids(self) -> dict[str, Any]:
        """Return bos_token_id, eos_token_id and pad_token_id of config.json; None for an id that is
        absent or not valid.
        """
        return dict(self.ids)

    def files(self, token_ids: Mapping[str, Any]) -> dict[str, bytes]:
        """Return the contents of the files in `names`, such as tokenizer.json; one that cannot be
        read or is too large is left out, with a warning.

        token_ids  those that differ from the ids in the folder's config.json are written into
                   generation_config.json, if the folder has this file
        """
        found = {}
        for name in self.names:
            try:
                with (self.path / name).open("rb") as file:
                    data = file.read(MAX_BYTES + 1)
                if len(data) > MAX_BYTES:
                    raise OSError(f"it has more than {MAX_BYTES} bytes")
                found[name] = data
            except OSError as error:
                text = f"{name}: is not saved with the model ({error})"
                warnings.warn(text, UserWarning, stacklevel=3)
        changed = {key: token_ids[key] for key in token_ids if token_ids[key] != self.ids.get(key)}
        if changed and GENERATION in found:
            written = {**parse_object(found[GENERATION], GENERATION), **changed}
            found[GENERATION] = json.dumps(written, indent=2).encode("utf-8") + b"\n"
        return found


def _ids(value: Any) -> Any:
    """Return `value` if it is the index of a token or a list of one or more, else None."""
    many = value if isinstance(value, list) else [value]
    return value if many and all(type(each) is int and each >= 0 for each in many) else None
