"""Decoder checkpoints: configs and weight names of Llama, Mistral, Qwen, SmolLM3 and MiniMind.

Words of this module:
  raw            the contents of a config.json, of which null keys were removed where they mean the
                 default, and to which the defaults of transformers were added
  hf_config      the contents of a config.json that is written
  model_type     as in config.json: a key of ARCHITECTURES
  spec           a RopeSpec: theta, scaling and the other settings of a rotation
  ours, theirs   the name or value of this package, and that of transformers
  layer types    "full" and "sliding" (only the latest tokens are attended to) are rotated, "nope"
                 and "nope_sliding" are not; transformers names full_attention and sliding_attention
  or 0, or ()    after a field of a DecoderConfig, which sets every size and layer_types, these only
                 satisfy the type checker
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.config.hf import from_hf, layer_specs, temperatures_from_hf, to_hf
from ropewalk.config.keys import TEMPERATURE_KEY
from ropewalk.errors import RopeError, choice, flag, integer
from ropewalk.frequencies import Dynamic
from ropewalk.frequencies.scaling import TRAINED_LENGTH_KEY
from ropewalk.models.activations import ACTIVATIONS
from ropewalk.models.checkpoint_formats import CheckpointFormat, is_legacy
from ropewalk.models.decoder import Decoder
from ropewalk.models.decoder_config import MAX_LAYERS, WINDOWED, DecoderConfig
from ropewalk.spec import RopeSpec
from ropewalk.temperatures import FloorLog


@dataclass(frozen=True)
class Architecture:
    """Options that the code of a model_type fixes, as fields of a DecoderConfig; None if the config
    decides (by `attention_bias` for q, k, v and o, by `mlp_bias`).

    class_name  of the model in transformers or MiniMind
    tied        the default of `tie_word_embeddings`
    experts     whether models of this type may have experts
    """

    class_name: str
    qk_norm: bool = False
    qkv_bias: bool | None = None
    o_bias: bool | None = None
    mlp_bias: bool | None = False
    tied: bool = False
    experts: bool = False


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("LlamaForCausalLM", mlp_bias=None),
    "mistral": Architecture("MistralForCausalLM", qkv_bias=False, o_bias=False),
    "ministral3": Architecture("Ministral3ForCausalLM", qkv_bias=False, o_bias=False),
    "smollm3": Architecture("SmolLM3ForCausalLM", mlp_bias=None, tied=True),
    "qwen2": Architecture("Qwen2ForCausalLM", qkv_bias=True, o_bias=False),
    "qwen3": Architecture("Qwen3ForCausalLM", qk_norm=True),
    "qwen3_moe": Architecture("Qwen3MoeForCausalLM", qk_norm=True, experts=True),
    "minimind": Architecture(
        "MiniMindForCausalLM", qk_norm=True, qkv_bias=False, o_bias=False, tied=True, experts=True
    ),
}
#: our field -> the config key with the same value
HF_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "length": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
    "activation": "hidden_act",
    "attention_dropout": "attention_dropout",
    "init_std": "initializer_range",
}
REQUIRED_KEYS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)
#: our field -> config key, for mixtures of experts
EXPERT_KEYS = {
    "experts_per_token": "num_experts_per_tok", "moe_intermediate_size": "moe_intermediate_size",
    "norm_topk": "norm_topk_prob", "router_aux_coef": "router_aux_loss_coef",
}  # fmt: skip
#: model_type -> what transformers takes for config keys that are absent, where our fields have
#: another default
HF_DEFAULTS: dict[str, dict[str, Any]] = {
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "ministral3": {"num_key_value_heads": 8, "rms_norm_eps": 1e-5},
    "smollm3": {"num_key_value_heads": 4},
    "qwen2": {"num_key_value_heads": 32, "sliding_window": 4096},
    "qwen3": {"num_key_value_heads": 32, "sliding_window": 4096},
    "qwen3_moe": {
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": False,
        "router_aux_loss_coef": 0.001,
    },
}
#: settings under "ropewalk" in config.json, which only this package reads
OWN_KEYS = ("precision", "dropout", "length")
#: layer types of transformers -> ours
LAYER_TYPES = {"full_attention": "full", "sliding_attention": "sliding"}


def config_from_hf(raw: Mapping[str, Any]) -> DecoderConfig:
    """Return the DecoderConfig of `raw`, the contents of a config.json; raise an error for what a
    Decoder does not support.
    """
    model_type = choice("model_type", raw.get("model_type"), ARCHITECTURES)
    architecture = ARCHITECTURES[model_type]
    for key in REQUIRED_KEYS:
        if raw.get(key) is None:
            raise RopeError(key, f"must be in the config of a {model_type}", None)
    # null means no window, or as many heads of keys as of queries; for the other keys it means the
    # default
    unset = {key for key, value in raw.items() if value is None} - {
        "sliding_window",
        "num_key_value_heads",
    }
    raw = {
        **HF_DEFAULTS.get(model_type, {}),
        **{key: value for key, value in raw.items() if key not in unset},
    }
    layers = integer("num_hidden_layers", raw["num_hidden_layers"], low=1, high=MAX_LAYERS)
    own_keys = _own_keys(raw)
    fields: dict[str, Any] = {
        ours: raw[key] for ours, key in HF_KEYS.items() if raw.get(key) is not None
    }
    if model_type == "minimind":  # has one key for both
        fields["dropout"] = fields["attention_dropout"] = raw.get("dropout", 0.0)
    fields |= {name: own_keys[name] for name in ("dropout", "length") if name in own_keys}
    choice("hidden_act", fields.get("activation", "silu"), ACTIVATIONS)
    layer_types, window = _layer_types(raw, model_type, layers)
    specs: Any = from_hf(raw, per_layer=True, precision=own_keys.get("precision", "hf_frequencies"))
    attention_bias = _flag(raw, "attention_bias", False)
    return DecoderConfig(
        **fields,
        # a spec's head_dim includes the default for a config without the key; a layer type without
        # rotation has no spec
        head_dim=next(
            (spec.head_dim for spec in specs.values() if spec is not None), raw.get("head_dim")
        ),
        encoding=_encoding(specs, layer_types),  # type: ignore[arg-type]
        layer_types=layer_types,
        window=window,
        qk_norm=architecture.qk_norm,
        qkv_bias=attention_bias if architecture.qkv_bias is None else architecture.qkv_bias,
        o_bias=attention_bias if architecture.o_bias is None else architecture.o_bias,
        mlp_bias=_flag(raw, "mlp_bias", False)
        if architecture.mlp_bias is None
        else architecture.mlp_bias,
        tie_embeddings=_flag(raw, "tie_word_embeddings", architecture.tied),
        # all supported architectures have one temperature in every layer, or none
        temperature=next(iter(temperatures_from_hf(raw).values()), None),
        **_experts(raw, model_type, layers),
    )


def _own_keys(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings under "ropewalk", which transformers has no config key for; only this
    package uses them. Raise an error for unknown ones.
    """
    own_keys = raw.get("ropewalk", {})
    if not isinstance(own_keys, Mapping) or not set(own_keys) <= set(OWN_KEYS):
        raise RopeError(
            "ropewalk", f"must be an object with no keys but {', '.join(OWN_KEYS)}", own_keys
        )
    return dict(own_keys)


def _flag(raw: Mapping[str, Any], key: str, default: bool) -> bool:
    """Return the boolean under a config key, or the default if it is absent or null."""
    return default if raw.get(key) is None else flag(key, raw[key])


def _layer_types(
    raw: Mapping[str, Any], model_type: str, layers: int
) -> tuple[tuple[str, ...], int | None]:
    """Return the type of each of the `layers` layers, and the window of the sliding ones (None if
    no layer is sliding, or if the config uses no window).

    A Qwen 2, a Qwen 3 or a SmolLM3 may list the types in `layer_types`. Without a list, all layers
    are full if there is no window. If there is one, the layers from `max_window_layers` on are
    sliding in a Qwen 2 or 3, those that are not rotated in a SmolLM3, and all layers in the other
    models. Layers that a SmolLM3 does not rotate then become "nope" or "nope_sliding".
    """
    window = raw.get("sliding_window")
    # Mistral models always use sliding_window, the others only if use_sliding_window is true
    if model_type not in ("mistral", "ministral3") and not _flag(raw, "use_sliding_window", False):
        window = None
    window = None if window is None else integer("sliding_window", window, low=1)
    # of these models, only the code of a Qwen 2, a Qwen 3 and a SmolLM3 reads layer_types
    declared = raw.get("layer_types")
    if declared is not None and model_type in ("qwen2", "qwen3", "smollm3"):
        if not isinstance(declared, list | tuple) or len(declared) != layers:
            raise RopeError(
                "layer_types", f"must list the type of each of the {layers} layers", declared
            )
        layer_types = tuple(
            LAYER_TYPES[choice("layer_types", each, LAYER_TYPES)] for each in declared
        )
    elif window is not None and model_type in ("qwen2", "qwen3"):
        # 28: transformers' default
        first_sliding = integer("max_window_layers", raw.get("max_window_layers", 28), low=0)
        layer_types = tuple(
            "sliding" if index >= first_sliding else "full" for index in range(layers)
        )
    else:
        layer_types = ("full" if window is None else "sliding",) * layers
    if model_type == "smollm3":
        if declared is None and window is not None:
            # by default the layers that are not rotated have the window
            layer_types = tuple(
                "full" if spec is not None else "sliding" for spec in layer_specs(raw)
            )
        layer_types = _with_nope_layers(raw, layer_types)
    return layer_types, window if any(each in WINDOWED for each in layer_types) else None


def _with_nope_layers(raw: Mapping[str, Any], layer_types: tuple[str, ...]) -> tuple[str, ...]:
    """Replace the type of the layers that SmolLM3 does not rotate by "nope", or "nope_sliding" if
    they have a window.
    """
    names = {"full": "nope", "sliding": "nope_sliding"}
    # for each layer, whether it has a rotation
    rotated = [
        spec is not None for spec in layer_specs({**raw, "num_hidden_layers": len(layer_types)})
    ]
    return tuple(
        each if rotates else names[each] for each, rotates in zip(layer_types, rotated, strict=True)
    )


def _encoding(
    specs: Any, layer_types: tuple[str, ...]
) -> str | RopeSpec | dict[str, RopeSpec | None]:
    """Return a DecoderConfig's encoding ("none", one spec, or specs by layer type) from {layer type
    of transformers: spec, None without rotation}; `layer_types` are ours, one for each layer.
    """
    by_type = {LAYER_TYPES[name]: spec for name, spec in specs.items() if name in LAYER_TYPES}
    distinct = {by_type[layer_type] for layer_type in layer_types if layer_type in by_type}
    if not distinct:  # all layers are "nope": keep the rotation that the config describes anyway
        distinct = set(specs.values()) - {None}
    if not any(distinct):  # the config describes no rotation
        return "none"
    return distinct.pop() if len(distinct) == 1 else by_type


def _experts(raw: Mapping[str, Any], model_type: str, layers: int) -> dict[str, Any]:
    """Return the config fields of a mixture of experts in a model with `layers` layers; empty if
    the model has no experts. Raise an error if the number of experts is missing.
    """
    if not ARCHITECTURES[model_type].experts or (
        model_type == "minimind" and not _flag(raw, "use_moe", False)
    ):
        return {}
    count = raw.get("num_experts", raw.get("num_local_experts"))
    if count is None:
        raise RopeError(
            "num_experts", f"must be in the config of a {model_type} with experts", None
        )
    fields = {ours: raw[key] for ours, key in EXPERT_KEYS.items() if raw.get(key) is not None}
    step = integer("decoder_sparse_step", raw.get("decoder_sparse_step", 1), low=1)
    mlp_only = raw.get("mlp_only_layers") or ()
    if not isinstance(mlp_only, list | tuple):
        raise RopeError("mlp_only_layers", "must be a list of layer numbers", mlp_only)
    dense = {integer("mlp_only_layers", index, low=0, high=layers - 1) for index in mlp_only}
    # only every step-th layer has experts
    dense |= {index for index in range(layers) if (index + 1) % step != 0}
    return {"num_experts": count, "dense_layers": tuple(sorted(dense)), **fields}


def model_type_of(config: DecoderConfig) -> str:
    """Return the transformers model_type closest to this config; `config_to_hf` checks that it can
    express every field.
    """
    # each field is one that the model types further below do not have
    if config.num_experts:
        return "qwen3_moe"
    if isinstance(config.temperature, FloorLog):
        return "ministral3"
    if config.qk_norm:
        return "qwen3"
    if {"nope", "nope_sliding"} & {*(config.layer_types or ())}:
        return "smollm3"
    if config.qkv_bias and not config.o_bias:
        return "qwen2"
    if config.window is not None:
        return "mistral"
    # transformers' Llama needs num_heads to divide hidden_size; a Mistral without window and biases
    # is the same model
    return (
        "mistral"
        if config.hidden_size % config.num_heads and not (config.qkv_bias or config.mlp_bias)
        else "llama"
    )


def config_to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Return the contents of a config.json from which transformers builds the same model, or raise
    an error.
    """
    if config.attention != "softmax":
        raise RopeError(
            "attention", "must be 'softmax' to be saved for transformers", config.attention
        )
    # if every layer is a "nope" layer, none uses the encoding, and any spec describes the model
    all_nope = set(config.layer_types or ()) <= {"nope", "nope_sliding"}
    unrotated = all_nope and config.input_encoding is None
    spec = (
        RopeSpec(head_dim=config.head_dim or 0)
        if config.encoding == "rope" or unrotated
        else config.encoding
    )
    if not isinstance(spec, RopeSpec):
        raise RopeError(
            "encoding",
            "must be 'rope' or one RopeSpec for all layers to be saved for transformers",
            spec,
        )
    model_type = model_type_of(config)
    if model_type == "llama" and config.hidden_size % config.num_heads:
        rule = (
            f"must be a multiple of num_heads = {config.num_heads} in a model with biases to be "
            "saved for transformers"
        )
        raise RopeError("hidden_size", rule, config.hidden_size)
    architecture = ARCHITECTURES[model_type]
    hf_config = {key: getattr(config, ours) for ours, key in HF_KEYS.items()}
    hf_config |= {
        "head_dim": config.head_dim,
        "model_type": model_type,
        "architectures": [architecture.class_name],
        "tie_word_embeddings": config.tie_embeddings,
        **_window_keys(config, model_type),
    }
    if config.num_experts:
        hf_config |= {key: getattr(config, ours) for ours, key in EXPERT_KEYS.items()}
        hf_config |= {
            "num_experts": config.num_experts,
            "decoder_sparse_step": 1,
            "mlp_only_layers": list(config.dense_layers),
        }
    if architecture.qkv_bias is None:
        hf_config["attention_bias"] = config.qkv_bias
    if architecture.mlp_bias is None:
        hf_config["mlp_bias"] = config.mlp_bias
    if model_type == "smollm3":  # in this key 1 means that the layer is rotated
        rotated = [not each.startswith("nope") for each in config.layer_types or ()]
        hf_config["no_rope_layers"] = [int(each) for each in rotated]
    rope = to_hf(spec, model_type=model_type)
    if isinstance(config.temperature, FloorLog) and model_type == "ministral3":
        # no other model_type reads this temperature
        keys = {
            TEMPERATURE_KEY: config.temperature.scale,
            TRAINED_LENGTH_KEY: config.temperature.length,
        }
        rope["rope_parameters"] = {**rope["rope_parameters"], **keys}
    # max_position_embeddings is the trained length for dynamic NTK, and the served length for all
    # others
    hf_config = hf_config | rope if isinstance(spec.scaling, Dynamic) else rope | hf_config
    own_keys = {"precision": spec.precision} if spec.precision != "hf_frequencies" else {}
    own_keys |= {"dropout": config.dropout} if config.dropout else {}
    own_keys |= (
        {"length": config.length} if config.length != hf_config["max_position_embeddings"] else {}
    )
    hf_config |= {"ropewalk": own_keys} if own_keys else {}
    _check_round_trip(config.with_(encoding="none" if unrotated else spec), hf_config, model_type)
    return hf_config


def _window_keys(config: DecoderConfig, model_type: str) -> dict[str, Any]:
    """Return the config keys that describe the attention window of each layer."""
    if model_type == "llama":  # has no window
        return {}
    keys = {"sliding_window": config.window, "use_sliding_window": config.window is not None}
    if model_type in ("mistral", "ministral3", "qwen3_moe"):  # have one type for all layers
        return keys
    names = [
        "sliding_attention" if each.endswith("sliding") else "full_attention"
        for each in config.layer_types or ()
    ]
    # max_window_layers is for readers that do not know layer_types; 0 makes all layers sliding
    return {"layer_types": names, **keys, "max_window_layers": 0}


def _check_round_trip(config: DecoderConfig, hf_config: Mapping[str, Any], model_type: str) -> None:
    """Read the config back and raise an error for a field that this model_type cannot express."""
    restored = config_from_hf(hf_config)
    for name in restored.__dataclass_fields__:
        ours, theirs = getattr(config, name), getattr(restored, name)
        if ours != theirs:
            raise RopeError(
                name,
                f"must be {theirs!r} to be saved as a {model_type}, the closest transformers model",
                ours,
            )


def name_from_hf(hf_name: str, config: DecoderConfig) -> str | None:
    """Return our name of a tensor; None for rotary tables and for a copy of the tied embeddings."""
    if is_legacy(hf_name) or (hf_name == "lm_head.weight" and config.tie_embeddings):
        return None
    return hf_name.removeprefix("model.")


def name_to_hf(name: str, config: DecoderConfig) -> str:
    """Return the name of our weight in transformers."""
    return name if name.startswith("lm_head.") else "model." + name


def parts(name: str, config: DecoderConfig) -> dict[str, int]:
    """Return {name: rows} of the tensors that files store in place of one of our packed weights,
    which is these tensors concatenated in this order: q, k and v; gate and up; or the matrices of
    all experts. Empty if the weight `name` is not packed.
    """
    # rpartition returns an empty stem if the name does not contain the text; a name in a model
    # starts with "layers.<i>."
    stem, _, suffix = name.rpartition("self_attn.qkv_proj.")
    if stem:
        heads = {
            "q": config.num_heads,
            "k": config.num_kv_heads or 0,
            "v": config.num_kv_heads or 0,
        }
        return {
            f"{stem}self_attn.{part}_proj.{suffix}": count * (config.head_dim or 0)
            for part, count in heads.items()
        }
    stem, _, suffix = name.rpartition("mlp.gate_up_proj.")
    if stem:
        return {
            f"{stem}mlp.{part}_proj.{suffix}": config.intermediate_size for part in ("gate", "up")
        }
    stem, _, suffix = name.rpartition("mlp.experts.")
    if not stem:
        return {}
    rows = {"down": config.hidden_size}
    if suffix == "gate_up_proj":
        rows = {"gate": config.moe_intermediate_size or 0, "up": config.moe_intermediate_size or 0}
    experts = range(config.num_experts)
    return {
        f"{stem}mlp.experts.{i}.{part}_proj.weight": count
        for i in experts
        for part, count in rows.items()
    }


DECODER_FORMATS = dict.fromkeys(
    ARCHITECTURES,
    CheckpointFormat(config_from_hf, config_to_hf, Decoder, name_from_hf, name_to_hf, parts),
)
