"""Rotation functions recognised by behaviour: the replacement must return what the function
returns, for random tensors.

A convention says how a function reads its tables, the arguments with cos and sin, and what it
rotates. Its fields are explained at `Convention` in conventions.py. The rows of a tensor to rotate
are the sequences of a batch; a row of a table holds its entries for one token or position.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ropewalk.interop.patch.conventions import (
    JOINT,
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
from ropewalk.interop.patch.functions import RotationFunction
from ropewalk.spec import LAYOUTS

#: sizes of the axes of trial tensors, all different, so that no axis passes for another
ROWS, HEADS, KEY_HEADS, TOKENS, PAIRS = 2, 5, 7, 3, 4
#: number of blocks of dimensions, each with a position axis of its own
BLOCKS = 2
TRIAL_SECTIONS = [2, 1, 1]
#: the axes of a trial tensor before its last one; its token axis (0: the first of three axes); and
#: whether each row has a table of its own
SHAPES = (
    ("row head token", -2, True), ("row token head", -3, True), ("token head", 0, False),
    ("row head token", -2, False), ("row token head", -3, False), ("row token", -2, True),
)  # fmt: skip
#: what a function may raise for arguments that it does not support
DECLINES = (RuntimeError, ValueError, LookupError, TypeError, AttributeError)
BOTH = (False, True)


def convention_of(
    function: Callable, heads: int | None = None, pairs: int = PAIRS
) -> Convention | None:
    """Return how a rotation function reads its tables and what it rotates; None if it computes
    something else.

    heads, pairs  the sizes that the function supports, if it does not support all
    """
    trials = _Trials(function, heads, pairs)
    return trials.convention() if trials.table_names else None


class _Trials:
    """Calls of one function with random tensors and tables."""

    def __init__(self, function: Callable, heads: int | None, pairs: int) -> None:
        """Find out which parameters of the function hold tables and which are rotated; `heads`
        None: any number will do.
        """
        self.function, self.heads, self.pairs = function, heads, pairs
        self.names = parameters_of(function)
        self.table_names = table_names_of(self.names)
        self.inputs = tuple(name for name in self.names if name not in (*self.table_names, *OTHER))

    @torch.no_grad()
    def convention(self) -> Convention | None:
        """Return the first convention whose replacement agrees with the function in every call that
        the function supports; None if there is none.
        """
        for axes, candidate in self._candidates():
            if not self._agree(candidate, self._call(axes, candidate)):
                continue
            # the plain call agrees; find the fields that only other calls depend on
            calls = [self._call(axes, candidate, **other) for other in self._other_calls()]
            for at_end, from_end, absent in product(BOTH, BOTH, ("none", "nothing", "tensor")):
                complete = replace(candidate, at_end=at_end, from_end=from_end, absent=absent)
                # None, for a call that the function does not support, is no disagreement
                if all(self._agree(complete, call) is not False for call in calls):
                    return replace(complete, reads_both=self._reads_both(axes, complete))
        return None

    def _candidates(self) -> Iterator[tuple[str, Convention]]:
        """Yield every convention, as far as one plain call can tell them apart, with the axes of the
        tensors, such as "row head token". The fields are those of `Convention`; where
        `position_ids` must be given, `gathers` and `blocks` are tried too.
        """
        # one table with both cos and sin has forms of its own
        forms = JOINT.get(self.table_names[0], (*LAYOUTS, "pairs"))
        parameter = signature_of(self.function).parameters.get(POSITIONS)
        needs_positions = parameter is not None and parameter.default is inspect.Parameter.empty
        # position_ids are [rows, tokens] or [rows, tokens, blocks], so only shapes whose rows may
        # have tables of their own fit; they either select table rows (`gathers`), or each of their
        # axes rotates a block of dimensions (`blocks`)
        for (axes, tokens, by_row), form, layout, layout_out, reverse in product(
            SHAPES, forms, LAYOUTS, LAYOUTS, BOTH
        ):
            plain = Convention(form, layout, layout_out, tokens, by_row, reverse=reverse)
            if not needs_positions:
                yield axes, plain
            elif by_row:
                yield axes, replace(plain, gathers=True)
                yield axes, replace(plain, blocks=True)

    def _other_calls(self) -> Iterator[dict[str, Any]]:
        """Yield calls that a function need not support, as arguments of `_call`."""
        yield {"extra": 4}  # heads wider than the tables
        yield {"more": (2, 2)}  # q and k longer than the tables
        yield {"more": (-1, 0)}  # q shorter than the tables
        if len(self.inputs) > 1:
            yield {"without": self.inputs[-1]}  # k is None
        if UNROTATED in self.names:
            # one key is not rotated; then also twice as many rotated keys as rows of the table
            yield {"more": (0, 1), "options": {UNROTATED: 1}}
            yield {"more": (0, TOKENS + 1), "options": {UNROTATED: 1, REPEATED: True}}

    def _call(
        self,
        axes: str,
        convention: Convention,
        *,
        extra: int = 0,
        more: tuple[int, int] = (0, 0),
        without: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return random arguments for the function: tables, and tensors with the axes that `axes`
        names.

        extra    by how many dimensions the heads are wider than the tables
        more     by how many tokens q, and the other tensors, are longer than the tables
        without  the name of a tensor that is None; `options` are further arguments
        """
        generator = torch.Generator().manual_seed(0)
        draw = lambda *shape: (  # noqa: E731
            torch.rand(*shape, generator=generator, device="cpu", dtype=torch.float32) - 0.5
        )
        # tables are [axes of a position, rows, tokens, pairs]; most functions have neither of the
        # first two
        axis_size = (len(TRIAL_SECTIONS),) if SECTIONS in self.names else ()
        row_size = (
            (ROWS,)
            if convention.by_row and not convention.gathers and not convention.joined_heads
            else ()
        )
        cos, sin = (draw(*axis_size, *row_size, TOKENS, self.pairs) for _ in range(2))
        tables = convention.tables(cos, sin, _blocks(convention))
        arguments: dict[str, Any] = {
            **dict(zip(self.table_names, tables, strict=True)),
            **(options or {}),
        }
        for index, name in enumerate(self.inputs):  # q comes first
            heads, longer = (HEADS, more[0]) if index == 0 else (KEY_HEADS, more[1])
            sizes = {"row": ROWS, "head": self.heads or heads, "token": TOKENS + longer}
            x = draw(*(sizes[axis] for axis in axes.split()), 2 * self.pairs + extra)
            x = x.flatten(-2) if convention.joined_heads else x
            arguments[name] = None if name == without else x
        if SECTIONS in self.names:
            arguments[SECTIONS] = TRIAL_SECTIONS
        if convention.gathers:
            arguments[POSITIONS] = torch.randint(
                0, TOKENS, (ROWS, TOKENS), generator=generator, device="cpu"
            )
        elif convention.blocks:
            arguments[POSITIONS] = torch.zeros(
                ROWS, TOKENS, BLOCKS, dtype=torch.int64, device="cpu"
            )
        return arguments

    def _agree(self, convention: Convention, arguments: dict[str, Any]) -> bool | None:
        """Return whether function and replacement return the same for these arguments, False if
        only the function supports them; None if the function does not.
        """
        try:
            theirs = self.function(**arguments)
        except DECLINES:
            return None
        try:
            ours = RotationFunction(self.function, convention, backend="reference")(**arguments)
        except DECLINES:
            return False
        return _are_near(ours, theirs)

    def _reads_both(self, axes: str, convention: Convention) -> bool:
        """Return whether the result depends on the table entries of the second dimension of each
        pair; False if tables have one entry per pair.
        """
        # two equal calls, of which one is changed
        plain, changed = (self._call(axes, convention) for _ in range(2))
        members = convention.doubled(
            [changed[name] for name in self.table_names], _blocks(convention)
        )
        # `members` are views of the tables, so this changes the call
        for _, second in members:
            second += 1
        return bool(members) and not _are_near(self.function(**plain), self.function(**changed))


def _blocks(convention: Convention) -> int:
    """Return how many blocks of dimensions the trial tensors of a convention have."""
    return BLOCKS if convention.blocks else 1


def _are_near(ours: Any, theirs: Any) -> bool:
    """Return whether two results have the same structure and nearly the same tensors."""
    if isinstance(ours, tuple) and isinstance(theirs, tuple | list):
        return len(ours) == len(theirs) and all(map(_are_near, ours, theirs))
    if isinstance(ours, Tensor) and isinstance(theirs, Tensor):
        return ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=0, atol=1e-5)
    return ours is None and theirs is None
