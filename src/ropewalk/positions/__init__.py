"""Positions: functions that build the tensors that `Rope` takes: [S], [B, S], or [axes, B, S] for
images and video. Positions are integers, or for patches of images also real numbers.

Nothing is read back from a GPU: sizes are Python numbers, and whatever depends on tensor values
stays on the device.
"""

from ropewalk.positions.diffusion import flux, flux2, qwen_image
from ropewalk.positions.grids import augmented, grid, patch_centres, stretched_grid
from ropewalk.positions.multimodal import Image, Text, Video, decode_positions, multimodal
from ropewalk.positions.text import consecutive, left_padded, packed

__all__ = [
    "Image",
    "Text",
    "Video",
    "augmented",
    "consecutive",
    "decode_positions",
    "flux",
    "flux2",
    "grid",
    "left_padded",
    "multimodal",
    "packed",
    "patch_centres",
    "qwen_image",
    "stretched_grid",
]
