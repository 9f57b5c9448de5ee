"""Replacements for the rotation functions of a model: the same arguments and results, computed by
this library's kernels.

Words of this module:
  convention  how the original function reads its tables and what it rotates, a `Convention`
  tables      the arguments that hold cos and sin; lazy tables come from a patched rotary module and
              carry positions
  xs          the tensors to rotate, without those that are None
  arguments   all arguments of the call by name
  blocks      how many parts a head's dimensions have, each rotated by the positions of its own
              axis; mostly one
  rows        of the tensors to rotate: the sequences of a batch; of a table: its entries for one
              token or position
  seq_dim     the axis of the tokens in the tensors to rotate
  spec        a RopeSpec, which describes a rotation; its fingerprint is text that identifies it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ropewalk import rotation
from ropewalk.axes import AxisMap, chunked
from ropewalk.checks import check_tables
from ropewalk.errors import RopeError
from ropewalk.interop.patch.angles import LazyTable
from ropewalk.interop.patch.conventions import (
    OTHER,
    POSITIONS,
    REPEATED,
    SECTIONS,
    UNROTATED,
    Convention,
    parameters_of,
    signature_of,
    table_names_of,
)
from ropewalk.kernels.request import TableRequest
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec
from ropewalk.tracing import is_traced

#: the attribute of a table whose doubled entries were found equal
CHECKED = "_ropewalk_checked"


class RotationFunction:
    """Replaces one rotation function of the model."""

    def __init__(
        self, function: Callable, convention: Convention, backend: str | None = None
    ) -> None:
        """Find out which parameters of the original function hold tables, and which are rotated."""
        parameters = signature_of(function).parameters
        self.names = parameters_of(function)
        self.table_names = table_names_of(self.names)
        self.rotated_names = tuple(
            name for name in self.names if name not in (*self.table_names, *OTHER)
        )
        self.unsqueeze = (
            parameters["unsqueeze_dim"].default if "unsqueeze_dim" in parameters else None
        )
        self.convention, self.backend = convention, backend
        #: whether four arguments without names are q, k, cos and sin
        self.is_standard = self.names[:4] == ("q", "k", "cos", "sin")
        #: (fingerprint of a spec, width of the heads) -> its rope, in the layouts of the function
        self.ropes: dict[tuple[str, int], Rope] = {}
        #: fingerprint of a spec with several position axes -> how many successive pairs belong to
        #: each axis, the argument mrope_section of a call
        self.sections: dict[str, list[int]] = {}

    def add_spec(self, spec: RopeSpec) -> None:
        """Build the ropes for a spec: one for whole heads, one for the rotated slice alone, since a
        model may pass either; none if the convention needs tables.
        """
        convention = self.convention
        if convention.needs_tables:
            return
        for width in (spec.head_dim, spec.pairs * 2):
            function_spec = spec.with_(
                head_dim=width,
                rotary_dim=2 * spec.pairs,
                rotary_start=convention.start(width, 2 * spec.pairs),
                layout=convention.layout,
                layout_out=convention.layout_out,
            )
            self.ropes[spec.fingerprint, width] = Rope(function_spec, backend=self.backend)
        if SECTIONS in self.names and isinstance(spec.axes, AxisMap):
            counts = [spec.axes.axis_of_pair.count(axis) for axis in range(spec.num_axes)]
            if chunked(counts) == spec.axes:  # the pairs of each axis are successive
                self.sections[spec.fingerprint] = counts

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the original function would: rotated by exact angles if the tables carry
        positions, else by the tables.
        """
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
        return self._result(inputs, rotated)

    def _result(self, inputs: list[Tensor | None], rotated: tuple[Tensor, ...]) -> Any:
        """Return the rotated tensors in the form that the original function returns: one, a tuple,
        or a tuple with None.
        """
        if len(inputs) == 1 or (len(rotated) == 1 and self.convention.absent == "tensor"):
            return rotated[0]
        if len(rotated) == len(inputs) or self.convention.absent == "nothing":
            return rotated
        next_rotated = iter(rotated)
        return tuple(None if x is None else next(next_rotated) for x in inputs)

    def _by_positions(
        self, xs: tuple[Tensor, ...], tables: Sequence, arguments: dict[str, Any]
    ) -> tuple[Tensor, ...] | None:
        """Return the tensors rotated by exact angles; None if the tables are not lazy, or if no rope
        was built for their spec, this width of x and these sections.
        """
        for index, table in enumerate(tables):  # cos has index 0, sin 1
            if type(table) is not LazyTable or table.index != index:
                return None
        angles, x = tables[0].angles, xs[0]
        rope = self.ropes.get((angles.fingerprint, x.shape[-1]))
        if rope is None or arguments.get(SECTIONS) != self.sections.get(angles.fingerprint):
            return None
        positions = angles.positions
        if positions.device != x.device:
            positions = positions.to(x.device)
        # lazy tables stand for tables [rows, tokens, entries], which have 3 axes
        seq_dim = self._seq_dim(arguments, table_ndim=3)
        # the last position belongs to the last token, whichever of x and the positions is longer
        if self.convention.from_end:

            def rotate(tokens, first):  # by the positions from index `first` on
                return rope.rotate(tokens, positions[..., first:], seq_dim=seq_dim)

            return tuple(_from_end(each, positions.shape[-1], seq_dim, rotate) for each in xs)
        if len(xs) == 2:
            return rope(x, xs[1], positions, 0, seq_dim)  # 0: no offset is added to the positions
        return tuple(rope.rotate(each, positions, seq_dim=seq_dim) for each in xs)

    def _by_tables(
        self, xs: tuple[Tensor, ...], tables: list, arguments: dict[str, Any]
    ) -> tuple[Tensor, ...]:
        """Return the tensors rotated by the cos and sin that the call gives."""
        convention = self.convention
        # one block of dimensions for each axis of the positions
        blocks = arguments[POSITIONS].shape[-1] if convention.blocks else 1
        tensors = [table.tensor() if isinstance(table, LazyTable) else table for table in tables]
        # a table that was not lazy is still the same object; lazy ones are ours and need no check
        if convention.reads_both and tensors[0] is tables[0]:
            check_doubled(tensors, convention.doubled(tensors, blocks))
        cos, sin = (table.to(xs[0].device) for table in convention.cos_sin(tensors, blocks))
        if SECTIONS in arguments:
            cos, sin = (_merge_sections(table, arguments[SECTIONS]) for table in (cos, sin))
        if convention.gathers:  # the positions select rows of the table
            cos, sin = cos[arguments[POSITIONS]], sin[arguments[POSITIONS]]
        elif not convention.by_row and cos.shape[:-1].numel() == max(cos.shape[:-1]):
            # of the axes before the last, at most that of the tokens is longer than 1: the others
            # are left out
            cos, sin = (table.reshape(-1, table.shape[-1]) for table in (cos, sin))
        if convention.reverse:
            sin = -sin
        if not convention.joined_heads:
            return self._by_rows(
                xs, cos, sin, self._seq_dim(arguments, cos.ndim), blocks, arguments
            )
        # x is [rows, tokens, heads * dimensions]; with the heads split, the tokens are axis -3;
        # the tables may have rows for more tokens
        split_heads = tuple(x.unflatten(-1, (-1, 2 * cos.shape[-1])) for x in xs)
        tokens = xs[0].shape[1]
        rotated = self._by_rows(split_heads, cos[:tokens], sin[:tokens], -3, blocks, arguments)
        return tuple(x.flatten(-2) for x in rotated)

    def _by_rows(
        self,
        xs: tuple[Tensor, ...],
        cos: Tensor,
        sin: Tensor,
        seq_dim: int,
        blocks: int,
        arguments: dict[str, Any],
    ) -> tuple[Tensor, ...]:
        """Return the tensors with each token rotated by its row of the tables.

        With several `blocks` of dimensions, each block of a head is rotated by the positions of its
        own axis.
        """
        if UNROTATED in self.names:
            # the function of SAM 2, which has an argument for how many keys are not rotated
            (q,) = self._run(xs[:1], cos, sin, seq_dim, blocks)
            return q, self._rotate_memory(xs[1], cos, sin, seq_dim, arguments)
        if not self.convention.from_end:
            return self._run(xs, cos, sin, seq_dim, blocks)

        # the last row of the tables belongs to the last token, whichever of x and the tables is
        # longer
        def rotate(tokens, first):  # by the rows of the tables from `first` on
            tables = cos[..., first:, :], sin[..., first:, :]
            return self._run((tokens,), *tables, seq_dim, blocks)[0]

        return tuple(_from_end(x, cos.shape[-2], seq_dim, rotate) for x in xs)

    def _rotate_memory(
        self, k: Tensor, cos: Tensor, sin: Tensor, seq_dim: int, arguments: dict[str, Any]
    ) -> Tensor:
        """Return the keys of SAM 2's memory attention, rotated except for the last
        `num_k_exclude_rope`; the table is repeated if `repeat_freqs_k` is true.
        """
        count = k.shape[seq_dim] - arguments.get(UNROTATED, 0)  # of the rotated keys
        rotated, kept = k.split((count, k.shape[seq_dim] - count), dim=seq_dim)
        if not count:
            return kept
        repeats = count // cos.shape[-2] if arguments.get(REPEATED) else 1
        (rotated,) = self._run(
            (rotated,), cos.repeat(repeats, 1), sin.repeat(repeats, 1), seq_dim, blocks=1
        )
        return torch.cat((rotated, kept), dim=seq_dim)

    def _run(
        self, xs: tuple[Tensor, ...], cos: Tensor, sin: Tensor, seq_dim: int, blocks: int
    ) -> tuple[Tensor, ...]:
        """Return the tensors rotated by tables with a row for each token; each block of dimensions
        has its part of the tables.
        """
        convention, pairs = self.convention, cos.shape[-1] // blocks
        for block in range(blocks):
            start = (
                convention.start(xs[0].shape[-1], 2 * pairs) if blocks == 1 else 2 * pairs * block
            )
            part = slice(pairs * block, pairs * (block + 1))
            for x in xs:
                check_tables(x, cos[..., part], sin[..., part], start, seq_dim)
            request = TableRequest(
                cos[..., part],
                sin[..., part],
                seq_dim,
                convention.layout,
                convention.layout_out,
                start,
            )
            # a kernel takes at most two tensors; RoFormer may rotate its values too; False: not in
            # place
            xs = tuple(
                y
                for i in range(0, len(xs), 2)
                for y in rotation.run(xs[i : i + 2], request, False, self.backend)
            )
        return xs

    def _seq_dim(self, arguments: dict[str, Any], table_ndim: int) -> int:
        """Return the token axis of x: that of the convention, or if the function has
        `unsqueeze_dim`, the one with which the unsqueezed table's tokens are aligned.
        """
        if self.unsqueeze is None:
            return self.convention.tokens or -3  # 0 stands for [tokens, heads, dimensions]
        # a table [..., tokens, pairs] gets an axis for the heads: before the tokens, or between
        # tokens and pairs
        unsqueeze_dim = arguments.get("unsqueeze_dim", self.unsqueeze)
        return -2 if unsqueeze_dim % (table_ndim + 1) <= table_ndim - 2 else -3


def check_doubled(tables: list[Tensor], members: list[tuple[Tensor, Tensor]]) -> None:
    """Refuse tables with different entries for the two members of a pair; a table is checked once.

    `members` holds, of cos and of sin, the entries for the first and for the second members. Two
    entries of one angle may differ by rounding: torch's vectorised cos differs from its scalar one
    in the last bit.
    """
    if all(getattr(table, CHECKED, False) or not table.numel() for table in tables):
        return
    gap = torch.stack([(first - second).abs().amax() for first, second in members]).amax()
    is_near = gap <= max(torch.finfo(gap.dtype).eps, 2.0**-20)
    rule = (
        "must have the same entry for both members of a pair; with different entries it is no "
        "rotation, so unpatch this model"
    )
    traced = is_traced(tuple(tables))
    if traced or tables[0].device.type != "cpu":
        # no read-back from the device or from a graph
        torch.ops.aten._assert_async.msg(is_near, f"cos, sin: {rule}")
    elif not is_near:
        raise RopeError("cos, sin", rule, f"entries that differ by {gap.item():.2g}")
    if not traced:
        for table in tables:
            setattr(table, CHECKED, True)


def _from_end(
    x: Tensor, rows: int, seq_dim: int, rotate: Callable[[Tensor, int], Tensor]
) -> Tensor:
    """Return x with its last tokens rotated by the last rows of a table with `rows` rows. If x has
    more tokens than the table has rows, its first ones are not rotated.

    `rotate(tokens, first)` rotates tokens by the rows of the table from `first` on.
    """
    excess = x.shape[seq_dim] - rows  # below 0: the table is longer, and its first rows are unused
    if excess <= 0:
        return rotate(x, -excess)
    kept, last = x.split((excess, rows), dim=seq_dim)
    return torch.cat((kept, rotate(last, 0)), dim=seq_dim)


def _merge_sections(table: Tensor, sections: list[int]) -> Tensor:
    """Return the tables [axes, ..., tokens, pairs] of all position axes as one table
    [..., tokens, pairs]: each section of the pairs comes from the table of its own axis.

    sections  the number of pairs of each axis
    """
    return torch.cat(
        [part[axis] for axis, part in enumerate(table.split(sections, dim=-1))], dim=-1
    )
