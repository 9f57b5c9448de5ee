"""Positions in diffusion transformers: text and image or video tokens as each model numbers them.

HunyuanVideo and Wan number their latents as `grid(frames, height, width)` does and do not rotate
text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from ropewalk.errors import RopeError, integer
from ropewalk.positions.grids import grid
from ropewalk.positions.text import MOST, Device


def flux(height: int, width: int, text: int = 0, device: Device = None) -> Int[Tensor, "3 1 N"]:
    """Return Flux's positions: `text` tokens at (0, 0, 0), which does not rotate, then those of an
    image of height x width tokens at (0, row, column).
    """
    return torch.cat(
        [_text(text, (0, 0, 0), device), grid(1, height, width, device=device)], dim=-1
    )


def flux2(
    height: int,
    width: int,
    text: int = 0,
    references: Sequence[tuple[int, int]] = (),
    step: int = 10,
    device: Device = None,
) -> Int[Tensor, "4 1 N"]:
    """Return Flux-2's positions (time, row, column, token) of `text` text tokens, an image of
    height x width tokens and the reference images.

    Text token i is at (0, 0, 0, i), the image at (0, row, column, 0), then come the reference
    images, given by their (height, width), at times step, 2 step, ...
    """
    parts = [_text(text, (0, 0, 0, 1), device), grid(1, height, width, 1, device=device)]
    for i, reference in enumerate(references):
        rows, columns = _sizes("references", reference, ("height", "width"))
        parts.append(grid(1, rows, columns, 1, start=(step * (i + 1), 0, 0, 0), device=device))
    return torch.cat(parts, dim=-1)


def qwen_image(
    images: Sequence[tuple[int, int, int]], text: int = 0, device: Device = None
) -> tuple[Int[Tensor, "3 1 N"], Int[Tensor, "3 1 T"]]:
    """Return Qwen-Image's positions: those of the images, given by their (frames, height, width) in
    tokens, and those of the text after them.

    Rows and columns count from the centre, -ceil(n / 2) to floor(n / 2) - 1; frame f of image i is
    at time i + f. Text begins at half of the longest side, rounded down, on all axes.
    """
    if not isinstance(images, list | tuple) or not images:
        raise RopeError("images", "must be a list of (frames, height, width)", images)
    checked = [_sizes("images", image, ("frames", "height", "width")) for image in images]
    starts = [
        (i, height // 2 - height, width // 2 - width)
        for i, (_, height, width) in enumerate(checked)
    ]
    cells = [
        grid(*sizes, start=start, device=device)
        for sizes, start in zip(checked, starts, strict=True)
    ]
    text_start = max(max(height, width) // 2 for _, height, width in checked)
    return torch.cat(cells, dim=-1), text_start + _text(text, (1, 1, 1), device)


def _sizes(name: str, sizes: Sequence[int], axes: tuple[str, ...]) -> tuple[int, ...]:
    """Return the sizes of one image; raise an error unless there is one for each of `axes`. The
    error calls the argument `name`, and the axes by their names.
    """
    if not hasattr(sizes, "__len__") or len(sizes) != len(axes):
        raise RopeError(name, f"must be a list of ({', '.join(axes)})", sizes)
    return tuple(integer(name, size, low=1, high=MOST) for size in sizes)


def _text(tokens: int, steps: tuple[int, ...], device: Device) -> Int[Tensor, "A 1 T"]:
    """Return positions that begin at 0 and grow by steps[a] from token to token on axis a."""
    index = torch.arange(integer("text", tokens, low=0, high=MOST), device=device)
    return torch.stack([index * step for step in steps]).unsqueeze(1)
