"""Positions of text: consecutive, packed and left-padded tokens."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int, Integer
from torch import Tensor

from ropewalk.errors import RopeError, integer

Device = torch.device | str | None
#: the most tokens that positions are built for
MOST = 2**31


def consecutive(
    seq: int, offset: int | Integer[Tensor, "B"] = 0, device: Device = None
) -> Int[Tensor, "*B S"]:
    """Return offset, offset + 1, ...: [S] for an int, [B, S] for an offset per row (a cache whose
    rows differ in length).
    """
    integer("seq", seq, low=0, high=MOST)
    if isinstance(offset, Tensor):
        check_integers("offset", offset, "B")
        # "cuda" and "cuda:0" are the same device, but do not compare equal
        if device is not None and torch.empty(0, device=device).device != offset.device:
            raise RopeError(
                "device", f"must be the device of offset, {offset.device}, or left out", str(device)
            )
        return offset.to(torch.int64).unsqueeze(-1) + torch.arange(seq, device=offset.device)
    integer("offset", offset, low=-(2**62))  # the upper bound is 2^62 by default
    return torch.arange(offset, offset + seq, device=device)


def packed(cu_seqlens: Integer[Tensor, "N"], total: int | None = None) -> Int[Tensor, "T"]:
    """Return positions that start again at every boundary of packed sequences.

    cu_seqlens  [N]: 0, the end of the first sequence, the end of the second, ...
    total       the number of tokens; needed where cu_seqlens is not on the CPU, and under
                torch.compile, to avoid a read-back. Tokens past the last boundary are one more
                sequence
    """
    check_integers("cu_seqlens", cu_seqlens, "N")
    # values are read on the CPU only, and not while compiling
    readable = cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling()
    if not len(cu_seqlens):
        raise RopeError("cu_seqlens", "must begin with 0", [])
    ends = cu_seqlens.to(torch.int64)
    if total is None:
        if not readable:
            raise RopeError(
                "total",
                f"must be given for boundaries on {ends.device}: reading them would synchronise",
                None,
            )
        total = max(int(ends[-1]), 0)  # a negative end is refused as a boundary
    token = torch.arange(integer("total", total, low=0, high=MOST), device=ends.device)
    _require_boundaries(ends, total, readable)
    sequence = torch.searchsorted(ends, token, right=True) - 1
    return token - ends[sequence]


def _require_boundaries(ends: Tensor, total: int, readable: bool) -> None:
    """Raise an error if the boundaries `ends` are not valid: now if `readable`, otherwise when the
    check runs on the device.
    """
    rule = "must begin with 0, never decrease and end at most at `total`"
    valid = (ends[0] == 0) & (ends.diff() >= 0).all() & (ends[-1] <= total)
    if not readable:
        torch.ops.aten._assert_async.msg(valid, f"cu_seqlens: {rule}")
    elif not valid:
        raise RopeError("cu_seqlens", rule, [*ends.tolist(), f"total={total}"])


def left_padded(mask: Bool[Tensor, "B S"] | Integer[Tensor, "B S"]) -> Int[Tensor, "B S"]:
    """Return positions that count the tokens of each row whose mask is not 0, from 0 on. Padding
    has the position of the counted token before it, or 0 if there is none.
    """
    check_integers("mask", mask, "BS", or_bool=True)
    return ((mask != 0).cumsum(dim=-1) - 1).clamp(min=0)


def check_integers(name: str, value: object, axes: str, or_bool: bool = False) -> None:
    """Raise an error unless `value` is an integer tensor (or a boolean one if `or_bool`) with one
    axis for each letter of `axes`.
    """
    kind = "a boolean or integer" if or_bool else "an integer"
    rule = f"must be {kind} tensor [{', '.join(axes)}]"
    if not isinstance(value, Tensor):
        raise RopeError(name, rule, type(value))
    is_integer = (
        not value.is_floating_point()
        and not value.is_complex()
        and (or_bool or value.dtype != torch.bool)
    )
    if not is_integer or value.ndim != len(axes):
        raise RopeError(name, rule, [value.dtype, list(value.shape)])
