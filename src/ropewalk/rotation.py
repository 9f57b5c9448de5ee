"""rotate, unrotate, rerotate and rotate_by: checked calls, one autograd rule, and the registered
ops under torch.compile.
"""

from __future__ import annotations

from dataclasses import replace
from typing import overload

import torch
from jaxtyping import Inexact, Shaped
from torch import Tensor

from ropewalk.axes import PER_HEAD, MixedAxes
from ropewalk.checks import INTEGERS, check_no_overlap, check_tables, check_tensor, make_request
from ropewalk.errors import RopeError, choice, integer
from ropewalk.kernels import BACKENDS
from ropewalk.kernels.request import (
    AnyRequest,
    Request,
    TableRequest,
    align,
    table_dtype,
    token_axes,
)
from ropewalk.kernels.rotation.definition import split_pairs
from ropewalk.kernels.rotation.eager import differentiable
from ropewalk.ops import execute, request_tables, through_op
from ropewalk.spec import LAYOUTS, RopeSpec
from ropewalk.strategies import strategies
from ropewalk.tensor_frequencies import Length
from ropewalk.tracing import are_batched_gradients, in_forward_mode, is_traced, is_vmap, transforms

#: axes whose frequencies differ from head to head
DIFFERENT_BY_HEAD = (MixedAxes, *PER_HEAD)


def rotate(
    x: Inexact[Tensor, "... D"],
    spec: RopeSpec,
    positions: Shaped[Tensor, "..."] | None = None,
    *,
    offset: int | Tensor = 0,
    seq_dim: int = -2,
    length: Length = None,
    key: bool = False,
    inverse: bool = False,
    inplace: bool = False,
    backend: str | None = None,
    tables: str = "auto",
) -> Inexact[Tensor, "... D"]:
    """Return x with every pair of `spec` rotated by its token's angle; dimensions in no pair stay.
    A `Learnable` scaling has its initial frequencies here; only a `Rope` has trained ones.

    x          [B, H, S, D] by default; `seq_dim` is the axis of the tokens
    positions  integers (floats only if the spec's axes have real coordinates) [S], [B, S] or [axes,
               B, S]; None counts from `offset`, an int or one for each row
    length     int or [B], read only by length-dependent scalings; None = each row's largest
               position + 1
    key        whether x holds attention keys, whose magnitude may differ from that of queries
    inverse    undo the rotation instead
    inplace    write the result into x
    backend    a name in BACKENDS; None = the fastest that supports x
    tables     which tables of cos and sin are kept: "auto", "full", "two-level" or "none", as in
               `Rope`
    """
    request = make_request((x,), spec, positions, offset, seq_dim, length, tables)
    # the inverse rotates by the opposite angles and divides by the magnitude
    sign = -1 if inverse else 1
    return run((x,), replace(request, key=key, sign=sign, magnitude_power=sign), inplace, backend)[
        0
    ]


def unrotate(
    x: Inexact[Tensor, "... D"],
    spec: RopeSpec,
    positions: Shaped[Tensor, "..."] | None = None,
    **options,
) -> Inexact[Tensor, "... D"]:
    """Invert `rotate`, magnitude and layout included; the options are its keywords."""
    return rotate(x, spec, positions, inverse=True, **options)


def rerotate(
    k: Inexact[Tensor, "... D"],
    spec: RopeSpec,
    from_positions: Shaped[Tensor, "..."],
    to_positions: Shaped[Tensor, "..."],
    *,
    to: RopeSpec | None = None,
    seq_dim: int = -2,
    from_length: Length = None,
    to_length: Length = None,
    match_magnitude: bool = False,
    inplace: bool = False,
    backend: str | None = None,
    tables: str = "auto",
) -> Inexact[Tensor, "... D"]:
    """Move keys rotated at `from_positions` under `spec` to `to_positions` under `to` (default: the
    same spec).

    The two rotations are combined in float64 into one. Only if `to` rotates other dimensions, they
    run one after the other, in float32 (float64 for float64 keys). The magnitude on the keys is
    kept; with `match_magnitude` it becomes that of `to`, as if the keys were rotated anew.
    `from_length` and `to_length` are the `length` of the two rotations, for scalings that depend on
    it. If `to` has another layout, pair i of the keys is moved to where `to` has pair i. The other
    options are those of `rotate`.
    """
    to = spec if to is None else to
    same_slice = (spec.rotary_start, spec.pairs) == (to.rotary_start, to.pairs)
    layouts = [[each.layout, each.output_layout] for each in (spec, to)]
    if not same_slice and layouts[0] != layouts[1]:
        raise RopeError(
            "to", "must have the same layout and layout_out if it rotates other dimensions", layouts
        )
    back = replace(
        make_request((k,), spec, from_positions, 0, seq_dim, from_length, tables, "k"),
        sign=-1,
        magnitude_power=-1,
    )
    # "auto" if the spec `to` does not have this table strategy
    forth = make_request(
        (k,),
        to,
        to_positions,
        0,
        seq_dim,
        to_length,
        tables if tables in strategies(to) else "auto",
        "k",
    )
    if not match_magnitude:
        # leave the scaling's magnitude out of both rotations, so that the keys keep theirs; xPos's
        # growth stays in: it depends on the position and must change
        back, forth = (
            replace(request, spec=request.spec.with_(magnitude_on="scale"))
            for request in (back, forth)
        )
    # `old` undoes the rotation that the keys have; `new` is the one that they get
    old, new = (_as_table_request(request, k, torch.float64, key=True) for request in (back, forth))
    if not same_slice:
        if inplace:
            # whether k alone overlaps itself is seen in its strides, without addresses
            check_no_overlap((k,), addresses=False)
        # the slices differ, so there is no single angle: unrotate and rotate, 16-bit keys in
        # float32, rounded once
        unrotated = run((k.to(table_dtype(k)),), old, False, backend)
        moved = run(unrotated, new, False, backend)[0].to(k.dtype)
        return k.copy_(moved) if inplace else moved
    if spec.per_head != to.per_head:
        # one has tables [B, H, S, P]: those of the other, [S, P] or [B, S, P], get an axis of heads
        old, new = (
            r if r.cos.ndim == 4 else replace(r, cos=r.cos.unsqueeze(-3), sin=r.sin.unsqueeze(-3))
            for r in (old, new)
        )
    # the angle of both rotations together, by the addition theorems
    cos, sin = new.cos * old.cos - new.sin * old.sin, new.sin * old.cos + new.cos * old.sin
    cos, sin = cos.to(table_dtype(k)), sin.to(table_dtype(k))
    combined = TableRequest(
        cos, sin, back.seq_dim, old.layout_in, new.layout_out, spec.rotary_start
    )
    return run((k,), combined, inplace, backend)[0]


def _as_table_request(request: Request, x: Tensor, dtype: torch.dtype, key: bool) -> TableRequest:
    """Return the request with its angles as tables of cos and sin in `dtype`, for the tokens of x;
    those of an inverse rotation have the opposite sin. `key` says whether x holds attention keys.
    """
    cos, sin = request_tables(request, x.shape[request.seq_dim], x.device, dtype, key)
    if request.spec.per_head:
        # grouped-query attention: consecutive query heads share the table of their key head
        _, _, head_axis = token_axes(x.ndim, request.seq_dim)
        # checked: there is an axis of heads
        heads_per_table = x.shape[head_axis] // cos.shape[1]  # type: ignore[index]
        if heads_per_table > 1:
            cos, sin = (table.repeat_interleave(heads_per_table, dim=1) for table in (cos, sin))
    sin = sin if request.sign > 0 else -sin
    return TableRequest(
        cos, sin, request.seq_dim, request.layout_in, request.layout_out, request.start
    )


def rotate_by(
    x: Inexact[Tensor, "... D"],
    cos: Inexact[Tensor, "... P"],
    sin: Inexact[Tensor, "... P"],
    *,
    layout: str,
    layout_out: str | None = None,
    start: int = 0,
    seq_dim: int = -2,
    inplace: bool = False,
    backend: str | None = None,
) -> Inexact[Tensor, "... D"]:
    """Return x rotated by given tables with one entry per pair, [S, P], [B, S, P] or [B, H, S, P];
    gradients reach the tables.

    `layout` is that of x; a table with one entry per pair has none. `layout_out` is that of the
    result; None = `layout`. `start` is the first dimension of the head that rotates. The other
    options are those of `rotate`.
    """
    choice("layout", layout, LAYOUTS)
    layout_out = choice("layout_out", layout if layout_out is None else layout_out, LAYOUTS)
    seq_dim = check_tensor("x", x, seq_dim, head_dim=None)
    check_tables(x, cos, sin, integer("start", start, low=0), seq_dim)
    return run((x,), TableRequest(cos, sin, seq_dim, layout, layout_out, start), inplace, backend)[
        0
    ]


def rotate_by_phase(
    x: Inexact[Tensor, "... D"],
    phase: Inexact[Tensor, "... P"],
    *,
    layout: str = "half",
    seq_dim: int = -2,
) -> Inexact[Tensor, "... D"]:
    """Rotate x by angles in radians, [S, P], [B, S, P] or [B, H, S, P]; gradients reach x and the
    angles.

    It is for angles that are computed from the tokens' content, not from integer positions. Angles
    that are sums of many terms should be float64.
    """
    dtype = table_dtype(x)
    return rotate_by(
        x, phase.cos().to(dtype), phase.sin().to(dtype), layout=layout, seq_dim=seq_dim
    )


def rotate_half(x: Inexact[Tensor, "... D"]) -> Inexact[Tensor, "... D"]:
    """Return (-x2, x1) of the two halves of x: a quarter turn of every pair in the half layout."""
    first, second = split_pairs(x, "half")
    return torch.cat((-second, first), dim=-1)


@overload
def apply_rotary_pos_emb(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    position_ids: Tensor | int | None = ...,
    unsqueeze_dim: int = ...,
    *,
    layout: str = ...,
) -> tuple[Tensor, Tensor]: ...
@overload
def apply_rotary_pos_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    position_ids: Tensor | None = ...,
    unsqueeze_dim: int = ...,
    /,
    *,
    layout: str = ...,
) -> Tensor: ...
@overload
def apply_rotary_pos_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    *,
    position_ids: Tensor | None = ...,
    unsqueeze_dim: int = ...,
    layout: str = ...,
) -> Tensor: ...
def apply_rotary_pos_emb(
    q: Inexact[Tensor, "..."],
    k: Inexact[Tensor, "..."],
    cos: Inexact[Tensor, "..."],
    sin: Shaped[Tensor, "..."] | None = None,
    position_ids: Tensor | int | None = None,
    unsqueeze_dim: int = 1,
    *,
    layout: str = "half",
) -> Tensor | tuple[Tensor, Tensor]:
    """Rotate q and k by transformers' tables, which have one entry per dimension: [S, R] or [B, S,
    R].

        apply_rotary_pos_emb(q, k, cos, sin)                 or (q, k, cos, sin, unsqueeze_dim)
        apply_rotary_pos_emb(q, k, cos, sin, position_ids)   rows [B, S] of tables [N, R]
        apply_rotary_pos_emb(x, cos, sin)                    or (x, cos, sin, position_ids)

    position_ids   integers [B, S]: each token's row of the tables, as in transformers before 4.38;
                   the tables are then [N, R], or [1, 1, N, R] as that release kept them
    unsqueeze_dim  the axis of the heads in the tables: with [B, S, R], 1 if heads come before
                   tokens, 2 if after

    A table repeats each entry in both dimensions of a pair; one made for the other layout raises an
    error. Tables narrower than the head rotate its leading dimensions.
    """
    choice("layout", layout, LAYOUTS)
    xs = (q, k)
    # three tensors of floats are x, cos, sin; a fourth of integers is their position_ids, and then
    # a fifth argument, which Python has put into `position_ids`, is their unsqueeze_dim
    if sin is None or not sin.is_floating_point():
        xs, (cos, sin), rows = (q,), (k, cos), sin
        if rows is None:
            rows = position_ids
        elif position_ids is not None:
            unsqueeze_dim = position_ids  # type: ignore[assignment]  # checked below
        position_ids = rows
    if isinstance(position_ids, int):  # (q, k, cos, sin, unsqueeze_dim)
        position_ids, unsqueeze_dim = None, position_ids
    if not isinstance(unsqueeze_dim, int) or isinstance(unsqueeze_dim, bool):
        raise RopeError("unsqueeze_dim", "must be an integer", unsqueeze_dim)
    if position_ids is not None:
        if not isinstance(position_ids, Tensor):
            raise RopeError("position_ids", "must be integers [B, S]", position_ids)
        if position_ids.ndim != 2 or position_ids.dtype not in INTEGERS:
            got = [list(position_ids.shape), str(position_ids.dtype)]
            raise RopeError("position_ids", "must be integers [B, S]", got)
        cos, sin = (
            table_rows(name, _one_table(name, table), "position_ids", position_ids)
            for name, table in (("cos", cos), ("sin", sin))
        )
    if cos.ndim not in (2, 3) or cos.shape[-1] % 2 or cos.shape != sin.shape:
        raise RopeError(
            "cos",
            "cos and sin must be [S, R] or [B, S, R] with even R",
            [list(cos.shape), list(sin.shape)],
        )
    if unsqueeze_dim not in (cos.ndim - 2, cos.ndim - 1, -3, -2):
        rule = (
            f"must be the axis of the heads: {cos.ndim - 2} if it is before the tokens, "
            f"{cos.ndim - 1} if it is after them"
        )
        raise RopeError("unsqueeze_dim", rule, unsqueeze_dim)
    for name, table in (("cos", cos), ("sin", sin)):
        first, second = split_pairs(table, layout)
        _require_equal(first, second, name, layout)
    # transformers unsqueezes the tables at the axis of the heads: before the tokens in [B, H, S,
    # D], after them in [B, S, H, D]
    heads_before_tokens = unsqueeze_dim % (cos.ndim + 1) <= cos.ndim - 2
    pair_cos, pair_sin = split_pairs(cos, layout)[0], split_pairs(sin, layout)[0]
    seq_dim = -2 if heads_before_tokens else -3
    rotated = tuple(rotate_by(x, pair_cos, pair_sin, layout=layout, seq_dim=seq_dim) for x in xs)
    return rotated[0] if len(rotated) == 1 else (rotated[0], rotated[1])


def _one_table(name: str, table: Tensor) -> Tensor:
    """Return a table [N, R] whose rows position_ids may choose; one of [1, 1, N, R] is reshaped.
    Raise an error for another shape.
    """
    if table.ndim == 4 and table.shape[:2] == (1, 1):
        return table[0, 0]
    if table.ndim != 2:
        rule = (
            "must be [N, R], one row per position, with position_ids; tables [B, S, R] hold their "
            "tokens' rows already: leave position_ids out"
        )
        raise RopeError(name, rule, list(table.shape))
    return table


def table_rows(name: str, table: Tensor, source: str, rows: Tensor) -> Tensor:
    """Return the given rows of the table called `name`: rows [...] of a table [N, R] give [..., R].
    Raise an error about the table if it has too few rows, and about `source`, the argument that
    gave `rows`, if one is negative; on a GPU or under torch.compile, torch raises it when the check
    runs.
    """
    rule = "must have a row for every position; make the table longer"
    in_range = ((rows >= 0) & (rows < len(table))).all()
    if rows.device.type != "cpu" or torch.compiler.is_compiling():
        # reading the result would synchronize with the device
        torch.ops.aten._assert_async.msg(in_range, f"{name}: {rule}")
    elif not bool(in_range):
        if int(rows.min()) < 0:
            raise RopeError(
                source,
                "must not give a token a negative position, for which no table has a row",
                int(rows.min()),
            )
        raise RopeError(name, rule, [list(table.shape), int(rows.max())])
    return table[rows.long()]


def _require_equal(first: Tensor, second: Tensor, name: str, layout: str) -> None:
    """Raise an error if `first` and `second`, the two members of each pair in the table `name`,
    differ; on a GPU or in a graph, the error is raised when the check runs there.
    """
    rule = (
        f"must repeat each pair's entry as the {layout!r} layout pairs dimensions; pass the "
        "table's own layout"
    )
    if first.device.type != "cpu" or is_traced((first,)):
        # no read-back from the device or from a graph
        torch.ops.aten._assert_async.msg((first == second).all(), f"{name}: {rule}")
    elif not torch.equal(first, second):
        raise RopeError(name, rule, f"{name} of another layout")


def run(
    xs: tuple[Tensor, ...], request: AnyRequest, inplace: bool, backend: str | None = None
) -> tuple[Tensor, ...]:
    """Return the rotated `xs`, in place if `inplace`; every rotation runs through here, except
    repeated calls (`fast_path`) and kernels that rotate inside another operation.

    xs  one tensor, or q and k; `request.is_key(i)` says whether tensor i holds attention keys, and
        `request.of_tensor(i)` is the request for it alone

    Without gradients a kernel runs directly; with gradients, inside an autograd function; under
    torch.compile or another tracer, as a registered op; where other derivatives are needed, by
    plain torch.
    """
    if isinstance(request, Request) and isinstance(request.spec.axes, DIFFERENT_BY_HEAD):
        return _by_head(xs, request, inplace, backend)
    traced = is_traced(xs)
    if inplace:
        check_no_overlap(xs, addresses=not traced)
    # functorch transforms, such as vmap and grad; a call inside one is always traced
    transforms_around = transforms() if traced else []
    # batched gradients have no storage that a kernel could read
    plain = _needs_plain_torch(request, transforms_around) or (
        not traced and are_batched_gradients(xs)
    )
    if backend is not None and (plain or traced):
        # no kernel is picked by its name on these paths, so the name is checked here
        choice("backend", backend, BACKENDS)
    if plain:
        # in place, from a copy: the backward may need the tensor as it was before
        inputs = tuple(x.clone() for x in xs) if inplace else xs
        rotated = tuple(
            _by_plain_torch(x, request, key=request.is_key(i)) for i, x in enumerate(inputs)
        )
        return tuple(x.copy_(y) for x, y in zip(xs, rotated, strict=True)) if inplace else rotated
    if traced:
        # all transforms around are vmap
        return through_op(xs, request, inplace, mapped=bool(transforms_around))
    if torch.is_grad_enabled() and any(x.requires_grad for x in xs):
        if inplace:
            # a Function that writes to a view, such as q of a packed qkv, may return only one
            # tensor
            return tuple(
                _Rotation.apply(request.of_tensor(i), True, backend, x) for i, x in enumerate(xs)
            )
        rotated = _Rotation.apply(request, False, backend, *xs)
        return rotated if isinstance(rotated, tuple) else (rotated,)
    return execute(xs, request, inplace, backend)


def _by_head(
    xs: tuple[Tensor, ...], request: Request, inplace: bool, backend: str | None
) -> tuple[Tensor, ...]:
    """Return xs rotated by tables of cos and sin that differ from head to head; each tensor has
    tables of its own. Raise an error for frequencies that are learned.
    """
    if request.spec.mixed:
        raise RopeError(
            "spec",
            "must not have MixedAxes, whose frequencies are learned; use Rope(spec)",
            request.spec.axes,
        )
    if inplace:
        check_no_overlap(xs, addresses=not is_traced(xs))
    rotated = []
    for i, x in enumerate(xs):
        by_table = _as_table_request(request, x, table_dtype(x), request.is_key(i))
        rotated += run((x,), by_table, inplace, backend)
    return tuple(rotated)


def _by_plain_torch(x: Tensor, request: AnyRequest, key: bool) -> Tensor:
    """Return x rotated by plain torch operations, which are differentiable in every way that torch
    knows; `key` says whether x holds attention keys.
    """
    if isinstance(request, Request):
        request = _as_table_request(request, x, table_dtype(x), key)
    cos, sin = request.rows(x.shape[request.seq_dim], x.device, table_dtype(x), key)
    return differentiable(
        x, align(cos, x, request.seq_dim), align(sin, x, request.seq_dim), request
    )


def _needs_plain_torch(request: AnyRequest, transforms_around: list) -> bool:
    """Return whether the rotation must be computed by torch's own differentiable operations.

    They are needed for derivatives that the autograd rule does not cover: derivatives with respect
    to tables, forward-mode derivatives, and those of functorch transforms around this call, except
    vmap.
    """
    if in_forward_mode() or not all(is_vmap(transform) for transform in transforms_around):
        return True
    # under vmap, requires_grad of a table cannot be read, so a gradient is assumed
    return isinstance(request, TableRequest) and (
        bool(transforms_around)
        or (torch.is_grad_enabled() and (request.cos.requires_grad or request.sin.requires_grad))
    )


class _Rotation(torch.autograd.Function):
    """The autograd rule: a rotation is linear and its transpose is the rotation by the opposite
    angle, so x is not saved.
    """

    @staticmethod
    def forward(ctx, request: AnyRequest, inplace: bool, backend: str | None, *xs: Tensor):
        """Return the rotated xs, in place if `inplace`: a tuple, or one tensor if there is one."""
        ctx.request, ctx.backend = request, backend
        ctx.set_materialize_grads(False)  # an output without a gradient comes as None
        # so that torch detects a change before the backward
        ctx.save_for_backward(*request.tensors)
        if inplace:
            ctx.mark_dirty(*xs)
        outs = execute(xs, request, inplace, backend)
        # k stays without a gradient where only q has one; three arguments come before the xs
        ctx.mark_non_differentiable(
            *(out for i, out in enumerate(outs) if not ctx.needs_input_grad[3 + i])
        )
        return outs if len(xs) > 1 else outs[0]  # type: ignore[misc]  # there is at least one

    @staticmethod
    def backward(ctx, *grads: Tensor | None):
        """Return None for `request`, `inplace` and `backend`, and the gradient of each x: that of
        its result rotated backwards, or None if its result has none.
        """
        # raises an error if a tensor of the request was changed since the forward
        _ = ctx.saved_tensors
        request = ctx.request.adjoint()
        if len(grads) == 2 and all(grad is not None for grad in grads):
            # one kernel rotates both gradients
            return None, None, None, *run(tuple(grads), request, False, ctx.backend)  # type: ignore[arg-type]
        # `of_tensor(i)`: for one gradient alone, that of keys if i is 1
        x_grads = (
            None if grad is None else run((grad,), request.of_tensor(i), False, ctx.backend)[0]
            for i, grad in enumerate(grads)
        )
        return None, None, None, *x_grads
