"""The tensor types of GGUF: how many bytes their blocks take, and how their weights are computed.

A quantised row is a sequence of blocks. A block of 32 weights has a scale d and perhaps a minimum
m, and weights d q + m. A "K" block of 256 weights has a scale and a minimum, and 8 or 16 small
integers that multiply them, one for each part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np

from ropewalk.errors import RopeError

#: a function of blocks [n, bytes of a block] that returns their weights [n, weights of a block]
Dequantize = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Quantization:
    """One tensor type: weights and bytes of a block, and the function that computes the weights, if
    there is one.
    """

    name: str
    weights: int
    bytes: int
    compute: Dequantize | None = None

    def size(self, tensor: str, shape: tuple[int, ...]) -> int:
        """Return how many bytes a tensor of this shape takes in the file; `tensor` is its name, for
        the error.
        """
        if shape[-1] % self.weights:
            rule = f"must end in a multiple of {self.weights}, a block of {self.name}"
            raise RopeError(f"shape of {tensor}", rule, list(shape))
        return prod(shape) // self.weights * self.bytes

    def dequantize(self, tensor: str, data: np.ndarray) -> np.ndarray:
        """Return the weights [n] in float32 that the bytes `data` hold; `tensor` is the tensor's
        name, for the error.
        """
        if self.compute is None:
            known = ", ".join(each.name for each in TYPES.values() if each.compute)
            raise RopeError(
                tensor, f"must be of a type that can be dequantised: {known}", self.name
            )
        return self.compute(data.reshape(-1, self.bytes)).reshape(-1)


def _float(dtype: str) -> Dequantize:
    return lambda blocks: blocks.view(dtype).astype(np.float32)


def _bfloat16(blocks: np.ndarray) -> np.ndarray:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """Return the float16 at byte `at` of each block, as float32 [n, 1]."""
    return blocks[:, at : at + 2].copy().view("<f2").astype(np.float32)


def _nibbles(values: np.ndarray) -> np.ndarray:
    """Return the low halves of the bytes of the last axis, then the high halves."""
    return np.concatenate((values & 15, values >> 4), axis=-1)


def _fifth_bits(blocks: np.ndarray, at: int) -> np.ndarray:
    """Return the 32 bits at byte `at` of each block, as 0 or 16."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") << 4


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]) + _half(blocks, 2)


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    quants = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return _half(blocks, 0) * (quants.astype(np.float32) - 16)


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    return _half(blocks, 0) * (_nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)) + _half(blocks, 2)


def _scales_and_minima(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the 8 scales and 8 minima, 6 bits each, that 12 bytes hold: [n, 8, 1] and [n, 8, 1].

    The first four of each are the low 6 bits of bytes 0-3 and 4-7. The last four have their low 4
    bits in bytes 8-11 (scales in the low half, minima in the high half), and their high 2 bits on
    top of bytes 0-3 and 4-7.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate((first & 63, (third & 15) | (first >> 6 << 4)), axis=1)
    minima = np.concatenate((second & 63, (third >> 4) | (second >> 6 << 4)), axis=1)
    return scales[..., None].astype(np.float32), minima[..., None].astype(np.float32)


def _k_block(blocks: np.ndarray, quants: np.ndarray) -> np.ndarray:
    """Return d * scale * q - m * minimum for the integers q [n, 8, 32]; d and m are at bytes 0 and
    2 of a block.
    """
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    return (
        _half(blocks, 0)[..., None] * scales * quants - _half(blocks, 2)[..., None] * minima
    ).reshape(-1, 256)


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    return _k_block(blocks, _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32))


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    """Return the weights of Q5_K blocks, [blocks, 256]."""
    # bit j of byte i is the fifth bit of weight i in part j
    bits = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little").transpose(0, 2, 1)
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return _k_block(blocks, low | (bits << 4))


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    """Return the weights of Q6_K blocks, [blocks, 256]."""
    # two halves of 128 weights: 64 bytes with their low 4 bits, and 32 bytes with the high 2 bits
    # of four parts of 32
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64))
    high = blocks[:, 128:192].reshape(-1, 2, 32)
    high = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1)
    quants = (low | (high << 4)).astype(np.float32) - 32
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return (scales[..., None] * quants.reshape(-1, 16, 16)).reshape(-1, 256)


#: type id -> type; of those without a function only the size is known
TYPES: dict[int, Quantization] = {
    0: Quantization("F32", 1, 4, _float("<f4")),
    1: Quantization("F16", 1, 2, _float("<f2")),
    2: Quantization("Q4_0", 32, 18, _q4_0),
    3: Quantization("Q4_1", 32, 20, _q4_1),
    6: Quantization("Q5_0", 32, 22, _q5_0),
    7: Quantization("Q5_1", 32, 24, _q5_1),
    8: Quantization("Q8_0", 32, 34, _q8_0),
    12: Quantization("Q4_K", 256, 144, _q4_k),
    13: Quantization("Q5_K", 256, 176, _q5_k),
    14: Quantization("Q6_K", 256, 210, _q6_k),
    30: Quantization("BF16", 1, 2, _bfloat16),
    **{
        number: Quantization(name, weights, size)
        for number, name, weights, size in (
            (9, "Q8_1", 32, 40),
            (10, "Q2_K", 256, 84),
            (11, "Q3_K", 256, 110),
            (15, "Q8_K", 256, 292),
            (16, "IQ2_XXS", 256, 66),
            (17, "IQ2_XS", 256, 74),
            (18, "IQ3_XXS", 256, 98),
            (19, "IQ1_S", 256, 50),
            (20, "IQ4_NL", 32, 18),
            (21, "IQ3_S", 256, 110),
            (22, "IQ2_S", 256, 82),
            (23, "IQ4_XS", 256, 136),
            (24, "I8", 1, 1),
            (25, "I16", 1, 2),
            (26, "I32", 1, 4),
            (27, "I64", 1, 8),
            (28, "F64", 1, 8),
            (29, "IQ1_M", 256, 56),
            (34, "TQ1_0", 256, 54),
            (35, "TQ2_0", 256, 66),
            (39, "MXFP4", 32, 17),
            (40, "NVFP4", 64, 36),
            (41, "Q1_0", 128, 18),
        )
    },
}


def quantization_of(number: int) -> Quantization:
    """Return the tensor type that GGUF files have this number for."""
    if number not in TYPES:
        rule = (
            "must be one of "
            f"{', '.join(f'{key} ({each.name})' for key, each in sorted(TYPES.items()))}"
        )
        raise RopeError("type of a tensor", rule, number)
    return TYPES[number]
