"""The configs that every engine is run with: ropes of real families in both spellings, and some
that are easily misread.

A row is a config and how it is served. Sizes are small, so that an engine builds the whole model in
a moment; the keys of the rope are those of real checkpoints.
"""

from __future__ import annotations

from typing import Any

from ropewalk_lab.engines_run.measured import ServedConfig as ServedConfig
from ropewalk_lab.engines_run.small import HEADS as HEADS

Config = dict[str, Any]

MOE: Config = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
}
ROUTED: Config = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 64,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
}
LATENT: Config = {
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    **ROUTED,
    "moe_layer_freq": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}

#: model_type: architecture, and the keys that its engines need beside HEADS
FAMILIES: dict[str, tuple[str, Config]] = {
    "llama": ("LlamaForCausalLM", {}),
    "mistral": ("MistralForCausalLM", {"head_dim": 64, "sliding_window": None}),
    "mixtral": ("MixtralForCausalLM", {**MOE, "sliding_window": None}),
    "ministral3": ("Ministral3ForCausalLM", {"head_dim": 64}),
    "qwen2": ("Qwen2ForCausalLM", {"use_sliding_window": False}),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        {**MOE, "shared_expert_intermediate_size": 64, "decoder_sparse_step": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 64}),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        {**MOE, "head_dim": 64, "decoder_sparse_step": 1, "mlp_only_layers": []},
    ),
    "phi": (
        "PhiForCausalLM",
        {"layer_norm_eps": 1e-5, "hidden_act": "gelu_new", "intermediate_size": 512},
    ),
    "phi3": ("Phi3ForCausalLM", {"sliding_window": None}),
    "phimoe": (
        "PhiMoEForCausalLM",
        {**MOE, "sliding_window": None, "lm_head_bias": True, "attention_bias": True},
    ),
    "gemma": ("GemmaForCausalLM", {"head_dim": 64, "hidden_act": "gelu_pytorch_tanh"}),
    "gemma2": (
        "Gemma2ForCausalLM",
        {
            "head_dim": 64,
            "sliding_window": 64,
            "query_pre_attn_scalar": 64,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
        },
    ),
    "gemma3_text": (
        "Gemma3ForCausalLM",
        {
            "head_dim": 64,
            "sliding_window": 64,
            "query_pre_attn_scalar": 64,
            "num_hidden_layers": 6,
            "sliding_window_pattern": 6,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        },
    ),
    "gemma4_text": (
        "Gemma4ForCausalLM",
        {
            "head_dim": 64,
            "global_head_dim": 64,
            "sliding_window": 64,
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 0,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 128,
        },
    ),
    "glm": ("GlmForCausalLM", {"head_dim": 64}),
    "glm4": ("Glm4ForCausalLM", {"head_dim": 64}),
    "glm4_moe": ("Glm4MoeForCausalLM", {"head_dim": 64, **ROUTED, "use_qk_norm": False}),
    "deepseek_v2": (
        "DeepseekV2ForCausalLM",
        {**LATENT, "scoring_func": "softmax", "topk_method": "greedy"},
    ),
    "deepseek_v3": ("DeepseekV3ForCausalLM", LATENT),
    "gpt_oss": (
        "GptOssForCausalLM",
        {
            "head_dim": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 64,
            "attention_bias": True,
            "layer_types": ["sliding_attention", "full_attention"],
            "swiglu_limit": 7.0,
            "num_experts": 4,
            "experts_per_token": 2,
        },
    ),
    "gpt_neox": (
        "GPTNeoXForCausalLM",
        {
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
            "use_parallel_residual": True,
            "attention_bias": True,
            "intermediate_size": 512,
        },
    ),
    "falcon": (
        "FalconForCausalLM",
        {
            "layer_norm_epsilon": 1e-5,
            "new_decoder_architecture": False,
            "multi_query": True,
            "parallel_attn": True,
            "alibi": False,
            "bias": False,
            "num_kv_heads": 1,
            "tie_word_embeddings": True,
        },
    ),
    "cohere": (
        "CohereForCausalLM",
        {
            "layer_norm_eps": 1e-5,
            "logit_scale": 1.0,
            "use_qk_norm": False,
            "tie_word_embeddings": True,
        },
    ),
    "cohere2": (
        "Cohere2ForCausalLM",
        {
            "head_dim": 64,
            "layer_norm_eps": 1e-5,
            "logit_scale": 1.0,
            "num_hidden_layers": 4,
            "sliding_window": 64,
            "sliding_window_pattern": 4,
            "tie_word_embeddings": True,
            "rotary_pct": 1.0,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        },
    ),
    "olmo": ("OlmoForCausalLM", {"clip_qkv": None}),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "olmo3": (
        "Olmo3ForCausalLM",
        {
            "num_hidden_layers": 4,
            "sliding_window": 64,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        },
    ),
    "smollm3": (
        "SmolLM3ForCausalLM",
        {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "no_rope_layer_interval": 4},
    ),
    "starcoder2": (
        "Starcoder2ForCausalLM",
        {
            "norm_epsilon": 1e-5,
            "use_bias": True,
            "sliding_window": None,
            "hidden_act": "gelu_pytorch_tanh",
        },
    ),
    "stablelm": ("StableLmForCausalLM", {"layer_norm_eps": 1e-5, "use_qkv_bias": False}),
    "granite": (
        "GraniteForCausalLM",
        {
            "attention_multiplier": 0.1,
            "embedding_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "logits_scaling": 1.0,
            "mlp_bias": False,
        },
    ),
    "exaone4": (
        "Exaone4ForCausalLM",
        {
            "head_dim": 64,
            "num_hidden_layers": 64,
            "sliding_window": 64,
            "sliding_window_pattern": "LLLG",
            "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 16,
        },
    ),
    "seed_oss": ("SeedOssForCausalLM", {"head_dim": 64, "attention_out_bias": False}),
    "hunyuan_v1_dense": ("HunYuanDenseV1ForCausalLM", {"head_dim": 64, "use_qk_norm": True}),
    "ernie4_5": ("Ernie4_5ForCausalLM", {"head_dim": 64, "use_bias": False}),
    "nemotron": (
        "NemotronForCausalLM",
        {"head_dim": 64, "norm_eps": 1e-5, "hidden_act": "relu2", "mlp_bias": False},
    ),
    "minimax_m2": (
        "MiniMaxM2ForCausalLM",
        {
            **MOE,
            "head_dim": 64,
            "rotary_dim": 32,
            "scoring_func": "sigmoid",
            "use_qk_norm": True,
            "shared_intermediate_size": 0,
            "qk_norm_type": "per_layer",
            "use_routing_bias": True,
        },
    ),
    "apertus": (
        "ApertusForCausalLM",
        {"hidden_act": "xielu", "post_norm": False, "qk_norm": True, "mlp_bias": False},
    ),
    "arcee": ("ArceeForCausalLM", {"hidden_act": "relu2", "mlp_bias": False}),
    "granitemoe": (
        "GraniteMoeForCausalLM",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "attention_multiplier": 0.1,
            "embedding_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "logits_scaling": 1.0,
        },
    ),
    "olmoe": (
        "OlmoeForCausalLM",
        {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": False},
    ),
    "helium": ("HeliumForCausalLM", {"head_dim": 64, "mlp_bias": False}),
    "bitnet": ("BitNetForCausalLM", {"hidden_act": "relu2", "tie_word_embeddings": True}),
    "dots1": (
        "Dots1ForCausalLM",
        {"head_dim": 64, **ROUTED, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    ),
    "ernie4_5_moe": (
        "Ernie4_5_MoeForCausalLM",
        {
            "head_dim": 64,
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_num_shared_experts": 1,
            "moe_intermediate_size": 64,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 1,
            "moe_layer_interval": 1,
            "use_bias": False,
        },
    ),
    "kimi_k2": ("DeepseekV3ForCausalLM", LATENT),
    "hunyuan_v1_moe": (
        "HunYuanMoEV1ForCausalLM",
        {
            "head_dim": 64,
            "use_qk_norm": True,
            "num_experts": 4,
            "moe_topk": [2, 2],
            "moe_intermediate_size": [64, 64],
            "num_shared_expert": [1, 1],
            "use_mixed_mlp_moe": True,
        },
    ),
    "gptj": (
        "GPTJForCausalLM",
        {
            "n_embd": 128,
            "n_head": 2,
            "n_layer": 2,
            "n_positions": 2048,
            "rotary_dim": 32,
            "n_inner": None,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
        },
    ),
    "minicpm3": (
        "MiniCPM3ForCausalLM",
        {
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 32,
            "v_head_dim": 64,
            "kv_lora_rank": 32,
            "q_lora_rank": 32,
            "scale_emb": 12,
            "dim_model_base": 256,
            "scale_depth": 1.4,
        },
    ),
    "qwen2_vl": ("Qwen2VLForConditionalGeneration", {}),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", {}),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", {}),
}

#: the configs that hold the text model beside a small image tower: the text model's own model_type,
#: and the tower
VISION: dict[str, tuple[str, Config]] = {
    "qwen2_vl": (
        "qwen2_vl_text",
        {
            "depth": 1,
            "embed_dim": 64,
            "num_heads": 2,
            "hidden_size": 256,
            "mlp_ratio": 2,
            "in_chans": 3,
        },
    ),
    "qwen2_5_vl": (
        "qwen2_5_vl_text",
        {
            "depth": 1,
            "hidden_size": 64,
            "num_heads": 2,
            "out_hidden_size": 256,
            "intermediate_size": 64,
            "fullatt_block_indexes": [0],
        },
    ),
    "qwen3_vl": (
        "qwen3_vl_text",
        {
            "depth": 1,
            "hidden_size": 64,
            "num_heads": 2,
            "out_hidden_size": 256,
            "intermediate_size": 64,
            "deepstack_visual_indexes": [0],
            "num_position_embeddings": 16,
        },
    ),
}
