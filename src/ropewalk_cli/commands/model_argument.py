"""How every command reads an argument that names a model, a config or a text."""

from __future__ import annotations

import os
from pathlib import Path


def model_path(name: str | Path) -> Path:
    """Return a path; if nothing is there, the path of what `ropewalk lab fetch` has downloaded by
    this name, such as smollm2.
    """
    if os.path.exists(name):  # unlike Path.exists, False for a name that no file can have
        return Path(name)
    from ropewalk_lab.downloads import find_fetched

    return find_fetched(str(name))
