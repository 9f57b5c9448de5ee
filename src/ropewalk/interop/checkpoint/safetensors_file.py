"""Read and write one safetensors file, tensor by tensor or in pieces; its header is not trusted.

    8 bytes   length of the header, little endian
    header    JSON: {name: {"dtype", "shape", "data_offsets": [begin, end]}}, and strings under
              "__metadata__"
    data      the tensors, row-major, one after another without gaps

Sizes are checked against the file before anything is allocated, so a hostile header costs at most
its own length.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.config.file import unique_keys
from ropewalk.errors import RopeError

#: real headers are below 1 MB; 16 MB holds a hundred thousand tensors
MAX_HEADER_BYTES = 16 << 20
MAX_DIMS = 16
#: the most bytes of a piece of a tensor, unless one row or one head is larger
PIECE_BYTES = 8 << 20

DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
    "C64": torch.complex64,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class SafetensorsEntry:
    """One tensor in a header: dtype, shape, and its byte range after the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def bytes(self) -> int:
        """Size of the data in bytes."""
        return self.end - self.begin


@dataclass(frozen=True)
class Header:
    """A file's header: its tensors in the order of their data, its metadata strings, and its raw
    bytes.
    """

    entries: dict[str, SafetensorsEntry]
    metadata: dict[str, str]
    raw: bytes


def read_header(path: Path) -> Header:
    """Return the checked header of a safetensors file."""
    file_name = path.name
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            max_length = min(size - 8, MAX_HEADER_BYTES)
            if size < 8 or not 2 <= length <= max_length:
                raise RopeError(
                    file_name,
                    f"must be safetensors, with a header of 2 to {max(max_length, 0)} bytes",
                    length,
                )
            raw = file.read(length)
    except OSError as error:
        raise RopeError(
            file_name, f"must be a readable file ({error.strerror})", str(path)
        ) from None
    fields = parse_object(raw, file_name)
    metadata = fields.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        raise RopeError(file_name, "must have only strings under __metadata__", metadata)
    entries = {name: _entry(f"{file_name}: {name}", value) for name, value in fields.items()}
    entries = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
    _check_contiguous(file_name, entries, size - 8 - length)
    return Header(entries, metadata, raw)


def parse_object(data: bytes, file_name: str) -> dict[str, Any]:
    """Return a JSON object as a dict; refuse duplicate names in it."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique_keys)
    except RopeError as error:
        raise RopeError(f"{file_name}: {error.field}", error.rule, error.value) from None
    except (ValueError, RecursionError) as error:
        raise RopeError(file_name, f"must hold JSON ({type(error).__name__})", data[:40]) from None
    if not isinstance(value, dict):
        raise RopeError(file_name, "must hold a JSON object", value)
    return value


def read_rows(
    path: Path, header: Header, name: str, start: int = 0, stop: int | None = None
) -> Tensor:
    """Return rows start:stop of a tensor along its first axis; the whole tensor, which may be a
    scalar, if `stop` is None.
    """
    entry = header.entries[name]
    begin, shape = entry.begin, entry.shape
    if stop is not None:
        row_bytes = entry.bytes // shape[0]
        begin, shape = begin + start * row_bytes, (stop - start, *shape[1:])
    tensor = torch.empty(shape, dtype=entry.dtype)
    # view as bytes, because numpy has no bfloat16 and no float8
    buffer = tensor.reshape(-1).view(torch.uint8).numpy().data
    with path.open("rb", buffering=0) as file:
        file.seek(8 + len(header.raw) + begin)
        while buffer:
            count = file.readinto(buffer)
            if not count:
                raise RopeError(
                    path.name,
                    f"must not shrink while it is read: bytes of {name} are missing",
                    len(buffer),
                )
            buffer = buffer[count:]
    return tensor


def read_pieces(
    path: Path, header: Header, name: str, start: int = 0, stop: int | None = None, *, rows: int = 1
) -> Iterator[Tensor]:
    """Yield rows start:stop of a tensor, by default all, in pieces of at most 8 MiB (PIECE_BYTES),
    or of `rows` rows if these are larger. Every piece but the last has a multiple of `rows` rows:
    with the rows of one head as `rows`, no piece ends inside a head.
    """
    entry = header.entries[name]
    if not entry.shape or not entry.bytes:  # a scalar, or a tensor without entries, is one piece
        yield read_rows(path, header, name)
        return
    stop = entry.shape[0] if stop is None else min(stop, entry.shape[0])
    bytes_of_rows = rows * entry.bytes // entry.shape[0]
    piece_rows = rows * max(1, PIECE_BYTES // bytes_of_rows)
    for first in range(start, stop, piece_rows):
        yield read_rows(path, header, name, first, min(first + piece_rows, stop))


def build_header(
    tensors: Iterable[tuple[str, torch.dtype, tuple[int, ...]]], metadata: dict[str, str]
) -> Header:
    """Return the header of a new file with tensors in the given order, padded so that the data is
    aligned to 8 bytes.
    """
    entries: dict[str, SafetensorsEntry] = {}
    begin = 0
    for name, dtype, shape in tensors:
        if name in entries or name == "__metadata__":
            raise RopeError("tensors", "must have unique names, none of them __metadata__", name)
        if dtype not in DTYPE_NAMES:
            raise RopeError(name, f"must have one of the dtypes {', '.join(DTYPES)}", dtype)
        entries[name] = SafetensorsEntry(
            dtype, tuple(shape), begin, begin + prod(shape) * dtype.itemsize
        )
        begin = entries[name].end
    fields: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    for name, entry in entries.items():
        offsets = [entry.begin, entry.end]
        fields[name] = {
            "dtype": DTYPE_NAMES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": offsets,
        }
    raw = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    return Header(entries, metadata, raw + b" " * (-len(raw) % 8))


def write_file(path: Path, header: Header, pieces_of: Callable[[str], Iterable[Tensor]]) -> None:
    """Write a new file from its header and, tensor by tensor, the pieces that `pieces_of(name)`
    yields; sync it to disk.
    """
    with path.open("xb") as file:
        file.write(len(header.raw).to_bytes(8, "little") + header.raw)
        for name, entry in header.entries.items():
            written = 0
            for piece in pieces_of(name):
                if piece.dtype != entry.dtype:
                    raise RopeError(
                        name, f"must have the dtype in its header, {entry.dtype}", piece.dtype
                    )
                data = piece.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
                written += data.size
                file.write(data.data)
                del piece, data  # free them before the next piece is read
            if written != entry.bytes:
                raise RopeError(
                    name, f"must have the size in its header, {entry.bytes} bytes", written
                )
        file.flush()
        os.fsync(file.fileno())


def _entry(field: str, value: Any) -> SafetensorsEntry:
    """Return the checked entry of one tensor in the header, which is untrusted data; errors are
    about `field`.
    """
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise RopeError(field, "must be an object with dtype, shape and data_offsets", value)
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise RopeError(f"{field}.dtype", f"must be one of {', '.join(DTYPES)}", dtype)
    if not _are_sizes(shape) or len(shape) > MAX_DIMS:
        raise RopeError(f"{field}.shape", f"must be at most {MAX_DIMS} integers >= 0", shape)
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise RopeError(f"{field}.data_offsets", "must be two integers >= 0", offsets)
    size = prod(shape) * DTYPES[dtype].itemsize
    if offsets[1] - offsets[0] != size:
        raise RopeError(
            f"{field}.data_offsets",
            f"must span the {size} bytes of a {dtype} tensor of shape {shape}",
            offsets,
        )
    return SafetensorsEntry(DTYPES[dtype], tuple(shape), *offsets)


def _are_sizes(value: Any) -> bool:
    """Return whether a value is a list of integers from 0 to 2^62 - 1."""
    # the product of larger sizes could have thousands of digits
    return isinstance(value, list) and all(
        type(each) is int and 0 <= each < 2**62 for each in value
    )


def _check_contiguous(file_name: str, entries: dict[str, SafetensorsEntry], size: int) -> None:
    """Raise an error if the tensors, in the order of `entries`, have gaps, which may hide data, or
    overlaps, or do not fill the `size` bytes of data.
    """
    previous_end = 0
    # the last, empty range stands for the end of the file
    for begin, end in [*((entry.begin, entry.end) for entry in entries.values()), (size, size)]:
        if begin != previous_end:
            rule = (
                f"must store its tensors without gaps or overlaps: byte {previous_end} of the data "
                "must start the next one"
            )
            raise RopeError(file_name, rule, begin)
        previous_end = end
