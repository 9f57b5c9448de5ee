"""ropewalk: rotary position embedding, exact at any position."""

# at once, not when first asked for: this registers the operators, without which torch cannot load an exported program
from ropewalk import axes, frequencies, positions
from ropewalk.attention import Attention, KVCache, LinearAttention
from ropewalk.encodings import ENCODINGS
from ropewalk.errors import RopeError
from ropewalk.frequencies import SCALINGS
from ropewalk.interop.checkpoint.convert import convert_checkpoint
from ropewalk.interop.config.hf import explain, from_hf, to_hf
from ropewalk.interop.engines.audit import audit
from ropewalk.interop.extend.model import extend
from ropewalk.interop.patch.model import patch, patched, unpatch
from ropewalk.kernels import BACKENDS
from ropewalk.layout import convert_layout
from ropewalk.models import Decoder, DecoderConfig, RoFormer, RoFormerConfig, migrate
from ropewalk.rope import Rope
from ropewalk.rotation import apply_rotary_pos_emb, rotate_half
from ropewalk.spec import RopeSpec

__version__ = "0.1.0"
__all__ = [
    "BACKENDS",
    "ENCODINGS",
    "SCALINGS",
    "Attention",
    "Decoder",
    "DecoderConfig",
    "KVCache",
    "LinearAttention",
    "RoFormer",
    "RoFormerConfig",
    "Rope",
    "RopeError",
    "RopeSpec",
    "apply_rotary_pos_emb",
    "audit",
    "axes",
    "convert_checkpoint",
    "convert_layout",
    "explain",
    "extend",
    "frequencies",
    "from_hf",
    "migrate",
    "patch",
    "patched",
    "positions",
    "rotate_half",
    "to_hf",
    "unpatch",
]
