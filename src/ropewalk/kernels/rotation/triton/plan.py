"""RotationPlan: the launch plan of the Triton kernel for calls with the same shapes, strides and
spec.

A program rotates a block of tokens and a group of heads; columns, rows and layers are the three
axes of the grid of programs. `source` holds the kernel arguments that define the angles.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ropewalk.kernels.launch_plan import LaunchPlan
from ropewalk.kernels.request import AnyRequest, Request, token_axes
from ropewalk.kernels.rotation.triton import kernel
from ropewalk.kernels.rotation.triton.angle_source import AngleSource, angle_source
from ropewalk.kernels.rotation.triton.config import RotationConfig, pick_config
from ropewalk.kernels.support import has_pdl, has_sine_unit, power_of_two

#: CUDA's bound on the second and third axis of a grid
MOST_ROWS = 65535
#: the arguments of rotate_kernel that change from call to call: q, k, their outs, positions,
#: angles, magnitudes, offset
CHANGING = 10


class _Axes:
    """A tensor as [batch, tokens, heads, dims]: the sizes and strides of its first three axes; an
    axis that it does not have is of size 1.
    """

    def __init__(self, x: Tensor, seq_dim: int, merged: bool = False) -> None:
        """Set `sizes` and `strides`, each (batch, tokens, heads), of x with its tokens along
        `seq_dim`; a stride is 0 where the size is 1. `merged` makes batch rows tokens.
        """
        seq, batch, head = token_axes(x.ndim, seq_dim)
        self.sizes = tuple(1 if axis is None else x.shape[axis] for axis in (batch, seq, head))
        self.strides = tuple(
            0 if axis is None or x.shape[axis] == 1 else x.stride(axis)
            for axis in (batch, seq, head)
        )
        if merged:
            # treat batch rows of one token each as the tokens of one batch row
            self.sizes, self.strides = (
                (1, self.sizes[0], self.sizes[2]),
                (0, self.strides[0], self.strides[2]),
            )


class RotationPlan(LaunchPlan):
    """The grid and the constant arguments of `rotate_kernel`; `config` overrides the choice of
    `pick_config`.
    """

    def __init__(
        self,
        xs: tuple[Tensor, ...],
        outs: tuple[Tensor, ...],
        request: AnyRequest,
        config: RotationConfig | None = None,
    ) -> None:
        x = xs[0]
        source = angle_source(request, x)
        #: None if the angles change from call to call
        self.source: AngleSource | None = source if source.constant else None
        sizes = _Axes(x, request.seq_dim).sizes
        # a decode step: many batch rows of one token, which one program can process together
        merged = sizes[1] == 1 and sizes[0] > 1 and not source.differs_by_row
        # for a single tensor, k is the same tensor with 0 heads
        q, k, q_out, k_out = (
            _Axes(t, request.seq_dim, merged) for t in (xs[0], xs[-1], outs[0], outs[-1])
        )
        batch, tokens, q_heads = q.sizes
        k_heads = 0 if len(xs) == 1 else k.sizes[2]
        # which of the two is adjacent in memory: the tokens of a head, or the heads of a token
        order = "head" if tokens > 1 and q_heads > 1 and q.strides[2] > q.strides[1] else "token"
        # in place, the dims that do not rotate stay where they are; otherwise they are copied
        copied = (
            0
            if all(out is t for t, out in zip(xs, outs, strict=True))
            else x.shape[-1] - 2 * request.pairs
        )
        if config is None:
            heads, itemsize = (q_heads, k_heads), x.element_size()
            config = pick_config(
                order,
                source.mode,
                request.pairs,
                copied,
                (batch, tokens),
                heads,
                itemsize,
                source.num_axes,
            )
        values = self._blocks(config, order, batch, tokens, q_heads, k_heads) | _head_values(
            x, request, copied, config
        )
        for name, tensor in (("q", q), ("k", k), ("q_out", q_out), ("k_out", k_out)):
            values.update(
                zip((f"{name}_batch", f"{name}_token", f"{name}_head"), tensor.strides, strict=True)
            )
        values |= source.values(merged, MODE=getattr(kernel, source.mode.upper()).value)
        super().__init__(kernel.rotate_kernel, values, CHANGING, x.device, config.warps)

    def _blocks(
        self,
        config: RotationConfig,
        order: str,
        batch: int,
        tokens: int,
        q_heads: int,
        k_heads: int,
    ) -> dict[str, Any]:
        """Set `self.grid` and return the kernel arguments that assign tokens and heads to programs.

        order   "head" if the tokens of one head are adjacent in memory, "token" if the heads of one
                token are
        tokens  how many tokens a batch row has; `config.tokens`: how many a program rotates
        """
        # heads are divided into groups of q_block heads of q, and in the same program k_block heads
        # of k; if k_block is 0, k has groups of its own, after those of q
        q_block = min(config.heads, power_of_two(q_heads))
        k_block = 0
        q_groups = groups = -(-q_heads // q_block)  # -(-a // b) is a / b rounded up
        if k_heads and config.q_and_k:
            k_block = power_of_two(-(-k_heads // groups))
        elif k_heads:
            groups += -(-k_heads // q_block)
        blocks = -(-tokens // config.tokens)
        # the grid: programs of one row have adjacent ids, and the rows beyond MOST_ROWS continue on
        # the third axis
        columns, rows = (blocks, batch * groups) if order == "head" else (blocks * groups, batch)
        layers = -(-rows // MOST_ROWS)
        self.grid = (columns, min(rows, MOST_ROWS), layers)
        return {
            "tokens": tokens,
            "TOKENS": config.tokens,
            # whether the next program takes the next tokens of the same heads, or the next heads of
            # the same tokens
            "TOKENS_FIRST": order == "head",
            "rows": rows,
            "TALL": layers > 1,
            "Q_HEADS": q_heads,
            "Q_BLOCK": q_block,
            "Q_GROUPS": q_groups,
            "K_HEADS": k_heads,
            "K_BLOCK": k_block,
            "GROUPS": groups,
            "MASK_TOKENS": tokens % config.tokens != 0,
            "MASK_K": k_block * groups != k_heads,
            "MASK_Q": q_heads % q_block != 0 or (k_block == 0 and k_heads % q_block != 0),
        }

    def __call__(
        self,
        xs: tuple[Tensor, ...],
        outs: tuple[Tensor, ...],
        request: AnyRequest,
        pointers: list[int],
    ) -> None:
        """Launch the kernel; `pointers` are the data pointers of xs and outs."""
        # without a source, the angles change from call to call
        source = self.source or angle_source(request, xs[0])
        positions, offset = (
            (request.positions, request.offset) if isinstance(request, Request) else (None, 0)
        )
        # `start` takes pointers; `launch`, which compiles, takes tensors. A single tensor has no k
        # and no k_out: null pointers, or None
        if self.can_start:
            q, k, q_out, k_out = pointers if len(xs) > 1 else (pointers[0], 0, pointers[1], 0)
            position_pointer = 0 if positions is None else positions.data_ptr()
            self.start(self.grid, (q, k, q_out, k_out, position_pointer, *source.pointers, offset))
        else:
            no_key = () if len(xs) > 1 else (None,)
            self.launch(
                self.grid, (*xs, *no_key, *outs, *no_key, positions, *source.tensors, offset)
            )


def _head_values(
    x: Tensor, request: AnyRequest, copied: int, config: RotationConfig
) -> dict[str, Any]:
    """Return the kernel arguments that describe the dimensions of a head, the direction, and the
    instructions to use.

    copied  how many dimensions do not rotate and are copied to the output; 0 if the output is x
            itself
    """
    start, pairs = request.start, request.pairs
    tail = x.shape[-1] - start - 2 * pairs
    return {
        "START": start,
        "PAIRS": pairs,
        "TAIL": tail,
        "COPY": copied > 0,
        "BLOCK": power_of_two(pairs),
        # a tile has at least one dim, also where there are none to copy
        "START_BLOCK": power_of_two(max(1, start)),
        "TAIL_BLOCK": power_of_two(max(1, tail)),
        "INTERLEAVED_IN": request.layout_in == "interleaved",
        "INTERLEAVED_OUT": request.layout_out == "interleaved",
        # a TableRequest for a backward rotation has its sin negated already
        "BACKWARDS": isinstance(request, Request) and request.sign < 0,
        # the GPU's approximate sine, exact enough for 16 bits
        "QUICK": has_sine_unit(x),
        # hints that the data is read or written only once
        "LOAD_HINT": "evict_first" if config.hints else "",
        "STORE_HINT": ".cs" if config.hints else "",
        # programmatic dependent launch
        "PDL": config.pdl and has_pdl(x.device),
    }
