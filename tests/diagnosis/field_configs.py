"""Configs as people write them: the right and the broken ones of field_configs.json."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

TABLE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
CONFIGS: dict[str, dict[str, Any]] = TABLE["configs"]
BROKEN: list[dict[str, Any]] = TABLE["broken"]
#: the rows of mistakes.toml that a broken config is found by
IDS = {name for each in BROKEN for name in each["causes"]}


def field_config(name: str, change: dict[str, Any] | None = None) -> dict[str, Any]:
    """A right config, with the keys of `change` set and dropped."""
    config = copy.deepcopy(CONFIGS[name])
    for key, value in (change or {}).get("set", {}).items():
        holder, last = _holder(config, key)
        holder[last] = copy.deepcopy(value)
    for key in (change or {}).get("drop", ()):
        holder, last = _holder(config, key)
        holder.pop(last, None)
    return config


def _holder(config: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """The object that holds a key with dots, and its last part."""
    *path, last = key.split(".")
    for part in path:
        config = config[part]
    return config, last
