"""GGUF metadata as specs and back, against ggml's formula written out."""

import math

import numpy as np
import pytest
import torch

import ropewalk as rw
from gguf_samples import sizes, write
from ropewalk import RopeError, RopeSpec
from ropewalk.engines import REFERENCE
from ropewalk.frequencies import (
    Dynamic,
    Given,
    Linear,
    Llama3,
    LongRope,
    Ntk,
    NtkByParts,
    Proportional,
    XPos,
    Yarn,
)
from ropewalk.gguf import GgufFile, hf_config, read_ropes
from ropewalk.tensor_frequencies import ladder
from ropewalk_lab.analysis import read_checkpoint
from tensor_forms import tensors

DIM, PAIRS = 16, 8


def ggml(theta=10000.0, factor=1.0, divisors=None, yarn=None, attn_factor=1.0, dim=DIM):
    """(radians, magnitude) as ggml's rope computes them, in float64; `yarn` is (trained length,
    beta_fast, beta_slow).
    """
    radians, magnitude = [], attn_factor
    if yarn:
        length, fast, slow = yarn
        corner = lambda turns: (
            dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))
        )
        first, last = max(0, math.floor(corner(fast))), min(dim - 1, math.ceil(corner(slow)))
        magnitude *= 1 + 0.1 * math.log(factor)
    for i in range(dim // 2):
        base = theta ** (-2 * i / dim) / (1 if divisors is None else divisors[i])
        share = 1 - min(1, max(0, (i - first) / max(0.001, last - first))) if yarn else 0.0
        radians.append(base / factor * (1 - share) + base * share)
    return np.array(radians), magnitude


def read(tmp_path, keys, tensors=None, architecture="llama", **options):
    metadata = sizes(architecture) | {
        f"{architecture}.rope.{key}": content for key, content in keys.items()
    }
    return rw.gguf.from_gguf(
        write(tmp_path / "a.gguf", metadata, tensors or {"unused": np.ones(4)}), **options
    )


DIVISORS = np.array([1, 1.5, 2, 2.25, 3, 5, 8, 8], dtype=np.float32)
FILES = {
    "nothing": ({}, None, {}),
    "theta": ({"freq_base": 5e5}, None, {"theta": 5e5}),
    "none ignores the factor": ({"scaling.type": "none", "scaling.factor": 4.0}, None, {}),
    "linear": ({"scaling.type": "linear", "scaling.factor": 4.0}, None, {"factor": 4.0}),
    "linear without a type": ({"scaling.factor": 4.0}, None, {"factor": 4.0}),
    "the old key": ({"scale_linear": 2.0}, None, {"factor": 2.0}),
    "linear with attn_factor": (
        {"scaling.factor": 2.0, "scaling.attn_factor": 1.25},
        None,
        {"factor": 2.0, "attn_factor": 1.25},
    ),
    "yarn": (
        {
            "scaling.type": "yarn",
            "scaling.factor": 4.0,
            "scaling.original_context_length": 128,
            "freq_base": 1000.0,
        },
        None,
        {"factor": 4.0, "yarn": (128, 32, 1), "theta": 1000.0},
    ),
    "yarn with the model's length": (
        {"scaling.type": "yarn", "scaling.factor": 2.0},
        None,
        {"factor": 2.0, "yarn": (512, 32, 1)},
    ),
    "yarn with attn_factor": (
        {
            "scaling.type": "yarn",
            "scaling.factor": 4.0,
            "scaling.original_context_length": 128,
            "scaling.attn_factor": 0.75,
        },
        None,
        {"factor": 4.0, "yarn": (128, 32, 1), "attn_factor": 0.75},
    ),
    "divisors": (
        {"freq_base": 5e5},
        {"rope_freqs.weight": DIVISORS},
        {"theta": 5e5, "divisors": DIVISORS},
    ),
    "divisors and linear": (
        {"scaling.factor": 2.0},
        {"rope_freqs.weight": DIVISORS},
        {"factor": 2.0, "divisors": DIVISORS},
    ),
    "divisors and yarn": (
        {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 128},
        {"rope_freqs.weight": DIVISORS},
        {"factor": 4.0, "yarn": (128, 32, 1), "divisors": DIVISORS},
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_means_what_ggml_computes(name, tmp_path):
    keys, tensors, formula = FILES[name]
    spec = read(tmp_path, keys, tensors, precision="exact")
    radians, magnitude = ggml(**formula)
    found = ladder(spec)
    np.testing.assert_allclose(found.radians.numpy(), radians, rtol=1e-7)
    assert float(found.magnitude) == pytest.approx(magnitude, rel=1e-7)
    assert (spec.head_dim, spec.rotated_dims, spec.layout) == (DIM, DIM, "interleaved")


@pytest.mark.parametrize("architecture", ["mistral3", "llama"])
def test_betas_are_read_where_llama_cpp_reads_them(architecture, tmp_path):
    keys = {
        "scaling.type": "yarn",
        "scaling.factor": 4.0,
        "scaling.original_context_length": 4096,
        "scaling.yarn_beta_fast": 4.0,
    }
    if architecture == "llama":
        with pytest.warns(
            UserWarning,
            match=r"llama\.rope\.scaling\.yarn_beta_fast: llama\.cpp does not read it for llama",
        ):
            spec = read(tmp_path, keys, architecture=architecture, precision="exact")
    else:
        spec = read(tmp_path, keys, architecture=architecture, precision="exact")
    expected, _ = ggml(factor=4.0, yarn=(4096, 4 if architecture == "mistral3" else 32, 1))
    np.testing.assert_allclose(ladder(spec).radians.numpy(), expected, rtol=1e-9)


def test_longrope_reads_both_tensors(tmp_path):
    factors = {"rope_factors_long.weight": DIVISORS * 2, "rope_factors_short.weight": DIVISORS}
    keys = {"scaling.original_context_length": 64, "scaling.attn_factor": 1.5}
    spec = read(tmp_path, keys, factors, "phi3", precision="exact")
    assert spec.scaling == LongRope(
        tuple(DIVISORS.tolist()), tuple((DIVISORS * 2).tolist()), 64, 8.0, 1.5
    )
    for length, divisors in ((64, DIVISORS), (65, DIVISORS * 2)):
        np.testing.assert_allclose(
            tensors(spec, length).radians.numpy(), ggml(divisors=divisors)[0], rtol=1e-7
        )
    with pytest.raises(RopeError, match=r"rope_factors_short\.weight: must be in the file"):
        read(tmp_path, keys, {"rope_factors_long.weight": DIVISORS}, "phi3")


def test_sections_a_partial_rotation_and_layer_types_are_read(tmp_path):
    chunked = read(tmp_path, {"dimension_sections": [3, 2, 3, 0]}, architecture="qwen2vl")
    assert (chunked.axis_of_pair, chunked.layout) == ((0, 0, 0, 1, 1, 2, 2, 2), "half")
    partial = read(tmp_path, {"dimension_count": 6}, architecture="gptneox")
    assert (partial.head_dim, partial.rotated_dims) == (16, 6)
    keys = {
        "freq_base": 1e6,
        "freq_base_swa": 20000.0,
        "scaling.type": "linear",
        "scaling.factor": 8.0,
    }
    metadata = sizes("gemma3", **{"attention.sliding_window": 64}) | {
        f"gemma3.rope.{k}": v for k, v in keys.items()
    }
    path = write(tmp_path / "g.gguf", metadata)
    specs = rw.gguf.from_gguf(path, per_layer=True)
    assert specs["full_attention"].theta == 1e6
    assert specs["full_attention"].scaling == Linear(8.0)
    assert specs["sliding_attention"].theta == 20000.0
    assert specs["sliding_attention"].scaling.name == "default"
    with pytest.raises(RopeError, match="per_layer=True"):
        rw.gguf.from_gguf(path)
    unrotated = rw.gguf.from_gguf(
        write(tmp_path / "c.gguf", sizes("cohere2", **{"attention.sliding_window": 64})),
        per_layer=True,
    )
    assert unrotated["full_attention"] is None
    assert unrotated["sliding_attention"].theta == 10000.0


def test_the_spec_of_latent_attention_describes_only_the_rotated_part_of_the_head(tmp_path):
    keys = {
        "dimension_count": 8,
        "scaling.type": "yarn",
        "scaling.factor": 4.0,
        "scaling.yarn_log_multiplier": 0.0707,
    }
    spec = read(tmp_path, keys, architecture="deepseek2", precision="exact")
    assert (spec.head_dim, spec.rotated_dims) == (8, 8)
    assert float(tensors(spec).magnitude) == 1.0
    assert spec.extra_softmax_factor == pytest.approx((1 + 0.0707 * math.log(4)) ** 2, rel=1e-6)


@pytest.mark.parametrize("architecture", ["deepseek2", "minicpm3", "plm"])
def test_a_rope_of_latent_attention_is_written_by_its_own_width(architecture):
    keys = rw.gguf.to_gguf_metadata(RopeSpec(64), architecture).keys
    assert keys == {
        f"{architecture}.rope.dimension_count": 64,
        f"{architecture}.rope.freq_base": 1e4,
        f"{architecture}.rope.scaling.type": "none",
    }


def test_divisors_below_one_make_pairs_faster(tmp_path):
    divisors = np.array([0.5, 0.75, 0.5, 0.25, 0.5, 0.9375, 0.5, 0.5], dtype=np.float32)
    spec = read(tmp_path, {}, {"rope_freqs.weight": divisors}, precision="exact")
    np.testing.assert_allclose(tensors(spec).radians.numpy(), ggml(divisors=divisors)[0], rtol=1e-7)


def test_divisors_of_one_change_nothing(tmp_path):
    ones = {"rope_freqs.weight": np.ones(PAIRS)}
    assert read(tmp_path, {}, ones).scaling == rw.frequencies.Default()
    assert read(
        tmp_path, {"scaling.type": "linear", "scaling.factor": 4.0}, ones
    ).scaling == Linear(4.0)


def test_an_error_about_sliding_layers_names_their_key(tmp_path):
    keys = {
        "attention.sliding_window": 64,
        "attention.key_length_swa": 32,
        "rope.dimension_count_swa": 48,
    }
    with pytest.raises(
        RopeError, match=r"gemma3\.rope\.dimension_count_swa: must be even and at most .*; got 48"
    ):
        rw.gguf.from_gguf(write(tmp_path / "a.gguf", sizes("gemma3", **keys)), per_layer=True)


SPECS = {
    "default": (rw.frequencies.Default(), "qwen2"),
    "linear": (Linear(4.0), "qwen2"),
    "yarn": (Yarn(256, factor=8.0), "qwen3"),
    "yarn with a factor": (Yarn(256, factor=8.0, attention_factor=1.0), "qwen2"),
    "yarn with other betas": (Yarn(256, beta_fast=8.0, beta_slow=2.0, factor=8.0), "llama"),
    "yarn, not truncated": (Yarn(256, factor=8.0, truncate=False), "llama"),
    "llama3": (Llama3(8.0, 1.0, 4.0, 8192), "llama"),
    "llama3, other numbers": (Llama3(32.0, 2.0, 8.0, 512), "llama"),
    "ntk": (Ntk(3.0), "llama"),
    "ntk by parts": (NtkByParts(4.0, 256), "granite"),
    "proportional": (Proportional(1.0, 0.5), "llama"),
    "given": (Given(tuple(np.linspace(1, 0.001, PAIRS).tolist()), 1.2), "llama"),
    "longrope": (LongRope((1.5,) * PAIRS, (4.0,) * PAIRS, 64, 8.0), "phi3"),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_is_read_back_from_the_file_that_it_describes(name, tmp_path):
    scaling, architecture = SPECS[name]
    spec = RopeSpec(DIM, theta=5e5, scaling=scaling)
    written = rw.gguf.to_gguf_metadata(spec, architecture)
    metadata = sizes(architecture) | written.keys
    read_back = rw.gguf.from_gguf(
        write(tmp_path / "a.gguf", metadata, written.tensors or {"unused": np.ones(4)}),
        precision="exact",
    )
    for length in (64, 65, 10_000):
        ours, theirs = tensors(spec, length), tensors(read_back, length)
        torch.testing.assert_close(theirs.radians, ours.radians, rtol=1e-6, atol=1e-25)
        assert float(theirs.magnitude) == pytest.approx(float(ours.magnitude), rel=1e-6)
    assert read_back.layout == written.layout
    if not written.tensors:
        assert read_back.scaling.name == scaling.name


@pytest.mark.parametrize("scaling", [rw.frequencies.Default(), Linear(4.0)])
def test_a_head_that_rotates_in_part_is_written_as_such(scaling):
    spec = RopeSpec(DIM, rotary_dim=6, scaling=scaling)
    keys = rw.gguf.to_gguf_metadata(spec, "gptneox").keys
    assert keys["gptneox.attention.key_length"] == DIM
    assert keys["gptneox.rope.dimension_count"] == 6


@pytest.mark.parametrize(
    "scaling",
    [Llama3(8.0, 1.0, 4.0, 8192), Llama3(16.0, 1.0, 2.5, 4096), Llama3(4.0, 2.0, 8.0, 8192)],
)
def test_llama3_is_recognised_in_its_divisors(scaling, tmp_path):
    spec = RopeSpec(128, theta=5e5, scaling=scaling)
    written = rw.gguf.to_gguf_metadata(spec)
    found = rw.gguf.from_gguf(
        write(tmp_path / "a.gguf", sizes() | written.keys, written.tensors)
    ).scaling
    low = scaling.low_freq_factor
    same = Llama3(
        scaling.factor, 1.0, scaling.high_freq_factor / low, round(scaling.original_length / low)
    )
    assert found == same


REFUSED = {
    "dynamic": (
        RopeSpec(DIM, scaling=Dynamic(2.0, 64)),
        "llama",
        "scaling: must have fixed frequencies",
    ),
    "xpos": (RopeSpec(DIM, scaling=XPos()), "llama", "scaling: must have fixed frequencies"),
    "no divisors": (RopeSpec(DIM, scaling=Ntk(2.0)), "qwen2", "reads no rope_freqs"),
    "truncate": (
        RopeSpec(DIM, scaling=Yarn(64, factor=2.0, truncate=False)),
        "qwen2",
        "linear or YaRN with truncate true, beta_fast 32 and beta_slow 1 for qwen2",
    ),
    "YaRN of grok": (
        RopeSpec(DIM, scaling=Yarn(64, factor=2.0, beta_fast=8.0)),
        "grok",
        "must be default or linear for grok",
    ),
    "no long factors": (
        RopeSpec(DIM, scaling=SPECS["longrope"][0]),
        "qwen2",
        "must not be LongRope for qwen2",
    ),
    "start": (RopeSpec(DIM, rotary_dim=8, rotary_start=8), "llama", "rotary_start: must be 0"),
    "axes": (
        RopeSpec(DIM, axes=rw.axes.chunked([4, 4])),
        "llama",
        "axes: must be None, or axes that share one ladder",
    ),
    "order of axes": (
        RopeSpec(DIM, axes=rw.axes.interleaved([4, 2, 2])),
        "qwen2vl",
        "axes: must have the order of qwen2vl",
    ),
    "axes of heads": (
        RopeSpec(DIM, axes=rw.axes.by_head([1, 1], PAIRS)),
        "qwen2vl",
        "axes: must be None, or axes that share one ladder",
    ),
    "scale": (
        RopeSpec(DIM, scaling=Yarn(64, factor=2.0), magnitude_on="scale"),
        "llama",
        "magnitude_on: must be 'qk'",
    ),
    "softmax": (
        RopeSpec(DIM, extra_softmax_factor=2.0),
        "llama",
        "extra_softmax_factor: must be 1",
    ),
    "architecture": (RopeSpec(DIM), "gpt2", "must be an architecture that rotates"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_llama_cpp_cannot_compute_is_refused(name):
    spec, architecture, message = REFUSED[name]
    with pytest.raises(RopeError, match=message):
        rw.gguf.to_gguf_metadata(spec, architecture)


WRONG = {
    "text": {"freq_base": "10000"},
    "nan": {"freq_base": math.nan},
    "negative": {"freq_base": -1.0},
    "type": {"scaling.type": "ntk"},
    "half a factor": {"scaling.factor": 0.5},
    "flag": {"scaling.factor": True},
    "odd": {"dimension_count": 7},
    "too many": {"dimension_count": 18},
    "array": {"dimension_count": [16, 16]},
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_are_refused(name, tmp_path):
    with pytest.raises(RopeError):
        read(tmp_path, WRONG[name])


@pytest.mark.parametrize(
    "values", [np.ones(7), np.zeros(8), np.full(8, np.nan), np.full(8, -1.0), np.ones((2, 4))]
)
def test_wrong_divisors_are_refused(values, tmp_path):
    with pytest.raises(RopeError, match=r"rope_freqs\.weight"):
        read(tmp_path, {}, {"rope_freqs.weight": values})


def test_every_value_is_explained_by_its_metadata_key(tmp_path):
    keys = {
        "freq_base": 1e6,
        "scaling.type": "yarn",
        "scaling.factor": 4.0,
        "scaling.original_context_length": 128,
    }
    metadata = sizes() | {f"llama.rope.{key}": content for key, content in keys.items()}
    explanation = read_ropes(GgufFile(write(tmp_path / "a.gguf", metadata)))[1]
    sources = {
        name: entry["source"] for name, entry in explanation.as_dict()["full_attention"].items()
    }
    assert sources["theta"] == "llama.rope.freq_base"
    assert sources["factor"] == "llama.rope.scaling.factor"
    assert sources["original_length"] == "llama.rope.scaling.original_context_length"
    assert sources["head_dim"] == "llama.embedding_length / attention.head_count"


def test_the_config_of_a_file_gives_the_same_rope_in_the_original_layout(tmp_path):
    keys = {
        "freq_base": 1e6,
        "scaling.type": "yarn",
        "scaling.factor": 4.0,
        "scaling.original_context_length": 128,
    }
    metadata = sizes() | {f"llama.rope.{key}": content for key, content in keys.items()}
    path = write(tmp_path / "a.gguf", metadata)
    config = hf_config(GgufFile(path))
    assert rw.from_hf(config) == rw.gguf.from_gguf(path).with_(layout="half")
    assert (config["model_type"], config["hidden_size"], config["max_position_embeddings"]) == (
        "llama",
        32,
        512,
    )


@pytest.mark.parametrize("window", [{}, {"attention.sliding_window": 64}])
def test_the_config_of_a_gemma_3_has_a_rope_for_each_layer_type(window, tmp_path):
    """The two thetas of Gemma 3, and its scaling by 8 of the full layers alone."""
    keys = {"freq_base": 1e6, "scaling.type": "linear", "scaling.factor": 8.0}
    path = write(
        tmp_path / "a.gguf",
        sizes("gemma3", **window) | {f"gemma3.rope.{key}": value for key, value in keys.items()},
    )
    config = hf_config(GgufFile(path))
    specs = rw.from_hf(config, per_layer=True)
    assert (specs["full_attention"].theta, specs["full_attention"].scaling) == (1e6, Linear(8.0))
    if window:
        sliding = specs["sliding_attention"]
        assert (sliding.theta, sliding.scaling) == (1e4, rw.frequencies.Default())
    theirs = pytest.importorskip("transformers").AutoConfig.for_model(**config).rope_parameters
    assert theirs["full_attention"]["rope_theta"] == 1e6
    assert all(
        not finding.rules for finding in rw.audit(path).findings if finding.engine == REFERENCE
    )


def test_inspect_and_audit_read_a_file(tmp_path):
    keys = {
        "freq_base": 1e6,
        "scaling.type": "yarn",
        "scaling.factor": 4.0,
        "scaling.original_context_length": 128,
    }
    metadata = sizes() | {f"llama.rope.{key}": content for key, content in keys.items()}
    path = write(tmp_path / "a.gguf", metadata)
    checkpoint = read_checkpoint(path)
    facts = checkpoint.layers["full_attention"]
    assert (facts.trained, facts.served) == (128, 512)
    assert (
        checkpoint.explanation.as_dict()["full_attention"]["theta"]["source"]
        == "llama.rope.freq_base"
    )
    found = {finding.engine: finding for finding in rw.audit(path).findings}
    radians, magnitude = ggml(1e6, 4.0, yarn=(128, 32, 1))
    np.testing.assert_allclose(found[REFERENCE].radians, radians, rtol=1e-6)
    assert found[REFERENCE].magnitude == pytest.approx(magnitude)
