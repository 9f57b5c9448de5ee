"""Generated tasks: each sample is a pure function of (seed, index, length), with a mask of the tokens that count.

A task gives rows of bytes, so that one model serves text and tasks. All of a batch is made at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ropewalk.errors import RopeError, integer, number
from ropewalk.lab.draws import below, bits, fold, uniform

PADDING = 0
LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype=np.uint8)
DIGITS = np.frombuffer(b"0123456789", dtype=np.uint8)
FILLER, BAR, ASK, PLUS, EQUALS = b".|?+="


class Sample(NamedTuple):
    """Rows of tokens [B, length] and which of them a model should foresee [B, length]."""

    tokens: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True)
class Task:
    """How to make samples, and the fewest tokens one needs."""

    make: Callable[..., Sample]
    shortest: int
    about: str

    def __call__(self, seed: int, index: np.ndarray, length: int, **options) -> Sample:
        if integer("length", length, low=1) < self.shortest:
            raise RopeError("length", f"must be at least {self.shortest} for this task", length)
        return self.make(fold(seed, 77), np.asarray(index, dtype=np.int64), length, **options)


def transcription(order: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Sample]:
    """x1 ... xn | y1 ... yn, where y is x in another order; `least` of the room is used, up to all of it."""

    def make(seed: int, index: np.ndarray, length: int, least: float = 1.0) -> Sample:
        most = (length - 1) // 2
        fewest = max(1, int(most * number("least", least, low=0, high=1)))
        n = fewest + below(seed, index, 0, 1, most - fewest + 1)  # [B, 1]
        place = np.arange(length)[None]
        word = below(seed, index, 1, most, len(LETTERS))
        missing = np.arange(most)[None] >= n
        answer = np.take_along_axis(word, order(np.where(missing, len(LETTERS), word)), axis=1)
        first = np.take_along_axis(LETTERS[word], np.minimum(place, most - 1).repeat(len(index), 0), axis=1)
        second = np.take_along_axis(LETTERS[answer], np.clip(place - n - 1, 0, most - 1), axis=1)
        counts = (place > n) & (place <= 2 * n)
        tokens = np.where(place < n, first, np.where(place == n, BAR, np.where(counts, second, PADDING)))
        return Sample(tokens.astype(np.uint8), counts)

    return make


def as_written(word: np.ndarray) -> np.ndarray:
    """Where each symbol of a copy comes from; absent symbols are len(LETTERS)."""
    return np.arange(word.shape[1])[None].repeat(len(word), 0)


def backwards(word: np.ndarray) -> np.ndarray:
    """Where each symbol of the reversed word comes from."""
    size = (word < len(LETTERS)).sum(1, keepdims=True)
    return (size - 1 - np.arange(word.shape[1])[None]) % word.shape[1]


def in_order(word: np.ndarray) -> np.ndarray:
    """Where each symbol of the sorted word comes from."""
    return word.argsort(axis=1, kind="stable")


def addition(seed: int, index: np.ndarray, length: int, digits: int | None = None) -> Sample:
    """a+b=c with a leading zero where there is no carry, most significant digit first."""
    most = (length - 3) // 3
    n = most if digits is None else integer("digits", digits, low=1, high=most)
    a, b = below(seed, index, 0, n, 10), below(seed, index, 1, n, 10)
    total, carry = np.zeros((len(index), n + 1), dtype=np.int64), np.zeros(len(index), dtype=np.int64)
    for place in reversed(range(n)):
        carry, total[:, place + 1] = np.divmod(a[:, place] + b[:, place] + carry, 10)
    total[:, 0] = carry
    plus, equals = (np.full((len(index), 1), sign, dtype=np.uint8) for sign in (PLUS, EQUALS))
    said = np.concatenate((DIGITS[a], plus, DIGITS[b], equals, DIGITS[total]), axis=1)
    tokens = np.full((len(index), length), PADDING, dtype=np.uint8)
    tokens[:, : said.shape[1]] = said
    counts = np.zeros(tokens.shape, dtype=bool)
    counts[:, 2 * n + 2 : 3 * n + 3] = True
    return Sample(tokens, counts)


def induction(seed: int, index: np.ndarray, length: int, depth: float | None = None) -> Sample:
    """Noise with one A B in it, and at the end A again: B follows. Only that B counts."""
    batch, room = len(index), length - 4
    trigger = below(seed, index, 0, 1, len(LETTERS))
    noise = (trigger + 1 + below(seed, index, 1, length, len(LETTERS) - 1)) % len(LETTERS)  # never the trigger
    tokens = LETTERS[noise]
    rows, place = np.arange(batch), at_depth(seed, index, room, depth)
    tokens[rows, place] = LETTERS[trigger[:, 0]]
    tokens[:, -2] = LETTERS[trigger[:, 0]]
    tokens[:, -1] = tokens[rows, place + 1]
    counts = np.zeros(tokens.shape, dtype=bool)
    counts[:, -1] = True
    return Sample(tokens, counts)


def recall(seed: int, index: np.ndarray, length: int, pairs: int = 8, depth: float | None = None) -> Sample:
    """Keys with their values among filler, then one key: its value follows. `depth` places the pair that is asked for."""
    slots = (length - 3) // 2
    n = min(integer("pairs", pairs, low=1, high=len(LETTERS)), slots)
    rows = np.arange(len(index))
    keys = bits(seed, index, 0, len(LETTERS)).argsort(1)[:, :n]
    values = below(seed, index, 1, n, len(DIGITS))
    scattered = bits(seed, index, 2, slots)
    asked = at_depth(seed, index, slots - 1, depth)
    scattered[rows, asked] = 0  # so that the slot asked for is the first taken
    where = scattered.argsort(1, kind="stable")[:, :n]
    tokens = np.full((len(index), length), FILLER, dtype=np.uint8)
    tokens[rows[:, None], 2 * where] = LETTERS[keys]
    tokens[rows[:, None], 2 * where + 1] = DIGITS[values]
    tokens[:, -3], tokens[:, -2], tokens[:, -1] = ASK, LETTERS[keys[:, 0]], DIGITS[values[:, 0]]
    counts = np.zeros(tokens.shape, dtype=bool)
    counts[:, -1] = True
    return Sample(tokens, counts)


def at_depth(seed: int, index: np.ndarray, room: int, depth: float | None) -> np.ndarray:
    """A place in 0 ... room: at the share `depth` of it, or anywhere."""
    if depth is None:
        share = uniform(seed, index, 99, 1)[:, 0]
        return np.minimum((share * (room + 1)).astype(np.int64), room)
    return np.full(len(index), round(number("depth", depth, low=0, high=1) * room))
