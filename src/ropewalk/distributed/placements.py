"""DTensor sharding rules of the registered ops, for tensor, batch and sequence parallel rotation.

x may be sharded along   positions must be
batch rows               sharded by batch rows too; replicated if one row of positions is for all,
                         [S] or [1, S]
heads                    replicated
tokens                   given and sharded in the same way, since default positions would restart at
                         0 on every rank
head_dim                 never: it would split pairs

Words of this module:
  placement   where a tensor lies: Replicate (whole on every rank) or Shard (split along an axis);
              None for an argument that is no tensor
  rule        (placements of the outputs, placements of the arguments), one way in which every rank
              can compute its part alone; DTensor picks one, and moves tensors to fit it
  spec        the fingerprint of a RopeSpec, a string, because ops take no objects
  seq_dim     the axis of x that holds the tokens; ops.py explains the other arguments of the ops
"""

from __future__ import annotations

import torch

from ropewalk.errors import RopeError
from ropewalk.kernels.request import token_axes
from ropewalk.spec import spec_of


def register_rules() -> None:
    """Register the sharding rules with DTensor; call it once in each process, before the first
    DTensor is rotated.
    """
    try:
        from torch.distributed.tensor.experimental import register_sharding
    except ImportError:
        rule = (
            "must provide torch.distributed.tensor.experimental.register_sharding; use a newer "
            "version"
        )
        raise RopeError("torch", rule, torch.__version__) from None
    ops = torch.ops.ropewalk
    register_sharding(ops.rotate.default)(_rotate_rules)
    register_sharding(ops.rotate_.default)(_rotate_inplace_rules)
    register_sharding(ops.rotate_qk.default)(_rotate_qk_rules)
    register_sharding(ops.rotate_by_table.default)(_by_table_rules)
    register_sharding(ops.cos_sin.default)(_cos_sin_rules)


def _replicate(x):
    """Return Replicate() for a tensor, None for anything else."""
    from torch.distributed.tensor import Replicate

    return Replicate() if hasattr(x, "ndim") else None


def _shard(x, dim: int):
    """Return Shard along axis `dim` of x; a negative `dim` counts from the last axis."""
    from torch.distributed.tensor import Shard

    return Shard(dim % x.ndim)


def _rows_placement(positions, batch_rows: int):
    """Return where positions lie if x, with `batch_rows` rows, is sharded by rows: Shard of their
    batch axis, or Replicate if they have none or one row for several of x; None without positions.
    """
    # the batch axis of [S], [B, S] and [axes, B, S]
    dim = {1: None, 2: 0, 3: 1}.get(getattr(positions, "ndim", 0))
    if dim is None or (positions.shape[dim] == 1 and batch_rows != 1):
        return _replicate(positions)
    return _shard(positions, dim)


def _angle_rules(x, positions, length, seq_dim: int) -> list:
    """Return a list of (placement of x, of positions, of length): one for replicated tensors, and
    one for each axis along which x may be sharded.
    """
    # the axes of x; None for batch or head if x has no such axis
    seq, batch, head = token_axes(x.ndim, seq_dim)
    replicated = _replicate(positions), _replicate(length)
    rules = [(_replicate(x), *replicated)]
    if batch is not None:
        # positions and `length` are sharded too if they have a row or a number for each row of x
        per_row = getattr(length, "ndim", 0) == 1 and length.shape[0] > 1
        length_at = _shard(length, 0) if per_row else replicated[1]
        rules.append((_shard(x, batch), _rows_placement(positions, x.shape[batch]), length_at))
    if head is not None:
        rules.append((_shard(x, head), *replicated))
    if positions is not None:
        rules.append((_shard(x, seq), _shard(positions, -1), replicated[1]))
    return rules


def _rotate_rules(
    x, positions, offset, length, spec, tables, seq_dim, sign, magnitude_power, key
) -> list:
    """Return the rules of `rotate`."""
    others = [None] * 6  # the arguments after `length` are no tensors, and neither is `offset`
    return [
        ([x_at], [x_at, positions_at, None, length_at, *others])
        for x_at, positions_at, length_at in _angle_rules(x, positions, length, seq_dim)
    ]


def _rotate_inplace_rules(*args) -> list:
    """Return the rules of `rotate_`: those of `rotate`, without an output. torch raises an error if
    x would have to be resharded.
    """
    return [([], inputs) for _, inputs in _rotate_rules(*args)]


def _rotate_qk_rules(
    q, k, positions, offset, length, spec, tables, seq_dim, sign, magnitude_power
) -> list:
    """Return the rules of `rotate_qk`: q and k sharded alike, or q alone, by heads."""
    others = [None] * 5  # the arguments after `length` are no tensors, and neither is `offset`
    rules = [
        ([x_at, x_at], [x_at, x_at, positions_at, None, length_at, *others])
        for x_at, positions_at, length_at in _angle_rules(q, positions, length, seq_dim)
    ]
    _, _, head = token_axes(q.ndim, seq_dim)
    if head is not None:
        # k with too few heads to shard stays replicated while q is sharded
        q_at, k_at = _shard(q, head), _replicate(k)
        rules.append(
            ([q_at, k_at], [q_at, k_at, _replicate(positions), None, _replicate(length), *others])
        )
    return rules


def _by_table_rules(x, cos, sin, layout, layout_out, start, seq_dim) -> list:
    """Return the rules of `rotate_by_table`: tables are sharded as x is, or replicated if the same
    table is for the whole axis.
    """
    seq, batch, head = token_axes(x.ndim, seq_dim)
    others = [None] * 4  # the arguments that are no tensors
    placements = [(_replicate(x), _replicate(cos)), (_shard(x, seq), _shard(cos, -2))]
    # tables are [S, P], [B, S, P] or [B, H, S, P]; an axis of size 1 is broadcast
    for axis, dim, min_ndim in ((batch, 0, 3), (head, 1, 4)):
        if axis is not None:
            varies = cos.ndim >= min_ndim and cos.shape[dim] > 1
            placements.append((_shard(x, axis), _shard(cos, dim) if varies else _replicate(cos)))
    return [([x_at], [x_at, table_at, table_at, *others]) for x_at, table_at in placements]


def _cos_sin_rules(positions, length, magnitude_power, spec, tables, dtype, key) -> list:
    """Return the rules of `cos_sin`: the tables, its outputs, are sharded as positions are."""
    from torch.distributed.tensor import Shard

    # positions [S] give tables [S, P]; positions [B, S] or a length per row give [B, S, P]; axes
    # with frequencies for each head give [B, H, S, P]
    others = [None] * 5  # the arguments that are no tensors
    per_row = getattr(length, "ndim", 0) == 1
    token_axis = 2 if spec_of(spec).per_head else int(positions.ndim > 1 or per_row)
    replicated, tokens = _replicate(positions), Shard(token_axis)
    rules = [([replicated, replicated], [replicated, _replicate(length), *others])]
    rules.append(([tokens, tokens], [_shard(positions, -1), _replicate(length), *others]))
    # by rows, only without a length or with one for each row of positions; with a single length
    # rows stay whole
    if positions.ndim > 1 and (
        length is None or (per_row and length.shape[0] == positions.shape[-2])
    ):
        rows = Shard(0)  # the first axis of the tables, and of a length for each row
        rules.append(
            ([rows, rows], [_shard(positions, -2), None if length is None else rows, *others])
        )
    return rules
