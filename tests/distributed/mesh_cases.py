"""Rotation on a device mesh against one complex product, and attention under FSDP2; run on four
ranks.
"""

from functools import partial

import torch
import torch.distributed as dist
from ranks import each
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import ropewalk as rw
from ropewalk.attention import Attention
from ropewalk.distributed.placements import register_rules
from ropewalk.encodings import Sizes
from ropewalk.encodings.rotary import Rotary

BATCH, HEADS, SEQ, HEAD_DIM = 4, 8, 12, 10
FAR = 10_000_019
#: (shape, seq_dim, batch axis, head axis, seq axis)
SHAPES = {
    "BHSD": ((BATCH, HEADS, SEQ, HEAD_DIM), -2, 0, 1, 2),
    "BSHD": ((BATCH, SEQ, HEADS, HEAD_DIM), -3, 0, 2, 1),
}
AXES = ("rows", "heads", "tokens", "head_dim", "nothing")


def rotated(x, positions, seq_dim=-2, sign=1):
    """Return x rotated as a complex product; x is [B, H, S, D] or [B, S, H, D], positions [S] or
    [B, S].
    """
    half = x.shape[-1] // 2
    radians = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = positions.double()[..., None] * radians * sign
    if seq_dim == -3:
        angles = angles.unsqueeze(-2)
    elif positions.ndim == 2:
        angles = angles.unsqueeze(1)
    z = torch.complex(x[..., :half].double(), x[..., half:].double()) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.cat((z.real, z.imag), dim=-1)


def distance(a, b):
    return float((a.double() - b).abs().max())


def positions_of(kind):
    return {
        "counted": None,
        "shared": torch.arange(SEQ) + 5,
        "rows": torch.randint(0, 99, (BATCH, SEQ)),
    }[kind]


def rotate_case(mesh, order, axis, kind):
    """Return [error of the result and its gradient, whether the sharding of x stayed as it was]."""
    shape, seq_dim, batch, head, seq = SHAPES[order]
    placement = {
        "rows": Shard(batch),
        "heads": Shard(head),
        "tokens": Shard(seq),
        "head_dim": Shard(3),
        "nothing": Replicate(),
    }
    whole, towards, at = torch.randn(shape), torch.randn(shape), positions_of(kind)
    x = distribute_tensor(whole, mesh, [placement[axis]]).requires_grad_()
    where = None if at is None else distribute_tensor(at, mesh, [Replicate()])
    out = rw.Rope(rw.RopeSpec(head_dim=HEAD_DIM)).rotate(x, where, seq_dim=seq_dim)
    out.backward(distribute_tensor(towards, mesh, out.placements))
    at = torch.arange(SEQ) if at is None else at
    wrong = max(
        distance(out.full_tensor().detach(), rotated(whole, at, seq_dim)),
        distance(x.grad.full_tensor(), rotated(towards, at, seq_dim, -1)),
    )
    return [wrong, list(out.placements) == [placement[axis]]]


def qk_case(mesh, kv_heads):
    """Rotate q sharded by heads, and k too if it has enough heads; return [error, whether the
    shardings stayed].
    """
    q, k = torch.randn(BATCH, HEADS, SEQ, HEAD_DIM), torch.randn(BATCH, kv_heads, SEQ, HEAD_DIM)
    k_at = Shard(1) if kv_heads % mesh.size() == 0 else Replicate()
    parts = distribute_tensor(q, mesh, [Shard(1)]), distribute_tensor(k, mesh, [k_at])
    got = rw.Rope(rw.RopeSpec(head_dim=HEAD_DIM))(*parts)
    wrong = max(
        distance(a.full_tensor(), rotated(b, torch.arange(SEQ)))
        for a, b in zip(got, (q, k), strict=True)
    )
    return [wrong, [*got[0].placements, *got[1].placements] == [Shard(1), k_at]]


def inplace_case(mesh, axis):
    """Rotate in place, which is refused if the sharding would have to change; return [error,
    whether it was right].
    """
    whole = torch.randn(BATCH, HEADS, SEQ, HEAD_DIM)
    x = distribute_tensor(whole, mesh, [Shard(axis)])
    try:
        rw.Rope(rw.RopeSpec(head_dim=HEAD_DIM))(x, inplace=True)
    except RuntimeError as refused:
        return [distance(x.full_tensor(), whole), "out-of-place" not in str(refused)]
    return [distance(x.full_tensor(), rotated(whole, torch.arange(SEQ))), True]


def both_axes_case():
    """Rotate with rows over one axis of the mesh and heads over the other; return [error, whether
    the sharding stayed].
    """
    mesh = init_device_mesh("cpu", (2, 2))
    whole, at = torch.randn(BATCH, HEADS, SEQ, HEAD_DIM), positions_of("rows")
    x, where = (
        distribute_tensor(whole, mesh, [Shard(0), Shard(1)]),
        distribute_tensor(at, mesh, [Shard(0), Replicate()]),
    )
    out = rw.Rope(rw.RopeSpec(head_dim=HEAD_DIM)).rotate(x, where)
    return [
        distance(out.full_tensor(), rotated(whole, at)),
        list(out.placements) == [Shard(0), Shard(1)],
    ]


def rerotate_case(mesh, axis):
    """Rotate by tables, from some positions to others; return [error, whether the sharding stayed]."""
    whole, before, after = (
        torch.randn(BATCH, HEADS, SEQ, HEAD_DIM),
        positions_of("rows"),
        positions_of("rows"),
    )
    x = distribute_tensor(whole, mesh, [Shard(axis)])
    where = [distribute_tensor(t, mesh, [Replicate()]) for t in (before, after)]
    out = rw.Rope(rw.RopeSpec(head_dim=HEAD_DIM)).rerotate(x, *where)
    return [
        distance(out.full_tensor(), rotated(whole, after - before)),
        list(out.placements) == [Shard(axis)],
    ]


def tables_case(mesh, head_dim, strategy):
    """Return [error of cos for positions that are sharded along their tokens, whether cos is
    sharded along them too].
    """
    at = torch.randint(0, 99, (BATCH, SEQ))
    cos, _ = rw.Rope(rw.RopeSpec(head_dim=head_dim), tables=strategy).cos_sin(
        distribute_tensor(at, mesh, [Shard(1)])
    )
    half = head_dim // 2
    exact = torch.cos(
        at.double()[..., None] * 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    )
    assert cos.shape == exact.shape
    return [distance(cos.full_tensor(), exact), list(cos.placements) == [Shard(1)]]


class Watched(Rotary):
    """RoPE that records its last call."""

    def rotate(self, x, positions, **options):
        out = super().rotate(x, positions, **options)
        self.seen = x.detach(), positions, out.detach()
        return out


def fsdp_case(mesh):
    """Return [error of the rotation beyond one bfloat16 rounding, whether positions kept their
    dtype and every weight has a gradient].
    """
    layer = Attention(12, 2, head_dim=6, encoding=Watched(Sizes(2, 6, 12, 64)))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(layer, mesh=mesh, mp_policy=policy)
    positions = torch.arange(7) + FAR
    out = layer(torch.randn(2, 7, 12), positions).out
    out.float().square().sum().backward()
    x, seen, got = layer.encoding.seen
    exact = rotated(x, positions)
    # half a unit in the last place of bfloat16, and float32 arithmetic
    allowed = exact.abs() * 2**-8 + 1e-6
    whole = (
        torch.equal(seen, positions)
        and x.dtype == torch.bfloat16
        and all(p.grad is not None for p in layer.parameters())
    )
    return [float(((got.double() - exact).abs() - allowed).clamp(min=0).max()), whole]


def everything() -> dict:
    """Return {case: its result} of all cases on this mesh."""
    register_rules()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    cases = {
        f"{order}, {axis} cut, positions {kind}": partial(rotate_case, mesh, order, axis, kind)
        for order in SHAPES
        for axis in AXES
        for kind in ("counted", "shared", "rows")
    }
    cases |= {f"q and k, {heads} key heads": partial(qk_case, mesh, heads) for heads in (8, 2)}
    cases |= {
        f"rerotate, axis {axis} cut": partial(rerotate_case, mesh, axis) for axis in (0, 1, 2)
    }
    cases |= {f"in place, axis {axis} cut": partial(inplace_case, mesh, axis) for axis in range(4)}
    # first a named strategy: after an equal call without one, DTensor would take the decision that
    # it cached
    tables = [(10, "full"), (10, "auto"), (16, "auto"), (16, "two-level"), (10, "none")]
    cases |= {
        f"tables of {dims} dims, {strategy}": partial(tables_case, mesh, dims, strategy)
        for dims, strategy in tables
    }
    cases["two axes"] = both_axes_case
    cases["fsdp"] = partial(fsdp_case, mesh)
    return each(cases)
