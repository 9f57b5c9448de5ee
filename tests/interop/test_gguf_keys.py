"""Details of GGUF files: types of tensors, alignment, sections, the keys of a written spec, and
where values come from.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import ropewalk as rw
from gguf_samples import header, pair, sizes, tensor, write
from ropewalk import RopeError, RopeSpec
from ropewalk.frequencies import Llama3, LongRope, Yarn
from ropewalk.gguf import GgufFile, read_ropes
from ropewalk.gguf.tensor_types import TYPES

PAIRS = 8
DIVISORS = np.array([1, 1.5, 2, 2.25, 3, 5, 8, 8], dtype=np.float32)
#: the enum ggml_type, from 0; a dash for a number that is no longer used
NUMBERED = (
    "F32 F16 Q4_0 Q4_1 - - Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S "  # noqa: E501
    "IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 - - - TQ1_0 TQ2_0 - - - MXFP4 NVFP4 Q1_0"
)


def test_every_type_of_a_tensor_has_its_number():
    expected = {number: name for number, name in enumerate(NUMBERED.split()) if name != "-"}
    assert {number: kind.name for number, kind in TYPES.items()} == expected


def test_a_file_may_be_aligned_to_single_bytes(tmp_path):
    """llama.cpp accepts any power of two as the alignment, and 1 is a power of two."""
    start = header(
        [pair("general.alignment", 1)],
        [tensor("v", (1,), 0, 0), tensor("w", (3,), 24, 4), tensor("x", (1,), 0, 7)],
    )
    path = tmp_path / "a.gguf"
    path.write_bytes(start + np.float32(2.5).tobytes() + bytes(3) + np.float32(-4).tobytes())
    file = GgufFile(path)
    assert (file.floats("v"), file.floats("x")) == ((2.5,), (-4.0,))


@pytest.mark.parametrize("shape", [(2,), (2, 3), (2, 3, 4), (2, 3, 4, 5)])
def test_a_tensor_has_up_to_four_dimensions(tmp_path, shape):
    weight = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    file = GgufFile(write(tmp_path / "a.gguf", sizes(), {"w": weight}))
    assert file.tensors["w"].shape == shape
    assert file.data("w") == weight.tobytes()


CHUNKED, ALTERNATING = (0, 0, 0, 0, 1, 1, 2, 2), (0, 1, 2, 0, 1, 2, 0, 0)


@pytest.mark.parametrize(
    ("architecture", "axis_of_pair"),
    [
        ("qwen2vl", CHUNKED),
        ("paddleocr", CHUNKED),
        ("qwen3vl", ALTERNATING),
        ("qwen3vlmoe", ALTERNATING),
        ("qwen35", ALTERNATING),
        ("qwen35moe", ALTERNATING),
    ],
)
def test_the_sections_of_a_file_are_in_the_order_of_its_architecture(
    architecture, axis_of_pair, tmp_path
):
    metadata = sizes(architecture) | {f"{architecture}.rope.dimension_sections": [4, 2, 2, 0]}
    spec = rw.gguf.from_gguf(write(tmp_path / "a.gguf", metadata))
    assert (spec.axis_of_pair, spec.num_axes, spec.layout) == (axis_of_pair, 3, "half")


@pytest.mark.parametrize("given", [None, 8, "4, 2, 2"])
def test_sections_in_memory_that_are_no_array_are_refused(given):
    metadata = sizes("qwen2vl") | {"qwen2vl.rope.dimension_sections": given}
    with pytest.raises(RopeError, match=r"rope\.dimension_sections: must be an array"):
        rw.gguf.read_ropes(rw.gguf.InMemory("qwen2vl", metadata))


@pytest.mark.parametrize(
    ("counts", "sections"), [([8], [8, 0, 0, 0]), ([3, 5], [3, 5, 0, 0]), ([4, 2, 2], [4, 2, 2, 0])]
)
def test_sections_are_written_as_four_numbers(counts, sections):
    written = rw.gguf.to_gguf_metadata(RopeSpec(16, axes=rw.axes.chunked(counts)), "qwen2vl")
    assert written.keys["qwen2vl.rope.dimension_sections"] == sections


def test_usual_yarn_is_written_without_an_attention_factor():
    keys = {
        "qwen2.attention.key_length": 16,
        "qwen2.rope.dimension_count": 16,
        "qwen2.rope.freq_base": 1e4,
        "qwen2.rope.scaling.type": "yarn",
        "qwen2.rope.scaling.factor": 8.0,
        "qwen2.rope.scaling.original_context_length": 256,
    }
    assert (
        rw.gguf.to_gguf_metadata(RopeSpec(16, scaling=Yarn(256, factor=8.0)), "qwen2").keys == keys
    )
    other = rw.gguf.to_gguf_metadata(
        RopeSpec(16, scaling=Yarn(256, factor=8.0, attention_factor=1.5)), "qwen2"
    ).keys
    # llama.cpp multiplies it by 1 + 0.1 ln 8
    assert other.pop("qwen2.rope.scaling.attn_factor") == pytest.approx(
        1.5 / (1 + 0.1 * math.log(8))
    )
    assert other == keys


@pytest.mark.parametrize(
    ("scaling", "architecture", "names"),
    [
        (
            LongRope((1.5,) * PAIRS, (4.0,) * PAIRS, 64, 8.0),
            "phi3",
            {"rope_factors_long.weight": 4.0, "rope_factors_short.weight": 1.5},
        ),
        (rw.frequencies.Ntk(1.0), "llama", {"rope_freqs.weight": 1.0}),
    ],
)
def test_tensors_are_written_as_float32(scaling, architecture, names):
    tensors = rw.gguf.to_gguf_metadata(RopeSpec(16, scaling=scaling), architecture).tensors
    assert tensors.keys() == names.keys()
    for name, value in names.items():
        assert np.asarray(tensors[name]).dtype == np.float32
        np.testing.assert_allclose(tensors[name], np.full(PAIRS, value), rtol=1e-7)


def sources(tmp_path, keys, tensors, architecture="llama") -> dict[str, str]:
    """Where each value of a file comes from."""
    metadata = sizes(architecture) | {
        f"{architecture}.rope.{key}": content for key, content in keys.items()
    }
    entries = read_ropes(GgufFile(write(tmp_path / "a.gguf", metadata, tensors)))[1].as_dict()[
        "full_attention"
    ]
    return {name: entry["source"] for name, entry in entries.items()}


def test_values_that_no_key_gives_are_llama_cpps_defaults(tmp_path):
    found = sources(
        tmp_path, {"scaling.type": "yarn", "scaling.factor": 4.0}, {"unused": np.ones(4)}
    )
    assert found["factor"] == "llama.rope.scaling.factor"
    assert (found["original_length"], found["beta_fast"]) == (
        "llama.context_length",
        "default of llama.cpp",
    )


def test_values_come_from_the_keys_that_llama_cpp_reads(tmp_path):
    """The old key of the factor is read; the betas are read for few architectures; alpha is the
    factor of NTK.
    """
    unused = {"unused": np.ones(4)}
    assert sources(tmp_path, {"scale_linear": 4.0}, unused)["factor"] == "llama.rope.scale_linear"
    yarn = {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.yarn_beta_fast": 8.0}
    assert sources(tmp_path, yarn, unused)["beta_fast"] == "default of llama.cpp"
    assert (
        sources(tmp_path, yarn, unused, "mistral3")["beta_fast"]
        == "mistral3.rope.scaling.yarn_beta_fast"
    )
    alpha = sources(tmp_path, {"scaling.alpha": 50.0}, unused, "hunyuan-dense")
    assert alpha["factor"] == "hunyuan-dense.rope.scaling.alpha"
    both = {"scaling.alpha": 50.0, "scaling.factor": 4.0}
    plain = sources(tmp_path, {**both, "scaling.type": "none"}, unused, "hunyuan-dense")
    assert plain["factor"] == "hunyuan-dense.rope.scaling.alpha"
    for kind in ({}, {"scaling.type": "yarn"}):  # llama.cpp would apply both
        with pytest.raises(RopeError, match=r"must be 1 beside rope\.scaling\.alpha"):
            sources(tmp_path, {**both, **kind}, unused, "hunyuan-dense")
    latent = sources(tmp_path, {"dimension_count": 8}, unused, "deepseek2")
    assert latent["head_dim"] == "deepseek2.rope.dimension_count"


def test_values_of_longrope_come_from_its_two_tensors(tmp_path):
    tensors = {"rope_factors_long.weight": DIVISORS * 2, "rope_factors_short.weight": DIVISORS}
    found = sources(tmp_path, {"scaling.original_context_length": 64}, tensors, "phi3")
    assert (found["short_factor"], found["long_factor"]) == (
        "rope_factors_short.weight",
        "rope_factors_long.weight",
    )
    assert found["original_length"] == "phi3.rope.scaling.original_context_length"


def test_values_of_llama3_come_from_its_divisors(tmp_path):
    written = rw.gguf.to_gguf_metadata(RopeSpec(16, theta=5e5, scaling=Llama3(8.0, 1.0, 4.0, 8192)))
    found = sources(tmp_path, {"freq_base": 5e5}, written.tensors)
    assert found["rope_type"] == "default"
    assert {
        found[name] for name in ("factor", "low_freq_factor", "high_freq_factor", "original_length")
    } == {"rope_freqs.weight"}
