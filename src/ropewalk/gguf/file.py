"""Read one GGUF file; nothing in it is trusted.

    4 bytes    "GGUF"
    uint32     version, 2 or 3
    2 uint64   number of tensors, number of key-value pairs
    pairs      key, type, value; an array is its entry type, its length and its entries
    tensors    name, number of dimensions, dimensions (the fastest first), type, offset in the data
    data       the tensors, each aligned

Every count, length and offset is checked against the file before memory is allocated for it.
Entries of arrays are read when they are asked for; arrays of arrays are refused. Weights are not
read here: `ropewalk.interop.gguf` dequantises them.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.gguf.tensor_types import TensorType, type_of

MAGIC = b"GGUF"
VERSIONS = (2, 3)
#: the header is everything before the data; a vocabulary of 256,000 tokens with its merges takes
#: 15 MB
MAX_HEADER_BYTES = 64 << 20
#: the most key-value pairs of the metadata, and the most tensors
MAX_PAIRS = MAX_TENSORS = 1 << 16
MAX_NAME_BYTES = 65535
MAX_DIMENSIONS = 4
#: the most strings in all arrays together; they can only be skipped one by one
MAX_STRINGS = 1_500_000
MAX_ALIGNMENT = 1 << 16
#: the most entries of an array that is read, such as the type of each token
MAX_ENTRIES = 1 << 22
#: the most numbers of a tensor that is read as floats: the factors of a rope, one for each pair
MAX_FLOATS = 1 << 16

#: type id -> struct code of a number
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
BOOL, STRING, ARRAY = 7, 8, 9
#: tensor type -> struct code; these hold numbers without blocks
FLOATS = {"F32": "f", "F16": "e", "F64": "d"}


@dataclass(frozen=True)
class Array:
    """An array in the metadata: GGUF's number of its entry type, its length, and where it is in the
    file: the bytes `begin` ... `end` - 1.
    """

    type_id: int
    length: int
    begin: int
    end: int


@dataclass(frozen=True)
class GgufTensorEntry:
    """One tensor: its shape with the slowest dimension first, its type, and where it is in the
    file: the bytes `begin` ... `end` - 1.
    """

    shape: tuple[int, ...]
    type: TensorType
    begin: int
    end: int


class GgufFile:
    """The metadata and the list of tensors of a GGUF file; `array` reads the entries of an array,
    `floats` the numbers of a tensor and `data` its bytes.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read and check everything before the data of the tensors."""
        self.path = Path(path)
        #: key -> int, float, bool, str or Array
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensorEntry] = {}
        try:
            # a pipe or a device may never end
            if not self.path.is_file():
                raise RopeError("path", "must be the path of a GGUF file", str(path))
            with self.path.open("rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                data = file.read(MAX_HEADER_BYTES)
        except OSError as error:
            raise RopeError(
                "path", f"must be a readable file ({error.strerror})", str(path)
            ) from None
        _HeaderReader(self, data).read()

    @property
    def architecture(self) -> str:
        """The value of general.architecture, by which the other keys are named."""
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise RopeError("general.architecture", "must be a name", name)
        return name

    def array(self, key: str) -> list[Any]:
        """Return the entries of an array in the metadata, read from the file."""
        array = self.metadata.get(key)
        if not isinstance(array, Array):
            raise RopeError(key, "must be an array", array)
        if array.length > MAX_ENTRIES:
            raise RopeError(f"length of {key}", f"must be at most {MAX_ENTRIES}", array.length)
        data = self._bytes(key, array.begin, array.end)
        if array.type_id != STRING:
            return list(struct.unpack(f"<{array.length}{_code(array.type_id)}", data))
        entries, at = [], 0  # each string is its length, 8 bytes, and its bytes
        for _ in range(array.length):
            end = at + 8 + int.from_bytes(data[at : at + 8], "little")
            entries.append(_text(key, data[at + 8 : end]))
            at = end
        return entries

    def floats(self, name: str) -> tuple[float, ...]:
        """Return the numbers of a tensor with one dimension that is not quantised."""
        entry = self.entry(name)
        if len(entry.shape) != 1 or entry.shape[0] > MAX_FLOATS:
            rule = f"must have one dimension and at most {MAX_FLOATS} entries"
            raise RopeError(name, rule, list(entry.shape))
        if entry.type.name not in FLOATS:
            raise RopeError(name, f"must be of type {', '.join(FLOATS)}", entry.type.name)
        return struct.unpack(f"<{entry.shape[0]}{FLOATS[entry.type.name]}", self.data(name))

    def data(self, name: str) -> bytearray:
        """Return the bytes of a tensor as they are in the file."""
        entry = self.entry(name)
        return self._bytes(name, entry.begin, entry.end)

    def entry(self, name: str) -> GgufTensorEntry:
        """Return where a tensor is in the file, its shape and its type."""
        entry = self.tensors.get(name)
        if entry is None:
            some = f", such as {', '.join(list(self.tensors)[:3])}" if self.tensors else ""
            raise RopeError("tensor", f"must be a tensor of the file{some}", name)
        return entry

    def _bytes(self, name: str, begin: int, end: int) -> bytearray:
        """Return bytes begin ... end - 1 of the file; `name` is for the error if the file shrinks
        meanwhile.
        """
        data = bytearray(end - begin)
        with self.path.open("rb", buffering=0) as file:
            file.seek(begin)
            view = memoryview(data)
            while view:
                # an unbuffered file has `readinto`, which may read fewer bytes than have room
                count = file.readinto(view)  # type: ignore[attr-defined]
                if not count:
                    raise RopeError(
                        self.path.name,
                        f"must not shrink while it is read: bytes of {name} are missing",
                        len(view),
                    )
                view = view[count:]
        return data


class _HeaderReader:
    """Reads the header of a file from front to back.

    file     what is filled in
    data     the first bytes of the file, up to MAX_HEADER_BYTES
    at       the index in `data` of the next byte to read
    strings  how many strings all arrays so far have together
    """

    def __init__(self, file: GgufFile, data: bytes) -> None:
        self.file, self.data, self.at, self.strings = file, data, 0, 0

    def read(self) -> None:
        """Fill in the metadata and the tensors of the file."""
        if self._take(4) != MAGIC:
            raise RopeError(
                self.file.path.name,
                "must be a GGUF file, whose first four bytes are GGUF",
                self.data[:4],
            )
        version = self._number("I")
        if version not in VERSIONS:
            # a small number with its bytes in the other order has only its highest bits set
            big_endian = "; big-endian files are not supported" if version >> 16 else ""
            raise RopeError("version", f"must be 2 or 3{big_endian}", version)
        # the entry of a tensor takes at least 24 bytes, a key-value pair at least 13
        tensors = self._count("number of tensors", 24, MAX_TENSORS)
        for _ in range(self._count("number of key-value pairs", 13, MAX_PAIRS)):
            key = self._string("key", MAX_NAME_BYTES)
            if key in self.file.metadata:
                raise RopeError(key, "must be given once", key)
            self.file.metadata[key] = self._value(key)
        entries = [self._tensor() for _ in range(tensors)]
        alignment = self.file.metadata.get("general.alignment", 32)
        if (
            type(alignment) is not int
            or not 1 <= alignment <= MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            raise RopeError(
                "general.alignment", f"must be a power of 2 up to {MAX_ALIGNMENT}", alignment
            )
        # the data starts at the next aligned byte
        self._place(entries, alignment, start=self.at + -self.at % alignment)

    def _place(
        self,
        entries: list[tuple[str, tuple[int, ...], TensorType, int]],
        alignment: int,
        start: int,
    ) -> None:
        """Add the tensors to the file, after a check that they are within it, aligned, and do not
        overlap.

        entries    (name, shape, type, offset) of each tensor, as `_tensor` returns them
        alignment  offsets must be multiples of this
        start      the first byte of the data, from which offsets count
        """
        last, last_end = "", start
        for name, shape, tensor_type, offset in sorted(entries, key=lambda entry: entry[3]):
            size = tensor_type.size(name, shape)
            begin = start + offset
            if offset % alignment:
                raise RopeError(
                    f"offset of {name}",
                    f"must be a multiple of general.alignment = {alignment}",
                    offset,
                )
            if begin < last_end:
                raise RopeError(f"offset of {name}", f"must not lie within {last}", offset)
            if begin + size > self.file.size:
                rule = (
                    f"must leave room for its {size} bytes in a file of {self.file.size} bytes; "
                    "the file may be truncated"
                )
                raise RopeError(f"offset of {name}", rule, offset)
            if name in self.file.tensors:
                raise RopeError(name, "must be stored once", name)
            self.file.tensors[name] = GgufTensorEntry(shape, tensor_type, begin, begin + size)
            last, last_end = name, begin + size

    def _tensor(self) -> tuple[str, tuple[int, ...], TensorType, int]:
        """Return (name, shape, type, offset) of the next tensor in the header."""
        name = self._string("name of a tensor", MAX_NAME_BYTES)
        dimensions = self._number("I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise RopeError(f"dimensions of {name}", f"must be 1 to {MAX_DIMENSIONS}", dimensions)
        shape = tuple(self._number("Q") for _ in range(dimensions))[::-1]
        if prod(shape) > 8 * self.file.size or not all(shape):  # a weight takes at least one bit
            raise RopeError(
                f"shape of {name}",
                f"must be positive and fit in a file of {self.file.size} bytes",
                list(shape),
            )
        return name, shape, type_of(self._number("I")), self._number("Q")

    def _value(self, key: str) -> Any:
        """Return the next value of the header, of the type that precedes it."""
        type_id = self._number("I")
        if type_id == STRING:
            return self._string(key, MAX_HEADER_BYTES)
        if type_id == ARRAY:
            return self._array(key)
        return self._scalar(key, type_id)

    def _scalar(self, key: str, type_id: int) -> Any:
        """Return the next number or bool."""
        if type_id == BOOL:
            value = self._number("B")
            if value > 1:
                raise RopeError(key, "must be 0 or 1, as a bool", value)
            return bool(value)
        if type_id not in NUMBERS:
            raise RopeError(key, "must have a type from 0 to 12", type_id)
        return self._number(NUMBERS[type_id])

    def _array(self, key: str) -> Array:
        """Return where the entries of the next array are; they are read only when they are needed."""
        type_id, length = self._number("I"), self._number("Q")
        if type_id == ARRAY:
            raise RopeError(key, "must not be an array of arrays", f"{length} arrays")
        if type_id not in NUMBERS and type_id not in (BOOL, STRING):
            raise RopeError(key, "must have entries of a type from 0 to 12", type_id)
        # a string takes at least the 8 bytes of its length
        width = 8 if type_id == STRING else struct.calcsize("<" + _code(type_id))
        # `room` entries fit in what is left of the header
        begin, room = self.at, (len(self.data) - self.at) // width
        # strings are skipped one by one, so their number in all arrays together is limited
        most = min(room, MAX_STRINGS - self.strings) if type_id == STRING else room
        if length > most:
            raise RopeError(f"length of {key}", f"must be at most {most}", length)
        self.strings += length if type_id == STRING else 0
        if type_id != STRING:
            self.at += length * width
            return Array(type_id, length, begin, self.at)
        # only the length before each string tells where the next one begins
        data, at, end = self.data, self.at, len(self.data)
        for _ in range(length):
            at += 8 + int.from_bytes(data[at : at + 8], "little")
            if at > end:
                raise RopeError(
                    key, "must have strings that end within the file", f"{at} of {end} bytes"
                )
        self.at = at
        return Array(type_id, length, begin, at)

    def _count(self, field: str, least: int, limit: int) -> int:
        """Return the next number of the header, a count of entries that take at least `least` bytes
        each; refuse more than `limit`, and more than the rest of the header has room for.
        """
        count, room = self._number("Q"), (len(self.data) - self.at) // least
        if count > min(room, limit):
            raise RopeError(field, f"must be at most {min(room, limit)} in this file", count)
        return count

    def _string(self, field: str, limit: int) -> str:
        """Return the next string, of at most `limit` bytes; an error calls it `field`."""
        length = self._number("Q")
        if length > limit:
            raise RopeError(f"length of {field}", f"must be at most {limit} bytes", length)
        return _text(field, self._take(length))

    def _number(self, code: str) -> Any:
        """Return the next number of the header; `code` is its type as `struct` names it."""
        return struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))[0]

    def _take(self, count: int) -> bytes:
        """Return the next `count` bytes of the header and move on."""
        end = self.at + count
        if end > len(self.data):
            limit = (
                ""
                if len(self.data) < MAX_HEADER_BYTES
                else f", which may take {MAX_HEADER_BYTES} bytes at most"
            )
            raise RopeError(
                self.file.path.name,
                f"must not end within its header{limit}",
                f"{len(self.data)} bytes",
            )
        piece = self.data[self.at : end]
        self.at = end
        return piece


def _code(type_id: int) -> str:
    """Return the struct code of a number or a bool."""
    return "?" if type_id == BOOL else NUMBERS[type_id]


def _text(field: str, data: bytes | bytearray) -> str:
    """Return bytes as text; raise an error if they are not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RopeError(field, "must be UTF-8", f"byte {error.start} of {len(data)}") from None
