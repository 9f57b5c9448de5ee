"""Pass keys: five digits that are stated once in a long text without meaning, and asked for at its
end.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.errors import RopeError, number

#: text -> tokens, without special tokens
Encode = Callable[[str], Sequence[int]]

#: parts of a prompt: the instruction, the text that is repeated, the statement and the question
TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
    "I will quiz you about the important information there.\n"
)
FILLER = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
)
STATED = "The pass key is {key}. Remember it. {key} is the pass key.\n"
ASKED = "\nWhat is the pass key? The pass key is"


@dataclass(frozen=True)
class PassKey:
    """The prompt of a pass key, which ends with the right answer: tokens [S], of which the last
    `answer` are the five digits.

    stated  the index of the first token after the statement
    asked   the index of the first token of the question
    """

    tokens: Tensor
    answer: int
    stated: int
    asked: int


def make_passkey(encode: Encode, length: int, depth: float, seed: int = 0) -> PassKey:
    """Return the prompt of a pass key, of at most `length` tokens; the statement stands after the
    share `depth` of the filler (0: before the filler).

    encode  text -> tokens, without special tokens
    seed    another one gives another key
    """
    task, filler = list(encode(TASK)), list(encode(FILLER))

    def around(room: int) -> tuple[list[int], list[int]]:
        """Return the tokens before and after the statement, at most `room` in all: the task, and as
        many repeats of FILLER as fit.
        """
        repeats = (room - len(task)) // len(filler)
        before = round(depth * repeats)
        return task + filler * before, filler * (repeats - before)

    return _passkey(encode, length, depth, seed, STATED, around, least=len(task))


def plant_passkey(encode: Encode, text: str, length: int, depth: float, seed: int = 0) -> PassKey:
    """Return the prompt of a pass key, of at most `length` tokens, whose filler is the beginning of
    `text`; the statement stands after the share `depth` of that beginning.
    """
    content = list(encode(text))

    def around(room: int) -> tuple[list[int], list[int]]:
        """Return the tokens of the text before and after the statement, at most `room` in all."""
        used = content[:room]
        before = round(depth * len(used))
        return used[:before], used[before:]

    return _passkey(encode, length, depth, seed, f"\n{STATED}", around)


def _passkey(
    encode: Encode,
    length: int,
    depth: float,
    seed: int,
    statement: str,
    around: Callable[[int], tuple[list[int], list[int]]],
    least: int = 0,
) -> PassKey:
    """Return the prompt of a pass key of at most `length` tokens. Raise an error if fewer than
    `least` are left for the other text.

    statement  the text that states the key, with {key} in its place
    around     a function that is called with the number of tokens left, and returns those before
               and those after the statement
    """
    number("depth", depth, low=0, high=1)
    key = str(random.Random(f"{seed} {length} {depth}").randint(10_000, 99_999))
    stated, asked = list(encode(statement.format(key=key))), list(encode(ASKED))
    # encoded with the question, because tokens may differ at the start of a text
    answer = list(encode(f"{ASKED} {key}"))[len(asked) :]
    room = length - len(stated) - len(asked) - len(answer)
    if room < least:
        raise RopeError(
            "length", f"must be at least {length - room + least} tokens, to hold a pass key", length
        )
    before, after = around(room)
    tokens = before + stated + after + asked + answer
    end = len(before) + len(stated)
    return PassKey(torch.tensor(tokens), len(answer), end, end + len(after))


def wording() -> str:
    """Return 8 hex digits of the wording: pass keys in other words are another measurement."""
    return hashlib.sha256("".join((TASK, FILLER, STATED, ASKED)).encode()).hexdigest()[:8]


def shortest_passkey(encode: Encode) -> int:
    """Return the smallest length at which pass keys are asked for: the fixed texts, FILLER once,
    and a margin.
    """
    tokens = list(encode(TASK + STATED.format(key=12345) + FILLER + f"{ASKED} 12345"))
    return len(tokens) + 8  # the parts of a pass key, encoded one by one, may have more tokens


def passkey_lengths(trained: int, to: int) -> list[int]:
    """Return the lengths at which pass keys are asked for: 1/4, 1/2 and 1 times the trained length;
    those of 1.5, 2, 3, 4, 8, 16, ... times that length that are below `to`; and `to` itself.

    Each is then made 5 % shorter, because a model may need some tokens for its answer.
    """
    within = [trained // 4, trained // 2, trained]
    beyond = [length for length in (trained * 3 // 2, trained * 2, trained * 3) if length < to]
    length = trained * 4
    while length < to:
        beyond.append(length)
        length *= 2
    return [round(length * 0.95) for length in (*within, *beyond, to)]


def depths(count: int) -> list[float]:
    """Return `count` depths from 0 to 1 at equal distances; a single one is 0.5."""
    return [place / (count - 1) for place in range(count)] if count > 1 else [0.5]
