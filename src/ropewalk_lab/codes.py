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
STATED = "\nThe code of the {name} is {code}.\n"
ASKED = "\nWhich code has the {name}? Its code is {code}.\n"


def with_codes(
    window: Tensor, count: int, encode: Callable[[str], Sequence[int]], draw: random.Random
) -> Tensor:
    """Return the tokens [S] of a window with `count` codes inserted: each is stated once, and asked
    for and answered later.

    All distances between a statement and its question are equally likely. The end of the text is
    cut off to keep the length.

    encode  text -> tokens, without special tokens
    """
    integer("codes", count, low=0, high=len(NAMES))
    inserted = []  # (where in the text, from 0 to 1; tokens of a statement or a question)
    for name in draw.sample(NAMES, count):
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
    parts, end = [], 0
    for place, tokens in sorted(inserted, key=lambda each: each[0]):
        parts += [window[end : round(place * room)], tokens]
        end = round(place * room)
    return torch.cat([*parts, window[end:room]])
