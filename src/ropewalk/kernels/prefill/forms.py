"""Forms of the QKV kernel for many tokens: which calls they support, and where they are faster than
two launches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.caches import cached
from ropewalk.kernels.fused.definition import Call, LatentNorm
from ropewalk.kernels.support import TRITON_INSTALLED, interpreting, multiprocessors

#: the width of the blocks of x and weight that a kernel multiplies at a time
DEPTH = 64
#: the sizes of a head that specialised.py supports
SPECIALISED_HEAD_DIMS = (64, 128)


@dataclass(frozen=True)
class Form:
    """The tiles of a kernel, from sweeps on an H200; every form gives the same results."""

    #: tokens and columns of a tile
    rows: int
    columns: int
    #: blocks of x and of the weight in shared memory
    x_stages: int
    weight_stages: int
    #: how many tiles of rows are computed together, because they share a block of the weight
    group: int
    #: whether warps are specialised (specialised.py) or all do the same (kernel.py)
    specialised: bool = True
    #: whether every program has one tile only
    one_tile: bool = False

    def tiles(self, tokens: int, columns: int) -> int:
        """Return how many tiles a product of so many tokens and columns has."""
        return -(-tokens // self.rows) * (columns // self.columns)

    def programs(self, tokens: int, columns: int, available: int) -> int:
        """Return how many programs compute the tiles, with so many multiprocessors available."""
        tiles = self.tiles(tokens, columns)
        return tiles if self.one_tile else min(available, tiles)


PLAIN = Form(128, 256, 3, 3, group=8, specialised=False)
ONE_TILE = Form(64, 128, 9, 9, group=8, one_tile=True)
MANY_TILES = Form(128, 256, 4, 3, group=16)


def pick_form(x: Tensor, weight: Tensor, call: Call) -> Form:
    """Return the form for x [T, K] and weight [N, K]."""
    if not _has_gluon() or interpreting() or call.spec.head_dim not in SPECIALISED_HEAD_DIMS:
        return PLAIN
    # specialised.py computes cos and sin while it multiplies four blocks, and stores in a cache
    # through 16 bits of x's dtype
    cache = call.cache
    if x.shape[1] < 4 * DEPTH or not (cache is None or cache.quantised or cache.k.dtype == x.dtype):
        return PLAIN
    return (
        ONE_TILE if ONE_TILE.tiles(len(x), len(weight)) <= multiprocessors(x.device) else MANY_TILES
    )


def is_faster(form: Form, tokens: int, columns: int, device: torch.device) -> bool:
    """Return whether one launch is faster than the library's product and a second launch, from
    sweeps on an H200.
    """
    if not form.specialised:
        return 2048 <= tokens <= 8192
    if form.one_tile:
        return tokens > form.rows // 2  # fewer leave most rows of a tile empty
    # every program computes its tiles one after the other, so the last tiles should occupy nearly
    # all multiprocessors
    tiles, available = form.tiles(tokens, columns), multiprocessors(device)
    return tiles >= 0.95 * available * -(-tiles // available)


def why_not(x: Tensor, weight: Tensor, bias: Tensor | None, call: Call) -> str | None:
    """Return why the kernel cannot take x [T, K], weight and bias for `call`, or None if it can."""
    spec, heads, columns = (
        call.spec,
        (call.q.shape[1], call.k.shape[1]),
        pick_form(x, weight, call).columns,
    )
    if not _has_tensor_copies(x.device) and not interpreting():
        return "the kernel needs Triton 3.4 and a Hopper GPU, whose copy engine reads the weight"
    if x.element_size() != 2 and not interpreting():
        return f"the kernel takes float16 and bfloat16, not {x.dtype}"
    if (
        isinstance(call.norm, LatentNorm)
        or spec.layout != spec.output_layout
        or 2 * spec.pairs != spec.head_dim
    ):
        return "the kernel rotates whole heads and keeps the layout"
    if (
        spec.head_dim < 16
        or columns % spec.head_dim
        or any(count * spec.head_dim % columns for count in heads)
    ):
        return f"the heads of q and of k must each have a multiple of {columns} dims"
    if any(
        t.stride(-1) != 1 or t.stride(0) * t.element_size() % 16 or t.data_ptr() % 16
        for t in (x, weight)
    ):
        return "x and weight need rows of 16-byte multiples"
    if not weight.is_contiguous() or (bias is not None and not bias.is_contiguous()):
        return "weight and bias must be contiguous"
    return None


@cached("GPUs with tensor copies", entries=64)
def _has_tensor_copies(device: torch.device) -> bool:
    """Return whether the GPU and Triton have tensor descriptors, which copy whole tiles: Hopper and
    Triton 3.4.

    Newer GPUs have them too, but the tiles were chosen and measured on Hopper.
    """
    if device.type != "cuda" or torch.version.hip is not None or not TRITON_INSTALLED:
        return False
    import triton

    return (
        hasattr(triton.language, "make_tensor_descriptor")
        and torch.cuda.get_device_capability(device)[0] == 9
    )


@cached("whether Gluon is the tested one", entries=1)
def _has_gluon() -> bool:
    """Return whether Triton is 3.6: its language Gluon is experimental, and specialised.py was run
    with that version alone.
    """
    if not TRITON_INSTALLED:
        return False
    import triton

    return triton.__version__.startswith("3.6.")
