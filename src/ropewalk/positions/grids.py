"""Coordinates of the patches of images and videos: integer grids and real centres."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ropewalk.errors import RopeError, choice, integer, number
from ropewalk.positions.text import MOST, Device


def grid(
    *sizes: int, merge: int = 1, start: int | Sequence[int] = 0, device: Device = None
) -> Int[Tensor, "A 1 N"]:
    """Return the coordinates of every cell in raster order, the last axis fastest: `grid(h, w)` or
    `grid(t, h, w)`.

    merge  m > 1 orders the last two axes in m x m blocks, as Qwen-VL's image encoder orders its
           patches
    start  the coordinate of the first cell, one for all axes or one each
    """
    if not sizes:
        raise RopeError("sizes", "must name at least one axis, such as grid(height, width)", sizes)
    for axis, size in enumerate(sizes):
        integer(f"sizes[{axis}]", size, low=1, high=MOST)
    if math.prod(sizes) > MOST:
        raise RopeError("sizes", f"must multiply to at most {MOST} cells", list(sizes))
    starts = list(start) if isinstance(start, list | tuple) else [start] * len(sizes)
    if len(starts) != len(sizes):
        raise RopeError(
            "start", f"must be one integer or one for each of the {len(sizes)} axes", start
        )
    # the upper bound is 2^62 by default
    starts = [integer("start", first, low=-(2**62)) for first in starts]
    lines = [
        torch.arange(first, first + size, device=device)
        for first, size in zip(starts, sizes, strict=True)
    ]
    cells = torch.stack(torch.meshgrid(*lines, indexing="ij"))  # [A, *sizes]
    if integer("merge", merge, low=1, high=MOST) > 1:
        if len(sizes) < 2 or sizes[-1] % merge or sizes[-2] % merge:
            rule = f"must divide the last two of at least two sizes, {list(sizes)}"
            raise RopeError("merge", rule, merge)
        # [.., height, merge, width, merge] -> [.., height, width, merge, merge]: one block of
        # patches after another
        height, width = sizes[-2] // merge, sizes[-1] // merge
        cells = cells.unflatten(-1, (width, merge)).unflatten(-3, (height, merge)).transpose(-3, -2)
    return cells.reshape(len(sizes), 1, -1)


def patch_centres(
    height: int,
    width: int,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float64,
    device: Device = None,
    *,
    normalise: str = "separate",
) -> Float[Tensor, "2 1 N"]:
    """Return (y, x) of the centre of each patch of an image in raster order, times `scale`; by
    default each side of the image runs from -1 to 1.

    These positions are for `axes.normalised`. With `scale=2 * math.pi`, DINOv3's rule, a pair with
    frequency 1 makes one turn over half the image.

    normalise  "separate": each side runs from -1 to 1; "max": the longer side does, "min": the
               shorter side does, and the other side begins at -1 and has the same unit (DINOv3's
               `normalize_coords`)
    """
    number("scale", scale)
    _check_dtype("dtype", dtype)
    sides = [
        integer(name, size, low=1, high=MOST)
        for name, size in (("height", height), ("width", width))
    ]
    # for each axis, how many patches the length from -1 to 1 has
    units = {"separate": sides, "max": [max(sides)] * 2, "min": [min(sides)] * 2}
    unit_of_axis = units[choice("normalise", normalise, units)]
    index_of_axis = [torch.arange(side, dtype=torch.float64, device=device) for side in sides]
    lines = [
        (2 * index + 1) / unit - 1 for index, unit in zip(index_of_axis, unit_of_axis, strict=True)
    ]
    centres = torch.stack(torch.meshgrid(*lines, indexing="ij")).reshape(2, 1, -1)
    return (centres * scale).to(dtype)


def augmented(
    centres: Float[Tensor, "2 B N"],
    *,
    shift: float | None = None,
    jitter: float | None = None,
    rescale: float | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "2 B N"]:
    """Return patch centres moved and stretched at random, as DINOv3 does in training; `shift`,
    `jitter` and `rescale` do nothing if None.

    Pass centres with scale 1, and multiply by 2 pi afterwards: `shift` is in units of half an image
    side.

    shift    adds to each axis a number of its own from -shift to shift
    jitter   multiplies each axis by a number of its own from 1 / jitter to jitter, uniform in its
             logarithm
    rescale  multiplies both axes by the same number from 1 / rescale to rescale, uniform in its
             logarithm
    """
    _check_dtype("centres", getattr(centres, "dtype", type(centres)))

    def drawn(rows: int, most: float) -> Tensor:
        """Return random numbers from -most to most, [rows, 1, 1]; `rows` 2: one for each axis, 1: one
        for both.
        """
        random = torch.rand(
            rows, 1, 1, dtype=centres.dtype, device=centres.device, generator=generator
        )
        return (2 * random - 1) * most

    if shift is not None:
        centres = centres + drawn(2, number("shift", shift, low=0))
    if jitter is not None:
        centres = centres * drawn(2, math.log(number("jitter", jitter, low=1))).exp()
    if rescale is not None:
        centres = centres * drawn(1, math.log(number("rescale", rescale, low=1))).exp()
    return centres


def stretched_grid(
    height: int,
    width: int,
    pretrained: int,
    dtype: torch.dtype = torch.float64,
    device: Device = None,
) -> Float[Tensor, "2 1 N"]:
    """Return (row, column) of every patch, stretched so that each side is `pretrained` patches
    long, as in training: EVA-02's rule for other sizes.

    Row r of n is at r / n * pretrained. These positions are for `axes.normalised`.
    """
    integer("pretrained", pretrained, low=1, high=MOST)
    _check_dtype("dtype", dtype)
    sides = [
        integer(name, size, low=1, high=MOST)
        for name, size in (("height", height), ("width", width))
    ]
    lines = [torch.arange(n, dtype=torch.float64, device=device) / n * pretrained for n in sides]
    return torch.stack(torch.meshgrid(*lines, indexing="ij")).reshape(2, 1, -1).to(dtype)


def _check_dtype(name: str, dtype: object) -> None:
    """Raise an error about the argument `name` unless `dtype` is one in which Rope takes real
    positions.
    """
    if dtype not in (torch.float32, torch.float64):
        raise RopeError(name, "must be float32 or float64, to hold real coordinates", dtype)
