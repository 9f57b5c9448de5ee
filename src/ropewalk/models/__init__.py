"""Models whose positions come from one encoding: RoFormer and its heads, and a decoder as Llama and Qwen are built."""

from ropewalk.models.decoder import Decoder
from ropewalk.models.decoder_config import DecoderConfig
from ropewalk.models.migrate import FREEZES, Migration, migrate
from ropewalk.models.roformer import RoFormer
from ropewalk.models.roformer_config import RoFormerConfig
from ropewalk.models.roformer_heads import HEADS

__all__ = ["FREEZES", "HEADS", "Decoder", "DecoderConfig", "Migration", "RoFormer", "RoFormerConfig", "migrate"]
