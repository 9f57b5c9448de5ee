"""precision="hf" gives transformers' own tables bit for bit; "hf_frequencies" its frequencies with
exact angles.
"""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from ropewalk import frequencies as fq
from ropewalk.spec import RopeSpec
from ropewalk.table import cos_sin
from tensor_forms import tensors

TRAINED = 2048
SCALINGS = {
    "default": (fq.Default(), {}),
    "linear": (fq.Linear(3.0), {"factor": 3.0}),
    "dynamic": (fq.Dynamic(4.0, TRAINED), {"factor": 4.0}),
    "yarn": (
        fq.Yarn(512, truncate=False, factor=8.0),
        {"factor": 8.0, "truncate": False, "original_max_position_embeddings": 512},
    ),
    "llama3": (
        fq.Llama3(8.0, 1.0, 4.0, 1024),
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 1024,
        },
    ),
}


def longrope(dim):
    short, long = (
        [1.0 + 0.02 * i for i in range(dim // 2)],
        [2.0 + 0.5 * i for i in range(dim // 2)],
    )
    keys = {
        "short_factor": short,
        "long_factor": long,
        "factor": 16.0,
        "original_max_position_embeddings": 512,
    }
    return fq.LongRope(tuple(short), tuple(long), 512, 16.0), keys


def their_tables(rope_type, keys, dim, theta, positions, dtype):
    config = LlamaConfig(
        hidden_size=2 * dim,
        num_attention_heads=2,
        head_dim=dim,
        max_position_embeddings=TRAINED,
        rope_parameters={"rope_type": rope_type, "rope_theta": theta, **keys},
    )
    return LlamaRotaryEmbedding(config)(torch.zeros(1, dtype=dtype), positions)


@pytest.mark.parametrize(
    "positions",
    [torch.arange(300), torch.tensor([0, 511, 2047, 2048, 131_071, 1_000_000])],
    ids=["near", "far"],
)
@pytest.mark.parametrize(("dim", "theta"), [(128, 10_000.0), (96, 500_000.0), (10, 10_000.0)])
@pytest.mark.parametrize("rope_type", [*SCALINGS, "longrope"])
def test_tables_have_transformers_bits(rope_type, dim, theta, positions):
    scaling, keys = SCALINGS[rope_type] if rope_type in SCALINGS else longrope(dim)
    spec = RopeSpec(dim, theta, scaling, precision="hf")
    for dtype in (torch.float32, torch.bfloat16):
        ours = cos_sin(spec, positions[None], length=positions.max() + 1, dtype=dtype)
        for table, whole in zip(
            ours, their_tables(rope_type, keys, dim, theta, positions[None], dtype), strict=True
        ):
            assert table.dtype == whole.dtype
            assert torch.equal(table, whole[..., : dim // 2])


def test_hf_frequencies_have_exact_angles():
    """At a million tokens transformers' float32 angle is off by 1e-2; the same frequencies, rotated
    exactly, are not.
    """
    position = torch.tensor([1_000_003])
    radians = tensors(RopeSpec(128, precision="hf")).radians
    exact = cos_sin(RopeSpec(128, precision="hf_frequencies"), position, dtype=torch.float64)[0][0]
    torch.testing.assert_close(exact, (position * radians).cos(), rtol=0, atol=1e-9)
    rounded = cos_sin(RopeSpec(128, precision="hf"), position, dtype=torch.float64)[0][0]
    assert float((rounded - exact).abs().max()) > 1e-3
