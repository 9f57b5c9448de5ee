"""A small model with the rope of a config, which an engine builds in a moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropewalk.config import file as config_file

#: the sizes of a small model; a config keeps a size that is smaller
SIZES = {
    "vocab_size": 128,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "first_k_dense_replace": 1,
}
#: a small model with heads of 64 dimensions
HEADS: dict[str, Any] = {
    "hidden_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": 128,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_bias": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
#: model_type: architecture, and the keys that engines need beside HEADS, of well-known checkpoints
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "phi3": ("Phi3ForCausalLM", {"sliding_window": None}),
}
#: keys that a small model without weights does not need
LEFT_OUT = ("quantization_config", "auto_map", "torch_dtype", "dtype")
#: as many layers as a small model has, unless its layer types need more
LAYERS = 2


def small_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a small model with the rope, the head size and the layer types of
    `config`.
    """
    # each part that is the config of a model is made small; others, such as a rope, stay
    small: dict[str, Any] = {
        key: small_config(value) if isinstance(value, Mapping) and "model_type" in value else value
        for key, value in config.items()
    }
    if config_file.text_owner(config) is not config:  # the text model is one of the parts
        return small
    small = {key: value for key, value in small.items() if key not in LEFT_OUT}
    small |= {key: min(small[key], size) for key, size in SIZES.items() if small.get(key)}
    hidden, heads = small.get("hidden_size"), small.get("num_attention_heads")
    if hidden and heads:
        # two heads, each as large as those of the config; a single key head stays single
        small |= {"hidden_size": hidden // heads * 2, "num_attention_heads": 2}
        if small.get("num_key_value_heads"):
            small["num_key_value_heads"] = 2 if small["num_key_value_heads"] > 1 else 1
    types = small.get("layer_types")
    layers = LAYERS
    if isinstance(types, list) and types:
        # enough that each type has a layer
        layers = max(LAYERS, 1 + max(types.index(name) for name in set(types)))
        small["layer_types"] = types[:layers]
    if small.get("num_hidden_layers"):
        small["num_hidden_layers"] = min(small["num_hidden_layers"], layers)
    if isinstance(small.get("no_rope_layers"), list):
        small["no_rope_layers"] = small["no_rope_layers"][: small.get("num_hidden_layers")]
    # the small vocabulary may not have these tokens
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if key in small:
            small[key] = 0
    return small


def complete_config(checkpoint: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the config of a small model with the rope of a well-known checkpoint; None if its
    model_type is not in ARCHITECTURES.

    checkpoint  the config keys that define its rope, as in `ropewalk.config.examples`
    """
    if checkpoint["model_type"] not in ARCHITECTURES:
        return None
    architecture, keys = ARCHITECTURES[checkpoint["model_type"]]
    return small_config({**HEADS, **keys, **checkpoint, "architectures": [architecture]})
