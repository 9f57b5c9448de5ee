"""ropewalk: rotary position embedding, exact at any position."""

# imported at once, not lazily: this registers the ops, without which torch cannot load an exported
# program
from ropewalk import axes, frequencies, positions
from ropewalk.attention import Attention, KVCache, LatentAttention, LinearAttention
from ropewalk.caches import clear_caches
from ropewalk.encodings import ENCODINGS
from ropewalk.errors import RopeError
from ropewalk.frequencies import SCALINGS
from ropewalk.interop.checkpoint import convert_checkpoint
from ropewalk.interop.config import explain, from_hf, to_hf
from ropewalk.interop.engines import audit
from ropewalk.interop.extend import extend
from ropewalk.interop.fit import fit
from ropewalk.interop.gguf import from_gguf, to_gguf_metadata
from ropewalk.interop.patch import patch, patched, unpatch
from ropewalk.kernels import BACKENDS
from ropewalk.layout import convert_layout
from ropewalk.models import Decoder, DecoderConfig, RoFormer, RoFormerConfig, migrate
from ropewalk.models.checkpoints import load, save
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
    "LatentAttention",
    "LinearAttention",
    "RoFormer",
    "RoFormerConfig",
    "Rope",
    "RopeError",
    "RopeSpec",
    "apply_rotary_pos_emb",
    "audit",
    "axes",
    "clear_caches",
    "convert_checkpoint",
    "convert_layout",
    "explain",
    "extend",
    "fit",
    "frequencies",
    "from_gguf",
    "from_hf",
    "load",
    "migrate",
    "patch",
    "patched",
    "positions",
    "rotate_half",
    "save",
    "to_gguf_metadata",
    "to_hf",
    "unpatch",
]
