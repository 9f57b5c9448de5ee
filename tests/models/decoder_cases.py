"""Decoders of transformers with tiny random configs, one for each option that a family can have."""

import torch
import transformers

SIZES = {
    "vocab_size": 41,
    "hidden_size": 24,
    "intermediate_size": 38,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
# the experts of transformers need rows of a multiple of 16 bytes
EXPERTS = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "norm_topk_prob": True,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
#: name -> (family, options)
CASES = {
    "llama": ("Llama", {"rms_norm_eps": 1e-5}),
    "llama, biases, tied": (
        "Llama",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama, wide heads, llama3": ("Llama", {"head_dim": 10, "rope_parameters": LLAMA3}),
    "llama, one kv head, yarn": (
        "Llama",
        {"num_key_value_heads": 1, "rope_parameters": YARN, "hidden_act": "gelu"},
    ),
    "mistral, window": ("Mistral", {"sliding_window": 3, "head_dim": 8}),
    "mistral, no window": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2, late windows": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 10, "rms_norm_eps": 1e-4}),
    "minimind": (
        "Qwen3",
        {
            "head_dim": 4,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
    ),
    "qwen3, biases, windows": (
        "Qwen3",
        {
            "head_dim": 6,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 3,
            "max_window_layers": 2,
        },
    ),
    "qwen3 moe": ("Qwen3Moe", {"head_dim": 6, **EXPERTS}),
    "qwen3 moe, raw weights, one dense layer": (
        "Qwen3Moe",
        {
            "head_dim": 8,
            **EXPERTS,
            "norm_topk_prob": False,
            "mlp_only_layers": [1],
            "router_aux_loss_coef": 0.1,
        },
    ),
    "minimind moe": (
        "Qwen3Moe",
        {"head_dim": 4, **EXPERTS, "num_experts_per_tok": 1, "tie_word_embeddings": True},
    ),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0, 1]}),
    "smollm3, windows": (
        "SmolLM3",
        {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 3},
    ),
    "ministral3": (
        "Ministral3",
        {
            "head_dim": 8,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "llama_4_scaling_beta": 0.4,
                "original_max_position_embeddings": 3,
            },
        },
    ),
}


def theirs(name: str) -> torch.nn.Module:
    """Return a transformers model with weights large enough for every part to matter."""
    family, options = CASES[name]
    torch.manual_seed(list(CASES).index(name))
    config = getattr(transformers, f"{family}Config")(**(SIZES | options))
    model = (
        getattr(transformers, f"{family}ForCausalLM")
        ._from_config(config, attn_implementation="sdpa")
        .eval()
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.25)
            if parameter.ndim == 1:
                parameter.add_(1.0)
    return model
