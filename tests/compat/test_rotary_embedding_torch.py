"""`ropewalk.compat.rotary_embedding_torch` against the original library where that is right, and
against the definition where it is not.
"""

from __future__ import annotations

import pytest
import rotary_embedding_torch as peer
import torch
from torch.testing import assert_close

from ropewalk import RopeError
from ropewalk.compat import rotary_embedding_torch as ours

#: what a module is made with; ten dimensions are rotated, so pairs, tokens and heads never share a
#: size
MODULES = {
    "lang": {},
    "lang_theta": {"theta": 500.0},
    "ntk": {"theta_rescale_factor": 4.0},
    "interpolated": {"interpolate_factor": 3.0},
    "pixel": {"freqs_for": "pixel", "max_freq": 6},
    "constant": {"freqs_for": "constant", "num_freqs": 5},
    "custom": {"custom_freqs": torch.tensor([0.7, -0.2, 0.03, 1.1, 0.0])},
    "learned": {"learned_freq": True},
    "tokens_first": {"seq_before_head_dim": True},
    "narrow": {"freqs_for": "constant", "num_freqs": 3, "cache_if_possible": False},
}
XPOS = {
    "plain": {},
    "wide": {"xpos_scale_base": 64, "interpolate_factor": 2.0},
    "learned": {"learned_freq": True},
}


def both(dim=10, **given):
    return ours.RotaryEmbedding(dim, **given), peer.RotaryEmbedding(dim, **given)


def x_for(module, seq=7, width=13, **kind):
    shape = (2, seq, 3, width) if module.seq_before_head_dim else (2, 3, seq, width)
    return torch.randn(shape, **kind)


def definition(x, freqs, positions):
    """x [..., S, D] rotated in complex float64."""
    z = torch.view_as_complex(x.double()[..., : 2 * len(freqs)].unflatten(-1, (-1, 2)).contiguous())
    rotated = torch.view_as_real(
        z * torch.exp(1j * positions.double()[:, None] * freqs.double())
    ).flatten(-2)
    return torch.cat((rotated, x.double()[..., 2 * len(freqs) :]), dim=-1)


def test_every_public_name_and_method_of_the_original_exists():
    names = {name for name in vars(peer) if callable(getattr(peer, name))}
    assert names <= set(ours.__all__)
    methods = {name for name in vars(peer.RotaryEmbedding) if not name.startswith("_")}
    assert methods <= set(dir(ours.RotaryEmbedding))


@pytest.mark.parametrize("offset", [0, 5])
@pytest.mark.parametrize("name", MODULES)
def test_rotate_queries_or_keys_equals_the_original(name, offset):
    mine, theirs = both(**MODULES[name])
    x = x_for(mine)
    assert_close(
        mine.rotate_queries_or_keys(x, offset=offset),
        theirs.rotate_queries_or_keys(x, offset=offset),
    )


@pytest.mark.parametrize("name", MODULES)
def test_angles_frequencies_and_positions_equal_the_original(name):
    mine, theirs = both(**MODULES[name])
    t = torch.tensor([[0.0, 1.5], [-3.0, 40.0]])
    assert_close(mine(t), theirs(t))
    assert_close(mine.freqs, theirs.freqs, rtol=2e-7, atol=0)
    assert_close(mine.get_seq_pos(4, offset=2), theirs.get_seq_pos(4, offset=2))


@pytest.mark.parametrize("name", MODULES)
def test_rotating_queries_with_cached_keys_equals_the_original(name):
    mine, theirs = both(**MODULES[name])
    q, k = x_for(mine, seq=2), x_for(mine, seq=7)
    for offset in (0, 3):
        found, expected = (
            m.rotate_queries_with_cached_keys(q, k, offset=offset) for m in (mine, theirs)
        )
        assert_close(found, expected)


def test_a_seq_dim_that_is_given_replaces_the_default():
    mine, theirs = both()
    x = torch.randn(2, 7, 3, 13)
    assert_close(
        mine.rotate_queries_or_keys(x, seq_dim=-3), theirs.rotate_queries_or_keys(x, seq_dim=-3)
    )
    # the original treats 1 and -3 differently, although both name the second of four axes
    assert_close(
        mine.rotate_queries_or_keys(x, seq_dim=1), theirs.rotate_queries_or_keys(x, seq_dim=-3)
    )


@pytest.mark.parametrize("name", XPOS)
@pytest.mark.parametrize("first", [False, True], ids=["heads_first", "tokens_first"])
def test_xpos_on_queries_and_keys_equals_the_original(name, first):
    mine, theirs = both(use_xpos=True, seq_before_head_dim=first, **XPOS[name])
    q, k = x_for(mine), x_for(mine)
    assert_close(mine.rotate_queries_and_keys(q, k), theirs.rotate_queries_and_keys(q, k))
    assert_close(mine.scale, theirs.scale)
    t = torch.arange(6.0)
    assert_close(mine.get_scale(t), theirs.get_scale(t))


def peer_keys(k, first, **given):
    """Return k as the original rotates cached keys. It is given [B, H, S, D], because only in this
    order its scales line up with the tokens.
    """
    k = k.transpose(1, 2) if first else k
    rotated = peer.RotaryEmbedding(10, use_xpos=True, **given).rotate_queries_with_cached_keys(
        k[:, :, -2:], k
    )[1]
    return rotated.transpose(1, 2) if first else rotated


@pytest.mark.parametrize("name", XPOS)
@pytest.mark.parametrize("first", [False, True], ids=["heads_first", "tokens_first"])
def test_xpos_decoding_gives_the_scores_of_the_whole_sequence(name, first):
    mine = ours.RotaryEmbedding(10, use_xpos=True, seq_before_head_dim=first, **XPOS[name])
    q, k = x_for(mine), x_for(mine)
    layout = "bihd,bjhd->bhij" if first else "bhid,bhjd->bhij"
    last = (lambda x: x[:, -2:]) if first else (lambda x: x[:, :, -2:])
    whole = torch.einsum(layout, *mine.rotate_queries_and_keys(q, k))
    decoded = mine.rotate_queries_with_cached_keys(last(q), k)
    assert_close(torch.einsum(layout, *decoded), whole[:, :, -2:])
    # keys equal the original's; queries do not, because the original takes the centre of xPos from
    # the queries alone, not from the whole sequence
    assert_close(decoded[1], peer_keys(k, first, **XPOS[name]))


def test_a_given_scale_multiplies_rotated_queries_as_in_the_original():
    mine, theirs = both(use_xpos=True)
    x = x_for(mine, width=10)
    for scale in (0.5, mine.get_scale(torch.arange(7.0))):
        assert_close(
            mine.rotate_queries_or_keys(x, scale=scale),
            theirs.rotate_queries_or_keys(x, scale=scale),
        )


@pytest.mark.parametrize("name", ["lang", "pixel", "custom", "learned"])
@pytest.mark.parametrize("offsets", [None, (2, 0.5, 1)])
def test_axial_angles_rotate_an_image_and_a_video(name, offsets):
    given = {**MODULES[name], "cache_if_possible": False}
    mine, theirs = both(**given)
    for dims in ((4, 5), (2, 4, 5)):
        shift = None if offsets is None else offsets[: len(dims)]
        angles = mine.get_axial_freqs(*dims, offsets=shift)
        assert_close(angles, theirs.get_axial_freqs(*dims, offsets=shift))
        x = torch.randn(2, *dims, angles.shape[-1] + 3)
        assert_close(ours.apply_rotary_emb(angles, x), peer.apply_rotary_emb(angles, x))


def test_axial_angles_do_not_depend_on_what_was_asked_before():
    mine = ours.RotaryEmbedding(10)
    plain = mine.get_axial_freqs(4, 5)
    fresh = peer.RotaryEmbedding(10, cache_if_possible=False)
    assert_close(
        mine.get_axial_freqs(4, 5, offsets=(3, 1)), fresh.get_axial_freqs(4, 5, offsets=(3, 1))
    )
    assert_close(mine.get_axial_freqs(4, 5), plain)


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_apply_takes_the_last_angles_from_any_start(start, scale):
    freqs = torch.randn(9, 5).repeat_interleave(2, dim=-1)
    x = torch.randn(2, 3, 7, 14)
    given = {"start_index": start, "scale": scale}
    assert_close(ours.apply_rotary_emb(freqs, x, **given), peer.apply_rotary_emb(freqs, x, **given))
    x = x.transpose(1, 2)
    spread = freqs[:, None]
    given |= {"seq_dim": -3, "freqs_seq_dim": 0}
    assert_close(
        ours.apply_rotary_emb(spread, x, **given), peer.apply_rotary_emb(spread, x, **given)
    )


def test_apply_takes_angles_for_every_row_and_head():
    freqs = torch.randn(2, 3, 7, 5).repeat_interleave(2, dim=-1)
    x = torch.randn(2, 3, 7, 14)
    for angles in (freqs, freqs[:1], freqs[:, :1], freqs[:, :, :1]):
        assert_close(ours.apply_rotary_emb(angles, x), peer.apply_rotary_emb(angles, x))


@pytest.mark.parametrize(
    ("angles", "tokens"),
    [((2, 5), (2, 5)), ((1, 5), (2, 5)), ((1,), (2, 5)), ((3, 5), (3, 5)), ((1,), (2, 0))],
)
def test_apply_broadcasts_angles_of_fewer_rows_or_tokens(angles, tokens):
    rotations, x = torch.randn(*angles, 4), torch.randn(*tokens, 9)
    assert_close(
        ours.apply_learned_rotations(rotations, x), peer.apply_learned_rotations(rotations, x)
    )


def test_axial_angles_rotate_an_image_without_rows():
    mine, theirs = both(dim=8)
    x = torch.randn(3, 5, 16)
    found, expected = (
        ours.apply_rotary_emb(mine.get_axial_freqs(3, 5), x),
        peer.apply_rotary_emb(theirs.get_axial_freqs(3, 5), x),
    )
    assert_close(found, expected)


@pytest.mark.parametrize("ranges", [None, torch.tensor([1.0, 0.5])])
def test_learned_rotations_and_their_gradients_equal_the_original(ranges):
    x = torch.randn(2, 3, 7, 16)
    found, expected = (
        torch.zeros(7, 3).normal_(generator=torch.manual_seed(1)).requires_grad_() for _ in range(2)
    )
    mine = ours.apply_learned_rotations(found, x, start_index=2, freq_ranges=ranges)
    theirs = peer.apply_learned_rotations(expected, x, start_index=2, freq_ranges=ranges)
    assert_close(mine, theirs)
    weight = torch.randn_like(x)
    (mine * weight).sum().backward()
    (theirs * weight).sum().backward()
    assert_close(found.grad, expected.grad)


@pytest.mark.parametrize("xpos", [False, True])
def test_gradients_reach_inputs_and_trained_frequencies(xpos):
    mine, theirs = both(learned_freq=True, use_xpos=xpos)
    q = [x_for(mine).requires_grad_()]
    q.append(q[0].detach().clone().requires_grad_())
    k, weight = x_for(mine), x_for(mine)
    for module, x in zip((mine, theirs), q, strict=True):
        rotated = (
            module.rotate_queries_and_keys(x, k) if xpos else (module.rotate_queries_or_keys(x),)
        )
        sum((part * weight).sum() for part in rotated).backward()
    assert_close(q[0].grad, q[1].grad)
    assert_close(mine.freqs.grad, theirs.freqs.grad, rtol=1e-5, atol=1e-5)


def test_frozen_frequencies_take_no_part_in_training():
    mine = ours.RotaryEmbedding(10)
    assert list(mine.parameters()) == []
    x = x_for(mine).requires_grad_()
    weight = torch.randn_like(x)
    (mine.rotate_queries_or_keys(x, offset=4) * weight).sum().backward()
    y = x.detach().clone().requires_grad_()
    (peer.RotaryEmbedding(10).rotate_queries_or_keys(y, offset=4) * weight).sum().backward()
    assert_close(x.grad, y.grad)


@pytest.mark.parametrize("name", MODULES)
def test_each_module_loads_the_checkpoints_of_the_other(name):
    mine, theirs = both(**MODULES[name])
    with torch.no_grad():
        theirs.freqs.mul_(1.5)
    mine.load_state_dict(theirs.state_dict())
    x = x_for(mine)
    assert_close(mine.rotate_queries_or_keys(x), theirs.rotate_queries_or_keys(x))
    fresh = peer.RotaryEmbedding(10, **MODULES[name])
    fresh.load_state_dict(mine.state_dict())
    assert_close(fresh.freqs, theirs.freqs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("offset", [300, 2_000_000])
def test_16_bit_modules_rotate_by_exact_angles_and_count_every_position(dtype, offset):
    mine = ours.RotaryEmbedding(10)
    freqs = mine.freqs.double()
    mine.to(dtype)
    x = torch.randn(2, 3, 7, 13).to(dtype)
    exact = definition(x, freqs, torch.arange(offset, offset + 7))
    assert_close(
        mine.rotate_queries_or_keys(x, offset=offset).double(),
        exact,
        rtol=torch.finfo(dtype).eps,
        atol=1e-6,
    )
    assert mine.get_seq_pos(400, dtype=dtype).unique().numel() == 400


def test_an_offset_may_be_a_tensor_or_a_fraction():
    mine = ours.RotaryEmbedding(10)
    x = torch.randn(2, 3, 7, 13)
    assert_close(
        mine.rotate_queries_or_keys(x, offset=torch.tensor(4)),
        mine.rotate_queries_or_keys(x, offset=4),
    )
    exact = definition(x, mine.freqs, torch.arange(7) + 0.5)
    for offset in (0.5, torch.tensor(0.5), torch.tensor([0.5, 0.5])):
        found = mine.rotate_queries_or_keys(x, offset=offset)
        assert_close(found.double(), exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("given", [{}, {"learned_freq": True}, {"use_xpos": True}])
@pytest.mark.parametrize("seq", [2, 7])
def test_a_tensor_of_offsets_has_one_for_each_row(given, seq):
    mine = ours.RotaryEmbedding(10, **given)
    x = torch.randn(2, 3, seq, 13)
    scale = 1.0 if mine.use_xpos else None
    found = mine.rotate_queries_or_keys(x, offset=torch.tensor([4, 40]), scale=scale)
    for row, offset in enumerate((4, 40)):
        exact = definition(x[row], mine.freqs.detach(), torch.arange(offset, offset + seq))
        assert_close(found[row].double(), exact, rtol=0, atol=1e-5)


def test_float64_frequencies_survive_a_checkpoint():
    given = torch.tensor([0.1, 0.7, 1e-9], dtype=torch.float64)
    mine, fresh = ours.RotaryEmbedding(6, custom_freqs=given), ours.RotaryEmbedding(6)
    fresh.load_state_dict(mine.state_dict())
    assert torch.equal(fresh.freqs, given)
    x, far = torch.randn(1, 1, 3, 6, dtype=torch.float64), 10**8
    assert_close(
        fresh.rotate_queries_or_keys(x, offset=far),
        definition(x, given, torch.arange(far, far + 3)),
        rtol=0,
        atol=1e-6,
    )
    assert ours.RotaryEmbedding(6, custom_freqs=given.bfloat16()).freqs.dtype == torch.float32


def test_an_odd_width_rotates_all_pairs_but_not_the_last_dimension():
    mine = ours.RotaryEmbedding(11)
    x = torch.randn(2, 3, 7, 11)
    exact = definition(x, 10000.0 ** -(torch.arange(0, 10, 2) / 11), torch.arange(7))
    assert_close(mine.rotate_queries_or_keys(x).double(), exact, rtol=0, atol=1e-6)


def test_broadcat_and_rotate_half_equal_the_original():
    a, b = torch.randn(3, 1, 2), torch.randn(1, 4, 2)
    assert_close(ours.broadcat((a, b)), peer.broadcat((a, b)))
    x = torch.randn(3, 8)
    assert_close(ours.rotate_half(x), peer.rotary_embedding_torch.rotate_half(x))


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: ours.RotaryEmbedding(10, freqs_for="sound"), "freqs_for"),
        (lambda: ours.RotaryEmbedding(10, interpolate_factor=0.5), "interpolate_factor"),
        (lambda: ours.RotaryEmbedding(10, custom_freqs=torch.ones(2, 3)), "custom_freqs"),
        (
            lambda: ours.RotaryEmbedding(10).rotate_queries_or_keys(torch.randn(2, 3, 7, 8)),
            "rotary_dim",
        ),
        (
            lambda: ours.RotaryEmbedding(10).rotate_queries_and_keys(
                torch.randn(2, 7, 10), torch.randn(2, 7, 10)
            ),
            "use_xpos",
        ),
        (lambda: ours.RotaryEmbedding(10).get_scale(torch.arange(3.0)), "use_xpos"),
        (
            lambda: ours.RotaryEmbedding(10, use_xpos=True).rotate_queries_or_keys(
                torch.randn(2, 7, 10)
            ),
            "scale",
        ),
        (
            lambda: ours.RotaryEmbedding(10).rotate_queries_or_keys(
                torch.randn(2, 7, 10), scale=torch.ones(7, 1, 10)
            ),
            "scale",
        ),
        (
            lambda: ours.RotaryEmbedding(10).rotate_queries_with_cached_keys(
                torch.randn(2, 7, 10), torch.randn(2, 3, 10)
            ),
            "q",
        ),
        (lambda: ours.RotaryEmbedding(10).get_axial_freqs(4, 5, offsets=(1,)), "offsets"),
        (lambda: ours.apply_rotary_emb(torch.randn(7, 10), torch.randn(2, 7, 10)), "freqs"),
        (lambda: ours.apply_rotary_emb(torch.ones(7, 5), torch.randn(2, 7, 10)), "freqs"),
        (lambda: ours.apply_rotary_emb(torch.ones(5, 10), torch.randn(2, 7, 10)), "freqs"),
        (lambda: ours.apply_rotary_emb(torch.ones(4, 5, 10), torch.randn(2, 6, 5, 10)), "freqs"),
        (
            lambda: ours.apply_rotary_emb(torch.ones(7, 10), torch.randn(2, 7, 10), start_index=1),
            "t",
        ),
        (lambda: ours.RotaryEmbedding(8, theta="10000"), "theta"),
    ],
)
def test_wrong_arguments_of_the_module_are_refused_by_name(call, field):
    with pytest.raises(RopeError) as error:
        call()
    assert error.value.field == field


def test_a_checkpoint_of_another_width_is_refused():
    with pytest.raises(RuntimeError, match="freqs"):
        ours.RotaryEmbedding(10).load_state_dict({"freqs": torch.ones(3)})


def test_only_a_module_with_xpos_has_a_scale():
    with pytest.raises(AttributeError):
        ours.RotaryEmbedding(10).scale
