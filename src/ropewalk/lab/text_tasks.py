"""Tasks that read like text: a pass key, one needle among several, and copies planted far apart; TASKS lists all tasks."""

from __future__ import annotations

import numpy as np

from ropewalk.errors import RopeError, integer
from ropewalk.lab.draws import below, bits, uniform
from ropewalk.lab.tasks import (
    DIGITS,
    LETTERS,
    Sample,
    Task,
    addition,
    as_written,
    at_depth,
    backwards,
    in_order,
    induction,
    recall,
    transcription,
)

GRASS = b"The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
KEY_DIGITS = 5
KEY, QUESTION = b"The pass key is ", b"What is the pass key? The pass key is "
NEEDLE, NEEDLE_QUESTION = b"The number of ", b"What is it? The number of "
OWNERS = (b"Ada", b"Bob", b"Eve", b"Ida", b"Ian", b"Kim", b"Leo", b"Max", b"Mia", b"Ned", b"Pam", b"Ray", b"Sue", b"Tim")
COPIED, CUE = 16, 3


def _tile(batch: int, length: int) -> np.ndarray:
    return np.resize(np.frombuffer(GRASS, dtype=np.uint8), (1, length)).repeat(batch, 0)


def _put(tokens: np.ndarray, where: np.ndarray, text: np.ndarray) -> None:
    """Write text [B, n] into tokens [B, S] from column where [B]."""
    np.put_along_axis(tokens, where[:, None] + np.arange(text.shape[1]), text, axis=1)


def _say(batch: int, *parts: bytes | np.ndarray) -> np.ndarray:
    """Words and columns side by side: [B, n]."""
    spread = [np.frombuffer(p, dtype=np.uint8)[None].repeat(batch, 0) if isinstance(p, bytes) else p for p in parts]
    return np.concatenate(spread, axis=1)


def _asked(
    seed: int, index: np.ndarray, length: int, facts: list[np.ndarray], question: np.ndarray, depth: float | None
) -> Sample:
    """Facts in filler, the first of them at `depth`, then the question, which ends in the answer."""
    size, batch = facts[0].shape[1], len(index)
    tokens = _tile(batch, length)
    slots = (length - question.shape[1]) // size  # so that no fact lies on another
    if slots < len(facts):
        raise RopeError("length", f"must be at least {len(facts) * size + question.shape[1]} to hold every fact", length)
    asked = at_depth(seed, index, slots - 1, depth)
    scattered = bits(seed, index, 3, slots)
    scattered[np.arange(batch), asked] = 0
    where = scattered.argsort(1, kind="stable")[:, : len(facts)]
    spare = (length - question.shape[1]) - slots * size
    for number, fact in enumerate(facts):
        # the odd columns that no slot covers lie after the first slots, so a depth of 1 touches the question
        _put(tokens, where[:, number] * size + (where[:, number] == slots - 1) * spare, fact)
    _put(tokens, np.full(batch, length - question.shape[1]), question)
    counts = np.zeros(tokens.shape, dtype=bool)
    counts[:, -KEY_DIGITS:] = True
    return Sample(tokens, counts)


def passkey(seed: int, index: np.ndarray, length: int, depth: float | None = None) -> Sample:
    """Five digits are told once among sentences that say nothing, and asked for at the end."""
    key = DIGITS[below(seed, index, 0, KEY_DIGITS, 10)]
    fact, question = _say(len(index), KEY, key, b". "), _say(len(index), QUESTION, key)
    return _asked(seed, index, length, [fact], question, depth)


def needle(seed: int, index: np.ndarray, length: int, depth: float | None = None, needles: int = 3) -> Sample:
    """Several people have numbers; one of them is asked for."""
    n = integer("needles", needles, low=1, high=len(OWNERS))
    names = np.frombuffer(b"".join(OWNERS), dtype=np.uint8).reshape(len(OWNERS), -1)
    owners = names[bits(seed, index, 1, len(OWNERS)).argsort(1)[:, :n]]  # [B, n, 3]
    keys = DIGITS[below(seed, index, 0, n * KEY_DIGITS, 10)].reshape(-1, n, KEY_DIGITS)
    facts = [_say(len(index), NEEDLE, owners[:, i], b" is ", keys[:, i], b". ") for i in range(n)]
    question = _say(len(index), NEEDLE_QUESTION, owners[:, 0], b" is ", keys[:, 0])
    return _asked(seed, index, length, facts, question, depth)


def planted(seed: int, index: np.ndarray, length: int, distance: int | None = None) -> Sample:
    """Words by Zipf's law, and a name that comes back `distance` later: known only to who looks so far.

    The name is random letters between marks. Of its copy the first letters are the cue; the rest count.
    """
    far = length // 2 if distance is None else integer("distance", distance, low=COPIED + 2, high=length - COPIED - 2)
    words = LETTERS[below(7, np.arange(512), 0, 5, len(LETTERS))]  # one vocabulary for every seed
    count = -(-length // 6)
    rank = np.exp(uniform(seed, index, 0, count) * np.log(512)).astype(np.int64) - 1  # P(rank) ~ 1 / rank
    spaced = np.full((len(index), count, 6), ord(" "), dtype=np.uint8)
    spaced[:, :, :5] = words[np.clip(rank, 0, 511)]
    tokens = spaced.reshape(len(index), -1)[:, :length]
    name = _say(len(index), b"<", LETTERS[below(seed, index, 1, COPIED, len(LETTERS))], b">")
    last = length - far - name.shape[1]
    first = below(seed, index, 2, 1, last + 1)[:, 0]
    _put(tokens, first, name)
    _put(tokens, first + far, name)
    counts = np.zeros(tokens.shape, dtype=bool)
    _put(counts, first + far + 1 + CUE, np.ones((len(index), COPIED - CUE), dtype=bool))
    return Sample(tokens, counts)


#: every generated task; add an entry and the trainer, the evaluation and the tests know it
TASKS: dict[str, Task] = {
    "copy": Task(transcription(as_written), 3, "abc|abc"),
    "reverse": Task(transcription(backwards), 3, "abc|cba"),
    "sort": Task(transcription(in_order), 3, "cab|abc"),
    "addition": Task(addition, 6, "12+34=046"),
    "induction": Task(induction, 6, "..AB....A -> B"),
    "recall": Task(recall, 7, "a1..b2..?b -> 2"),
    "passkey": Task(passkey, len(KEY) + len(QUESTION) + 2 * KEY_DIGITS + 2, "five digits told once, asked for at the end"),
    "needle": Task(needle, 3 * 28 + 38, "several numbers told, one asked for"),
    "planted": Task(planted, 4 * COPIED, "a name that comes back far away"),
}
