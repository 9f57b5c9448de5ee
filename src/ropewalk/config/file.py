"""Strict reading of a config from a dict, an object with `to_dict()`, or a config.json; nothing in
it is executed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from ropewalk.config import keys
from ropewalk.config.families import class_sizes
from ropewalk.errors import RopeError

#: bounds on a config file: its bytes, and how deep its objects and lists are nested
MAX_BYTES = 1 << 20
MAX_DEPTH = 64
#: config keys of the text model in models with several parts
TEXT_PARTS = ("thinker_config", "text_config", "llm_config", "language_config")
#: models with several parts whose published configs have the keys of the text model beside those of
#: the others, and no text_config; transformers' class makes one of them
FLAT_TYPES = ("hunyuan_vl", "paddleocr_vl")
#: names that a published text_config has, and those of transformers' classes for it
TEXT_TYPES = {"exaone4_5_text": "exaone4"}


def load(config: Any) -> Mapping[str, Any]:
    """Return the config as a mapping, which may be the caller's own and must not be written to; a
    text is the path of a config.json or of its folder.
    """
    if isinstance(config, str | os.PathLike):
        return read(Path(config))
    if isinstance(config, Mapping):
        return config
    if callable(getattr(config, "to_dict", None)):
        return config.to_dict()
    raise RopeError(
        "config",
        "must be a dict, a transformers config, or the path of a config.json",
        type(config).__name__,
    )


def is_gguf(path: Any) -> bool:
    """Return whether `path` is the path of a file whose name ends in .gguf."""
    return isinstance(path, str | os.PathLike) and Path(path).suffix.lower() == ".gguf"


def text_part(config: Mapping[str, Any], depth: int = 0) -> Mapping[str, Any]:
    """Return the part of a config that describes the text model, or the config itself if it has no
    such part; a copy if its model_type is absent or has to be replaced by that of the text model.

    depth  how many parts this one is in, bounded because a dict may be a part of itself
    """
    for name in TEXT_PARTS:
        part = config.get(name)
        if part is None:
            continue
        if not isinstance(part, Mapping):
            raise RopeError(name, "must be an object", part)
        if depth == MAX_DEPTH:
            raise RopeError(
                name, f"must be nested at most {MAX_DEPTH} deep", f"more than {MAX_DEPTH}"
            )
        if part.get("model_type") is None and config.get("model_type") is not None:
            # the text models of transformers are named so, such as qwen2_vl_text
            part = {**part, "model_type": f"{config['model_type']}_text"}
        if part.get("model_type") in TEXT_TYPES:
            part = {**part, "model_type": TEXT_TYPES[part["model_type"]]}
        return text_part(part, depth + 1)
    if config.get("model_type") in FLAT_TYPES:
        return {**config, "model_type": f"{config['model_type']}_text"}
    return config


def text_config(config: Any) -> Mapping[str, Any]:
    """Return the text part of a config. Inside another config, transformers 4 wrote it without the
    hidden size, heads and layers that its class has by default: these are added.
    """
    whole = load(config)
    text = text_part(whole)
    if text is whole:  # a config of its own, which has all its sizes
        return text
    sizes = class_sizes().get(str(text.get("model_type")), {})
    absent = {
        names[0]: sizes[names[0]]
        for names in keys.CLASS_SIZE_KEYS
        if names[0] in sizes and not any(name in text for name in names)
    }
    return {**text, **absent} if absent else text


def text_owner(config: Any) -> Any:
    """Return the object or dict, inside `config` or `config` itself, that holds the values of the
    text model, for a caller that changes them there.
    """
    for name in TEXT_PARTS:
        # vars, not getattr: only a part that the object itself holds; a change to one that a
        # property makes anew would be lost
        part = config.get(name) if isinstance(config, Mapping) else vars(config).get(name)
        if isinstance(part, MutableMapping) or callable(getattr(part, "to_dict", None)):
            return text_owner(part)
    return config


def read(path: Path) -> dict[str, Any]:
    """Return the object in a config.json, or in the config.json of a folder."""
    try:
        path = path / "config.json" if path.is_dir() else path
        # a pipe or a device may never end
        if not path.is_file():
            raise RopeError(
                "config", "must be the path of a config.json, or of a folder with one", str(path)
            )
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RopeError(
            "config", f"must be a readable file ({error.strerror})", str(path)
        ) from None
    return parse(data)


def parse(data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`, a text in UTF-8; refuse large or deep files, duplicate
    config keys, long integers, NaN, Infinity and 1e999.
    """
    if len(data) > MAX_BYTES:
        raise RopeError(
            "config", f"must be at most {MAX_BYTES} bytes", f"{len(data)} bytes or more"
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RopeError("config", "must be UTF-8", f"byte {error.start}") from None
    _check_depth(text)
    try:
        # NaN, Infinity and 1e999 become a _Constant, which `unique_keys` refuses by its config key
        value = json.loads(
            text,
            object_pairs_hook=unique_keys,
            parse_constant=_Constant,
            parse_int=_integer,
            parse_float=_float,
        )
    except json.JSONDecodeError as error:
        rule = f"must be JSON ({error.msg} at line {error.lineno}, column {error.colno})"
        raise RopeError("config", rule, text[error.pos : error.pos + 20]) from None
    if not isinstance(value, dict):
        raise RopeError("config", "must be a JSON object", value)
    return value


def _check_depth(text: str) -> None:
    """Refuse deep nesting before the recursive parser sees it: count brackets outside strings."""
    depth, in_string, escaped = 0, False, False
    for char in text:
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped  # whether the next character is escaped
        elif char == '"':
            in_string = True
        elif char in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise RopeError(
                    "config", f"must be nested at most {MAX_DEPTH} deep", f"more than {MAX_DEPTH}"
                )
        elif char in "]}":
            depth -= 1


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict; refuse a key that is given twice, and a _Constant, which is
    what `parse` reads NaN, Infinity and 1e999 as.
    """
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise RopeError(key, "must be given once", value)
        if _holds_nan_or_infinity(value):
            raise RopeError(
                key,
                "must be finite: NaN, Infinity and numbers that no float holds are refused",
                value,
            )
        values[key] = value
    return values


class _Constant(str):
    """A number that is not finite, such as NaN or 1e999; kept as text until its config key is
    known, for the error.
    """


def _holds_nan_or_infinity(value: Any) -> bool:
    """Return whether a value is a _Constant or a list with one in it; values of objects in it were
    tested when `unique_keys` made these objects.
    """
    return isinstance(value, _Constant) or (
        isinstance(value, list) and any(map(_holds_nan_or_infinity, value))
    )


def _float(digits: str) -> float | _Constant:
    """Return the float of a JSON number; a _Constant if it is too large for one."""
    value = float(digits)
    return value if math.isfinite(value) else _Constant(digits)


def _integer(digits: str) -> int:
    """Return the integer of a JSON number with at most 40 digits; raise an error for a longer one."""
    # converting a million digits takes minutes, and no config has integers that large
    count = len(digits.removeprefix("-"))
    if count > 40:
        raise RopeError("config", "must hold integers of at most 40 digits", f"{count} digits")
    return int(digits)
