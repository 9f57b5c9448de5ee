"""Generated tasks: each sample is a pure function of (seed, index, length), with a mask of the
tokens to predict.

Tokens are bytes, so one model can train on text and tasks. A whole batch is generated at once.

Words of this module:
  index   the numbers of the samples of a batch [B]
  stream  a number for each random choice of a task; different streams give independent numbers
  target  a token that the model should predict
  depth   where something lies in a row, from 0 (start) to 1 (end)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ropewalk.errors import RopeError, integer, number
from ropewalk_lab.stateless_random import below, bits, fold, uniform

#: the byte that fills positions without content
PADDING = 0
LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype=np.uint8)
DIGITS = np.frombuffer(b"0123456789", dtype=np.uint8)
FILLER, BAR, ASK, PLUS, EQUALS = b".|?+="


class Sample(NamedTuple):
    """Rows of tokens [B, length], and which of them the model should predict, bool [B, length]."""

    tokens: np.ndarray
    is_target: np.ndarray


@dataclass(frozen=True)
class Task:
    """A task: `make` makes samples, as `__call__` describes it; `shortest` is the fewest tokens of
    a row, and `about` an example or a description.
    """

    make: Callable[..., Sample]
    shortest: int
    about: str

    def __call__(self, seed: int, index: np.ndarray, length: int, **options) -> Sample:
        """Return the samples with the numbers `index`, of `length` tokens each; `options` are those
        of the task.
        """
        if integer("length", length, low=1) < self.shortest:
            raise RopeError("length", f"must be at least {self.shortest} for this task", length)
        # another seed than that of text, whose batches use the same sample numbers
        return self.make(fold(seed, 77), np.asarray(index, dtype=np.int64), length, **options)


def transcription(order: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Sample]:
    """Return a function that makes samples "x1 ... xn|y1 ... yn", where y is x in another order.

    `order` takes words x [B, largest n] as letter numbers, with len(LETTERS) in the columns after
    the last letter, and returns for each column of y the index of its letter in x, of the same
    shape.
    """

    def make(seed: int, index: np.ndarray, length: int, least: float = 1.0) -> Sample:
        """Return words of n letters, a bar, and the answer as target; n is random, at most the
        largest that fits, and at least the share `least` of that.
        """
        max_n = (length - 1) // 2
        min_n = max(1, int(max_n * number("least", least, low=0, high=1)))
        n = min_n + below(seed, index, stream=0, count=1, high=max_n - min_n + 1)  # [B, 1]
        word = below(seed, index, stream=1, count=max_n, high=len(LETTERS))
        missing = np.arange(max_n)[None] >= n
        # `order` gives indices of the word's columns, not letters
        answer = np.take_along_axis(word, order(np.where(missing, len(LETTERS), word)), axis=1)
        # for each column of a row, the letter of the word and that of the answer; columns outside
        # them get some letter too, which is not used
        column = np.arange(length)[None]
        of_word = np.take_along_axis(
            LETTERS[word], np.minimum(column, max_n - 1).repeat(len(index), 0), axis=1
        )
        of_answer = np.take_along_axis(
            LETTERS[answer], np.clip(column - n - 1, 0, max_n - 1), axis=1
        )
        is_target = (column > n) & (column <= 2 * n)
        after_bar = np.where(is_target, of_answer, PADDING)
        tokens = np.where(column < n, of_word, np.where(column == n, BAR, after_bar))
        return Sample(tokens.astype(np.uint8), is_target)

    return make


def as_written(word: np.ndarray) -> np.ndarray:
    """Return the source index of each symbol of a copy: its own place."""
    return np.arange(word.shape[1])[None].repeat(len(word), 0)


def backwards(word: np.ndarray) -> np.ndarray:
    """Return the source index of each symbol of the reversed word; columns after the word get
    indices that are not used.
    """
    size = (word < len(LETTERS)).sum(1, keepdims=True)
    return (size - 1 - np.arange(word.shape[1])[None]) % word.shape[1]


def in_order(word: np.ndarray) -> np.ndarray:
    """Return the source index of each symbol of the sorted word."""
    return word.argsort(axis=1, kind="stable")


def addition(seed: int, index: np.ndarray, length: int, digits: int | None = None) -> Sample:
    """Return samples "a+b=c", high digits first; a and b have `digits` digits, by default as many
    as fit, and c, the target, has one more.
    """
    max_n = (length - 3) // 3
    n = max_n if digits is None else integer("digits", digits, low=1, high=max_n)
    a, b = (below(seed, index, stream, count=n, high=10) for stream in (0, 1))
    # addition by hand, from the last digit to the first, because numbers may exceed 64 bits
    total = np.zeros((len(index), n + 1), dtype=np.int64)
    carry = np.zeros(len(index), dtype=np.int64)
    for place in reversed(range(n)):
        carry, total[:, place + 1] = np.divmod(a[:, place] + b[:, place] + carry, 10)
    total[:, 0] = carry
    plus, equals = (np.full((len(index), 1), sign, dtype=np.uint8) for sign in (PLUS, EQUALS))
    text = np.concatenate((DIGITS[a], plus, DIGITS[b], equals, DIGITS[total]), axis=1)
    tokens = np.full((len(index), length), PADDING, dtype=np.uint8)
    tokens[:, : text.shape[1]] = text
    return Sample(tokens, column_mask(tokens, 2 * n + 2, 3 * n + 3))


def induction(seed: int, index: np.ndarray, length: int, depth: float | None = None) -> Sample:
    """Return random letters with a letter A and some letter B after it, which end in A B again; A
    occurs nowhere else, and the last B is the target.

    `depth` is the relative position of the first A; by default it is random.
    """
    trigger = below(seed, index, stream=0, count=1, high=len(LETTERS))  # A
    steps = 1 + below(seed, index, stream=1, count=length, high=len(LETTERS) - 1)
    noise = (trigger + steps) % len(LETTERS)  # never the trigger
    tokens = LETTERS[noise]
    # `place` is the column of the first A; at most length - 4, so that its B precedes the last A B
    rows, place = np.arange(len(index)), at_depth(seed, index, length - 4, depth)
    tokens[rows, place] = LETTERS[trigger[:, 0]]
    tokens[:, -2] = LETTERS[trigger[:, 0]]
    tokens[:, -1] = tokens[rows, place + 1]
    return Sample(tokens, column_mask(tokens, length - 1, length))


def recall(
    seed: int, index: np.ndarray, length: int, pairs: int = 8, depth: float | None = None
) -> Sample:
    """Return (letter, digit) pairs among filler, then "?", one of the letters and, as the target,
    its digit.

    pairs  the number of pairs; there are fewer if `length` has no room for them
    depth  the relative position of the pair in question; None: at random
    """
    slots = (length - 3) // 2  # places for a pair, before the "?", the letter and the digit
    n = min(integer("pairs", pairs, low=1, high=len(LETTERS)), slots)
    rows = np.arange(len(index))
    names = bits(seed, index, stream=0, count=len(LETTERS)).argsort(1)[:, :n]  # n different letters
    values = below(seed, index, stream=1, count=n, high=len(DIGITS))
    random_order = bits(seed, index, stream=2, count=slots)
    # the slot at `depth` gets the smallest number, so it sorts first and takes the pair in question
    random_order[rows, at_depth(seed, index, slots - 1, depth)] = 0
    where = random_order.argsort(1, kind="stable")[:, :n]
    tokens = np.full((len(index), length), FILLER, dtype=np.uint8)
    tokens[rows[:, None], 2 * where] = LETTERS[names]
    tokens[rows[:, None], 2 * where + 1] = DIGITS[values]
    tokens[:, -3], tokens[:, -2], tokens[:, -1] = ASK, LETTERS[names[:, 0]], DIGITS[values[:, 0]]
    return Sample(tokens, column_mask(tokens, length - 1, length))


def column_mask(tokens: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Return a mask of the shape of `tokens` that is True in the columns start ... stop - 1."""
    return np.broadcast_to(
        (np.arange(tokens.shape[1]) >= start) & (np.arange(tokens.shape[1]) < stop), tokens.shape
    )


def at_depth(seed: int, index: np.ndarray, last: int, depth: float | None) -> np.ndarray:
    """Return a place from 0 to `last` for each sample: `depth` times `last`, or random if `depth`
    is None.
    """
    if depth is None:
        share = uniform(seed, index, stream=99, count=1)[:, 0]  # a stream that no task uses
        return np.minimum((share * (last + 1)).astype(np.int64), last)
    return np.full(len(index), round(number("depth", depth, low=0, high=1) * last))
