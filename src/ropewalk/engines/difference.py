"""How far the rotation that one engine computes is from the reference: the first pair that differs,
and the effect on scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: the number of distances at which the change of a score is computed
DISTANCES = 512
#: the largest difference assumed between the axes of an image token and its text position
IMAGE_SIDE = 32
#: relative tolerance below which frequencies count as equal, because float32 would round them to
#: the same value
SAME = 1e-6


@dataclass(frozen=True)
class Rotation:
    """What is compared: the frequency of each pair in radians per step, the axis of each pair, and
    the magnitude.
    """

    radians: tuple[float, ...]
    magnitude: float
    axis_of_pair: tuple[int, ...]


@dataclass(frozen=True)
class Difference:
    """How far one engine differs from the reference.

    first_pair         the first pair with another frequency or axis; None if only the magnitude
                       differs
    pairs              the number of such pairs
    reference_radians  the frequency of `first_pair` in the reference; `engine_radians`: in the
                       engine
    temperature        the factor on every logit: the square of the ratio of magnitudes, or exactly
                       1 if they differ by rounding alone
    score_worst        the largest change of q . k for unit vectors in one pair, over all pairs and
                       at most DISTANCES distances up to the length, or up to IMAGE_SIDE if `tokens`
                       is "image"; `score_mean`: the mean of the largest change of each pair and
                       distance
    until_tenth        the first distance at which some pair is off by more than 0.1 rad;
                       `until_half_turn`: by more than pi; None: never
    tokens             which tokens are affected: "all", or "image" (images and videos) if only axes
                       differ
    """

    first_pair: int | None
    pairs: int
    reference_radians: float | None
    engine_radians: float | None
    temperature: float
    score_worst: float
    score_mean: float
    until_tenth: int | None
    until_half_turn: int | None
    tokens: str = "all"


def compare(
    reference: Rotation, engine: Rotation, length: int, same: float = SAME
) -> Difference | None:
    """Return how far an engine's frequencies, axes and magnitude are from the reference, over
    `length` tokens; None: the same.

    same  the relative difference that is rounding
    """
    pairs = max(len(reference.radians), len(engine.radians))
    # frequencies of the reference and of the engine
    ours, theirs = _padded(reference.radians, pairs), _padded(engine.radians, pairs)
    axes = zip(
        _padded(reference.axis_of_pair, pairs), _padded(engine.axis_of_pair, pairs), strict=True
    )
    frequency_differs = [abs(a - b) > same * abs(a) for a, b in zip(ours, theirs, strict=True)]
    # a pair counts as having another axis only if its frequency is the same
    axis_differs = [a != b and not f for (a, b), f in zip(axes, frequency_differs, strict=True)]
    different = [i for i in range(pairs) if frequency_differs[i] or axis_differs[i]]
    # the magnitude is on q and on k, so a score has its square
    # logits that are all 0 have no ratio
    both = engine.magnitude * reference.magnitude
    temperature = (engine.magnitude / reference.magnitude) ** 2 if both else 1.0
    same_magnitude = abs(temperature - 1) <= 2 * same
    if not different and same_magnitude:
        return None
    temperature = 1.0 if same_magnitude else temperature
    # text tokens have the same position on all axes, so other axes only matter for images
    only_image = any(axis_differs) and not any(frequency_differs) and same_magnitude
    if only_image:
        # the angle of a pair is off by its frequency times the difference of coordinates, so a
        # distance is here a difference of coordinates, and a pair on another axis is compared with
        # one that does not rotate
        gaps = [-a if differs else 0.0 for a, differs in zip(ours, axis_differs, strict=True)]
        changes = _score_changes(gaps, temperature, min(length, IMAGE_SIDE))
    else:  # the radians by which each pair is off after one step
        each = zip(ours, theirs, strict=True)
        gaps = [b - a for a, b in each]
        changes = _score_changes(gaps, temperature, length)
        # the gap of a pair with the same frequency is rounding
        gaps = [g if f else 0.0 for g, f in zip(gaps, frequency_differs, strict=True)]
    first = different[0] if different else None
    # `changes` are those of a reference without a magnitude, whose scores are `square` times smaller
    square = reference.magnitude**2
    return Difference(
        first,
        len(different),
        reference_radians=None if first is None else ours[first],
        engine_radians=None if first is None else theirs[first],
        temperature=temperature,
        score_worst=max(changes) * square,
        score_mean=math.fsum(changes) / len(changes) * square,
        until_tenth=_until(gaps, 0.1),
        until_half_turn=_until(gaps, math.pi),
        tokens="image" if only_image else "all",
    )


def _padded(values: Sequence[float], pairs: int) -> list[float]:
    """Return frequencies or axes of `pairs` pairs, 0 for the pairs that are not rotated."""
    return [*values, *[0.0] * pairs][:pairs]


def _score_changes(gaps: list[float], temperature: float, max_distance: int) -> list[float]:
    """Return |t e^{i g d} - 1|, the largest change of q . k for unit vectors in one pair, for every
    pair and at most DISTANCES distances d between 1 and `max_distance`, evenly spaced in their
    logarithms.

    g is a gap, the radians by which the pair is off after one step; t is the temperature, the
    factor by which the engine's logits differ from those of the reference at equal angles.
    """
    steps = (max_distance ** (i / (DISTANCES - 1)) for i in range(DISTANCES))
    distances = sorted({round(step) for step in steps})
    return [
        abs(complex(temperature * math.cos(gap * d) - 1, temperature * math.sin(gap * d)))
        for d in distances
        for gap in gaps
    ]


def _until(gaps: list[float], angle: float) -> int | None:
    """Return the first distance at which some pair is off by more than `angle` radians, or None; a
    gap is the radians by which a pair is off after one step.
    """
    largest = max(map(abs, gaps))
    return math.floor(angle / largest) + 1 if largest > 0 else None
