"""The settings of every study, read from presets.toml."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from ropewalk_lab.data_files import toml_beside

#: every study has these
PRESETS = ("smoke", "cpu", "gpu", "cluster")
_TABLES = toml_beside(__file__)


def presets_of(study: str) -> dict[str, dict[str, Any]]:
    """Return the settings of a study by preset."""
    tables = _TABLES[study]
    common = dict(tables.get("all", {}))
    begin = _TABLES.get(common.pop("begin", None), {})
    return {
        preset: deepcopy({**begin.get(preset, {}), **common, **tables.get(preset, {})})
        for preset in PRESETS
    }
