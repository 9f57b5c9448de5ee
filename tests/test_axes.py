"""Axis maps: the angle of every pair against a loop, and whole tables and rotations against
transformers.
"""

import itertools
import math

import numpy as np
import pytest
import torch

import ropewalk as rw
from door import as_users_call, assert_refused
from ropewalk import axes
from ropewalk.positions import Image, Text, Video, grid, multimodal
from ropewalk.rope import mixed_start
from tensor_forms import tensors

THETA = 50.0


def by_chunk(sections):
    return [axis for axis, count in enumerate(sections) for _ in range(count)]


def by_third(sections):
    """Height takes i = 1, 4, 7 ... and width i = 2, 5, 8 ... while they have pairs left; time takes
    the rest.
    """
    return [i % 3 if i % 3 and i // 3 < sections[i % 3] else 0 for i in range(sum(sections))]


def by_ernie(sections):
    """Sections (height, width, time): even pairs height, odd pairs width, the slow end time."""
    return [0 if i >= sections[0] + sections[1] else 1 + i % 2 for i in range(sum(sections))]


def alternately(sections):
    """Return the axis of every pair: give each axis that needs more pairs one in turn, until none does."""
    rounds = max(sections)
    return [
        axis
        for each_round in range(rounds)
        for axis, count in enumerate(sections)
        if count > each_round
    ]


#: (map, the axis of every pair by its own rule)
SHARED = [
    (axes.chunked([2, 3, 1]), by_chunk([2, 3, 1])),
    (axes.chunked([1, 0, 4, 2]), by_chunk([1, 0, 4, 2])),
    (axes.interleaved([3, 2, 2]), by_third([3, 2, 2])),
    (axes.interleaved([5, 1, 2]), by_third([5, 1, 2])),
    (axes.interleaved([11, 11, 10]), by_third([11, 11, 10])),
    (axes.interleaved([9, 3, 4]), by_third([9, 3, 4])),
    (axes.interleaved([9, 4, 3]), by_third([9, 4, 3])),
    (axes.ernie([2, 2, 3]), by_ernie([2, 2, 3])),
    (axes.round_robin([3, 1, 2]), alternately([3, 1, 2])),
    (axes.round_robin([1, 4]), alternately([1, 4])),
]
ROWS = [[Text(3), Image(4, 6), Text(2), Video(3, 2, 4, 2.5), Text(4)], [Text(5), Image(2, 2)]]
PER_AXIS = [(2, 3), (4, 4), (1, 2, 2)]


def positions_of(num_axes):
    return torch.randint(-9, 40, (num_axes, 2, 7))


def assert_angles(spec, positions, axis_of_pair, radians):
    """cos and sin of the spec are those of radians[i] * position on the axis of pair i, in double
    arithmetic.
    """
    cos, sin = rw.Rope(spec).cos_sin(positions, dtype=torch.float64)
    for b in range(positions.shape[1]):
        for s in range(positions.shape[2]):
            angle = [
                radians[i] * positions[axis, b, s].item() for i, axis in enumerate(axis_of_pair)
            ]
            expected = torch.tensor(
                [[math.cos(a), math.sin(a)] for a in angle], dtype=torch.float64
            )
            torch.testing.assert_close(
                torch.stack([cos[b, s], sin[b, s]], -1), expected, rtol=0, atol=1e-12
            )


@pytest.mark.parametrize(("chosen", "axis_of_pair"), SHARED)
def test_each_pair_rotates_by_its_frequency_times_the_position_on_its_axis(chosen, axis_of_pair):
    pairs = len(axis_of_pair)
    spec = rw.RopeSpec(head_dim=2 * pairs, theta=THETA, axes=chosen)
    radians = [THETA ** (-i / pairs) for i in range(pairs)]
    assert_angles(spec, positions_of(chosen.num_axes), axis_of_pair, radians)


@pytest.mark.parametrize("make", [axes.axial, axes.normalised])
@pytest.mark.parametrize("sections", PER_AXIS)
def test_each_axial_axis_has_a_ladder_of_its_own(sections, make):
    spec = rw.RopeSpec(head_dim=2 * sum(sections), theta=THETA, axes=make(*sections))
    radians = [THETA ** (-i / count) for count in sections for i in range(count)]
    assert_angles(spec, positions_of(len(sections)), by_chunk(sections), radians)


@pytest.mark.parametrize(("chosen", "axis_of_pair"), SHARED)
def test_frequencies_are_a_matrix_from_axes_to_pairs(chosen, axis_of_pair):
    """angle = F p with F [pairs, axes], which has one entry other than 0 in each row."""
    spec = rw.RopeSpec(head_dim=2 * len(axis_of_pair), theta=THETA, axes=chosen)
    matrix = tensors(spec).radians
    expected = torch.zeros(len(axis_of_pair), chosen.num_axes, dtype=torch.float64)
    for i, axis in enumerate(axis_of_pair):
        expected[i, axis] = THETA ** (-i / len(axis_of_pair))
    torch.testing.assert_close(matrix, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize(("chosen", "axis_of_pair"), SHARED)
def test_text_rotates_as_with_one_axis(chosen, axis_of_pair):
    """If a token has the same position on all axes, an axis map changes nothing."""
    spec = rw.RopeSpec(head_dim=2 * len(axis_of_pair), axes=chosen)
    q = torch.randn(2, 3, 5, spec.head_dim, dtype=torch.float64)
    torch.testing.assert_close(
        rw.Rope(spec)(q, offset=9), rw.Rope(spec.with_(axes=None))(q, offset=9), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("order", sorted(axes.AXIS_ORDERS))
def test_scores_depend_only_on_the_distance_along_each_axis(order):
    chosen = axes.AXIS_ORDERS[order]([2, 2, 1])
    rope = rw.Rope(rw.RopeSpec(head_dim=10, axes=chosen))
    q, k = torch.randn(2, 1, 1, 6, 10, dtype=torch.float64)
    at, shift = torch.randint(0, 50, (3, 1, 6)), torch.tensor([1000, 20, 3])[:, None, None]

    def scores(positions):
        rotated_q, rotated_k = rope(q, k, positions=positions)
        return rotated_q @ rotated_k.mT

    torch.testing.assert_close(scores(at + shift), scores(at), rtol=0, atol=1e-10)
    bent = at.clone()
    bent[1, 0, 0] += 1
    assert not torch.allclose(scores(bent), scores(at))


def hf_tables(name, sections, positions):
    """cos and sin [B, S, 16] from the model's own rotary module, eight pairs."""
    transformers = pytest.importorskip("transformers")
    if name == "qwen2_vl":
        from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding as Module

        config = transformers.Qwen2VLConfig().text_config
    elif name == "qwen3_vl":
        from transformers.models.qwen3_vl.modeling_qwen3_vl import (
            Qwen3VLTextRotaryEmbedding as Module,
        )

        config = transformers.Qwen3VLConfig().text_config
    else:
        from transformers.models.ernie4_5_vl_moe.modeling_ernie4_5_vl_moe import (
            Ernie4_5_VLMoeTextRotaryEmbedding as Module,
        )

        config = transformers.Ernie4_5_VLMoeConfig().text_config
    config.hidden_size, config.num_attention_heads, config.head_dim = 32, 2, 16
    config.rope_parameters = {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "mrope_section": sections,
    }
    return Module(config)(torch.zeros(1), positions)


def hf_apply(name):
    pytest.importorskip("transformers")
    if name == "ernie":
        from transformers.models.ernie4_5_vl_moe.modeling_ernie4_5_vl_moe import (
            apply_rotary_pos_emb,
        )
    else:
        from transformers.models.qwen2_vl.modeling_qwen2_vl import apply_rotary_pos_emb
    return apply_rotary_pos_emb


@pytest.mark.parametrize(
    ("name", "sections", "order", "layout"),
    [
        ("qwen2_vl", [2, 3, 3], axes.chunked, "half"),
        ("qwen3_vl", [4, 2, 2], axes.interleaved, "half"),
        ("qwen3_vl", [3, 3, 2], axes.interleaved, "half"),
        ("ernie", [3, 3, 2], axes.ernie, "interleaved"),
    ],
)
class TestAgainstTransformers:
    def test_tables_with_precision_hf_have_transformers_bits(self, name, sections, order, layout):
        positions, _ = multimodal(ROWS, merge=2)
        spec = rw.RopeSpec(head_dim=16, axes=order(sections), layout=layout, precision="hf")
        for ours, theirs in zip(
            rw.Rope(spec).cos_sin_hf(positions), hf_tables(name, sections, positions), strict=True
        ):
            assert torch.equal(ours, theirs)

    def test_rotations_agree_with_transformers(self, name, sections, order, layout):
        positions, _ = multimodal(ROWS, merge=2)
        cos, sin = hf_tables(name, sections, positions)
        q, k = (
            torch.randn(2, 3, positions.shape[-1], 16),
            torch.randn(2, 1, positions.shape[-1], 16),
        )
        rope = rw.Rope(rw.RopeSpec(head_dim=16, axes=order(sections), layout=layout))
        for ours, theirs in zip(
            rope(q, k, positions=positions), hf_apply(name)(q, k, cos, sin), strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)


def test_axial_gives_the_tables_of_the_image_encoder_of_qwen_vl():
    transformers = pytest.importorskip("transformers")
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLVisionRotaryEmbedding

    config = transformers.Qwen2VLConfig().vision_config
    config.embed_dim, config.num_heads = 48, 2
    module = Qwen2VLVisionRotaryEmbedding(config)
    head_dim = 4 * module.inv_freq.numel()
    at = grid(4, 6, merge=2)
    spec = rw.RopeSpec(
        head_dim, theta=10_000.0, axes=axes.axial(head_dim // 4, head_dim // 4), precision="hf"
    )
    for ours, theirs in zip(
        rw.Rope(spec).cos_sin_hf(at), module(torch.zeros(1), at[:, 0].T), strict=True
    ):
        assert torch.equal(ours[0], theirs)


class TestMixed:
    spec = rw.RopeSpec(
        head_dim=10, rotary_dim=8, rotary_start=1, axes=axes.MixedAxes(num_heads=3, pairs=4, seed=5)
    )

    def rope(self):
        rope = rw.Rope(self.spec)
        with torch.no_grad():
            rope.mixed.copy_(torch.randn(3, 4, 2))
        return rope

    @staticmethod
    def definition(x, mixed, positions):
        """Complex numbers: pair p of head h rotates by mixed[h, p] . (first coordinate, second
        coordinate).
        """
        angle = torch.einsum("hpa,abs->bhsp", mixed, positions.to(mixed.dtype))
        rotating = x[..., 1:9]
        z = torch.complex(rotating[..., :4], rotating[..., 4:]) * torch.polar(
            torch.ones_like(angle), angle
        )
        return torch.cat([x[..., :1], z.real, z.imag, x[..., 9:]], dim=-1)

    @pytest.mark.parametrize("kind", [torch.int64, torch.float64])
    def test_rotations_by_mixed_axes_and_their_gradients_follow_the_definition(self, kind):
        rope, x = self.rope(), torch.randn(2, 3, 6, 10, dtype=torch.float64, requires_grad=True)
        positions = (torch.rand(2, 2, 6, dtype=torch.float64) * 20).to(kind)
        weight = torch.randn_like(x)
        ours = rope(x, positions=positions)
        mixed = rope.mixed.detach().double().requires_grad_()
        theirs = self.definition(x, mixed, positions)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        ours_x, ours_mixed = torch.autograd.grad((ours * weight).sum(), [x, rope.mixed])
        theirs_x, theirs_mixed = torch.autograd.grad((theirs * weight).sum(), [x, mixed])
        torch.testing.assert_close(ours_x, theirs_x, rtol=0, atol=1e-12)
        assert theirs_mixed.abs().min() > 0
        torch.testing.assert_close(ours_mixed, theirs_mixed.float(), rtol=1e-5, atol=1e-5)

    def test_the_first_coordinate_multiplies_the_first_frequency(self):
        rope, x = self.rope(), torch.randn(1, 3, 4, 10)
        with torch.no_grad():
            rope.mixed[..., 1] = 0  # no frequency on the second axis
        at = grid(2, 2)
        elsewhere = at.clone()
        elsewhere[1] += 100
        assert torch.equal(rope(x, positions=at), rope(x, positions=elsewhere))
        assert not torch.allclose(rope(x, positions=at), rope(x, positions=elsewhere.flip(0)))

    def test_half_of_a_heads_pairs_start_along_one_direction_and_half_at_a_right_angle_to_it(self):
        start = rw.Rope(self.spec).mixed.detach().double()
        pace = torch.tensor([10.0 ** (-j / 2) for j in range(2)], dtype=torch.float64)
        torch.testing.assert_close(
            start.norm(dim=-1), pace.repeat(2).expand(3, -1), rtol=1e-6, atol=0
        )
        along, across = start[:, :2], start[:, 2:]
        torch.testing.assert_close(
            (along * across).sum(-1), torch.zeros(3, 2, dtype=torch.float64), rtol=0, atol=1e-6
        )
        directions = along[:, 0] / along[:, 0].norm(dim=-1, keepdim=True)
        torch.testing.assert_close(
            along / along.norm(dim=-1, keepdim=True), directions[:, None].expand(-1, 2, -1)
        )
        # no two heads have the same direction
        assert torch.pdist(directions).min() > 1e-3

    def test_mixed_start_depends_on_the_seed(self):
        assert torch.equal(
            mixed_start(axes.MixedAxes(3, 4, seed=5)), mixed_start(axes.MixedAxes(3, 4, seed=5))
        )
        assert not torch.equal(
            mixed_start(axes.MixedAxes(3, 4, seed=5)), mixed_start(axes.MixedAxes(3, 4, seed=6))
        )


def rotate_five(chosen, positions):
    return rw.Rope(rw.RopeSpec(8, axes=chosen))(torch.ones(1, 1, 5, 8), positions=positions)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: axes.chunked([]), "sections"),
        (lambda: axes.chunked(16), "sections"),
        (lambda: axes.chunked([2, -1]), "sections"),
        (lambda: axes.chunked([2, 1.0]), "sections"),
        (lambda: axes.chunked([0, 0, 0]), "sections"),
        (lambda: axes.interleaved([2, 2]), "sections"),
        (lambda: axes.interleaved([1, 4, 1]), "sections"),
        (lambda: axes.interleaved([2, 2, 4]), "sections"),
        (lambda: axes.ernie([3, 2, 1]), "sections"),
        (lambda: axes.ernie([3, 3]), "sections"),
        (lambda: axes.round_robin([]), "sections"),
        (lambda: axes.axial(0, 0), "sections"),
        (lambda: axes.AxisMap((0, 3), 3), "axis_of_pair"),
        (lambda: axes.AxisMap((), 3), "axis_of_pair"),
        (lambda: axes.AxisMap((0, 1), 0), "num_axes"),
        (lambda: axes.AxisMap((0, 1), 65), "num_axes"),
        (lambda: axes.AxisMap((0, 1), 2, ladder="rope"), "ladder"),
        (lambda: axes.AxisMap((0, 1), 2, fractional=1), "fractional"),
        (lambda: axes.MixedAxes(num_heads=0, pairs=4), "num_heads"),
        (lambda: axes.MixedAxes(num_heads=1, pairs=3), "pairs"),
        (lambda: axes.MixedAxes(num_heads=1, pairs=4, theta=0.0), "theta"),
        (lambda: axes.MixedAxes(num_heads=1, pairs=4, num_axes=3), "num_axes"),
        (lambda: axes.MixedAxes(num_heads=1, pairs=4, num_axes=2.0), "num_axes"),
        (lambda: axes.MixedAxes(num_heads=1, pairs=4, fractional="no"), "fractional"),
        (lambda: axes.MixedAxes(num_heads=1, pairs=4, seed=-1), "seed"),
        (lambda: rw.RopeSpec(head_dim=16, axes=axes.chunked([2, 3, 2])), "axes"),
        (lambda: rw.RopeSpec(head_dim=16, rotary_dim=8, axes=axes.chunked([2, 3, 3])), "axes"),
        (lambda: rw.RopeSpec(head_dim=16, axes=[2, 3, 3]), "axes"),
        (
            lambda: rotate_five(axes.axial(2, 2), torch.zeros(3, 1, 5, dtype=torch.int64)),
            "positions",
        ),
        (lambda: rotate_five(axes.axial(2, 2), torch.zeros(2, 1, 5)), "positions"),
        (lambda: rotate_five(axes.normalised(2, 2), None), "positions"),
    ],
)
def test_wrong_axes_and_positions_are_refused_by_field(call, field):
    assert_refused(field, call)


def test_mixed_start_leaves_the_state_of_torchs_random_generator_unchanged():
    before = torch.random.get_rng_state()
    mixed_start(axes.MixedAxes(num_heads=2, pairs=4, seed=7))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_mixed_start_is_on_the_cpu_whatever_the_default_device():
    mixed = axes.MixedAxes(num_heads=2, pairs=4)
    with torch.device("meta"):
        found = mixed_start(mixed)
    assert torch.equal(found, mixed_start(mixed))


def test_interleaved_refuses_sections_by_the_rule_in_its_error():
    """Height takes pairs 1, 4, 7, ... and width 2, 5, 8, ...: every third of range(pairs)."""
    for sections in itertools.product(range(1, 8), repeat=3):
        _, height, width = sections
        pairs = sum(sections)
        fits = len(range(1, pairs, 3)) >= height and len(range(2, pairs, 3)) >= width
        assert fits == (3 * height <= pairs + 1 and 3 * width <= pairs)
        if not fits:
            error = assert_refused("sections", lambda: axes.interleaved(sections))  # noqa: B023
            assert "3 * height <= pairs + 1 and 3 * width <= pairs" in error.rule
        else:
            assert axes.interleaved(sections).axis_of_pair.count(1) == height


def test_a_section_of_more_than_32768_pairs_is_refused():
    with pytest.raises(rw.RopeError) as caught:
        axes.chunked([32769, 1])
    assert caught.value.field == "sections[0]"


def test_numpy_integers_make_the_same_map():
    """A spec is identified by its fingerprint, so equal maps must give equal fingerprints."""
    order, three = np.array([0, 1, 2, 1]), np.int32(3)
    with as_users_call():
        ours, mixed = (
            axes.AxisMap(order, three),
            axes.MixedAxes(np.int64(2), np.int16(4), np.float64(10.0), np.uint8(7)),
        )
    plain = axes.AxisMap((0, 1, 2, 1), 3)
    assert ours == plain
    assert {type(number) for number in (*ours.axis_of_pair, ours.num_axes)} == {int}
    assert rw.RopeSpec(8, axes=ours).fingerprint == rw.RopeSpec(8, axes=plain).fingerprint
    assert (
        rw.RopeSpec(8, axes=mixed).fingerprint
        == rw.RopeSpec(8, axes=axes.MixedAxes(2, 4, seed=7)).fingerprint
    )
    assert_refused("axis_of_pair", lambda: axes.AxisMap(np.array([0.0, 1.0]), 2))


@pytest.mark.parametrize(
    ("field", "make", "allowed", "refused"),
    [
        ("num_axes", lambda n: axes.AxisMap((0, 0), n), (1, 64), (0, 65)),
        ("axis_of_pair", lambda n: axes.AxisMap((0, n), 3), (0, 2), (-1, 3)),
        ("num_heads", lambda n: axes.MixedAxes(n, 4), (1, 65536), (0, 65537)),
        ("pairs", lambda n: axes.MixedAxes(1, n), (2, 32768), (0, 1, 3, 32770)),
        ("seed", lambda n: axes.MixedAxes(1, 4, seed=n), (0, 2**62), (-1, 2**62 + 1)),
    ],
)
def test_every_count_is_accepted_within_its_bounds_and_refused_outside(
    field, make, allowed, refused
):
    for count in allowed:
        made = getattr(make(count), field)
        assert count == (made[-1] if field == "axis_of_pair" else made)
    for count in refused:
        assert_refused(field, lambda: make(count))  # noqa: B023 - called at once
