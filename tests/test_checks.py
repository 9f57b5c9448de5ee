"""The checks of public calls: wrong tensors, positions and lengths are refused, and the message
says why.
"""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import ropewalk as rw
from door import as_users_call, assert_refused
from helpers import HEAD_DIM, definition, sample_spec
from ropewalk import axes, rotation
from ropewalk import checks as tokens

B, H, S = 2, 3, 7


def x_of(*shape, **about):
    return torch.randn(*(shape or (B, H, S, HEAD_DIM)), **about)


def rope_of(name="default", axis="one"):
    return rw.Rope(sample_spec(name, axis))


def zeros(*shape, dtype=torch.int64, **about):
    return torch.zeros(shape, dtype=dtype, **about)


def call(*xs, name="default", axis="one", **where):
    """Return a function that calls a module with `xs`, by default one valid tensor."""
    return lambda: rope_of(name, axis)(*(xs or (x_of(),)), **where)


def jagged(x):
    return torch.nested.nested_tensor(list(x), layout=torch.jagged)


def rotate_it(cos, sin=None, layout="half", **where):
    return rotation.rotate_by(x_of(), cos, cos if sin is None else sin, layout=layout, **where)


def apply(table, **where):
    return rw.apply_rotary_pos_emb(x_of(), x_of(), table, table, **where)


def rotate_by_abacus(x):
    return rotation.rotate(x, sample_spec(), backend="abacus")


MEMORY = x_of()
REAL = rw.Rope(rw.RopeSpec(10, axes=axes.normalised(3, 2)))
MIXED = rw.Rope(rw.RopeSpec(8, axes=axes.MixedAxes(num_heads=2, pairs=4)))

#: what is wrong -> (field, a part of the rule, the call)
REFUSED = {
    # x
    "an integer x": (
        "x",
        "float16, bfloat16, float32 or float64",
        call(torch.zeros(B, H, S, HEAD_DIM, dtype=torch.int64)),
    ),
    "a sparse x": (
        "x",
        "must be a dense tensor.*sparse_coo",
        call(torch.zeros(B, H, S, HEAD_DIM).to_sparse()),
    ),
    "a nested x": ("x", "must be a dense.*nested", lambda: rope_of()(jagged(x_of()))),
    "a complex x": ("x", "float16, bfloat16", call(x_of(dtype=torch.complex64))),
    "a float8 x": ("x", "float16, bfloat16", call(x_of().to(torch.float8_e4m3fn))),
    "x is not a tensor": ("x", "tensor", call([[1.0]])),
    "a vector": ("x", r"\[tokens, dimensions\]", call(x_of(HEAD_DIM))),
    "another head_dim": ("x", "head_dim = 14", call(x_of(B, H, S, 16))),
    "an odd head_dim": ("x", "head_dim = 14", call(x_of(B, H, S, 13))),
    "another head_dim of q": ("q", "head_dim = 14", call(x_of(B, H, S, 16), x_of())),
    "another head_dim of moved keys": (
        "k",
        "head_dim = 14",
        lambda: rope_of().rerotate(x_of(B, H, S, 16), zeros(S), zeros(S)),
    ),
    # seq_dim
    "tokens on the last axis": ("seq_dim", "before the last", call(seq_dim=-1)),
    "tokens on the last axis, counted": ("seq_dim", "before the last", call(seq_dim=3)),
    "tokens past the axes": ("seq_dim", "-4 to -2, or 0 to 2", call(seq_dim=-5)),
    "tokens on a half axis": ("seq_dim", "an axis of x", call(seq_dim=-2.0)),
    "tokens on axis true": ("seq_dim", "an axis of x", call(seq_dim=True)),
    # k
    "k of other tokens": ("k", "batch, tokens", call(x_of(), x_of(B, H, S + 1, HEAD_DIM))),
    "k of another batch": ("k", "batch, tokens", call(x_of(), x_of(1, H, S, HEAD_DIM))),
    "k with fewer axes": ("k", "batch, tokens", call(x_of(), x_of(B, S, HEAD_DIM))),
    "k with fewer axes, tokens first": (
        "k",
        "batch, tokens",
        call(x_of(S, 1, 1, HEAD_DIM), x_of(S, 1, HEAD_DIM), seq_dim=0),
    ),
    "k of another head_dim": ("k", "head_dim = 14", call(x_of(), x_of(B, H, S, 16))),
    "k on another device": ("k", "device", call(x_of(), x_of(device="meta"))),
    "an integer k": (
        "k",
        "float16",
        call(x_of(), torch.zeros(B, H, S, HEAD_DIM, dtype=torch.int32)),
    ),
    # positions
    "positions in bool": (
        "positions",
        "must be integers, uint8 or int8 to int64",
        call(positions=zeros(S, dtype=torch.bool)),
    ),
    "positions in bf16": (
        "positions",
        "a float cannot hold",
        call(positions=zeros(S, dtype=torch.bfloat16)),
    ),
    "positions in float32": (
        "positions",
        "must be integers",
        call(positions=zeros(S, dtype=torch.float32)),
    ),
    "positions as a list": ("positions", "must be a tensor", call(positions=list(range(S)))),
    "one position a row": ("positions", r"\[7\], \[2, 7\]", call(positions=zeros(B, 1))),
    "one position": ("positions", r"\[7\], \[2, 7\]", call(positions=zeros(1))),
    "too many positions": ("positions", r"\[7\], \[2, 7\]", call(positions=zeros(S + 1))),
    "positions of another batch": ("positions", r"\[2, 7\]", call(positions=zeros(3, S))),
    "tokens before rows": ("positions", r"\[2, 7\]", call(positions=zeros(S, B))),
    "scalar positions": ("positions", r"\[7\]", call(positions=zeros())),
    "positions with four axes": ("positions", r"\[7\]", call(positions=zeros(1, 1, 1, S))),
    "three axes for one": ("positions", "1 axes", call(positions=zeros(3, B, S))),
    "two axes for three": ("positions", "3 axes", call(axis="chunked", positions=zeros(2, B, S))),
    "three axes, short": (
        "positions",
        r"\[3, 2, 7\]",
        call(axis="chunked", positions=zeros(3, B, 1)),
    ),
    "positions on another device": (
        "positions",
        "device cpu",
        call(positions=zeros(S, device="meta")),
    ),
    "integers for a table": (
        "dtype",
        "float32 or float64",
        lambda: rope_of().cos_sin(zeros(S), torch.int64),
    ),
    "scalar positions for a table": (
        "positions",
        r"\[tokens\]",
        lambda: rope_of().cos_sin(zeros()),
    ),
    "listed positions for a table": (
        "positions",
        "must be a tensor",
        lambda: rope_of().cos_sin([1, 2]),
    ),
    "float positions for a table": (
        "positions",
        "must be integers",
        lambda: rope_of().cos_sin(zeros(S, dtype=torch.float16)),
    ),
    # offset
    "offset and positions": ("offset", "add it to them", call(positions=zeros(S), offset=2)),
    "offsets and positions": (
        "offset",
        "add it to them",
        call(positions=zeros(S), offset=torch.tensor([2, 2])),
    ),
    "a real offset": ("offset", "must be an integer", call(offset=2.0)),
    "offset true": ("offset", "must be an integer", call(offset=True)),
    "real offsets": ("offset", r"integers \[2\]", call(offset=torch.tensor([2.0, 2.0]))),
    "offsets of another batch": ("offset", r"integers \[2\]", call(offset=torch.tensor([1, 2, 3]))),
    "offsets a token": ("offset", r"integers \[2\]", call(offset=zeros(B, S))),
    "offsets on another device": ("offset", "device cpu", call(offset=zeros(B, device="meta"))),
    # length
    "a negative length": ("length", "integer from 0", call(name="dynamic", length=-1)),
    "a real length": ("length", "must be an integer", call(name="dynamic", length=8.0)),
    "length true": ("length", "must be an integer", call(name="longrope", length=True)),
    "real lengths": (
        "length",
        r"integers \[2\]",
        call(name="dynamic", length=torch.tensor([8.0, 9.0])),
    ),
    "lengths of another batch": (
        "length",
        r"integers \[2\]",
        call(name="dynamic", length=torch.tensor([8, 9, 9])),
    ),
    "lengths on another device": (
        "length",
        "device cpu",
        call(name="dynamic", length=zeros(B, device="meta")),
    ),
    # in place
    "in place on an expanded x": (
        "inplace",
        "contiguous",
        call(x_of(B, 1, S, HEAD_DIM).expand(B, H, S, HEAD_DIM), inplace=True),
    ),
    "in place on windows": (
        "inplace",
        "contiguous",
        call(x_of(99).unfold(0, HEAD_DIM, 2)[None, None, :S], inplace=True),
    ),
    "q is k in place": ("inplace", "rotated twice", call(MEMORY, MEMORY, inplace=True)),
    "k is a view of q in place": (
        "inplace",
        "rotated twice",
        call(MEMORY, MEMORY[:, :1], inplace=True),
    ),
    "q is k in place, learned": (
        "inplace",
        "rotated twice",
        call(MEMORY, MEMORY, name="learnable", inplace=True),
    ),
    "q and k overlap in place": (
        "inplace",
        "rotated twice",
        call(MEMORY[:, :, :4], MEMORY[:, :, 3:], inplace=True),
    ),
    # real coordinates and mixed axes
    "no coordinates to count": ("positions", "real coordinates", lambda: REAL(x_of(B, H, S, 10))),
    "half coordinates": (
        "positions",
        "float32/64",
        lambda: REAL(x_of(B, H, S, 10), positions=zeros(2, B, S, dtype=torch.float16)),
    ),
    "mixed axes of other heads": (
        "x",
        "the 2 heads",
        lambda: MIXED(x_of(B, 3, S, 8), positions=zeros(S)),
    ),
    "mixed axes without heads": (
        "x",
        "the 2 heads",
        lambda: MIXED(x_of(B, S, 8), positions=zeros(S)),
    ),
    "mixed axes of fewer keys": (
        "k",
        "the 2 heads",
        lambda: MIXED(x_of(B, 2, S, 8), x_of(B, 1, S, 8), positions=zeros(S)),
    ),
    "mixed axes without a module": (
        "spec",
        r"Rope\(spec\)",
        lambda: rotation.rotate(x_of(B, 2, S, 8), MIXED.spec, zeros(S)),
    ),
    # tables of the caller
    "tables of other tokens": ("cos", "7 tokens", lambda: rotate_it(torch.ones(S + 1, 5))),
    "tables of other rows": ("cos", "2 rows", lambda: rotate_it(torch.ones(3, S, 5))),
    "tables of other heads": ("cos", "3 heads", lambda: rotate_it(torch.ones(B, 2, S, 5))),
    "integer tables": (
        "cos",
        "float table",
        lambda: rotate_it(torch.ones(S, 5, dtype=torch.int64)),
    ),
    "flat tables": ("cos", "float table", lambda: rotate_it(torch.ones(5))),
    "tables without pairs": ("cos", "at least one pair", lambda: rotate_it(torch.ones(S, 0))),
    "wide tables": ("x", "at least 16", lambda: rotate_it(torch.ones(S, 8))),
    "tables that start late": ("x", "at least 15", lambda: rotate_it(torch.ones(S, 5), start=5)),
    "tables that start before": ("start", "from 0", lambda: rotate_it(torch.ones(S, 5), start=-1)),
    "sin unlike cos": (
        "sin",
        "shape of cos",
        lambda: rotate_it(torch.ones(S, 5), torch.ones(S, 4)),
    ),
    "tables on another device": (
        "cos",
        "device cpu",
        lambda: rotate_it(torch.ones(S, 5, device="meta")),
    ),
    "an unknown layout": (
        "layout",
        "half, interleaved",
        lambda: rotate_it(torch.ones(S, 5), layout="neox"),
    ),
    "an empty layout out": (
        "layout_out",
        "half, interleaved",
        lambda: rotate_it(torch.ones(S, 5), layout_out=""),
    ),
    "an unknown layout out": (
        "layout_out",
        "half, interleaved",
        lambda: rotate_it(torch.ones(S, 5), layout_out="neox"),
    ),
    "odd HF tables": ("cos", "even R", lambda: apply(torch.ones(S, 5))),
    "flat HF tables": ("cos", "even R", lambda: apply(torch.ones(6))),
    "an unknown HF layout": ("layout", "half", lambda: apply(torch.ones(S, 6), layout="neox")),
    "HF tables with heads before the rows": (
        "unsqueeze_dim",
        "1 if .* 2 if",
        lambda: apply(torch.ones(B, S, 6), unsqueeze_dim=0),
    ),
    "HF tables with heads in the dims": (
        "unsqueeze_dim",
        "0 if .* 1 if",
        lambda: apply(torch.ones(S, 6), unsqueeze_dim=2),
    ),
    # the module
    "a dict for a spec": ("spec", "from_hf", lambda: rw.Rope({"head_dim": 8})),
    "an unknown backend under vmap": (
        "backend",
        "eager",
        lambda: torch.vmap(rotate_by_abacus)(x_of()),
    ),
    "an unknown backend with tables to train": (
        "backend",
        "eager",
        lambda: rotate_it(torch.ones(S, 5, requires_grad=True), backend="abacus"),
    ),
    "an unknown backend": ("backend", "eager", lambda: rw.Rope(sample_spec(), backend="abacus")),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_a_wrong_argument_is_refused_with_field_rule_and_value(wrong):
    field, rule, call = REFUSED[wrong]
    error = assert_refused(field, call)
    assert error.field == field
    with as_users_call(), pytest.raises(rw.RopeError, match=rule):
        call()
    assert f"; got {error.value!r}"[:40] in str(error)


def test_errors_survive_a_process_boundary():
    error = assert_refused("x", lambda: rope_of()(x_of(HEAD_DIM)))
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(again), again.field, str(again)) == (type(error), error.field, str(error))


@pytest.mark.parametrize("memory", ["whole", "slice"])
@pytest.mark.parametrize("apart", [0, 1, 13, 14, 41, 42, 43, 97, 98, 99, 293, 294, 295, 400])
def test_shared_memory_is_found_exactly(apart, memory):
    """q and k lie in one buffer at every kind of distance; the expected answer compares the numbers
    of the elements that each of them holds.
    """
    numbers = torch.arange(2000)
    strides = (294, 98, 14, 1) if memory == "whole" else (400, 42, 126, 1)
    at = lambda start, heads: numbers.as_strided((2, heads, 3, 14), strides, start)
    shared = bool(set(at(0, 2).flatten().tolist()) & set(at(apart, 1).flatten().tolist()))
    floats = torch.randn(2000)
    q, k = (
        floats.as_strided((2, 2, 3, 14), strides),
        floats.as_strided((2, 1, 3, 14), strides, apart),
    )
    call = lambda: rope_of()(q, k, inplace=True)
    if shared:
        assert_refused("inplace", call)
    else:
        before = k.clone()
        assert torch.equal(call()[1], rope_of().rotate(before, key=True))


def test_a_rotation_in_place_of_a_view_changes_no_element_outside_its_rotated_slice():
    memory = torch.randn(4, H, 2 * S, 2 * HEAD_DIM)
    rest = memory.clone()
    rope_of()(memory[1:3, :, 2 : 2 + S, 5 : 5 + HEAD_DIM], inplace=True)
    touched = memory != rest
    allowed = torch.zeros_like(touched)
    allowed[1:3, :, 2 : 2 + S, 5 + 2 : 5 + 12] = True
    assert bool(touched.any())
    assert not bool((touched & ~allowed).any())


def test_one_shared_element_is_enough_to_refuse_in_place():
    memory, rope = torch.randn(64), rw.Rope(rw.RopeSpec(14))
    q, k = (memory.as_strided((1, 1, 1, 14), (14, 14, 14, 1), start) for start in (0, 13))
    with pytest.raises(rw.RopeError, match="inplace"):
        rope(q, k, inplace=True)
    # k begins right after the end of q
    rope(q, memory.as_strided((1, 1, 1, 14), (14, 14, 14, 1), 14), inplace=True)


def test_views_of_unlike_strides_are_found_to_share_an_element():
    """q holds the elements 0, 2, 4 of one memory and k 1, 4, 7: they share element 4. Then q holds
    0, 2 and k 3, 7: they share none.
    """
    memory = torch.zeros(9)
    q = memory.as_strided((3,), (2,), 0)
    assert tokens._share_elements(q, memory.as_strided((3,), (3,), 1))
    assert not tokens._share_elements(
        memory.as_strided((2,), (2,), 0), memory.as_strided((2,), (4,), 3)
    )


def test_elements_of_two_sizes_share_memory_where_their_bytes_do():
    """k holds bfloat16 in the bytes 20 to 36; q holds 5 float32, 20 bytes, or 6."""
    memory = torch.zeros(9)
    k = memory.view(torch.bfloat16).as_strided((8,), (1,), 10)
    for count, shared in ((5, False), (6, True)):
        q = memory.as_strided((count,), (1,), 0)
        assert tokens._share_elements(q, k) == tokens._share_elements(k, q) == shared


def test_the_error_for_two_axes_states_the_shape_of_positions():
    spec = rw.RopeSpec(8, axes=rw.axes.axial(2, 2))
    with pytest.raises(rw.RopeError, match=r"or \[2, 1, 3\]"):
        rw.Rope(spec).rotate(torch.zeros(1, 2, 3, 8), torch.zeros(5, dtype=torch.int64))


def test_shared_elements_are_those_that_have_one_address():
    """Random views, some with axes of one element, whose stride does not matter. The expected answer
    compares the addresses of all elements.
    """
    dice, memory = random.Random(0), torch.arange(400)
    seen = {True: 0, False: 0}
    while min(seen.values()) < 150:
        q, k = (
            memory.as_strided(
                [dice.randint(1, 4) for _ in range(3)],
                [dice.choice([0, 1, 2, 3, 7, 20]) for _ in range(3)],
                dice.randint(0, 40),
            )
            for _ in "qk"
        )
        if any(x.unique().numel() < x.numel() for x in (q, k)):
            continue  # a tensor that overlaps itself is refused by another check
        shared = bool(set(q.flatten().tolist()) & set(k.flatten().tolist()))
        assert tokens._share_elements(q, k) == shared
        seen[shared] += 1


def test_the_error_for_one_axis_proposes_no_shape_with_axes():
    one, many = (
        str(assert_refused("positions", call(axis=axis, positions=zeros(9))))
        for axis in ("one", "chunked")
    )
    assert "must be [7], [2, 7] for these tokens" in one
    assert "must be [7], [2, 7] or [3, 2, 7] for these tokens" in many


def test_the_length_of_a_row_is_one_past_its_largest_position_on_any_axis():
    rope, x = rope_of("dynamic", "chunked"), x_of(dtype=torch.float64)
    positions = torch.zeros(3, B, S, dtype=torch.int64)
    positions[1, 0, 2], positions[2, 1, 5] = 40, 90
    expected = definition(x, rope.spec, positions, length=torch.tensor([41, 91]))
    torch.testing.assert_close(rope(x, positions=positions), expected, rtol=0, atol=1e-12)


def test_an_offset_may_be_an_integer_of_numpy():
    """Such as an element of an array of lengths."""
    x, spec = x_of(dtype=torch.float64), sample_spec()
    with as_users_call():
        found = rw.Rope(spec)(x, offset=np.int64(3))
        with pytest.raises(rw.RopeError, match="add it to them"):
            rw.Rope(spec)(x, positions=zeros(S), offset=np.int64(3))
    assert_close(found, definition(x, spec, torch.arange(3, 3 + S)), rtol=0, atol=1e-11)
