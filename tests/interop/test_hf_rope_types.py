"""Every rope type, read from a config, as transformers computes it."""

from __future__ import annotations

import random

import pytest
import torch
from config_samples import LLAMA3
from installed import V5, config_of, needs_v5, skip_old_yarn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ropewalk.config.hf import from_hf
from tensor_forms import tensors

LONGEST = 2048


def random_rope(draw: random.Random, rope_type: str, pairs: int) -> dict:
    """Return a valid rope of a type, with random values of its other keys."""
    factor = draw.choice([1.0, 1.5, 4, 8.0, 40.0])
    rope = {"rope_type": rope_type, "rope_theta": draw.choice([1e4, 5e5, 1e6, 123457.0])}
    if rope_type == "yarn":
        rope |= {"factor": factor, "original_max_position_embeddings": draw.choice([64, 512, 4096])}
        optional = {
            "beta_fast": draw.uniform(8, 64),
            "beta_slow": draw.uniform(0.5, 4),
            "truncate": draw.random() < 0.5,
            "attention_factor": draw.uniform(0.5, 2),
            "mscale": 1.0,
            "mscale_all_dim": 0.707,
        }
        return rope | {key: value for key, value in optional.items() if draw.random() < 0.5}
    if rope_type == "longrope":
        rope |= {
            key: [draw.uniform(1, 9) for _ in range(pairs)]
            for key in ("short_factor", "long_factor")
        }
        length = draw.choice([64, 512])
        # before v5 transformers takes the factor from the two lengths, so give it that ratio
        return rope | {
            "factor": factor if V5 else LONGEST / length,
            "original_max_position_embeddings": length,
        }
    if rope_type == "llama3":
        low = draw.uniform(0.5, 2)
        return rope | {
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": low + draw.uniform(0.5, 4),
            "original_max_position_embeddings": draw.choice([64, 512]),
        }
    return rope | {"factor": factor}


@pytest.mark.parametrize("rope_type", ROPE_INIT_FUNCTIONS)
@pytest.mark.parametrize("length", [None, 100, 5000, 70000])
def test_every_rope_type_is_bit_equal_to_transformers(rope_type, length):
    if rope_type == "yarn":
        skip_old_yarn()
    draw = random.Random(f"{rope_type}{length}")
    for _ in range(12):
        head_dim = draw.choice([8, 10, 64, 128])
        rope = random_rope(draw, rope_type, head_dim // 2)
        fraction = draw.choice([1.0, 0.5]) if head_dim % 4 == 0 and rope_type != "longrope" else 1.0
        rope |= {"partial_rotary_factor": fraction} if rope_type != "default" else {}
        config = config_of(
            "llama",
            hidden_size=4 * head_dim,
            head_dim=head_dim,
            num_attention_heads=4,
            max_position_embeddings=LONGEST,
            rope_parameters=rope,
        )
        # a tensor, as models pass it: with a Python int, transformers computes the base of dynamic
        # NTK in another precision
        reached = None if length is None else torch.tensor(length)
        theirs, magnitude = ROPE_INIT_FUNCTIONS[rope_type](config, device=None, seq_len=reached)
        found = tensors(from_hf(config, precision="hf"), length)
        assert torch.equal(found.radians.to(torch.float32), theirs)
        assert found.magnitude == pytest.approx(magnitude, rel=1e-15)


#: pair -> radians, five digits, as transformers' own tests have them for a head of 128, theta 1e4,
#: trained on 2048
SNAPSHOTS = {
    "default": ({}, None, {0: 1.0, 1: 8.6596e-01, 17: 8.6596e-02, 40: 3.1623e-03, 63: 1.1548e-04}),
    "dynamic": (
        {"factor": 10.0},
        16384,
        {1: 8.0931e-01, 16: 3.3872e-02, 31: 1.4176e-03, 63: 1.6265e-06},
    ),
    "yarn": (
        {"factor": 10.0, "beta_fast": 32, "beta_slow": 1},
        None,
        {
            16: 1.0e-01,
            17: 8.3479e-02,
            30: 6.6143e-03,
            40: 4.3007e-04,
            41: 2.7384e-04,
            63: 1.1548e-05,
        },
    ),
    "llama3": (
        {
            "factor": 10.0,
            "original_max_position_embeddings": 2048,
            "low_freq_factor": 1,
            "high_freq_factor": 4,
        },
        None,
        {
            30: 1.3335e-02,
            31: 1.0730e-02,
            36: 1.9675e-03,
            40: 3.4539e-04,
            41: 2.7384e-04,
            63: 1.1548e-05,
        },
    ),
}


@pytest.mark.parametrize("rope_type", SNAPSHOTS)
@pytest.mark.parametrize("precision", ["hf", "exact"])
def test_frequencies_are_those_in_the_tests_of_transformers(rope_type, precision):
    keys, length, wanted = SNAPSHOTS[rope_type]
    rope = {"rope_type": rope_type, "rope_theta": 1e4, **keys}
    spec = from_hf(
        {"head_dim": 128, "max_position_embeddings": 2048, "rope_parameters": rope},
        precision=precision,
    )
    radians = tensors(spec, length).radians
    for pair, value in wanted.items():
        assert float(radians[pair]) == pytest.approx(value, rel=5e-5)


@pytest.mark.parametrize("head_dim", [128, 256])
def test_llama3_stays_between_its_ends_without_a_margin(head_dim):
    rope = {**LLAMA3, "factor": 10.0, "original_max_position_embeddings": 2048}
    scaled, plain = (
        tensors(
            from_hf(
                {"head_dim": head_dim, "rope_theta": 1e4, "rope_scaling": scaling}, precision="hf"
            )
        ).radians.float()
        for scaling in (rope, None)
    )
    assert bool((plain / 10.0 <= scaled).all())
    assert bool((scaled <= plain).all())


@needs_v5("has no rope for each layer type")
@pytest.mark.parametrize("fraction", [{}, {"partial_rotary_factor": 0.5}])
def test_a_scaled_rope_of_mimo_rotates_whole_heads_unless_it_gives_a_fraction(fraction):
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 512,
        **fraction,
    }
    ropes = {
        "full_attention": rope,
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    config = config_of("mimo_v2_flash", head_dim=24, rope_parameters=ropes)
    theirs, _ = ROPE_INIT_FUNCTIONS["yarn"](config, device=None, layer_type="full_attention")
    specs = from_hf(config, per_layer=True, precision="hf")
    assert torch.equal(tensors(specs["full_attention"]).radians.to(torch.float32), theirs)
    assert specs["sliding_attention"].rotated_dims == int(24 * 0.334)
