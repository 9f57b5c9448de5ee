"""M-RoPE positions of text with images and videos, in the variants of its models.

Words of this module:
  segment     a Text, an Image or a Video of a row
  run         the tokens of a segment, or padding; on each axis (time, height, width) their
              positions are start + (index // stride) % size, see `_Run`
  grid        the tokens of an Image or a Video: frames, rows and columns
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int, Integer
from torch import Tensor

from ropewalk.errors import RopeError, choice, integer, number
from ropewalk.positions.text import MOST, Device, check_integers, consecutive

#: float32 represents every integer up to here
FLOAT32_REACH = 2**24


@dataclass(frozen=True)
class Text:
    """Text of `tokens` tokens, each of which has the same position on all three axes."""

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
    """frames x height x width patches, counted before merging; `interval` positions from one frame
    of tokens to the next.

    Qwen2.5-VL: interval = tokens_per_second * the seconds that one temporal patch lasts. Fractions
    are rounded down frame by frame.
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
        # with an interval of 1 positions are computed in integers alone
        if self.interval != 1 and self.frames * max(1.0, self.interval) >= FLOAT32_REACH:
            rule = (
                "must stay below 2^24 when multiplied by frames, as float32 holds larger integers "
                "only in part"
            )
            raise RopeError("interval", rule, self.interval)


Segment = Text | Image | Video


#: `origin` of `multimodal` -> the `resume` that belongs to it by default
ORIGINS = {"start": "space", "zero": "max", "time": "time"}


@dataclass(frozen=True)
class _Run:
    """Tokens whose position on axis a is starts[a] + (index // strides[a]) % sizes[a], where
    `index` counts the tokens of the run from 0; on the time axis the step, (index // strides[0]) %
    sizes[0], is also multiplied by `interval` and rounded down. The axes are time, height and
    width.

    With `follows_time`, the step along time is also added on the other axes.
    """

    tokens: int
    starts: tuple[int, int, int]
    strides: tuple[int, int, int]
    sizes: tuple[int, int, int]
    interval: float = 1.0
    follows_time: bool = False

    @property
    def last_time(self) -> int:
        """The time of the last frame."""
        # in float32, as the frames themselves are placed
        frame = (
            int(np.float32(self.sizes[0] - 1) * np.float32(self.interval))
            if self.interval != 1
            else self.sizes[0] - 1
        )
        return self.starts[0] + frame

    @property
    def last(self) -> int:
        """The largest position of the run on any axis, if rows and columns count from its start."""
        return max(
            self.last_time, self.starts[0] + self.sizes[1] - 1, self.starts[0] + self.sizes[2] - 1
        )


def multimodal(
    rows: Sequence[Sequence[Segment]],
    *,
    merge: int = 1,
    time_merge: int = 1,
    padding: str = "right",
    origin: str = "start",
    resume: str | None = None,
    device: Device = None,
) -> tuple[Int[Tensor, "3 B S"], Int[Tensor, "B"]]:
    """Return M-RoPE positions (time, height, width) of rows of text, images and videos, and the
    delta that decoding adds.

    Text has the same position on all axes; by default the cells of a grid that begins at c are at
    (c + frame, c + row, c + column). Padding has position 0. The delta of a row of the batch is its
    largest position + 1 - its number of tokens; see `decode_positions`. For this largest position
    the rows and columns of a grid count from c, whatever `origin` is, and with resume="time" only
    positions on the time axis count.

    merge       m: m x m patches make one token
    time_merge  t: the patches of t frames in a row make one token of a video (Ernie-4.5-VL)
    padding     the side on which shorter rows are padded, "right" or "left"
    origin      where rows and columns count from: "start" = c; "zero" = 0, the spatial reset of
                MRoPE-I; "time" = the time t of their own frame, centred, t + row - (height - 1) //
                2, as in VideoRoPE
    resume      the position after a grid: "space" = c + its longer side, as transformers 5 does;
                "max" = one past its largest position (counted from c), time included, as the
                models' first release did; "time" = one past the time of its last frame. None =
                "space" for the origin "start", "max" for "zero", "time" for "time"
    """
    choice("padding", padding, ("right", "left"))
    choice("origin", origin, ORIGINS)
    resume = choice(
        "resume", ORIGINS[origin] if resume is None else resume, ("space", "max", "time")
    )
    merges = integer("time_merge", time_merge, low=1), integer("merge", merge, low=1)
    if (
        not isinstance(rows, list | tuple)
        or not rows
        or not all(isinstance(row, list | tuple) for row in rows)
    ):
        raise RopeError(
            "rows", "must be a list of rows, each a list of Text, Image and Video", rows
        )
    runs_of_rows = [_runs_of(row, *merges, origin, resume) for row in rows]
    lengths = [sum(run.tokens for run in runs) for runs in runs_of_rows]
    longest = max(lengths)
    if longest * len(rows) > MOST:
        raise RopeError(
            "rows", f"must have at most {MOST} tokens, padding included", longest * len(rows)
        )
    filled: list[_Run] = []
    delta: list[int] = []
    for runs, length in zip(runs_of_rows, lengths, strict=True):
        # sizes of 1 put every token of the padding at position 0
        filler = [_Run(longest - length, (0, 0, 0), (1, 1, 1), (1, 1, 1))]
        filled += filler + runs if padding == "left" else runs + filler
        last = max((run.last_time if resume == "time" else run.last for run in runs), default=-1)
        delta.append(last + 1 - length)
    flat = _positions_of_runs(filled, len(rows) * longest, device)  # [3, B * S]
    return flat.reshape(3, len(rows), longest), _to_device(torch.tensor(delta), device)


def _runs_of(
    row: Sequence[Segment], time_merge: int, merge: int, origin: str, resume: str
) -> list[_Run]:
    """Return the runs of one row; each starts after the positions of the one before it. Raise an
    error for anything but segments. The other arguments are as in `multimodal`.
    """
    runs: list[_Run] = []
    first = 0  # the position of the next segment's first token
    for segment in row:
        if isinstance(segment, Text):
            tokens = segment.tokens
            # each token is one further than the one before it, on all axes
            run = _Run(tokens, (first, first, first), (1, 1, 1), (tokens, tokens, tokens))
            first += tokens
        elif not isinstance(segment, Image | Video):
            raise RopeError("rows", "must be rows of Text, Image and Video segments", segment)
        else:
            run = _grid_run(segment, first, time_merge, merge, origin)
            first = {
                "space": first + max(run.sizes[1:]),
                "max": run.last + 1,
                "time": run.last_time + 1,
            }[resume]
        if run.tokens:
            runs.append(run)
    return runs


def _grid_run(segment: Image | Video, first: int, time_merge: int, merge: int, origin: str) -> _Run:
    """Return the run of tokens of an image or a video that begins at position `first`; `origin`
    ("start", "zero" or "time") places its rows and columns; it and the merges are as in
    `multimodal`. Raise an error if its sides or frames are no multiples of the merged blocks.
    """
    if isinstance(segment, Image):  # a single frame, so there are none to merge
        frames, interval, time_merge = 1, 1.0, 1
    else:
        frames, interval = segment.frames, segment.interval
    for name, size in (("height", segment.height), ("width", segment.width)):
        if size % merge:
            raise RopeError(name, f"must be a multiple of merge = {merge}", size)
    if frames % time_merge:
        raise RopeError("frames", f"must be a multiple of time_merge = {time_merge}", frames)
    # the grid, in tokens
    t, h, w = (
        frames // time_merge,
        segment.height // merge,
        segment.width // merge,
    )
    # with the origin "time" rows and columns are centred around the time of their frame: here that
    # of the first one, to which the run then adds the step along time
    centred = (first - (h - 1) // 2, first - (w - 1) // 2)
    first_row, first_column = {"start": (first, first), "zero": (0, 0), "time": centred}[origin]
    # how many tokens; then for (time, height, width): the start, after how many tokens the position
    # grows, and after how many steps it begins again
    return _Run(
        t * h * w,
        (first, first_row, first_column),
        (h * w, w, 1),
        (t, h, w),
        interval,
        origin == "time",
    )


def _positions_of_runs(runs: list[_Run], total: int, device: Device) -> Int[Tensor, "3 T"]:
    """Return the position of every token of `runs`, which are `total` tokens in all, with a fixed
    number of operations, whatever the number of runs.
    """
    # a table with a row of 11 numbers for each run is copied to the device once; every token then
    # looks up the row of its run
    numbers = [
        [run.tokens, run.follows_time, *run.starts, *run.strides, *run.sizes] for run in runs
    ]
    table = _to_device(torch.tensor(numbers, dtype=torch.int64).reshape(-1, 11), device)
    intervals = _to_device(
        torch.tensor([run.interval for run in runs], dtype=torch.float32), device
    )
    tokens_of_runs = table[:, 0]
    # with the size given, nothing is read back
    run_of_token = torch.repeat_interleave(tokens_of_runs, output_size=total)
    tokens, follows_time, *by_axis = table[run_of_token].unbind(-1)
    starts, strides, sizes = (torch.stack(by_axis[i : i + 3]) for i in (0, 3, 6))  # [3, T]
    ends = tokens_of_runs.cumsum(0)[run_of_token]
    # the index of each token within its run
    index = torch.arange(total, device=table.device) - (ends - tokens)
    steps = (index // strides) % sizes
    interval = intervals[run_of_token]
    # rounded as transformers rounds: frame * interval in float32, then down
    steps[0] = torch.where(
        interval == 1, steps[0], (steps[0].to(torch.float32) * interval).to(torch.int64)
    )
    steps[1:] += follows_time * steps[0]
    return starts + steps


def decode_positions(
    delta: Integer[Tensor, "B"], index: int | Integer[Tensor, "B"], tokens: int = 1
) -> Int[Tensor, "3 B {tokens}"]:
    """Return M-RoPE positions of the next `tokens` text tokens after `index` real tokens (one
    count, or one for each row).

    `delta`, which `multimodal` returns, is the next position minus the number of tokens: an image
    takes fewer positions than it has tokens.
    """
    check_integers("delta", delta, "B")
    integer("tokens", tokens, low=0, high=MOST)
    if isinstance(index, Tensor):
        check_integers("index", index, "B")
        if index.shape[0] not in (1, delta.shape[0]):
            raise RopeError(
                "index",
                f"must be one count, or one for each of the {delta.shape[0]} rows",
                list(index.shape),
            )
    else:
        integer("index", index, low=0)
    first = delta.to(torch.int64) + index  # [B]
    return consecutive(tokens, first).expand(3, -1, -1)


def _to_device(host: Tensor, device: Device) -> Tensor:
    # a copy to the device, which does not synchronise
    return host if device is None else host.to(device, non_blocking=True)
