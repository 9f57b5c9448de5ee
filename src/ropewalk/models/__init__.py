"""Models with any encoding: RoFormer with its heads, and a decoder as in Llama and Qwen.

`checkpoints` loads and saves Hugging Face folders, `migrate` gives a trained model another
encoding, `presets` has configs by name.
"""

from ropewalk.models.checkpoints import load, save
from ropewalk.models.decoder import Decoder
from ropewalk.models.decoder_config import DecoderConfig
from ropewalk.models.migrate import FREEZES, Migration, migrate
from ropewalk.models.roformer import RoFormer
from ropewalk.models.roformer_config import RoFormerConfig
from ropewalk.models.roformer_heads import HEADS

__all__ = [
    "FREEZES",
    "HEADS",
    "Decoder",
    "DecoderConfig",
    "Migration",
    "RoFormer",
    "RoFormerConfig",
    "load",
    "migrate",
    "save",
]
