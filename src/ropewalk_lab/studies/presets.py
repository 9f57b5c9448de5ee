"""The question and the settings of every study, read from presets.toml; needs no torch."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from ropewalk_lab.data_files import toml_beside

#: every study has these
PRESETS = ("smoke", "cpu", "gpu", "cluster")
_TABLES = toml_beside(__file__)
#: the question of every study by its name, in the order of STUDIES
ABOUT: dict[str, str] = _TABLES["about"]


def presets_of(study: str) -> dict[str, dict[str, Any]]:
    """Return {preset: settings} of a study.

    The settings of a preset are those of three tables, of which a later one replaces values of an
    earlier one: the table of this preset in another group, if the study's table "all" names a group
    as `begin`; the study's table "all"; and the study's table of this preset.
    """
    tables = _TABLES[study]
    common = dict(tables.get("all", {}))
    begin = _TABLES.get(common.pop("begin", None), {})
    return {
        preset: deepcopy({**begin.get(preset, {}), **common, **tables.get(preset, {})})
        for preset in PRESETS
    }
