"""Write a folder or a file atomically: it appears complete or not at all."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ropewalk.errors import RopeError

try:
    import fcntl
except ImportError:  # Windows has no flock; two runs with the same target are not detected there
    fcntl = None

logger = logging.getLogger("ropewalk.checkpoint")


def partial_path(target: Path) -> Path:
    """Return the temporary folder of a target while it is written: beside it, so that the last step
    is one rename.
    """
    return target.with_name(f".{target.name}.partial")


@contextmanager
def atomic_folder(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a new folder to write into; it is renamed to `target` when the block succeeds.

    Until then it is `.NAME.partial` beside the target. A run that fails removes it. A run that is
    killed leaves it, and the next run with the same target clears it first.
    """
    with _renamed_to(target, is_file=False) as draft:
        yield draft


@contextmanager
def atomic_file(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of a new file to write; it is renamed to `target` when the block succeeds.

    Until then it is in the folder `.NAME.partial` beside the target, which is removed or cleared
    as with `atomic_folder`.
    """
    with _renamed_to(target, is_file=True) as draft:
        yield draft


@contextmanager
def _renamed_to(target: str | os.PathLike[str], *, is_file: bool) -> Iterator[Path]:
    """Context manager of `atomic_file` and `atomic_folder`: yield the path to write to, and rename
    it to `target` when the block succeeds.

    is_file  the target is a file, which is written inside the temporary folder and moved out of it;
             otherwise the temporary folder itself becomes the target
    """
    target = Path(os.path.abspath(target))
    check = _refuse_existing_file if is_file else _refuse_existing
    check(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(target)
    draft = partial / target.name if is_file else partial
    lock = _lock(partial)
    try:
        _clear(partial)
        yield draft
        _sync(draft)
        check(target)  # again, since another program may have written it meanwhile
        os.rename(draft, target)
        _sync(target.parent)
        if is_file:
            # `partial` held the file. With `atomic_folder` it was itself renamed to the target, so
            # that a folder at this path now would be another run's
            shutil.rmtree(partial, ignore_errors=True)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(target)  # a full disk names no file
        raise
    finally:
        os.close(lock)


def _refuse_existing_file(target: Path) -> None:
    """Raise an error if anything is at the path of a new file, even a broken link."""
    if os.path.lexists(target):
        raise RopeError("target", "must be a file that does not exist yet", str(target))


def _refuse_existing(target: Path) -> None:
    """Raise an error if anything but an empty folder is at the path of a new folder."""
    if target.is_symlink() or (
        target.exists() and not (target.is_dir() and not any(target.iterdir()))
    ):
        raise RopeError(
            "target", "must be a folder that does not exist yet or is empty", str(target)
        )


def _lock(partial: Path) -> int:
    """Create the folder `partial` and return a file descriptor that locks it until it is closed or
    the process ends; raise an error if another run has locked the folder, or has just renamed it.
    """
    if partial.is_symlink():
        raise RopeError(
            "target",
            "must not have a symbolic link at its temporary path; remove the link",
            str(partial),
        )
    partial.mkdir(exist_ok=True)
    lock = lock_folder(partial)
    try:
        # between open and flock another run may have finished and renamed this folder to its target
        same = lock is not None and os.path.samestat(os.fstat(lock), os.stat(partial))
    except OSError:
        same = False
    if lock is not None and same:
        return lock
    if lock is not None:
        os.close(lock)
    raise RopeError("target", "must not be written by another run at the same time", str(partial))


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Context manager that locks a folder; if the folder is locked already, it logs a warning and
    waits, so that a call inside another one for the same folder never ends.
    """
    lock = lock_folder(folder)
    if lock is None:
        logger.warning("another process uses %s; waiting until it has finished", folder)
        lock = lock_folder(folder, wait=True)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def lock_folder(folder: Path, wait: bool = False) -> int | None:
    """Return a file descriptor that locks a folder until it is closed or the process ends; None if
    the folder is locked already, by another process or by this one.

    wait  wait until the folder is free, instead of returning None

    On a file system without locks, every call returns a descriptor.
    """
    lock = os.open(folder, os.O_RDONLY)
    try:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:  # there are no locks here
        pass
    return lock


def _clear(folder: Path) -> None:
    """Delete everything in a folder; links are deleted, not followed."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _sync(path: Path) -> None:
    """Flush a file, or a folder's directory entries, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
