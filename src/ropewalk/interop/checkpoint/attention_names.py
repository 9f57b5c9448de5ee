"""Names of tensors in checkpoints: which attention module a tensor belongs to, which part of the
module it is, and which layer the module is in.

Words of this module:
  path  the name of a module or a layer, such as model.layers.3.self_attn
  part  the next name after the path of an attention module, such as q_proj
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

QUERIES = ("q_proj", "q_b_proj", "wq", "query")
KEYS = ("k_proj", "wk", "key")
VALUES = ("v_proj", "wv", "value", "kv_b_proj")
#: latent attention (MLA): only the last rows of this projection are rotated, and all heads share
#: them
LATENT_KEY = "kv_a_proj_with_mqa"
NORMS = (
    "q_norm",
    "k_norm",
    "q_layernorm",
    "k_layernorm",
    "query_layernorm",
    "key_layernorm",
    "q_layer_norm",
    "k_layer_norm",
)
#: fused projection -> model_type -> the order of its rows: "grouped" (for each key head its
#: queries, its key, its value) or "concatenated" (all of q, then k, then v)
FUSED: dict[str, dict[str, str]] = {
    "query_key_value": {
        **dict.fromkeys(("gpt_neox", "gpt_neox_japanese", "persimmon", "falcon"), "grouped"),
        "chatglm": "concatenated",
    },
    "qkv_proj": dict.fromkeys(("phi3", "phi4_multimodal", "gte"), "concatenated"),
    "Wqkv": dict.fromkeys(
        ("modernbert", "modernbert-decoder", "dbrx", "nomic_bert"), "concatenated"
    ),
    "wqkv": {"internlm2": "grouped"},
}
PROJECTIONS = (*QUERIES, *KEYS, *FUSED, LATENT_KEY)
#: further parts of a softmax attention; none of them depends on the order of the rows of q and k
OTHER_PARTS = frozenset(
    (
        *VALUES,
        "o_proj",
        "out_proj",
        "dense",
        "wo",
        "Wo",
        "q_a_proj",
        "q_a_layernorm",
        "kv_a_layernorm",
        "v_norm",
        "attn_sub_norm",
        "gate_proj",
        "g_proj",
        "gate_bias",
        "dense_bias",
        "sinks",
        "softmax_offset",
        "q_scale",
        "k_scale",
        "v_scale",
        "lambda_q1",
        "lambda_k1",
        "lambda_q2",
        "lambda_k2",
        "groupnorm",  # DiffLlama
        "A",
        "dt_proj",  # Doge
        "rotary_emb",
        "rope",
        "inner_attention",
        "embed_positions",
        "bias",
        "masked_bias",  # tables and masks in old files
    )
)
KNOWN_PARTS = OTHER_PARTS.union(PROJECTIONS, NORMS)
#: modules outside the language model's self-attention; they have a rotary embedding of their own,
#: or none
OTHER_TOWERS = re.compile(
    r"(?:^|[._])(vision|visual|audio|image|vit|cross_?att|encoder_attn|talker|code2wav|token2wav|projector|connector|resampler|qformer)"
)
LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks)\.(\d+)\.")
#: layers that predict further tokens (MTP), numbered apart from those in `layer_types`
FURTHER_LAYERS = re.compile(r"(?:^|\.)mtp\.")
#: types of layers in `layer_types` that do not rotate
UNROTATED_TYPES = ("linear_attention", "mamba", "mamba2", "conv", "short_conv", "recurrent")
#: names in a layer that mixes tokens without softmax attention
MIXERS = re.compile(r"(^|\.)(mamba|conv|linear_attn|rg_lru|A_log|\w*conv_?1d)(\.|$)")
#: a module in the name of a tensor that looks like an attention
_ATTENTION = re.compile(r"(^|\.)\w*att\w*\.")


@dataclass
class AttentionModule:
    """The names of the tensors of one attention module.

    layer    the number of the layer in `path`; None if `path` has none
    parts    {part: the names of its tensors}
    unknown  the names of tensors whose part is not in KNOWN_PARTS
    """

    path: str
    layer: int | None
    parts: dict[str, list[str]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    def has(self, *parts: str) -> bool:
        """Return whether the module has any of these parts."""
        return any(part in self.parts for part in parts)

    @property
    def projections(self) -> list[str]:
        """The names of the module's tensors that belong to a projection of q or k, a fused one, or
        a norm of q or k.
        """
        return [
            name
            for part, names in self.parts.items()
            if part in (*PROJECTIONS, *NORMS)
            for name in names
        ]


def split_projection_name(name: str) -> tuple[str, str, str] | None:
    """Return the path of a tensor's attention module, its projection or norm, and the rest of its
    name, such as "weight"; None if the name has no projection or norm. "query" and "key" are one
    only inside a module whose name contains "att".
    """
    parts = name.split(".")
    for i in reversed(range(len(parts))):
        if parts[i] in (*PROJECTIONS, *NORMS):
            # "query" and "key" are common words
            in_attention = parts[i] not in ("query", "key") or any(
                "att" in part for part in parts[:i]
            )
            return (
                (".".join(parts[:i]), parts[i], ".".join(parts[i + 1 :])) if in_attention else None
            )
    return None


def attention_modules(names: Iterable[str]) -> dict[str, AttentionModule]:
    """Return {path: attention module} of the language model; image and audio towers and cross
    attention are left out.
    """
    names = [name for name in names if not OTHER_TOWERS.search(name)]
    modules: dict[str, AttentionModule] = {}
    for name in names:
        name_parts = split_projection_name(name)
        if name_parts is not None:
            path, _, _ = name_parts
            layer = LAYER.search(path + ".")  # the pattern ends with the dot after the number
            modules[path] = AttentionModule(path, None if layer is None else int(layer[1]))
    for name in names:
        # "a" and "a.b" for "a.b.weight"
        parents = [name[:i] for i, char in enumerate(name) if char == "."]
        # the outermost module, because an attention may contain another one, such as the indexer of
        # DeepSeek V3.2
        path = next((parent for parent in parents if parent in modules), None)
        if path is not None:
            part = name[len(path) + 1 :].split(".")[0]
            modules[path].parts.setdefault(part, []).append(name)
            if part not in KNOWN_PARTS:
                modules[path].unknown.append(name)
    # a module inside another one has no parts: its tensors went to the outer one
    return {path: module for path, module in modules.items() if module.parts}


def layers_without_attention(
    names: Iterable[str], modules: Mapping[str, AttentionModule], config: Mapping[str, Any]
) -> dict[str, list[str]]:
    """Return {path of a layer: tensor names} of layers in which no attention module was recognised
    but one is expected.

    Layers are left out if the config declares a type without rotation for them, or if a tensor's
    name says that they mix tokens in another way, such as Mamba. The names are those that look like
    parts of an attention, if there are any, else all of the layer.
    """
    layers: dict[str, list[str]] = {}
    for name in names:
        layer = LAYER.search(name)
        if layer is None or OTHER_TOWERS.search(name):
            continue
        if layer_type(config, int(layer[1])) not in UNROTATED_TYPES:
            path = name[: layer.end() - 1]  # such as model.layers.3
            layers.setdefault(path, []).append(name)
    matches = [LAYER.search(path + ".") for path in modules]
    with_attention = {match.string[: match.end() - 1] for match in matches if match is not None}
    unrecognised = {}
    for path, layer_names in layers.items():
        has_mixer = any(MIXERS.search(name[len(path) :]) for name in layer_names)
        if path not in with_attention and not has_mixer:
            in_attention = [name for name in layer_names if _ATTENTION.search(name[len(path) :])]
            unrecognised[path] = in_attention or layer_names
    return unrecognised


def layer_type(config: Mapping[str, Any], layer: int | None) -> str | None:
    """Return the type that the config declares for a layer; None if it declares none, or if `layer`
    is None.
    """
    declared = config.get("layer_types") or config.get("layers_block_type")
    in_range = isinstance(declared, list | tuple) and layer is not None and layer < len(declared)
    return declared[layer] if in_range and isinstance(declared[layer], str) else None  # type: ignore[index]
