"""Configs by name: models of known sizes, and small ones for experiments."""

from __future__ import annotations

from torch import nn

from ropewalk.errors import choice
from ropewalk.models.decoder import Decoder
from ropewalk.models.decoder_config import DecoderConfig
from ropewalk.models.roformer import RoFormer
from ropewalk.models.roformer_config import RoFormerConfig
from ropewalk.spec import RopeSpec

_MINIMIND = DecoderConfig(
    vocab_size=6400,
    hidden_size=768,
    intermediate_size=2432,
    num_layers=8,
    num_heads=8,
    num_kv_heads=4,
    encoding=RopeSpec(head_dim=96, theta=1e6),
    qk_norm=True,
    length=32_768,
)

#: configs by name; `build` creates the model
PRESETS: dict[str, DecoderConfig | RoFormerConfig] = {
    "tiny": DecoderConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=176,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        length=128,
    ),
    "tiny-moe": DecoderConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        length=128,
        qk_norm=True,
        num_experts=4,
        experts_per_token=2,
        router_aux_coef=1e-3,
    ),
    "llama-100m": DecoderConfig(
        vocab_size=32_000,
        hidden_size=768,
        intermediate_size=2048,
        num_layers=12,
        num_heads=12,
        num_kv_heads=4,
        length=2048,
    ),
    "minimind-3": _MINIMIND,
    "minimind-3-moe": _MINIMIND.with_(num_experts=4, experts_per_token=1, router_aux_coef=5e-4),
    "roformer-small": RoFormerConfig(
        vocab_size=50_000,
        hidden_size=384,
        intermediate_size=1536,
        num_layers=6,
        num_heads=6,
        head="masked_lm",
    ),
    "roformer-base": RoFormerConfig(head="masked_lm"),
}


def build(name: str) -> nn.Module:
    """Return a new model of a preset, with random weights."""
    config = PRESETS[choice("preset", name, PRESETS)]
    return Decoder(config) if isinstance(config, DecoderConfig) else RoFormer(config)
