"""Tiny models of many families with random weights, and a run of one in float64 from end to end."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
from hf_families import DEEPSEEK_YARN, LLAMA3, LONGROPE, MLA, SECTIONS, YARN, scaled
from installed import V5, config_of, skip_old_cache
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaAttention

VOCAB = 61
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {
    "num_experts": 3,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
}
DEEPSEEK = {
    **MLA,
    "num_key_value_heads": 3,
    "n_routed_experts": 4,
    "moe_intermediate_size": 20,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
TWO_KINDS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}

#: family -> (model_type, keys of its config beside SIZES)
CAUSAL: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-3.1": ("llama", scaled(LLAMA3, max_position_embeddings=4096)),
    "llama yarn": ("llama", scaled(YARN)),
    "llama-4": (
        "llama4_text",
        {**EXPERTS, "head_dim": 16, "no_rope_layers": [1, 0], "intermediate_size_mlp": 40},
    ),
    "mistral": ("mistral", {"sliding_window": 6, "head_dim": 10}),
    "mixtral": ("mixtral", EXPERTS),
    "qwen2": ("qwen2", {}),
    "qwen2-moe": ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 20}),
    "qwen3": ("qwen3", {"head_dim": 14}),
    "qwen3-moe": ("qwen3_moe", {**EXPERTS, "head_dim": 14}),
    "gemma": ("gemma", {"head_dim": 10}),
    "gemma-2": ("gemma2", {"head_dim": 10, "sliding_window": 6}),
    "gemma-3": (
        "gemma3_text",
        {"head_dim": 10, **TWO_KINDS, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
    "phi": ("phi", {"num_key_value_heads": 3}),
    "phi-3": (
        "phi3",
        {
            "rope_scaling": {
                "type": "longrope",
                "short_factor": LONGROPE["short_factor"],
                "long_factor": LONGROPE["long_factor"],
            },
            "original_max_position_embeddings": 2048,
            "partial_rotary_factor": 0.5,
        },
    ),
    "gpt-neox": ("gpt_neox", {"rotary_pct": 0.5}),
    "gpt-j": (
        "gptj",
        {"n_embd": 48, "n_head": 3, "n_layer": 2, "rotary_dim": 8, "n_positions": 4096},
    ),
    "codegen": (
        "codegen",
        {
            "n_embd": 64,
            "n_head": 4,
            "n_layer": 2,
            "rotary_dim": 8,
            "n_positions": 4096,
            "num_attention_heads": 4,
        },
    ),
    "stablelm": ("stablelm", {}),
    "falcon": ("falcon", {"alibi": False}),
    "glm": ("glm", {"head_dim": 16}),
    "glm-4": ("glm4", {"head_dim": 16}),
    "cohere": ("cohere", {}),
    "cohere-2": ("cohere2", {**TWO_KINDS}),
    "olmo": ("olmo", {}),
    "olmo-2": ("olmo2", {}),
    "deepseek-v2": ("deepseek_v2", {**DEEPSEEK, **scaled(DEEPSEEK_YARN), "topk_method": "greedy"}),
    "deepseek-v3": ("deepseek_v3", {**DEEPSEEK, **scaled(DEEPSEEK_YARN)}),
    "gpt-oss": (
        "gpt_oss",
        {
            **EXPERTS,
            **TWO_KINDS,
            "head_dim": 16,
            **scaled({**YARN, "factor": 32.0, "truncate": False}),
        },
    ),
    "granite": ("granite", {}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0]}),
    "starcoder2": ("starcoder2", {}),
    "ernie-4.5": ("ernie4_5", {"head_dim": 16}),
    "exaone-4": ("exaone4", TWO_KINDS),
    "qwen2-vl text": ("qwen2_vl_text", {"rope_parameters": SECTIONS}),
}
#: encoders: they see the whole sequence and generate nothing
MASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "modernbert": (
        "modernbert",
        {"layer_types": ["full_attention", "sliding_attention"], "local_attention": 6},
    ),
    "roformer": ("roformer", {"embedding_size": 48, "rotary_value": False}),
    "roformer value": ("roformer", {"embedding_size": 48, "rotary_value": True}),
}
FAMILIES = {**CAUSAL, **MASKED}


@cache
def model_of(family: str) -> PreTrainedModel:
    """Return the tiny model of a family in float32; it is shared, so tests leave it unchanged."""
    model_type, keys = FAMILIES[family]
    if family == "llama-4":
        skip_old_cache(family)
    torch.manual_seed(1)
    config = config_of(model_type, **{**SIZES, **keys})
    maker = AutoModelForMaskedLM if family in MASKED else AutoModelForCausalLM
    if type(config) not in maker._model_mapping:
        maker = AutoModel
    # experts one by one: their grouped product, which came with v5, has no float64
    experts = {"experts_implementation": "eager"} if V5 else {}
    model = maker.from_config(config, attn_implementation="eager", **experts).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embed_positions" not in name:
                # far from the tiny default: a wrong rotation must change the outputs
                parameter.normal_(0, 0.3)
    return model


class Squaring(LlamaAttention):
    """An attention that calls a function whose name is that of a rotation, but which is none."""

    def forward(self, hidden_states, position_embeddings, **kwargs):
        return apply_rotary_squares(hidden_states, *position_embeddings), None


def apply_rotary_squares(x, cos, sin):
    return x * cos[..., :1] + x.square() * sin[..., :1]


def squaring() -> PreTrainedModel:
    """Return a Llama that patch does not support."""
    model = copy.deepcopy(model_of("llama"))
    model.model.layers[1].self_attn.__class__ = Squaring
    return model


def tokens(batch: int = 2, length: int = 11) -> Tensor:
    return torch.randint(3, VOCAB, (batch, length), generator=torch.Generator().manual_seed(7))


def outputs(model: nn.Module, ids: Tensor | None = None, **given: Any) -> Tensor:
    """Return the logits, or the last hidden states."""
    found = model(tokens() if ids is None else ids, **given)
    return found[0] if not hasattr(found, "logits") else found.logits


class InFloat64(TorchFunctionMode):
    """Every step that a model's code asks for in float32 is done in float64."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        wide = lambda value: torch.float64 if value is torch.float32 else value
        args, kwargs = (
            [wide(value) for value in args],
            {name: wide(value) for name, value in (kwargs or {}).items()},
        )
        return (
            torch.Tensor.double(*args)
            if function is torch.Tensor.float
            else function(*args, **kwargs)
        )
