"""A tiny config of each family that the installed transformers has: the defaults of its class with
small sizes.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from types import ModuleType
from typing import Any

from transformers import PreTrainedModel
from transformers.configuration_utils import PretrainedConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCAB = 99
#: special tokens have ids below it, so that a test can draw the others
PLAIN_TOKENS = 64
HEADS, HEAD_DIM = 2, 32
HIDDEN = HEADS * HEAD_DIM
LENGTH = 512

#: a pattern of config keys -> what their integers become; the first that matches the whole key
#: counts
SIZES: tuple[tuple[str, Any], ...] = (
    (r"in_channels|num_channels|in_chans|feature_size|codebook_dim|window_size", lambda size: size),
    (r"n_group|num_expert_group", lambda size: min(size, 2)),
    (r"topk_group|num_kv_shared_layers", lambda size: min(size, 1)),
    (r"qk_rope_head_dim", lambda size: min(size, 16)),
    (
        r"qk_nope_head_dim|(\w+_)?v_head_dim|(kv|q|o)_lora_rank|num_mel_bins|hidden_size_per_layer_input|rotary_dim",
        16,
    ),
    (r"(\w+_)?head_(dim|size)|query_pre_attn_scalar|kv_channels|d_kv", HEAD_DIM),
    (
        r"(max_position|max_source|max_target)\w*|n_positions|n_ctx|max_seq_len|model_max_length",
        LENGTH,
    ),
    (
        r"(\w+_)?vocab_size(_\w+)?|encoder_hash_byte_group_vocab|ngram_vocab_size_base|num_embeddings|n_words",
        VOCAB,
    ),
    (r"codebook_size|codebook_vocab_size|audio_vocab_size", 64),
    (
        r"(\w+_)?num_hidden_layers|(\w+_)?num_layers|n_layers?|depth|(\w+_)?(en|de)coder_layers|num_blocks",
        2,
    ),
    (r"(\w+_)?(attention_|num_|n_)heads?|(\w+_)?num_(\w+_)?heads|index_n_heads", HEADS),
    (r"num_experts_per_tok(en)?|moe_top_?k|moe_k|top_k_experts", lambda size: min(size, 2)),
    (r"num_(local_)?experts|n_routed_experts|moe_num_experts", 4),
    (
        r"(\w+_)?(hidden|embedding|output)_size(_global)?|(\w+_)?(hidden|embed|embedding|output|projection)_dim|d_model|n_embd|emb_dim",
        HIDDEN,
    ),
    (
        r"lru_width|condition_dim|output_channels|vector_quantization_hidden_dimension|upsample_groups",
        HIDDEN,
    ),
    (r"(\w+_)?(intermediate|ffn|mlp)(_hidden)?_(size|dim)(_mlp)?|d_ff", 48),
    (r"sliding_window|attention_window_size|local_attention|attention_chunk_size", 6),
    (r"patch_size", 4),
    (r"image_size|num_position_embeddings", 16),
    (r"original_max_position_embeddings", LENGTH // 4),
)
KEY_HEADS = r"(\w+_)?num_(key_value_\w*heads|kv_heads)|kv_n_heads"
#: lists of sizes that are not one for each layer
LISTS = r"image_size|moe_intermediate_size|moe_num_experts"
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
LAYER_TYPES = ("layer_types", "layers_block_type")
#: keys that are no sizes
KEPT = {"model_type", "transformers_version", "architectures", "dtype", "id2label", "label2id"}

#: model_type -> keys that the rules do not find
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 1e4}
TWO_TYPES = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 6}
EXPERTS = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 48}
OTHER_KEYS: dict[str, dict[str, Any]] = {
    "chameleon": {"vocabulary_map": {"<image>": 5, "IMGIMGAZ": 6}},
    "codegen": {"n_head": 4, "n_embd": 128},
    "cohere_compass_text": {
        **TWO_TYPES,
        "rope_parameters": {
            name: {**PLAIN_ROPE, "mrope_section": [6, 5, 5]} for name in TWO_TYPES["layer_types"]
        },
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 1, "rope_theta": 1e4, "clip_qkv": 8},
        "ffn_config": {
            "ffn_hidden_size": 48,
            "moe_num_experts": 4,
            "moe_top_k": 2,
            "hidden_size": HIDDEN,
        },
    },
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"], "n_group": 1, "topk_group": 1},
    "deepseek_v2": {"n_group": 2, "topk_group": 1},
    "deepseek_v4": {"head_dim": 128, "qk_rope_head_dim": 16},
    "diffusion_gemma_text": EXPERTS,
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4},
    "emu3": {"vocabulary_map": {"<image>": 5, "<|extra_200|>": 6, "<|visual token 000000|>": 7}},
    "ernie4_5_vl_moe_text": {"rope_parameters": {**PLAIN_ROPE, "mrope_section": [6, 6, 4]}},
    "esm": {
        "vocab_size": VOCAB,
        "position_embedding_type": "rotary",
        "pad_token_id": 1,
        "mask_token_id": 2,
    },
    "gemma3n_text": {
        **TWO_TYPES,
        "num_kv_shared_layers": 0,
        "activation_sparsity_pattern": [0.0, 0.0],
    },
    "hunyuan_vl_text": {"rope_parameters": {**PLAIN_ROPE, "mrope_section": [4, 4, 4, 4]}},
    "hunyuan_vl_vision": {
        "max_image_size": 64,
        "min_image_size": 16,
        "max_vit_seq_len": 64,
        "img_max_token_num": 64,
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "llama4_vision_model": {
        "intermediate_size": 4 * HIDDEN,
        **dict.fromkeys(
            ("projector_input_dim", "projector_output_dim", "vision_output_dim"), HIDDEN
        ),
    },
    "mamba2": {"num_heads": 4},
    "molmo2_adapter": {"vision_feature_layer": [-1, -2]},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 48},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 32,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
    },
    "sam2_video": {"memory_attention_rope_feat_sizes": [4, 4]},
    "sam3_tracker_video": {"memory_attention_rope_feat_sizes": [4, 4]},
    "sapiens2": {"num_key_value_heads_per_layer": [2, 1]},
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [16, 48], "axial_pos_shape": [4, 8]},
    "step3p5": {
        **TWO_TYPES,
        "mlp_layer_types": ["dense", "sparse"],
        "rope_parameters": dict.fromkeys(TWO_TYPES["layer_types"], PLAIN_ROPE),
    },
    "wav2vec2-bert": {"vocab_size": VOCAB, "position_embeddings_type": "rotary"},
    "wav2vec2-conformer": {"vocab_size": VOCAB, "position_embeddings_type": "rotary"},
    "zamba2": {
        "use_mem_rope": True,
        "mamba_headdim": 16,
        "n_mamba_heads": 8,
        "chunk_size": 4,
        "attention_hidden_size": 128,
        "attention_head_dim": 64,
    },
}


def tiny_config(model_type: str) -> PretrainedConfig:
    """A config with two layers or one of each type, two heads of 32 dimensions and 99 tokens."""
    config_class = CONFIG_MAPPING[model_type]
    return config_class(**tiny_keys(config_class()))


def tiny_keys(default: PretrainedConfig) -> dict[str, Any]:
    """Return the keys of a tiny config, with its nested configs, that differ from the class's
    defaults.
    """
    values = {key: value for key, value in default.to_dict().items() if key not in KEPT}
    kept = _kept_layers(values)
    keys: dict[str, Any] = {}
    for key, value in values.items():
        nested = vars(default).get(key)
        if isinstance(nested, PretrainedConfig):
            keys[key] = {**tiny_keys(nested), "model_type": nested.model_type}
        elif kept and isinstance(value, list) and len(value) == _layer_count(values):
            keys[key] = [value[layer] for layer in kept]
        elif key in LAYER_COUNTS and kept:
            keys[key] = len(kept)
        elif re.fullmatch(KEY_HEADS, key):
            heads = {
                values[each]
                for each in values
                if re.fullmatch(r"(\w+_)?num_attention_heads|n_heads", each)
            }
            keys[key] = HEADS if value is None or value in heads else 1
        elif key in ("head_dim", "num_experts_per_tok") and value is None:
            keys[key] = HEAD_DIM if key == "head_dim" else 2
        elif key == "rope_parameters" and value:
            continue
        elif (tiny := _tiny(key, value)) != value:
            keys[key] = tiny
    if values.get("qk_rope_head_dim") and values.get("head_dim") == values["qk_rope_head_dim"]:
        keys["head_dim"] = keys.get("qk_rope_head_dim", values["qk_rope_head_dim"])
    keys |= OTHER_KEYS.get(default.model_type, {})
    if values.get("rope_parameters") and "rope_parameters" not in keys:
        keys["rope_parameters"] = _tiny_rope(default, {**values, **keys})
    return keys


def _layer_count(values: dict[str, Any]) -> int | None:
    return next((values[key] for key in LAYER_COUNTS if isinstance(values.get(key), int)), None)


def _kept_layers(values: dict[str, Any]) -> list[int]:
    """Return the index of the first layer of each type, and at least 0 and 1; [] for two layers or
    fewer.
    """
    count = _layer_count(values)
    if count is None or count <= 2:
        return []
    types = next((values[key] for key in LAYER_TYPES if isinstance(values.get(key), list)), [])
    first = {types.index(name) for name in types}
    return sorted(first if len(first) > 1 else {0, 1})


def _tiny(key: str, value: Any) -> Any:
    """Return a small value for a config key, by the rules of SIZES."""
    if isinstance(value, list | tuple):
        return [_tiny(key, each) for each in value] if re.fullmatch(LISTS, key) else value
    if not isinstance(value, int) or isinstance(value, bool) or not value:
        return value
    if re.fullmatch(r"(\w+_)?token_(id|index)", key):
        return value if value < PLAIN_TOKENS else 3 + value % (PLAIN_TOKENS - 3)
    rule = next((rule for pattern, rule in SIZES if re.fullmatch(pattern, key)), value)
    return rule(value) if callable(rule) else rule


def _tiny_rope(config: PretrainedConfig, values: dict[str, Any]) -> dict[str, Any]:
    """Return the rope of the class's defaults with theta, factors and sections that fit the tiny
    head.
    """
    rope = values["rope_parameters"]
    if any(isinstance(value, dict) for value in rope.values()):
        parts = {
            name: {**values, "rope_parameters": part}
            for name, part in rope.items()
            if isinstance(part, dict)
        }
        return {**rope, **{name: _tiny_rope(config, part) for name, part in parts.items()}}
    head_dim = values.get("head_dim") or HEAD_DIM
    pairs = (
        int(
            head_dim
            * (rope.get("partial_rotary_factor") or values.get("partial_rotary_factor") or 1)
        )
        // 2
    )
    rope = {key: _tiny(key, value) for key, value in rope.items()}
    rope |= {
        key: value[:pairs] for key, value in rope.items() if key in ("short_factor", "long_factor")
    }
    if rope.get("rope_theta") is None and "rope_theta" in rope:
        rope["rope_theta"] = 1e4
    sections = rope.get("mrope_section") or _default_sections(config)
    return {**rope, "mrope_section": _share_out(pairs, sections)} if sections else rope


def _default_sections(config: PretrainedConfig) -> list[int]:
    """Return the sections that a family's code uses if the config has none."""
    if not hasattr(config, "vocab_size"):
        return []
    found = re.search(
        r'get\("mrope_section", (\[.*?\])\)', inspect.getsource(code_of(type(config)))
    )
    return json.loads(found[1]) if found else []


def _share_out(pairs: int, sections: list[int]) -> list[int]:
    """Return as many sections in about the same proportion, for `pairs` pairs."""
    shares = [pairs * section // sum(sections) for section in sections]
    for axis in range(pairs - sum(shares)):
        shares[-1 - axis if sections[-1] >= sections[0] else axis] += 1
    return shares


def code_of(config_class: type[PretrainedConfig]) -> ModuleType:
    """Return the modeling file beside the file of a config class."""
    return importlib.import_module(config_class.__module__.replace("configuration_", "modeling_"))


#: heads of a model, the largest first
TASKS = (
    "CAUSAL_LM",
    "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "MASKED_LM",
    "CTC",
)
ENDINGS = (
    "ForConditionalGeneration",
    "ForCausalLM",
    "ForMaskedLM",
    "ForCTC",
    "Model",
    "Transformer",
    "Encoder",
    "",
)


def model_class(model_type: str) -> type[PreTrainedModel] | None:
    """Return the class of a family with the most of its parts: with a language model's head, or
    else the last in its file.
    """
    config_class = CONFIG_MAPPING[model_type]
    code = code_of(config_class)
    for names in (
        *(getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES") for task in TASKS),
        modeling_auto.MODEL_MAPPING_NAMES,
    ):
        found = names.get(model_type)
        found = (
            getattr(code, found if isinstance(found, str) else found[0], None) if found else None
        )
        if found is not None and found.config_class is config_class:
            return found
    own = [
        each
        for each in vars(code).values()
        if inspect.isclass(each)
        and issubclass(each, PreTrainedModel)
        and each.__module__ == code.__name__
        and each.config_class is config_class
        and "forward" in vars(each)
    ]
    return next(
        (each for ending in ENDINGS for each in reversed(own) if each.__name__.endswith(ending)),
        None,
    )
