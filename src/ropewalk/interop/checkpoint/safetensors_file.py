"""One safetensors file: read its header without trusting it, its tensors one by one, and write one piece by piece.

    8 bytes   length of the header, little endian
    header    JSON: {key: {"dtype", "shape", "data_offsets": [begin, end]}}, and strings under "__metadata__"
    data      the tensors, row-major, end to end

Sizes are checked against the file before anything is allocated, so a hostile header costs at most its own length.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.errors import RopeError

#: real headers stay below 1 MB; this is a hundred thousand tensors in one file
MAX_HEADER_BYTES = 16 << 20
MAX_DIMS = 16
PIECE_BYTES = 8 << 20

DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "U16": torch.uint16, "I16": torch.int16, "F16": torch.float16, "BF16": torch.bfloat16,
    "U32": torch.uint32, "I32": torch.int32, "F32": torch.float32,
    "U64": torch.uint64, "I64": torch.int64, "F64": torch.float64, "C64": torch.complex64,
}  # fmt: skip
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: its type, its shape, and where its bytes lie after the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """What a file says of itself: the entries in the order of their bytes, the strings beside them, and its own bytes."""

    entries: dict[str, Entry]
    metadata: dict[str, str]
    raw: bytes


def read_header(path: Path) -> Header:
    """The checked header of a safetensors file."""
    name = path.name
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            room = min(size - 8, MAX_HEADER_BYTES)
            if size < 8 or not 2 <= length <= room:
                raise RopeError(name, f"must be safetensors: a header of 2 to {max(room, 0)} bytes", length)
            raw = file.read(length)
    except OSError as error:
        raise RopeError(name, f"must be a readable file ({error.strerror})", str(path)) from None
    given = parse_object(raw, name)
    metadata = given.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise RopeError(name, "must have strings alone under __metadata__", metadata)
    entries = {key: _entry(name, key, value) for key, value in given.items()}
    entries = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
    _check_cover(name, entries, size - 8 - length)
    return Header(entries, metadata, raw)


def parse_object(data: bytes, name: str) -> dict[str, Any]:
    """The JSON object in `data`, every key once."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_once)
    except RopeError as error:
        raise RopeError(f"{name}: {error.field}", error.rule, error.value) from None
    except (ValueError, RecursionError) as error:
        raise RopeError(name, f"must hold JSON ({type(error).__name__})", data[:40]) from None
    if not isinstance(value, dict):
        raise RopeError(name, "must hold a JSON object", value)
    return value


def read_rows(path: Path, header: Header, key: str, start: int = 0, stop: int | None = None) -> Tensor:
    """Rows start:stop of a tensor along its first axis (all of it, also of a scalar, by default)."""
    entry = header.entries[key]
    begin, shape = entry.begin, entry.shape
    if entry.shape and (start, stop) != (0, None):
        stop = shape[0] if stop is None else min(stop, shape[0])
        row = (entry.end - entry.begin) // shape[0]
        begin, shape = begin + start * row, (stop - start, *shape[1:])
    tensor = torch.empty(shape, dtype=entry.dtype)
    # bytes, whatever the dtype: numpy has no bfloat16 and no float8
    room = tensor.reshape(-1).view(torch.uint8).numpy().data
    with path.open("rb", buffering=0) as file:
        file.seek(8 + len(header.raw) + begin)
        while room:
            count = file.readinto(room)
            if not count:
                raise RopeError(path.name, f"must not shrink while it is read: {key} ends early", len(room))
            room = room[count:]
    return tensor


def read_pieces(
    path: Path, header: Header, key: str, start: int = 0, stop: int | None = None, *, rows: int = 1
) -> Iterator[Tensor]:
    """Rows start:stop of a tensor in pieces of about PIECE_BYTES, each of whole groups of `rows` rows but for the last."""
    entry = header.entries[key]
    size = entry.end - entry.begin
    if not entry.shape or not size:
        yield read_rows(path, header, key)
        return
    stop = entry.shape[0] if stop is None else stop
    step = rows * max(1, PIECE_BYTES * entry.shape[0] // (size * rows))
    for first in range(start, stop, step):
        yield read_rows(path, header, key, first, min(first + step, stop))


def build_header(tensors: Iterable[tuple[str, torch.dtype, tuple[int, ...]]], metadata: dict[str, str]) -> Header:
    """The header of a new file, in the order given; padded so that the data is aligned to 8 bytes."""
    entries: dict[str, Entry] = {}
    begin = 0
    for key, dtype, shape in tensors:
        if key in entries or key == "__metadata__":
            raise RopeError("tensors", "must have each key once, and none called __metadata__", key)
        if dtype not in DTYPE_NAMES:
            raise RopeError(key, f"must have one of the dtypes {', '.join(DTYPES)}", dtype)
        entries[key] = Entry(dtype, tuple(shape), begin, begin + prod(shape) * dtype.itemsize)
        begin = entries[key].end
    written: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    for key, entry in entries.items():
        offsets = [entry.begin, entry.end]
        written[key] = {"dtype": DTYPE_NAMES[entry.dtype], "shape": list(entry.shape), "data_offsets": offsets}
    raw = json.dumps(written, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    return Header(entries, metadata, raw + b" " * (-len(raw) % 8))


def write_file(path: Path, header: Header, make: Callable[[str], Iterable[Tensor]]) -> None:
    """Write a file from its header and, key by key, the pieces that `make(key)` gives; synced to disk at the end."""
    with path.open("xb") as file:
        file.write(len(header.raw).to_bytes(8, "little") + header.raw)
        for key, entry in header.entries.items():
            left = entry.end - entry.begin
            for piece in make(key):
                if piece.dtype != entry.dtype:
                    raise RopeError(key, f"must be made as {entry.dtype}, as its header says", piece.dtype)
                data = piece.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
                left -= data.size
                file.write(data.data)
            if left:
                size = entry.end - entry.begin
                raise RopeError(key, f"must be made with the {size} bytes its header says", size - left)
        file.flush()
        os.fsync(file.fileno())


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise RopeError(key, "must be given once", value)
        found[key] = value
    return found


def _entry(name: str, key: str, value: Any) -> Entry:
    field = f"{name}: {key}"
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise RopeError(field, "must be an object with dtype, shape and data_offsets", value)
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise RopeError(f"{field}.dtype", f"must be one of {', '.join(DTYPES)}", dtype)
    if not _naturals(shape) or len(shape) > MAX_DIMS:
        raise RopeError(f"{field}.shape", f"must be at most {MAX_DIMS} integers >= 0", shape)
    if not _naturals(offsets) or len(offsets) != 2:
        raise RopeError(f"{field}.data_offsets", "must be two integers >= 0", offsets)
    size = prod(shape) * DTYPES[dtype].itemsize
    if offsets[1] - offsets[0] != size:
        raise RopeError(f"{field}.data_offsets", f"must span the {size} bytes of a {dtype} tensor of shape {shape}", offsets)
    return Entry(DTYPES[dtype], tuple(shape), *offsets)


def _naturals(value: Any) -> bool:
    # a size beyond 2^62 is no size, and its product would be an integer of thousands of digits
    return isinstance(value, list) and all(type(each) is int and 0 <= each < 2**62 for each in value)


def _check_cover(name: str, entries: dict[str, Entry], size: int) -> None:
    """Tensors lie end to end: a gap may hide data, an overlap may read one tensor as another."""
    ends = [0, *(place for entry in entries.values() for place in (entry.begin, entry.end)), size]
    for end, begin in list(pairwise(ends))[::2]:
        if end != begin:
            raise RopeError(name, f"must hold its tensors end to end: byte {end} of the data is followed by another", begin)
