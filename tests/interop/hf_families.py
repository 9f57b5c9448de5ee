"""Tiny configs of real families, and the one way each family's own code rotates q and k."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
import torch
from installed import HERE, code_of, config_of, rope_of

# torch's float32 cos of a number is always the same below 125 radians and in whole SIMD vectors.
# Otherwise its last bit depends on the numbers beside it in memory, so that the two halves of a
# family's own table may differ.
NEAR = torch.cat([torch.arange(24), torch.arange(34, 42)])[None]
POSITIONS = torch.cat([NEAR[:, :28], torch.tensor([[124, 1000, 2047, 4095]])], dim=1)

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64, "rope_theta": 5e5}  # fmt: skip
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 1e4,
}
DEEPSEEK_YARN = {
    **YARN,
    "factor": 40.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
    "beta_fast": 32,
    "beta_slow": 1,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [1.0, 3.0, 5.0, 7.0],
    "original_max_position_embeddings": 5000,
    "rope_theta": 1e4,
}
HEADS = {
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 6,
    "intermediate_size": 32,
}
MLA = {
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
}
#: sums to the 8 pairs of a head of 16
SECTIONS = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 2, 2]}


@dataclass
class Case:
    """A tiny config of one family. `style` says how its code takes the table; see `rotated`."""

    model_type: str
    keys: dict[str, Any]
    style: str = "pair"
    module: str = ""
    rotary: str = ""
    layer_type: str | None = None
    axes: int = 1

    @cached_property
    def config(self):
        return config_of(self.model_type, **{**HEADS, **self.keys})

    @cached_property
    def code(self):
        return code_of(self.module or self.model_type.removesuffix("_text"))

    @property
    def rotary_class(self):
        found = [
            name
            for name in vars(self.code)
            if name.endswith("RotaryEmbedding") and "Vision" not in name
        ]
        return getattr(self.code, self.rotary or found[0])

    def placed(self, positions: torch.Tensor) -> torch.Tensor:
        """Return positions [B, S] as they are or, for three axes, [3, B, S] with different positions
        on each axis.
        """
        return (
            torch.stack([positions, positions * 2 + 1, positions // 2 + 3])
            if self.axes == 3
            else positions
        )

    def rotary_module(self):
        """Return the family's rotary module; skip the test if it cannot be built from the config."""
        config, kind = self.config, self.rotary_class
        takes = inspect.signature(kind.forward).parameters
        if "position_ids" not in takes:
            pytest.skip(
                f"{HERE} makes the tables of {self.model_type} from a length, not from positions"
            )
        if self.layer_type is not None and "layer_type" not in takes:
            pytest.skip(
                f"{HERE} has a rotary module for each layer type of {self.model_type}; they "
                "are compared in a model"
            )
        if "config" not in inspect.signature(kind).parameters:
            pytest.skip(
                f"{HERE} builds the rotary module of {self.model_type} from numbers, not from "
                "its config"
            )
        return kind(config)

    def table(self, positions: torch.Tensor = POSITIONS) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin as the family's own code makes them, each pair from its axis."""
        made = self.made(positions)
        if made[0].ndim == 3:
            return made
        # before v5, the layers and not the rotary module choose each pair's axis
        sections = rope_of(self.config)["mrope_section"] * 2
        return tuple(
            torch.cat([part[i % 3] for i, part in enumerate(each.split(sections, -1))], -1)
            for each in made
        )

    def made(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin as the rotary module returns them."""
        kind = {} if self.layer_type is None else {"layer_type": self.layer_type}
        made = self.rotary_module()(torch.zeros(1), self.placed(positions), **kind)
        return (made.real, made.imag) if isinstance(made, torch.Tensor) else made

    def rotated(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return q and k [B, H, S, D] after the family's own apply function."""
        code = self.code
        cos, sin = self.table()
        if not hasattr(code, "apply_rotary_pos_emb") and hasattr(
            code, "apply_multimodal_rotary_pos_emb"
        ):
            # transformers 4
            return code.apply_multimodal_rotary_pos_emb(
                q, k, *self.made(POSITIONS), rope_of(self.config)["mrope_section"]
            )
        if self.style == "single":
            return tuple(code.apply_rotary_pos_emb(x, cos, sin) for x in (q, k))
        if self.style == "complex":
            freqs = torch.complex(cos, sin)
            if self.model_type == "deepseek_v2":
                return code.apply_rotary_emb(q, k, freqs)
            rotated = code.apply_rotary_emb(q.transpose(1, 2), k.transpose(1, 2), freqs)
            return tuple(x.transpose(1, 2) for x in rotated)
        if self.style == "deinterleave":
            return code.apply_rotary_pos_emb_interleave(q, k, cos, sin)
        if self.style == "slice":  # the attention module splits the head itself
            width = cos.shape[-1]
            rotated = code.apply_rotary_pos_emb(q[..., :width], k[..., :width], cos, sin)
            return tuple(
                torch.cat([new, old[..., width:]], dim=-1)
                for new, old in zip(rotated, (q, k), strict=True)
            )
        return code.apply_rotary_pos_emb(q, k, cos, sin)


def scaled(rope: dict[str, Any], **keys) -> dict[str, Any]:
    return {"rope_parameters": dict(rope), "max_position_embeddings": 128, **keys}


CASES = {
    "llama-2": Case("llama", {}),
    "llama-3.1": Case("llama", scaled(LLAMA3)),
    "llama linear": Case("llama", scaled({"rope_type": "linear", "factor": 2.5})),
    "llama dynamic": Case(
        "llama",
        {**scaled({"rope_type": "dynamic", "factor": 2.5}), "max_position_embeddings": 1024},
    ),
    "llama yarn": Case("llama", scaled(YARN)),
    "llama-4": Case("llama4_text", {**scaled(LLAMA3), "head_dim": 16}, "complex"),
    "arcee": Case("arcee", scaled(YARN)),
    "qwen2": Case("qwen2", {}),
    "qwen2-moe": Case("qwen2_moe", {}),
    "qwen3": Case("qwen3", scaled(YARN, head_dim=10)),
    "qwen3-moe": Case("qwen3_moe", {"head_dim": 10}),
    "qwen3-next": Case("qwen3_next", {"head_dim": 16}),
    "qwen2-vl": Case(
        "qwen2_vl_text",
        {"rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]}},
        module="qwen2_vl",
        axes=3,
    ),
    "qwen2.5-vl": Case(
        "qwen2_5_vl_text", {"rope_parameters": SECTIONS}, module="qwen2_5_vl", axes=3
    ),
    "qwen2.5-vl, all pairs time": Case(
        "qwen2_5_vl_text",
        {"rope_parameters": {**SECTIONS, "mrope_section": [8, 0, 0]}},
        module="qwen2_5_vl",
        axes=3,
    ),
    "qwen2.5-vl, no pair time": Case(
        "qwen2_5_vl_text",
        {"rope_parameters": {**SECTIONS, "mrope_section": [0, 4, 4]}},
        module="qwen2_5_vl",
        axes=3,
    ),
    "qwen3-vl, all pairs time": Case(
        "qwen3_vl_text",
        {"rope_parameters": {**SECTIONS, "mrope_section": [8, 0, 0]}, "head_dim": 16},
        axes=3,
    ),
    "qwen3-vl": Case("qwen3_vl_text", {"rope_parameters": SECTIONS, "head_dim": 16}, axes=3),
    "qwen3.5": Case(
        "qwen3_5_text",
        {
            "rope_parameters": {
                **SECTIONS,
                "mrope_section": [2, 1, 1],
                "partial_rotary_factor": 0.5,
            },
            "head_dim": 16,
        },
        axes=3,
    ),
    "deepseek-v2": Case("deepseek_v2", {**MLA, **scaled(DEEPSEEK_YARN)}, "complex"),
    "deepseek-v3": Case("deepseek_v3", {**MLA, **scaled(DEEPSEEK_YARN)}, "deinterleave"),
    "deepseek-v3 half": Case("deepseek_v3", {**MLA, "rope_interleave": False}),
    "deepseek-v4 main": Case(
        "deepseek_v4", {"head_dim": 16, "partial_rotary_factor": 0.5}, "single", layer_type="main"
    ),
    "deepseek-v4 compress": Case(
        "deepseek_v4",
        {"head_dim": 16, "partial_rotary_factor": 0.5, **scaled(YARN)},
        "single",
        layer_type="compress",
    ),
    "longcat-flash": Case("longcat_flash", {**MLA, "head_dim": 8}, "deinterleave"),
    "glm4-moe-lite": Case("glm4_moe_lite", {**MLA, **scaled(DEEPSEEK_YARN)}, "deinterleave"),
    "minicpm3": Case("minicpm3", MLA),
    "phi": Case("phi", {}, "slice"),
    "phi-3": Case(
        "phi3",
        {
            "rope_scaling": {
                "type": "longrope",
                **{k: LONGROPE[k] for k in ("short_factor", "long_factor")},
            },
            "original_max_position_embeddings": 5000,
            "max_position_embeddings": 9000,
            "partial_rotary_factor": 0.5,
            "pad_token_id": 0,
        },
    ),
    "phi-3 long": Case(
        "phi3",
        {
            "rope_scaling": {**LONGROPE, "original_max_position_embeddings": 100},
            "pad_token_id": 0,
            "original_max_position_embeddings": 100,
            "max_position_embeddings": 400,
            "partial_rotary_factor": 0.5,
        },
    ),
    "gemma": Case("gemma", {"head_dim": 10}),
    "gemma-2": Case("gemma2", {"head_dim": 10}),
    "gemma-3 full": Case(
        "gemma3_text",
        {"head_dim": 10, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        module="gemma3",
        layer_type="full_attention",
    ),
    "gemma-3 sliding": Case(
        "gemma3_text",
        {"head_dim": 10, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        module="gemma3",
        layer_type="sliding_attention",
    ),
    "gemma-3n": Case("gemma3n_text", {"head_dim": 10}, "single", layer_type="sliding_attention"),
    "gemma-4 full": Case(
        "gemma4_text",
        {"head_dim": 8, "global_head_dim": 16},
        "single",
        rotary="Gemma4TextRotaryEmbedding",
        layer_type="full_attention",
    ),
    "gemma-4 sliding": Case(
        "gemma4_text",
        {"head_dim": 8, "global_head_dim": 16},
        "single",
        rotary="Gemma4TextRotaryEmbedding",
        layer_type="sliding_attention",
    ),
    "mistral": Case("mistral", {"head_dim": 10}),
    "mixtral": Case("mixtral", {}),
    "gpt-neox": Case("gpt_neox", {"rotary_pct": 0.25, "rotary_emb_base": 20000}),
    "stablelm": Case("stablelm", {}, "slice"),
    "falcon": Case("falcon", {}),
    "glm": Case("glm", {"head_dim": 16}),
    "glm-4": Case("glm4", {"head_dim": 16}),
    "glm-4 moe": Case("glm4_moe", {"head_dim": 16}),
    "glm-4v": Case(
        "glm4v_text",
        {"rope_parameters": {**SECTIONS, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}},
        axes=3,
    ),
    "glm-4v moe": Case(
        "glm4v_moe_text",
        {"rope_parameters": {**SECTIONS, "mrope_section": [2, 1, 1]}, "head_dim": 16},
        axes=3,
    ),
    "cohere": Case("cohere", {}),
    "cohere-2": Case("cohere2", {}),
    "nemotron": Case("nemotron", {}),
    "olmo": Case("olmo", {}),
    "olmo-2": Case("olmo2", {}),
    "olmo-3 full": Case("olmo3", {"rope_scaling": dict(YARN)}, layer_type="full_attention"),
    "olmo-3 sliding": Case("olmo3", {"rope_scaling": dict(YARN)}, layer_type="sliding_attention"),
    "gpt-oss": Case(
        "gpt_oss", {"head_dim": 16, **scaled({**YARN, "factor": 32.0, "truncate": False})}
    ),
    "minimax": Case("minimax", {}),
    "minimax-m2": Case("minimax_m2", {"head_dim": 16, "rotary_dim": 8}),
    "modernbert full": Case(
        "modernbert",
        {"global_rope_theta": 2e5},
        rotary="ModernBertRotaryEmbedding",
        layer_type="full_attention",
    ),
    "modernbert sliding": Case(
        "modernbert",
        {"local_rope_theta": 2e4},
        rotary="ModernBertRotaryEmbedding",
        layer_type="sliding_attention",
    ),
    "smollm3": Case("smollm3", {"pad_token_id": 0}),
    "granite": Case("granite", {}),
    "starcoder2": Case("starcoder2", {}),
    "persimmon": Case("persimmon", {}, "slice"),
    "hunyuan": Case(
        "hunyuan_v1_dense",
        {
            "head_dim": 16,
            "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0},
            "max_position_embeddings": 8192,  # past it, older releases rotate at another base
        },
    ),
    "ernie-4.5": Case("ernie4_5", {"head_dim": 16}),
    "ernie-4.5-vl": Case(
        "ernie4_5_vl_moe_text",
        {"rope_parameters": {**SECTIONS, "mrope_section": [3, 3, 2]}},
        module="ernie4_5_vl_moe",
        axes=3,
    ),
    "exaone-4": Case("exaone4", {}),
    "seed-oss": Case("seed_oss", {"head_dim": 16}),
    "apertus": Case("apertus", scaled(LLAMA3)),
    "dbrx": Case("dbrx", {"d_model": 32, "n_heads": 2, "n_layers": 2}),
    "helium": Case("helium", {"head_dim": 16}),
    "phimoe": Case(
        "phimoe",
        {
            **scaled(
                {
                    **LONGROPE,
                    "short_factor": [1.0] * 8,
                    "long_factor": [2.0] * 8,
                    "short_mscale": 1.2,
                    "long_mscale": 1.2,
                }
            ),
            "max_position_embeddings": 6000,
        },
    ),
    "mimo-v2-flash": Case("mimo_v2_flash", {"head_dim": 24}, layer_type="full_attention"),
    "privacy-filter": Case("openai_privacy_filter", {"head_dim": 16}),
}
