"""The vectors as data: JSON files, one for each group, with their version and date."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ropewalk.caches import cached
from ropewalk.errors import RopeError

#: where the files are: beside the code once installed, else at the root of the repository
FOLDERS = (Path(__file__).parent / "vectors", Path(__file__).parents[2] / "conformance")


def folder() -> Path:
    """Return the folder of the files."""
    return next(path for path in FOLDERS if (path / "index.json").exists())


@cached("conformance index", entries=1)
def index() -> dict[str, Any]:
    """Return version, date and the names of all groups."""
    return json.loads((folder() / "index.json").read_text(encoding="utf-8"))


def groups() -> list[str]:
    """Return the names of all groups."""
    return list(index()["groups"])


@cached("conformance groups", entries=64)
def load(group: str) -> dict[str, Any]:
    """Return one group: why it exists, its tolerance and its cases."""
    if group not in index()["groups"]:
        raise RopeError("groups", f"must be among {', '.join(groups())}", group)
    return json.loads((folder() / f"{group}.json").read_text(encoding="utf-8"))
