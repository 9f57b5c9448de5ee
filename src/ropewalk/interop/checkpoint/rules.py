"""Which tensors of a checkpoint hold rows of q and k, by their keys and the sizes in the config, and which rows those are."""

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
#: latent attention: the part of this projection that turns is its end, shared by all heads
LATENT_KEY = "kv_a_proj_with_mqa"
NORMS = (
    "q_norm", "k_norm", "q_layernorm", "k_layernorm", "query_layernorm", "key_layernorm", "q_layer_norm", "k_layer_norm",
)  # fmt: skip
#: fused projection -> the families that have it, and how they order its rows
FUSED: dict[str, dict[str, str]] = {
    "query_key_value": {
        **dict.fromkeys(("gpt_neox", "gpt_neox_japanese", "persimmon", "falcon"), "grouped"), "chatglm": "concatenated",
    },
    "qkv_proj": dict.fromkeys(("phi3", "phi4_multimodal"), "concatenated"),
    "Wqkv": dict.fromkeys(("modernbert", "modernbert-decoder", "dbrx"), "concatenated"),
    "wqkv": {"internlm2": "grouped"},
}  # fmt: skip
#: what lies along the output rows of a projection, and is permuted with them
ROW_PARTS = re.compile(r"(base_layer\.)?(weight|bias)|lora_B(\.\w+)?\.weight|lora_magnitude_vector(\.\w+)?(\.weight)?")
#: what does not: the input side of an adapter
OTHER_PARTS = re.compile(r"lora_A(\.\w+)?\.weight")
#: parts of a model that have a rope of their own, or none
OTHER_TOWERS = re.compile(r"(vision|visual|audio|image|vit|cross_?att|encoder_attn|indexer|talker|code2wav|token2wav)")
LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks)\.(\d+)\.")


@dataclass(frozen=True)
class Heads:
    """The sizes of one attention layer: how many heads, how wide, and which slice of each turns."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    rotary_start: int = 0
    #: rows before the turning ones in latent attention's key projection; None: attention is not latent
    latent: int | None = None


@dataclass(frozen=True)
class Rule:
    """What to do with one tensor: heads of `head_dim` along `axis`, of which the first `turning` rows' are converted."""

    role: str
    head_dim: int
    rotary_dim: int
    rotary_start: int
    turning: int
    axis: int = 0
    #: queries per group of a grouped QKV; 0: not grouped
    group: int = 0

    def convert(self, folder: Folder, key: str, source: str, target: str) -> Iterator[Tensor]:
        """The converted tensor in pieces, none larger than a few megabytes or one head."""
        slice_ = {"head_dim": self.head_dim, "rotary_dim": self.rotary_dim, "rotary_start": self.rotary_start}
        if self.axis:
            yield convert_layout(folder.read(key), source, target, dim=self.axis, **slice_)
        elif self.group:
            heads = self.group + 2
            for piece in folder.pieces(key, rows=heads * self.head_dim):
                groups = piece.shape[0] // (heads * self.head_dim)
                counts = {"num_heads": groups * self.group, "num_kv_heads": groups}
                yield convert_qkv(piece, source, target, packing="grouped", **counts, **slice_)
        else:
            for piece in folder.pieces(key, 0, self.turning, rows=self.head_dim):
                yield convert_layout(piece, source, target, dim=0, **slice_)
            yield from folder.pieces(key, self.turning)


def find_rules(folder: Folder, config: Mapping[str, Any]) -> dict[str, Rule]:
    """The tensors that change with the layout, each with its rule; every other tensor stays as it is."""
    text = config_file.text_part(config)
    if text.get("rotary_value"):
        raise RopeError("rotary_value", "must be false: values that turn would need their projections converted too", True)
    sizes = _sizes(text)
    rules = {}
    for key in folder.keys:
        layer = LAYER.search(key)
        rule = None if layer is None else _rule(folder, key, _of_layer(sizes, text, int(layer[1])), text)
        if rule is not None:
            rules[key] = rule
    if not rules:
        known = ", ".join((*QUERIES, *KEYS, *FUSED))
        raise RopeError("path", f"must hold q and k projections under a known name ({known})", list(folder.keys[:3]))
    return rules


def _rule(folder: Folder, key: str, heads: Heads, config: Mapping[str, Any]) -> Rule | None:
    module, part = _split(key)
    if module is None or OTHER_TOWERS.search(key):
        return None
    shape = folder.shape(key)
    if OTHER_PARTS.fullmatch(part):
        return None
    if module not in NORMS and not ROW_PARTS.fullmatch(part):
        if prod(shape) == 1:  # a scale of the whole tensor
            return None
        raise RopeError(key, f"must be a plain tensor: {part!r} of a quantised {module} is packed in its own way", list(shape))
    if not shape:
        return None
    return _sized(key, shape, module, heads, config)


def _sized(key: str, shape: tuple[int, ...], module: str, heads: Heads, config: Mapping[str, Any]) -> Rule:
    plain = Rule("", heads.head_dim, heads.rotary_dim, heads.rotary_start, turning=shape[0])
    if module in NORMS:
        if shape[-1] % heads.head_dim:
            raise RopeError(key, f"must have a multiple of head_dim = {heads.head_dim} entries", list(shape))
        return replace(plain, role="norm", axis=len(shape) - 1)
    if module == LATENT_KEY and heads.latent is not None:
        width = heads.latent + heads.rotary_dim
        _check_rows(key, shape, width, "kv_lora_rank + qk_rope_head_dim")
        return replace(plain, role="k", head_dim=width, rotary_start=heads.latent)
    if module in QUERIES:
        _check_rows(key, shape, heads.num_heads * heads.head_dim, "num_heads * head_dim")
        return replace(plain, role="q")
    if module in KEYS:
        _check_rows(key, shape, heads.num_kv_heads * heads.head_dim, "num_kv_heads * head_dim")
        return replace(plain, role="k")
    packing = FUSED[module].get(str(config.get("model_type")))
    if packing is None:
        rule = f"must belong to a family whose order of {module} is known ({', '.join(FUSED[module])}); use convert_qkv by hand"
        raise RopeError(key, rule, config.get("model_type"))
    rows = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
    _check_rows(key, shape, rows, "(num_heads + 2 * num_kv_heads) * head_dim")
    if packing == "grouped":
        return replace(plain, role="qkv", group=heads.num_heads // heads.num_kv_heads)
    return replace(plain, role="qkv", turning=(heads.num_heads + heads.num_kv_heads) * heads.head_dim)


def _split(key: str) -> tuple[str | None, str]:
    """A key as (the name of a projection or norm of attention, the part of it that this tensor is)."""
    parts = key.split(".")
    for place in reversed(range(len(parts))):
        name = parts[place]
        if name in (*QUERIES, *KEYS, *NORMS, *FUSED, LATENT_KEY):
            # BERT's names are everyday words; they count inside attention alone
            inside = name not in ("query", "key") or any("att" in each for each in parts[:place])
            return (name if inside else None), ".".join(parts[place + 1 :])
    return None, ""


def _check_rows(key: str, shape: tuple[int, ...], rows: int, rule: str) -> None:
    if shape[0] != rows:
        raise RopeError(key, f"must have {rule} = {rows} rows, as its config says", list(shape))


def _sizes(config: Mapping[str, Any]) -> dict[str, Heads]:
    """The sizes of each layer type that turns."""
    if "dim" in config and "hidden_size" not in config:  # Meta's and Mistral's params.json
        config = {"hidden_size": config["dim"], "rope_theta": config.get("rope_theta") or 1e4, **config}
    heads = _count(config, None, "num_attention_heads", "n_head", "n_heads", "num_heads")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about scalings; here only the sizes count
        specs = from_hf(config, per_layer=True)
    found: dict[str, Heads] = {}
    for name, spec in specs.items():  # type: ignore[union-attr]  # per_layer gives a dict
        if spec is not None:
            found[name] = Heads(heads, _kv_heads(config, heads), spec.head_dim, 2 * spec.pairs, spec.rotary_start)
    if config.get("qk_rope_head_dim") is not None and config.get("qk_nope_head_dim") is not None:
        found = {name: _latent(config, each) for name, each in found.items()}
    return found


def _latent(config: Mapping[str, Any], heads: Heads) -> Heads:
    before = _count(config, None, "qk_nope_head_dim")
    width = before + heads.head_dim
    return replace(heads, head_dim=width, rotary_start=before, latent=_count(config, None, "kv_lora_rank"))


def _kv_heads(config: Mapping[str, Any], heads: int) -> int:
    family = config.get("model_type")
    if family in ("gpt_neox", "gpt_neox_japanese", "persimmon"):  # whatever their configs say
        return heads
    if family == "falcon" and not config.get("new_decoder_architecture"):
        return 1 if config.get("multi_query", True) else heads
    attention = config.get("attn_config")  # DBRX keeps it a level deeper
    inner = attention if isinstance(attention, Mapping) else {}
    names = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "kv_n_heads", "multi_query_group_num")
    count = _count({**inner, **config}, heads, *names)
    if heads % count:
        raise RopeError("num_key_value_heads", f"must divide the {heads} heads", count)
    return count


def _count(config: Mapping[str, Any], default: int | None, *keys: str) -> int:
    found = find(config, *keys)
    if found is None:
        if default is None:
            raise RopeError(keys[0], "must be in the config", None)
        return default
    return integer(found.key, found.value, low=1, high=1 << 20)


def _of_layer(sizes: dict[str, Heads], config: Mapping[str, Any], layer: int) -> Heads:
    distinct = list(dict.fromkeys(sizes.values()))
    if len(distinct) == 1:
        return distinct[0]
    declared = config.get("layer_types")
    name = declared[layer] if isinstance(declared, list) and layer < len(declared) else None
    if name not in sizes:
        raise RopeError("layer_types", f"must say which of {', '.join(sizes)} layer {layer} is: their heads differ", name)
    return sizes[name]
