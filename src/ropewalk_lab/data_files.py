"""Data files that lie beside the modules which read them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def toml_beside(module: str) -> dict[str, Any]:
    """Return the contents of x.toml for a module x.py, given by its `__file__`."""
    return tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8"))
