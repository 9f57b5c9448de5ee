"""Where files are kept that can be made or downloaded again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of tokenized corpora and downloads: the environment variable
    ROPEWALK_CACHE, or the folder `ropewalk` in the user's cache folder. It may not exist yet.
    """
    named = os.environ.get("ROPEWALK_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ropewalk"
