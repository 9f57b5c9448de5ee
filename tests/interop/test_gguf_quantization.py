"""Dequantised weights: against the blocks written out weight by weight, and against the gguf
package where it is installed.
"""

import struct

import numpy as np
import pytest

from ropewalk import RopeError
from ropewalk.gguf.quantization import TYPES

COMPUTED = {kind.name: number for number, kind in TYPES.items() if kind.compute}
#: where a block has its float16 numbers
HALVES = {
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}


def six_bits(packed: bytes, part: int) -> tuple[int, int]:
    """The scale and the minimum of one part of a K block."""
    if part < 4:
        return packed[part] & 63, packed[part + 4] & 63
    high_scale, high_minimum = packed[part - 4] >> 6, packed[part] >> 6
    return packed[part + 4] & 15 | high_scale << 4, packed[part + 4] >> 4 | high_minimum << 4


def weight(name: str, block: bytes, i: int) -> float:
    """Weight i of a block, in float64."""
    if name == "F32":
        return struct.unpack("<f", block)[0]
    if name == "BF16":
        return struct.unpack("<f", b"\0\0" + block)[0]
    at = HALVES.get(name, (0,))
    d, m = struct.unpack_from("<e", block, at[0])[0], struct.unpack_from("<e", block, at[-1])[0]
    if name == "F16":
        return d
    if name == "Q8_0":
        return d * struct.unpack_from("<b", block, 2 + i)[0]
    if name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        start = len(block) - 16
        quant = block[start + i] & 15 if i < 16 else block[start + i - 16] >> 4
        if name.startswith("Q5"):
            quant |= (struct.unpack_from("<I", block, start - 4)[0] >> i & 1) << 4
        middle = {"Q4_0": 8, "Q5_0": 16}.get(name)
        return d * quant + m if middle is None else d * (quant - middle)
    if name in ("Q4_K", "Q5_K"):
        part, within = divmod(i, 32)
        byte = block[len(block) - 128 + part // 2 * 32 + within]
        quant = byte >> 4 if part % 2 else byte & 15
        if name == "Q5_K":
            quant |= (block[16 + within] >> part & 1) << 4
        scale, minimum = six_bits(block[4:16], part)
        return d * scale * quant - m * minimum
    half, within = divmod(i, 128)  # Q6_K
    low = block[64 * half + within % 64] >> (4 if within >= 64 else 0) & 15
    high = block[128 + 32 * half + within % 32] >> 2 * (within // 32) & 3
    return d * struct.unpack_from("<b", block, 192 + i // 16)[0] * ((low | high << 4) - 32)


def random_blocks(name: str, count: int) -> np.ndarray:
    """Blocks of random bytes with scales of ordinary size."""
    draw, kind = np.random.default_rng(len(name) + count), TYPES[COMPUTED[name]]
    if name in ("F32", "F16"):
        return (
            draw.standard_normal((count, 1))
            .astype("<f4" if name == "F32" else "<f2")
            .view(np.uint8)
        )
    blocks = draw.integers(0, 256, (count, kind.bytes), dtype=np.uint8)
    if name == "BF16":
        blocks[:, 1] &= 0xBF  # exponents of finite numbers
    for at in HALVES.get(name, ()):
        blocks[:, at : at + 2] = draw.standard_normal((count, 1)).astype("<f2").view(np.uint8)
    return blocks


@pytest.mark.parametrize("name", COMPUTED)
def test_every_weight_is_the_one_that_its_block_defines(name):
    blocks, kind = random_blocks(name, 5), TYPES[COMPUTED[name]]
    expected = [weight(name, block.tobytes(), i) for block in blocks for i in range(kind.weights)]
    got = kind.dequantize("w", blocks.reshape(-1))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=3e-7, atol=1e-6)


@pytest.mark.parametrize("name", COMPUTED)
def test_the_gguf_package_computes_the_same_bits(name):
    gguf = pytest.importorskip("gguf")
    blocks, kind = random_blocks(name, 64), TYPES[COMPUTED[name]]
    theirs = gguf.dequantize(blocks.reshape(8, -1), gguf.GGMLQuantizationType[name])
    np.testing.assert_array_equal(kind.dequantize("w", blocks.reshape(-1)), theirs.reshape(-1))


def test_the_gguf_package_has_the_same_types_and_sizes():
    gguf = pytest.importorskip("gguf")
    theirs = {
        int(kind): (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType
    }
    assert {
        number: (kind.name, kind.weights, kind.bytes) for number, kind in TYPES.items()
    }.items() <= theirs.items()


def test_a_type_that_is_not_computed_is_refused_when_it_is_read():
    with pytest.raises(
        RopeError, match=r"w: must be of a type that can be dequantised: F32, F16.*got 'IQ4_NL'"
    ):
        TYPES[20].dequantize("w", np.zeros(18, np.uint8))
