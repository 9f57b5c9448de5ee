"""The settings of every study, read from presets.toml."""

from __future__ import annotations

import tomllib
from copy import deepcopy
from pathlib import Path
from typing import Any

#: every study has these
PRESETS = ("smoke", "cpu", "gpu", "cluster")
_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def presets_of(study: str) -> dict[str, dict[str, Any]]:
    """Return the settings of a study by preset."""
    tables = _TABLES[study]
    common = dict(tables.get("all", {}))
    begin = _TABLES.get(common.pop("begin", None), {})
    return {
        preset: deepcopy({**begin.get(preset, {}), **common, **tables.get(preset, {})})
        for preset in PRESETS
    }
