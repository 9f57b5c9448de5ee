"""ropewalk: rotary position embedding, exact at any position."""

from ropewalk import axes, frequencies, positions
from ropewalk.attention import Attention, KVCache, LinearAttention
from ropewalk.encodings import ENCODINGS
from ropewalk.errors import RopeError
from ropewalk.frequencies import SCALINGS
from ropewalk.interop.hf import explain, from_hf, to_hf
from ropewalk.kernels import BACKENDS
from ropewalk.layout import convert_layout
from ropewalk.rope import Rope
from ropewalk.rotation import apply_rotary_pos_emb, rotate_half
from ropewalk.spec import RopeSpec

__version__ = "0.1.0"
__all__ = [
    "BACKENDS",
    "ENCODINGS",
    "SCALINGS",
    "Attention",
    "KVCache",
    "LinearAttention",
    "Rope",
    "RopeError",
    "RopeSpec",
    "apply_rotary_pos_emb",
    "axes",
    "convert_layout",
    "explain",
    "frequencies",
    "from_hf",
    "positions",
    "rotate_half",
    "to_hf",
]
