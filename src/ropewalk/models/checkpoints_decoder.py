"""The Decoder in the words of Hugging Face: configs and weight names of Llama, Mistral, Qwen, SmolLM3 and MiniMind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.errors import RopeError, choice, flag, integer
from ropewalk.frequencies import Dynamic
from ropewalk.interop.config.hf import from_hf, to_hf
from ropewalk.models.activations import ACTIVATIONS
from ropewalk.models.decoder_config import MOST_LAYERS, DecoderConfig
from ropewalk.spec import RopeSpec


@dataclass(frozen=True)
class Facts:
    """What a model_type has without saying so; None: its config says (`attention_bias`, `mlp_bias`)."""

    architecture: str
    qk_norm: bool = False
    qkv_bias: bool | None = None
    o_bias: bool | None = None
    mlp_bias: bool | None = False
    tied: bool = False
    experts: bool = False


MODEL_TYPES: dict[str, Facts] = {
    "llama": Facts("LlamaForCausalLM", mlp_bias=None),
    "mistral": Facts("MistralForCausalLM", qkv_bias=False, o_bias=False),
    "smollm3": Facts("SmolLM3ForCausalLM", mlp_bias=None, tied=True),
    "qwen2": Facts("Qwen2ForCausalLM", qkv_bias=True, o_bias=False),
    "qwen3": Facts("Qwen3ForCausalLM", qk_norm=True),
    "qwen3_moe": Facts("Qwen3MoeForCausalLM", qk_norm=True, experts=True),
    "minimind": Facts("MiniMindForCausalLM", qk_norm=True, qkv_bias=False, o_bias=False, tied=True, experts=True),
}
#: our field -> the key of a config.json, where the value is the same
SAME = {
    "vocab_size": "vocab_size", "hidden_size": "hidden_size", "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads", "num_kv_heads": "num_key_value_heads",
    "length": "max_position_embeddings", "norm_eps": "rms_norm_eps", "activation": "hidden_act",
    "attention_dropout": "attention_dropout", "init_std": "initializer_range",
}  # fmt: skip
REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
EXPERTS = {
    "experts_per_token": "num_experts_per_tok", "moe_intermediate_size": "moe_intermediate_size",
    "norm_topk": "norm_topk_prob", "router_aux_coef": "router_aux_loss_coef",
}  # fmt: skip
#: layer types of transformers -> ours
KINDS = {"full_attention": "full", "sliding_attention": "sliding"}
#: numeric state of rotations in old files; ours is a function of the config
LEGACY = re.compile(
    r"(^|\.)(inv_freq|original_inv_freq|freqs_cos|freqs_sin|freqs_cis|cos_cached|sin_cached|embed_positions\.\w+)$"
)


def config_from_hf(raw: Mapping[str, Any]) -> DecoderConfig:
    """The config of a Hugging Face decoder; what a Decoder cannot be is refused by name."""
    model_type = choice("model_type", raw.get("model_type"), MODEL_TYPES)
    facts = MODEL_TYPES[model_type]
    for key in REQUIRED:
        if raw.get(key) is None:
            raise RopeError(key, f"must be given in the config of a {model_type}", None)
    layers = integer("num_hidden_layers", raw["num_hidden_layers"], low=1, high=MOST_LAYERS)
    own = _own_keys(raw)
    found: dict[str, Any] = {ours: raw[key] for ours, key in SAME.items() if raw.get(key) is not None}
    if model_type == "minimind":
        found["dropout"] = found["attention_dropout"] = raw.get("dropout", 0.0)
    found |= {"dropout": own["dropout"]} if "dropout" in own else {}
    choice("hidden_act", found.get("activation", "silu"), ACTIVATIONS)
    kinds, window = _layer_kinds(raw, model_type, layers)
    specs = from_hf(raw, per_layer=True, precision=own.get("precision", "hf_frequencies"))
    rotated = next(spec for spec in specs.values() if spec is not None)  # type: ignore[union-attr]
    biased = _flag(raw, "attention_bias", False)
    return DecoderConfig(
        **found,
        head_dim=rotated.head_dim,
        encoding=_encoding(specs, kinds),  # type: ignore[arg-type]
        layer_types=kinds,
        window=window,
        qk_norm=facts.qk_norm,
        qkv_bias=biased if facts.qkv_bias is None else facts.qkv_bias,
        o_bias=biased if facts.o_bias is None else facts.o_bias,
        mlp_bias=_flag(raw, "mlp_bias", False) if facts.mlp_bias is None else facts.mlp_bias,
        tie_embeddings=_flag(raw, "tie_word_embeddings", facts.tied),
        **_experts(raw, model_type, layers),
    )


def _own_keys(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What only this package writes and reads: choices that transformers has no key for."""
    own = raw.get("ropewalk", {})
    if not isinstance(own, Mapping) or not set(own) <= {"precision", "dropout"}:
        raise RopeError("ropewalk", "must be an object with no more than precision and dropout", own)
    return dict(own)


def _flag(raw: Mapping[str, Any], key: str, default: bool) -> bool:
    return default if raw.get(key) is None else flag(key, raw[key])


def _layer_kinds(raw: Mapping[str, Any], model_type: str, layers: int) -> tuple[tuple[str, ...], int | None]:
    """Each layer's type, and the window of sliding ones."""
    window = raw.get("sliding_window")
    if model_type != "mistral" and not _flag(raw, "use_sliding_window", False):
        window = None
    window = None if window is None else integer("sliding_window", window, low=1)
    given = raw.get("layer_types")
    if given is not None and model_type in ("qwen2", "qwen3", "smollm3"):
        if not isinstance(given, list | tuple) or len(given) != layers:
            raise RopeError("layer_types", f"must name the type of each of the {layers} layers", given)
        kinds = tuple(KINDS[choice("layer_types", kind, KINDS)] for kind in given)
    elif window is not None and model_type in ("qwen2", "qwen3"):
        first = integer("max_window_layers", raw.get("max_window_layers", 28), low=0)
        kinds = tuple("sliding" if index >= first else "full" for index in range(layers))
    else:
        kinds = ("full" if window is None else "sliding",) * layers
    if model_type == "smollm3":
        kinds = _with_still_layers(raw, kinds)
    return kinds, window if "sliding" in kinds else None


def _with_still_layers(raw: Mapping[str, Any], kinds: tuple[str, ...]) -> tuple[str, ...]:
    turns = raw.get("no_rope_layers")
    if turns is None:
        every = integer("no_rope_layer_interval", raw.get("no_rope_layer_interval", 4), low=1)
        turns = [int((index + 1) % every != 0) for index in range(len(kinds))]
    if not isinstance(turns, list | tuple) or len(turns) != len(kinds):
        raise RopeError("no_rope_layers", f"must hold 1 (turns) or 0 for each of the {len(kinds)} layers", turns)
    still = [not integer("no_rope_layers", turn, low=0, high=1) for turn in turns]
    if any(rests and kind == "sliding" for rests, kind in zip(still, kinds, strict=True)):
        raise RopeError("no_rope_layers", "must turn the sliding layers: only full ones can go without", turns)
    return tuple("nope" if rests else kind for rests, kind in zip(still, kinds, strict=True))


def _encoding(specs: Any, kinds: tuple[str, ...]) -> RopeSpec | dict[str, RopeSpec | None]:
    by_kind = {KINDS[name]: spec for name, spec in specs.items() if name in KINDS}
    distinct = {by_kind[kind] for kind in kinds if kind in by_kind} or {spec for spec in specs.values() if spec is not None}
    return distinct.pop() if len(distinct) == 1 else by_kind


def _experts(raw: Mapping[str, Any], model_type: str, layers: int) -> dict[str, Any]:
    if not MODEL_TYPES[model_type].experts or (model_type == "minimind" and not _flag(raw, "use_moe", False)):
        return {}
    count = raw.get("num_experts", raw.get("num_local_experts"))
    if count is None:
        raise RopeError("num_experts", f"must be given in the config of a {model_type} with experts", None)
    found = {ours: raw[key] for ours, key in EXPERTS.items() if raw.get(key) is not None}
    if model_type == "qwen3_moe":
        found.setdefault("norm_topk", False)
    step = integer("decoder_sparse_step", raw.get("decoder_sparse_step", 1), low=1)
    only = raw.get("mlp_only_layers") or ()
    if not isinstance(only, list | tuple):
        raise RopeError("mlp_only_layers", "must be a list of layer numbers", only)
    dense = {integer("mlp_only_layers", index, low=0, high=layers - 1) for index in only}
    dense |= {index for index in range(layers) if (index + 1) % step}
    return {"num_experts": count, "dense_layers": tuple(sorted(dense)), **found}


def model_type_of(config: DecoderConfig) -> str:
    """The model_type of transformers that is this Decoder."""
    if config.num_experts:
        return "qwen3_moe"
    if config.qk_norm:
        return "qwen3"
    if "nope" in config.layer_types:  # type: ignore[operator]
        return "smollm3"
    if config.qkv_bias and not config.o_bias:
        return "qwen2"
    if config.window is not None:
        return "mistral"
    # transformers' Llama wants heads that divide; a Mistral without a window is the same without biases
    return "mistral" if config.hidden_size % config.num_heads and not (config.qkv_bias or config.mlp_bias) else "llama"


def config_to_hf(config: DecoderConfig) -> dict[str, Any]:
    """The object of a config.json with which transformers builds the same model; what it has no model for is refused."""
    if config.attention != "softmax":
        raise RopeError("attention", "must be 'softmax': transformers has no such model", config.attention)
    spec = RopeSpec(head_dim=config.head_dim or 0) if config.encoding == "rope" else config.encoding
    if not isinstance(spec, RopeSpec):
        raise RopeError("encoding", "must be one RopeSpec (or 'rope') for all layers: transformers has no such model", spec)
    model_type = model_type_of(config)
    if model_type == "llama" and config.hidden_size % config.num_heads:
        rule = f"must be a multiple of num_heads = {config.num_heads}, or go without biases, for transformers to load it"
        raise RopeError("hidden_size", rule, config.hidden_size)
    facts = MODEL_TYPES[model_type]
    written = {key: getattr(config, ours) for ours, key in SAME.items()} | {"head_dim": config.head_dim}
    written |= {"model_type": model_type, "architectures": [facts.architecture], "tie_word_embeddings": config.tie_embeddings}
    written |= _window_keys(config, model_type) | _expert_keys(config)
    if facts.qkv_bias is None:
        written["attention_bias"] = config.qkv_bias
    if facts.mlp_bias is None:
        written["mlp_bias"] = config.mlp_bias
    if model_type == "smollm3":
        written["no_rope_layers"] = [int(kind != "nope") for kind in config.layer_types]  # type: ignore[union-attr]
    rope = to_hf(spec, model_type=model_type)
    # dynamic NTK reads its trained length from there; of the others it is only what the model is served at
    written = written | rope if isinstance(spec.scaling, Dynamic) else rope | written
    own = {"precision": spec.precision} if spec.precision != "hf_frequencies" else {}
    own |= {"dropout": config.dropout} if config.dropout else {}
    written |= {"ropewalk": own} if own else {}
    _refuse_what_would_change(config.with_(encoding=spec, length=written["max_position_embeddings"]), written, model_type)
    return written


def _window_keys(config: DecoderConfig, model_type: str) -> dict[str, Any]:
    if model_type == "llama":
        return {}
    if model_type in ("mistral", "qwen3_moe"):
        return {"sliding_window": config.window, "use_sliding_window": config.window is not None}
    kinds = ["sliding_attention" if kind == "sliding" else "full_attention" for kind in config.layer_types]  # type: ignore[union-attr]
    used = config.window is not None
    return {"layer_types": kinds, "sliding_window": config.window, "use_sliding_window": used, "max_window_layers": 0}


def _expert_keys(config: DecoderConfig) -> dict[str, Any]:
    if not config.num_experts:
        return {}
    keys = {key: getattr(config, ours) for ours, key in EXPERTS.items()}
    beside = {"decoder_sparse_step": 1, "mlp_only_layers": list(config.dense_layers)}
    return {"num_experts": config.num_experts, **keys, **beside}


def _refuse_what_would_change(config: DecoderConfig, written: Mapping[str, Any], model_type: str) -> None:
    """Read the keys back: a field that would not be the same has no place in this model_type."""
    read = config_from_hf(written)
    for name in read.__dataclass_fields__:
        ours, theirs = getattr(config, name), getattr(read, name)
        if ours != theirs:
            raise RopeError(name, f"must be {theirs!r} to be saved as a {model_type}, the nearest transformers has", ours)


def to_ours(key: str, config: DecoderConfig) -> str | None:
    """Our name of a checkpoint's entry; None for old tables of the rotation and a repetition of tied embeddings."""
    if LEGACY.search(key) or (key == "lm_head.weight" and config.tie_embeddings):
        return None
    return key.removeprefix("model.")


def to_theirs(key: str, config: DecoderConfig) -> str:
    """The name transformers knows our weight by."""
    return key if key.startswith("lm_head.") else "model." + key


def pieces(key: str, config: DecoderConfig) -> tuple[tuple[str, int], ...]:
    """The tensors a checkpoint has in the place of one of ours, with the rows each takes."""
    stem, _, last = key.rpartition("self_attn.qkv_proj.")
    if stem:
        queries, keys = (count * (config.head_dim or 0) for count in (config.num_heads, config.num_kv_heads or 0))
        return tuple((f"{stem}self_attn.{name}_proj.{last}", rows) for name, rows in (("q", queries), ("k", keys), ("v", keys)))
    stem, _, last = key.rpartition("mlp.gate_up_proj.")
    if stem:
        return tuple((f"{stem}mlp.{name}_proj.{last}", config.intermediate_size) for name in ("gate", "up"))
    stem, _, last = key.rpartition("mlp.experts.")
    if not stem:
        return ()
    names, rows = (
        (("gate", "up"), config.moe_intermediate_size or 0) if last == "gate_up_proj" else (("down",), config.hidden_size)
    )
    places = ((expert, name) for expert in range(config.num_experts) for name in names)
    return tuple((f"{stem}mlp.experts.{expert}.{name}_proj.weight", rows) for expert, name in places)
