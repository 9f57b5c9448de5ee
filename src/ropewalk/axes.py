"""Axes: which coordinates of a position each pair rotates by.

Most multi-dimensional RoPEs are a vector with the axis of each pair (`AxisMap`). In the others,
axes or directions differ from head to head (`HeadAxes`, `GoldenAxes`), or each pair has a learned
frequency on every axis (`MixedAxes`). A ladder is a geometric series of frequencies, theta^(-2i/d)
for i = 0, 1, 2, ...: that of all pairs, or that of the pairs of one axis. The bounds of axes, heads
and pairs are far above those of any model; they catch typos.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from ropewalk.errors import RopeError, choice, flag, integer, number

#: [heads][pairs][axes]: for every pair of every head, a vector with one float for each axis
Directions = tuple[tuple[tuple[float, ...], ...], ...]


@dataclass(frozen=True)
class AxisMap:
    """The axis of every pair, and whether the axes share one ladder of frequencies.

    ladder      "shared": pair i has frequency omega_i whatever its axis (M-RoPE). "per_axis": the
                frequencies of each axis start again at the fastest (axial image and video RoPE)
    fractional  coordinates may be real numbers
    scaled      with "per_axis": the axes to whose frequencies the spec's scaling applies, such as
                (0,) for time alone; None = all
    """

    axis_of_pair: tuple[int, ...]
    num_axes: int
    ladder: str = "shared"
    fractional: bool = False
    scaled: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        num_axes = integer("num_axes", self.num_axes, low=1, high=64)
        # NumPy's integers become plain ones, so that equal maps give equal fingerprints
        axes = tuple(
            integer("axis_of_pair", axis, low=0, high=num_axes - 1) for axis in self.axis_of_pair
        )
        if not axes:
            raise RopeError("axis_of_pair", "must name an axis for at least one pair", axes)
        choice("ladder", self.ladder, ("shared", "per_axis"))
        flag("fractional", self.fractional)
        if self.scaled is not None:
            if self.ladder == "shared":
                raise RopeError(
                    "scaled",
                    "needs ladder='per_axis': axes that share a ladder also share its scaling",
                    self.scaled,
                )
            scaled = tuple(
                integer("scaled", axis, low=0, high=num_axes - 1) for axis in self.scaled
            )
            object.__setattr__(self, "scaled", scaled)
        object.__setattr__(self, "axis_of_pair", axes)
        object.__setattr__(self, "num_axes", num_axes)

    @property
    def pairs(self) -> int:
        """How many pairs rotate."""
        return len(self.axis_of_pair)

    def ladders(self) -> list[tuple[list[int], int]]:
        """Return (pairs, dim) of every ladder: the indices of the pairs that use it, and the d of
        its exponents -2i/d.
        """
        if self.ladder == "shared":
            return [(list(range(self.pairs)), 2 * self.pairs)]
        pairs_of_axis: list[list[int]] = [[] for _ in range(self.num_axes)]
        for pair, axis in enumerate(self.axis_of_pair):
            pairs_of_axis[axis].append(pair)
        return [(pairs, 2 * len(pairs)) for pairs in pairs_of_axis if pairs]

    def is_scaled(self, pair: int) -> bool:
        """Return whether the spec's scaling applies to the axis of this pair."""
        return self.scaled is None or self.axis_of_pair[pair] in self.scaled


@dataclass(frozen=True)
class MixedAxes:
    """Trained [heads, pairs, 2] frequencies: every pair of every head rotates by both coordinates
    (RoPE-Mixed for images).

    The initial values are rope-vit's: a random direction per head, half of the pairs along it and
    half perpendicular to it. `Rope` draws the directions from `seed`; the lengths of the vectors
    are, in each half, the ladder theta^(-2i/d) with d = pairs. `fractional`: coordinates may be
    real numbers.
    """

    num_heads: int
    pairs: int
    theta: float = 10.0
    seed: int = 0
    num_axes: int = 2
    fractional: bool = True

    def __post_init__(self) -> None:
        # the dataclass is frozen
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731
        put("num_heads", integer("num_heads", self.num_heads, low=1, high=65536))
        put("pairs", integer("pairs", self.pairs, low=2, high=32768))
        put("seed", integer("seed", self.seed, low=0))
        # a smaller theta gives frequencies that no float32 holds
        put("theta", number("theta", self.theta, low=1e-30))
        if self.pairs % 2:
            rule = (
                "must be even: half of the pairs start along a direction, half perpendicular to it"
            )
            raise RopeError("pairs", rule, self.pairs)
        flag("fractional", self.fractional)
        put("num_axes", integer("num_axes", self.num_axes, low=1, high=64))
        if self.num_axes != 2:
            raise RopeError(
                "num_axes",
                "must be 2: mixed frequencies are defined for (height, width)",
                self.num_axes,
            )


@dataclass(frozen=True)
class HeadAxes:
    """The axis of every key head: all pairs of a head rotate by one coordinate, and each head has
    the whole ladder of frequencies (MHRoPE).

    Queries may have a multiple of these heads (grouped-query attention): each query head uses the
    axis of its key head.

    axis_of_head  the axis of each key head; -1 for a head that does not rotate
    pairs         how many pairs each head has
    fractional    coordinates may be real numbers
    """

    axis_of_head: tuple[int, ...]
    pairs: int
    num_axes: int
    fractional: bool = False

    def __post_init__(self) -> None:
        num_axes = integer("num_axes", self.num_axes, low=1, high=64)
        axes = tuple(
            integer("axis_of_head", axis, low=-1, high=num_axes - 1) for axis in self.axis_of_head
        )
        if not axes:
            raise RopeError("axis_of_head", "must name an axis for at least one head", axes)
        object.__setattr__(self, "axis_of_head", axes)
        object.__setattr__(self, "num_axes", num_axes)
        object.__setattr__(self, "pairs", integer("pairs", self.pairs, low=1, high=32768))
        flag("fractional", self.fractional)

    @property
    def num_heads(self) -> int:
        """How many key heads there are, those that do not rotate included."""
        return len(self.axis_of_head)

    def directions(self) -> Directions:
        """Return floats [heads][pairs][axes], by which the frequencies of the ladder are
        multiplied: 1 on the head's axis, 0 elsewhere.
        """
        axes = range(self.num_axes)
        # for a head with axis -1, all 0
        units = [
            tuple(float(axis == head_axis) for axis in axes) for head_axis in self.axis_of_head
        ]
        return tuple((unit,) * self.pairs for unit in units)


@dataclass(frozen=True)
class GoldenAxes:
    """Every pair of every head rotates along a direction of its own; all directions are spread
    evenly (golden gate RoPE).

    Nothing is learned or drawn at random: direction n is point n of a low-discrepancy sequence,
    mapped to the sphere. Query heads may be a multiple of the `num_heads` key heads. With
    `frequencies.geometric` as the scaling, the frequencies are those of the method's author.
    """

    num_heads: int
    pairs: int
    num_axes: int = 2
    fractional: bool = True

    def __post_init__(self) -> None:
        for name, most in (("num_heads", 65536), ("pairs", 32768), ("num_axes", 64)):
            object.__setattr__(self, name, integer(name, getattr(self, name), low=1, high=most))
        flag("fractional", self.fractional)

    def directions(self) -> Directions:
        """Return unit vectors, floats [heads][pairs][axes], by which the frequencies of the ladder
        are multiplied.
        """
        # ten steps of fixed-point iteration, as in the author's code, for the generalised golden
        # ratio: x^(axes + 1) = x + 1
        ratio = 2.0
        for _ in range(10):
            ratio = (1 + ratio) ** (1 / (self.num_axes + 1))
        steps = [ratio**-power for power in range(1, self.num_axes + 1)]
        normal = NormalDist()

        def direction(index: int) -> tuple[float, ...]:
            # evenly spread points of the unit cube become normally distributed ones, whose
            # directions cover the sphere evenly
            point = [normal.inv_cdf(index * step % 1) for step in steps]
            length = math.hypot(*point)
            return tuple(coordinate / length for coordinate in point)

        # + 1: point 0 is a corner of the cube, for which inv_cdf has no value
        return tuple(
            tuple(direction(head * self.pairs + pair + 1) for pair in range(self.pairs))
            for head in range(self.num_heads)
        )


#: the classes of axes that differ from head to head, with fixed frequencies
PER_HEAD = (HeadAxes, GoldenAxes)


def by_head(sections: Sequence[int], pairs: int, num_heads: int | None = None) -> HeadAxes:
    """MHRoPE: the first sections[0] key heads use axis 0, the next sections[1] axis 1, and so on;
    further heads do not rotate.

    pairs      how many pairs each head has
    num_heads  the number of key heads; None = the sum of the sections
    """
    counts = _checked_sections(sections)
    num_heads = (
        sum(counts)
        if num_heads is None
        else integer("num_heads", num_heads, low=sum(counts), high=65536)
    )
    axes = [axis for axis, count in enumerate(counts) for _ in range(count)]
    return HeadAxes((*axes, *[-1] * (num_heads - len(axes))), pairs, len(counts))


def chunked(sections: Sequence[int]) -> AxisMap:
    """M-RoPE in blocks (Qwen2-VL, GLM-4V): the first sections[0] pairs use axis 0, the next
    sections[1] axis 1, and so on.
    """
    sections = _checked_sections(sections)
    return AxisMap(
        tuple(axis for axis, count in enumerate(sections) for _ in range(count)), len(sections)
    )


def interleaved(sections: Sequence[int]) -> AxisMap:
    """M-RoPE interleaved (Qwen3-VL), sections (time, height, width): pair i uses axis i mod 3; once
    that axis has all its pairs, pair i uses time (axis 0).
    """
    time, height, width = _checked_sections(sections, exactly=3)
    # at first all pairs use time; then height takes pairs 1, 4, 7, ... and width 2, 5, 8, ...
    axes = [0] * (time + height + width)
    # a section that is too long for its places ends with them, and is refused below
    axes[1 : 3 * height : 3] = [1] * len(axes[1 : 3 * height : 3])
    axes[2 : 3 * width : 3] = [2] * len(axes[2 : 3 * width : 3])
    if axes.count(1) != height or axes.count(2) != width:
        rule = (
            "height and width must fit every third pair: 3 * height <= pairs + 1 and 3 * width <= "
            "pairs"
        )
        raise RopeError("sections", rule, list(sections))
    return AxisMap(tuple(axes), 3)


def ernie(sections: Sequence[int]) -> AxisMap:
    """Ernie-4.5-VL, sections (height, width, time): height (axis 1) and width (axis 2) alternate in
    the fast pairs, the slowest pairs use time (axis 0).
    """
    height, width, time = _checked_sections(sections, exactly=3)
    if height != width:
        raise RopeError("sections", "height and width must be equal to alternate", list(sections))
    return AxisMap((1, 2) * height + (0,) * time, 3)


def round_robin(sections: Sequence[int]) -> AxisMap:
    """GLM's order in serving engines: the axes take turns, pair by pair, until each axis a has
    sections[a] pairs; an axis that has all its pairs is skipped.
    """
    pairs_left = list(_checked_sections(sections))  # of each axis
    axes: list[int] = []
    while any(pairs_left):
        for axis, count in enumerate(pairs_left):
            if count:
                axes.append(axis)
                pairs_left[axis] -= 1
    return AxisMap(tuple(axes), len(pairs_left))


def axial(*sections: int, scaled: Sequence[int] | None = None) -> AxisMap:
    """Axial RoPE: axis a has sections[a] consecutive pairs and its own ladder of frequencies;
    `axial(16, 16)` for an image.

    `scaled` lists the axes that the spec's scaling applies to; None = all.
    """
    return AxisMap(
        chunked(sections).axis_of_pair,
        len(sections),
        "per_axis",
        scaled=None if scaled is None else tuple(scaled),
    )


def normalised(*sections: int) -> AxisMap:
    """Axial RoPE over real coordinates such as DINOv3's patch centres in [-1, 1]; `sections` are
    those of `axial`.
    """
    return AxisMap(
        chunked(sections).axis_of_pair, len(sections), ladder="per_axis", fractional=True
    )


#: the orders of axes along the pairs, by the names in families.toml and gguf/architectures.toml
AXIS_ORDERS = {
    "chunked": chunked,
    "interleaved": interleaved,
    "ernie": ernie,
    "round_robin": round_robin,
}


def _checked_sections(sections: Sequence[int], exactly: int | None = None) -> tuple[int, ...]:
    """Return the number of pairs of each axis, checked; raise an error if the number of axes is not
    `exactly` (None: any number).
    """
    if not isinstance(sections, list | tuple) or not sections:
        raise RopeError(
            "sections", "must be a list with the number of pairs of each axis", sections
        )
    counts = tuple(
        integer(f"sections[{a}]", count, low=0, high=32768) for a, count in enumerate(sections)
    )
    if exactly is not None and len(counts) != exactly:
        rule = f"must have {exactly} numbers, how many pairs each axis has"
        raise RopeError("sections", rule, list(sections))
    if not sum(counts):
        raise RopeError("sections", "must give at least one pair to an axis", list(sections))
    return counts
