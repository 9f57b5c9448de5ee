"""Tiny transformers models of every kind of attention weight that a conversion meets, and the files
they save.
"""

from __future__ import annotations

import torch
from installed import V5, config_of
from transformers import AutoModelForCausalLM

SMALL = {
    "vocab_size": 31,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LATENT = {
    "q_lora_rank": 10,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 10,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 2,
}
#: name -> (model_type, what differs from SMALL, dimensions of a head that are rotated)
MODELS = {
    "llama": ("llama", {}, 12),
    "llama-wide-head": ("llama", {"head_dim": 10, "num_key_value_heads": 1}, 10),
    "qwen2-bias": ("qwen2", {}, 12),
    "qwen3-norm": ("qwen3", {"head_dim": 14}, 14),
    "olmo2-wide-norm": ("olmo2", {}, 12),
    "gpt-neox-grouped-partial": ("gpt_neox", {"rotary_pct": 0.5}, 6),
    "phi3-concatenated": ("phi3", {}, 12),
    # older releases cannot begin a StableLM with norms
    "stablelm-partial": (
        "stablelm",
        {"partial_rotary_factor": 0.5, "qk_layernorm": V5, "use_qkv_bias": True},
        6,
    ),
    "falcon-grouped": (
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
        12,
    ),
    "falcon-one-kv": ("falcon", {"new_decoder_architecture": False, "multi_query": True}, 12),
}


def build(model_type: str, **changed):
    """Return a seeded tiny model whose norms are not all ones, in evaluation mode."""
    torch.manual_seed(1)
    config = config_of(model_type, **{**SMALL, **changed})
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                weight.normal_(1.0, 0.5)
    return model


def logits(model, length: int = 9, start: int = 0):
    """Return the logits of one fixed sequence whose first position is `start`."""
    tokens = torch.arange(length)[None] * 7 % 31
    with torch.no_grad():
        return model(tokens, position_ids=start + torch.arange(length)[None]).logits
