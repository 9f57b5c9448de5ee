"""Dequantised tensors: against the blocks written out weight by weight, and against the gguf
package's own reading of the same file.
"""

import builtins
import struct

import numpy as np
import pytest

from gguf_samples import sizes, write
from ropewalk import RopeError
from ropewalk.gguf import GgufFile
from ropewalk.gguf.tensor_types import TYPES
from ropewalk.interop.gguf.tensors import read_tensor

gguf = pytest.importorskip("gguf")

NUMBERS = {kind.name: number for number, kind in TYPES.items()}
#: every type that the installed gguf package dequantises
COMPUTED = ["F32", "F16", *(kind.name for kind in gguf.quants._type_traits)]
NOT_COMPUTED = [name for name in NUMBERS if name not in COMPUTED]
#: where a block has its float16 numbers; types without an entry have none
HALVES = {
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"), (0,)),
}
#: the 16 values of IQ4_NL and IQ4_XS, and of MXFP4 and NVFP4
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def half(block: bytes, at: int) -> float:
    return struct.unpack_from("<e", block, at)[0]


def nibble(values: bytes, i: int, count: int) -> int:
    """Number i of 2 * count numbers: the low halves of `count` bytes, then their high halves."""
    return values[i] & 15 if i < count else values[i - count] >> 4


def six_bits(packed: bytes, part: int) -> tuple[int, int]:
    """The scale and the minimum of one part of a K block."""
    if part < 4:
        return packed[part] & 63, packed[part + 4] & 63
    high_scale, high_minimum = packed[part - 4] >> 6, packed[part] >> 6
    return packed[part + 4] & 15 | high_scale << 4, packed[part + 4] >> 4 | high_minimum << 4


def simple(name: str, block: bytes, i: int) -> float:
    """Weight i of a block of 32: d q, with an offset or a minimum."""
    start = len(block) - 16
    quant = nibble(block[start:], i, 16)
    if name.startswith("Q5"):
        quant |= (struct.unpack_from("<I", block, start - 4)[0] >> i & 1) << 4
    middle = {"Q4_0": 8, "Q5_0": 16}.get(name)
    if middle is None:
        return half(block, 0) * quant + half(block, 2)
    return half(block, 0) * (quant - middle)


def q2_k(name: str, block: bytes, i: int) -> float:
    """16 bytes of scales and minima, 64 bytes with 4 quants of 2 bits each, d, m."""
    part, within = i // 128, i % 128
    quant = block[16 + 32 * part + within % 32] >> 2 * (within // 32) & 3
    scale = block[i // 16]
    return half(block, 80) * (scale & 15) * quant - half(block, 82) * (scale >> 4)


def q3_k(name: str, block: bytes, i: int) -> float:
    """32 bytes of third bits, 64 bytes with the low 2 bits, 16 scales of 6 bits in 12 bytes, d."""
    part, within = i // 128, i % 128
    quant = block[32 + 32 * part + within % 32] >> 2 * (within // 32) & 3
    quant -= 0 if block[i % 32] >> (i // 32) & 1 else 4
    index, scales = i // 16, block[96:108]
    low = nibble(scales, index, 8)
    scale = low | (scales[8 + index % 4] >> 2 * (index // 4) & 3) << 4
    return half(block, 108) * (scale - 32) * quant


def q4_or_5_k(name: str, block: bytes, i: int) -> float:
    part, within = divmod(i, 32)
    byte = block[len(block) - 128 + part // 2 * 32 + within]
    quant = byte >> 4 if part % 2 else byte & 15
    if name == "Q5_K":
        quant |= (block[16 + within] >> part & 1) << 4
    scale, minimum = six_bits(block[4:16], part)
    return half(block, 0) * scale * quant - half(block, 2) * minimum


def q6_k(name: str, block: bytes, i: int) -> float:
    part, within = divmod(i, 128)
    low = block[64 * part + within % 64] >> (4 if within >= 64 else 0) & 15
    high = block[128 + 32 * part + within % 32] >> 2 * (within // 32) & 3
    scale = struct.unpack_from("<b", block, 192 + i // 16)[0]
    return half(block, 208) * scale * ((low | high << 4) - 32)


def iq4_xs(name: str, block: bytes, i: int) -> float:
    """d, 8 scales of 6 bits (high 2 bits first, then low 4 bits), then 8 parts of 32 quants."""
    part = i // 32
    high = struct.unpack_from("<H", block, 2)[0] >> 2 * part & 3
    low = block[4 + part // 2] >> 4 * (part % 2) & 15
    quant = nibble(block[8 + 16 * part :], i % 32, 16)
    return half(block, 0) * ((low | high << 4) - 32) * IQ4[quant]


def tq1_0(name: str, block: bytes, i: int) -> float:
    """Digits of base 3, the most significant first: 32 bytes, 16 bytes, and 4 bytes of 4 digits."""
    if i < 160:
        digit, byte = i // 32, block[i % 32]
    elif i < 240:
        digit, byte = (i - 160) // 16, block[32 + (i - 160) % 16]
    else:
        digit, byte = (i - 240) // 4, block[48 + (i - 240) % 4]
    return half(block, 52) * ((byte * 3**digit % 256 * 3 >> 8) - 1)


def tq2_0(name: str, block: bytes, i: int) -> float:
    quant = block[32 * (i // 128) + i % 32] >> 2 * (i % 128 // 32) & 3
    return half(block, 64) * (quant - 1)


def nvfp4(name: str, block: bytes, i: int) -> float:
    """Four parts of 16 quants, with a scale each: 4 bits of exponent, 3 of mantissa, no sign."""
    part, within = divmod(i, 16)
    scale = block[part] & 0x7F
    exponent, mantissa = scale >> 3, scale & 7
    size = mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return (0 if scale == 0x7F else size / 2) * FP4[nibble(block[4 + 8 * part :], within, 8)]


DEFINITIONS = {
    "F32": lambda name, block, i: struct.unpack("<f", block)[0],
    "F16": lambda name, block, i: half(block, 0),
    "BF16": lambda name, block, i: struct.unpack("<f", b"\0\0" + block)[0],
    "Q8_0": lambda name, block, i: half(block, 0) * struct.unpack_from("<b", block, 2 + i)[0],
    **dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1"), simple),
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_or_5_k,
    "Q5_K": q4_or_5_k,
    "Q6_K": q6_k,
    "IQ4_NL": lambda name, block, i: half(block, 0) * IQ4[nibble(block[2:], i, 16)],
    "IQ4_XS": iq4_xs,
    "TQ1_0": tq1_0,
    "TQ2_0": tq2_0,
    "MXFP4": lambda name, block, i: 2.0 ** (block[0] - 128) * FP4[nibble(block[1:], i, 16)],
    "NVFP4": nvfp4,
}


def random_blocks(name: str, count: int) -> np.ndarray:
    """Blocks of random bytes with scales of ordinary size."""
    draw, kind = np.random.default_rng(len(name) + count), TYPES[NUMBERS[name]]
    if name in ("F32", "F16"):
        dtype = "<f4" if name == "F32" else "<f2"
        return draw.standard_normal((count, 1)).astype(dtype).view(np.uint8)
    blocks = draw.integers(0, 256, (count, kind.bytes), dtype=np.uint8)
    if name == "BF16":
        blocks[:, 1] &= 0xBF  # exponents of finite numbers
    if name == "MXFP4":
        blocks[:, 0] = draw.integers(110, 140, count)
    if name == "NVFP4":
        blocks[:, :4] &= 0x7F  # these scales have no sign
    if name == "IQ1_M":
        # the float16 scale is spread over the highest 4 bits of four numbers of 16 bits: its
        # exponent is set to that of 1 ... 2
        bits = draw.integers(0, 1024, count) | 15 << 10
        for part in range(4):
            blocks[:, 49 + 2 * part] = blocks[:, 49 + 2 * part] & 15 | (bits >> 4 * part & 15) << 4
    for at in HALVES.get(name, ()):
        blocks[:, at : at + 2] = draw.standard_normal((count, 1)).astype("<f2").view(np.uint8)
    return blocks


def file_of(path, name: str, blocks: np.ndarray, rows: int = 1) -> GgufFile:
    """A file with one tensor, `w`, of these blocks; another tensor is before it."""
    shape = rows, blocks.shape[0] * TYPES[NUMBERS[name]].weights // rows
    tensors = {"v": np.ones(3), "w": (NUMBERS[name], shape, blocks.tobytes())}
    return GgufFile(write(path, sizes(), tensors))


@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_weight_is_the_one_that_its_block_defines(name, tmp_path):
    blocks, kind = random_blocks(name, 6), TYPES[NUMBERS[name]]
    expected = [
        DEFINITIONS[name](name, block.tobytes(), i) for block in blocks for i in range(kind.weights)
    ]
    got = read_tensor(file_of(tmp_path / "a.gguf", name, blocks, rows=2), "w")
    assert got.dtype == np.float32
    assert got.shape == (2, 3 * kind.weights)
    np.testing.assert_allclose(got.reshape(-1), expected, rtol=3e-7, atol=1e-6)


@pytest.mark.parametrize("name", COMPUTED)
def test_the_gguf_package_reads_the_same_weights_from_the_same_file(name, tmp_path):
    file = file_of(tmp_path / "a.gguf", name, random_blocks(name, 48), rows=24)
    (theirs,) = (each for each in gguf.GGUFReader(file.path).tensors if each.name == "w")
    expected = gguf.quants.dequantize(theirs.data, theirs.tensor_type)
    got = read_tensor(file, "w")
    assert np.isfinite(got).all()
    assert len(np.unique(got)) > 2
    np.testing.assert_array_equal(got, expected.reshape(got.shape))


def test_the_gguf_package_has_the_same_types_and_sizes():
    theirs = {
        kind.name: (int(kind), *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType
    }
    ours = {kind.name: (number, kind.weights, kind.bytes) for number, kind in TYPES.items()}
    known = {name: ours[name] for name in ours if name in theirs}
    assert len(known) >= 30
    assert known.items() <= theirs.items()


@pytest.mark.parametrize("name", NOT_COMPUTED)
def test_a_type_that_is_not_computed_is_refused_when_it_is_read(name, tmp_path):
    kind = TYPES[NUMBERS[name]]
    file = file_of(tmp_path / "a.gguf", name, np.zeros((1, kind.bytes), np.uint8))
    with pytest.raises(RopeError, match=rf"w: must be of a type .*; got '{name}'"):
        read_tensor(file, "w")


@pytest.mark.parametrize("name", COMPUTED)
def test_any_bytes_are_weights_without_a_warning(name, tmp_path):
    """Scales may be infinite or NaN: such weights are what the file says, and cause no warning."""
    for value in (0, 0x7C, 0xFF):
        blocks = np.full((2, TYPES[NUMBERS[name]].bytes), value, np.uint8)
        assert read_tensor(file_of(tmp_path / "a.gguf", name, blocks), "w").dtype == np.float32


def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch):
    original = builtins.__import__

    def without_gguf(name, *args, **kwargs):
        if name.split(".")[0] == "gguf":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    file = file_of(tmp_path / "a.gguf", "Q8_0", random_blocks("Q8_0", 2))
    monkeypatch.setattr(builtins, "__import__", without_gguf)
    with pytest.raises(RopeError, match=r"needs gguf; run: pip install 'ropewalk\[gguf\]'"):
        read_tensor(file, "w")


def test_a_tensor_that_is_not_in_the_file_is_refused(tmp_path):
    file = file_of(tmp_path / "a.gguf", "Q8_0", random_blocks("Q8_0", 2))
    with pytest.raises(
        RopeError, match="tensor: must be a tensor of the file, such as v, w; got 'none'"
    ):
        read_tensor(file, "none")
