"""The registered ops: what torch.compile, functorch and tensor subclasses see of a rotation.

Compiled graphs hold strings and tensors, so a spec travels by its key. Autograd is registered at import: an op without
it would return tensors whose gradients are silently missing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.kernels import pick
from ropewalk.kernels.turn import AnyTurn, TableTurn, Turn
from ropewalk.spec import spec_of
from ropewalk.table import cos_sin


def execute(xs: tuple[Tensor, ...], turn: AnyTurn, inplace: bool, backend: str | None = None) -> tuple[Tensor, ...]:
    """Run the kernel."""
    outs = xs if inplace else tuple(torch.empty_like(x) for x in xs)
    pick(xs, turn, backend).run(xs, outs, turn)
    return outs


_ANGLES = "Tensor? positions, SymInt offset, Tensor? length, str spec, int seq_dim, int sign, int gain"
_TABLE = "Tensor cos, Tensor sin, str layout, str layout_out, int start, int seq_dim"
torch.library.define("ropewalk::rotate", f"(Tensor x, {_ANGLES}, bool key) -> Tensor")
torch.library.define("ropewalk::rotate_", f"(Tensor(a!) x, {_ANGLES}, bool key) -> ()")
torch.library.define("ropewalk::rotate_qk", f"(Tensor q, Tensor k, {_ANGLES}) -> (Tensor, Tensor)")
torch.library.define("ropewalk::turn", f"(Tensor x, {_TABLE}) -> Tensor")
torch.library.define(
    "ropewalk::cos_sin", "(Tensor positions, Tensor? length, str spec, ScalarType dtype, int gain, bool key) -> (Tensor, Tensor)"
)


def _turn_of(positions, offset, length, spec, seq_dim, sign, gain, key=False) -> Turn:
    return Turn(spec_of(spec), seq_dim, positions, offset, length, sign, gain, key)


@torch.library.impl("ropewalk::rotate", "default")
def _rotate_op(x, positions, offset, length, spec, seq_dim, sign, gain, key):
    return execute((x,), _turn_of(positions, offset, length, spec, seq_dim, sign, gain, key), False)[0]


@torch.library.impl("ropewalk::rotate_", "default")
def _rotate_inplace_op(x, positions, offset, length, spec, seq_dim, sign, gain, key):
    execute((x,), _turn_of(positions, offset, length, spec, seq_dim, sign, gain, key), True)


@torch.library.impl("ropewalk::rotate_qk", "default")
def _rotate_qk_op(q, k, positions, offset, length, spec, seq_dim, sign, gain):
    return execute((q, k), _turn_of(positions, offset, length, spec, seq_dim, sign, gain), False)


@torch.library.impl("ropewalk::turn", "default")
def _turn_op(x, cos, sin, layout, layout_out, start, seq_dim):
    return execute((x,), TableTurn(cos, sin, seq_dim, layout, layout_out, start), False)[0]


@torch.library.impl("ropewalk::cos_sin", "default")
def _cos_sin_op(positions, length, spec, dtype, gain, key):
    cos, sin = cos_sin(spec_of(spec), positions, length=length, dtype=dtype, gain=gain, key=key)
    return cos.contiguous(), sin.contiguous()


@torch.library.register_fake("ropewalk::rotate")
def _(x, *rest):
    return torch.empty_like(x)


@torch.library.register_fake("ropewalk::rotate_")
def _(x, *rest):
    return None


@torch.library.register_fake("ropewalk::rotate_qk")
def _(q, k, *rest):
    return torch.empty_like(q), torch.empty_like(k)


@torch.library.register_fake("ropewalk::turn")
def _(x, *rest):
    return torch.empty_like(x)


@torch.library.register_fake("ropewalk::cos_sin")
def _(positions, length, spec, dtype, gain, key):
    rows = positions if positions.ndim < 3 else positions[0]
    shape = [length.shape[0], rows.shape[-1]] if length is not None and length.ndim and rows.ndim == 1 else list(rows.shape)
    table = positions.new_empty([*shape, spec_of(spec).pairs], dtype=dtype)
    return table, torch.empty_like(table)


def _keep_angles(first: int):
    """A setup_context that keeps an op's angle arguments, which start at `first`."""

    def setup(ctx, inputs, output):
        positions, offset, length, *ctx.rest = inputs[first:]
        ctx.offset = offset
        ctx.save_for_backward(positions, length)

    return setup


def _rotate_backward(ctx, grad):
    positions, length = ctx.saved_tensors
    spec, seq_dim, sign, gain, key = ctx.rest
    return torch.ops.ropewalk.rotate(grad, positions, ctx.offset, length, spec, seq_dim, -sign, gain, key), *[None] * 8


def _rotate_qk_backward(ctx, q_grad, k_grad):
    positions, length = ctx.saved_tensors
    spec, seq_dim, sign, gain = ctx.rest
    grads = torch.ops.ropewalk.rotate_qk(q_grad, k_grad, positions, ctx.offset, length, spec, seq_dim, -sign, gain)
    return *grads, *[None] * 7


def _keep_tables(ctx, inputs, output):
    _, cos, sin, *ctx.rest = inputs
    ctx.save_for_backward(cos, sin)


def _turn_backward(ctx, grad):
    cos, sin = ctx.saved_tensors
    layout, layout_out, start, seq_dim = ctx.rest
    return torch.ops.ropewalk.turn(grad, cos, -sin, layout_out, layout, start, seq_dim), *[None] * 6


torch.library.register_autograd("ropewalk::rotate", _rotate_backward, setup_context=_keep_angles(1))
torch.library.register_autograd("ropewalk::rotate_qk", _rotate_qk_backward, setup_context=_keep_angles(2))
torch.library.register_autograd("ropewalk::turn", _turn_backward, setup_context=_keep_tables)


def _vmapped(info, in_dims, x, *rest, op=torch.ops.ropewalk.rotate, seq_at=4):
    """The mapped axis becomes one more axis that shares the angles; mapped angles are taken one by one."""
    if in_dims[0] is not None and all(dim is None for dim in in_dims[1:]):
        seq_dim = rest[seq_at]
        x = x.movedim(in_dims[0], -3 if seq_dim == -2 else -2)
        rest = [*rest[:seq_at], seq_dim if seq_dim == -2 else seq_dim - 1, *rest[seq_at + 1 :]]
        return op(x, *rest), x.ndim - (3 if seq_dim == -2 else 2)
    args = (x, *rest)
    picked = ([a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True)] for i in range(info.batch_size))
    return torch.stack([op(*one) for one in picked]), 0


def _vmapped_qk(info, in_dims, q, k, *rest):
    done = []
    for x, dim, key in ((q, in_dims[0], False), (k, in_dims[1], True)):
        dims = (dim, *in_dims[2:], None)
        alone = all(d is None for d in dims)
        done.append((torch.ops.ropewalk.rotate(x, *rest, key), None) if alone else _vmapped(info, dims, x, *rest, key))
    return tuple(x for x, _ in done), tuple(dim for _, dim in done)


def _vmapped_turn(info, in_dims, *args):
    return _vmapped(info, in_dims, *args, op=torch.ops.ropewalk.turn, seq_at=5)


torch.library.register_vmap("ropewalk::rotate", _vmapped)
torch.library.register_vmap("ropewalk::rotate_qk", _vmapped_qk)
torch.library.register_vmap("ropewalk::turn", _vmapped_turn)


def through_op(xs: tuple[Tensor, ...], turn: AnyTurn, inplace: bool) -> tuple[Tensor, ...]:
    if isinstance(turn, TableTurn):
        table = (turn.cos, turn.sin, turn.layout_in, turn.layout_out, turn.start, turn.seq_dim)
        turned = tuple(torch.ops.ropewalk.turn(x, *table) for x in xs)
    else:
        length = turn.length
        if length is not None and not isinstance(length, Tensor):
            length = torch.full((), length, device=xs[0].device)
        angles = (turn.positions, turn.offset, length, turn.spec.key, turn.seq_dim, turn.sign, turn.gain)
        if inplace and not (torch.is_grad_enabled() and any(x.requires_grad for x in xs)):
            for i, x in enumerate(xs):
                torch.ops.ropewalk.rotate_(x, *angles, turn.key or i == 1)
            return xs
        if len(xs) == 2:
            turned = torch.ops.ropewalk.rotate_qk(*xs, *angles)
        else:
            turned = (torch.ops.ropewalk.rotate(xs[0], *angles, turn.key),)
    return tuple(x.copy_(y) for x, y in zip(xs, turned, strict=True)) if inplace else tuple(turned)
