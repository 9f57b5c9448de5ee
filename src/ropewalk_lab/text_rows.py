"""Rows of tokens for one text or two: special tokens, token types, truncation and padding, as in
BERT.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk_lab.stateless_random import bits, fold, permuted
from ropewalk_lab.tokenizer import Tokenizer


class TextRow(NamedTuple):
    """The tokens of one row, and for each token 1 (uint8) if it belongs to the second text, else 0;
    both [n].
    """

    tokens: np.ndarray
    second: np.ndarray


def make_row(tokenizer: Tokenizer, first: str, second: str | None, length: int) -> TextRow:
    """Return the row of one text or two, of at most `length` tokens: [CLS] first [SEP] second
    [SEP].

    A tokenizer without a start token gives "first", or "first separator second"; a row that would
    be empty is one separator. The longer text is truncated first; if both are too long, each gets
    half of the room.
    """
    # tokens of both texts
    a, b = (tokenizer.encode(text.encode()).astype(np.int32) for text in (first, second or ""))
    end = np.array([tokenizer.separator], dtype=np.int32)
    has_start = tokenizer.start is not None  # then the row also ends in a separator
    # the number of special tokens: at both ends, and between two texts
    special = (2 if has_start else 0) + (0 if second is None else 1)
    room = length - special
    if room < 1:
        raise RopeError(
            "length",
            f"must be at least {special + 1}, to leave room for text beside {special} special tokens",
            length,
        )
    # the parts of the row, and of each part which text it belongs to, 0 or 1
    if second is None:
        parts, types = [a[:room]], [0]
    else:
        # tokens that remain of the shorter text
        shorter = min(len(a), len(b), room // 2)
        room_of_a = shorter if len(a) <= len(b) else room - shorter
        parts, types = [a[:room_of_a], end, b[: room - room_of_a]], [0, 0, 1]
    if has_start:
        parts, types = (
            [np.array([tokenizer.start], dtype=np.int32), *parts, end],
            [0, *types, types[-1]],
        )
    elif not any(len(part) for part in parts):
        parts = [end]  # attention needs at least one token
    return TextRow(
        np.concatenate(parts), np.repeat(types, [len(part) for part in parts]).astype(np.uint8)
    )


def pad_rows(rows: Sequence[TextRow], length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return (tokens, types, padding mask), each [rows, length]. Types are 1 for tokens of the
    second text, else 0; the mask is True for real tokens and False for padding.
    """
    tokens, types = (np.zeros((len(rows), length), dtype=dtype) for dtype in (np.int32, np.uint8))
    padding = np.zeros((len(rows), length), dtype=bool)
    for number, row in enumerate(rows):
        size = len(row.tokens)
        tokens[number, :size], types[number, :size] = row.tokens, row.second
        padding[number, :size] = True
    return torch.from_numpy(tokens), torch.from_numpy(types), torch.from_numpy(padding)


def shuffled(index: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Return which of `size` items each sample number uses: each pass uses every item once, in a
    new order.
    """
    passes, place = np.divmod(np.asarray(index, dtype=np.int64), size)
    return permuted(place, size, bits(fold(seed, size), passes, 0, 1)[:, 0])
