"""Rope settings of well-known models: the relevant config keys of their published config.json
files, from examples.json.

The factors of Phi-3 are rounded to two decimals.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ropewalk.errors import choice

#: model name -> the config keys that define its rope
EXAMPLES: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("examples.json").read_text(encoding="utf-8")
)


def example(name: str) -> dict[str, Any]:
    """Return the config of a well-known model by its name, in capital or small letters."""
    original_name = {each.lower(): each for each in EXAMPLES}.get(name.lower(), name)
    return EXAMPLES[choice("example", original_name, EXAMPLES)]
