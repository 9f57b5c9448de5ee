"""Models in the Hugging Face cache of this machine; nothing is downloaded."""

from __future__ import annotations

import os
import re
from pathlib import Path

#: "owner/name", as the hub has it
NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def cache() -> Path:
    """Return the folder of the cache: HF_HUB_CACHE, else HF_HOME/hub, else huggingface/hub in the
    user's cache folder.
    """
    if folder := os.environ.get("HF_HUB_CACHE"):
        return Path(folder).expanduser()
    user = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{user}/huggingface"
    return Path(home).expanduser() / "hub"


def snapshot(name: str) -> Path | None:
    """Return the folder of a model's files in the cache: the snapshot of its main branch, else the
    newest one; None if the cache does not have the model.
    """
    model = cache() / f"models--{name.replace('/', '--')}"
    try:
        commit = (model / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        commit = ""
    # a file with anything but a name in it could lead out of the cache
    if re.fullmatch(r"\w+", commit) and (model / "snapshots" / commit).is_dir():
        return model / "snapshots" / commit
    folders = [each for each in model.glob("snapshots/*") if each.is_dir()]
    return max(folders, key=lambda each: each.stat().st_mtime, default=None)
