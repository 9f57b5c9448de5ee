"""How far the rotation that one engine computes is from the reference: the first pair that differs,
and the effect on scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.engines.readings import Reading

#: the number of distances at which the change of a score is computed
DISTANCES = 512
#: the largest difference assumed between the axes of an image token and its text position
IMAGE_SIDE = 32
#: relative tolerance below which frequencies count as equal, because float32 would round them to
#: the same value
SAME = 1e-6


@dataclass(frozen=True)
class Difference:
    """How far one engine differs from the reference.

    first_pair      the first pair with another frequency or axis; None if only the magnitude
                    differs
    pairs           the number of such pairs
    temperature     the factor on every logit: the square of the ratio of magnitudes
    score_worst     the largest change of q . k over unit vectors and distances up to the length;
                    `score_mean` is the mean
    until_tenth     positions until some pair is off by more than 0.1 rad, `until_half_turn` by more
                    than pi; None: never
    tokens          which tokens are affected: "all", or "image" if only the other axes differ
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


def compare(reference: Reading, engine: Reading, length: int) -> Difference | None:
    """Return how far an engine's frequencies, axes and magnitude are from the reference, over
    `length` tokens; None: the same.
    """
    our_radians, our_magnitude = reference.frequencies()
    their_radians, their_magnitude = engine.frequencies()
    pairs = max(len(our_radians), len(their_radians))
    ours, theirs = _padded(our_radians, pairs), _padded(their_radians, pairs)
    frequency_differs = (ours - theirs).abs() > SAME * ours.abs()
    our_axes, their_axes = (
        _padded(reference.spec.axis_of_pair, pairs),
        _padded(engine.spec.axis_of_pair, pairs),
    )
    axis_differs = (our_axes != their_axes) & ~frequency_differs
    different = (frequency_differs | axis_differs).nonzero().flatten().tolist()
    temperature = (their_magnitude / our_magnitude) ** 2  # type: ignore[operator]  # both are known
    if not different and abs(temperature - 1) <= SAME:
        return None
    # text tokens have the same position on all axes, so other axes only matter for images
    only_image = (
        bool(axis_differs.any())
        and not bool(frequency_differs.any())
        and abs(temperature - 1) <= SAME
    )
    if (
        only_image
    ):  # the angle of a pair is off by its frequency times the difference of the two coordinates
        # so a distance is here a difference of coordinates, and a pair on another axis is compared
        # with one that does not rotate
        gap = torch.where(axis_differs, ours, 0.0)
        change = _score_change(ours, ours - gap, temperature, min(length, IMAGE_SIDE))
    else:
        gap = torch.where(
            frequency_differs, theirs - ours, 0.0
        )  # the radians by which each pair is off after one step
        change = _score_change(ours, theirs, temperature, length)
    change = change * our_magnitude**2  # type: ignore[operator]
    first = different[0] if different else None
    return Difference(
        first,
        len(different),
        reference_radians=None if first is None else float(ours[first]),
        engine_radians=None if first is None else float(theirs[first]),
        temperature=temperature,
        score_worst=float(change.max()),
        score_mean=float(change.mean()),
        until_tenth=_until(gap, 0.1),
        until_half_turn=_until(gap, math.pi),
        tokens="image" if only_image else "all",
    )


def _padded(values: tuple[float, ...], pairs: int) -> Tensor:
    """Return frequencies or axes as a float64 tensor [pairs], 0 for the pairs that are not rotated."""
    return torch.tensor((*values, *[0.0] * pairs)[:pairs], dtype=torch.float64)


def _score_change(ours: Tensor, theirs: Tensor, temperature: float, max_distance: int) -> Tensor:
    """Return |t e^{i w' d} - e^{i w d}| [distances d, pairs], the largest change of q . k for unit
    vectors in one pair.

    w are `ours` and w' `theirs`, radians per step; t is the temperature, the factor of the other
    engine on every logit.
    """
    distances = (
        torch.logspace(0, math.log10(max_distance), DISTANCES, dtype=torch.float64)
        .round()
        .unique()
        .unsqueeze(-1)
    )
    return (
        temperature * torch.exp(1j * distances * theirs) - torch.exp(1j * distances * ours)
    ).abs()


def _until(gap: Tensor, angle: float) -> int | None:
    """Return the first position at which some pair is off by more than `angle`; `gap` is the error
    of each pair per step.
    """
    largest = float(gap.abs().max())
    return math.floor(angle / largest) + 1 if largest > 0 else None
