"""In float32 every formula runs in transformers' order of operations and gives its bits, not only
nearly equal numbers.
"""

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from ropewalk import frequencies as fq
from ropewalk.frequencies import SCALINGS
from ropewalk.tensor_frequencies import formula

SHAPES = [(128, 10_000.0), (64, 500_000.0), (96, 1_000_000.0), (256, 150_000.0), (10, 10_000.0)]
TRAINED = 2048


def theirs(rope_type, dim, theta, seq_len=None, **keys):
    """transformers' inverse frequencies and attention factor for one config."""
    parameters = {"rope_type": rope_type, "rope_theta": theta, **keys}
    config = LlamaConfig(
        hidden_size=4 * dim,
        num_attention_heads=4,
        head_dim=dim,
        max_position_embeddings=TRAINED,
        rope_parameters=parameters,
    )
    if rope_type == "default":
        return LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    return ROPE_INIT_FUNCTIONS[rope_type](config, device=torch.device("cpu"), seq_len=seq_len)


def assert_same_bits(scaling, dim, theta, seq_len=None, **keys):
    radians, magnitude = theirs(scaling.name, dim, theta, seq_len, **keys)
    found = formula(scaling, dim, theta, seq_len, dtype=torch.float32)
    assert found.radians.dtype == radians.dtype == torch.float32
    assert torch.equal(found.radians, radians)
    assert found.magnitude == magnitude


def test_every_type_of_transformers_has_our_name():
    assert set(ROPE_INIT_FUNCTIONS) | {"default"} == {
        name
        for name in SCALINGS
        if name in ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
    }


@pytest.mark.parametrize(("dim", "theta"), SHAPES)
def test_default_has_transformers_bits(dim, theta):
    assert_same_bits(fq.Default(), dim, theta)


@pytest.mark.parametrize("factor", [1.0, 3.0, 8.0, 2.7])
@pytest.mark.parametrize(("dim", "theta"), SHAPES)
def test_linear_has_transformers_bits(dim, theta, factor):
    assert_same_bits(fq.Linear(factor), dim, theta, factor=factor)


@pytest.mark.parametrize("seq_len", [None, 1, 2047, 2048, 2049, 4096, 10_001, 131_072, 1_000_003])
@pytest.mark.parametrize(("dim", "theta"), SHAPES)
def test_dynamic_at_the_length_a_forward_pass_has(dim, theta, seq_len):
    """transformers gives dynamic NTK the length as a tensor, max(position_ids) + 1."""
    for factor in (1.0, 2.0, 3.7):
        length = None if seq_len is None else torch.tensor(seq_len)
        assert_same_bits(fq.Dynamic(factor, TRAINED), dim, theta, length, factor=factor)


YARNS = [
    {"factor": 4.0},
    {"factor": 32.0, "truncate": False},
    {"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.1},
    {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.0},
    {"factor": 16.0, "attention_factor": 1.25},
    {"factor": 3.3, "beta_fast": 17.0, "beta_slow": 2.5},
    {"factor": 3.3, "beta_fast": 17.0, "beta_slow": 2.5, "truncate": False},
    {"factor": 1.0},
]


@pytest.mark.parametrize("keys", YARNS, ids=lambda keys: ",".join(keys))
@pytest.mark.parametrize(("dim", "theta"), SHAPES)
def test_yarn_has_transformers_bits(dim, theta, keys):
    for trained in (4096, 131_072):
        assert_same_bits(
            fq.Yarn(original_length=trained, **keys),
            dim,
            theta,
            original_max_position_embeddings=trained,
            **keys,
        )


@pytest.mark.parametrize("seq_len", [None, 1, 4096, 4097, 100_000])
@pytest.mark.parametrize(("dim", "theta"), SHAPES)
def test_longrope_has_transformers_bits(dim, theta, seq_len):
    short = tuple(1.0 + 0.013 * i for i in range(dim // 2))
    long = tuple(1.0 + 0.37 * i**1.5 for i in range(dim // 2))
    length = None if seq_len is None else torch.tensor(seq_len)
    for factor, attention_factor in ((32.0, None), (1.0, None), (32.0, 1.19)):
        keys = {
            "short_factor": list(short),
            "long_factor": list(long),
            "factor": factor,
            "attention_factor": attention_factor,
        }
        scaling = fq.LongRope(short, long, 4096, factor, attention_factor)
        assert_same_bits(scaling, dim, theta, length, original_max_position_embeddings=4096, **keys)


LLAMAS = [(8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192), (3.7, 0.5, 9.0, 1000)]


@pytest.mark.parametrize(("factor", "low", "high", "trained"), LLAMAS)
@pytest.mark.parametrize(("dim", "theta"), SHAPES)
def test_llama3_has_transformers_bits(dim, theta, factor, low, high, trained):
    keys = {"low_freq_factor": low, "high_freq_factor": high, "factor": factor}
    assert_same_bits(
        fq.Llama3(factor, low, high, trained),
        dim,
        theta,
        original_max_position_embeddings=trained,
        **keys,
    )


@pytest.mark.parametrize(("dim", "theta"), SHAPES)
def test_each_llama3_frequency_in_float32_is_between_plain_over_factor_and_plain(dim, theta):
    """A frequency that is computed in float64 and rounded at the end could be outside by the last
    bit.
    """
    for factor, low, high, trained in LLAMAS:
        found = formula(
            fq.Llama3(factor, low, high, trained), dim, theta, dtype=torch.float32
        ).radians
        plain = theirs("default", dim, theta)[0]
        assert bool((found <= plain).all())
        assert bool((found >= plain / factor).all())


@pytest.mark.parametrize("fraction", [1.0, 0.25, 0.77, 0.0])
@pytest.mark.parametrize(("dim", "theta"), SHAPES)
def test_proportional_has_transformers_bits(dim, theta, fraction):
    for factor in (1.0, 3.3):
        keys = {"partial_rotary_factor": fraction, "factor": factor}
        assert_same_bits(fq.Proportional(factor, fraction), dim, theta, **keys)
