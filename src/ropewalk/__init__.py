"""ropewalk: rotary position embedding, exact at any position."""

from ropewalk import axes, frequencies, positions
from ropewalk.errors import RopeError
from ropewalk.frequencies import SCALINGS
from ropewalk.kernels import BACKENDS
from ropewalk.rope import Rope
from ropewalk.rotation import apply_rotary_pos_emb, rotate_half
from ropewalk.spec import RopeSpec

__version__ = "0.1.0"
__all__ = [
    "BACKENDS",
    "SCALINGS",
    "Rope",
    "RopeError",
    "RopeSpec",
    "apply_rotary_pos_emb",
    "axes",
    "frequencies",
    "positions",
    "rotate_half",
]
