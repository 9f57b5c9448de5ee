"""The registered ops: what torch.compile, functorch and tensor subclasses see of a rotation.

A compiled graph holds strings and tensors, so a spec is passed as its fingerprint. The autograd
rules of `rotate`, `rotate_qk` and `rotate_by_table` are registered at import: without one, an op
would silently return tensors without gradients.

Words of this module:
  request          one rotation to carry out: a `Request`, whose angles follow from a spec and
                   positions, or a `TableRequest` with given cos and sin
  sign             -1 rotates by the opposite angles
  magnitude_power  1 applies the magnitude of the spec, 0 leaves it out, -1 divides by it
  key              for attention keys, whose magnitude may differ from that of queries
  tables           which cos and sin are kept between calls, a name of `strategies.STRATEGIES`
  layout_out       the pair layout of the result; `layout` is that of x
  start            the first dimension of the head that rotates
  seq_dim          the axis of x that holds the tokens
  offset           the position of the first token, if `positions` is None
  ctx              torch's record of a call: what the forward keeps for the backward
  backend          the name of a kernel in BACKENDS; None: the fastest that supports the tensors
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ropewalk.axes import PER_HEAD
from ropewalk.errors import RopeError
from ropewalk.kernels import pick
from ropewalk.kernels.request import AnyRequest, Request, TableRequest
from ropewalk.spec import spec_of
from ropewalk.table import cos_sin
from ropewalk.tensor_frequencies import Length


def execute(
    xs: tuple[Tensor, ...], request: AnyRequest, inplace: bool, backend: str | None = None
) -> tuple[Tensor, ...]:
    """Run a kernel and return the rotated tensors: new ones, or `xs` themselves if `inplace`."""
    outs = xs if inplace else tuple(torch.empty_like(x) for x in xs)
    if any(x.is_cpu and x.stride(-1) != 1 for x in (*xs, *outs)):
        _on_copies(xs, outs, request, backend)  # the native CPU kernel needs a last stride of 1
    else:
        pick(xs, request, backend).run(xs, outs, request)
    if inplace:
        increment_version(xs)  # so that autograd detects a change of a saved tensor
    return outs


def _on_copies(
    xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest, backend: str | None
) -> None:
    """Rotate copies of xs with a last stride of 1, as the native CPU kernel needs it, and copy the
    results to outs.
    """
    if backend is not None:
        pick(xs, request, backend)  # raises if the named backend cannot rotate xs as they are
    copies = tuple(x.clone(memory_format=torch.contiguous_format) for x in xs)
    pick(copies, request, backend).run(copies, copies, request)
    for out, copy in zip(outs, copies, strict=True):
        out.copy_(copy)


# the arguments from which angles are computed, and those of given tables; `spec` is a fingerprint
_ANGLES = (
    "Tensor? positions, SymInt offset, Tensor? length, str spec, str tables, int seq_dim, int sign, "
    "int magnitude_power"
)
_TABLE = "Tensor cos, Tensor sin, str layout, str layout_out, int start, int seq_dim"
torch.library.define("ropewalk::rotate", f"(Tensor x, {_ANGLES}, bool key) -> Tensor")
torch.library.define("ropewalk::rotate_", f"(Tensor(a!) x, {_ANGLES}, bool key) -> ()")
torch.library.define("ropewalk::rotate_qk", f"(Tensor q, Tensor k, {_ANGLES}) -> (Tensor, Tensor)")
torch.library.define("ropewalk::rotate_by_table", f"(Tensor x, {_TABLE}) -> Tensor")
# an integer comes before the text: DTensor caches sharding decisions by the arguments from the
# first integer on
torch.library.define(
    "ropewalk::cos_sin",
    "(Tensor positions, Tensor? length, int magnitude_power, str spec, str tables, ScalarType dtype, "
    "bool key) -> (Tensor, Tensor)",
)


def _request_of(
    positions, offset, length, spec, tables, seq_dim, sign, magnitude_power, key=False
) -> Request:
    """Return the request that an op's arguments describe; `spec` is a fingerprint."""
    return Request(
        spec_of(spec), seq_dim, positions, offset, length, sign, magnitude_power, key, tables
    )


@torch.library.impl("ropewalk::rotate", "default")
def _rotate_op(x, *angles_and_key):
    return execute((x,), _request_of(*angles_and_key), False)[0]


@torch.library.impl("ropewalk::rotate_", "default")
def _rotate_inplace_op(x, *angles_and_key):
    execute((x,), _request_of(*angles_and_key), True)


@torch.library.impl("ropewalk::rotate_qk", "default")
def _rotate_qk_op(q, k, *angles):
    return execute((q, k), _request_of(*angles), False)


@torch.library.impl("ropewalk::rotate_by_table", "default")
def _rotate_by_table_op(x, cos, sin, layout, layout_out, start, seq_dim):
    return execute((x,), TableRequest(cos, sin, seq_dim, layout, layout_out, start), False)[0]


@torch.library.impl("ropewalk::cos_sin", "default")
def _cos_sin_op(positions, length, magnitude_power, spec, tables, dtype, key):
    """Return cos and sin of positions, contiguous as the op's fake implementation promises a
    tracer.
    """
    options = {"magnitude_power": magnitude_power, "key": key, "strategy": tables}
    cos, sin = cos_sin(spec_of(spec), positions, length=length, dtype=dtype, **options)
    return cos.contiguous(), sin.contiguous()


@torch.library.register_fake("ropewalk::rotate")
@torch.library.register_fake("ropewalk::rotate_by_table")
def _(x, *rest):
    return torch.empty_like(x)


@torch.library.register_fake("ropewalk::rotate_")
def _(x, *rest):
    return None


@torch.library.register_fake("ropewalk::rotate_qk")
def _(q, k, *rest):
    return torch.empty_like(q), torch.empty_like(k)


@torch.library.register_fake("ropewalk::cos_sin")
def _(positions, length, magnitude_power, spec, tables, dtype, key):
    """Return empty tensors of the shapes that `cos_sin` returns, for tracing."""
    spec = spec_of(spec)
    if isinstance(spec.axes, PER_HEAD):
        batch = 1 if positions.ndim == 1 else positions.shape[-2]
        table = positions.new_empty(
            [batch, spec.axes.num_heads, positions.shape[-1], spec.pairs], dtype=dtype
        )
        return table, torch.empty_like(table)
    rows = positions.shape[-2:]  # [S] or [B, S]
    # a length for each row, [B], gives rows to positions [S] too
    shape = rows if length is None else torch.broadcast_shapes(rows, (*length.shape, 1))
    table = positions.new_empty([*shape, spec.pairs], dtype=dtype)
    return table, torch.empty_like(table)


def _keep_angles(first: int):
    """Return a setup_context that saves an op's angle arguments (`_ANGLES`), which start at index
    `first`, for its backward.
    """

    def setup(ctx, inputs, output):
        """Save the tensors with `save_for_backward` and the other arguments as attributes of ctx."""
        positions, offset, length, *ctx.later_arguments = inputs[first:]
        ctx.offset = offset
        ctx.save_for_backward(positions, length)

    return setup


def _rotate_backward(ctx, grad):
    """Return the gradient of x, `grad` rotated by the opposite angle with the same magnitude, and
    None for 9 other arguments.
    """
    positions, length = ctx.saved_tensors
    spec, tables, seq_dim, sign, magnitude_power, key = ctx.later_arguments
    x_grad = torch.ops.ropewalk.rotate(
        grad, positions, ctx.offset, length, spec, tables, seq_dim, -sign, magnitude_power, key
    )
    return x_grad, *[None] * 9


def _rotate_qk_backward(ctx, q_grad, k_grad):
    """Return the gradients of q and k, rotated by the opposite angles, and None for the 8 other
    arguments.
    """
    positions, length = ctx.saved_tensors
    spec, tables, seq_dim, sign, magnitude_power = ctx.later_arguments
    grads = torch.ops.ropewalk.rotate_qk(
        q_grad, k_grad, positions, ctx.offset, length, spec, tables, seq_dim, -sign, magnitude_power
    )
    return *grads, *[None] * 8


def _keep_tables(ctx, inputs, output):
    """Save cos and sin for the backward; raise an error if they require gradients."""
    _, cos, sin, *ctx.later_arguments = inputs
    if any(ctx.needs_input_grad[1:3]):  # those of cos and sin
        raise RopeError(
            "cos",
            "cos and sin must not require gradients here; use ropewalk.rotation.rotate_by",
            list(cos.shape),
        )
    ctx.save_for_backward(cos, sin)


def _rotate_by_table_backward(ctx, grad):
    """Return the gradient of x, `grad` rotated by the opposite angle and with the layouts swapped,
    and None for 6 arguments.
    """
    cos, sin = ctx.saved_tensors
    layout, layout_out, start, seq_dim = ctx.later_arguments
    return torch.ops.ropewalk.rotate_by_table(
        grad, cos, -sin, layout_out, layout, start, seq_dim
    ), *[None] * 6


torch.library.register_autograd("ropewalk::rotate", _rotate_backward, setup_context=_keep_angles(1))
torch.library.register_autograd(
    "ropewalk::rotate_qk", _rotate_qk_backward, setup_context=_keep_angles(2)
)
torch.library.register_autograd(
    "ropewalk::rotate_by_table", _rotate_by_table_backward, setup_context=_keep_tables
)


def _vmapped(info, in_dims, x, *others, op=torch.ops.ropewalk.rotate, seq_at=5):
    """Return x rotated under vmap, and the mapped dimension of the result.

    If x alone is mapped, its mapped axis becomes one more axis of the call, whose entries share the
    angles. If other arguments are mapped, or x is packed [T, H, D], `op` is called once for each
    entry.

    info     torch's description of the vmap; `info.batch_size` is the number of entries
    in_dims  the mapped dimension of each argument, None for one that is not mapped
    seq_at   the index of `seq_dim` in `others`, the arguments after x
    """
    seq_dim = others[seq_at]
    # [T, H, D], here with the mapped axis too: as one more axis it would turn heads into rows
    packed = x.ndim - 1 == 3 and seq_dim == -3
    if in_dims[0] is not None and all(dim is None for dim in in_dims[1:]) and not packed:
        if seq_dim == -2:  # [.., S, D] becomes [.., mapped, S, D]
            mapped_dim = -3
        else:
            # [.., S, .., D] becomes [.., S, .., mapped, D], where the tokens are one axis further
            # from the end
            mapped_dim = -2
            others = [*others[:seq_at], seq_dim - 1, *others[seq_at + 1 :]]
        # torch expects the mapped dimension counted from the front
        return op(x.movedim(in_dims[0], mapped_dim), *others), x.ndim + mapped_dim
    return torch.stack(
        [op(*arguments) for arguments in _one_by_one(info, in_dims, (x, *others))]
    ), 0


def _one_by_one(info, in_dims, args):
    """Yield the list of arguments of each call that vmap stands for: entry i of those with a mapped
    dimension.
    """
    for i in range(info.batch_size):
        yield [
            arg if dim is None else arg.select(dim, i)
            for arg, dim in zip(args, in_dims, strict=True)
        ]


def _vmapped_qk(info, in_dims, q, k, *angles):
    """Return (q, k) rotated under vmap, each by itself, and the mapped dimension of each result."""
    rotated, out_dims = [], []
    for x, x_dim, key in ((q, in_dims[0], False), (k, in_dims[1], True)):
        dims = (x_dim, *in_dims[2:], None)  # of x, of the angle arguments and of `key`
        if all(dim is None for dim in dims):
            result, out_dim = torch.ops.ropewalk.rotate(x, *angles, key), None
        else:
            result, out_dim = _vmapped(info, dims, x, *angles, key)
        rotated.append(result)
        out_dims.append(out_dim)
    return tuple(rotated), tuple(out_dims)


def _vmapped_by_table(info, in_dims, *args):
    return _vmapped(info, in_dims, *args, op=torch.ops.ropewalk.rotate_by_table, seq_at=5)


def _vmapped_cos_sin(info, in_dims, *args):
    """Return cos and sin of each entry of the vmap, stacked along a new first axis, and that axis
    of both.
    """
    tables = [
        torch.ops.ropewalk.cos_sin(*arguments) for arguments in _one_by_one(info, in_dims, args)
    ]
    return tuple(torch.stack(cos_or_sin) for cos_or_sin in zip(*tables, strict=True)), (0, 0)


torch.library.register_vmap("ropewalk::rotate", _vmapped)
torch.library.register_vmap("ropewalk::rotate_qk", _vmapped_qk)
torch.library.register_vmap("ropewalk::rotate_by_table", _vmapped_by_table)
torch.library.register_vmap("ropewalk::cos_sin", _vmapped_cos_sin)


class _Replaced:
    """The functions that `replaced_ops` puts in place of the registered ops, `tables` in that of
    `cos_sin` and `rotate` in that of all others; None: the op itself runs.
    """

    rotate: Callable[[tuple[Tensor, ...], AnyRequest], tuple[Tensor, ...]] | None = None
    tables: Callable[..., tuple[Tensor, Tensor]] | None = None


@contextmanager
def replaced_ops(rotate: Callable[..., Any], tables: Callable[..., Any]) -> Iterator[None]:
    """Within this context, traced calls run these functions instead of the registered ops;
    `interop.onnx` needs it to export.

    rotate  (xs, request) -> the rotated tensors
    tables  (request, positions, dtype, key) -> cos and sin
    """
    _Replaced.rotate, _Replaced.tables = rotate, tables
    try:
        yield
    finally:
        _Replaced.rotate = _Replaced.tables = None


def request_tables(
    request: Request, seq: int, device: torch.device, dtype: torch.dtype, key: bool
) -> tuple[Tensor, Tensor]:
    """Return cos and sin of the positions of a request, from the registered op or the function that
    replaces it; for an inverse rotation the caller negates sin.

    seq     the number of positions
    device  where cos and sin are
    dtype   of cos and sin
    key     whether they are for attention keys
    """
    positions = request.explicit_positions(seq, device)
    if _Replaced.tables is not None:
        return _Replaced.tables(request, positions, dtype, key)
    length = _as_tensor(request.length, device)
    spec = request.spec.fingerprint
    return torch.ops.ropewalk.cos_sin(
        positions, length, request.magnitude_power, spec, request.tables, dtype, key
    )


def _as_tensor(length: Length, device: torch.device) -> Tensor | None:
    """Return a length as a tensor, without a copy from the host; None stays None."""
    return (
        length
        if length is None or isinstance(length, Tensor)
        else torch.full((), length, device=device)
    )


def through_op(
    xs: tuple[Tensor, ...], request: AnyRequest, inplace: bool, mapped: bool = False
) -> tuple[Tensor, ...]:
    """Return `xs` rotated by a registered op, or by the function that replaces it. With `inplace`
    the op `rotate_` writes into `xs`. It has no rule for vmap or for gradients, so under vmap
    (`mapped`), where gradients are needed, and for given tables another op runs and its results are
    copied into `xs`.
    """
    if _Replaced.rotate is not None:
        rotated = _Replaced.rotate(xs, request)
    elif isinstance(request, TableRequest):
        table = (
            request.cos,
            request.sin,
            request.layout_in,
            request.layout_out,
            request.start,
            request.seq_dim,
        )
        rotated = tuple(torch.ops.ropewalk.rotate_by_table(x, *table) for x in xs)
    else:
        length = _as_tensor(request.length, xs[0].device)
        # the arguments of `_ANGLES`
        angles = (
            request.positions,
            request.offset,
            length,
            request.spec.fingerprint,
            request.tables,
            request.seq_dim,
            request.sign,
            request.magnitude_power,
        )
        if (
            inplace
            and not mapped
            and not (torch.is_grad_enabled() and any(x.requires_grad for x in xs))
        ):
            for i, x in enumerate(xs):
                torch.ops.ropewalk.rotate_(x, *angles, request.is_key(i))
            return xs
        if len(xs) == 2 and xs[0].requires_grad == xs[1].requires_grad:
            rotated = torch.ops.ropewalk.rotate_qk(*xs, *angles)
        else:  # two calls, so that k stays without a gradient where only q has one
            rotated = tuple(
                torch.ops.ropewalk.rotate(x, *angles, request.is_key(i)) for i, x in enumerate(xs)
            )
    return (
        tuple(x.copy_(y) for x, y in zip(xs, rotated, strict=True)) if inplace else tuple(rotated)
    )
