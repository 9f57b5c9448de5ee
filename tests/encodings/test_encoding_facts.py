"""What every encoding is, by its paper: where it acts, what it depends on, how many parameters it
has, and how it is set up by default.
"""

import math

import pytest
import torch

from ropewalk import axes
from ropewalk.encodings import ENCODINGS, Sizes

SIZES = Sizes(num_heads=4, head_dim=24, model_dim=96, length=40)
#: name -> where it acts, whether scores depend on distances alone, whether linear attention may use
#: it, whether it ends at the trained length, whether only causal attention may use it
FACTS = {
    "none": ("none", True, True, False, False),
    "learned": ("input", False, True, True, False),
    "sinusoidal": ("input", False, True, False, False),
    "rope": ("qk", True, True, False, False),
    "rope_2d": ("qk", True, True, False, False),
    "rope_3d": ("qk", True, True, False, False),
    "xpos": ("qk", True, True, False, True),
    "rope_learnable": ("qk", True, True, False, False),
    "rope_alibi": ("qk", True, False, False, False),
    "rope_bias": ("qk", True, False, False, False),
    "pope": ("qk", True, False, False, False),
    "fope": ("qk", False, False, False, False),  # a pair mixes several frequencies: not relative
    "alibi": ("scores", True, False, False, False),
    "t5": ("scores", True, False, False, False),
    "t5_causal": ("scores", True, False, False, True),
    "kerple_log": ("scores", True, False, False, False),
    "kerple_power": ("scores", True, False, False, False),
    "relative_bias": ("scores", True, False, False, False),
    "nezha": ("scores", True, False, False, False),
    "fire": ("scores", False, False, False, True),
}
#: how many numbers are learned with 4 heads of 24, a width of 96 and a length of 40
LEARNED = {
    "learned": 40 * 96,  # a vector for each position
    "rope_learnable": 12,  # one for each pair
    "rope_bias": 4 * 79,  # for each head and distance from -39 to 39
    "relative_bias": 4 * 79,
    "t5": 32 * 4,  # for each of 32 buckets and head
    "t5_causal": 32 * 4,
    "kerple_log": 2 * 4,
    "kerple_power": 2 * 4,
    "fire": (32 + 32) + (32 * 4 + 4) + 2,  # an MLP of width 32, c and L
}


@pytest.mark.parametrize("name", FACTS)
def test_an_encoding_declares_what_its_paper_says(name):
    found = ENCODINGS[name]
    assert (
        found.entry,
        found.relative,
        found.linear,
        found.bounded,
        found.causal_only,
    ) == FACTS[name]


def test_every_encoding_is_written_out_here():
    assert set(FACTS) == set(ENCODINGS)


@pytest.mark.parametrize("name", [name for name in FACTS if name not in ("pope", "fope")])
def test_an_encoding_learns_as_many_numbers_as_its_paper_says(name):
    encoding = ENCODINGS[name](SIZES)
    assert sum(p.numel() for p in encoding.parameters()) == LEARNED.get(name, 0)


@pytest.mark.parametrize("name", ["learned", "t5", "t5_causal", "relative_bias", "rope_bias"])
def test_tables_of_positions_begin_with_a_deviation_of_002(name):
    """As embeddings of BERT do; means and deviations within five standard errors."""
    torch.manual_seed(0)
    large = Sizes(num_heads=16, head_dim=24, model_dim=384, length=200)
    (table,) = ENCODINGS[name](large).parameters()
    assert table.std().item() == pytest.approx(0.02, rel=5 / (2 * table.numel()) ** 0.5)
    assert abs(table.mean().item()) < 5 * 0.02 / table.numel() ** 0.5


def test_rotations_of_images_and_videos_share_their_pairs_among_the_axes():
    """12 pairs of a head: 6 and 6, or 4, 4 and 4; of 14, the first axis has what is left."""
    for name, wanted in (("rope_2d", (6, 6)), ("rope_3d", (4, 4, 4))):
        spec = ENCODINGS[name](SIZES).rope.spec
        assert spec.axes == axes.axial(*wanted)
        assert spec.theta == 100
    odd = Sizes(num_heads=1, head_dim=28, model_dim=28, length=8)
    assert ENCODINGS["rope_3d"](odd).rope.spec.axes == axes.axial(6, 4, 4)
    odd = Sizes(num_heads=1, head_dim=26, model_dim=26, length=8)
    assert ENCODINGS["rope_2d"](odd).rope.spec.axes == axes.axial(7, 6)
    for name in ("rope", "xpos", "rope_learnable", "rope_alibi", "rope_bias"):
        assert ENCODINGS[name](SIZES).rope.spec.theta == 10_000


@pytest.mark.parametrize("theta", [10_000.0, 50.0])
def test_sinusoids_have_the_theta_that_is_given(theta):
    encoding = ENCODINGS["sinusoidal"](Sizes(1, 6, 6, 8), theta=theta)
    found = encoding.embed(torch.zeros(1, 1, 6, dtype=torch.float64), torch.tensor([[5]]))
    angles = [5 * theta ** (-i / 3) for i in range(3)]
    expected = [number for angle in angles for number in (math.sin(angle), math.cos(angle))]
    assert found.flatten().tolist() == pytest.approx(expected)
    assert ENCODINGS["sinusoidal"](Sizes(1, 6, 6, 8)).theta == 10_000
