"""Dequantise tensors of a GGUF file with the gguf package.

`GgufFile` has checked the whole header before: shapes, types, offsets and sizes against the file.
So the package gets only the bytes of one tensor, whose number follows from its shape and type. The
package's own reader would parse the header a second time: that takes 17 s and 600 MB for the
vocabulary of Llama 3, which `GgufFile` reads in 0.2 s.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ropewalk.errors import MissingExtra, RopeError
from ropewalk.gguf.file import GgufFile


def read_tensor(file: GgufFile, name: str) -> np.ndarray:
    """Return a tensor as float32, dequantised; needs the extra `gguf`."""
    gguf, entry = import_gguf(), file.entry(name)
    kind = getattr(gguf.GGMLQuantizationType, entry.type.name, None)
    # the shape in bytes: a row is stored in blocks of `weights` numbers, each of `bytes` bytes
    rows = (*entry.shape[:-1], entry.shape[-1] // entry.type.weights * entry.type.bytes)
    try:
        if kind is None:
            raise NotImplementedError
        # a scale in the file may be infinite or NaN, and so are its weights then: no warning
        with np.errstate(all="ignore"):
            data = np.frombuffer(file.data(name), np.uint8).reshape(rows)
            return gguf.quants.dequantize(data, kind)
    except NotImplementedError:
        rule = "must be of a type that the installed gguf package can dequantise"
        raise RopeError(name, rule, entry.type.name) from None


def import_gguf() -> Any:
    """Import the gguf package, or raise an error that names the extra."""
    try:
        import gguf
        import gguf.quants
    except ImportError:
        raise MissingExtra("weights of a GGUF file", "gguf", "gguf") from None
    return gguf
