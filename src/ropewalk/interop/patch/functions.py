"""Rotation functions of a model, recognised by behaviour: each is run on small tensors and compared with the reference."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ropewalk import rotation
from ropewalk.axes import AxisMap, chunked
from ropewalk.checks import check_tables
from ropewalk.interop.patch.angles import FORMS, LazyTable
from ropewalk.kernels.reference import split_pairs
from ropewalk.kernels.request import TableRequest
from ropewalk.rope import Rope
from ropewalk.spec import LAYOUTS, RopeSpec

#: parameters that hold cos and sin separately
SEPARATE = ("cos", "sin")
#: parameters that hold both in one tensor
JOINT = ("freqs_cis", "freqs_ci", "sinusoidal_pos")
#: the parameter with the number of pairs of each axis; the tables then have a leading axis dimension
SECTIONS = "mrope_section"
#: parameters that are neither tables nor rotated
OTHER = ("unsqueeze_dim", "position_ids", SECTIONS)
ROWS, HEADS, TOKENS, PAIRS = 2, 5, 3, 4
#: token axis -> shape of a trial tensor without its last axis: heads before tokens, after them, and packed tokens without rows
TRIAL_SHAPES = {-2: (ROWS, HEADS, TOKENS), -3: (ROWS, TOKENS, HEADS), 0: (TOKENS, HEADS)}
TRIAL_SECTIONS = [2, 1, 1]


@dataclass(frozen=True)
class Convention:
    """How a rotation function reads its tables and pairs dimensions.

    form     of the tables, a name of FORMS, or "sin then cos" for one table with the sines before the cosines
    tokens   the token axis if the call does not give it; 0 for [tokens, heads, dimensions]
    at_end   whether a table narrower than the head rotates its last dimensions instead of its first
    """

    form: str
    layout: str
    layout_out: str
    tokens: int
    at_end: bool = False

    def cos_sin(self, tables: list[Tensor], sections: list[int] | None = None) -> tuple[Tensor, Tensor]:
        """Return cos and sin with one entry per pair."""
        if sections is not None:
            cos, sin = self.cos_sin(tables)
            return _merge_sections(cos, sections), _merge_sections(sin, sections)
        if self.form == "complex":
            return tables[0].real, tables[0].imag
        if self.form == "sin then cos":
            sin, cos = tables[0].flatten(0, -3).chunk(2, dim=-1)
            return cos, sin
        if self.form == "pairs":
            return tables[0], tables[1]
        return split_pairs(tables[0], self.form)[0], split_pairs(tables[1], self.form)[0]

    def tables(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        """Return the tables in this form, from one entry per pair."""
        if self.form == "sin then cos":
            return (torch.cat((sin, cos), dim=-1).unsqueeze(1),)
        return FORMS[self.form](cos, sin)

    def start(self, width: int, rotated: int) -> int:
        """Return the first rotated dimension of a head."""
        return width - rotated if self.at_end else 0


class RotationFunction:
    """Replaces one rotation function of the model: same arguments and results, computed by this library's kernels."""

    def __init__(self, function: Callable, convention: Convention, backend: str | None = None) -> None:
        parameters = inspect.signature(function).parameters
        self.names = tuple(parameters)
        self.table_names = _table_names(self.names)
        self.rotated_names = tuple(name for name in self.names if name not in (*self.table_names, *OTHER))
        self.unsqueeze = parameters["unsqueeze_dim"].default if "unsqueeze_dim" in parameters else None
        self.convention, self.backend = convention, backend
        self.is_standard = self.names[:4] == ("q", "k", "cos", "sin")
        self.ropes: dict[tuple[str, int], Rope] = {}
        self.sections: dict[str, list[int]] = {}

    def add_spec(self, spec: RopeSpec) -> None:
        """Build the ropes for a spec: one for whole heads, one for the rotated slice alone."""
        convention = self.convention
        for width in (spec.head_dim, spec.pairs * 2):
            own = spec.with_(
                head_dim=width, rotary_dim=2 * spec.pairs, rotary_start=convention.start(width, 2 * spec.pairs),
                layout=convention.layout, layout_out=convention.layout_out,
            )  # fmt: skip
            self.ropes[spec.fingerprint, width] = Rope(own, backend=self.backend)
        if SECTIONS in self.names and isinstance(spec.axes, AxisMap):
            counts = [spec.axes.axis_of_pair.count(axis) for axis in range(spec.num_axes)]
            if chunked(counts) == spec.axes:
                self.sections[spec.fingerprint] = counts

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_standard and len(args) == 4 and not kwargs and args[1] is not None:
            # fast path: most models make this call in every layer of every step
            rotated = self._by_positions(args[:2], args[2:], {})
            if rotated is not None:
                return rotated
        arguments = dict(zip(self.names, args, strict=False), **kwargs)
        inputs = [arguments.get(name) for name in self.rotated_names]
        xs = tuple(x for x in inputs if x is not None)
        tables = [arguments[name] for name in self.table_names]
        rotated = self._by_positions(xs, tables, arguments)
        if rotated is None:
            rotated = self._by_tables(xs, tables, arguments)
        if len(self.rotated_names) == 1:
            return rotated[0]
        if len(rotated) == len(inputs) or self.table_names == ("sinusoidal_pos",):  # RoFormer returns no None for an absent input
            return rotated
        rest = iter(rotated)
        return tuple(None if x is None else next(rest) for x in inputs)

    def _by_positions(self, xs: tuple[Tensor, ...], tables: Sequence, arguments: dict[str, Any]) -> tuple[Tensor, ...] | None:
        """Rotate by exact angles; None if the tables are not lazy or their spec is not known."""
        for index, table in enumerate(tables):
            if type(table) is not LazyTable or table.index != index:
                return None
        angles, x = tables[0].angles, xs[0]
        rope = self.ropes.get((angles.fingerprint, x.shape[-1]))
        if rope is None or arguments.get(SECTIONS) != self.sections.get(angles.fingerprint):
            return None
        positions = angles.positions
        if positions.device != x.device:
            positions = positions.to(x.device)
        seq_dim = self._seq_dim(arguments, 3)
        if len(xs) == 2:
            return rope(x, xs[1], positions, 0, seq_dim)
        return tuple(rope.rotate(each, positions, seq_dim=seq_dim) for each in xs)

    def _by_tables(self, xs: tuple[Tensor, ...], tables: list, arguments: dict[str, Any]) -> tuple[Tensor, ...]:
        """Rotate by the cos and sin that the call gives."""
        tensors = [table.tensor() if isinstance(table, LazyTable) else table for table in tables]
        cos, sin = (table.to(xs[0].device) for table in self.convention.cos_sin(tensors, arguments.get(SECTIONS)))
        seq_dim, convention = self._seq_dim(arguments, cos.ndim), self.convention
        start = convention.start(xs[0].shape[-1], 2 * cos.shape[-1])
        for x in xs:
            check_tables(x, cos, sin, start, seq_dim)
        request = TableRequest(cos, sin, seq_dim, convention.layout, convention.layout_out, start)
        # a kernel takes at most two tensors; RoFormer may rotate its values too
        return tuple(y for i in range(0, len(xs), 2) for y in rotation.run(xs[i : i + 2], request, False, self.backend))

    def _seq_dim(self, arguments: dict[str, Any], table_ndim: int) -> int:
        """Return the token axis: the one that the unsqueezed table of transformers broadcasts along."""
        if self.unsqueeze is None:
            return self.convention.tokens or -3
        unsqueeze_dim = arguments.get("unsqueeze_dim", self.unsqueeze)
        return -2 if unsqueeze_dim % (table_ndim + 1) <= table_ndim - 2 else -3


def convention_of(function: Callable) -> Convention | None:
    """Return the convention of a rotation function, found by trials; None if it computes something else."""
    table_names = _table_names(tuple(inspect.signature(function).parameters))
    if not table_names:
        return None
    forms = ("complex", "sin then cos") if table_names[0] in JOINT else ("half", "interleaved", "pairs")
    for tokens, form, layout, layout_out in product(TRIAL_SHAPES, forms, LAYOUTS, LAYOUTS):
        trial = Convention(form, layout, layout_out, tokens)
        if _follows(function, trial, extra=0):
            # which end of a wider head rotates; a function that accepts no wider head matches both
            ends = (trial, replace(trial, at_end=True))
            return next((end for end in ends if _follows(function, end, extra=4) is not False), None)
    return None


def _table_names(names: tuple[str, ...]) -> tuple[str, ...]:
    if set(SEPARATE) <= set(names):
        return SEPARATE
    return tuple(name for name in names if name in JOINT)[:1]


def _follows(function: Callable, trial: Convention, extra: int) -> bool | None:
    """Return whether a function follows `trial` on heads with `extra` unrotated dimensions; None if it takes no such heads."""
    shape = TRIAL_SHAPES[trial.tokens]
    generator = torch.Generator().manual_seed(0)
    rows = shape[:-2]  # empty for packed tokens
    names = inspect.signature(function).parameters
    by_axis = (len(TRIAL_SECTIONS),) if SECTIONS in names else ()
    cos, sin = (torch.rand(*by_axis, *rows, TOKENS, PAIRS, generator=generator, device="cpu") for _ in SEPARATE)
    tables = trial.tables(cos, sin)
    x = torch.randn(*shape, 2 * PAIRS + extra, generator=generator, device="cpu")
    table_names = _table_names(tuple(names))
    arguments: dict[str, Any] = dict(zip(table_names, tables, strict=True))
    arguments |= {name: x for name in names if name not in (*table_names, *OTHER)}
    if by_axis:
        arguments[SECTIONS] = TRIAL_SECTIONS
        cos, sin = (_merge_sections(table, TRIAL_SECTIONS) for table in (cos, sin))
    try:
        with torch.no_grad():
            theirs = function(**arguments)
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError):
        return None  # the function does not take tensors of this shape
    ours = rotation.rotate_by(
        x, cos, sin, layout=trial.layout, layout_out=trial.layout_out, start=trial.start(x.shape[-1], 2 * PAIRS),
        seq_dim=trial.tokens or -3, backend="reference",
    )  # fmt: skip
    results = theirs if isinstance(theirs, tuple | list) else (theirs,)
    return all(y.shape == x.shape and torch.allclose(y, ours, rtol=0, atol=1e-5) for y in results)


def _merge_sections(table: Tensor, sections: list[int]) -> Tensor:
    """Merge the tables of all axes into one [..., tokens, pairs]: each section of the pairs from its own axis."""
    return torch.cat([part[axis] for axis, part in enumerate(table.split(sections, dim=-1))], dim=-1)
