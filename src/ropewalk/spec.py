"""RopeSpec: everything that defines a rotary encoding, frozen, hashable and checked once.

A ladder is a geometric series of frequencies theta^(-2i/dim), which a scaling may change.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from decimal import Decimal
from itertools import count
from numbers import Number
from struct import error as StructError
from struct import pack, unpack
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from ropewalk.axes import PER_HEAD, AxisMap, GoldenAxes, HeadAxes, MixedAxes
from ropewalk.caches import cached
from ropewalk.errors import RopeError, choice, integer, number
from ropewalk.frequencies import SCALINGS, Default, Frequencies, Scaling
from ropewalk.frequencies.decimals import exactly
from ropewalk.frequencies.scaling import MAGNITUDE_RANGE

LAYOUTS = ("half", "interleaved")
PRECISIONS = ("exact", "hf_frequencies", "hf")
#: what a magnitude may multiply: see `magnitude_on` of RopeSpec
MAGNITUDES = ("qk", "q", "scale")
#: upper bound for head_dim; catches typos
MAX_HEAD_DIM = 65536
#: bounds of theta: a smaller one gives frequencies that no float32 holds
THETA_RANGE = {"low": 1e-30}


@dataclass(frozen=True)
class RopeSpec:
    """Which frequencies, which pair layout, which slice of the head, which axes, which precision.

    layout        which of the r dimensions that rotate form a pair: "half" (x_i, x_{i+r/2}),
                  "interleaved" (x_{2i}, x_{2i+1})
    layout_out    the layout of the result; None = layout (DeepSeek reads interleaved pairs and
                  writes halves)
    rotary_dim    how many dimensions rotate, from `rotary_start` on; None = all to the end of the
                  head
    axes          AxisMap, HeadAxes, GoldenAxes or MixedAxes; None = one axis
    precision     "exact": frequencies with 40 digits (float64 where they depend on the length or
                  are learned), exact angles. "hf_frequencies": frequencies rounded in float32 as
                  transformers rounds them, exact angles. "hf": every float32 step as transformers
                  does it
    magnitude_on  what a scaling's magnitude A multiplies: "qk" both queries and keys, "q" queries
                  alone (by A^2), "scale" neither: multiply the softmax scale by `softmax_factor`
                  instead
    extra_softmax_factor  a factor that the checkpoint's own attention applies to its softmax scale
                          (DeepSeek)
    """

    head_dim: int
    theta: float = 10_000.0
    scaling: Scaling = Default()  # noqa: RUF009 - frozen and without fields
    layout: str = "half"
    layout_out: str | None = None
    rotary_dim: int | None = None
    rotary_start: int = 0
    axes: AxisMap | HeadAxes | GoldenAxes | MixedAxes | None = None
    precision: str = "exact"
    magnitude_on: str = "qk"
    extra_softmax_factor: float = 1.0

    def __post_init__(self) -> None:
        # the dataclass is frozen
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731
        put("head_dim", integer("head_dim", self.head_dim, low=2, high=MAX_HEAD_DIM))
        put("theta", number("theta", self.theta, **THETA_RANGE))
        put("layout", choice("layout", self.layout, LAYOUTS))
        put("precision", choice("precision", self.precision, PRECISIONS))
        put("magnitude_on", choice("magnitude_on", self.magnitude_on, MAGNITUDES))
        put(
            "extra_softmax_factor",
            number("extra_softmax_factor", self.extra_softmax_factor, **MAGNITUDE_RANGE),
        )
        put(
            "rotary_start",
            integer("rotary_start", self.rotary_start, low=0, high=self.head_dim - 2),
        )
        put("layout_out", self._checked_layout_out())
        put("rotary_dim", self._checked_rotary_dim())
        if not isinstance(self.scaling, Scaling):
            raise RopeError(
                "scaling",
                "must be a scaling from ropewalk.frequencies, such as Yarn(factor=4.0)",
                self.scaling,
            )
        if self.axes is not None and not isinstance(self.axes, (AxisMap, MixedAxes, *PER_HEAD)):
            raise RopeError(
                "axes",
                "must come from ropewalk.axes, such as axes.chunked([16, 24, 24])",
                self.axes,
            )
        if self.axes is not None and self.axes.pairs != self.pairs:
            raise RopeError(
                "axes",
                f"must cover the {self.pairs} pairs of rotary_dim = {self.rotated_dims}",
                self.axes.pairs,
            )
        if self.mixed and not isinstance(self.scaling, Default):
            raise RopeError(
                "scaling",
                "must be Default() with MixedAxes, whose frequencies are learned",
                self.scaling,
            )
        for scaling, dim in self.scaled_ladders():
            scaling.check(dim, self.theta)
        # whether frequencies are fixed and the magnitude is the same at every position, which
        # xPos's growth prevents
        fixed = not self.scaling.needs_length and not self.scaling.learned and not self.has_growth
        if not fixed and (
            self.per_head or (isinstance(self.axes, AxisMap) and self.axes.scaled is not None)
        ):
            rule = (
                "must have fixed frequencies and the same magnitude at every position if axes "
                "differ from head to head or only some axes are scaled"
            )
            raise RopeError("scaling", rule, self.scaling)
        put("_fingerprint", repr(_as_tuples(self)))
        # for `spec_of`: register this object, unless an equal one is registered already
        if not _is_compiled() and (live := _LIVE.setdefault(self.fingerprint, self)) is not self:
            # _LIVE does not keep its specs alive; this reference keeps `live` as long as this spec
            put("_live", live)

    def _checked_layout_out(self) -> str | None:
        """Return the layout of the output; None if it is that of the input, also where it was
        named, so that equal specs have equal fields.
        """
        if self.layout_out is None:
            return None
        layout_out = choice("layout_out", self.layout_out, LAYOUTS)
        return None if layout_out == self.layout else layout_out

    def _checked_rotary_dim(self) -> int | None:
        """Return how many dimensions rotate; None if all from `rotary_start` to the end of the head
        do, also where their number was given, so that equal specs have equal fields. Raise an error
        if the number is odd, below 2 or above that of the dimensions from `rotary_start` on.
        """
        width = self.head_dim - self.rotary_start
        if self.rotary_dim is None:
            if width % 2:
                # the odd one of the two numbers is named
                field = "rotary_start" if self.head_dim % 2 == 0 else "head_dim"
                rule = (
                    "must leave an even number of dimensions to rotate; give rotary_dim to rotate "
                    "fewer"
                )
                raise RopeError(field, rule, width)
            return None
        rotary_dim = integer("rotary_dim", self.rotary_dim, low=2, high=width)
        if rotary_dim % 2:
            raise RopeError("rotary_dim", "must be even: dimensions rotate in pairs", rotary_dim)
        return None if rotary_dim == width else rotary_dim

    @property
    def rotated_dims(self) -> int:
        """How many dimensions rotate: `rotary_dim`, or all from `rotary_start` on."""
        return self.head_dim - self.rotary_start if self.rotary_dim is None else self.rotary_dim

    @property
    def output_layout(self) -> str:
        """The pair layout of the result: `layout_out`, or that of the input."""
        return self.layout if self.layout_out is None else self.layout_out

    @property
    def pairs(self) -> int:
        """How many pairs rotate."""
        return self.rotated_dims // 2

    @property
    def num_axes(self) -> int:
        """How many coordinates a position has."""
        return 1 if self.axes is None else self.axes.num_axes

    @property
    def mixed(self) -> bool:
        """Whether every head has trained frequencies of its own on both axes."""
        return isinstance(self.axes, MixedAxes)

    @property
    def per_head(self) -> bool:
        """Whether frequencies are fixed and differ from head to head."""
        return isinstance(self.axes, PER_HEAD)

    @property
    def fractional(self) -> bool:
        """Whether positions may be real numbers."""
        return self.axes is not None and self.axes.fractional

    @property
    def learned(self) -> bool:
        """Whether frequencies are learned, so that `Rope` owns a parameter."""
        return self.mixed or self.scaling.learned

    @property
    def needs_length(self) -> bool:
        """Whether frequencies depend on the length of each sequence.

        `Rope` takes the length from the positions if none is given; `qk_norm_rope` must be given it.
        """
        return self.scaling.needs_length

    @property
    def fingerprint(self) -> str:
        """The whole spec as text: what identifies it in caches and compiled graphs."""
        return self._fingerprint  # type: ignore[attr-defined]  # set in __post_init__

    @property
    def axis_of_pair(self) -> tuple[int, ...]:
        """The axis by which each pair rotates; with axes other than an AxisMap, 0 for each pair."""
        return self.axes.axis_of_pair if isinstance(self.axes, AxisMap) else (0,) * self.pairs

    def frequencies(self, length: int | None = None) -> Frequencies:
        """Return the frequency of each pair, a plain float in radians per step, and the magnitude,
        in sequences of this length; None: the trained length.

        With an axis map each pair has a tuple of one float for each axis instead: its angle is the
        sum over the axes of coordinate times radians. Axes that differ from head to head give
        [heads][pairs][axes]. MixedAxes, whose frequencies only a `Rope` has, give the ladder of
        `theta`. With precision "hf" and "hf_frequencies" the exact radians are rounded to float32
        once; `Rope` rounds every step as transformers does, so its last bit may differ.
        """
        ladder = self.ladder_frequencies(length)
        if self.axes is None or self.mixed:
            return ladder
        return replace(
            ladder,
            radians=self._by_axis(ladder.radians, float),
            digits=self._by_axis(ladder.digits, Decimal),
        )

    def ladder_frequencies(self, length: int | None = None) -> Frequencies:
        """Return the frequency of each pair along its own axis, one float for each pair, and the
        magnitude, in sequences of this length; None: the trained length.

        With one axis there is one ladder, for all pairs of the rotated slice.
        """
        found = [s.frequencies(dim, self.theta, length) for s, dim in self.scaled_ladders()]
        # the ladder whose magnitude, growth and center are those of the spec
        first = found[self._first_scaled()]
        digits = self.in_pair_order([ladder.digits for ladder in found])
        growth = None
        # one ladder has a growth only if all have, because it cannot be on some axes alone
        if first.growth is not None:
            growth = tuple(self.in_pair_order([ladder.growth for ladder in found]))
        round_to = float if self.precision == "exact" else _float32
        radians = tuple(map(round_to, digits))
        return Frequencies(radians, first.magnitude, growth, first.center, tuple(digits))

    def magnitude(self, length: int | None = None) -> float:
        """Return the magnitude of the scaling in sequences of this length, whatever `magnitude_on`
        says that it multiplies.
        """
        return self.scaled_ladders()[self._first_scaled()][0].magnitude_at(length)

    @property
    def has_growth(self) -> bool:
        """Whether the magnitude depends on the position, as with xPos."""
        # a scaling has a growth for every `dim` or for none, so any value does
        return self.scaling._growth(dim=2)[0] is not None

    def _by_axis(
        self, ladder: tuple[Any, ...], number_type: Callable[[float], Any]
    ) -> tuple[Any, ...]:
        """Return the frequency of each pair as one number for each axis: [pairs][axes], 0 on all
        axes but the pair's own; or [heads][pairs][axes] if axes differ from head to head, where a
        pair may move along several axes.

        ladder       the frequency of each pair along its own axis
        number_type  the type of these numbers and of the result: float or Decimal
        """
        if isinstance(self.axes, PER_HEAD):
            with exactly():  # products of Decimals keep their 40 digits
                return tuple(
                    tuple(
                        tuple(frequency * number_type(part) for part in direction)
                        for frequency, direction in zip(ladder, directions, strict=True)
                    )
                    for directions in self.axes.directions()
                )
        zero = number_type(0.0)
        return tuple(
            tuple(frequency if axis == own_axis else zero for axis in range(self.num_axes))
            for frequency, own_axis in zip(ladder, self.axis_of_pair, strict=True)
        )

    @property
    def softmax_factor(self) -> float:
        """The factor that this spec needs on the softmax scale 1/sqrt(head_dim)."""
        if self.magnitude_on != "scale":
            return self.extra_softmax_factor
        if self.scaling.magnitude_needs_length:
            rule = (
                "must be 'qk' or 'q' where the magnitude depends on the length: there is only one "
                "softmax scale"
            )
            raise RopeError("magnitude_on", rule, self.magnitude_on)
        # squared: with magnitude_on="qk" both factors of a score, q and k, would have it
        return self.extra_softmax_factor * self.magnitude() ** 2

    def with_(self, **changes: Any) -> RopeSpec:
        """Return a copy with some fields changed, as `dataclasses.replace` does."""
        return replace(self, **changes)

    def __reduce__(self):
        return type(self), tuple(getattr(self, f.name) for f in fields(self))

    def in_pair_order(self, values_of_ladders: list[Any]) -> list[Any]:
        """Return the value of every pair in the order of the pairs, given for each ladder the
        values of its pairs.
        """
        value_of_pair = {}
        for (pairs, _), values in zip(self._ladders(), values_of_ladders, strict=True):
            value_of_pair.update(zip(pairs, values, strict=True))
        return [value_of_pair[pair] for pair in range(self.pairs)]

    def _first_scaled(self) -> int:
        """Return the index, in `scaled_ladders()`, of the ladder that gives the magnitude: the
        first with the spec's scaling, or the very first if none has it.
        """
        ladders = self.scaled_ladders()
        return next((i for i, (s, _) in enumerate(ladders) if s is self.scaling), 0)

    def scaled_ladders(self) -> list[tuple[Scaling, int]]:
        """Return (scaling, dim) of every ladder, unscaled ones included: the scaling that applies
        to its frequencies theta^(-2i/dim). It is Default() for axes that are not scaled.
        """
        if not isinstance(self.axes, AxisMap):
            return [(self.scaling, dim) for _, dim in self._ladders()]
        return [
            (self.scaling if self.axes.is_scaled(pairs[0]) else Default(), dim)
            for pairs, dim in self._ladders()
        ]

    def _ladders(self) -> list[tuple[list[int], int]]:
        """Return (pairs, dim) of every ladder: the indices of the pairs that use it, and the d of
        its exponents -2i/d.
        """
        return (
            self.axes.ladders()
            if isinstance(self.axes, AxisMap)
            else [(list(range(self.pairs)), 2 * self.pairs)]
        )


def spec_of(fingerprint: str) -> RopeSpec:
    """Return the spec with this fingerprint: one that is still in use, or else one rebuilt from the
    text (a graph may come from another process).
    """
    live = _LIVE.get(fingerprint)
    return _rebuilt(fingerprint) if live is None else live


@cached("specs rebuilt from fingerprints", entries=256)
def _rebuilt(fingerprint: str) -> RopeSpec:
    """Return a spec built from its fingerprint, which is untrusted text: only literals are
    evaluated. Raise an error if it is no fingerprint of a spec.
    """
    try:
        spec = _from_tuples(ast.literal_eval(fingerprint))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        spec = None
    if not isinstance(spec, RopeSpec) or spec.fingerprint != fingerprint:
        rule = (
            "must be that of a spec with ropewalk's scalings; for a scaling of your own, keep its "
            "RopeSpec alive while a graph uses it"
        )
        raise RopeError("fingerprint", rule, fingerprint)
    return spec


def _as_tuples(value: Any) -> Any:
    """Return a dataclass as (class name, (field, value), ...), nested for fields that hold
    dataclasses, a list as a tuple and other values as they are; raise an error for an array. Two
    results have the same `repr` only if the dataclasses are equal; 0.0 and -0.0 are told apart.
    """
    if isinstance(value, RopeSpec):
        # a rotary_dim or layout_out of None is written as the value that it stands for, so that the
        # text alone tells it
        resolved = {"rotary_dim": value.rotated_dims, "layout_out": value.output_layout}
        named = ((f.name, resolved.get(f.name, getattr(value, f.name))) for f in fields(value))
        return _name(type(value)), *((name, _as_tuples(part)) for name, part in named)
    if is_dataclass(value):
        return _name(type(value)), *(
            (f.name, _as_tuples(getattr(value, f.name))) for f in fields(value)
        )
    # the repr of a tensor or an array leaves out digits
    if hasattr(value, "__array__") and not isinstance(value, Number):
        raise RopeError(
            "spec",
            "must have fields that are numbers, texts or tuples; use tuple(x.tolist())",
            value,
        )
    return tuple(map(_as_tuples, value)) if isinstance(value, tuple | list) else value


def _from_tuples(value: Any) -> Any:
    """Invert `_as_tuples`: return the dataclass that (class name, (field, value), ...) describes;
    any value that does not begin with a name in _CLASSES as it is.
    """
    if isinstance(value, tuple) and value and isinstance(value[0], str) and value[0] in _CLASSES:
        return _CLASSES[value[0]](**{name: _from_tuples(part) for name, part in value[1:]})
    return value


def _name(cls: type) -> str:
    """Return the name of a class in a fingerprint."""
    # a user's own scaling may share its name with one of ours, or be defined twice, so it also gets
    # a number. The number is not its `id`, which Python may use again for a later class
    is_ours = cls.__module__.startswith("ropewalk.")
    return (
        cls.__name__
        if is_ours
        else f"{cls.__module__}.{cls.__qualname__}@{_NUMBER_OF.setdefault(cls, next(_NUMBERS))}"
    )


def _float32(value: Decimal) -> float:
    """Return a number rounded to float32; as a float64 if it is too large for a float32."""
    try:
        return unpack("f", pack("f", float(value)))[0]
    except (OverflowError, StructError):
        return float(value)


def _is_compiled() -> bool:
    """Return whether torch.compile traces this call; it cannot trace weak references."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


#: the classes that a fingerprint may name
_CLASSES: dict[str, type] = {
    cls.__name__: cls for cls in (RopeSpec, AxisMap, MixedAxes, *PER_HEAD, *SCALINGS.values())
}
#: the number of every class of a user's own that a fingerprint names, and the source of new numbers
_NUMBER_OF, _NUMBERS = WeakKeyDictionary[type, int](), count()
#: the specs in use, by fingerprint: ops take a spec by it, as a graph can hold strings, no objects
_LIVE: WeakValueDictionary[str, RopeSpec] = WeakValueDictionary()
