"""to_hf writes only what from_hf, and transformers, read back as the same spec."""

from __future__ import annotations

import json

import pytest
import torch
from installed import HERE, V5, skip_old_yarn
from transformers import CONFIG_MAPPING, AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ropewalk import RopeError, RopeSpec, axes
from ropewalk.config.families import FAMILIES
from ropewalk.config.hf import from_hf, to_hf
from ropewalk.frequencies import (
    SCALINGS,
    Clipped,
    Default,
    Dynamic,
    DynamicYarn,
    Given,
    Learnable,
    Learned,
    Linear,
    LinearFrequencies,
    Llama3,
    LongRope,
    Ntk,
    NtkByParts,
    Proportional,
    Riflex,
    XPos,
    Yarn,
)
from tensor_forms import tensors

PAIRS = 8
EXPRESSIBLE = {
    "default": Default(),
    "linear": Linear(2.5),
    "dynamic": Dynamic(3.0, original_length=777),
    "yarn": Yarn(
        factor=4.0,
        original_length=1000,
        beta_fast=30.0,
        truncate=False,
        mscale=1.0,
        mscale_all_dim=0.5,
    ),
    "longrope": LongRope(
        (1.0,) * PAIRS, (2.5,) * PAIRS, original_length=1000, factor=4.0, attention_factor=1.25
    ),
    "llama3": Llama3(8.0, low_freq_factor=1.0, high_freq_factor=3.0, original_length=512),
    "proportional": Proportional(2.0, fraction=0.25),
    "clipped": Clipped(Yarn(factor=4.0, original_length=1000), soft=False),
}
INEXPRESSIBLE = (
    Ntk(2.0),
    NtkByParts(2.0),
    DynamicYarn(),
    LinearFrequencies(),
    Riflex(),
    XPos(),
    Given((1.0,) * PAIRS),
    Learnable(),
    Learned(alpha=(0.1,) * PAIRS),
    Clipped(pairs=3),
    Clipped(Ntk(2.0)),
)


def test_every_scaling_is_either_written_or_refused():
    assert EXPRESSIBLE.keys() | {scaling.name for scaling in INEXPRESSIBLE} == SCALINGS.keys()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("name", EXPRESSIBLE)
@pytest.mark.parametrize("precision", ["exact", "hf"])
def test_what_to_hf_writes_from_hf_reads_as_the_same_spec(name, version, precision):
    spec = RopeSpec(2 * PAIRS, theta=5e5, scaling=EXPRESSIBLE[name], precision=precision)
    written = to_hf(spec, version=version)
    assert from_hf(json.loads(json.dumps(written)), precision=precision) == spec
    assert ("rope_parameters" in written) == (version == 5)
    assert ("rope_scaling" in written) == (version == 4)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("name", [name for name in EXPRESSIBLE if name != "default"])
def test_transformers_computes_the_same_from_what_is_written(name, version):
    spec = RopeSpec(2 * PAIRS, theta=5e5, scaling=EXPRESSIBLE[name], precision="hf")
    written = to_hf(spec, version=version)
    if name not in ROPE_INIT_FUNCTIONS or (version == 5 and not V5):
        pytest.skip(f"{HERE} does not read {name} in the spelling of v{version}")
    if name == "yarn":
        skip_old_yarn()
    config = AutoConfig.for_model("llama", hidden_size=32, num_attention_heads=2, **written)
    theirs, magnitude = ROPE_INIT_FUNCTIONS[name](config, device=None, seq_len=5000)
    found = tensors(spec, 5000)
    assert torch.equal(found.radians.float(), theirs)
    assert found.magnitude == pytest.approx(magnitude)


@pytest.mark.parametrize("rotary_dim", range(2, 88, 2))
def test_a_rotated_slice_written_as_a_fraction_is_read_back(rotary_dim):
    spec = RopeSpec(88, rotary_dim=rotary_dim)  # 30/88 and 60/88 round below
    assert from_hf(to_hf(spec), precision="exact") == spec


@pytest.mark.parametrize(("rotary_dim", "fraction"), [(8, 0.5), (4, 0.25), (12, 0.75)])
def test_a_fraction_that_is_exact_is_written_as_it_is(rotary_dim, fraction):
    assert (
        to_hf(RopeSpec(16, rotary_dim=rotary_dim))["rope_parameters"]["partial_rotary_factor"]
        == fraction
    )


@pytest.mark.parametrize(
    ("spec", "model_type"),
    [
        (RopeSpec(16, layout="interleaved"), "cohere"),
        (RopeSpec(16, layout="interleaved"), "llama4_text"),
        (RopeSpec(16, layout="interleaved", rotary_dim=8), "glm4"),
        (RopeSpec(16, layout="interleaved", layout_out="half"), "deepseek_v3"),
        (RopeSpec(16), "deepseek_v3"),
        (RopeSpec(16, rotary_dim=4), "gpt_neox"),
        (RopeSpec(16, scaling=Ntk(50.0)), "hunyuan_v1_dense"),
        (RopeSpec(16, axes=axes.interleaved([4, 2, 2])), "qwen3_vl_text"),
        (RopeSpec(16, axes=axes.chunked([4, 2, 2])), "qwen2_vl"),
        (RopeSpec(16, axes=axes.ernie([3, 3, 2]), layout="interleaved"), "ernie4_5_vl_moe_text"),
        (RopeSpec(16, axes=axes.interleaved([4, 2, 2])), None),
        (RopeSpec(16, axes=axes.chunked([4, 2, 2])), None),
    ],
)
def test_a_spec_that_only_its_family_implies_is_read_back(spec, model_type):
    assert from_hf(to_hf(spec, model_type=model_type), precision="exact") == spec


def test_the_softmax_factor_of_deepseek_is_written_and_read_back():
    given = {
        "model_type": "deepseek_v3",
        "qk_rope_head_dim": 16,
        "rope_theta": 1e4,
        "max_position_embeddings": 4096,
        "rope_scaling": {
            "type": "yarn",
            "factor": 40,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
        },
    }
    spec = from_hf(given)
    assert spec.extra_softmax_factor > 1
    assert from_hf(to_hf(spec, model_type="deepseek_v3")) == spec


LATENT = [
    name
    for name in FAMILIES
    if name in CONFIG_MAPPING and hasattr(CONFIG_MAPPING[name](), "qk_rope_head_dim")
]


@pytest.mark.parametrize("model_type", [name for name in LATENT if not FAMILIES[name].at_end])
@pytest.mark.parametrize("width", [16, 48])
def test_transformers_reads_the_width_of_latent_attention(model_type, width):
    """Config classes with latent attention overwrite a `head_dim` by their own `qk_rope_head_dim`."""
    family = FAMILIES[model_type]
    spec = RopeSpec(
        width,
        theta=family.default("rope_theta"),
        layout=family.layout,
        layout_out=family.layout_out,
    )
    config = AutoConfig.for_model(**to_hf(spec, model_type=model_type))
    assert config.qk_rope_head_dim == width
    assert from_hf(config, precision="exact") == spec


@pytest.mark.parametrize(
    ("spec", "field", "keywords"),
    [
        *((RopeSpec(2 * PAIRS, scaling=scaling), "scaling", {}) for scaling in INEXPRESSIBLE),
        (RopeSpec(16, layout="interleaved"), "layout", {}),
        (RopeSpec(16), "layout", {"model_type": "cohere"}),
        (RopeSpec(16, layout="interleaved", layout_out="half"), "layout", {}),
        (RopeSpec(16, rotary_dim=8, rotary_start=4), "rotary_start", {}),
        (RopeSpec(16, rotary_dim=8), "rotary_dim", {"model_type": "llama"}),
        (RopeSpec(16, scaling=Yarn(factor=4.0), magnitude_on="q"), "magnitude_on", {}),
        (RopeSpec(16, extra_softmax_factor=2.0), "extra_softmax_factor", {}),
        (RopeSpec(16, axes=axes.axial(4, 4)), "axes", {}),
        (RopeSpec(16), "version", {"version": 3}),
        (RopeSpec(16), "model_type", {"model_type": "nobody"}),
    ],
)
def test_what_would_not_read_back_is_refused_by_name(spec, field, keywords):
    with pytest.raises(RopeError) as error:
        to_hf(spec, **keywords)
    assert error.value.field == field


def test_what_is_no_spec_is_refused():
    with pytest.raises(RopeError, match="spec: must be a RopeSpec"):
        to_hf(None)


def test_a_refusal_tells_what_would_be_read():
    with pytest.raises(RopeError, match="read as 0; got 4"):
        to_hf(RopeSpec(16, rotary_dim=8, rotary_start=4))


def test_the_refusal_of_a_static_ntk_names_the_family_that_reads_it():
    with pytest.raises(RopeError, match="needs model_type='hunyuan_v1_dense'"):
        to_hf(RopeSpec(16, scaling=Ntk(2.0)))
    with pytest.raises(RopeError) as error:
        to_hf(RopeSpec(16, scaling=XPos()))
    assert "hunyuan" not in str(error.value)


def test_the_refusal_of_a_layout_names_families_that_pair_so():
    with pytest.raises(RopeError, match="cohere"):
        to_hf(RopeSpec(16, layout="interleaved"))
