"""The base class of all scalings, and `setting`, which declares one of their fields.

What a scaling accepts, how Hugging Face configs spell it and what `extend` offers all follow from
the fields and class variables of its class: a new scaling is one class and one line in SCALINGS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Any, ClassVar

from ropewalk.caches import cached
from ropewalk.errors import RopeError, flag, integer, number
from ropewalk.frequencies.decimals import DECIMAL, exactly

#: bounds of a magnitude: its square and the inverse of its square still fit in a float32
MAGNITUDE_RANGE = {"low": 1e-18, "high": 1e18}
#: bounds of turns and of factors on a frequency: products with any length or period still fit in a
#: float32
FACTOR_RANGE = {"low": 1e-18, "high": 1e18}
#: the config key of the trained length
TRAINED_LENGTH_KEY = "original_max_position_embeddings"
#: the config key of the longest sequence that a model is used with
SERVED_LENGTH_KEY = "max_position_embeddings"


@dataclass(frozen=True, eq=False)
class Frequencies:
    """The frequencies and the magnitude that a scaling computes, as plain numbers.

    `radians` has one float for each pair; those of a spec with axes may be [pairs][axes] or
    [heads][pairs][axes] instead.
    `magnitude` multiplies cos and sin. `growth` (xPos) is, for each pair, the log-magnitude per
    position away from the position `center`: added on queries, subtracted on keys. `digits` are the
    frequencies with 40 digits; `radians` are `digits` rounded, one by one, to float64 or float32.
    """

    radians: tuple[Any, ...]
    magnitude: float = 1.0
    growth: tuple[float, ...] | None = None
    center: int = 0
    digits: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Setting:
    """What one field of a scaling accepts, and its Hugging Face config key.

    default           its type is the type of the field; None means an optional number
    low, above, high  bounds of a number, or of each entry of a list: low <= value <= high and
                      above < value; of an integer, only `low` is checked
    key               the config key, if it is not the name of the field
    required          a config that names this scaling must give the key, unless its value follows
                      from other keys or from the model's family
    from_lengths      if the key is absent, its value is the served length over the trained length,
                      if the config has both
    """

    default: Any
    low: float = -math.inf
    above: float = -math.inf
    high: float = math.inf
    key: str | None = None
    required: bool = False
    from_lengths: bool = False

    def check(self, name: str, value: object) -> Any:
        """Return `value` in the type of the default; raise a RopeError if its type is wrong or it
        is out of bounds.
        """
        if self.default is None and value is None:
            return None
        if isinstance(self.default, bool):
            return flag(name, value)
        if isinstance(self.default, int):
            # without a lower bound down to -2^62, as the upper bound of `integer` is 2^62
            return integer(name, value, low=-(2**62) if math.isinf(self.low) else int(self.low))
        if isinstance(self.default, tuple):
            return number_tuple(name, value, low=self.low, above=self.above, high=self.high)
        return number(name, value, low=self.low, above=self.above, high=self.high)


def setting(default: Any, **facts: Any) -> Any:
    """Declare a dataclass field with a `Setting`, by which it is checked and read from configs;
    `facts` are the other fields of the Setting.
    """
    return field(default=default, metadata={"setting": Setting(default, **facts)})


def settings_of(scaling: Scaling | type[Scaling]) -> dict[str, Setting]:
    """Return the settings of a scaling by field name; fields declared without `setting` are left
    out.
    """
    return {f.name: f.metadata["setting"] for f in fields(scaling) if "setting" in f.metadata}


@dataclass(frozen=True)
class Scaling:
    """Base of all scalings: checks the fields; subclasses define `_radians` and, if they have one,
    `_magnitude`.
    """

    #: the name in SCALINGS; the `rope_type` of Hugging Face configs for the scalings they know
    name: ClassVar[str] = ""
    #: the frequencies depend on the length of each sequence
    needs_length: ClassVar[bool] = False
    #: the frequencies are learned: `Rope` has a parameter for them
    learned: ClassVar[bool] = False
    #: configs can name it as their `rope_type`; its fields are then read from, and written to,
    #: their config keys
    in_configs: ClassVar[bool] = False
    #: `extend` offers it
    in_extend: ClassVar[bool] = False
    #: `extend` sets the config's served length too; False where vLLM and SGLang multiply that
    #: length by `factor` themselves
    raises_length: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check every field declared by `setting`, and keep it in the type of its default."""
        for name, declared in settings_of(self).items():
            object.__setattr__(self, name, declared.check(name, getattr(self, name)))

    def frequencies(self, dim: int, theta: float, length: int | None = None) -> Frequencies:
        """Return the frequencies of the dim/2 pairs; `length` is used only if `needs_length`, and
        None or 0, that of an empty sequence, gives those of the trained length.
        """
        length = integer("length", length, low=1) if self.needs_length and length else None
        return _computed_frequencies(self, dim, theta, length)

    def magnitude_at(self, length: int | None = None) -> float:
        """Return the factor on cos and sin in sequences of this length; None: the trained length."""
        with exactly():
            return float(self._magnitude(length, DECIMAL))

    @property
    def innermost(self) -> Scaling:
        """The scaling that has the trained length and the factor: this one, or the one whose
        frequencies this one clips or multiplies by learned factors.
        """
        return self

    @property
    def magnitude_needs_length(self) -> bool:
        """Whether the factor on cos and sin depends on the length of each sequence."""
        return False

    def check(self, dim: int, theta: float) -> None:
        """Raise a RopeError if the scaling cannot be used with `dim` or `theta`; the base class
        accepts all.
        """

    def as_dict(self) -> dict[str, Any]:
        """Return `rope_type` and all fields, as a dict."""
        return {"rope_type": self.name, **{f.name: getattr(self, f.name) for f in fields(self)}}

    def _radians(self, dim: int, theta: float, length: Any, ops: Any) -> Any:
        """Return the frequencies in radians per step, one for each pair, or over torch [rows,
        pairs] if `length` has one entry per batch row.

        length  None for the trained length, an int, or over torch a tensor
        ops     the operations of formulas: `decimals.DecimalNumbers`, or the same over torch or
                NumPy
        """
        raise TypeError(f"{type(self).__name__} must define _radians(dim, theta, length, ops)")

    def _magnitude(self, length: Any, ops: Any) -> Any:
        """Return the factor on cos and sin; 1 unless a subclass has another. The arguments are those
        of `_radians`.
        """
        return 1.0

    def _growth(self, dim: int) -> tuple[tuple[float, ...] | None, int]:
        """Return (log-magnitude per step of each pair, center), or (None, 0): only xPos has a
        growth.
        """
        return None, 0

    def check_count(self, count: int, dim: int) -> None:
        """Refuse a formula that does not give one frequency for each pair."""
        # a kernel would read memory beyond a shorter list
        if count != dim // 2:
            rule = (
                f"must give one frequency for each of the {dim // 2} pairs; return that many from "
                "_radians"
            )
            raise RopeError(f"scaling {self.name}", rule, count)

    def _check_order(self, larger: str, smaller: str) -> None:
        """Refuse a field `larger` whose value is below that of the field `smaller`."""
        if getattr(self, larger) < getattr(self, smaller):
            raise RopeError(
                larger,
                f"must be at least {smaller} = {getattr(self, smaller):g}",
                getattr(self, larger),
            )

    def _check_pairs(self, name: str, dim: int, what: str) -> None:
        """Refuse a field `name` whose list does not have one entry for each pair; an error calls an
        entry `what`.
        """
        count = len(getattr(self, name))
        if count != dim // 2:
            raise RopeError(name, f"must hold one {what} for each of the {dim // 2} pairs", count)


@cached("frequencies", entries=512)
def _computed_frequencies(
    scaling: Scaling, dim: int, theta: float, length: int | None
) -> Frequencies:
    """Return the frequencies of a scaling for heads with `dim` rotated dimensions, computed by its
    formula over Decimals; `length` is that of the sequence, or None.
    """
    with exactly():
        radians = scaling._radians(dim, theta, length, DECIMAL)
        # a formula of the user's may give an array, a tensor or a list of floats
        numbers = radians.tolist() if hasattr(radians, "tolist") else radians
        digits = tuple(map(Decimal, numbers))
    scaling.check_count(len(digits), dim)
    magnitude = scaling.magnitude_at(length)
    return Frequencies(tuple(map(float, digits)), magnitude, *scaling._growth(dim), digits)


def number_tuple(name: str, value: Any, **bounds: float) -> tuple[float, ...]:
    """Return the numbers of a list, tuple or tensor as a tuple; raise an error if there is none, or
    one is out of bounds.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list | tuple) or not value:
        raise RopeError(name, "must be a list of at least one number", value)
    return tuple(number(f"{name}[{i}]", x, **bounds) for i, x in enumerate(value))
