"""The one error of the public API, and the checks of single values that raise it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real

from ropewalk.safe_text import shown


class RopeError(ValueError):
    """An invalid value: `field` is the argument or config key, `rule` what it must be, `value` what
    it was.
    """

    def __init__(self, field: str, rule: str, value: object = None) -> None:
        got = repr(value)
        got = got if len(got) <= 120 else got[:117] + "..."
        super().__init__(f"{shown(field)}: {shown(rule)}; got {shown(got)}")
        self.field, self.rule, self.value = field, rule, value

    def __reduce__(self):
        # by default an exception is unpickled from its message alone
        return type(self), (self.field, self.rule, self.value)


class MissingExtra(RopeError):
    """A package is not installed: `field` needs `packages`, which the extra installs."""

    def __init__(self, field: str, packages: str, extra: str) -> None:
        super().__init__(field, f"needs {packages}; run: pip install 'ropewalk[{extra}]'")
        self.packages, self.extra = packages, extra

    def __str__(self) -> str:
        return f"{shown(self.field)}: {shown(self.rule)}"

    def __reduce__(self):
        return type(self), (self.field, self.packages, self.extra)


def number(
    field: str,
    value: object,
    *,
    low: float = -math.inf,
    above: float = -math.inf,
    high: float = math.inf,
) -> float:
    """Return `value` as a finite float with low <= value <= high and value > above."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RopeError(field, "must be a number", value)
    try:
        result = float(value)
    except OverflowError:
        raise RopeError(field, "must fit in a float", value) from None
    if not math.isfinite(result):
        raise RopeError(field, "must be finite", value)
    if result < low or result <= above or result > high:
        bounds = {">": above, ">=": low, "<=": high}
        rules = [f"{sign} {bound:g}" for sign, bound in bounds.items() if math.isfinite(bound)]
        raise RopeError(field, "must be " + " and ".join(rules), value)
    return result


def integer(field: str, value: object, *, low: int, high: int = 2**62) -> int:
    """Return `value` as an int with low <= value <= high; 8.0 and True are not accepted. The default
    of `high` leaves room for sums in 64 bits.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise RopeError(field, "must be an integer", value)
    result = int(value)
    if not low <= result <= high:
        raise RopeError(field, f"must be an integer from {low} to {high}", value)
    return result


def flag(field: str, value: object) -> bool:
    """Return `value` if it is True or False."""
    if not isinstance(value, bool):
        raise RopeError(field, "must be true or false", value)
    return value


def choice(field: str, value: object, known: Iterable[str]) -> str:
    """Return `value` if it is one of `known`."""
    known = tuple(known)
    if not isinstance(value, str) or value not in known:
        raise RopeError(field, f"must be one of {', '.join(known)}", value)
    return value
