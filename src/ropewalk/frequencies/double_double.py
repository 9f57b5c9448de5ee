"""Double-doubles: numbers with about 28 correct digits, each the exact sum of two float64 numbers.

A float64 frequency is off by about 1e-16 of itself, and position 2^40 multiplies that error by
1e12. The formulas of the scalings therefore also run over this class, which has the operators that
they use. It computes in NumPy, so that no mode of torch observes it, and takes under a millisecond
for all pairs of a spec.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

# without traps, the logarithm of infinity is infinity and no exception
_DECIMALS = Context(prec=40, traps=[])
# a product with 2^27 + 1 splits a float64 into two halves of 26 bits (Veltkamp)
_SPLITTER = 134217729.0

Formula = TypeVar("Formula", bound=Callable)
#: one float or an array of them: both have the same operators
Float64 = Any


def accepts_double_double(formula: Formula) -> Formula:
    """Mark a `_radians` that also accepts `dtype=DoubleDouble`; a method that overrides it has to
    be marked again.
    """
    formula.accepts_double_double = True  # type: ignore[attr-defined]  # functions have attributes
    return formula


class DoubleDouble:
    """A number, or an array of numbers, `high + low`; `high` is the float64 nearest to the sum.

    Python numbers are exact operands.
    """

    # NumPy must not apply its own operators to the elements of this class
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]  # equality compares elements

    def __init__(self, high: Float64, low: Float64 = 0.0) -> None:
        self.high, self.low = high, low

    def __add__(self, other: Number) -> DoubleDouble:
        other = _as_double_double(other)
        high, low = _sum(self.high, other.high)
        return _normalised(high, low + (self.low + other.low))

    def __mul__(self, other: Number) -> DoubleDouble:
        other = _as_double_double(other)
        high, low = _product(self.high, other.high)
        return _normalised(high, low + (self.high * other.low + self.low * other.high))

    def __truediv__(self, other: Number) -> DoubleDouble:
        other = _as_double_double(other)
        # a float64 quotient, and the quotient of its remainder
        quotient = self.high / other.high
        remainder = self - other * DoubleDouble(quotient)
        return _normalised(quotient, remainder.high / other.high)

    def __pow__(self, exponent: Number) -> DoubleDouble:
        return (self.log() * exponent).exp()

    def __neg__(self) -> DoubleDouble:
        return DoubleDouble(-self.high, -self.low)

    def __sub__(self, other: Number) -> DoubleDouble:
        return self + -_as_double_double(other)

    def __rsub__(self, other: float) -> DoubleDouble:
        return -self + other

    def __rtruediv__(self, other: float) -> DoubleDouble:
        return DoubleDouble(other) / self

    def __rpow__(self, base: float) -> DoubleDouble:
        return DoubleDouble(base) ** self

    __radd__, __rmul__ = __add__, __mul__

    def __lt__(self, other: Number) -> Any:
        return (self - other).high < 0

    def __gt__(self, other: Number) -> Any:
        return (self - other).high > 0

    def __eq__(self, other: Any) -> Any:
        return (self - other).high == 0

    def __floor__(self) -> int:
        near = math.floor(self.high)
        return near - int(self < near)  # `low` may take the sum below the floor of `high`

    def __ceil__(self) -> int:
        near = math.ceil(self.high)
        return near + int(self > near)

    def clamp(self, low: float, high: float) -> DoubleDouble:
        """Return the numbers limited to low ... high."""
        return where(self < low, low, where(self > high, high, self))

    def log(self) -> DoubleDouble:
        """Return the natural logarithm of a single number."""
        exact = _DECIMALS.ln(_DECIMALS.add(Decimal(self.high), Decimal(self.low)))
        return DoubleDouble(float(exact), float(_DECIMALS.subtract(exact, Decimal(float(exact)))))

    def exp(self) -> DoubleDouble:
        """Return e to the power of each number: 2^k (1 + y)^16, where 1 + y = e^x and |x| < 0.022."""
        k = np.rint(self.high / _LN2.high)
        reduced = self - _LN2 * DoubleDouble(
            k
        )  # the number minus k ln 2, so e^number = 2^k e^reduced
        x = DoubleDouble(reduced.high / 16, reduced.low / 16)
        # the series x + x^2/2! + x^3/3! + ...; from x^6/6! on, float64 is accurate enough
        tail = np.zeros_like(x.high)
        for n in range(13, 5, -1):
            tail = (tail + _INVERSE_FACTORIALS[n].high) * x.high
        y = DoubleDouble(tail)
        for n in range(5, 0, -1):
            y = (y + _INVERSE_FACTORIALS[n]) * x
        for _ in range(4):
            y = y * (y + 2.0)  # (1 + y)^2 - 1
        y, exponent = y + 1.0, k.astype(np.int64)
        return DoubleDouble(np.ldexp(y.high, exponent), np.ldexp(y.low, exponent))

    def cos_minus_one(self) -> DoubleDouble:
        """Return cos(x) - 1 of each x from -pi to pi; unlike cos(x), it keeps its digits near x =
        0. Used by `taper`.

        The series is computed at x / 64, where few terms are enough; six doublings of the angle
        give the result.
        """
        x = DoubleDouble(self.high / 64, self.low / 64)
        square, y = x * x, DoubleDouble(np.zeros_like(x.high))
        # -x^2/2! + x^4/4! - ..., from the last term to the first
        for n in range(16, 0, -2):
            y = (
                (y - _INVERSE_FACTORIALS[n]) * square
                if n % 4 == 2
                else (y + _INVERSE_FACTORIALS[n]) * square
            )
        for _ in range(6):
            y = y * (y + 2.0) * 2.0  # cos 2x - 1 = 2 (cos x - 1) (cos x + 1)
        return y

    @property
    def is_finite(self) -> bool:
        """Whether no number exceeded the range of float64."""
        return bool(np.isfinite(self.high + self.low).all())

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return `high` and `low` as float64 tensors on the CPU."""
        return torch.from_numpy(self.high), torch.from_numpy(self.low)


Number = DoubleDouble | float


def where(condition: Any, a: Number, b: Number) -> DoubleDouble:
    """Return a where `condition` is true, b elsewhere."""
    a, b = _as_double_double(a), _as_double_double(b)
    return DoubleDouble(np.where(condition, a.high, b.high), np.where(condition, a.low, b.low))


def _as_double_double(value: Number) -> DoubleDouble:
    """Return a number as a DoubleDouble; a float is exact."""
    return value if isinstance(value, DoubleDouble) else DoubleDouble(float(value))


def _normalised(high: Float64, low: Float64) -> DoubleDouble:
    """Return high + low as a DoubleDouble whose `high` is the rounded sum; needs |low| <= |high|."""
    total = high + low
    return DoubleDouble(total, low - (total - high))


def _sum(a: Float64, b: Float64) -> tuple[Float64, Float64]:
    """Return the float64 sum and its rounding error (Knuth)."""
    total = a + b
    from_b = total - a  # what the sum took from b; the rest of it came from a
    return total, (a - (total - from_b)) + (b - from_b)


def _product(a: Float64, b: Float64) -> tuple[Float64, Float64]:
    """Return the float64 product and its rounding error (Dekker): products of 26-bit halves are
    exact in float64.
    """
    product = a * b
    (a_top, a_rest), (b_top, b_rest) = _halves(a), _halves(b)
    return product, ((a_top * b_top - product) + a_top * b_rest + a_rest * b_top) + a_rest * b_rest


def _halves(x: Float64) -> tuple[Float64, Float64]:
    """Return x as the sum of two numbers of 26 bits each, (top, rest)."""
    # Veltkamp: subtracting the large `scaled` rounds the lower half of the bits of x away
    scaled = _SPLITTER * x
    top = scaled - (scaled - x)
    return top, x - top


PI = DoubleDouble(3.141592653589793, 1.2246467991473532e-16)
_LN2 = DoubleDouble(0.6931471805599453, 2.3190468138462996e-17)
_INVERSE_FACTORIALS = tuple(DoubleDouble(1.0) / float(math.factorial(n)) for n in range(17))
