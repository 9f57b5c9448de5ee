"""Write files atomically, and encode rows as JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError


def encode_rows(rows: Iterable[dict[str, Any]]) -> str:
    """Return rows as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_atomically(path: Path, text: str, field: str = "path") -> None:
    """Replace a file by `text`, synced to disk; a reader sees the old file or the whole new one.
    Missing folders are made. `field` is what the error calls the path.
    """
    if path.exists() and not path.is_file():
        raise RopeError(
            field, "must be a file, or not exist; a device or folder is not replaced", str(path)
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        # the error of a full disk names no file, and others name the draft, which nobody asked for
        error.filename = str(path)
        raise
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
