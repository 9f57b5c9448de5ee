"""One test for each known failure of other libraries that the definition, the tables and the
rotation could have too: shapes and calls.

The numbers in the names are those of a list of known failures that is not in this repository:
`item` for bugs reported in projects, `w` for those measured in transformers. Item 21, strides
beyond 32 bits, is in test_rotation.py; item 39, recompilation, in compiled.py.
"""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

import ropewalk as rw
from door import assert_refused
from helpers import HEAD_DIM, definition, exactly, sample_spec, x_of
from ropewalk import frequencies, rotation
from tensor_forms import tensors

B, H, S = 2, 3, 7
FOLLOWS_LENGTH = pytest.mark.parametrize("name", ["dynamic", "longrope", "dynamic_yarn"])


def test_item_22_in_place_is_refused_where_autograd_needs_the_value():
    rope, x = rw.Rope(sample_spec()), x_of().requires_grad_()
    saved = x.exp()
    rope(saved, inplace=True)
    with pytest.raises(RuntimeError, match="inplace"):
        saved.sum().backward()
    q = x_of()
    assert_refused("inplace", lambda: rope(q, q[:, :1], inplace=True))


def test_item_22_every_path_has_a_backward():
    """A tensor rotated in any way has a gradient function."""
    x, rope, table = x_of().requires_grad_(), rw.Rope(sample_spec()), torch.rand(S, 5)
    for out in (
        rope(x),
        rope(x, x)[1],
        rope.rotate(x),
        rope.unrotate(x),
        rope.rerotate(x, torch.arange(S), torch.arange(S)),
        rotation.rotate_by(x, table, table, layout="half"),
        rope(x * 1, inplace=True),
        torch.ops.ropewalk.rotate(x, None, 0, None, rope.spec.fingerprint, "auto", -2, 1, 1, False),
        rw.apply_rotary_pos_emb(x, x, torch.ones(S, 14), torch.ones(S, 14), 0)[0],
    ):
        assert out.requires_grad
        assert torch.autograd.grad(out.sum(), x)[0].abs().sum() > 0


@pytest.mark.parametrize("backend", [None, *rw.kernels.BACKENDS])
def test_item_23_24_25_every_row_and_head_rotates_by_its_own_position(backend):
    """Also with a single token in several rows, with positions for each row, and for the last head."""
    spec = sample_spec()
    for s in (1, S):
        x, positions = x_of(5, H, s, HEAD_DIM), torch.randint(1, 1000, (5, s))
        if backend is not None and (
            reason := rw.kernels.BACKENDS[backend].why_not(x, rotation.Request(spec, -2))
        ):
            pytest.skip(f"backend {backend}: {reason}")
        exact = definition(x, spec, positions)
        exactly(rotation.rotate(x, spec, positions, backend=backend), exact)
        rotation.rotate(x, spec, positions, inplace=True, backend=backend)
        exactly(x, exact)


@FOLLOWS_LENGTH
@pytest.mark.parametrize("shape", [(0, H, S, HEAD_DIM), (B, H, 0, HEAD_DIM), (0, H, 0, HEAD_DIM)])
def test_item_26_w11_an_empty_tensor_keeps_its_shape(name, shape):
    rope, x = rw.Rope(sample_spec(name)), torch.empty(shape)
    assert (
        rope(x).shape
        == rope(x, positions=torch.empty(shape[0], shape[2], dtype=torch.int64)).shape
        == x.shape
    )


def test_item_26_w12_positions_of_another_length_than_the_tokens_are_refused():
    rope = rw.Rope(sample_spec())
    for shape in ((B, 1), (1, 1), (1,), (S, B), (S + 1,)):
        assert_refused(
            "positions",
            lambda shape=shape: rope(x_of(), positions=torch.zeros(shape, dtype=torch.int64)),
        )
    assert_refused("x", lambda: rope(x_of(B, H, S, HEAD_DIM + 2)))


@pytest.mark.parametrize("name", rw.frequencies.SCALINGS)
def test_item_27_negative_positions_follow_the_definition(name):
    rope, x = rw.Rope(sample_spec(name)), x_of(dtype=torch.float64)
    positions = torch.arange(S) - 40
    length = 20 if rope.spec.needs_length else None
    exactly(
        rope(x, positions=positions, length=length),
        definition(x, rope.spec, positions, length),
        1e-12,
    )
    assert_close(
        rope(x, offset=-40, length=length),
        rope(x, positions=positions, length=length),
        rtol=0,
        atol=1e-14,
    )


def test_item_28_positions_beyond_every_table_follow_the_definition():
    """After a first call with few tokens, at positions on both sides of the end of each table,
    together and one by one.
    """
    rope, x = rw.Rope(sample_spec(theta=5_555.0)), x_of(1, 1, 10, HEAD_DIM)
    rope(x)
    edges = torch.tensor([255, 256, 1023, 1024, 2**20 - 1, 2**20, 2**21, 10**7, -1, 0])
    exactly(rope(x, positions=edges), definition(x, rope.spec, edges))
    for edge in edges.tolist():
        exactly(
            rope(x[:, :, :2], offset=edge),
            definition(x[:, :, :2], rope.spec, torch.arange(2) + edge),
        )


def test_item_29_longrope_switches_after_the_last_trained_token():
    """A sequence of original_length tokens has the short factors, one of a token more the long ones."""
    spec = sample_spec("longrope")  # trained with 8
    short, long = (
        1 / torch.tensor(getattr(spec.scaling, f), dtype=torch.float64)
        for f in ("short_factor", "long_factor")
    )
    omega = 10_000.0 ** (-torch.arange(5, dtype=torch.float64) / 5)
    x = x_of(1, 1, 9, HEAD_DIM, dtype=torch.float64)
    size = float(tensors(spec, 8).magnitude)
    for tokens, factor in ((7, short), (8, short), (9, long)):
        fixed = spec.with_(
            scaling=frequencies.Given(radians=tuple((omega * factor).tolist()), magnitude=size)
        )
        exactly(
            rw.Rope(spec)(x[:, :, :tokens]),
            definition(x[:, :, :tokens], fixed, torch.arange(tokens)),
            1e-12,
        )


@FOLLOWS_LENGTH
def test_item_30_w17_keys_cached_before_the_limit_can_be_moved(name):
    """When decoding passes the trained length, the cached keys, moved to the new length, equal
    those of one forward pass over all tokens.
    """
    rope, k = rw.Rope(sample_spec(name)), x_of(1, H, 12, HEAD_DIM, dtype=torch.float64)
    full = rope.rotate(k, key=True)
    cached = rope.rotate(k[:, :, :8], key=True)
    assert float((cached - full[:, :, :8]).abs().max()) > 1e-3
    early = torch.arange(8)
    moved = rope.rerotate(cached, early, early, from_length=8, to_length=12, match_magnitude=True)
    assert_close(moved, full[:, :, :8], rtol=0, atol=1e-12)
    at_once = rope.rotate(k[:, :, :8], key=True, length=12)
    assert_close(at_once, full[:, :, :8], rtol=0, atol=1e-12)


def test_item_31_the_magnitude_is_on_the_pairs_alone_in_every_layout():
    """YaRN's 0.1 ln(factor) + 1, on the pairs and on nothing else, in both layouts."""
    for layout in ("half", "interleaved"):
        x = x_of(dtype=torch.float64)
        y = rw.Rope(sample_spec("yarn", layout=layout))(x)
        size = 0.1 * torch.tensor(4.0, dtype=torch.float64).log() + 1
        assert_close(
            y[..., 2:12].norm(dim=-1), x[..., 2:12].norm(dim=-1) * size, rtol=1e-12, atol=0
        )
        assert torch.equal(y[..., 12:], x[..., 12:])


def test_item_32_llama3_with_equal_bands_is_finite_and_follows_its_formula():
    spec = sample_spec(
        scaling=frequencies.Llama3(
            factor=8.0, low_freq_factor=2.0, high_freq_factor=2.0, original_length=64
        )
    )
    x = x_of()
    found = rw.Rope(spec)(x)
    assert bool(found.isfinite().all())
    wavelengths = 2 * torch.pi * 10_000.0 ** (torch.arange(5, dtype=torch.float64) / 5)
    radians = 2 * torch.pi / wavelengths / torch.where(wavelengths > 32, 8.0, 1.0)
    exactly(
        found,
        definition(
            x,
            spec.with_(scaling=frequencies.Given(radians=tuple(radians.tolist()))),
            torch.arange(S),
        ),
    )


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_item_33_partial_rotary_pairs_and_counts_within_the_slice(layout):
    spec = rw.RopeSpec(16, rotary_dim=6, layout=layout)
    x = x_of(1, 1, 2, 16, dtype=torch.float64)
    y = rw.Rope(spec)(x)[0, 0, 1]
    for i in range(3):
        first, second = (i, i + 3) if layout == "half" else (2 * i, 2 * i + 1)
        angle = torch.tensor(10_000.0 ** (-2 * i / 6), dtype=torch.float64)
        a, b = x[0, 0, 1, first], x[0, 0, 1, second]
        exactly(y[first], a * angle.cos() - b * angle.sin(), 1e-14)
        exactly(y[second], a * angle.sin() + b * angle.cos(), 1e-14)
    assert torch.equal(y[6:], x[0, 0, 1, 6:])


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("order", ["chunked", "interleaved", "ernie"])
def test_item_36_every_pair_rotates_by_its_own_axis_alone(order, layout):
    """If the position changes on one axis, only the pairs of that axis rotate."""
    spec = sample_spec(axis=order, layout=layout)
    x = x_of(1, 1, 1, HEAD_DIM, dtype=torch.float64)
    for axis in range(3):
        positions = torch.zeros(3, 1, 1, dtype=torch.int64)
        positions[axis] = 5
        moved = ~torch.isclose(rw.Rope(spec)(x, positions=positions), x, rtol=0, atol=1e-9)[
            0, 0, 0, 2:12
        ]
        pairs = moved.view(2, 5).T if layout == "half" else moved.view(5, 2)
        assert pairs.any(-1).tolist() == [a == axis for a in spec.axis_of_pair]
    # positions [3, S] are read as three rows, not as three axes
    assert_refused(
        "positions", lambda: rw.Rope(spec)(x_of(), positions=torch.zeros(3, S, dtype=torch.int64))
    )


@pytest.mark.parametrize("head_dim", [1, 3, 63, 0, -2])
def test_item_37_odd_head_dim_is_refused_when_built(head_dim):
    assert_refused("head_dim", lambda: rw.RopeSpec(head_dim))


@pytest.mark.parametrize("name", rw.frequencies.SCALINGS)
def test_item_38_w18_left_padding_and_eviction_change_no_bit(name):
    """A padded row with its own positions rotates as the row without padding; the tokens that a
    cache kept rotate as in the whole row.
    """
    rope, x = rw.Rope(sample_spec(name)), x_of(1, H, S, HEAD_DIM)
    padded = torch.cat((x_of(1, H, 4, HEAD_DIM), x), 2)
    positions = torch.cat((torch.zeros(4, dtype=torch.int64), torch.arange(S)))
    assert torch.equal(rope(padded, positions=positions)[:, :, 4:], rope(x))
    # tokens 2 and 3 were evicted; the last token keeps position 6
    length = S if rope.spec.needs_length else None
    kept = torch.tensor([0, 1, 4, 5, 6])
    assert torch.equal(
        rope(x[:, :, kept], positions=kept, length=length), rope(x, length=length)[:, :, kept]
    )


def test_item_39_no_call_writes_to_the_module():
    rope = rw.Rope(sample_spec("dynamic"))
    before = dict(vars(rope))
    for length in (3, 40, 5):
        rope(x_of(1, H, length, HEAD_DIM))
    assert vars(rope) == before


def test_item_40_a_huge_head_is_refused_before_memory_is_taken():
    assert_refused("head_dim", lambda: rw.RopeSpec(2**40))
