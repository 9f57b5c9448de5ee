"""Scalings that change the frequencies of another scaling: the slowest pairs are clipped, or every
frequency is multiplied by a learned factor.

Words of this module:
  dim           how many dimensions of a head rotate, two for each pair; `theta` is the base
  setting       a field's default and its bounds, low <= value <= high
  needs_length  the frequencies depend on the length of each sequence; `length` is then that of the
                sequence, or of each batch row, and None stands for the trained length
  growth        xPos's log-magnitude of each pair per position
  innermost     the scaling with the trained length and the factor, inside all that contain it
  ops           the operations of a formula on Decimals, floats or tensors; `multiples(1, n)` is
                0 ... n - 1, and `vector` makes a list of one number for each pair an operand
  taper         one factor for each pair: 1, then falling to 0 over the slowest pairs
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ropewalk.errors import RopeError
from ropewalk.frequencies.basic import Default
from ropewalk.frequencies.formulas import taper
from ropewalk.frequencies.scaling import Scaling, setting


@dataclass(frozen=True)
class _Wrapping(Scaling):
    """A scaling over `inner`: magnitude, growth and whether the length matters are those of
    `inner`.
    """

    inner: Scaling = Default()  # noqa: RUF009 - frozen and without fields

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.inner, Scaling) or self.inner.learned:
            raise RopeError(
                "inner",
                "must be a scaling without trained frequencies; to train them, put this scaling "
                "into Learnable(start=...)",
                self.inner,
            )
        # whether a length is needed depends on `inner`, so the instance overrides the class
        # attribute
        object.__setattr__(self, "needs_length", self.inner.needs_length)

    @property
    def innermost(self) -> Scaling:
        return self.inner.innermost

    @property
    def magnitude_needs_length(self) -> bool:
        return self.inner.magnitude_needs_length

    def check(self, dim, theta):
        self.inner.check(dim, theta)

    def _magnitude(self, length, ops):
        return self.inner._magnitude(length, ops)

    def _growth(self, dim):
        return self.inner._growth(dim)


@dataclass(frozen=True)
class Clipped(_Wrapping):
    """CoPE: the frequencies of the slowest `pairs` pairs of `inner` taper off to 0; with soft=False
    these pairs do not rotate at all.

    With soft=True, the frequency of pair m = 0 ... n - 1 of the n clipped pairs is multiplied by (1
    + cos(pi m / (n - 1))) / 2: the first keeps its frequency, the last has frequency 0. If n = 1,
    the pair keeps its frequency. In a head with fewer than `pairs` pairs, n is the number of its
    pairs.
    """

    pairs: int = setting(20, low=0)
    soft: bool = setting(True)
    name: ClassVar[str] = "clipped"

    def _radians(self, dim, theta, length, ops):
        """Return the frequencies of `inner`; those of the slowest pairs fall to 0 step by step
        (`soft`), or are all 0.
        """
        radians = self.inner._radians(dim, theta, length, ops)
        count, clipped = dim // 2, min(self.pairs, dim // 2)
        if self.soft:
            return radians * taper(count, clipped, ops)
        return ops.where(ops.multiples(1, count) < count - clipped, radians, 0.0)


@dataclass(frozen=True)
class Learned(_Wrapping):
    """LeRoPE: omega_i * exp(alpha_i), omega_i from `inner` and alpha_i from a trained checkpoint;
    zeros change nothing.

    `Learnable(start)` trains alpha; `Learned(start, alpha=rope.log_scale)` keeps what it learned,
    as a fixed spec.
    """

    # e^50 is far beyond any trained factor, and the frequencies stay finite
    alpha: tuple[float, ...] = setting((0.0,), low=-50, high=50)
    name: ClassVar[str] = "learned"

    def check(self, dim, theta):
        """Raise a RopeError if `alpha` does not have one entry for each pair, or if `inner` cannot
        be used.
        """
        super().check(dim, theta)
        self._check_pairs("alpha", dim, "exponent")

    def _radians(self, dim, theta, length, ops):
        radians = self.inner._radians(dim, theta, length, ops)
        return radians * ops.exp(ops.vector(self.alpha))
