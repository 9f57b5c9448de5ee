"""Numbers with 40 digits: the arithmetic in which frequencies are defined.

A float64 frequency is off by about 1e-16 of itself, and position 2^40 multiplies that error by
1e12. The formulas of the scalings therefore run over `decimal`: scalars are Decimals, and `Vector`
has one Decimal for each pair. 64 pairs take a few milliseconds.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from decimal import Decimal
from operator import add, eq, gt, lt, mul, sub, truediv
from typing import Any

from ropewalk.caches import cached

#: how many digits every operation keeps
DIGITS = 40
# without traps, a division by zero gives infinity and no exception
_CONTEXT = decimal.Context(
    prec=DIGITS, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, traps=[], rounding="ROUND_HALF_EVEN"
)


def exactly() -> AbstractContextManager[Any]:
    """Return a context in which Decimals are computed with 40 digits, in this thread alone."""
    return decimal.localcontext(_CONTEXT)


@cached("pi", entries=64)
def pi(digits: int = DIGITS) -> Decimal:
    """Return pi with this many digits, by Machin's formula over integers."""
    # 10 more digits, because every integer division drops a fraction
    one = 10 ** (digits + 10)

    def arctangent_of_inverse(x: int) -> int:
        """Return `one` times the arctangent of 1 / x, by its series 1/x - 1/(3 x^3) + ..."""
        power = total = one // x
        n, sign = 3, -1
        while power:
            power //= x * x
            total += sign * (power // n)
            n, sign = n + 2, -sign
        return total

    scaled = 4 * (4 * arctangent_of_inverse(5) - arctangent_of_inverse(239))
    # the last step rounds to `digits` digits
    return (
        Decimal(scaled)
        .scaleb(-(digits + 10), decimal.Context(prec=digits + 20))
        .normalize(decimal.Context(prec=digits))
    )


class Vector:
    """One Decimal for each pair, with the operators that formulas use; floats are exact operands.
    Comparisons give a tuple of one bool for each pair, a condition for `DecimalNumbers.where`.
    """

    __slots__ = ("values",)
    __hash__ = None  # type: ignore[assignment]  # equality compares elements

    def __init__(self, values: Sequence[Decimal]) -> None:
        self.values = tuple(values)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Decimal]:
        return iter(self.values)

    def _with(self, operation: Callable[[Any, Any], Any], other: Any) -> tuple[Any, ...]:
        """Return operation(x, y) for each pair, x of this vector and y of `other`, which may also
        be one number for all pairs.
        """
        return tuple(map(operation, self.values, _operands(other, len(self))))

    def __add__(self, other: Any) -> Vector:
        return Vector(self._with(add, other))

    def __mul__(self, other: Any) -> Vector:
        return Vector(self._with(mul, other))

    def __sub__(self, other: Any) -> Vector:
        return Vector(self._with(sub, other))

    def __rsub__(self, other: Any) -> Vector:
        return Vector(self._with(lambda mine, given: given - mine, other))

    def __truediv__(self, other: Any) -> Vector:
        return Vector(self._with(truediv, other))

    def __rtruediv__(self, other: Any) -> Vector:
        return Vector(self._with(lambda mine, given: given / mine, other))

    def __pow__(self, exponent: Any) -> Vector:
        return Vector(self._with(pow, exponent))

    def __rpow__(self, base: Any) -> Vector:
        logarithm = _decimal(base).ln()
        return Vector([(logarithm * value).exp() for value in self.values])

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Vector:
        return Vector([-value for value in self.values])

    def __lt__(self, other: Any) -> Any:
        return self._with(lt, other)

    def __gt__(self, other: Any) -> Any:
        return self._with(gt, other)

    def __eq__(self, other: object) -> Any:
        return self._with(eq, other)


class DecimalNumbers:
    """The operations of formulas over Decimals; `ropewalk.tensor_frequencies` has them over torch.

    A formula calls these for what operators cannot say: how a parameter, a list or a length becomes
    a number, what depends on a condition, and logarithms.
    """

    @property
    def pi(self) -> Decimal:
        """Pi with all digits."""
        return pi()

    def number(self, value: float | Decimal) -> Decimal:
        """Return a parameter as a number that formulas can multiply and raise to a power."""
        return _decimal(value)

    def vector(self, values: Sequence[float]) -> Vector:
        """Return one number for each pair."""
        return Vector([_decimal(value) for value in values])

    def multiples(self, step: int, count: int) -> Vector:
        """Return 0, step, 2 step, ...: `count` numbers."""
        return Vector([Decimal(step * i) for i in range(count)])

    def where(self, condition: Any, a: Any, b: Any) -> Vector:
        """Return for each pair the value of `a` if `condition` is true for it, else that of `b`."""
        count = max(len(x) for x in (condition, a, b) if isinstance(x, Vector | tuple))
        # a condition on the length, of `exceeds`, has one entry for all pairs
        conditions = condition if len(condition) == count else condition * count
        pairs = zip(conditions, _operands(a, count), _operands(b, count), strict=True)
        return Vector([of_a if is_true else of_b for is_true, of_a, of_b in pairs])

    def clamp(self, values: Vector, low: float, high: float) -> Vector:
        """Return the numbers limited to low ... high."""
        least, most = _decimal(low), _decimal(high)
        return Vector([min(max(value, least), most) for value in values])

    def exp(self, values: Vector) -> Vector:
        """Return e to the power of each number."""
        return Vector([value.exp() for value in values])

    def sin(self, values: Vector) -> Vector:
        """Return the sine of each number from -pi/2 to pi/2."""
        return Vector([_sine(value) for value in values])

    def log(self, value: Decimal) -> Decimal:
        """Return the natural logarithm of a single number."""
        return value.ln()

    def real(self, length: int) -> Decimal:
        """Return a length as a number."""
        return Decimal(length)

    def at_least(self, value: Any, low: float) -> Any:
        """Return the larger of a number and `low`."""
        return max(value, _decimal(low))

    def exceeds(self, length: int, limit: int) -> tuple[bool]:
        """Return whether a length is above a limit, as a condition for `where`."""
        return (length > limit,)

    def per_row(self, value: Any) -> Any:
        """Return a number that was computed from a length, in a form that can be combined with one
        number for each pair; over torch, a number for each row becomes [rows, 1].
        """
        return value

    def as_float(self, value: Any) -> float:
        """Return a number in the type in which magnitudes are computed: a float; over torch the
        value itself, a float or a tensor.
        """
        return float(value)


DECIMAL = DecimalNumbers()


def _decimal(value: Any) -> Decimal:
    return value if isinstance(value, Decimal) else Decimal(value)


def _operands(other: Any, count: int) -> Sequence[Decimal]:
    """Return the other operand as one Decimal for each of `count` pairs."""
    if isinstance(other, Vector):
        return other.values
    return (_decimal(other),) * count


def _sine(x: Decimal) -> Decimal:
    """Return the sine of x from -pi/2 to pi/2, by its series x - x^3/3! + x^5/5! - ..., up to terms
    that do not change the last digit.
    """
    term = total = x
    n, square = 1, x * x
    while term and abs(term) > abs(total).scaleb(-DIGITS - 5):
        term = -term * square / ((n + 1) * (n + 2))
        total += term
        n += 2
    return total
