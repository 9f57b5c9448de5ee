"""The functions that turn q and k, recognised by what they do: each is tried on small tensors against the definition."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ropewalk import rotation
from ropewalk.axes import AxisMap, chunked
from ropewalk.checks import check_tables
from ropewalk.interop.patch.angles import FORMS, AngleTable
from ropewalk.kernels.reference import split_pairs
from ropewalk.kernels.request import TableRequest
from ropewalk.rope import Rope
from ropewalk.spec import LAYOUTS, RopeSpec

#: parameters that hold tables; one of the second kind holds both
PARTS = ("cos", "sin")
WHOLE = ("freqs_cis", "freqs_ci", "sinusoidal_pos")
#: how many pairs listen to each axis; the tables then hold one axis after the other
SECTIONS = "mrope_section"
#: parameters that neither hold tables nor are turned
BESIDE = ("unsqueeze_dim", "position_ids", SECTIONS)
ROWS, HEADS, TOKENS, PAIRS = 2, 5, 3, 4
#: axes of the tensors that turn: heads before tokens, after them, and packed tokens without rows
ORDERS = {-2: (ROWS, HEADS, TOKENS), -3: (ROWS, TOKENS, HEADS), 0: (TOKENS, HEADS)}
#: a function that takes sections is tried with these
TRIED_SECTIONS = [2, 1, 1]


@dataclass(frozen=True)
class Convention:
    """How a function reads its tables and pairs dimensions.

    form     of the tables, a name of FORMS, or "sin then cos" for one table with the sines before the cosines
    tokens   the axis of the tokens where the call does not say it; 0 for [tokens, heads, dimensions]
    at_end   a table narrower than the head turns its last dimensions, not its first
    """

    form: str
    layout: str
    layout_out: str
    tokens: int
    at_end: bool = False

    def tables(self, given: list[Tensor], sections: list[int] | None = None) -> tuple[Tensor, Tensor]:
        """cos and sin with one entry a pair."""
        if sections is not None:
            cos, sin = self.tables(given)
            return _of_sections(cos, sections), _of_sections(sin, sections)
        if self.form == "complex":
            return given[0].real, given[0].imag
        if self.form == "sin then cos":
            sin, cos = given[0].flatten(0, -3).chunk(2, dim=-1)
            return cos, sin
        if self.form == "pairs":
            return given[0], given[1]
        return split_pairs(given[0], self.form)[0], split_pairs(given[1], self.form)[0]

    def start(self, width: int, rotated: int) -> int:
        """Where the turned slice of a head begins."""
        return width - rotated if self.at_end else 0


class RotationFunction:
    """Stands in for one function: same arguments, same results, turned by our kernels."""

    def __init__(self, function: Callable, convention: Convention, backend: str | None = None) -> None:
        parameters = inspect.signature(function).parameters
        self.names = tuple(parameters)
        self.table_names = _table_names(self.names)
        self.rotated_names = tuple(name for name in self.names if name not in (*self.table_names, *BESIDE))
        self.unsqueeze = parameters["unsqueeze_dim"].default if "unsqueeze_dim" in parameters else None
        self.convention, self.backend = convention, backend
        self.usual = self.names[:4] == ("q", "k", "cos", "sin")
        self.ropes: dict[tuple[str, int], Rope] = {}
        self.sections: dict[str, list[int]] = {}

    def learn(self, spec: RopeSpec) -> None:
        """Make the ropes this function may be asked for: of a whole head and of its turned slice alone."""
        form = self.convention
        for width in (spec.head_dim, spec.pairs * 2):
            own = spec.with_(
                head_dim=width, rotary_dim=2 * spec.pairs, rotary_start=form.start(width, 2 * spec.pairs),
                layout=form.layout, layout_out=form.layout_out,
            )  # fmt: skip
            self.ropes[spec.fingerprint, width] = Rope(own, backend=self.backend)
        if SECTIONS in self.names and isinstance(spec.axes, AxisMap):
            counts = [spec.axes.axis_of_pair.count(axis) for axis in range(spec.num_axes)]
            if chunked(counts) == spec.axes:
                self.sections[spec.fingerprint] = counts

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.usual and len(args) == 4 and not kwargs and args[1] is not None:
            # what most models call in every layer of every step
            rotated = self._by_positions(args[:2], args[2:], {})
            if rotated is not None:
                return rotated
        given = dict(zip(self.names, args, strict=False), **kwargs)
        wanted = [given.get(name) for name in self.rotated_names]
        xs = tuple(x for x in wanted if x is not None)
        tables = [given[name] for name in self.table_names]
        rotated = self._by_positions(xs, tables, given)
        if rotated is None:
            rotated = self._by_tables(xs, tables, given)
        if len(self.rotated_names) == 1:
            return rotated[0]
        if len(rotated) == len(wanted) or self.table_names == ("sinusoidal_pos",):  # RoFormer's returns what it was given
            return rotated
        rest = iter(rotated)
        return tuple(None if x is None else next(rest) for x in wanted)

    def _by_positions(self, xs: tuple[Tensor, ...], tables: Sequence, given: dict[str, Any]) -> tuple[Tensor, ...] | None:
        """Turned by exact angles, if the tables are still positions and their rope is known."""
        for index, table in enumerate(tables):
            if type(table) is not AngleTable or table.index != index:
                return None
        angles, x = tables[0].angles, xs[0]
        rope = self.ropes.get((angles.fingerprint, x.shape[-1]))
        if rope is None or given.get(SECTIONS) != self.sections.get(angles.fingerprint):
            return None
        positions = angles.positions
        if positions.device != x.device:
            positions = positions.to(x.device)
        seq_dim = self._seq_dim(given, 3)
        if len(xs) == 2:
            return rope(x, xs[1], positions, 0, seq_dim)
        return tuple(rope.rotate(each, positions, seq_dim=seq_dim) for each in xs)

    def _by_tables(self, xs: tuple[Tensor, ...], tables: list, given: dict[str, Any]) -> tuple[Tensor, ...]:
        found = [table.tensor() if isinstance(table, AngleTable) else table for table in tables]
        cos, sin = (table.to(xs[0].device) for table in self.convention.tables(found, given.get(SECTIONS)))
        seq_dim, form = self._seq_dim(given, cos.ndim), self.convention
        start = form.start(xs[0].shape[-1], 2 * cos.shape[-1])
        for x in xs:
            check_tables(x, cos, sin, start, seq_dim)
        turn = TableRequest(cos, sin, seq_dim, form.layout, form.layout_out, start)
        # a kernel takes a query and a key at most; RoFormer may turn its values too
        return tuple(y for i in range(0, len(xs), 2) for y in rotation.run(xs[i : i + 2], turn, False, self.backend))

    def _seq_dim(self, given: dict[str, Any], table_ndim: int) -> int:
        """The axis of the tokens: where transformers' tables have it once they are unsqueezed."""
        if self.unsqueeze is None:
            return self.convention.tokens or -3
        where = given.get("unsqueeze_dim", self.unsqueeze)
        return -2 if where % (table_ndim + 1) <= table_ndim - 2 else -3


def convention_of(function: Callable) -> Convention | None:
    """What a function does to q and k, found by trying; None if it is nothing this package has."""
    names = tuple(inspect.signature(function).parameters)
    if not _table_names(names):
        return None
    for tokens in ORDERS:
        for form in ("complex", "sin then cos") if _table_names(names)[0] in WHOLE else ("half", "interleaved", "pairs"):
            for layout, layout_out in product(LAYOUTS, LAYOUTS):
                tried = Convention(form, layout, layout_out, tokens)
                if _does(function, tried, extra=0):
                    return _with_place(function, tried)
    return None


def _with_place(function: Callable, tried: Convention) -> Convention | None:
    """Which end of a wider head turns; a function that takes no wider head may be given either."""
    for place in (tried, replace(tried, at_end=True)):
        if _does(function, place, extra=4) is not False:
            return place
    return None


def _table_names(names: tuple[str, ...]) -> tuple[str, ...]:
    if set(PARTS) <= set(names):
        return PARTS
    return tuple(name for name in names if name in WHOLE)[:1]


def _does(function: Callable, tried: Convention, extra: int) -> bool | None:
    """Whether a function turns as `tried` says, `extra` dimensions of a head standing still; None if it takes no such head."""
    shape = ORDERS[tried.tokens]
    generator = torch.Generator().manual_seed(0)
    rows = shape[:-2]  # packed tokens have none
    names = inspect.signature(function).parameters
    by_axis = (len(TRIED_SECTIONS),) if SECTIONS in names else ()
    cos, sin = (torch.rand(*by_axis, *rows, TOKENS, PAIRS, generator=generator, device="cpu") for _ in PARTS)
    tables = _given(tried, cos, sin)
    x = torch.randn(*shape, 2 * PAIRS + extra, generator=generator, device="cpu")
    table_names = _table_names(tuple(names))
    given: dict[str, Any] = dict(zip(table_names, tables, strict=True))
    given |= {name: x for name in names if name not in (*table_names, *BESIDE)}
    if by_axis:
        given[SECTIONS] = TRIED_SECTIONS
        cos, sin = (_of_sections(table, TRIED_SECTIONS) for table in (cos, sin))
    try:
        with torch.no_grad():
            theirs = function(**given)
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError):
        return None  # tensors of this shape are not for this function
    seq_dim = tried.tokens or -3
    wanted = rotation.rotate_by(
        x, cos, sin, layout=tried.layout, layout_out=tried.layout_out, start=tried.start(x.shape[-1], 2 * PAIRS),
        seq_dim=seq_dim, backend="reference",
    )  # fmt: skip
    return all(y.shape == x.shape and torch.allclose(y, wanted, rtol=0, atol=1e-5) for y in _flat(theirs))


def _of_sections(table: Tensor, sections: list[int]) -> Tensor:
    """One table [..., tokens, pairs] of those of all axes: each section of the pairs from its own axis."""
    return torch.cat([part[axis] for axis, part in enumerate(table.split(sections, dim=-1))], dim=-1)


def _given(tried: Convention, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    """Tables in the form a function is tried with."""
    if tried.form == "sin then cos":
        return (torch.cat((sin, cos), dim=-1).unsqueeze(1),)
    return FORMS[tried.form](cos, sin)


def _flat(found: Any) -> Iterator[Tensor]:
    yield from found if isinstance(found, tuple | list) else (found,)
