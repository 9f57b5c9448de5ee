"""RopeSpec: everything that defines a rotary encoding, frozen, hashable and checked once."""

from __future__ import annotations

import ast
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from ropewalk.axes import PER_HEAD, AxisMap, GoldenAxes, HeadAxes, MixedAxes
from ropewalk.caches import cached
from ropewalk.errors import RopeError, choice, integer, number
from ropewalk.frequencies import SCALINGS, Default, Frequencies, Length, Scaling
from ropewalk.frequencies.scaling import MAGNITUDE_RANGE

LAYOUTS = ("half", "interleaved")
PRECISIONS = ("exact", "hf_frequencies", "hf")
MAGNITUDES = ("qk", "q", "scale")
MAX_HEAD_DIM = 65536
#: bounds of theta: a smaller one gives frequencies that no float32 holds
THETA_RANGE = {"low": 1e-30}


class _SameLayout(str):
    """A `layout_out` equal to `layout`: `dataclasses.replace` passes it on as such, and it follows
    a new layout.
    """


class _WholeHead(int):
    """A `rotary_dim` of the whole head: `dataclasses.replace` passes it on as such, and it follows
    a new head_dim.
    """


@dataclass(frozen=True)
class RopeSpec:
    """Which frequencies, which pair layout, which slice of the head, which axes, which precision.

    layout        "half" pairs (x_i, x_{i+r/2}) of the rotated slice, "interleaved" pairs (x_{2i},
                  x_{2i+1})
    layout_out    the layout of the result; None = layout (DeepSeek reads interleaved pairs and
                  writes halves)
    rotary_dim    how many dimensions rotate, from `rotary_start`; None = all of them
    axes          AxisMap, HeadAxes, GoldenAxes or MixedAxes; None = one axis
    precision     "exact": frequencies with 28 digits (float64 where they depend on the length or
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
        put("layout_out", self._resolved_layout_out())
        put("rotary_dim", self._resolved_rotary_dim())
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
                f"must cover the {self.pairs} pairs of rotary_dim = {self.rotary_dim}",
                self.axes.pairs,
            )
        if self.mixed and not isinstance(self.scaling, Default):
            raise RopeError(
                "scaling",
                "must be Default() with MixedAxes, whose frequencies are learned",
                self.scaling,
            )
        for scaling, dim in self._scaling_of_ladders():
            scaling.check(dim, self.theta)
        # not None for xPos alone, whose magnitude depends on the position; whether it is None does
        # not depend on dim
        growth, _ = self.scaling._growth(dim=2)
        fixed = not self.scaling.needs_length and not self.scaling.learned and growth is None
        if not fixed and (
            self.per_head or (isinstance(self.axes, AxisMap) and self.axes.scaled is not None)
        ):
            rule = (
                "must have fixed frequencies and one magnitude if axes differ from head to head or "
                "only some are scaled"
            )
            raise RopeError("scaling", rule, self.scaling)
        put("_fingerprint", repr(_as_tuples(self)))
        # so that `spec_of` returns this object for its fingerprint; a compiler cannot trace weak
        # references
        if (
            not torch.compiler.is_compiling()
            and (live := _LIVE.setdefault(self.fingerprint, self)) is not self
        ):
            put("_live", live)  # an equal spec that is found already: it lives as long as this one

    def _resolved_layout_out(self) -> str:
        """Return the checked layout of the output; if it is that of the input, as a _SameLayout."""
        if self.layout_out is None or isinstance(self.layout_out, _SameLayout):
            return _SameLayout(self.layout)
        layout_out = choice("layout_out", self.layout_out, LAYOUTS)
        return _SameLayout(layout_out) if layout_out == self.layout else layout_out

    def _resolved_rotary_dim(self) -> int:
        """Return the checked number of dims to rotate; if they are all up to the end of the head,
        as a _WholeHead.
        """
        width = self.head_dim - self.rotary_start
        if self.rotary_dim is None or isinstance(self.rotary_dim, _WholeHead):
            if width % 2:
                field = "rotary_start" if self.head_dim % 2 == 0 else "head_dim"
                rule = (
                    "must leave an even number of dimensions to rotate; give rotary_dim to rotate "
                    "fewer"
                )
                raise RopeError(field, rule, width)
            return _WholeHead(width)
        rotary_dim = integer("rotary_dim", self.rotary_dim, low=2, high=width)
        if rotary_dim % 2:
            raise RopeError("rotary_dim", "must be even: dimensions rotate in pairs", rotary_dim)
        return _WholeHead(rotary_dim) if rotary_dim == width else rotary_dim

    @property
    def pairs(self) -> int:
        """How many pairs rotate."""
        return self.rotary_dim // 2  # type: ignore[operator]  # resolved in __post_init__

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
        """Whether frequencies depend on the length of each sequence."""
        return self.scaling.needs_length

    @property
    def fingerprint(self) -> str:
        """The whole spec as text: what identifies it in caches and compiled graphs."""
        return self._fingerprint  # type: ignore[attr-defined]  # set in __post_init__

    @property
    def axis_of_pair(self) -> tuple[int, ...]:
        """The axis of each pair's coordinate."""
        return self.axes.axis_of_pair if isinstance(self.axes, AxisMap) else (0,) * self.pairs

    def frequencies(self, length: Length = None) -> Frequencies:
        """Return radians per step, float64: [pairs], or [rows, pairs] for a length per row.

        An axis map adds a last axis, [..., pairs, axes]: the angle of a pair is the sum over the
        axes of coordinate times radians. Axes that differ from head to head give [heads, pairs,
        axes]. With precision "hf" and "hf_frequencies" the radians are the float32 values of
        transformers.
        """
        ladder = self.ladder_frequencies(length)
        if self.per_head:
            return self.for_each_head(ladder)
        if not isinstance(self.axes, AxisMap):
            return ladder
        one_hot = torch.nn.functional.one_hot(
            torch.tensor(self.axis_of_pair, device="cpu"), self.num_axes
        )
        radians = ladder.radians.unsqueeze(-1) * one_hot.to(ladder.radians)  # [..., pairs, axes]
        return replace(ladder, radians=radians)

    def ladder_frequencies(self, length: Length = None) -> Frequencies:
        """Return radians per step of each pair along its own axis: [pairs], or [rows, pairs] for a
        length per row.
        """
        dtype = torch.float64 if self.precision == "exact" else torch.float32
        return self._merged(
            [s.frequencies(dim, self.theta, length, dtype) for s, dim in self._scaling_of_ladders()]
        )

    def for_each_head(self, ladder: Frequencies) -> Frequencies:
        """Return the frequencies [heads, pairs, axes] of axes that differ from head to head: ladder
        [pairs] times directions.
        """
        directions = self.axes.directions()  # type: ignore[union-attr]  # per_head
        low = None if ladder.low is None else ladder.low[:, None] * directions
        return replace(ladder, radians=ladder.radians[:, None] * directions, low=low)

    def exact_ladder_frequencies(self) -> Frequencies:
        """Return `ladder_frequencies` with 28 digits, in `radians` and `low`, if precision is
        "exact" and the scaling has them.

        Phases are computed from these. They take longer, and torch.compile cannot trace their NumPy
        code.
        """
        if self.precision != "exact":
            return self.ladder_frequencies()
        return self._merged(
            [
                scaling.exact_frequencies(dim, self.theta)
                for scaling, dim in self._scaling_of_ladders()
            ]
        )

    @property
    def softmax_factor(self) -> float:
        """The factor that this spec needs on the softmax scale 1/sqrt(head_dim)."""
        if self.magnitude_on != "scale":
            return self.extra_softmax_factor
        if isinstance(self.ladder_frequencies(1).magnitude, Tensor):
            rule = (
                "must be 'qk' or 'q' where the magnitude depends on the length: there is only one "
                "softmax scale"
            )
            raise RopeError("magnitude_on", rule, self.magnitude_on)
        return self.extra_softmax_factor * float(self.ladder_frequencies().magnitude) ** 2

    def with_(self, **changes: Any) -> RopeSpec:
        """Return a copy with some fields changed, as `dataclasses.replace` does."""
        return replace(self, **changes)

    def __reduce__(self):
        return type(self), tuple(getattr(self, f.name) for f in fields(self))

    def _merged(self, ladders: list[Frequencies]) -> Frequencies:
        """Return the frequencies of all pairs, given those of each ladder in the order of
        `_ladders`.
        """
        # magnitude and center are those of the first ladder with the scaling; torch 2.6 cannot
        # compile next() with a default
        scalings = [scaling for scaling, _ in self._scaling_of_ladders()]
        scaled = [
            ladder
            for ladder, scaling in zip(ladders, scalings, strict=True)
            if scaling is self.scaling
        ]
        first = scaled[0] if scaled else ladders[0]
        radians, growth, low = first.radians, first.growth, first.low
        if len(ladders) > 1:
            pairs_of_ladders = [pairs for pairs, _ in self._ladders()]
            radians, growth, low = (
                _in_pair_order(pairs_of_ladders, [getattr(ladder, field) for ladder in ladders])
                for field in ("radians", "growth", "low")
            )
        return Frequencies(radians.to(torch.float64), first.magnitude, growth, first.center, low)  # type: ignore[union-attr]

    def _scaling_of_ladders(self) -> list[tuple[Scaling, int]]:
        """Return (scaling, dim) of every ladder: a series of frequencies theta^(-2i/dim). Unscaled
        axes have Default().
        """
        if not isinstance(self.axes, AxisMap):
            return [(self.scaling, dim) for _, dim in self._ladders()]
        return [
            (self.scaling if self.axes.is_scaled(pairs[0]) else Default(), dim)
            for pairs, dim in self._ladders()
        ]

    def _ladders(self) -> list[tuple[list[int], int]]:
        """Return (pairs, dim) of every ladder: the pairs that use it, and the d of its exponents
        -2i/d.
        """
        return (
            self.axes.ladders()
            if isinstance(self.axes, AxisMap)
            else [(list(range(self.pairs)), 2 * self.pairs)]
        )


def spec_of(fingerprint: str) -> RopeSpec:
    """Return the spec with this fingerprint: a live one, or one rebuilt from the text (a graph may
    come from another process).
    """
    live = _LIVE.get(fingerprint)
    return _rebuilt(fingerprint) if live is None else live


@cached("specs rebuilt from fingerprints", entries=256)
def _rebuilt(fingerprint: str) -> RopeSpec:
    """Return a spec built from its fingerprint, which is untrusted text: only literals are
    evaluated.
    """
    try:
        spec = _from_tuples(ast.literal_eval(fingerprint))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        spec = None
    if not isinstance(spec, RopeSpec) or spec.fingerprint != fingerprint:
        rule = (
            "must be that of a spec with ropewalk's scalings; for a scaling of your own, keep its "
            "RopeSpec while a graph runs"
        )
        raise RopeError("fingerprint", rule, fingerprint)
    return spec


def _as_tuples(value: Any) -> Any:
    """Return dataclasses as nested tuples for `_from_tuples`; the `repr` of two results is equal
    exactly when they are.
    """
    if is_dataclass(value):
        return _name(type(value)), *(
            (f.name, _as_tuples(getattr(value, f.name))) for f in fields(value)
        )
    if isinstance(value, (Tensor, np.ndarray)):  # their repr leaves out digits
        raise RopeError(
            "spec",
            "must have fields that are numbers, texts or tuples; use tuple(x.tolist())",
            value,
        )
    return tuple(map(_as_tuples, value)) if isinstance(value, tuple | list) else value


def _from_tuples(value: Any) -> Any:
    """Invert `_as_tuples`."""
    if isinstance(value, tuple) and value and isinstance(value[0], str) and value[0] in _CLASSES:
        return _CLASSES[value[0]](**{name: _from_tuples(part) for name, part in value[1:]})
    return value


def _name(cls: type) -> str:
    # a user's own scaling may share its name with one of ours, or be defined twice; an id would be
    # used again for a new class
    own = cls.__module__.startswith("ropewalk.")
    return (
        cls.__name__
        if own
        else f"{cls.__module__}.{cls.__qualname__}@{_NUMBER_OF.setdefault(cls, next(_NUMBERS))}"
    )


def _in_pair_order(
    pairs_of_ladders: list[list[int]], ladders: list[Tensor | None]
) -> Tensor | None:
    """Return the values of all pairs, [..., pairs], given those of each ladder's pairs, None for
    zeros; None if all are None.
    """
    if all(values is None for values in ladders):
        return None
    value_of_pair = {}
    for pairs, values in zip(pairs_of_ladders, ladders, strict=True):
        zeros = torch.zeros(len(pairs), dtype=torch.float64, device="cpu")
        value_of_pair.update(
            {pair: (zeros if values is None else values)[..., i] for i, pair in enumerate(pairs)}
        )
    return torch.stack([value_of_pair[pair] for pair in range(len(value_of_pair))], dim=-1)


#: the classes that a fingerprint may name
_CLASSES: dict[str, type] = {
    cls.__name__: cls for cls in (RopeSpec, AxisMap, MixedAxes, *PER_HEAD, *SCALINGS.values())
}
#: a number for every class of a user's own
_NUMBER_OF, _NUMBERS = WeakKeyDictionary[type, int](), count()
# ops take a spec by its fingerprint, because a graph can hold strings but not objects
_LIVE: WeakValueDictionary[str, RopeSpec] = WeakValueDictionary()
