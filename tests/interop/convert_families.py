"""Tiny models of many transformers families, and their own code changed to take q and k in the
other pair layout.
"""

from __future__ import annotations

import importlib
import inspect
import re
import warnings
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from installed import HERE
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging

import ropewalk as rw

logging.set_verbosity_error()
logging.disable_progress_bar()

#: sizes for every config class that has a field of this name
SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 256,
    "head_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "shared_expert_intermediate_size": 16,
    "moe_num_experts": 4,
    "moe_k": 2,
    "num_shared_expert": 1,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 256,
    "rotary_dim": 8,
    "global_head_dim": 32,
    "sliding_window": 6,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "mamba_d_state": 8,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "lru_width": 64,
    "ffn_dim": 32,
    "intermediate_size_mlp": 40,
    "ffn_hidden_size": 64,
    "vocab_size_per_layer_input": 61,
    "hidden_size_per_layer_input": 8,
    "laurel_rank": 4,
    "num_kv_shared_layers": 0,
    "expert_ffn_hidden_size": 16,
    "zero_expert_num": 1,
    "moe_topk": 2,
    "num_layers": 2,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 4,
    "attention_chunk_size": 8,
}
LATENT = {"head_dim": 8, "num_key_value_heads": 4}
TWO_KINDS = {"layer_types": ["linear_attention", "full_attention"]}
EQUAL_ROWS = {"linear_num_key_heads": 4, "linear_num_value_heads": 4, "num_key_value_heads": 4}


def sections(*counts: int, fraction: float = 1.0) -> dict[str, Any]:
    rope = {
        "rope_type": "default",
        "rope_theta": 1e4,
        "mrope_section": list(counts),
        "partial_rotary_factor": fraction,
    }
    return {"rope_parameters": rope}


#: family -> (model_type, keys beside SIZES); a family is here because its attention differs from
#: Llama's
CONVERTED: dict[str, tuple[str, dict[str, Any]]] = {
    "linear layers as large as the others": ("olmo_hybrid", {**TWO_KINDS, **EQUAL_ROWS}),
    "fused linear layers": ("minimax", TWO_KINDS),
    "gated queries": ("qwen3_next", TWO_KINDS),
    "norms after the rotation": ("hunyuan_v1_dense", {}),
    "two attentions in a layer": ("longcat_flash", LATENT),
    "latent, no flag": ("deepseek_v2", LATENT),
    "layer types with two head sizes": ("gemma4_text", {}),
    "shared keys": ("gemma3n_text", {"num_hidden_layers": 4, "num_kv_shared_layers": 2}),
    "one fused matrix": ("gte", {}),
}  # fmt: skip
#: further families with the default keys, compared with --full and by sample without it
PLAIN = (
    "afmoe",
    "apertus",
    "arcee",
    "bitnet",
    "cohere",
    "cohere2",
    "cwm",
    "diffllama",
    "doge",
    "dots1",
    "ernie4_5",
    "ernie4_5_moe",
    "eurobert",
    "exaone4",
    "exaone_moe",
    "falcon",
    "flex_olmo",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt_neox",
    "gpt_neox_japanese",
    "gpt_oss",
    "gptj",
    "granite",
    "granitemoe",
    "granitemoeshared",
    "helium",
    "hunyuan_v1_moe",
    "hy_v3",
    "hyperclovax",
    "jais2",
    "laguna",
    "lfm2",
    "llama",
    "llama4_text",
    "mellum",
    "minimax_m2",
    "ministral",
    "ministral3",
    "mistral",
    "mixtral",
    "modernbert",
    "modernbert-decoder",
    "nemotron",
    "nomic_bert",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "openai_privacy_filter",
    "persimmon",
    "phi",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "solar_open",
    "stablelm",
    "starcoder2",
    "vaultgemma",
)
MORE: dict[str, dict[str, Any]] = {
    **{name: {} for name in PLAIN},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "bamba": {"attn_layer_indices": [1]},
    "falcon_h1": {"mamba_d_ssm": 128},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "smollm3": {"no_rope_layers": [1, 0]},
    "minicpm3": LATENT,
    "qwen3_5_text": {**TWO_KINDS, **sections(2, 1, 1, fraction=0.5)},
    "qwen2_vl_text": sections(4, 2, 2),
}
#: families that are refused, and what the error names
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "only norms under known names": (
        "molmo2_text",
        {},
        r"self_attn\.att_proj\.weight: must be a known part of attention",
    ),
    "keys that are the values": (
        "deepseek_v4",
        {"q_lora_rank": 16},
        r"layers\.0\.attn\..*: must be a known part of attention",
    ),
    "keys before a norm are the values": (
        "gemma4_text",
        {"attention_k_eq_v": True},
        ("attention_k_eq_v: must be false"),
    ),
    "an indexer that rotates too": (
        "deepseek_v32",
        LATENT,
        r"self_attn\.indexer\..*: must be a known part of attention",
    ),
    "experts of attention": ("jetmoe", {}, "must hold q and k projections under a known name"),
    "a fused matrix of unknown order": ("codegen", {}, "row order of qkv_proj is known"),
    "a matrix in a module": ("moshi", {}, "converting 'linear.weight' of k_proj is not supported"),
}


def tiny(model_type: str, keys: dict[str, Any]):
    """Return a model with random weights, none of them so small that a part does not matter."""
    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"{HERE} has no {model_type}")
    kind = CONFIG_MAPPING[model_type]
    names = {
        *inspect.signature(kind.__init__).parameters,
        *getattr(kind, "__dataclass_fields__", ()),
        *kind.attribute_map,
    }
    config = kind(**{**{name: value for name, value in SIZES.items() if name in names}, **keys})
    makers = (AutoModelForCausalLM, AutoModelForMaskedLM, AutoModel)
    maker = next(each for each in makers if type(config) in each._model_mapping)
    torch.manual_seed(0)
    model = maker.from_config(config, **run_options(config)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.2)
            elif "norm" in name or "bias" in name:
                parameter.normal_(float("norm" in name), 0.3)
    return model


def run_options(config) -> dict[str, str]:
    return {"experts_implementation": "eager"} if hasattr(config, "_experts_implementation") else {}


def outputs(model, length: int = 17) -> torch.Tensor:
    with torch.no_grad():
        found = model(torch.arange(length)[None] * 7 % 53 + 3)
    return found.logits if hasattr(found, "logits") else found[0]


def rotated_specs(config) -> list[rw.RopeSpec]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [spec for spec in rw.from_hf(config, per_layer=True).values() if spec is not None]


def places(rotary_dim: int, start: int, width: int, layout: str) -> torch.Tensor:
    """Return the new index of each dimension of a head after a conversion to `layout`, written from
    the definition.
    """
    where, pairs = list(range(width)), rotary_dim // 2
    for pair in range(pairs):
        halves, neighbours = (
            (start + pair, start + pair + pairs),
            (start + 2 * pair, start + 2 * pair + 1),
        )
        old, new = (halves, neighbours) if layout == "interleaved" else (neighbours, halves)
        for i in range(2):
            where[old[i]] = new[i]
    return torch.tensor(where)


@contextmanager
def taking_the_other_layout(model, specs: list[rw.RopeSpec], layout: str):
    """Context manager: the functions of the model's own code that rotate take and return q and k in
    `layout`.
    """
    code = importlib.import_module(type(model).__module__)
    originals = {
        name: each
        for name, each in vars(code).items()
        if re.match(r"apply_\w*rotary", name) and inspect.isfunction(each)
    }
    calls = []

    def index_of(x: torch.Tensor) -> torch.Tensor:
        """Return the indices that bring the last dimension of x from `layout` back to the model's
        own.
        """
        whole = [spec for spec in specs if spec.head_dim == x.shape[-1]]
        # here the model's code has already cut off the part of the head that rotates
        part = [spec for spec in specs if spec.rotated_dims == x.shape[-1]]
        spec = (whole or part)[0]
        return places(spec.rotated_dims, spec.rotary_start if whole else 0, x.shape[-1], layout)

    def changed(original):
        """Return a rotation function that takes and returns q and k in `layout`."""
        names = list(inspect.signature(original).parameters)

        def rotate(*given, **named):
            if len(calls) > 0 and calls[-1] == "inside":
                return original(*given, **named)
            given = dict(zip(names, given, strict=False)) | named
            tensors = [
                name for name in names[:2] if name not in ("cos", "sin", "freqs_cis", "freqs")
            ]
            given |= {name: given[name][..., index_of(given[name])] for name in tensors}
            calls.append("inside")
            found = original(**given)
            calls[-1] = "done"
            if any(spec.layout != spec.output_layout for spec in specs):
                return found
            back = lambda x: x[..., index_of(x).argsort()]
            return tuple(map(back, found)) if isinstance(found, tuple) else back(found)

        return rotate

    for name, original in originals.items():
        setattr(code, name, changed(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(code, name, original)
    assert calls, "the model rotated nothing"
