"""Tasks that look like text: a pass key, one needle among several, a name that is repeated later.
TASKS has all tasks.

Words of this module:
  index   the numbers of the samples of a batch [B]
  stream  a number for each random choice of a task; different streams give independent numbers
  fact    what the text states and the question asks for, as bytes [B, n]
  depth   where a fact lies, from 0 (the start of the text) to 1 (its end); None: at random
"""

from __future__ import annotations

import numpy as np

from ropewalk.errors import RopeError, integer
from ropewalk_lab import tasks
from ropewalk_lab.stateless_random import below, bits, uniform
from ropewalk_lab.tasks import DIGITS, LETTERS, Sample, Task, at_depth, column_mask

GRASS = (
    b"The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
)
#: digits of a pass key
KEY_DIGITS = 5
KEY, QUESTION = b"The pass key is ", b"What is the pass key? The pass key is "
NEEDLE, NEEDLE_QUESTION = b"The number of ", b"What is it? The number of "
OWNERS = (
    b"Ada",
    b"Bob",
    b"Eve",
    b"Ida",
    b"Ian",
    b"Kim",
    b"Leo",
    b"Max",
    b"Mia",
    b"Ned",
    b"Pam",
    b"Ray",
    b"Sue",
    b"Tim",
)
#: letters of a name that is repeated, and how many of them are given as a cue when it is repeated
COPIED, CUE = 16, 3


def _put(tokens: np.ndarray, where: np.ndarray, text: np.ndarray) -> None:
    """Write text [B, n] into tokens [B, S], starting at the columns `where` [B]."""
    np.put_along_axis(tokens, where[:, None] + np.arange(text.shape[1]), text, axis=1)


def _join(batch: int, *parts: bytes | np.ndarray) -> np.ndarray:
    """Return byte strings and arrays [B, n], concatenated along the columns."""
    arrays = [
        np.frombuffer(p, dtype=np.uint8)[None].repeat(batch, 0) if isinstance(p, bytes) else p
        for p in parts
    ]
    return np.concatenate(arrays, axis=1)


def _fact_in_filler(
    seed: int,
    index: np.ndarray,
    length: int,
    facts: list[np.ndarray],
    question: np.ndarray,
    depth: float | None,
) -> Sample:
    """Return filler that contains the facts, the first of them at `depth`, and ends with
    `question`, whose last KEY_DIGITS bytes are the answer; raise an error if `length` is too small.
    """
    size, batch = facts[0].shape[1], len(index)  # all facts have the same number of bytes
    tokens = np.resize(np.frombuffer(GRASS, dtype=np.uint8), (1, length)).repeat(batch, 0)
    slots = (length - question.shape[1]) // size  # facts are in slots, so they never overlap
    if slots < len(facts):
        raise RopeError(
            "length",
            f"must be at least {len(facts) * size + question.shape[1]} to hold every fact",
            length,
        )
    random_order = bits(seed, index, stream=3, count=slots)
    # the slot at `depth` gets the smallest number, so it sorts first and takes the first fact
    random_order[np.arange(batch), at_depth(seed, index, slots - 1, depth)] = 0
    where = random_order.argsort(1, kind="stable")[:, : len(facts)]
    spare = (length - question.shape[1]) - slots * size  # columns that no slot has
    for number, fact in enumerate(facts):
        # the spare columns precede the last slot, so that a fact at depth 1 ends where the question
        # begins
        _put(tokens, where[:, number] * size + (where[:, number] == slots - 1) * spare, fact)
    _put(tokens, np.full(batch, length - question.shape[1]), question)
    return Sample(tokens, column_mask(tokens, length - KEY_DIGITS, length))


def passkey(seed: int, index: np.ndarray, length: int, depth: float | None = None) -> Sample:
    """Return filler that states five digits once, at the relative position `depth`, and ends with
    the question and the digits.
    """
    key = DIGITS[below(seed, index, stream=0, count=KEY_DIGITS, high=10)]
    fact, question = _join(len(index), KEY, key, b". "), _join(len(index), QUESTION, key)
    return _fact_in_filler(seed, index, length, [fact], question, depth)


def needle(
    seed: int, index: np.ndarray, length: int, depth: float | None = None, needles: int = 3
) -> Sample:
    """Return filler that states the numbers of `needles` people and ends with the question for one
    of them and the answer; that person's number is stated at the relative position `depth`.
    """
    n = integer("needles", needles, low=1, high=len(OWNERS))
    names = np.frombuffer(b"".join(OWNERS), dtype=np.uint8).reshape(len(OWNERS), -1)
    random_order = bits(seed, index, stream=1, count=len(OWNERS)).argsort(1)
    owners = names[random_order[:, :n]]  # [B, n, 3]
    keys = DIGITS[below(seed, index, stream=0, count=n * KEY_DIGITS, high=10)].reshape(
        -1, n, KEY_DIGITS
    )
    facts = [_join(len(index), NEEDLE, owners[:, i], b" is ", keys[:, i], b". ") for i in range(n)]
    question = _join(len(index), NEEDLE_QUESTION, owners[:, 0], b" is ", keys[:, 0])
    return _fact_in_filler(seed, index, length, facts, question, depth)


def planted(seed: int, index: np.ndarray, length: int, distance: int | None = None) -> Sample:
    """Return words drawn by Zipf's law and a random name that is repeated `distance` tokens later,
    by default half of `length`.

    The name is 16 letters between < and >. In the copy, the first three letters are given and the
    others are targets.
    """
    far = (
        length // 2
        if distance is None
        else integer("distance", distance, low=COPIED + 2, high=length - COPIED - 2)
    )
    # 512 words of five letters, the same for every seed; with a space they take six bytes
    words = LETTERS[below(7, np.arange(512), stream=0, count=5, high=len(LETTERS))]
    count = -(-length // 6)
    # word numbers from 0 with P(number) ~ 1 / (number + 1): the logarithm of a rank is uniform
    rank = np.exp(uniform(seed, index, stream=0, count=count) * np.log(512)).astype(np.int64) - 1
    spaced = np.full((len(index), count, 6), ord(" "), dtype=np.uint8)
    spaced[:, :, :5] = words[np.clip(rank, 0, 511)]
    tokens = spaced.reshape(len(index), -1)[:, :length]
    letters = LETTERS[below(seed, index, stream=1, count=COPIED, high=len(LETTERS))]
    name = _join(len(index), b"<", letters, b">")
    latest = length - far - name.shape[1]  # the last column where the name can start
    first = below(seed, index, stream=2, count=1, high=latest + 1)[:, 0]
    _put(tokens, first, name)
    _put(tokens, first + far, name)
    is_target = np.zeros(tokens.shape, dtype=bool)
    _put(is_target, first + far + 1 + CUE, np.ones((len(index), COPIED - CUE), dtype=bool))
    return Sample(tokens, is_target)


#: every generated task by name; `data.task` and the evaluation take any of them, tests go through all
TASKS: dict[str, Task] = {
    "copy": Task(tasks.transcription(tasks.as_written), 3, "abc|abc"),
    "reverse": Task(tasks.transcription(tasks.backwards), 3, "abc|cba"),
    "sort": Task(tasks.transcription(tasks.in_order), 3, "cab|abc"),
    "addition": Task(tasks.addition, 6, "12+34=046"),
    "induction": Task(tasks.induction, 6, "..AB....A -> B"),
    "recall": Task(tasks.recall, 7, "a1..b2..?b -> 2"),
    "passkey": Task(
        passkey,
        len(KEY) + len(QUESTION) + 2 * KEY_DIGITS + 2,
        "five digits stated once, asked for at the end",
    ),
    # three facts of 28 bytes, and the question of 38
    "needle": Task(needle, 3 * 28 + 38, "several numbers stated, one asked for"),
    "planted": Task(planted, 4 * COPIED, "a name that is repeated far away"),
}
