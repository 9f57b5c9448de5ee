"""Codes that are stated in a text and asked for later in it, to train a model to find what it has
read long before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import product

import torch
from torch import Tensor

from ropewalk.errors import RopeError, integer

COLOURS = (
    "red",
    "blue",
    "green",
    "white",
    "black",
    "brown",
    "grey",
    "golden",
    "silver",
    "purple",
    "orange",
    "yellow",
)
ANIMALS = (
    "fox",
    "horse",
    "eagle",
    "bear",
    "wolf",
    "whale",
    "snake",
    "tiger",
    "goose",
    "mouse",
    "camel",
    "rabbit",
)
NAMES = tuple(" ".join(pair) for pair in product(COLOURS, ANIMALS))
#: the statement of a code, and the question for it with its answer
STATED = "\nThe code of the {name} is {code}.\n"
ASKED = "\nWhich code has the {name}? Its code is {code}.\n"


def with_codes(
    window: Tensor, count: int, encode: Callable[[str], Sequence[int]], draw: random.Random
) -> Tensor:
    """Return the tokens [S] of a window with `count` codes of five digits inserted: each is stated
    once, and asked for and answered later.

    All distances between a statement and its question are equally likely. The end of the text is
    cut off to keep the length.

    encode  text -> tokens, without special tokens
    draw    the random generator, whose state changes
    """
    integer("codes", count, low=0, high=len(NAMES))
    # (share of the text that comes before it, tokens of a statement or a question)
    inserted = []
    for name in draw.sample(NAMES, count):
        # `distance` and `stated` are shares of the text
        code, distance = draw.randint(10_000, 99_999), draw.random()
        stated = draw.uniform(0, 1 - distance)
        for place, words in ((stated, STATED), (stated + distance, ASKED)):
            inserted.append(
                (
                    place,
                    torch.tensor(
                        list(encode(words.format(name=name, code=code))), dtype=window.dtype
                    ),
                )
            )
    used = sum(len(tokens) for _, tokens in inserted)
    room = len(window) - used  # how many tokens of the text remain
    if room < 0:
        raise RopeError(
            "codes",
            f"must be fewer: their statements and questions have {used} tokens, a window has "
            f"{len(window)}",
            count,
        )
    parts, end = [], 0  # `end`: how many tokens of the text are in `parts`
    for place, tokens in sorted(inserted, key=lambda each: each[0]):
        parts += [window[end : round(place * room)], tokens]
        end = round(place * room)
    return torch.cat([*parts, window[end:room]])
