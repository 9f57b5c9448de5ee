"""What is asked of a kernel: a Turn says which angles, which pairs, which axes; a kernel says how."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ropewalk.frequencies import Length
from ropewalk.spec import RopeSpec
from ropewalk.table import cos_sin, first_rows, sides_differ


@dataclass(frozen=True, eq=False)
class Request:
    """One rotation of the dims [start, start + 2 * pairs) of tensors whose tokens lie along `seq_dim` (negative).

    `positions` is [S], [B, S] or [axes, B, S] on the tensors' device, or None for offset ... offset + S - 1.
    `sign` -1 turns backwards and swaps the layouts; `gain` is the power of the magnitude. Of two tensors the second is
    the key; a single one is if `key` says so.
    """

    spec: RopeSpec
    seq_dim: int
    positions: Tensor | None = None
    offset: int = 0
    length: Length = None
    sign: int = 1
    magnitude_power: int = 1
    key: bool = False

    @property
    def start(self) -> int:
        return self.spec.rotary_start

    @property
    def pairs(self) -> int:
        return self.spec.pairs

    @property
    def layout_in(self) -> str:
        return self.spec.layout if self.sign > 0 else self.spec.layout_out  # type: ignore[return-value]

    @property
    def layout_out(self) -> str:
        return self.spec.layout_out if self.sign > 0 else self.spec.layout  # type: ignore[return-value]

    def adjoint(self) -> Request:
        """The transpose: turns back with the same magnitude. The backward of a rotation, whatever the kernel."""
        return replace(self, sign=-self.sign)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(t for t in (self.positions, self.length) if isinstance(t, Tensor))

    def explicit_positions(self, seq: int, device: torch.device) -> Tensor:
        """The positions as a tensor, whether given or counted."""
        if self.positions is not None:
            return self.positions
        return torch.arange(self.offset, self.offset + seq, device=device)

    def sides_differ(self, device: torch.device) -> bool:
        """Whether `rows` of a key are others than those of a query."""
        return sides_differ(self.spec, device)

    def rows(self, seq: int, device: torch.device, dtype: torch.dtype, key: bool) -> tuple[Tensor, Tensor]:
        """cos and sin [S, P] or [B, S, P]; sin is negated for a turn backwards. Not to be written to."""
        counted = self.positions is None and self.offset >= 0 and self.magnitude_power == 1 and dtype == torch.float32
        kept = first_rows(self.spec, device, self.offset + seq, key) if counted else None
        if kept is not None:
            cos, sin = kept[0][self.offset :], kept[1][self.offset :]
        else:
            positions = self.explicit_positions(seq, device)
            cos, sin = cos_sin(
                self.spec, positions, length=self.length, dtype=dtype, magnitude_power=self.magnitude_power, key=key
            )
        return cos, (sin if self.sign > 0 else -sin)


@dataclass(frozen=True, eq=False)
class TableRequest:
    """A rotation by cos and sin the caller already has, [S, P], [B, S, P] or [B, H, S, P]."""

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
        return self.cos, self.sin

    def adjoint(self) -> TableRequest:
        return replace(self, sin=-self.sin, layout_in=self.layout_out, layout_out=self.layout_in)

    def sides_differ(self, device: torch.device) -> bool:
        return False

    def rows(self, seq: int, device: torch.device, dtype: torch.dtype, key: bool) -> tuple[Tensor, Tensor]:
        return self.cos.to(dtype), self.sin.to(dtype)


AnyRequest = Request | TableRequest


def table_dtype(x: Tensor) -> torch.dtype:
    """Angles are never below float32, and follow x above it."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def token_axes(ndim: int, seq_dim: int) -> tuple[int, int | None, int | None]:
    """(seq, batch, head) axes of x; batch is the first axis that is not the sequence, heads the next.

    [B, H, S, D], [B, S, H, D], [S, B, H, D] have all three; [B, S, D] has no heads, packed [T, H, D] no batch.
    """
    seq = seq_dim % ndim
    others = [axis for axis in range(ndim - 1) if axis != seq]
    if ndim == 3 and seq == 0:
        return seq, None, others[0]
    return seq, others[0] if others else None, others[1] if len(others) > 1 else None


def align(table: Tensor, x: Tensor, seq_dim: int) -> Tensor:
    """A table [S, P], [B, S, P] or [B, H, S, P] as a view that broadcasts against x's pairs."""
    seq, batch, head = token_axes(x.ndim, seq_dim)
    while table.ndim < 4:
        table = table.unsqueeze(0 if table.ndim == 2 else 1)
    placed = [(axis, size) for axis, size in ((batch, 0), (head, 1), (seq, 2)) if axis is not None]
    dropped = [d for d in (0, 1) if d not in [d for _, d in placed]]
    shape = [1] * x.ndim
    shape[-1] = table.shape[-1]
    for axis, dim in placed:
        shape[axis] = table.shape[dim]
    order = [dim for _, dim in sorted(placed)]
    return table.permute(*dropped, *order, 3).reshape(shape)
