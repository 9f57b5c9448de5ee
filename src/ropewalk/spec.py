"""RopeSpec: everything that defines a rotary encoding, frozen, hashable and checked once."""

from __future__ import annotations

import ast
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ropewalk.axes import AxisMap, MixedAxes
from ropewalk.errors import RopeError, choice, integer, number
from ropewalk.frequencies import SCALINGS, Default, Frequencies, Length, Scaling
from ropewalk.frequencies.scaling import magnitude_number

LAYOUTS = ("half", "interleaved")
PRECISIONS = ("exact", "hf_frequencies", "hf")
MAGNITUDES = ("qk", "q", "scale")
MAX_HEAD_DIM = 65536


@dataclass(frozen=True)
class RopeSpec:
    """Which frequencies, which pair layout, which slice, which axes, which precision.

    layout        "half" pairs (x_i, x_{i+r/2}) of the rotated slice, "interleaved" pairs (x_{2i}, x_{2i+1})
    layout_out    the layout of the result where it differs (DeepSeek reads interleaved pairs and writes halves)
    rotary_dim    how many dimensions turn, from `rotary_start`; None = all of them
    axes          AxisMap or MixedAxes; None = one axis
    precision     "exact": float64 frequencies, exact angles. "hf_frequencies": frequencies rounded in float32 as
                  transformers rounds them, exact angles. "hf": every float32 step as transformers does it
    magnitude_on  where a scaling's magnitude A goes: "qk" on both, "q" all (A^2) on queries, "scale" nowhere here:
                  multiply the softmax scale by `softmax_factor`
    extra_softmax_factor  what the checkpoint's attention multiplies its softmax scale by on its own account (DeepSeek)
    """

    head_dim: int
    theta: float = 10_000.0
    scaling: Scaling = Default()  # noqa: RUF009 - frozen and without fields
    layout: str = "half"
    layout_out: str | None = None
    rotary_dim: int | None = None
    rotary_start: int = 0
    axes: AxisMap | MixedAxes | None = None
    precision: str = "exact"
    magnitude_on: str = "qk"
    extra_softmax_factor: float = 1.0

    def __post_init__(self) -> None:
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731 - the dataclass is frozen
        put("head_dim", integer("head_dim", self.head_dim, low=2, high=MAX_HEAD_DIM))
        put("theta", number("theta", self.theta, above=0))
        put("layout", choice("layout", self.layout, LAYOUTS))
        put("layout_out", choice("layout_out", self.layout if self.layout_out is None else self.layout_out, LAYOUTS))
        put("precision", choice("precision", self.precision, PRECISIONS))
        put("magnitude_on", choice("magnitude_on", self.magnitude_on, MAGNITUDES))
        put("extra_softmax_factor", magnitude_number("extra_softmax_factor", self.extra_softmax_factor))
        put("rotary_start", integer("rotary_start", self.rotary_start, low=0, high=self.head_dim - 2))
        width = self.head_dim - self.rotary_start
        if self.rotary_dim is None and width % 2:
            field = "rotary_start" if self.head_dim % 2 == 0 else "head_dim"
            raise RopeError(field, "must leave an even number of dimensions to turn; give rotary_dim to turn fewer", width)
        rotary_dim = integer("rotary_dim", width if self.rotary_dim is None else self.rotary_dim, low=2, high=width)
        if rotary_dim % 2:
            raise RopeError("rotary_dim", "must be even: dimensions turn in pairs", rotary_dim)
        put("rotary_dim", rotary_dim)
        if not isinstance(self.scaling, Scaling):
            raise RopeError("scaling", "must be a scaling from ropewalk.frequencies, such as Yarn(factor=4.0)", self.scaling)
        if self.axes is not None and not isinstance(self.axes, AxisMap | MixedAxes):
            raise RopeError("axes", "must come from ropewalk.axes, such as axes.chunked([16, 24, 24])", self.axes)
        if self.axes is not None and self.axes.pairs != self.pairs:
            raise RopeError("axes", f"must cover the {self.pairs} pairs of rotary_dim = {self.rotary_dim}", self.axes.pairs)
        if self.mixed and not isinstance(self.scaling, Default):
            raise RopeError("scaling", "must be Default() with MixedAxes, whose frequencies are trained", self.scaling)
        for _, dim in self._ladders():
            self.scaling.check(dim, self.theta)
        put("_fingerprint", repr(_plain(self)))
        _LIVE.setdefault(self.fingerprint, self)

    @property
    def pairs(self) -> int:
        """How many pairs turn."""
        return self.rotary_dim // 2  # type: ignore[operator]  # resolved in __post_init__

    @property
    def num_axes(self) -> int:
        return 1 if self.axes is None else self.axes.num_axes

    @property
    def mixed(self) -> bool:
        """Every head has trained frequencies of its own on both axes."""
        return isinstance(self.axes, MixedAxes)

    @property
    def fractional(self) -> bool:
        """Positions may be real numbers."""
        return self.axes is not None and self.axes.fractional

    @property
    def learned(self) -> bool:
        """Frequencies are trained, so `Rope` owns a parameter."""
        return self.mixed or self.scaling.learned

    @property
    def needs_length(self) -> bool:
        return self.scaling.needs_length

    @property
    def fingerprint(self) -> str:
        """The whole spec in one string: what caches and compiled graphs know it by."""
        return self._fingerprint  # type: ignore[attr-defined]  # set in __post_init__

    @property
    def axis_of_pair(self) -> tuple[int, ...]:
        return self.axes.axis_of_pair if isinstance(self.axes, AxisMap) else (0,) * self.pairs

    def frequencies(self, length: Length = None) -> Frequencies:
        """Radians per step, float64: [pairs], [rows, pairs] for a length per row, [..., pairs, axes] with an axis map.

        Under "hf" and "hf_frequencies" they are the float32 values of transformers.
        """
        ladder = self.ladder_frequencies(length)
        if not isinstance(self.axes, AxisMap):
            return ladder
        spread = torch.nn.functional.one_hot(torch.tensor(self.axis_of_pair, device="cpu"), self.num_axes)
        radians = ladder.radians.unsqueeze(-1) * spread.to(ladder.radians)  # [..., pairs, axes]
        return replace(ladder, radians=radians)

    def ladder_frequencies(self, length: Length = None) -> Frequencies:
        """Radians per step of each pair along its own axis: [pairs], or [rows, pairs] for a length per row."""
        dtype = torch.float64 if self.precision == "exact" else torch.float32
        parts = [(members, self.scaling.frequencies(dim, self.theta, length, dtype)) for members, dim in self._ladders()]
        first = parts[0][1]
        radians, growth = first.radians, first.growth
        if len(parts) > 1:
            radians = _in_pair_order([(members, part.radians) for members, part in parts])
            growth = None if growth is None else _in_pair_order([(members, part.growth) for members, part in parts])
        return Frequencies(radians.to(torch.float64), first.magnitude, growth, first.center)

    @property
    def softmax_factor(self) -> float:
        """What to multiply the softmax scale 1/sqrt(head_dim) by for this spec."""
        if self.magnitude_on != "scale":
            return self.extra_softmax_factor
        dim = self._ladders()[0][1]
        if isinstance(self.scaling.frequencies(dim, self.theta, 1).magnitude, Tensor):
            rule = "must be 'qk' or 'q' where the magnitude follows the length: one softmax scale cannot"
            raise RopeError("magnitude_on", rule, self.magnitude_on)
        return self.extra_softmax_factor * float(self.scaling.frequencies(dim, self.theta).magnitude) ** 2

    def with_(self, **changes: Any) -> RopeSpec:
        """The same spec with some fields changed; `layout_out` and `rotary_dim` go on following where they did."""
        if self.layout_out == self.layout:
            changes.setdefault("layout_out", None)
        if self.rotary_dim == self.head_dim - self.rotary_start:
            changes.setdefault("rotary_dim", None)
        return replace(self, **changes)

    def __reduce__(self):
        return type(self), tuple(getattr(self, f.name) for f in fields(self))

    def _ladders(self) -> list[tuple[list[int], int]]:
        return self.axes.ladders() if isinstance(self.axes, AxisMap) else [(list(range(self.pairs)), 2 * self.pairs)]


def spec_of(fingerprint: str) -> RopeSpec:
    """The spec a graph knows by its key, which says all it takes to make it again where another process saved the graph."""
    found = _LIVE.get(fingerprint)
    return _parse_fingerprint(fingerprint) if found is None else found


def _parse_fingerprint(fingerprint: str) -> RopeSpec:
    try:
        spec = _made(ast.literal_eval(fingerprint))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        spec = None
    if not isinstance(spec, RopeSpec) or spec.fingerprint != fingerprint:
        rule = "must be a spec's own, of ropewalk's scalings; with a scaling of your own, make its RopeSpec before the graph runs"
        raise RopeError("fingerprint", rule, fingerprint)
    return spec


def _made(value: Any) -> Any:
    """The inverse of `_plain`."""
    if isinstance(value, tuple) and value and isinstance(value[0], str) and value[0] in _KINDS:
        return _KINDS[value[0]](**{name: _made(part) for name, part in value[1:]})
    return value


def _in_pair_order(parts: list[tuple[list[int], Any]]) -> Tensor:
    """The columns of several ladders, each where its pair stands."""
    columns = {pair: values[..., i] for members, values in parts for i, pair in enumerate(members)}
    return torch.stack([columns[pair] for pair in range(len(columns))], dim=-1)


def _plain(value: Any) -> Any:
    """Nested tuples of names and values: equal exactly when the dataclasses are."""
    if is_dataclass(value):
        return _name(type(value)), *((f.name, _plain(getattr(value, f.name))) for f in fields(value))
    return value


def _name(kind: type) -> str:
    # a scaling of the user's own may share a name with ours, or be defined once more in a notebook
    return kind.__name__ if kind.__module__.startswith("ropewalk.") else f"{kind.__module__}.{kind.__qualname__}@{id(kind):x}"


#: what a key may name
_KINDS: dict[str, type] = {kind.__name__: kind for kind in (RopeSpec, AxisMap, MixedAxes, *SCALINGS.values())}
# Ops take a spec by its key because a graph can hold strings but not objects. Specs are small and few.
_LIVE: dict[str, RopeSpec] = {}
