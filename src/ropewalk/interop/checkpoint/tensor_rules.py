"""Find the tensors of a checkpoint that hold rows of q and k, by their names and the sizes in the config, and convert them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from torch import Tensor

from ropewalk.errors import RopeError, integer
from ropewalk.interop.checkpoint.shards import Folder
from ropewalk.interop.config import file as config_file
from ropewalk.interop.config.hf import from_hf
from ropewalk.interop.config.values import find
from ropewalk.layout import convert_layout, convert_qkv

QUERIES = ("q_proj", "q_b_proj", "wq", "query")
KEYS = ("k_proj", "wk", "key")
#: latent attention (MLA): only the last rows of this projection are rotated, and all heads share them
LATENT_KEY = "kv_a_proj_with_mqa"
NORMS = (
    "q_norm", "k_norm", "q_layernorm", "k_layernorm", "query_layernorm", "key_layernorm", "q_layer_norm", "k_layer_norm",
)  # fmt: skip
#: fused projection -> model_type -> the order of its rows
FUSED: dict[str, dict[str, str]] = {
    "query_key_value": {
        **dict.fromkeys(("gpt_neox", "gpt_neox_japanese", "persimmon", "falcon"), "grouped"), "chatglm": "concatenated",
    },
    "qkv_proj": dict.fromkeys(("phi3", "phi4_multimodal"), "concatenated"),
    "Wqkv": dict.fromkeys(("modernbert", "modernbert-decoder", "dbrx"), "concatenated"),
    "wqkv": {"internlm2": "grouped"},
}  # fmt: skip
PROJECTIONS = (*QUERIES, *KEYS, *FUSED, LATENT_KEY)
#: tensors of a projection whose first axis is its output rows, so they are permuted
PERMUTED = re.compile(r"(base_layer\.)?(weight|bias)|lora_B(\.\w+)?\.weight|lora_magnitude_vector(\.\w+)?(\.weight)?")
#: the input side of an adapter, which is not converted
NOT_PERMUTED = re.compile(r"lora_A(\.\w+)?\.weight")
#: parts of a model with a rotary embedding of their own, or without one
OTHER_TOWERS = re.compile(r"(vision|visual|audio|image|vit|cross_?att|encoder_attn|indexer|talker|code2wav|token2wav)")
LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks)\.(\d+)\.")


@dataclass(frozen=True)
class HeadSizes:
    """The sizes of one attention layer: the number of heads, their width, and which slice of each is rotated."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    rotary_start: int = 0
    #: rows before the rotated ones in the key projection of latent attention; None for other attention
    latent: int | None = None


@dataclass(frozen=True)
class TensorRule:
    """How to convert one tensor: heads of `head_dim` along `axis`; only the first `rotated_rows` rows are converted."""

    role: str
    head_dim: int
    rotary_dim: int
    rotary_start: int
    rotated_rows: int
    axis: int = 0
    #: queries per group of a grouped QKV; 0 if not grouped
    group: int = 0

    def convert(self, folder: Folder, name: str, source: str, target: str) -> Iterator[Tensor]:
        """Yield the converted tensor in pieces of at most a few megabytes or one head."""
        head = {"head_dim": self.head_dim, "rotary_dim": self.rotary_dim, "rotary_start": self.rotary_start}
        if self.axis:
            yield convert_layout(folder.read(name), source, target, dim=self.axis, **head)
        elif self.group:
            group_rows = (self.group + 2) * self.head_dim
            for piece in folder.pieces(name, rows=group_rows):
                groups = piece.shape[0] // group_rows
                counts = {"num_heads": groups * self.group, "num_kv_heads": groups}
                yield convert_qkv(piece, source, target, packing="grouped", **counts, **head)
        else:
            for piece in folder.pieces(name, 0, self.rotated_rows, rows=self.head_dim):
                yield convert_layout(piece, source, target, dim=0, **head)
            yield from folder.pieces(name, self.rotated_rows)


def read_config(folder: Folder, config: Any = None) -> Mapping[str, Any]:
    """Return the config with the model's sizes: `config`, else the folder's config.json or params.json (Meta, Mistral)."""
    if config is not None:
        return config_file.load(config)
    for file_name in ("config.json", "params.json"):
        if (folder.path / file_name).is_file():
            return config_file.read(folder.path / file_name)
    hint = "; an adapter needs the config of its base model" if (folder.path / "adapter_config.json").is_file() else ""
    raise RopeError("config", f"must be given, because the folder has no config.json{hint}", str(folder.path))


def find_rules(folder: Folder, config: Mapping[str, Any]) -> dict[str, TensorRule]:
    """Return {tensor name: rule} of the tensors that depend on the layout; all others are copied unchanged."""
    config = config_file.text_part(config)
    if config.get("rotary_value"):
        raise RopeError("rotary_value", "must be false: converting the projections of rotated values is not supported", True)
    sizes = _sizes(config)
    rules = {}
    for name in folder.names:
        layer = LAYER.search(name)
        rule = None if layer is None else _rule(folder, name, _sizes_of_layer(sizes, config, int(layer[1])), config)
        if rule is not None:
            rules[name] = rule
    if not rules:
        names = ", ".join((*QUERIES, *KEYS, *FUSED))
        raise RopeError("path", f"must hold q and k projections under a known name ({names})", list(folder.names[:3]))
    return rules


def _rule(folder: Folder, name: str, sizes: HeadSizes, config: Mapping[str, Any]) -> TensorRule | None:
    """Return the rule of a tensor, or None if it is copied unchanged."""
    module, part = _split(name)
    if module is None or OTHER_TOWERS.search(name) or NOT_PERMUTED.fullmatch(part):
        return None
    shape = folder.shape(name)
    if module in PROJECTIONS and not PERMUTED.fullmatch(part):
        if prod(shape) == 1:  # a scale of the whole tensor
            return None
        raise RopeError(name, f"must not be quantised: converting {part!r} of a packed {module} is not supported", list(shape))
    if not shape:
        return None
    rule = TensorRule("", sizes.head_dim, sizes.rotary_dim, sizes.rotary_start, rotated_rows=shape[0])
    if module in NORMS:
        if shape[-1] % sizes.head_dim:
            raise RopeError(name, f"must have a multiple of head_dim = {sizes.head_dim} entries", list(shape))
        return replace(rule, role="norm", axis=len(shape) - 1)
    if module == LATENT_KEY and sizes.latent is not None:
        width = sizes.latent + sizes.rotary_dim
        _check_rows(name, shape, width, "kv_lora_rank + qk_rope_head_dim")
        return replace(rule, role="k", head_dim=width, rotary_start=sizes.latent)
    if module in QUERIES:
        _check_rows(name, shape, sizes.num_heads * sizes.head_dim, "num_heads * head_dim")
        return replace(rule, role="q")
    if module in KEYS:
        _check_rows(name, shape, sizes.num_kv_heads * sizes.head_dim, "num_kv_heads * head_dim")
        return replace(rule, role="k")
    packings = FUSED.get(module, {})
    packing = packings.get(str(config.get("model_type")))
    if packing is None:
        rule = f"must belong to a model_type whose row order of {module} is known ({', '.join(packings)})"
        raise RopeError(name, f"{rule}; for others call ropewalk.layout.convert_qkv", config.get("model_type"))
    rows = (sizes.num_heads + 2 * sizes.num_kv_heads) * sizes.head_dim
    _check_rows(name, shape, rows, "(num_heads + 2 * num_kv_heads) * head_dim")
    if packing == "grouped":
        return replace(rule, role="qkv", group=sizes.num_heads // sizes.num_kv_heads)
    return replace(rule, role="qkv", rotated_rows=(sizes.num_heads + sizes.num_kv_heads) * sizes.head_dim)


def _split(name: str) -> tuple[str | None, str]:
    """Split a tensor's name into the attention projection or norm it belongs to (or None) and the rest after it."""
    parts = name.split(".")
    for i in reversed(range(len(parts))):
        if parts[i] in (*PROJECTIONS, *NORMS):
            # "query" and "key" are common words, so they count only inside a module whose name contains "att"
            in_attention = parts[i] not in ("query", "key") or any("att" in part for part in parts[:i])
            return (parts[i] if in_attention else None), ".".join(parts[i + 1 :])
    return None, ""


def _check_rows(name: str, shape: tuple[int, ...], rows: int, formula: str) -> None:
    if shape[0] != rows:
        raise RopeError(name, f"must have {formula} = {rows} rows, by the config", list(shape))


def _sizes(config: Mapping[str, Any]) -> dict[str, HeadSizes]:
    """Return {layer type: sizes} of the layer types that are rotated."""
    if "dim" in config and "hidden_size" not in config:  # Meta's and Mistral's params.json
        config = {"hidden_size": config["dim"], "rope_theta": config.get("rope_theta") or 1e4, **config}
    heads = _count(config, None, "num_attention_heads", "n_head", "n_heads", "num_heads")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they are about scalings; only the sizes are used here
        specs: Any = from_hf(config, per_layer=True)
    sizes = {
        layer_type: HeadSizes(heads, _kv_heads(config, heads), spec.head_dim, 2 * spec.pairs, spec.rotary_start)
        for layer_type, spec in specs.items()
        if spec is not None
    }
    if config.get("qk_rope_head_dim") is None or config.get("qk_nope_head_dim") is None:
        return sizes
    start, latent = _count(config, None, "qk_nope_head_dim"), _count(config, None, "kv_lora_rank")
    return {
        layer_type: replace(each, head_dim=start + each.head_dim, rotary_start=start, latent=latent)
        for layer_type, each in sizes.items()
    }


def _kv_heads(config: Mapping[str, Any], heads: int) -> int:
    model_type = config.get("model_type")
    if model_type in ("gpt_neox", "gpt_neox_japanese", "persimmon"):  # their code ignores the config here
        return heads
    if model_type == "falcon" and not config.get("new_decoder_architecture"):
        return 1 if config.get("multi_query", True) else heads
    nested = config.get("attn_config")  # DBRX
    names = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "kv_n_heads", "multi_query_group_num")
    count = _count({**(nested if isinstance(nested, Mapping) else {}), **config}, heads, *names)
    if heads % count:
        raise RopeError("num_key_value_heads", f"must divide the number of heads, {heads}", count)
    return count


def _count(config: Mapping[str, Any], default: int | None, *keys: str) -> int:
    entry = find(config, *keys)
    if entry is not None:
        return integer(entry.key, entry.value, low=1, high=1 << 20)
    if default is None:
        raise RopeError(keys[0], "must be in the config", None)
    return default


def _sizes_of_layer(sizes: dict[str, HeadSizes], config: Mapping[str, Any], layer: int) -> HeadSizes:
    distinct = list(dict.fromkeys(sizes.values()))
    if len(distinct) == 1:
        return distinct[0]
    declared = config.get("layer_types")
    layer_type = declared[layer] if isinstance(declared, list) and layer < len(declared) else None
    if layer_type not in sizes:
        rule = f"must name the type of layer {layer} ({', '.join(sizes)}), because their head sizes differ"
        raise RopeError("layer_types", rule, layer_type)
    return sizes[layer_type]
