"""A folder that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ropewalk.errors import RopeError

try:
    import fcntl
except ImportError:  # no file locks on Windows; there two runs to one target are not told apart
    fcntl = None


def partial_path(target: Path) -> Path:
    """Where the folder is while it is being written: beside the target, so that the last step is one rename."""
    return target.with_name(f".{target.name}.partial")


@contextmanager
def atomic_folder(target: str | os.PathLike[str]) -> Iterator[Path]:
    """A new folder to write into, which takes the name `target` when the block ends well.

    Until then it is `.NAME.partial` beside the target, which no reader looks for. A run that fails removes it; one that
    is killed leaves it, and the next run to the same target clears it first.
    """
    target = Path(os.path.abspath(target))
    _refuse_taken(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(target)
    lock = _lock(partial)
    try:
        _clear(partial)
        yield partial
        _sync(partial)
        _refuse_taken(target)
        os.rename(partial, target)
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def _refuse_taken(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not (target.is_dir() and not any(target.iterdir()))):
        raise RopeError("target", "must be a folder that does not exist yet, or is empty", str(target))


def _lock(partial: Path) -> int:
    """Hold the folder for this process alone; a killed run holds nothing."""
    if partial.is_symlink():
        raise RopeError("target", "must not have a link in the place of its partial folder", str(partial))
    partial.mkdir(exist_ok=True)
    lock = os.open(partial, os.O_RDONLY)
    try:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # between open and lock another run may have finished and renamed this very folder to the target
        same = os.path.samestat(os.fstat(lock), os.stat(partial))
    except OSError:
        same = False
    if not same:
        os.close(lock)
        raise RopeError("target", "must not be written by another run at the same time", str(partial))
    return lock


def _clear(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _sync(folder: Path) -> None:
    """The names in a folder reach the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
