"""Windows of a long text, and losses on them: by band of positions, and on the tokens that need a
long context (LongPPL).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.errors import RopeError, integer
from ropewalk_lab.fit.reader import Reader

#: positions from the first number to below the second
Band = tuple[int, int]
#: LongPPL's limits in nats: a long context lowers the loss of a key token by more than GAIN, to
#: less than LIMIT
GAIN = LIMIT = 2.0
#: the most tokens in one forward pass over pieces of a window, unless one piece has more
BATCH_TOKENS = 1 << 15


def read_text(path: str | Path) -> str:
    """Return the text of a file, or of the .txt files of a folder in natural order (chapter_2
    before chapter_10): each stripped, with an empty line between two.
    """
    path = Path(path)
    files = (
        sorted(path.glob("*.txt"), key=lambda each: _natural(each.name))
        if path.is_dir()
        else [path]
    )
    if not files or not all(each.is_file() for each in files):
        raise RopeError("text", "must be a text file, or a folder with .txt files", str(path))
    return "\n\n".join(
        each.read_text(encoding="utf-8-sig", errors="replace").strip() for each in files
    )


def _natural(name: str) -> list[Any]:
    """Return a sort key: the texts and numbers that a name consists of, in turns."""
    parts = re.split(r"([0-9]+)", name)  # every second part is a number
    return [int(part) if index % 2 else part for index, part in enumerate(parts)]


def windows_of(tokens: Sequence[int] | Tensor, length: int, count: int) -> Tensor:
    """Return `count` windows [count, length] of a text's tokens, which start at equal distances and
    do not overlap; raise an error if the text is too short.
    """
    tokens = torch.as_tensor(tokens, dtype=torch.long)
    room = len(tokens) // integer("length", length, low=2)  # the number of windows that fit
    if room < count:
        rule = (
            f"must have at least {count} x {length} = {count * length} tokens for windows that do "
            "not overlap"
        )
        raise RopeError(
            "text", f"{rule}; use a longer text or fewer windows", f"{len(tokens)} tokens"
        )
    step = len(tokens) // count
    return torch.stack([tokens[place * step : place * step + length] for place in range(count)])


def bands_of(trained: int, to: int) -> list[Band]:
    """Return the bands of positions: both halves of the trained length, then bands that end at
    twice the end of the one before, up to `to`.
    """
    ends = [0, max(1, trained // 2), trained]
    while ends[-1] < to:
        ends.append(min(2 * ends[-1], to))
    # a trained length of 1 token has no second half
    return [(low, high) for low, high in pairwise(ends) if low < high]


def band_means(losses: Tensor, bands: Sequence[Band]) -> list[float]:
    """Return the mean loss of each band; losses [S - 1] begin with that of token 1. A band without
    tokens gives NaN.
    """
    return [float(losses[max(0, low - 1) : high - 1].double().mean()) for low, high in bands]


def limited_losses(reader: Reader, window: Tensor, context: int, stride: int) -> Tensor:
    """Return the loss [S - 1] of every token of a window, beginning with token 1, read with a short
    context.

    The window is read in overlapping pieces of `context + stride` tokens, the last one shorter if
    the window ends before. They start `stride` tokens apart, and positions begin at 0 in each. A
    piece gives the losses of the tokens after its first `context` ones, so that each of them has at
    least `context` tokens before it. The first piece gives all its losses.
    """
    length, piece = len(window), context + stride
    losses = torch.empty(length - 1)
    losses[: piece - 1] = reader.losses(window[None, :piece])[0]
    starts = list(range(stride, length - context, stride))
    whole = [start for start in starts if start + piece <= length]
    batch_size = max(1, BATCH_TOKENS // piece)
    for index in range(0, len(whole), batch_size):
        batch = whole[index : index + batch_size]
        piece_losses = reader.losses(
            torch.stack([window[start : start + piece] for start in batch]), first=context
        )
        for start, each in zip(batch, piece_losses, strict=True):
            losses[start + context - 1 : start + piece - 1] = each
    if len(whole) < len(starts):  # the last piece is shorter
        start = starts[-1]
        losses[start + context - 1 :] = reader.losses(window[None, start:], first=context)[0]
    return losses


@dataclass(frozen=True)
class KeyTokens:
    """Which tokens of a window need a long context, bool [S - 1], beginning with token 1."""

    mask: Tensor

    def total(self, losses: Tensor) -> tuple[float, int]:
        """Return the sum of the losses of the tokens in `mask`, and their number."""
        return float(losses[self.mask].double().sum()), int(self.mask.sum())


def key_tokens(reader: Reader, window: Tensor, trained: int) -> KeyTokens:
    """Return the tokens whose loss falls by more than GAIN, to less than LIMIT, between a short and
    a long context.

    The losses are those of the model before it is extended, within its trained length, so the
    tokens are the same for every method. The short context is a quarter of the trained length or
    slightly more, the long one at least three quarters; tokens near the start of the window have
    less context.
    """
    quarter = max(1, trained // 4)
    short = limited_losses(reader, window, quarter, max(1, quarter // 4))
    long = limited_losses(reader, window, 3 * quarter, quarter)
    return KeyTokens((short - long > GAIN) & (long < LIMIT))


def long_ppl(sums: Sequence[float], counts: Sequence[int]) -> float | None:
    """Return LongPPL: the exponential of the mean loss of all key tokens; None if there are none.

    `sums` and `counts` are those of `KeyTokens.total` for each window. A mean beyond 700 nats gives
    infinity: its exponential is no float.
    """
    if not sum(counts):
        return None
    mean = sum(sums) / sum(counts)
    return math.inf if mean > 700.0 else math.exp(mean)
