"""Export models that use Rope to ONNX: the standard RotaryEmbedding operator where it fits, plain
operators elsewhere.

cos and sin are computed in the graph, in float64, from small tables of the four bytes of a
position: the graph has no maximum length, and is as exact at token 10,000,000 as at token 10.

A spec (RopeSpec) describes a rotation: its frequencies, and the magnitude that multiplies q and k.
A request says how tensors are rotated: by exact angles at positions, or, a TableRequest, by cos and
sin that the caller passes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ropewalk import levels
from ropewalk.errors import MissingExtra, RopeError, integer
from ropewalk.kernels.request import AnyRequest, Request, TableRequest, align
from ropewalk.kernels.rotation.definition import join_pairs, split_pairs
from ropewalk.ops import replaced_ops
from ropewalk.phase import TURN
from ropewalk.spec import RopeSpec
from ropewalk.tensor_frequencies import CPU, fixed_frequencies

#: bits of the four digits of a position; a table of 256 rows for each digit keeps a model small
DIGITS = levels.Digits((8, 8, 8, 8))
#: elements of a table for a head of 512 dimensions; larger tensors are not searched for duplicates
LARGEST_TABLE = 1 << 17
#: the first opset with RotaryEmbedding
OPSET = 23


def export(
    model: nn.Module,
    args: tuple[Any, ...],
    path: str | os.PathLike[str] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    opset_version: int = OPSET,
    **options: Any,
) -> Any:
    """Export a model that uses Rope and return its `torch.onnx.ONNXProgram`; needs the extra
    `onnx`.

    args, kwargs    example inputs of the model, as for `torch.export.export`
    path            write the program to this file
    dynamic_shapes  as in `torch.export.export`
    options         of `torch.onnx.export`, such as input_names

    Frequencies must be fixed; positions are 32-bit integers.
    """
    integer("opset_version", opset_version, low=OPSET)
    try:
        import onnxscript  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        raise MissingExtra("export", "onnx and onnxscript", "onnx") from None
    # these functions consist of operators that ONNX has
    with replaced_ops(_rotate, _cos_sin):
        program = torch.export.export(
            model, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes
        )
    onnx_program = torch.onnx.export(
        program, dynamo=True, opset_version=opset_version, verbose=False, **options
    )
    assert onnx_program is not None  # dynamo=True returns a program
    _share_constants(onnx_program.model)
    if path is not None:
        onnx_program.save(str(path))
    return onnx_program


def _share_constants(model: Any) -> None:
    """Let all layers share one copy of the tables, and of cos and sin."""
    from onnx_ir.passes import common  # type: ignore[import-not-found]

    common.LiftConstantsToInitializersPass()(model)
    common.DeduplicateInitializersPass(size_limit=LARGEST_TABLE)(model)
    common.CommonSubexpressionEliminationPass()(model)


@dataclass(frozen=True)
class _SpecTables:
    """The tables of a spec, one for each byte of a position, and its magnitude; both for queries
    (False) and for keys (True).
    """

    tables: dict[bool, tuple[np.ndarray, ...]]
    magnitudes: dict[bool, float]


def _tables_of(spec: RopeSpec) -> _SpecTables:
    """Return the tables and magnitudes from which a graph computes the rotation of a spec; refuse a
    length-dependent spec.
    """
    if spec.needs_length:
        rule = (
            "must not depend on the length to be exported; use its frequencies at one length, "
            "frequencies.Given(radians)"
        )
        raise RopeError("scaling", rule, spec.scaling)
    # while a model is exported, tensors made in this thread have no data, so another thread
    # computes the tables
    with ThreadPoolExecutor(1) as other_thread:
        return other_thread.submit(_compute_tables, spec).result()


def _compute_tables(spec: RopeSpec) -> _SpecTables:
    """Return, for queries and for keys, one table of cos and sin for each digit of a position, and
    the magnitude.
    """
    # raises an error for a spec whose rotation such tables cannot give
    levels.check_spec(spec, length=None)
    magnitudes = {
        is_key: levels.magnitude_of(spec, length=None, key=is_key) for is_key in (False, True)
    }
    # the angle of one position for each pair, where TURN = 2^64 is a whole turn; int64 holds the
    # upper half of 0 ... TURN - 1 as negative numbers, which % undoes
    steps = tuple(step % TURN for step in fixed_frequencies(spec, CPU)[1].tolist())
    tables = {
        is_key: levels.levels(steps, magnitude, DIGITS, "float64")
        for is_key, magnitude in magnitudes.items()
    }
    return _SpecTables(tables, magnitudes)


def _cos_sin(
    request: Request, positions: Tensor, dtype: torch.dtype, key: bool
) -> tuple[Tensor, Tensor]:
    """Return cos and sin of positions, [..., S, pairs] of `dtype`, by operators that ONNX has;
    `key`: for keys, not for queries.

    A position is split into four digits in base 256, each with a table of its own; their angles are
    added.
    """
    # functions of `levels` take torch as the library whose operators they call
    spec_tables = _tables_of(request.spec)
    digit_rows, remaining = [], positions.to(torch.int64)
    for table in spec_tables.tables[key]:  # from the lowest digit to the highest
        digit = torch.remainder(remaining, len(table))
        remaining = torch.div(remaining - digit, len(table), rounding_mode="trunc")
        digit_rows.append(levels.rows_at(torch, levels.array(torch, table), digit, request.spec))
    cos, sin = levels.cos_sin_of_sum(digit_rows)
    if request.magnitude_power != 1:  # the tables have the magnitude to the power 1
        factor = spec_tables.magnitudes[key] ** (request.magnitude_power - 1)
        cos, sin = cos * factor, sin * factor
    return cos.to(dtype), sin.to(dtype)


def _rotate(xs: tuple[Tensor, ...], request: AnyRequest) -> tuple[Tensor, ...]:
    """Return each of `xs` rotated as `request` says: by its tables, or by exact angles at its
    positions.
    """
    rotated = []
    for i, x in enumerate(xs):
        if isinstance(request, TableRequest):
            cos, sin = request.cos, request.sin  # for the inverse rotation sin is negated already
        else:
            positions = request.explicit_positions(x.shape[request.seq_dim], x.device)
            cos, sin = _cos_sin(request, positions, torch.float32, request.is_key(i))
            sin = sin if request.sign > 0 else -sin  # the sign is -1 for the inverse rotation
        rotated.append(
            _rotate_by(
                x, cos, sin, request.layout_in, request.layout_out, request.start, request.seq_dim
            )
        )
    return tuple(rotated)


def _rotate_by(
    x: Tensor, cos: Tensor, sin: Tensor, layout: str, layout_out: str, start: int, seq_dim: int
) -> Tensor:
    """Return x rotated by cos and sin [..., S, pairs], from its dimension `start` on; computed in
    float32. `seq_dim` is the axis of the tokens in x, `layout` the pair layout of x, and
    `layout_out` that of the result.

    ONNX's RotaryEmbedding rotates x of shape [B, H, S, D] from dimension 0, if the pair layout
    stays the same. Plain operators rotate everything else, and everything in a torch without
    `torch.onnx.ops`, such as 2.6.
    """
    wide = x.to(torch.float32)
    cos, sin = cos.to(torch.float32), sin.to(torch.float32)
    pairs = cos.shape[-1]
    # whether the operator fits; tables with more than three axes may differ from head to head
    standard = (
        x.ndim == 4 and seq_dim == -2 and start == 0 and layout == layout_out and cos.ndim <= 3
    )
    if standard and hasattr(torch.onnx, "ops"):
        tables = [table.expand(x.shape[0], x.shape[2], pairs) for table in (cos, sin)]
        # the operator's 0 means the whole head
        rotary_dim = 0 if 2 * pairs == x.shape[-1] else 2 * pairs
        options = {"interleaved": layout == "interleaved", "rotary_embedding_dim": rotary_dim}
        return torch.onnx.ops.rotary_embedding(wide, *tables, **options).to(x.dtype)
    # the tables as views that broadcast over the axes of x
    cos, sin = (align(table, wide, seq_dim) for table in (cos, sin))
    first, second = split_pairs(wide[..., start : start + 2 * pairs], layout)
    rotated = join_pairs(first * cos - second * sin, second * cos + first * sin, layout_out)
    return torch.cat((wide[..., :start], rotated, wide[..., start + 2 * pairs :]), dim=-1).to(
        x.dtype
    )
