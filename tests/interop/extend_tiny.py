"""A tiny unscaled model of nearly every text family of the installed transformers, and the angles
that its forward uses.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ropewalk.config.families import family_of

TRAINED = 64
#: keys that every config accepts
SIZES = {
    "vocab_size": 61,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "max_position_embeddings": TRAINED,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
#: keys that are set only where the class has them as integers
MORE = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "moe_k": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "moe_num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "shared_expert_intermediate_size": 16,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "kv_channels": 16,
    "mamba_n_heads": 4,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_d_head": 32,
    "mamba_expand": 2,
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "sliding_window": 16,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 61,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 4,
    "embedding_size": 64,
    "intermediate_size_mlp": 32,
    "head_dim": 16,
    "global_head_dim": 16,
}
#: model_type -> keys that the rules above do not find
OWN: dict[str, dict[str, Any]] = {
    "esmc": {"num_key_value_heads": 4},
    "falcon_h1": {"mamba_d_ssm": 128},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "position_embedding_type": "rope"},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "mimo_v2_flash": {"head_dim": 24},
    "ministral": {"head_dim": 16},
    "mixtral": {"head_dim": 16},
    "phi3": {"original_max_position_embeddings": TRAINED},
    "zaya": {"num_experts_per_tok": 1},
}
#: three sections that sum to the pairs of a head
SECTIONS = {8: [4, 2, 2], 4: [2, 1, 1]}


def families() -> tuple[str, ...]:
    """Return the model types whose defaults have a rope for text, and that an auto class builds;
    slow, as all are imported.
    """
    built = {*AutoModelForCausalLM._model_mapping, *AutoModel._model_mapping}
    found = []
    for name in CONFIG_MAPPING:
        try:
            rope = getattr(CONFIG_MAPPING[name](), "rope_parameters", None)
        except Exception:  # some classes refuse their own defaults
            continue
        if CONFIG_MAPPING[name] in built and rope and rope.get("rope_type") != "axial":
            found.append(name)
    return tuple(found)


def unscaled(rope: dict[str, Any]) -> dict[str, Any]:
    """Return a rope without its scaling; of each layer type, if it is nested."""
    nested = {key: unscaled(value) for key, value in rope.items() if isinstance(value, dict)}
    if nested or not rope:
        return nested
    kept = {
        key: rope[key]
        for key in ("partial_rotary_factor", "llama_4_scaling_beta", "mrope_section")
        if key in rope
    }
    trained = (
        {"original_max_position_embeddings": TRAINED} if "llama_4_scaling_beta" in rope else {}
    )
    return {**kept, **trained, "rope_type": "default", "rope_theta": rope.get("rope_theta", 1e4)}


def tiny(family: str, **changed: Any) -> PreTrainedModel:
    """Return a new seeded model with random weights; raises an error if the rules above give no
    consistent config.
    """
    return copy.deepcopy(_built(family)) if not changed else _build(family, **changed)


@cache
def _built(family: str) -> PreTrainedModel:
    return _build(family)


def _build(family: str, **changed: Any) -> PreTrainedModel:
    """Build the tiny unscaled model of a family, with `changed` config keys."""
    kind = CONFIG_MAPPING[family]
    defaults = kind().to_dict()
    keys = {**SIZES, **{key: size for key, size in MORE.items() if type(defaults.get(key)) is int}}
    if isinstance(defaults.get("intermediate_size"), list):
        keys["intermediate_size"] = [32, 32]
    if "kv_lora_rank" in defaults:
        keys["num_key_value_heads"] = 4
        keys.pop("head_dim", None)
    if defaults.get("layer_types"):
        types = [*dict.fromkeys(defaults["layer_types"])]
        keys |= {
            "num_hidden_layers": max(2, len(types)),
            "layer_types": (2 * types)[: max(2, len(types))],
        }
    keys["rope_parameters"] = rope = unscaled(defaults["rope_parameters"])
    if "mrope_section" in rope or family_of(family).sections:
        keys |= {"head_dim": 32} if rope.get("partial_rotary_factor") == 0.25 else {}
        rope["mrope_section"] = SECTIONS[
            int(keys.get("head_dim", 16) * rope.get("partial_rotary_factor", 1)) // 2
        ]
    config = kind(**{**keys, **OWN.get(family, {}), **changed})
    maker = AutoModelForCausalLM if kind in AutoModelForCausalLM._model_mapping else AutoModel
    with torch.device("meta"):
        if sum(weight.numel() for weight in maker.from_config(config).parameters()) > 3_000_000:
            raise MemoryError(family)
    torch.manual_seed(0)
    return maker.from_config(config).eval()


def has_frequencies(module: nn.Module) -> bool:
    return any(name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False))


@torch.no_grad()
def angles_in_forward(
    model: nn.Module, last: int
) -> dict[tuple[str, str | None], tuple[Tensor, float]]:
    """Return {(module, layer type): (sorted radians of the pairs at position 1, magnitude)} of a
    forward's rotary modules.

    `last` is the position of the last token, which sets the length.
    """
    found = {}

    def record(module, arguments, named, output):
        """Store the angles and the magnitude of a rotary module's output."""
        layer_type = named.get("layer_type", arguments[2] if len(arguments) > 2 else None)
        cos, sin = (output.real, output.imag) if isinstance(output, Tensor) else output
        cos, sin = (table.double().flatten(0, -3)[0, 1] for table in (cos, sin))
        pairs = getattr(module, f"{layer_type}_inv_freq" if layer_type else "inv_freq").numel()
        angles = torch.atan2(sin, cos).sort().values
        found[names[module], layer_type] = (
            angles[:: angles.numel() // pairs],
            torch.hypot(cos, sin).max().item(),
        )

    names = {module: name for name, module in model.named_modules() if has_frequencies(module)}
    handles = [module.register_forward_hook(record, with_kwargs=True) for module in names]
    try:
        positions = torch.tensor([[0, 1, 2, 3, last]])
        model(input_ids=positions.clamp(max=4) + 3, position_ids=positions, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return found


def theta_of(angles: Tensor) -> float:
    """Return the base of an unscaled ladder, from its slowest pair: that pair is theta^(-(d - 2) /
    d).
    """
    dim = 2 * angles.numel()
    return angles[0].item() ** (-dim / (dim - 2))
