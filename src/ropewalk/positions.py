"""Positions: functions that build the integer tensors that `Rope` takes: [S], [B, S], or [axes, B, S] for images and video.

Nothing is read back from the device: sizes are Python numbers, and whatever depends on tensor values stays on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from ropewalk.errors import RopeError, choice, integer, number

Device = torch.device | str | None
MOST = 2**31
#: float32 represents every integer up to here
FLOAT32_REACH = 2**24


def consecutive(seq: int, offset: int | Integer[Tensor, "B"] = 0, device: Device = None) -> Int[Tensor, "*B S"]:
    """Return offset, offset + 1, ...: [S] for an int, [B, S] for one offset a row (a cache whose rows differ in length)."""
    integer("seq", seq, low=0, high=MOST)
    if isinstance(offset, Tensor):
        _check_integers("offset", offset, "B")
        # "cuda" and "cuda:0" are the same device, but do not compare equal
        if device is not None and torch.empty(0, device=device).device != offset.device:
            raise RopeError("device", f"must be the device of offset, {offset.device}, or left out", str(device))
        return offset.to(torch.int64).unsqueeze(-1) + torch.arange(seq, device=offset.device)
    integer("offset", offset, low=-(2**62))
    return torch.arange(offset, offset + seq, device=device)


def packed(cu_seqlens: Integer[Tensor, "N"], total: int | None = None) -> Int[Tensor, "T"]:
    """Return positions that start again at every boundary of packed sequences.

    cu_seqlens  [N + 1] = 0, end of the first sequence, end of the second, ...
    total       the number of tokens; needed where cu_seqlens is not on the CPU, to avoid a read-back. Tokens past the last
                boundary are one more sequence
    """
    _check_integers("cu_seqlens", cu_seqlens, "N")
    # values cannot be read while compiling either
    readable = cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling()
    if not len(cu_seqlens):
        raise RopeError("cu_seqlens", "must begin with 0", [])
    ends = cu_seqlens.to(torch.int64)
    if total is None:
        if not readable:
            raise RopeError("total", f"must be given for boundaries on {ends.device}: reading them would synchronise", None)
        total = int(ends[-1])
    token = torch.arange(integer("total", total, low=0, high=MOST), device=ends.device)
    _require_boundaries(ends, total, readable)
    sequence = torch.searchsorted(ends, token, right=True) - 1
    return token - ends[sequence]


def _require_boundaries(ends: Tensor, total: int, readable: bool) -> None:
    rule = "must begin with 0, never decrease and end at most at `total`"
    valid = (ends[0] == 0) & (ends.diff() >= 0).all() & (ends[-1] <= total)
    if not readable:
        torch.ops.aten._assert_async.msg(valid, f"cu_seqlens: {rule}")
    elif not valid:
        raise RopeError("cu_seqlens", rule, [*ends.tolist(), f"total={total}"])


def left_padded(mask: Bool[Tensor, "B S"] | Integer[Tensor, "B S"]) -> Int[Tensor, "B S"]:
    """Return positions that count the real tokens of each row: the first token with mask 1, and padding before it, are at 0."""
    _check_integers("mask", mask, "BS", or_bool=True)
    return (mask.to(torch.int64).cumsum(dim=-1) - 1).clamp(min=0)


def grid(*sizes: int, merge: int = 1, start: int | Sequence[int] = 0, device: Device = None) -> Int[Tensor, "A 1 N"]:
    """Return the coordinates of every cell in raster order, the last axis fastest: `grid(h, w)` or `grid(t, h, w)`.

    merge  m > 1 orders the last two axes in m x m blocks, as Qwen-VL's image encoder orders its patches
    start  the coordinate of the first cell, one for all axes or one each
    """
    if not sizes:
        raise RopeError("sizes", "must name at least one axis, such as grid(height, width)", sizes)
    for axis, size in enumerate(sizes):
        integer(f"sizes[{axis}]", size, low=1, high=MOST)
    starts = list(start) if isinstance(start, list | tuple) else [start] * len(sizes)
    if len(starts) != len(sizes):
        raise RopeError("start", f"must be one integer or one for each of the {len(sizes)} axes", start)
    starts = [integer("start", first, low=-(2**62)) for first in starts]
    lines = [torch.arange(first, first + size, device=device) for first, size in zip(starts, sizes, strict=True)]
    cells = torch.stack(torch.meshgrid(*lines, indexing="ij"))  # [A, *sizes]
    if integer("merge", merge, low=1, high=MOST) > 1:
        if len(sizes) < 2 or sizes[-1] % merge or sizes[-2] % merge:
            raise RopeError("merge", "must divide the last two sizes", [merge, *sizes])
        height, width = sizes[-2] // merge, sizes[-1] // merge
        cells = cells.unflatten(-1, (width, merge)).unflatten(-3, (height, merge)).transpose(-3, -2)
    return cells.reshape(len(sizes), 1, -1)


def patch_centres(
    height: int, width: int, scale: float = 1.0, dtype: torch.dtype = torch.float64, device: Device = None
) -> Float[Tensor, "2 1 N"]:
    """Return (y, x) centres of the patches of an image whose sides run from -1 to 1, in raster order, times `scale`.

    For `axes.normalised`. `scale=2 * math.pi` makes a frequency of 1 one turn over half the image: DINOv3's rule.
    """
    number("scale", scale)
    sides = [integer(name, size, low=1, high=MOST) for name, size in (("height", height), ("width", width))]
    lines = [(2 * torch.arange(n, dtype=torch.float64, device=device) + 1) / n - 1 for n in sides]
    centres = torch.stack(torch.meshgrid(*lines, indexing="ij")).reshape(2, 1, -1)
    return (centres * scale).to(dtype)


@dataclass(frozen=True)
class Text:
    """`tokens` tokens, the same position on all three axes."""

    tokens: int

    def __post_init__(self) -> None:
        integer("tokens", self.tokens, low=0, high=MOST)


@dataclass(frozen=True)
class Image:
    """A grid of height x width patches, counted before merging."""

    height: int
    width: int

    def __post_init__(self) -> None:
        integer("height", self.height, low=1, high=MOST)
        integer("width", self.width, low=1, high=MOST)


@dataclass(frozen=True)
class Video:
    """frames x height x width patches, counted before merging; `interval` positions from one frame to the next.

    Qwen2.5-VL: interval = tokens_per_second * seconds a temporal patch lasts. Fractions are rounded down frame by frame.
    """

    frames: int
    height: int
    width: int
    interval: float = 1.0

    def __post_init__(self) -> None:
        integer("frames", self.frames, low=1, high=MOST)
        integer("height", self.height, low=1, high=MOST)
        integer("width", self.width, low=1, high=MOST)
        object.__setattr__(self, "interval", number("interval", self.interval, low=0))
        if self.interval != 1 and self.frames * max(1.0, self.interval) >= FLOAT32_REACH:
            raise RopeError(
                "interval", "times frames must stay below 2^24, the limit of exact integers in float32", self.interval
            )


Segment = Text | Image | Video


@dataclass(frozen=True)
class _Run:
    """Tokens whose position on axis a is start + (index // strides[a]) % sizes[a]; time in steps of `interval`."""

    tokens: int
    start: int
    strides: tuple[int, int, int]
    sizes: tuple[int, int, int]
    interval: float = 1.0

    @property
    def last(self) -> int:
        """The largest position of the run on any axis."""
        # in float32, as the frames themselves are placed
        frame = int(np.float32(self.sizes[0] - 1) * np.float32(self.interval)) if self.interval != 1 else self.sizes[0] - 1
        return self.start + max(frame, self.sizes[1] - 1, self.sizes[2] - 1)


def multimodal(
    rows: Sequence[Sequence[Segment]],
    *,
    merge: int = 1,
    time_merge: int = 1,
    padding: str = "right",
    resume: str = "space",
    device: Device = None,
) -> tuple[Int[Tensor, "3 B S"], Int[Tensor, "B"]]:
    """Return M-RoPE positions (time, height, width) of rows of text, images and videos, and the delta that decoding adds.

    Text has the same position on all axes; the cells of a grid that begins at c are at (c + frame, c + row, c + column). The
    delta of a row is its largest position + 1 - its number of tokens; see `decode_positions`. Padding has position 0.

    merge       m x m patches make one token; `time_merge` the same for the frames of videos (Ernie-4.5-VL)
    padding     the side on which shorter rows are padded, "right" or "left"
    resume      the position after a grid: "space" = c + its longer side, as transformers 5 does;
                "max" = one past its largest position, time included, as the models' first release did
    """
    choice("padding", padding, ("right", "left"))
    choice("resume", resume, ("space", "max"))
    merges = integer("time_merge", time_merge, low=1), integer("merge", merge, low=1)
    if not isinstance(rows, list | tuple) or not rows or not all(isinstance(row, list | tuple) for row in rows):
        raise RopeError("rows", "must be a list of rows, each a list of Text, Image and Video", rows)
    runs_of_rows = [_runs_of(row, *merges, resume) for row in rows]
    lengths = [sum(run.tokens for run in runs) for runs in runs_of_rows]
    longest = max(lengths)
    filled: list[_Run] = []
    delta: list[int] = []
    for runs, length in zip(runs_of_rows, lengths, strict=True):
        filler = [_Run(longest - length, 0, (1, 1, 1), (1, 1, 1))]
        filled += filler + runs if padding == "left" else runs + filler
        delta.append(max((run.last for run in runs), default=-1) + 1 - length)
    flat = _positions_of_runs(filled, len(rows) * longest, device)  # [3, B * S]
    return flat.reshape(3, len(rows), longest), _to_device(torch.tensor(delta), device)


def _runs_of(row: Sequence[Segment], time_merge: int, merge: int, resume: str) -> list[_Run]:
    """Return the runs of one row; each starts after the positions of the one before it."""
    runs: list[_Run] = []
    at = 0
    for segment in row:
        if isinstance(segment, Text):
            run = _Run(segment.tokens, at, (1, 1, 1), (segment.tokens, segment.tokens, segment.tokens))
            at += segment.tokens
        elif not isinstance(segment, Image | Video):
            raise RopeError("rows", "must be rows of Text, Image and Video segments", segment)
        else:
            run = _grid_run(segment, at, time_merge, merge)
            at = run.last + 1 if resume == "max" else at + max(run.sizes[1:])
        if run.tokens:
            runs.append(run)
    return runs


def _grid_run(segment: Image | Video, at: int, time_merge: int, merge: int) -> _Run:
    frames, interval = (segment.frames, segment.interval) if isinstance(segment, Video) else (1, 1.0)
    time_merge = time_merge if isinstance(segment, Video) else 1
    sides = (("frames", frames, time_merge), ("height", segment.height, merge), ("width", segment.width, merge))
    for name, size, by in sides:
        if size % by:
            raise RopeError(name, f"must be a multiple of {'time_merge' if name == 'frames' else 'merge'} = {by}", size)
    t, h, w = (size // by for _, size, by in sides)
    return _Run(t * h * w, at, (h * w, w, 1), (t, h, w), interval)


def _positions_of_runs(runs: list[_Run], total: int, device: Device) -> Int[Tensor, "3 T"]:
    """Return the position of every token of `runs` with a fixed number of operations, whatever the number of runs."""
    numbers = [[run.tokens, run.start, *run.strides, *run.sizes] for run in runs]
    table = _to_device(torch.tensor(numbers, dtype=torch.int64).reshape(-1, 8), device)
    intervals = _to_device(torch.tensor([run.interval for run in runs], dtype=torch.float32), device)
    tokens = table[:, 0]
    run_of_token = torch.repeat_interleave(tokens, output_size=total)  # with the size given, nothing is read back
    tokens, start, *rest = table[run_of_token].unbind(-1)
    strides, sizes = torch.stack(rest[:3]), torch.stack(rest[3:])  # [3, T]
    ends = table[:, 0].cumsum(0)[run_of_token]
    index = torch.arange(total, device=table.device) - (ends - tokens)
    steps = (index // strides) % sizes
    interval = intervals[run_of_token]
    # rounded as transformers rounds: frame * interval in float32, then down
    steps[0] = torch.where(interval == 1, steps[0], (steps[0].to(torch.float32) * interval).to(torch.int64))
    return start + steps


def decode_positions(
    delta: Integer[Tensor, "B"], index: int | Integer[Tensor, "B"], tokens: int = 1
) -> Int[Tensor, "3 B {tokens}"]:
    """Return M-RoPE positions of the next `tokens` text tokens after `index` real tokens (one count, or one a row)."""
    _check_integers("delta", delta, "B")
    integer("tokens", tokens, low=0, high=MOST)
    if isinstance(index, Tensor):
        _check_integers("index", index, "B")
    else:
        integer("index", index, low=0)
    first = delta.to(torch.int64) + index  # [B]
    return consecutive(tokens, first).expand(3, -1, -1)


def _check_integers(name: str, value: object, axes: str, or_bool: bool = False) -> None:
    """Check that `value` is an integer tensor with one axis for each letter of `axes`."""
    if not isinstance(value, Tensor):
        raise RopeError(name, f"must be an integer tensor [{', '.join(axes)}]", type(value))
    counts = not value.is_floating_point() and not value.is_complex() and (or_bool or value.dtype != torch.bool)
    if not counts or value.ndim != len(axes):
        raise RopeError(name, f"must be an integer tensor [{', '.join(axes)}]", [value.dtype, list(value.shape)])


def _to_device(host: Tensor, device: Device) -> Tensor:
    # a copy to the device, which does not synchronise
    return host if device is None else host.to(device, non_blocking=True)
