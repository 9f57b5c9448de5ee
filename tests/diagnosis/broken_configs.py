"""One broken config for each row of mistakes.toml, and the config that was meant.

`Broken(id, config, meant)`: `meant` is a config that is right, written by hand; None where the config
does not say what was meant, so that nothing may be changed.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

from ropewalk.config.examples import EXAMPLES

LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_attention_heads": 4,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
PAIRS = 64
SHORT, LONG = [1.0 + i / PAIRS for i in range(PAIRS)], [4.0 + i for i in range(PAIRS)]
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": SHORT,
    "long_factor": LONG,
    "original_max_position_embeddings": 2048,
}
PHI3 = {
    "model_type": "phi3",
    "hidden_size": 512,
    "num_attention_heads": 4,
    "max_position_embeddings": 8192,
    "original_max_position_embeddings": 2048,
}
PHI3_LISTS = {"type": "longrope", "short_factor": SHORT, "long_factor": LONG}
QWEN_VL = EXAMPLES["Qwen2-VL-7B"]
QWEN3_VL = {
    "model_type": "qwen3_vl_text",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rope_theta": 5000000.0,
    "rope_scaling": {
        "rope_type": "default",
        "mrope_section": [24, 20, 20],
        "mrope_interleaved": True,
    },
}
QWEN3_8B = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 36,
    "vocab_size": 151936,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
}
LLAMA31 = {
    **EXAMPLES["Llama-3.1-8B"],
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
}
NEOX = {
    "model_type": "gpt_neox",
    "hidden_size": 512,
    "num_attention_heads": 8,
    "max_position_embeddings": 2048,
    "rotary_pct": 0.5,
    "rotary_emb_base": 20000,
}
PYTHIA = {
    "model_type": "gpt_neox",
    "hidden_size": 768,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "vocab_size": 50304,
    "max_position_embeddings": 2048,
    "rotary_pct": 0.25,
    "rotary_emb_base": 10000,
}
QWEN3_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
SMOLLM3 = {
    "model_type": "smollm3",
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "num_hidden_layers": 36,
    "vocab_size": 128256,
    "max_position_embeddings": 65536,
    "rope_theta": 5000000.0,
}
FULL_FIRST = ("full_attention", "sliding_attention", "sliding_attention")
#: a factor and a trained length under names of llama.cpp, without a scaling's name
OF_LLAMA_CPP = {"rope_scaling_factor": 4.0, "rope_scaling_orig_ctx_len": 2048}
#: sizes that no model of the family was published with
LLAMA4_SMALL = {
    "model_type": "llama4_text",
    "hidden_size": 3072,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "num_hidden_layers": 24,
    "vocab_size": 202048,
    "max_position_embeddings": 8192,
}
QWEN_SMALL = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "num_hidden_layers": 24,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
}
MINISTRAL3 = {
    "model_type": "ministral3",
    "hidden_size": 512,
    "num_attention_heads": 4,
    "max_position_embeddings": 8192,
}
VICUNA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "num_hidden_layers": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
LINEAR = {"rope_type": "linear", "factor": 4.0}
GPTJ = {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "rotary_dim": 64, "n_positions": 2048}
HUNYUAN = {
    "model_type": "hunyuan_v1_dense",
    "hidden_size": 512,
    "num_attention_heads": 4,
    "max_position_embeddings": 32768,
    "rope_theta": 10000.0,
}
QWEN_1 = {
    "model_type": "qwen",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "rotary_emb_base": 10000.0,
}
GRANITE_H = {
    "model_type": "granitemoehybrid",
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 40,
    "vocab_size": 100352,
    "max_position_embeddings": 131072,
}
OSS = {
    **EXAMPLES["gpt-oss-20b"],
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 24,
    "vocab_size": 201088,
}
GEMMA3 = EXAMPLES["Gemma-3-27B"]
DEEPSEEK = EXAMPLES["DeepSeek-V3"]
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
GONE = object()


def changed(config: dict[str, Any], scaling: Any = GONE, **keys: Any) -> dict[str, Any]:
    """A copy with `rope_scaling` and other keys written over; GONE removes a key."""
    new = copy.deepcopy(config)
    if scaling is not GONE:
        new["rope_scaling"] = copy.deepcopy(scaling)
    for key, value in keys.items():
        new.pop(key, None)
        if value is not GONE:
            new[key] = copy.deepcopy(value)
    return new


def scaled(base: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """A rope object with some keys written over; GONE removes a key."""
    new = {**copy.deepcopy(base), **keys}
    return {key: value for key, value in new.items() if value is not GONE}


PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
GEMMA3_TEXT = {
    "model_type": "gemma3_text",
    "hidden_size": 512,
    "num_attention_heads": 4,
    "max_position_embeddings": 131072,
}
GEMMA3_FULL = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0}
GEMMA3_4B = {
    **GEMMA3_TEXT,
    "hidden_size": 2560,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 34,
    "vocab_size": 262208,
    "head_dim": 256,
}
GEMMA4 = {
    "model_type": "gemma4_text",
    "hidden_size": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "max_position_embeddings": 131072,
}
GEMMA4_FULL = {
    "rope_type": "proportional",
    "partial_rotary_factor": 0.25,
    "rope_theta": 1000000.0,
}
CODELLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "num_hidden_layers": 32,
    "vocab_size": 32016,
    "max_position_embeddings": 16384,
    "rope_theta": 1000000.0,
}
EXAONE4 = {
    "model_type": "exaone4",
    "hidden_size": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 1000000.0,
    "sliding_window": 4096,
    "sliding_window_pattern": "LLLG",
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "num_hidden_layers": 61,
    "vocab_size": 129280,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 163840,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 40.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
}
MROPE_LONG = {
    "model_type": "qwen2_5_vl_text",
    "hidden_size": 512,
    "num_attention_heads": 4,
    "rope_theta": 1000000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 3.0,
        "original_max_position_embeddings": 32768,
        "mrope_section": [16, 24, 24],
    },
}


@dataclass(frozen=True)
class Broken:
    """A broken config, the id that must come first, and what was meant."""

    id: str
    config: Any
    meant: dict[str, Any] | None
    options: dict[str, Any] = field(default_factory=dict)


RIGHT = changed(LLAMA, YARN)
RIGHT3 = changed(LLAMA, LLAMA3, max_position_embeddings=131072)
V5 = {"rope_theta": 500000.0, **YARN}
ENDLESS = changed(QWEN_VL, {**YARN, "mrope_section": [16, 24, 24]}, max_position_embeddings=8192)
BROKEN = [
    # values of the wrong kind
    Broken("null_as_text", changed(LLAMA, "null"), changed(LLAMA, None)),
    Broken("null_as_text", changed(LLAMA, scaled(YARN, beta_fast="None")), RIGHT),
    Broken(
        "object_as_text",
        changed(
            LLAMA,
            '{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}',
        ),
        RIGHT,
    ),
    Broken("rope_object_not_an_object", changed(LLAMA, False), changed(LLAMA, None)),
    Broken("rope_object_not_an_object", changed(LLAMA, 4.0), None),
    Broken("factor_as_text", changed(LLAMA, scaled(YARN, factor="4.0")), RIGHT),
    Broken("theta_as_text", changed(RIGHT, rope_theta="500000"), RIGHT),
    Broken(
        "length_as_text",
        changed(LLAMA, scaled(YARN, original_max_position_embeddings="2048")),
        RIGHT,
    ),
    Broken("setting_as_text", changed(LLAMA, scaled(YARN, beta_fast="32")), RIGHT),
    Broken(
        "setting_as_text",
        changed(DEEPSEEK, {**DEEPSEEK["rope_scaling"], "mscale": "1.0"}),
        DEEPSEEK,
    ),
    Broken(
        "longrope_texts",
        changed(LLAMA, scaled(LONGROPE, long_factor=list(map(str, LONG)))),
        changed(LLAMA, LONGROPE),
    ),
    Broken(
        "flag_as_text",
        changed(LLAMA, scaled(YARN, truncate="false")),
        changed(LLAMA, scaled(YARN, truncate=False)),
    ),
    Broken("length_as_float", changed(RIGHT, max_position_embeddings=8192.0), RIGHT),
    Broken("number_not_finite", changed(LLAMA, scaled(YARN, factor=math.nan)), RIGHT),
    Broken("number_not_finite", changed(LLAMA, scaled(YARN, attention_factor=math.inf)), RIGHT),
    Broken("number_not_finite", changed(LLAMA, rope_theta=math.nan), None),
    Broken("number_not_positive", changed(LLAMA, scaled(YARN, factor=0)), RIGHT),
    Broken("number_not_positive", changed(LLAMA, scaled(YARN, beta_slow=-1.0)), RIGHT),
    Broken("number_not_positive", changed(LLAMA, rope_theta=-10000.0), None),
    # names
    Broken("rope_object_misspelled", {**LLAMA, "rope-scaling": YARN}, RIGHT),
    Broken("theta_misspelled", changed(LLAMA, rope_theta=GONE, rope_base=500000.0), LLAMA),
    Broken("theta_misspelled", changed(LLAMA, rope_theta=GONE, rotary_emb_base=500000.0), LLAMA),
    Broken("theta_misspelled", changed(NEOX, rotary_emb_base=GONE, rope_theta=20000), NEOX),
    Broken("fraction_misspelled", changed(NEOX, rotary_pct=GONE, partial_rotary_factor=0.5), NEOX),
    Broken("fraction_misspelled", changed(NEOX, rotary_pct=GONE, rope_percent=0.5), NEOX),
    Broken(
        "fraction_misspelled",
        changed(LLAMA, model_type="phi", rotary_pct=0.25),
        changed(LLAMA, model_type="phi", partial_rotary_factor=0.25),
    ),
    Broken("rope_type_misspelled", changed(LLAMA, scaled(YARN, rope_type="YaRN")), RIGHT),
    Broken("rope_type_misspelled", changed(RIGHT3, scaled(LLAMA3, rope_type="llama-3")), RIGHT3),
    Broken(
        "rope_type_misspelled",
        changed(LLAMA, {"type": "Dynamic-NTK", "factor": 2.0}),
        changed(LLAMA, DYNAMIC),
    ),
    Broken(
        "ntk_aware",
        changed(LLAMA, {"type": "ntk-aware", "factor": 4.0}),
        changed(LLAMA, None, rope_theta=500000.0 * 4.0 ** (128 / 126)),
    ),
    Broken("ntk_aware", changed(LLAMA, {"type": "ntk"}), None),
    Broken("rope_type_contradicts_type", changed(LLAMA, {**YARN, "type": "linear"}), RIGHT),
    Broken("rope_type_unknown", changed(LLAMA, {"rope_type": "spiral", "factor": 2.0}), None),
    Broken(
        "rope_key_misspelled",
        changed(
            LLAMA,
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embedding": 2048},
        ),
        RIGHT,
    ),
    Broken(
        "rope_key_misspelled",
        changed(LLAMA, scaled(YARN, factor=GONE, scaling_factor=4.0)),
        RIGHT,
    ),
    Broken("rope_key_unknown", changed(LLAMA, scaled(YARN, colour="red")), None),
    Broken(
        "rope_type_missing",
        changed(RIGHT3, scaled(LLAMA3, rope_type=GONE)),
        RIGHT3,
    ),
    Broken("rope_type_missing", changed(LLAMA, {"factor": 4.0}), None),
    Broken("rope_type_missing", changed(LLAMA, scaled(YARN, rope_type=GONE)), RIGHT),
    Broken("default_with_scaling_keys", changed(LLAMA, {**YARN, "rope_type": "default"}), RIGHT),
    Broken("rope_object_wrapped", changed(LLAMA, {"yarn": scaled(YARN, rope_type=GONE)}), RIGHT),
    # keys of other stacks
    Broken(
        "key_of_another_stack",
        {**changed(LLAMA, GONE), "rope_freq_scale": 0.25},
        changed(LLAMA, {"rope_type": "linear", "factor": 4.0}),
    ),
    Broken(
        "key_of_another_stack",
        {**LLAMA, "yarn_scale_factor": 4.0, "yarn_orig_ctx": 2048},
        RIGHT,
    ),
    Broken(
        "key_of_another_stack",
        {**LLAMA, "alpha_value": 2.0},
        changed(LLAMA, rope_theta=500000.0 * 2.0 ** (128 / 126)),
    ),
    Broken("key_of_another_stack", {**RIGHT, "compress_pos_emb": 2}, None),
    Broken("key_of_another_stack", {**LLAMA, "rope_freq_base": 20000.0}, None),
    Broken("arguments_in_config", {**LLAMA, "hf_overrides": {"rope_scaling": YARN}}, RIGHT),
    Broken("rope_key_not_read", {**LLAMA, "rope_settings": 2.5}, None),
    Broken("rope_key_not_read", {**LLAMA, "rope_local_base_freq": 20000.0}, None),
    Broken("only_type", changed(LLAMA, scaled(YARN, rope_type=GONE, type="yarn")), RIGHT),
    # places and forms
    Broken(
        "rope_outside_text_part",
        {"model_type": "llava", "rope_scaling": YARN, "text_config": LLAMA},
        {"model_type": "llava", "text_config": RIGHT},
    ),
    Broken(
        "two_rope_objects_contradict",
        {**RIGHT, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
        RIGHT,
    ),
    Broken(
        "two_rope_objects_contradict",
        {
            **changed(LLAMA, YARN, rope_theta=GONE),
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500000.0},
        },
        RIGHT,
    ),
    Broken("two_rope_objects_agree", {**RIGHT, "rope_parameters": V5}, RIGHT),
    Broken(
        "rope_by_layer_type_in_flat_family",
        changed(LLAMA, rope_theta=GONE, rope_parameters={"full_attention": V5}),
        RIGHT,
    ),
    Broken(
        "rope_by_layer_type_in_flat_family",
        changed(LLAMA, rope_parameters={"full_attention": V5, "other": {**V5, "factor": 2.0}}),
        None,
    ),
    Broken(
        "flat_rope_in_layer_type_family",
        changed(
            GEMMA3,
            GONE,
            rope_scaling=GONE,
            rope_theta=GONE,
            rope_parameters={"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        ),
        GEMMA3,
    ),
    Broken(
        "key_beside_layer_types",
        changed(
            GEMMA3,
            rope_scaling=GONE,
            rope_theta=GONE,
            rope_local_base_freq=GONE,
            rope_parameters={
                "rope_theta": 5.0,
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        ),
        GEMMA3,
    ),
    Broken(
        "theta_twice",
        changed(LLAMA, rope_theta=10000.0, rope_parameters=V5),
        RIGHT,
    ),
    Broken("theta_twice", changed(LLAMA, rope_theta=2000000.0, rope_parameters=V5), None),
    Broken(
        "theta_only_in_rope_scaling",
        changed(LLAMA, scaled(YARN, rope_theta=500000.0), rope_theta=GONE),
        RIGHT,
    ),
    Broken(
        "theta_missing",
        changed(QWEN3_8B, rope_theta=GONE, rope_parameters={"rope_type": "default"}),
        QWEN3_8B,
    ),
    Broken("theta_missing", changed(LLAMA, rope_theta=GONE, rope_parameters=YARN), None),
    Broken("theta_not_given", changed(LLAMA, rope_theta=GONE, max_position_embeddings=32768), None),
    Broken("llama3_without_theta", changed(RIGHT3, rope_theta=GONE), RIGHT3),
    Broken(
        "v5_keys_in_v4_file",
        changed(LLAMA, rope_theta=GONE, rope_parameters=V5, transformers_version="4.57.6"),
        RIGHT,
    ),
    Broken("v4_keys_in_v5_file", changed(RIGHT, transformers_version="5.22.2"), RIGHT),
    Broken("trained_length_twice", changed(RIGHT, original_max_position_embeddings=8192), RIGHT),
    Broken(
        "trained_length_twice",
        changed(LLAMA, YARN, original_max_position_embeddings=3000, max_position_embeddings=9000),
        None,
    ),
    # widths
    Broken("fraction_too_large", changed(NEOX, rotary_pct=32), NEOX),
    Broken("fraction_too_large", changed(NEOX, rotary_pct=50), NEOX),
    Broken("fraction_too_large", changed(NEOX, rotary_pct=1.7), None),
    Broken("fraction_fails", changed(RIGHT, partial_rotary_factor=0.5), RIGHT),
    Broken("fraction_ignored", changed(LLAMA, partial_rotary_factor=0.5), None),
    Broken("fraction_ignored", changed(QWEN3_8B, partial_rotary_factor=0.5), QWEN3_8B),
    Broken(
        "width_contradicts_fraction",
        changed(LLAMA, model_type="minimax_m2", rotary_dim=64, partial_rotary_factor=0.25),
        None,
    ),
    Broken("head_dim_wrong", changed(LLAMA, head_dim=512), LLAMA),
    Broken("head_dim_wrong", changed(LLAMA, head_dim=127), LLAMA),
    Broken("head_dim_missing", changed(LLAMA, num_attention_heads=5), None),
    # numbers of a scaling
    Broken(
        "trained_length_tiny",
        changed(LLAMA, {**YARN, "original_max_position_embeddings": 4}),
        RIGHT,
    ),
    Broken("factor_is_length", changed(LLAMA, {**YARN, "factor": 8192}), RIGHT),
    Broken("attention_factor_impossible", changed(LLAMA, {**YARN, "attention_factor": 0.1}), RIGHT),
    Broken(
        "attention_factor_impossible",
        changed(LLAMA, {**YARN, "attention_factor": 1 / (0.1 * math.log(4.0) + 1)}),
        RIGHT,
    ),
    Broken("factor_inverted", changed(LLAMA, scaled(YARN, factor=0.25)), RIGHT),
    Broken("attention_factor_is_factor", changed(LLAMA, {**YARN, "attention_factor": 4.0}), RIGHT),
    Broken(
        "betas_swapped",
        changed(LLAMA, {**YARN, "beta_fast": 1.0, "beta_slow": 32.0}),
        RIGHT,
    ),
    Broken(
        "llama3_bands_swapped",
        changed(RIGHT3, {**LLAMA3, "low_freq_factor": 4.0, "high_freq_factor": 1.0}),
        RIGHT3,
    ),
    Broken(
        "mscale_alone",
        changed(DEEPSEEK, scaled(DEEPSEEK["rope_scaling"], mscale_all_dim=GONE)),
        DEEPSEEK,
    ),
    Broken(
        "mscale_beside_attention_factor",
        changed(LLAMA, {**YARN, "attention_factor": 1.25, "mscale": 0.5}),
        changed(LLAMA, {**YARN, "attention_factor": 1.25}),
    ),
    Broken(
        "longrope_lists_swapped",
        changed(LLAMA, {**LONGROPE, "short_factor": LONG, "long_factor": SHORT}),
        changed(LLAMA, LONGROPE),
    ),
    Broken(
        "longrope_lists_doubled",
        changed(LLAMA, {**LONGROPE, "short_factor": SHORT * 2, "long_factor": LONG * 2}),
        changed(LLAMA, LONGROPE),
    ),
    Broken(
        "longrope_fraction_lost",
        changed(PHI3, {**PHI3_LISTS, "short_factor": SHORT[:48], "long_factor": LONG[:48]}),
        changed(
            PHI3,
            {**PHI3_LISTS, "short_factor": SHORT[:48], "long_factor": LONG[:48]},
            partial_rotary_factor=0.75,
        ),
    ),
    Broken("longrope_lists_misfit", changed(LLAMA, {**LONGROPE, "long_factor": LONG[:50]}), None),
    Broken(
        "longrope_lists_misfit",
        changed(LLAMA, {**LONGROPE, "long_factor": [*LONG[:63], None]}),
        None,
    ),
    Broken(
        "sections_misfit",
        changed(QWEN_VL, {"type": "mrope", "mrope_section": [32, 48, 48]}),
        QWEN_VL,
    ),
    Broken(
        "sections_misfit",
        changed(QWEN_VL, {"type": "mrope", "mrope_section": [16, 24, 20]}),
        QWEN_VL,
    ),
    Broken("sections_lost", changed(ENDLESS, YARN), ENDLESS),
    Broken(
        "sections_not_interleaved",
        changed(QWEN3_VL, scaled(QWEN3_VL["rope_scaling"], mrope_interleaved=GONE)),
        QWEN3_VL,
    ),
    Broken(
        "sections_interleaved",
        changed(QWEN_VL, {**QWEN_VL["rope_scaling"], "mrope_interleaved": True}),
        QWEN_VL,
    ),
    # lengths
    Broken(
        "dynamic_without_length",
        changed(LLAMA, DYNAMIC, max_position_embeddings=GONE, seq_length=8192),
        changed(LLAMA, DYNAMIC),
    ),
    Broken("dynamic_without_length", changed(LLAMA, DYNAMIC, max_position_embeddings=GONE), None),
    Broken("factor_missing", changed(LLAMA, scaled(YARN, factor=GONE)), RIGHT),
    Broken("factor_missing", changed(LLAMA, {"rope_type": "linear"}), None),
    Broken(
        "llama3_trained_length_missing",
        changed(RIGHT3, scaled(LLAMA3, original_max_position_embeddings=GONE)),
        RIGHT3,
    ),
    Broken(
        "trained_length_missing",
        changed(QWEN3_8B, {"rope_type": "yarn", "factor": 4.0}, max_position_embeddings=131072),
        changed(
            QWEN3_8B,
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            max_position_embeddings=131072,
        ),
    ),
    Broken("trained_length_missing", changed(LLAMA, {"rope_type": "yarn", "factor": 4.0}), None),
    Broken(
        "lengths_swapped",
        changed(
            LLAMA,
            scaled(YARN, original_max_position_embeddings=8192),
            max_position_embeddings=2048,
        ),
        RIGHT,
    ),
    Broken("length_multiplied_twice", changed(RIGHT, max_position_embeddings=32768), None),
    Broken(
        "factor_too_small",
        changed(LLAMA, scaled(YARN, factor=1.0), max_position_embeddings=16384),
        changed(LLAMA, scaled(YARN, factor=8.0), max_position_embeddings=16384),
    ),
    Broken("factor_too_small", changed(LLAMA, YARN, max_position_embeddings=16384), None),
    Broken("factor_too_large", changed(RIGHT, max_position_embeddings=6144), RIGHT),
    Broken("factor_not_of_lengths", changed(RIGHT, max_position_embeddings=4096), None),
    Broken("factor_is_one", changed(LLAMA, {"rope_type": "linear", "factor": 1.0}), LLAMA),
    Broken("factor_is_integer", changed(LLAMA, scaled(YARN, factor=4)), RIGHT),
    Broken(
        "served_beyond_scaling",
        RIGHT,
        changed(LLAMA, scaled(YARN, factor=8.0), max_position_embeddings=16384),
        {"length": 16384},
    ),
    Broken("served_beyond_scaling", RIGHT3, None, {"length": 262144}),
    Broken(
        "served_beyond_training",
        changed(LLAMA, max_position_embeddings=2048),
        RIGHT,
        {"length": 8192},
    ),
    Broken(
        "served_beyond_training",
        changed(
            LLAMA,
            max_position_embeddings=2048,
            rope_theta=GONE,
            rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        ),
        RIGHT,
        {"length": 8192},
    ),
    Broken("served_beyond_training", changed(GEMMA3, None), None, {"length": 262144}),
    Broken("short_under_yarn", RIGHT, RIGHT, {"length": 1024}),
    Broken(
        "length_beyond_every_window",
        changed(LLAMA, sliding_window=1024, layer_types=["sliding_attention"] * 2),
        changed(LLAMA, layer_types=["sliding_attention"] * 2),
        {"length": 4096},
    ),
    # the published form
    Broken("published_theta_lost", changed(QWEN3_8B, rope_theta=GONE), QWEN3_8B),
    Broken("published_theta_lost", changed(LLAMA31, None, rope_theta=10000.0), LLAMA31),
    Broken(
        "published_theta_differs",
        changed(QWEN3_8B, rope_theta=7000000.0, max_position_embeddings=262144),
        changed(QWEN3_8B, rope_theta=7000000.0, max_position_embeddings=262144),
    ),
    Broken(
        "yarn_setting_unusual",
        changed(QWEN3_8B, {**QWEN3_YARN, "beta_fast": 64.0}, max_position_embeddings=131072),
        changed(QWEN3_8B, QWEN3_YARN, max_position_embeddings=131072),
    ),
    Broken("served_length_raised", changed(QWEN3_8B, max_position_embeddings=131072), None),
    Broken(
        "served_length_raised",
        changed(QWEN3_8B, max_position_embeddings=131072),
        changed(QWEN3_8B, QWEN3_YARN, max_position_embeddings=131072),
        {"length": 131072},
    ),
    Broken("published_head_dim_differs", changed(OSS, head_dim=None), OSS),
    Broken("published_theta_changed", changed(QWEN3_8B, rope_theta=7000000.0), None),
    Broken("published_theta_of_another_model", changed(QWEN3_8B, rope_theta=5000000.0), QWEN3_8B),
    Broken("published_theta_changed", changed(QWEN3_8B, rope_theta=500000.0), None),
    Broken("published_theta_mistyped", changed(QWEN3_8B, rope_theta=10000000.0), QWEN3_8B),
    Broken(
        "published_theta_multiplied",
        changed(QWEN3_8B, QWEN3_YARN, rope_theta=4000000.0, max_position_embeddings=131072),
        changed(QWEN3_8B, QWEN3_YARN, max_position_embeddings=131072),
    ),
    Broken(
        "published_layers_differ",
        changed(SMOLLM3, no_rope_layers=[1, 1, 0] * 12),
        SMOLLM3,
    ),
    Broken(
        "no_rope_layers_numbers",
        changed(SMOLLM3, no_rope_layers=[3, 7, 11, 15, 19, 23, 27, 31, 35]),
        SMOLLM3,
    ),
    # the same layers, counted from 1
    Broken(
        "no_rope_layers_numbers",
        changed(SMOLLM3, no_rope_layers=[4, 8, 12, 16, 20, 24, 28, 32, 36]),
        SMOLLM3,
    ),
    Broken("published_scaling_lost", changed(LLAMA31, None), LLAMA31),
    Broken(
        "published_scaling_differs",
        changed(LLAMA31, {**LLAMA31["rope_scaling"], "factor": 16.0}),
        LLAMA31,
    ),
    Broken("published_head_dim_changed", changed(QWEN3_8B, head_dim=64), None),
    Broken("published_fraction_changed", changed(PYTHIA, rotary_pct=1.0), None),
    # others
    Broken("config_wrapped", {"model": LLAMA}, LLAMA),
    Broken(
        "model_type_missing",
        {
            "architectures": ["LlamaForCausalLM"],
            **{k: v for k, v in LLAMA.items() if k != "model_type"},
        },
        {"architectures": ["LlamaForCausalLM"], **LLAMA},
    ),
    Broken(
        "config_unreadable",
        {**LLAMA, "model_type": "minicpm3", "qk_rope_head_dim": 33},
        None,
    ),
    Broken("rope_not_described", {"model_type": "nanochat", "head_dim": 64}, None),
    Broken(
        "model_type_unknown",
        changed(LLAMA, model_type="a_model_without_a_row"),
        LLAMA,
    ),
    Broken("keys_not_read", changed(RIGHT3, {**LLAMA3, "beta_fast": 32.0}), RIGHT3),
    # layers, towers, and extensions of a published model
    Broken(
        "layer_scaling_extra",
        {
            **GEMMA3_4B,
            "rope_parameters": {
                "full_attention": GEMMA3_FULL,
                "sliding_attention": {**GEMMA3_FULL, "rope_theta": 10000.0},
            },
        },
        {
            **GEMMA3_4B,
            "rope_parameters": {"full_attention": GEMMA3_FULL, "sliding_attention": PLAIN},
        },
    ),
    Broken(
        "full_attention_not_proportional",
        {
            **GEMMA4,
            "rope_parameters": {
                "full_attention": {**GEMMA4_FULL, "rope_type": "default"},
                "sliding_attention": PLAIN,
            },
        },
        {**GEMMA4, "rope_parameters": {"full_attention": GEMMA4_FULL, "sliding_attention": PLAIN}},
    ),
    Broken(
        "longrope_lists_padded",
        changed(
            PHI3,
            {
                **LONGROPE,
                "short_factor": [*SHORT, SHORT[-1]],
                "long_factor": [*LONG, LONG[-1], LONG[-1]],
            },
        ),
        changed(PHI3, LONGROPE),
    ),
    Broken(
        "extended_twice",
        changed(CODELLAMA, {"rope_type": "linear", "factor": 4.0}),
        changed(CODELLAMA, None),
    ),
    Broken(
        "factor_small_with_axes",
        {**MROPE_LONG, "max_position_embeddings": 131072},
        None,
    ),
    Broken(
        "vision_theta_differs",
        {
            "model_type": "mistral3",
            "text_config": LLAMA,
            "vision_config": {"model_type": "pixtral", "rope_theta": 1e9},
        },
        {
            "model_type": "mistral3",
            "text_config": LLAMA,
            "vision_config": {"model_type": "pixtral", "rope_theta": 10000.0},
        },
    ),
    Broken(
        "no_rope_layers_length",
        changed(SMOLLM3, no_rope_layers=[1, 1, 1, 0] * 7),
        changed(SMOLLM3, no_rope_layers=[1, 1, 1, 0] * 9),
    ),
    Broken("window_null", {**EXAONE4, "sliding_window": None}, EXAONE4),
    Broken(
        "pairs_not_interleaved",
        {**DEEPSEEK, "rope_interleave": False},
        {**DEEPSEEK, "rope_interleave": True},
    ),
    Broken("pairs_of_another_stack", {**LLAMA, "rope_traditional": True}, None),
    Broken("rope_object_elsewhere", {**LLAMA, "rope_kwargs": YARN}, RIGHT),
    Broken(
        "rope_object_elsewhere",
        {**LLAMA, "quantization_config": {"bits": 4, "rope_scaling": YARN}},
        {**RIGHT, "quantization_config": {"bits": 4}},
    ),
    Broken(
        "rope_object_not_an_object",
        changed(LLAMA, ["linear", 4.0]),
        changed(LLAMA, {"rope_type": "linear", "factor": 4.0}),
    ),
    Broken(
        "rope_object_not_an_object",
        changed(LLAMA, "linear:4"),
        changed(LLAMA, {"rope_type": "linear", "factor": 4.0}),
    ),
    Broken(
        "rope_key_misspelled",
        changed(LLAMA, {"compress_pos_emb": 4.0}),
        changed(LLAMA, {"rope_type": "linear", "factor": 4.0}),
    ),
    Broken(
        "rope_key_misspelled",
        changed(LLAMA, {**YARN, "rope_beta_fast": 16.0}),
        changed(LLAMA, {**YARN, "beta_fast": 16.0}),
    ),
    Broken("keys_with_dots", {**LLAMA, **{f"rope_scaling.{k}": v for k, v in YARN.items()}}, RIGHT),
    Broken(
        "keys_with_dots",
        {**LLAMA, "rope_scaling": {"rope_type": "linear"}, "rope_scaling.factor": 4.0},
        changed(LLAMA, {"rope_type": "linear", "factor": 4.0}),
    ),
    Broken(
        "keys_with_dots",
        {**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}, "rope_scaling.factor": 4.0},
        None,
    ),
    Broken("keys_with_dots", {**LLAMA, "rope_parameters.full_attention.factor": 4.0}, None),
    # a factor and a trained length, which linear does not read, in llama.cpp's names
    Broken("key_of_another_stack", {**RIGHT, "rope_scaling": None, **OF_LLAMA_CPP}, None),
    Broken(
        "layer_types_unknown",
        {**GEMMA3_TEXT, "layer_types": ["sliding"] * 5 + ["full_attention"]},
        {**GEMMA3_TEXT, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]},
    ),
    Broken("layer_types_unknown", {**GEMMA3_TEXT, "layer_types": ["dilated"]}, None),
    Broken(
        "layer_types_length",
        {**SMOLLM3, "layer_types": ["full_attention"] * 32},
        {**SMOLLM3, "layer_types": ["full_attention"] * 36},
    ),
    Broken(
        "layer_types_length",
        {**GEMMA3_TEXT, "num_hidden_layers": 8, "layer_types": [*FULL_FIRST, *FULL_FIRST] * 2},
        {**GEMMA3_TEXT, "num_hidden_layers": 8, "layer_types": ([*FULL_FIRST] * 3)[:8]},
    ),
    # cut within a pattern that is not known
    Broken(
        "layer_types_length",
        {
            **LLAMA,
            "num_hidden_layers": 8,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
        None,
    ),
    Broken(
        "thetas_of_unknown_family",
        {**LLAMA, "model_type": "chatglm", "rope_ratio": 50, "rope_theta": 1000000.0},
        None,
    ),
    Broken("rope_of_fixed_family", {**GPTJ, "rope_scaling": LINEAR}, None),
    Broken(
        "alpha_beside_another_type",
        {**HUNYUAN, "rope_scaling": {"type": "yarn", "alpha": 1000.0, "factor": 1.0}},
        {**HUNYUAN, "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}},
    ),
    Broken("published_theta_of_family", {**LLAMA4_SMALL, "rope_theta": 10000.0}, None),
    Broken(
        "published_key_differs",
        {**QWEN_1, "use_dynamic_ntk": False},
        {**QWEN_1, "use_dynamic_ntk": True},
    ),
    # what a longer length needs is not known where the scaling has no name
    Broken(
        "default_with_scaling_keys",
        changed(QWEN3_8B, {"rope_type": "default", "factor": 4.0}),
        None,
        {"length": 131072},
    ),
    Broken(
        "published_heads_differ",
        {**QWEN_SMALL, "num_attention_heads": 16},
        QWEN_SMALL,
    ),
    Broken(
        "rope_type_refused",
        {**LLAMA, "model_type": "phi3", "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        None,
    ),
    Broken(
        "temperature_missing",
        {**MINISTRAL3, "rope_parameters": V5},
        {**MINISTRAL3, "rope_parameters": {**V5, "llama_4_scaling_beta": 0.1}},
    ),
    # a theta in a model of learned positions
    Broken("rope_of_fixed_family", {"model_type": "gpt2", "n_embd": 768, "rope_theta": 1e4}, None),
    # a released name tells the release of these sizes
    Broken(
        "published_scaling_lost",
        {**VICUNA, "_name_or_path": "lmsys/vicuna-7b-v1.5-16k"},
        {**VICUNA, "rope_scaling": LINEAR},
    ),
    Broken("scaling_outside_rope_object", {**LLAMA, **YARN, "rope_scaling": {}}, RIGHT),
    Broken(
        "length_beyond_positions",
        {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_positions": 1024},
        None,
        {"length": 4096},
    ),
]
