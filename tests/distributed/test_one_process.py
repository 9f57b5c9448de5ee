"""Parts of sequence and tensor parallelism that need no second process: sharding rules, runs of
tokens, torch's engine.

What many ranks compute together is in test_ring.py.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math

import pytest
import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed.tensor import Replicate, Shard

import ropewalk as rw
from ropewalk import axes, frequencies
from ropewalk.attention import linear_attention
from ropewalk.distributed import context_parallel, placements
from ropewalk.distributed.ring import ring_attention
from ropewalk.distributed.ring_linear import ring_linear_attention
from ropewalk.distributed.sharding import Ring
from ropewalk.distributed.tiles import Masking, spans
from ropewalk.encodings import Encoding, Sizes
from ropewalk.errors import RopeError

BATCH, HEADS, SEQ, HEAD_DIM = 4, 2, 6, 8
PARTS = 2
PLAIN = rw.RopeSpec(HEAD_DIM)
DYNAMIC = rw.RopeSpec(HEAD_DIM, scaling=frequencies.Dynamic(2.0, original_length=4))
PLANE = rw.RopeSpec(HEAD_DIM, axes=axes.axial(2, 2))


@pytest.fixture
def alone():
    """A group of one rank, in this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def some_positions(*shape):
    return torch.randint(0, 50, shape)


def lengths(*shape):
    return torch.randint(5, 40, shape)


#: name -> (spec, positions, length)
ANGLES = {
    "counted": (PLAIN, None, None),
    "shared positions": (PLAIN, some_positions(SEQ), None),
    "positions of rows": (PLAIN, some_positions(BATCH, SEQ), None),
    "one row of positions": (PLAIN, some_positions(1, SEQ), None),
    "two axes": (PLANE, some_positions(2, BATCH, SEQ), None),
    "two axes, one row": (PLANE, some_positions(2, 1, SEQ), None),
    "one length": (DYNAMIC, some_positions(BATCH, SEQ), lengths()),
    "lengths of rows": (DYNAMIC, some_positions(BATCH, SEQ), lengths(BATCH)),
}
#: axes of a tensor: shape, seq_dim, and the numbers of its batch, head and token axes
SHAPES = {
    "BHSD": ((BATCH, HEADS, SEQ, HEAD_DIM), -2, {"batch": 0, "heads": 1, "tokens": 2}),
    "BSHD": ((BATCH, SEQ, HEADS, HEAD_DIM), -3, {"batch": 0, "heads": 2, "tokens": 1}),
}
#: axes of tables before their pairs
TABLES = [(SEQ,), (1, SEQ), (BATCH, SEQ), (BATCH, 1, SEQ), (BATCH, HEADS, SEQ), (1, HEADS, SEQ)]


def parts_of(argument, placement):
    """Return the part of an argument that each rank holds."""
    return (
        argument.chunk(PARTS, placement.dim) if isinstance(placement, Shard) else [argument] * PARTS
    )


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def assert_rules_hold(op, rules, arguments, axes_of_x):
    """Check that a rule has a placement for every argument and result, and that what ranks compute
    from their parts is their part of the whole.
    """
    schema = op.default._schema
    whole = as_tuple(op(*arguments))
    for outputs, inputs in rules:
        assert (len(outputs), len(inputs)) == (len(schema.returns), len(schema.arguments))
        tensors = [isinstance(argument, torch.Tensor) for argument in arguments]
        assert [placement is not None for placement in inputs] == tensors
        held = zip(*map(parts_of, arguments, inputs), strict=True)
        found = [as_tuple(op(*each)) for each in held]
        for i, (expected, placement) in enumerate(zip(whole, outputs, strict=True)):
            for part, result in zip(parts_of(expected, placement), found, strict=True):
                torch.testing.assert_close(result[i], part)
    sharded = [inputs[0].dim if isinstance(inputs[0], Shard) else None for _, inputs in rules]
    assert set(sharded) == {None, *axes_of_x}


@pytest.mark.parametrize("order", SHAPES)
@pytest.mark.parametrize("angles", ANGLES)
def test_the_rules_of_rotate_give_parts_of_the_rotated_tensor(angles, order):
    """Tokens may be sharded only if positions are given: counted ones would start at 0 on every
    rank.
    """
    (spec, positions, length), (shape, seq_dim, numbers) = ANGLES[angles], SHAPES[order]
    cut = {number for name, number in numbers.items() if name != "tokens" or positions is not None}
    q, k = torch.randn(shape), torch.randn(shape)
    rest = (positions, 0, length, spec.fingerprint, "auto", seq_dim, 1, 1)
    one = (q, *rest, True)
    assert_rules_hold(torch.ops.ropewalk.rotate, placements._rotate_rules(*one), one, cut)
    assert placements._rotate_inplace_rules(*one) == [
        ([], inputs) for _, inputs in placements._rotate_rules(*one)
    ]
    both = (q, k, *rest)
    rules = placements._rotate_qk_rules(*both)
    assert_rules_hold(torch.ops.ropewalk.rotate_qk, rules, both, cut)
    # fewer heads of k than ranks
    assert [Shard(numbers["heads"]), Replicate()] in [inputs[:2] for _, inputs in rules]


@pytest.mark.parametrize("order", SHAPES)
@pytest.mark.parametrize(
    "table",
    [(SEQ,), (1, SEQ), (BATCH, SEQ), (BATCH, 1, SEQ), (BATCH, HEADS, SEQ), (1, HEADS, SEQ)],
    ids=str,
)
def test_the_rules_of_rotate_by_table_give_parts_of_the_rotated_tensor(table, order):
    shape, seq_dim, numbers = SHAPES[order]
    angles = torch.randn(*table, HEAD_DIM // 2)
    arguments = (torch.randn(shape), angles.cos(), angles.sin(), "half", "half", 0, seq_dim)
    rules = placements._by_table_rules(*arguments)
    assert_rules_hold(torch.ops.ropewalk.rotate_by_table, rules, arguments, numbers.values())


@pytest.mark.parametrize(
    ("angles", "dims"),
    [
        ("shared positions", {0}),
        ("positions of rows", {0, 1}),
        ("one length", {1}),
        ("lengths of rows", {0, 1}),
        ("two axes", {1, 2}),
    ],
)
def test_the_rules_of_cos_sin_give_parts_of_the_tables(angles, dims):
    """One length for all rows has no rows to shard."""
    spec, positions, length = ANGLES[angles]
    arguments = (positions, length, 1, spec.fingerprint, "auto", torch.float32, False)
    assert_rules_hold(
        torch.ops.ropewalk.cos_sin, placements._cos_sin_rules(*arguments), arguments, dims
    )


@pytest.mark.parametrize(
    "map_of_heads", [axes.by_head([1, 1], 4), axes.GoldenAxes(2, 4)], ids=["by head", "golden"]
)
def test_the_rules_of_cos_sin_hold_for_tables_of_each_head(map_of_heads):
    spec, positions = rw.RopeSpec(HEAD_DIM, axes=map_of_heads), some_positions(2, BATCH, SEQ)
    positions = positions / 50 if spec.fractional else positions
    arguments = (positions, None, 1, spec.fingerprint, "auto", torch.float32, False)
    assert_rules_hold(
        torch.ops.ropewalk.cos_sin, placements._cos_sin_rules(*arguments), arguments, {1, 2}
    )


def in_runs(count):
    """The indices of 2 * count tokens in `count` runs of two, the last run first."""
    return torch.arange(2 * count).view(count, 2).flip(0).flatten()


def test_tiles_end_at_jumps_of_up_to_eight_runs():
    assert [(span.first, span.last) for span in spans(in_runs(8), 64)] == [
        (2 * run, 2 * run + 1) for run in reversed(range(8))
    ]
    assert [(span.first, span.last) for span in spans(in_runs(9), 64)] == [(0, 17)]


def test_ring_linear_attention_takes_eight_runs_of_tokens_and_refuses_nine(alone):
    rope, order = rw.Rope(PLAIN), in_runs(8)
    q, k, v = torch.randn(3, 2, HEADS, 16, HEAD_DIM, dtype=torch.float64)
    expected, state = linear_attention(q, k, v, rope)
    got, last = ring_linear_attention(*(t[:, :, order] for t in (q, k, v)), rope, order=order)
    torch.testing.assert_close(got, expected[:, :, order])
    for ours, theirs in zip(last, state, strict=True):
        torch.testing.assert_close(ours, theirs)
    longer = torch.randn(2, HEADS, 18, HEAD_DIM)
    with pytest.raises(RopeError, match="at most 8 runs of consecutive tokens"):
        ring_linear_attention(longer, longer, longer, rope, order=in_runs(9))


def test_ring_linear_attention_gives_0_where_the_denominator_is_below_a_millionth(alone):
    """relu features of 1 and 1.5e-6 in the first channel: their product is the only weight of the
    first token.
    """
    q, k, v = torch.zeros(3, 1, 1, 1, HEAD_DIM, dtype=torch.float64)
    q[..., 0], k[..., 0], v[..., 0] = 1.0, 1.5e-6, 7.0
    out, _ = ring_linear_attention(q, k, v, rw.Rope(PLAIN), phi="relu")
    assert out[..., 0].item() == pytest.approx(7.0)
    out, _ = ring_linear_attention(q, k / 2, v, rw.Rope(PLAIN), phi="relu")
    assert out[..., 0].item() == 0


class _SteepAndSpare(Encoding):
    """Subtracts steepness * distance from scores; has a parameter that its bias does not use."""

    def __init__(self) -> None:
        super().__init__(Sizes(2, 6, 12, 8))
        self.steepness, self.spare = (
            torch.nn.Parameter(torch.tensor(0.3)),
            torch.nn.Parameter(torch.ones(3)),
        )

    def bias(self, q, q_positions, k_positions):
        return -self.steepness * (q_positions[:, None] - k_positions[None, :])


def test_a_parameter_that_the_bias_does_not_use_has_no_gradient(alone):
    encoding, positions = _SteepAndSpare(), torch.arange(5)
    q, k, v = torch.randn(3, 1, 2, 5, 6, dtype=torch.float64)
    ring_attention(
        q, k, v, q_positions=positions, encoding=encoding, scale=1.0, tile=2
    ).square().sum().backward()
    assert encoding.spare.grad is None or not encoding.spare.grad.any()
    found, encoding.steepness.grad = encoding.steepness.grad, None
    scores = (q @ k.mT + encoding.bias(q, positions, positions)).masked_fill(
        torch.ones(5, 5).triu(1).bool(), -math.inf
    )
    (scores.softmax(dim=-1) @ v).square().sum().backward()
    torch.testing.assert_close(found, encoding.steepness.grad)


def test_queries_and_keys_may_have_different_positions(alone):
    """The bias reads q_positions for queries and k_positions for keys; which keys causality hides
    depends on the order of the tokens, not on positions.
    """
    encoding, q_positions, k_positions = (
        _SteepAndSpare().double(),
        torch.tensor([9, 4, 1, 7]),
        torch.tensor([0, 2, 5, 3]),
    )
    q, k, v = torch.randn(3, 1, 2, 4, 6, dtype=torch.float64)
    options = {
        "q_positions": q_positions,
        "k_positions": k_positions,
        "encoding": encoding,
        "scale": 1.0,
    }
    got = ring_attention(q, k, v, **options, tile=3)
    scores = q @ k.mT - 0.3 * (q_positions[:, None] - k_positions)
    expected = scores.masked_fill(torch.ones(4, 4).triu(1).bool(), -math.inf).softmax(dim=-1) @ v
    torch.testing.assert_close(got, expected, atol=1e-7, rtol=0)  # the steepness 0.3 is a float32


@pytest.mark.parametrize(
    "needed", [(True, True, True), (False, True, False), (False, False, False)], ids=str
)
@pytest.mark.parametrize(("kv_heads", "seq"), [(4, 5), (2, 5), (2, 2)])
def test_torchs_engine_is_causal_attention_on_one_rank(alone, monkeypatch, kv_heads, seq, needed):
    """The context manager and the mesh of torch's engine need a GPU: they are replaced here, and
    tested in cuda_cases.py.
    """
    entered = []
    monkeypatch.setattr(
        context_parallel,
        "_ring_attention_of_torch",
        lambda mesh: contextlib.nullcontext(entered.append(mesh)),
    )
    monkeypatch.setattr(device_mesh.DeviceMesh, "from_group", lambda group, device: (group, device))
    sizes = (4, kv_heads, kv_heads)
    leaves = [
        torch.randn(2, heads, seq, 6, dtype=torch.float64, requires_grad=need)
        for heads, need in zip(sizes, needed, strict=True)
    ]
    got = context_parallel.run_torch(*leaves, 0.3, Ring(None))
    q, k, v = leaves[0], *(t.repeat_interleave(4 // kv_heads, dim=1) for t in leaves[1:])
    scores = (q @ k.mT * 0.3).masked_fill(torch.ones(seq, seq, dtype=torch.bool).triu(1), -math.inf)
    expected = scores.softmax(dim=-1) @ v
    torch.testing.assert_close(got, expected)
    assert got.requires_grad == any(needed)
    with_grad = [leaf for leaf in leaves if leaf.requires_grad]
    if with_grad:
        towards = torch.randn_like(got)
        both = [torch.autograd.grad(out, with_grad, towards) for out in (got, expected)]
        torch.testing.assert_close(*both)
    assert entered == [(dist.group.WORLD, "cuda")] * (2 if with_grad else 1)


def test_torchs_context_parallel_accepts_our_placeholder_buffer(alone):
    """torch's context manager is entered and left on a CPU, where it has no attention kernels."""
    pytest.importorskip(
        "torch.distributed.tensor.experimental", reason="this torch has no context parallel"
    )
    mesh = device_mesh.DeviceMesh.from_group(dist.group.WORLD, "cpu")
    with context_parallel._ring_attention_of_torch(mesh):
        assert dist.get_world_size(mesh.get_group()) == 1


@pytest.mark.parametrize("batch", [1, 4])
def test_torchs_engine_takes_float32_if_every_head_has_keys_of_its_own(batch):
    with torch.device("meta"):
        q = torch.empty(batch, 4, 8, 6)
    cuda = type(
        "OnCuda", (), {"device": torch.device("cuda"), "dtype": q.dtype, "shape": q.shape}
    )()
    shared = type("OnCuda", (), {"shape": torch.Size((batch, 2, 8, 6))})()
    plain = Masking(bias=None, scale=1.0, causal=True, window=None)
    assert context_parallel.torch_why_not(cuda, cuda, plain, "head_tail") is None
    assert "share keys" in context_parallel.torch_why_not(cuda, shared, plain, "head_tail")


def test_a_torch_without_context_parallel_says_so(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    cuda = type("OnCuda", (), {"device": torch.device("cuda")})()
    reason = context_parallel.torch_why_not(
        cuda, cuda, Masking(bias=None, scale=1.0, causal=True, window=None), "head_tail"
    )
    assert reason == "this torch has no context parallel"
