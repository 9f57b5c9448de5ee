"""How the registered ops lie on a device mesh: DTensor's rules for tensor, batch and sequence parallel rotation.

rows      x and its positions [B, S] cut alike; positions [S] whole
heads     positions whole: every head turns alike
tokens    only with positions cut the same way: counting would start again on every rank
head_dim  never: pairs would be torn apart
"""

from __future__ import annotations

import torch

from ropewalk.errors import RopeError
from ropewalk.kernels.request import token_axes


def register_rules() -> None:
    """Teach DTensor how to cut ropewalk's ops; once in each process, before the first DTensor is turned."""
    try:
        from torch.distributed.tensor.experimental import register_sharding
    except ImportError:
        raise RopeError("torch", "must have torch.distributed.tensor.experimental.register_sharding", torch.__version__) from None
    ops = torch.ops.ropewalk
    register_sharding(ops.rotate.default)(_rotate_rules)
    register_sharding(ops.rotate_.default)(_rotate_inplace_rules)
    register_sharding(ops.rotate_qk.default)(_rotate_qk_rules)
    register_sharding(ops.turn.default)(_turn_rules)
    register_sharding(ops.cos_sin.default)(_cos_sin_rules)


def _whole(x):
    """Replicate() for a tensor, None for anything else."""
    from torch.distributed.tensor import Replicate

    return Replicate() if hasattr(x, "ndim") else None


def _cut(x, dim: int):
    from torch.distributed.tensor import Shard

    return Shard(dim % x.ndim)


def _cut_rows(x, rows: int):
    """Cut along the rows axis of positions [.., B, S] or lengths [B], if they have one row for each of x's."""
    dim = {1: None, 2: 0, 3: 1}.get(getattr(x, "ndim", 0))
    return _whole(x) if dim is None or x.shape[dim] == 1 != rows else _cut(x, dim)


def _angle_rules(x, positions, length, seq_dim: int) -> list:
    """(placement of x, of positions, of length) for everything that may be cut, and for nothing cut."""
    seq, batch, head = token_axes(x.ndim, seq_dim)
    whole = _whole(positions), _whole(length)
    rules = [(_whole(x), *whole)]
    if batch is not None:
        own_length = getattr(length, "ndim", 0) == 1 and length.shape[0] > 1
        rules.append((_cut(x, batch), _cut_rows(positions, x.shape[batch]), _cut(length, 0) if own_length else whole[1]))
    if head is not None:
        rules.append((_cut(x, head), *whole))
    if positions is not None:
        rules.append((_cut(x, seq), _cut(positions, -1), whole[1]))
    return rules


def _rotate_rules(x, positions, offset, length, spec, seq_dim, sign, magnitude_power, key) -> list:
    rest = [None] * 5
    return [
        ([at], [at, positions_at, None, length_at, *rest])
        for at, positions_at, length_at in _angle_rules(x, positions, length, seq_dim)
    ]


def _rotate_inplace_rules(*args) -> list:
    """As out of place, with nothing returned; torch refuses a cut that would have to change."""
    return [([], placed) for _, placed in _rotate_rules(*args)]


def _rotate_qk_rules(q, k, positions, offset, length, spec, seq_dim, sign, magnitude_power) -> list:
    rest = [None] * 4
    rules = [
        ([at, at], [at, at, positions_at, None, length_at, *rest])
        for at, positions_at, length_at in _angle_rules(q, positions, length, seq_dim)
    ]
    head = token_axes(q.ndim, seq_dim)[2]
    if head is not None:
        # too few key heads to cut: they stay whole beside cut queries
        q_at, k_at = _cut(q, head), _whole(k)
        rules.append(([q_at, k_at], [q_at, k_at, _whole(positions), None, _whole(length), *rest]))
    return rules


def _turn_rules(x, cos, sin, layout, layout_out, start, seq_dim) -> list:
    seq, batch, head = token_axes(x.ndim, seq_dim)
    rest = [None] * 4
    placed = [(_whole(x), _whole(cos)), (_cut(x, seq), _cut(cos, -2))]
    # tables are [S, P], [B, S, P] or [B, H, S, P]; an axis of size 1 serves all
    for axis, dim, least in ((batch, 0, 3), (head, 1, 4)):
        if axis is not None:
            own = cos.ndim >= least and cos.shape[dim] > 1
            placed.append((_cut(x, axis), _cut(cos, dim) if own else _whole(cos)))
    return [([at], [at, table_at, table_at, *rest]) for at, table_at in placed]


def _cos_sin_rules(positions, length, spec, dtype, magnitude_power, key) -> list:
    from torch.distributed.tensor import Shard

    rest = [None] * 4
    per_row = getattr(length, "ndim", 0) == 1
    whole, tokens = _whole(positions), Shard(1 if positions.ndim > 1 or per_row else 0)
    rules = [([whole, whole], [whole, _whole(length), *rest])]
    rules.append(([tokens, tokens], [_cut(positions, -1), _whole(length), *rest]))
    if positions.ndim > 1 and (length is None or (per_row and length.shape[0] == positions.shape[-2])):
        rows = Shard(0)
        rules.append(([rows, rows], [_cut(positions, -2), None if length is None else rows, *rest]))
    return rules
