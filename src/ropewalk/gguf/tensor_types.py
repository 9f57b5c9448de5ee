"""The tensor types of GGUF and how many bytes their blocks take. The rows are in tensor_types.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from math import prod

from ropewalk.errors import RopeError


@dataclass(frozen=True)
class TensorType:
    """One tensor type: a row of a tensor is a sequence of blocks of `weights` weights, of `bytes`
    bytes each.
    """

    name: str
    weights: int
    bytes: int

    def size(self, tensor: str, shape: tuple[int, ...]) -> int:
        """Return how many bytes a tensor of this shape takes in the file; `tensor` is its name, for
        the error.
        """
        if shape[-1] % self.weights:
            rule = f"must end in a multiple of {self.weights}, a block of {self.name}"
            raise RopeError(f"shape of {tensor}", rule, list(shape))
        return prod(shape) // self.weights * self.bytes


def _read_rows() -> dict[int, TensorType]:
    """Return the rows of tensor_types.toml by number."""
    text = files("ropewalk.gguf").joinpath("tensor_types.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text).items()
    return {number: TensorType(name, weights, size) for name, (number, weights, size) in rows}


#: number in a file -> type
TYPES: dict[int, TensorType] = _read_rows()


def type_of(number: int) -> TensorType:
    """Return the tensor type that GGUF files have this number for."""
    if number not in TYPES:
        known = ", ".join(f"{key} ({each.name})" for key, each in sorted(TYPES.items()))
        raise RopeError("type of a tensor", f"must be one of {known}", number)
    return TYPES[number]
