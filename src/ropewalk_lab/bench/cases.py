"""The timed cases: named shapes, their tensors, and the float64 definition that every contender
must agree with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk import axes
from ropewalk.errors import RopeError
from ropewalk.kernels.request import align
from ropewalk.kernels.rotation.definition import rotate
from ropewalk.spec import RopeSpec

#: batch, tokens, query heads, key heads, head_dim, dtype
SHAPES: dict[str, tuple[int, int, int, int, int, torch.dtype]] = {
    "A": (1, 8192, 32, 8, 128, torch.bfloat16),
    "B": (64, 1, 32, 8, 128, torch.bfloat16),
    "C": (256, 1, 64, 8, 128, torch.bfloat16),
    "D": (4, 4096, 32, 32, 128, torch.bfloat16),
    "E": (8, 2048, 32, 32, 64, torch.bfloat16),
    "F": (2, 8192, 16, 16, 256, torch.bfloat16),
    "G": (1, 131072, 32, 8, 128, torch.bfloat16),
    "H": (1, 8192, 32, 8, 128, torch.float32),
    "8x32x512x64": (8, 512, 32, 32, 64, torch.bfloat16),
    "8x32x1024x128": (8, 1024, 32, 32, 128, torch.bfloat16),
    "8x32x2048x256": (8, 2048, 32, 32, 256, torch.bfloat16),
    "4x32x8192x128": (4, 8192, 32, 32, 128, torch.bfloat16),
}
#: names that stand for several shapes; "doc shapes" are those for which articles about RoPE state
#: speed and memory
GROUPS: dict[str, tuple[str, ...]] = {
    "doc shapes": ("8x32x512x64", "8x32x1024x128", "8x32x2048x256", "4x32x8192x128")
}
#: largest relative rms error of a contender: the rounding of its dtype, with a margin for cos and
#: sin stored in that dtype
TOLERANCE = {torch.bfloat16: 5e-3, torch.float16: 1e-3, torch.float32: 2e-4}
#: the plain case, and variants that should be as fast: packed documents, three axes (M-RoPE), a
#: quarter of each head rotated
VARIANTS = ("plain", "packed", "mrope", "partial")


@dataclass(frozen=True, eq=False)
class BenchCase:
    """Query, key and positions of one shape.

    name                that of the shape, a key of SHAPES
    order               the axes of q and k: "bshd" is [B, S, H, D], "bhsd" is [B, H, S, D]
    seq_dim, head_axis  the axes of the tokens and of the heads
    decode              whether each batch row has one token
    bytes               of q and k together
    """

    name: str
    order: str
    q: Tensor
    k: Tensor
    positions: Tensor  # [B, S], or [axes, B, S]
    spec: RopeSpec

    @property
    def seq_dim(self) -> int:
        return -3 if self.order == "bshd" else -2

    @property
    def head_axis(self) -> int:
        return 2 if self.order == "bshd" else 1

    @property
    def decode(self) -> bool:
        return self.q.shape[self.seq_dim] == 1

    @property
    def bytes(self) -> int:
        return (self.q.numel() + self.k.numel()) * self.q.element_size()


def shape_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of shapes without repetition; the name of a group is replaced by its shapes."""
    known, shapes = [*SHAPES, *GROUPS], []
    for name in names:
        if name not in known:
            raise RopeError("shape", f"must be one of {', '.join(map(repr, known))}", name)
        shapes.extend(GROUPS.get(name, (name,)))
    return tuple(dict.fromkeys(shapes))


def make_case(
    name: str,
    order: str,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    variant: str = "plain",
    seed: int = 0,
) -> BenchCase:
    """Return a case with random q and k of a shape of SHAPES.

    Positions are 0, 1, 2, ... in each batch row, from 0 again in each document of "packed". A
    decode shape (one token per batch row) has random ones below 4000, as sequences of different
    lengths have. "mrope" has two more axes: the row, of 64 tokens, and the column.

    dtype    of q and k; None: that of the shape
    order    of the axes, "bshd" or "bhsd"
    variant  one of VARIANTS
    """
    batch, seq, q_heads, k_heads, head_dim, default_dtype = SHAPES[name]
    generator = torch.Generator(device).manual_seed(seed)

    def random_tensor(heads: int) -> Tensor:
        shape = (batch, seq, heads, head_dim) if order == "bshd" else (batch, heads, seq, head_dim)
        return torch.randn(shape, generator=generator, device=device).to(dtype or default_dtype)

    positions = torch.arange(seq, device=device).expand(batch, seq)
    if seq == 1:
        positions = torch.randint(0, 4000, (batch, 1), generator=generator, device=device)
    elif variant == "packed":
        positions = positions % 1000  # documents of a thousand tokens
    if variant == "mrope":
        # time, row and column: 64 tokens per row
        positions = torch.stack((positions, positions // 64, positions % 64))
    pairs = head_dim // 2
    third = pairs // 3  # pairs of the rows and of the columns; time has the rest
    spec = RopeSpec(
        head_dim=head_dim,
        rotary_dim=head_dim // 4 if variant == "partial" else None,
        axes=axes.chunked([pairs - 2 * third, third, third]) if variant == "mrope" else None,
    )
    return BenchCase(
        name, order, random_tensor(q_heads), random_tensor(k_heads), positions.contiguous(), spec
    )


def definition(x: Tensor, positions: Tensor, case: BenchCase) -> Tensor:
    """Return x rotated in float64, with cos and sin computed directly from position times
    frequency. `positions` [B, S] or [axes, B, S] are those of the tokens of x, which has all
    or some batch rows of the case.
    """
    pairs = case.spec.pairs
    # the base of every case is the default
    frequencies = 10_000.0 ** (-torch.arange(pairs, dtype=torch.float64, device=x.device) / pairs)
    of_pairs = (
        positions[..., None]
        if case.spec.axes is None
        else positions[list(case.spec.axis_of_pair)].movedim(0, -1)
    )
    angles = of_pairs * frequencies  # each pair rotates by the position on its axis
    # with an axis of 1 for the heads
    cos, sin = (align(table, x, case.seq_dim) for table in (angles.cos(), angles.sin()))
    rotated = rotate(x[..., : 2 * pairs].double(), cos, sin, "half")
    return torch.cat((rotated, x[..., 2 * pairs :].double()), dim=-1)


def rms_error(rotated: tuple[Tensor, Tensor], case: BenchCase) -> float:
    """Return the relative root-mean-square error of rotated q and k; large batch rows are checked
    one at a time to save memory.
    """
    squared_error = squared_norm = 0.0
    rows_at_once = 1 if case.q[0].numel() > 1 << 20 else case.q.shape[0]
    for rotated_x, x in zip(rotated, (case.q, case.k), strict=True):
        for start in range(0, x.shape[0], rows_at_once):
            part = slice(start, start + rows_at_once)
            exact = definition(x[part], case.positions[..., part, :], case)
            squared_error += float((rotated_x[part].double() - exact).square().sum())
            squared_norm += float(exact.square().sum())
    return (squared_error / squared_norm) ** 0.5
