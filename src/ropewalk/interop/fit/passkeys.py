"""Pass keys: five digits that are stated once in a long text without meaning, and asked for at its end."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.errors import RopeError, number

Encode = Callable[[str], Sequence[int]]

TASK = "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. I will quiz you about it.\n"
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
STATED = "The pass key is {key}. Remember it. {key} is the pass key.\n"
ASKED = "What is the pass key? The pass key is"


@dataclass(frozen=True)
class PassKey:
    """A prompt that ends with the right answer: tokens [S], of which the last `answer` are the five digits."""

    tokens: Tensor
    answer: int


def make_passkey(encode: Encode, length: int, depth: float, seed: int = 0) -> PassKey:
    """Return a pass key of at most `length` tokens, the statement after the share `depth` of the filler (0: at the start).

    encode  text -> tokens, without special tokens
    """
    number("depth", depth, low=0, high=1)
    key = str(random.Random(f"{seed} {length} {depth}").randint(10_000, 99_999))
    task, filler, stated, asked = (list(encode(text)) for text in (TASK, FILLER, STATED.format(key=key), ASKED))
    answer = list(encode(f"{ASKED} {key}"))[len(asked) :]
    room = length - len(task) - len(stated) - len(asked) - len(answer)
    if room < 0:
        raise RopeError("length", f"must be at least {length - room} tokens, to hold a pass key", length)
    sentences = room // len(filler)
    before = round(depth * sentences)
    tokens = task + filler * before + stated + filler * (sentences - before) + asked + answer
    return PassKey(torch.tensor(tokens), len(answer))


def shortest_passkey(encode: Encode) -> int:
    """Return the number of tokens of a pass key with one sentence of filler."""
    return len(list(encode(TASK + STATED.format(key=12345) + FILLER + f"{ASKED} 12345"))) + 8


def passkey_lengths(trained: int, to: int) -> list[int]:
    """Return the lengths at which pass keys are asked: a quarter, a half and all of the trained length, then up to `to`.

    Each is a little shorter than its power of two, because a model may need some tokens for its answer.
    """
    within = [trained // 4, trained // 2, trained]
    beyond = [length for length in (trained * 3 // 2, trained * 2, trained * 3) if length < to]
    length = trained * 4
    while length < to:
        beyond.append(length)
        length *= 2
    return [round(length * 0.95) for length in (*within, *beyond, to)]


def depths(count: int) -> list[float]:
    """Return `count` depths from 0 to 1 at equal distances."""
    return [place / (count - 1) for place in range(count)] if count > 1 else [0.5]
