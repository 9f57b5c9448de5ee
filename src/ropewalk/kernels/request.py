"""Request and TableRequest: one rotation to carry out, independent of the kernel: its angles, its
pairs and its axes.

Words of this module:
  B, H, S, P  batch rows, heads, tokens and pairs
  rows        cos and sin, one row for each token; a cached table has one for each position from 0
  seq_dim     the axis of the tokens, counted from the end
  key         for attention keys, whose magnitude may differ from that of queries
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from ropewalk.spec import RopeSpec
from ropewalk.table import cos_sin, first_rows, keys_have_own_table, rows_at
from ropewalk.tensor_frequencies import Length

#: dtypes that every kernel computes in float32; float64 tensors are computed in float64, only by
#: the torch backends
COMPUTED_IN_FLOAT32 = (torch.float32, torch.bfloat16, torch.float16)

_SomeRequest = TypeVar("_SomeRequest", bound="_OfTensors")


class _OfTensors:
    """The base of both requests: which tensors of a call are attention keys. They are the second of
    two, or all if `key` is True.
    """

    key: bool

    def is_key(self, index: int) -> bool:
        """Return whether tensor `index` of the call is an attention key."""
        return self.key or index == 1

    def of_tensor(self: _SomeRequest, index: int) -> _SomeRequest:
        """Return the request for a call with only tensor `index`."""
        # both subclasses are dataclasses
        return replace(self, key=self.is_key(index))  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class Request(_OfTensors):
    """One rotation of the dims [start, start + 2 * pairs) of tensors whose tokens are along
    `seq_dim` (negative).

    positions        [S], [B, S] or [axes, B, S] on the tensors' device; None for offset ... offset
                     + S - 1
    length           the sequence length, or one for each batch row, that length-dependent
                     frequencies are computed for; None for the trained length
    sign             -1 rotates backwards and swaps the layouts
    magnitude_power  the power of the spec's magnitude: 1 applies it, 0 leaves it out, -1 divides by
                     it
    key              True if every tensor is an attention key; if False, only the second of two is
    tables           which tables are kept, of `strategies.STRATEGIES`
    """

    spec: RopeSpec
    seq_dim: int
    positions: Tensor | None = None
    offset: int = 0
    length: Length = None
    sign: int = 1
    magnitude_power: int = 1
    key: bool = False
    tables: str = "auto"

    @property
    def start(self) -> int:
        return self.spec.rotary_start

    @property
    def pairs(self) -> int:
        return self.spec.pairs

    @property
    def layout_in(self) -> str:
        return self.spec.layout if self.sign > 0 else self.spec.output_layout  # type: ignore[return-value]

    @property
    def layout_out(self) -> str:
        return self.spec.output_layout if self.sign > 0 else self.spec.layout  # type: ignore[return-value]

    def adjoint(self) -> Request:
        """Return the transposed rotation, which computes gradients: the opposite angles with the
        same magnitude.
        """
        return replace(self, sign=-self.sign)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that this request contains."""
        return tuple(t for t in (self.positions, self.length) if isinstance(t, Tensor))

    def explicit_positions(self, seq: int, device: torch.device) -> Tensor:
        """Return the positions as a tensor; if they are None, offset ... offset + seq - 1."""
        if self.positions is not None:
            return self.positions
        return torch.arange(self.offset, self.offset + seq, device=device)

    def keys_have_own_rows(self, device: torch.device) -> bool:
        """Return whether `rows(..., key=True)` differs from `rows(..., key=False)`."""
        return keys_have_own_table(self.spec, device, self.tables)

    def rows(
        self, seq: int, device: torch.device, dtype: torch.dtype, key: bool
    ) -> tuple[Tensor, Tensor]:
        """Return cos and sin of `seq` tokens and P pairs, of attention keys if `key`: [S, P] or [B,
        S, P], or [B, H, S, P] if the spec's axes differ from head to head.

        sin is negated if sign is -1. Both may be cached: do not write to them.
        """
        rows = None
        # cached rows are float32 and include the magnitude once
        if self.magnitude_power == 1 and dtype == torch.float32:
            rows = self._cached_rows(seq, device, key)
        if rows is None:
            options = {
                "length": self.length,
                "magnitude_power": self.magnitude_power,
                "key": key,
                "strategy": self.tables,
            }
            rows = cos_sin(self.spec, self.explicit_positions(seq, device), dtype=dtype, **options)
        cos, sin = rows
        return cos, (sin if self.sign > 0 else -sin)

    def _cached_rows(
        self, seq: int, device: torch.device, key: bool
    ) -> tuple[Tensor, Tensor] | None:
        """Return float32 cos and sin, magnitude included, of keys if `key`, else of queries, from a
        cached table; None if no table has them, as for frequencies that depend on the length.
        """
        if self.positions is not None:
            return rows_at(self.spec, self.positions, key, self.tables)
        # row i of the table is position i, so no table has negative positions
        table = (
            first_rows(self.spec, device, self.offset + seq, key, self.tables)
            if self.offset >= 0
            else None
        )
        return None if table is None else (table[0][self.offset :], table[1][self.offset :])


@dataclass(frozen=True, eq=False)
class TableRequest(_OfTensors):
    """A rotation by cos and sin that the caller passes, [S, P], [B, S, P] or [B, H, S, P]; it has
    the attributes and methods of `Request` that every kernel needs.
    """

    cos: Tensor
    sin: Tensor
    seq_dim: int
    layout_in: str
    layout_out: str
    start: int = 0
    key: bool = False

    @property
    def pairs(self) -> int:
        return self.cos.shape[-1]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that this request contains."""
        return self.cos, self.sin

    def adjoint(self) -> TableRequest:
        """Return the transposed rotation, which computes gradients: it reads the layout in which
        this one writes, and writes that in which it reads.
        """
        return replace(self, sin=-self.sin, layout_in=self.layout_out, layout_out=self.layout_in)

    def keys_have_own_rows(self, device: torch.device) -> bool:
        """Return False: queries and keys rotate by the same cos and sin."""
        return False

    def rows(
        self, seq: int, device: torch.device, dtype: torch.dtype, key: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the given cos and sin in `dtype`; only a `Request` needs the other arguments."""
        return self.cos.to(dtype), self.sin.to(dtype)


AnyRequest = Request | TableRequest


def table_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of cos and sin for rotating x: float64 for float64, otherwise float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def token_axes(ndim: int, seq_dim: int) -> tuple[int, int | None, int | None]:
    """Return the (seq, batch, head) axes of x, which has `ndim` axes, counted from 0; None for an
    axis that x does not have. Batch is the first axis other than seq, head the second.

    [B, H, S, D], [B, S, H, D] and [S, B, H, D] have all three; [B, S, D] has no heads, packed [T,
    H, D] has no batch. The last axis, D, is none of them.
    """
    seq = seq_dim % ndim
    others = [axis for axis in range(ndim - 1) if axis != seq]
    if ndim == 3 and seq == 0:  # packed [T, H, D]
        return seq, None, others[0]
    return seq, others[0] if others else None, others[1] if len(others) > 1 else None


def align(table: Tensor, x: Tensor, seq_dim: int) -> Tensor:
    """Return a table [S, P], [B, S, P] or [B, H, S, P] as a view that broadcasts against x's pairs:
    with x's axes in their order, and P in place of the dimensions of a head.
    """
    seq, batch, head = token_axes(x.ndim, seq_dim)
    while table.ndim < 4:  # [S, P] -> [1, S, P] -> [1, 1, S, P], and [B, S, P] -> [B, 1, S, P]
        table = table.unsqueeze(0 if table.ndim == 2 else 1)
    # (axis of x, axis of the table) of batch, head and seq; an axis of the table that x does not
    # have is of size 1
    matched = [(axis, dim) for axis, dim in ((batch, 0), (head, 1), (seq, 2)) if axis is not None]
    unmatched = [dim for axis, dim in ((batch, 0), (head, 1)) if axis is None]
    shape = [1] * x.ndim
    shape[-1] = table.shape[-1]
    for axis, dim in matched:
        shape[axis] = table.shape[dim]
    order = [dim for _, dim in sorted(matched)]
    return table.permute(*unmatched, *order, 3).reshape(shape)
