"""Rope settings of well-known models: the relevant config keys of their published config.json files."""

from __future__ import annotations

from typing import Any

from ropewalk.errors import choice

# the factors of Phi-3, rounded to two decimals
_PHI3_SHORT = [
    1.05, 1.05, 1.05, 1.1, 1.1, 1.1, 1.25, 1.25, 1.4, 1.45, 1.55, 1.85, 1.9, *[2.0] * 19, 2.1, 2.1, 2.2,
    *[2.35] * 4, 2.4, 2.4, 2.65, 2.7, 2.9, 2.95, 3.05, 3.05, 3.05,
]  # fmt: skip
_PHI3_LONG = [
    1.03, 1.05, 1.05, 1.08, 1.23, 1.23, 1.3, 1.45, 1.6, 1.65, 1.9, 2.86, 3.69, 5.42, 5.49, 5.49, 9.09, 11.58, 15.66, 15.77,
    15.79, 18.36, 21.99, 23.08, 30.01, 32.35, 32.59, 35.56, 39.95, 53.84, 56.2, 57.95, 59.29, 59.77, 59.92, 61.19, 61.96,
    62.5, 63.37, 63.48, 63.48, 63.66, 63.85, 64.08, 64.76, 64.8, 64.81, 64.81,
]  # fmt: skip

#: model name -> the config keys that define its rope
EXAMPLES: dict[str, dict[str, Any]] = {
    "Llama-3.1-8B": {
        "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 131_072,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "SmolLM2-135M": {
        "model_type": "llama", "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3,
        "max_position_embeddings": 8192, "rope_theta": 100_000.0,
    },
    "Qwen3-8B": {
        "model_type": "qwen3", "head_dim": 128, "hidden_size": 4096, "num_attention_heads": 32,
        "max_position_embeddings": 40_960, "rope_theta": 1_000_000.0,
    },
    "Qwen2-VL-7B": {
        "model_type": "qwen2_vl", "hidden_size": 3584, "num_attention_heads": 28, "max_position_embeddings": 32_768,
        "rope_theta": 1_000_000.0, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    },
    "Gemma-3-27B": {
        "model_type": "gemma3_text", "head_dim": 128, "max_position_embeddings": 131_072, "sliding_window": 1024,
        "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "DeepSeek-V3": {
        "model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128, "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128, "max_position_embeddings": 163_840, "rope_theta": 10_000.0,
        "rope_scaling": {
            "type": "yarn", "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
        },
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss", "head_dim": 64, "max_position_embeddings": 131_072, "rope_theta": 150_000.0,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    "Phi-3-vision-128k": {
        "model_type": "phi3", "hidden_size": 3072, "num_attention_heads": 32, "max_position_embeddings": 131_072,
        "original_max_position_embeddings": 4096, "rope_theta": 10_000.0,
        "rope_scaling": {"type": "longrope", "short_factor": _PHI3_SHORT, "long_factor": _PHI3_LONG},
    },
    "MiniMind-3": {
        "model_type": "qwen3", "head_dim": 96, "hidden_size": 768, "num_attention_heads": 8, "max_position_embeddings": 32_768,
        "rope_theta": 1_000_000.0,
    },
    "RoFormer-base": {
        "model_type": "roformer", "hidden_size": 768, "num_attention_heads": 12, "max_position_embeddings": 1536,
    },
}  # fmt: skip


def example(name: str) -> dict[str, Any]:
    """Return the config of a well-known model by its name, in capital or small letters."""
    original_name = {each.lower(): each for each in EXAMPLES}.get(name.lower(), name)
    return EXAMPLES[choice("example", original_name, EXAMPLES)]
