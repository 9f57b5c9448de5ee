"""Conventions of rotation functions: how they read cos and sin, and which dimensions and tokens
they rotate.

Words of this module:
  tables   the arguments of a function that hold cos and sin: two tensors, or both in one
  form     how a table holds the entries: "half" and "interleaved" tables are doubled, with an entry
           for each member of a pair in that layout; "pairs" and "complex" ones have one per pair
  blocks   how many parts a head's dimensions have, each rotated by the positions of its own axis;
           mostly one
  rows     of the tensors to rotate: the sequences of a batch; of a table: its entries for one token
           or position
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ropewalk.interop.patch.angles import FORMS
from ropewalk.kernels.rotation.definition import split_pairs
from ropewalk.spec import LAYOUTS

#: parameters that hold cos and sin separately
SEPARATE = ("cos", "sin")
#: parameters that hold both in one tensor, and the forms that it may have
JOINT = {
    "freqs_cis": ("complex",), "freqs_ci": ("complex",), "sinusoidal_pos": ("sin then cos",),
    "relative_position_embeddings": ("cos over sin",),
}  # fmt: skip
POSITIONS = "position_ids"
#: the parameter with the number of pairs of each axis; the tables then have a leading axis
#: dimension
SECTIONS = "mrope_section"
#: parameters of SAM 2's function: how many keys at the end are not rotated, and whether the table
#: is repeated until it covers the rotated keys
UNROTATED, REPEATED = "num_k_exclude_rope", "repeat_freqs_k"
#: parameters that are neither tables nor rotated
OTHER = ("unsqueeze_dim", POSITIONS, SECTIONS, UNROTATED, REPEATED)


@dataclass(frozen=True)
class Convention:
    """How a rotation function reads its tables, and which dimensions and tokens it rotates.

    form        of the tables: a name of FORMS; "sin then cos" for one table with the sines before
                the cosines; "cos over sin" for one table [2, tokens, 1, 1, dimensions], whose heads
                are joined in the last dimension of x
    tokens      the token axis if the call does not give it; 0 for [tokens, heads, dimensions]
    by_row      each row may have a table of its own
    at_end      a table narrower than the head rotates its last dimensions instead of its first
    reverse     the rotation is by the opposite angle
    reads_both  each member of a pair is rotated by its own entry of a doubled table, so the two
                must be equal
    from_end    tensor and table may differ in length: the last tokens are rotated by the last rows
                of the table
    gathers     the table has a row for each position, and `position_ids` selects the rows
    blocks      each axis of `position_ids` rotates a block of dimensions of its own
    absent      the result if one of two inputs is None: "none": a tuple with None in its place,
                "nothing": a tuple of the other alone, "tensor": the other without a tuple
    """

    form: str
    layout: str
    layout_out: str
    tokens: int
    by_row: bool = True
    at_end: bool = False
    reverse: bool = False
    reads_both: bool = False
    from_end: bool = False
    gathers: bool = False
    blocks: bool = False
    absent: str = "none"

    @property
    def needs_tables(self) -> bool:
        """Whether the rotation must be computed from the tables, since no rope at the positions of
        the tokens gives it.
        """
        return self.reverse or self.gathers or self.blocks

    @property
    def joined_heads(self) -> bool:
        """Whether x is [rows, tokens, heads * dimensions]."""
        return self.form == "cos over sin"

    def doubled(self, tables: list[Tensor], blocks: int = 1) -> list[tuple[Tensor, Tensor]]:
        """Return (first, second) of cos and (first, second) of sin: views of the entries for the
        two members of each pair.

        [] if the tables have one entry for both members. With more than one block, blocks are the
        axis before the last.
        """
        if self.form == "cos over sin":  # the first axis of the only table holds cos and sin
            return [split_pairs(table.flatten(0, -2), "half") for table in tables[0]]
        if self.form not in LAYOUTS:
            return []
        return [
            split_pairs(table if blocks == 1 else table.unflatten(-1, (blocks, -1)), self.form)
            for table in tables
        ]

    def cos_sin(self, tables: list[Tensor], blocks: int = 1) -> tuple[Tensor, Tensor]:
        """Return cos and sin with one entry per pair, from the tables that the function is called
        with.
        """
        if self.form == "complex":
            return tables[0].real, tables[0].imag
        if self.form == "sin then cos":
            # the axis of the heads, of size 1, is merged into that of the batch
            sin, cos = tables[0].flatten(0, -3).chunk(2, dim=-1)
            return cos, sin
        if self.form == "pairs":
            return tables[0], tables[1]
        # both members of a pair have the same entry
        (cos, _), (sin, _) = self.doubled(tables, blocks)
        return (cos, sin) if blocks == 1 else (cos.flatten(-2), sin.flatten(-2))

    def tables(self, cos: Tensor, sin: Tensor, blocks: int = 1) -> tuple[Tensor, ...]:
        """Return the tables in this form, from one entry per pair; those of "sin then cos" and "cos
        over sin" also have axes of size 1, such as one for the heads.
        """
        if self.form == "sin then cos":
            return (torch.cat((sin, cos), dim=-1).unsqueeze(1),)
        if self.form == "cos over sin":
            return (torch.stack(FORMS["half"](cos, sin))[:, :, None, None],)
        if blocks == 1:
            return FORMS[self.form](cos, sin)
        by_block = (table.unflatten(-1, (blocks, -1)) for table in (cos, sin))
        return tuple(table.flatten(-2) for table in FORMS[self.form](*by_block))

    def start(self, width: int, rotated: int) -> int:
        """Return the first rotated dimension of a head with `width` dimensions, of which `rotated`
        are rotated.
        """
        return width - rotated if self.at_end else 0


def signature_of(function: Callable) -> inspect.Signature:
    """Return the signature of a rotation function. Hugging Face's package `kernels` puts a module
    in the place of such a function; the signature is then that of the module's forward.
    """
    return inspect.signature(function.forward if isinstance(function, nn.Module) else function)


def parameters_of(function: Callable) -> tuple[str, ...]:
    """Return the names of a function's parameters, without *args and **kwargs."""
    collected = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return tuple(
        name
        for name, each in signature_of(function).parameters.items()
        if each.kind not in collected
    )


def table_names_of(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return which of a function's parameters hold its tables: "cos" and "sin", or else the first
    of JOINT; () if it has none.
    """
    return (
        SEPARATE
        if set(SEPARATE) <= set(names)
        else tuple(name for name in names if name in JOINT)[:1]
    )
