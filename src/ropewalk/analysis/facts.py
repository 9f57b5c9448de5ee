"""Facts: what follows from one spec, its trained length and its served length.

Words of this module:
  trained     the length of the texts in training, in tokens; `served` is that of the longest text
              in use
  distance    from a query to a key, in tokens
  turn        a full revolution of a pair of dims; a pair that completed one in training has seen
              all angles
  method      a key of COS_SIN_METHODS: a way to compute cos and sin, by a precision policy of this
              package or as another engine does it
  cosine sum  the sum of cos(distance * frequency) over all pairs, see `ladder.cosine_sum`
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

from ropewalk.analysis import ladder
from ropewalk.analysis.exactness import COS_SIN_METHODS, error_curves
from ropewalk.errors import choice, integer
from ropewalk.frequencies import Scaling
from ropewalk.spec import PRECISIONS, RopeSpec
from ropewalk.strategies import memory

# the largest distance that `first_negative` searches: ten million distances would take a minute
_MAX_SEARCHED = 1 << 17


@dataclass(frozen=True)
class Facts:
    """One spec, its trained length and its served length in tokens; all other values are computed
    on first access.

    With a `window` each query attends only to that many latest tokens, so distances are bounded
    while positions are not.
    """

    spec: RopeSpec
    trained: int
    served: int
    window: int | None = None
    #: which entries of COS_SIN_METHODS `errors` has
    methods: tuple[str, ...] = PRECISIONS
    #: `errors` are the largest errors over this many positions, the last ones below `served`
    width: int = field(default=8, repr=False)
    #: whether the caller gave the trained length; otherwise it may be a config's served length
    trained_given: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        """Check every value."""
        ladder.require_spec(self.spec)
        integer("trained", self.trained, low=1)
        integer("served", self.served, low=1)
        integer("width", self.width, low=1)
        for name in self.methods:
            choice("methods", name, COS_SIN_METHODS)
        if self.window is not None:
            integer("window", self.window, low=1)

    @property
    def scaling(self) -> Scaling:
        """The scaling that has the trained length and the factor: the spec's own, or the one that
        it clips or multiplies by learned factors.
        """
        return self.spec.scaling.innermost

    @property
    def factor(self) -> int:
        """served / trained, rounded up."""
        return math.ceil(self.served / self.trained)

    @property
    def trained_distance(self) -> int:
        """The trained length, or the window if that is shorter: in training, distances between a
        query and a key are below it.
        """
        return min(self.trained, self.window or self.trained)

    @property
    def served_distance(self) -> int:
        """The served length, or the window if that is shorter: in use, distances between a query
        and a key are below it.
        """
        return min(self.served, self.window or self.served)

    @cached_property
    def radians(self) -> tuple[float, ...]:
        """The frequencies at the served length."""
        return ladder.radians(self.spec, self.served)

    @cached_property
    def coverage(self) -> ladder.Coverage:
        """Turns of each pair: over the trained distance without scaling, over the served distance
        without and with it. A scaling that depends on the length takes the served length.
        """
        return ladder.coverage(self.spec, self.trained_distance, self.served_distance, self.served)

    @cached_property
    def new_angles(self) -> int:
        """How many pairs, with the spec's scaling, reach angles within the served distance that did
        not occur in training.
        """
        turns_with_scaling = self.coverage.scaled
        return sum(self.coverage.new_angles(turns_with_scaling))

    @cached_property
    def aliasing(self) -> ladder.Aliasing:
        """The shortest and longest wavelength, and how many pairs complete a turn within the served
        distance.
        """
        return ladder.aliasing(self.radians, self.served_distance)

    @cached_property
    def bands(self) -> list[str]:
        """What the scaling does to each pair at the served length."""
        return ladder.bands(self.spec, self.served)

    @cached_property
    def errors(self) -> dict[str, float]:
        """The largest error of cos and sin over the last `width` positions of the served length, by
        method.
        """
        curves = error_curves(
            self.spec, [self.served - 1], self.methods, length=self.served, width=self.width
        )
        return {name: curve[0] for name, curve in curves.items()}

    @cached_property
    def memory(self) -> dict[str, int]:
        """{value of `tables`: the bytes that `Rope(spec, tables=...)` keeps for the served length}.
        It keeps the tables of cos and sin, and the phase step of each pair, its angle at position 1
        as an integer in units of 2^-64 turns.
        """
        return memory(self.spec, self.served)

    @property
    def all_rows_bytes(self) -> int:
        """The bytes of float32 cos and sin of all served positions, as most libraries store them."""
        return 8 * self.spec.pairs * self.served  # two numbers of 4 bytes for each pair

    @cached_property
    def first_negative(self) -> int | None:
        """The first distance at which the cosine sum is negative, or None; distances up to the
        served one are searched, but at most 131,072.
        """
        return ladder.first_negative(self.radians, min(self.served_distance, _MAX_SEARCHED))
