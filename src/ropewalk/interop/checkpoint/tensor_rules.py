"""Find the tensors of a checkpoint that hold rows of q and k, by their names and the sizes in the
config, and convert them.

Words of this module:
  part    the name of a projection or norm inside an attention module, such as q_proj
  rows    the entries along a projection's first axis, its outputs: head_dim rows for each head
  group   a key head and its value head with the queries that share them
  sizes   the number and width of the heads of a layer, a HeadSizes
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from torch import Tensor

from ropewalk.config import file as config_file
from ropewalk.config.hf import read_specs
from ropewalk.config.values import find
from ropewalk.errors import RopeError, integer
from ropewalk.interop.checkpoint.attention_names import (
    FURTHER_LAYERS,
    FUSED,
    KEYS,
    LATENT_KEY,
    NORMS,
    PROJECTIONS,
    QUERIES,
    UNROTATED_TYPES,
    VALUES,
    AttentionModule,
    attention_modules,
    layer_type,
    layers_without_attention,
    split_projection_name,
)
from ropewalk.interop.checkpoint.shards import Folder
from ropewalk.layout import convert_layout, convert_qkv

#: how the name of a projection's tensor ends if its first axis is the output rows, so that it is
#: permuted
PERMUTED = re.compile(
    r"(base_layer\.)?(weight|bias)|lora_B(\.\w+)?\.(weight|bias)|lora_magnitude_vector(\.\w+)?(\.weight)?"
)
#: how the name of the input side of an adapter ends, which is not converted
NOT_PERMUTED = re.compile(r"lora_A(\.\w+)?\.weight")
#: families whose q_proj holds, head by head, the rows of q and then as many rows of an output gate
GATED_QUERIES = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
KNOWN_NAMES = ", ".join((*QUERIES, *KEYS, *FUSED))


@dataclass(frozen=True)
class HeadSizes:
    """The sizes of one attention layer: the number of query heads and of key heads, the width of a
    head, and the slice of it that is rotated: `rotary_dim` dimensions from `rotary_start` on.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    rotary_start: int = 0
    #: number of rows before the rotated ones in the key projection of latent attention; None for
    #: other attention
    latent: int | None = None


@dataclass(frozen=True)
class TensorRule:
    """How to convert one tensor: along `axis` it has heads of `head_dim` entries, and in each head
    the `rotary_dim` entries from `rotary_start` on are put into the other order of pairs. The rows
    after the first `rotated_rows`, which are those of v, are copied.

    `role` says what the tensor holds: "q", "k", "qkv" or "norm".
    """

    role: str
    head_dim: int
    rotary_dim: int
    rotary_start: int
    rotated_rows: int
    axis: int = 0
    #: queries per group of a grouped QKV, whose values are copied too; 0 if not grouped
    group: int = 0

    def convert(self, folder: Folder, name: str, source: str, target: str) -> Iterator[Tensor]:
        """Yield the tensor `name`, converted from layout `source` to `target`, in pieces of a few
        megabytes, or of one head or group if that is larger; if `axis` is not 0, in one piece.
        """
        head = {
            "head_dim": self.head_dim,
            "rotary_dim": self.rotary_dim,
            "rotary_start": self.rotary_start,
        }
        if self.axis:  # a norm whose heads are not along its first axis; it is small
            yield convert_layout(folder.read(name), source, target, dim=self.axis, **head)
        elif self.group:
            # the queries of a group, their key and their value
            group_rows = (self.group + 2) * self.head_dim
            for piece in folder.pieces(name, rows=group_rows):
                groups = piece.shape[0] // group_rows
                counts = {"num_heads": groups * self.group, "num_kv_heads": groups}
                yield convert_qkv(piece, source, target, packing="grouped", **counts, **head)
        else:  # the rows of q and k, then those of v, if the tensor has them
            for piece in folder.pieces(name, 0, self.rotated_rows, rows=self.head_dim):
                yield convert_layout(piece, source, target, dim=0, **head)
            yield from folder.pieces(name, self.rotated_rows)


def read_config(folder: Folder, config: Any = None) -> Mapping[str, Any]:
    """Return the config with the model's sizes: `config`, else the folder's config.json or
    params.json (Meta, Mistral).
    """
    if config is not None:
        return config_file.load(config)
    for file_name in ("config.json", "params.json"):
        if (folder.path / file_name).is_file():
            return config_file.read(folder.path / file_name)
    hint = (
        "; an adapter needs the config of its base model"
        if (folder.path / "adapter_config.json").is_file()
        else ""
    )
    raise RopeError(
        "config", f"must be given, because the folder has no config.json{hint}", str(folder.path)
    )


def find_rules(folder: Folder, config: Mapping[str, Any]) -> dict[str, TensorRule]:
    """Return {tensor name: rule} of the tensors that depend on the layout; all others are copied
    unchanged.

    Raises an error about a tensor that is not understood, about projections that also make the
    values, or if there are no rules.
    `check_complete` tells whether all tensors of q and k were found.
    """
    config = config_file.text_part(config)
    for key in ("rotary_value", "attention_k_eq_v"):
        if config.get(key):
            raise RopeError(
                key,
                "must be false: converting projections that also make the values is not supported",
                True,
            )
    sizes = _sizes(config)
    rules = {}
    for module in attention_modules(folder.names).values():
        if module.layer is None:
            raise RopeError(
                module.path, "must be in a numbered layer, such as layers.0", module.projections
            )
        if _is_rotated(module, config):
            layer_sizes = _sizes_of_layer(sizes, config, module.layer)
            layer_rules = {
                name: _rule(folder, name, layer_sizes, config) for name in module.projections
            }
            rules |= {name: rule for name, rule in layer_rules.items() if rule is not None}
    if not rules:
        raise RopeError(
            "path",
            f"must hold q and k projections under a known name ({KNOWN_NAMES})",
            list(folder.names[:3]),
        )
    return rules


def check_complete(folder: Folder, config: Mapping[str, Any]) -> None:
    """Raise an error that names the tensors if a layer may hold q or k under a name that
    `find_rules` does not know.

    An adapter may hold any part of the projections, so it is not checked.
    """
    if any(".lora_" in name for name in folder.names):
        return
    config, modules = config_file.text_part(config), attention_modules(folder.names)
    for module in modules.values():
        if _is_rotated(module, config):
            _check_parts(module, config)
    for path, names in layers_without_attention(folder.names, modules, config).items():
        raise RopeError(
            path, f"must hold q and k projections under a known name ({KNOWN_NAMES})", names
        )


def _is_rotated(module: AttentionModule, config: Mapping[str, Any]) -> bool:
    """Return whether an attention module is rotated, by its layer type in the config; raise an
    error if its tensors do not fit that type, or if it is rotated and has an unknown part.
    """
    # layers that predict further tokens are numbered apart from those in layer_types
    declared = None if FURTHER_LAYERS.search(module.path) else layer_type(config, module.layer)
    if declared in UNROTATED_TYPES:
        # a linear attention has parts that are unknown here, or a path that says so
        if not module.unknown and "linear_attn" not in module.path:
            rule = (
                "must not hold a softmax attention, because layer_types declares layer "
                f"{module.layer} as {declared}"
            )
            raise RopeError(module.path, rule, module.projections)
        return False
    if module.unknown:
        rule = (
            f"must be a known part of attention to convert {module.path}: it may depend on the "
            "order of the rows of q and k"
        )
        raise RopeError(module.unknown[0], rule, module.unknown)
    return True


def _check_parts(module: AttentionModule, config: Mapping[str, Any]) -> None:
    """Raise an error unless a module holds q, k and v, or q alone in a layer that reads the keys of
    an earlier one.
    """
    if module.has(*FUSED):
        return
    # the last `num_kv_shared_layers` layers have no keys and values of their own; if the config has
    # no number of layers, the 1 taken for it allows every layer to have none
    first_sharing = _count(config, 1, "num_hidden_layers") - _count(
        config, 0, "num_kv_shared_layers", low=0
    )
    shares_keys = bool(config.get("num_kv_shared_layers")) and (module.layer or 0) >= first_sharing
    for title, parts in (("q", QUERIES), ("k", (*KEYS, LATENT_KEY)), ("v", VALUES)):
        if not module.has(*parts) and (title == "q" or not shares_keys):
            rule = f"must hold a {title} projection under a known name ({', '.join(parts)})"
            raise RopeError(
                module.path, rule, [name for names in module.parts.values() for name in names]
            )


def _rule(
    folder: Folder, name: str, sizes: HeadSizes, config: Mapping[str, Any]
) -> TensorRule | None:
    """Return the rule of a projection or norm, or None if the tensor is copied unchanged."""
    # for layers.0.self_attn.q_proj.weight, the part is "q_proj" and the suffix "weight"; the caller
    # chose names that have both
    _, part, suffix = split_projection_name(name)  # type: ignore[misc]
    shape, model_type = folder.shape(name), str(config.get("model_type"))
    if NOT_PERMUTED.fullmatch(suffix):
        return None
    if part in PROJECTIONS and not PERMUTED.fullmatch(suffix):
        if prod(shape) == 1:  # a scale of the whole tensor
            return None
        text = (
            f"must be a plain weight or bias: converting {suffix!r} of {part} is not supported (is "
            "the checkpoint quantised?)"
        )
        raise RopeError(name, text, list(shape))
    if not shape:
        return None
    # its role, and what else differs, is filled in below
    rule = TensorRule(
        "", sizes.head_dim, sizes.rotary_dim, sizes.rotary_start, rotated_rows=shape[0]
    )
    q_rows, k_rows = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
    if part in NORMS:
        if sizes.latent is not None:
            raise RopeError(
                name,
                "must not exist beside latent attention: which pairs it scales is not known",
                list(shape),
            )
        if shape[-1] not in (sizes.head_dim, q_rows, k_rows):
            raise RopeError(
                name,
                f"must have head_dim = {sizes.head_dim} entries, or as many for each head",
                list(shape),
            )
        return replace(rule, role="norm", axis=len(shape) - 1)
    if part == LATENT_KEY:
        if sizes.latent is None:
            raise RopeError(
                name, "must come with kv_lora_rank and qk_nope_head_dim in the config", list(shape)
            )
        # the whole tensor is treated as one head that is rotated at its end
        width = sizes.latent + sizes.rotary_dim
        _check_rows(name, shape, width, "kv_lora_rank + qk_rope_head_dim")
        return replace(rule, role="k", head_dim=width, rotary_start=sizes.latent)
    if part in QUERIES:
        # a head and its gate are treated as one head that is rotated at its start
        if model_type in GATED_QUERIES:
            _check_rows(name, shape, 2 * q_rows, "2 * num_heads * head_dim")
            return replace(rule, role="q", head_dim=2 * sizes.head_dim)
        _check_rows(name, shape, q_rows, "num_heads * head_dim")
        return replace(rule, role="q")
    if part in KEYS:
        _check_rows(name, shape, k_rows, "num_kv_heads * head_dim")
        return replace(rule, role="k")
    return _fused_rule(name, part, shape, rule, sizes, model_type)


def _fused_rule(
    name: str,
    part: str,
    shape: tuple[int, ...],
    rule: TensorRule,
    sizes: HeadSizes,
    model_type: str,
) -> TensorRule:
    """Return the rule of a tensor that packs q, k and v: `rule`, changed by how this model_type
    orders their rows. `part` is the projection, a key of FUSED.
    """
    packings = FUSED[part]
    if model_type not in packings:
        text = (
            f"must belong to a model_type whose row order of {part} is known "
            f"({', '.join(packings)})"
        )
        raise RopeError(name, f"{text}; for others call ropewalk.layout.convert_qkv", model_type)
    rows = (sizes.num_heads + 2 * sizes.num_kv_heads) * sizes.head_dim
    _check_rows(name, shape, rows, "(num_heads + 2 * num_kv_heads) * head_dim")
    # for each group, its queries, its key and its value; else all of q, then k, then v
    if packings[model_type] == "grouped":
        return replace(rule, role="qkv", group=sizes.num_heads // sizes.num_kv_heads)
    return replace(
        rule, role="qkv", rotated_rows=(sizes.num_heads + sizes.num_kv_heads) * sizes.head_dim
    )


def _check_rows(name: str, shape: tuple[int, ...], rows: int, formula: str) -> None:
    """Raise an error if a tensor has another number of rows than `rows`, which follows from the
    config by `formula`, a text for the error.
    """
    if shape[0] != rows:
        raise RopeError(name, f"must have {formula} = {rows} rows, by the config", list(shape))


def _sizes(config: Mapping[str, Any]) -> dict[str, HeadSizes]:
    """Return {layer type: sizes} of the layer types that are rotated."""
    # Meta's and Mistral's params.json, which may leave theta to the default of their code
    if "dim" in config and "hidden_size" not in config:
        config = {
            "hidden_size": config["dim"],
            "rope_theta": config.get("rope_theta") or 1e4,
            **config,
        }
    # None: there is no default, so the config must have one of these keys
    heads = _count(config, None, "num_attention_heads", "n_head", "n_heads", "num_heads")
    specs, _ = read_specs(config)
    sizes = {
        layer_type: HeadSizes(
            heads, _kv_heads(config, heads), spec.head_dim, 2 * spec.pairs, spec.rotary_start
        )
        for layer_type, spec in specs.items()
        if spec is not None
    }
    if config.get("qk_rope_head_dim") is None or config.get("qk_nope_head_dim") is None:
        return sizes
    # latent attention (MLA): the dimensions that do not rotate come first, and the spec describes
    # only those that do
    start, latent = _count(config, None, "qk_nope_head_dim"), _count(config, None, "kv_lora_rank")
    return {
        layer_type: replace(each, head_dim=start + each.head_dim, rotary_start=start, latent=latent)
        for layer_type, each in sizes.items()
    }


def _kv_heads(config: Mapping[str, Any], heads: int) -> int:
    """Return the number of key heads, as the code of the model type reads it: some ignore the
    config, and the default is mostly the number of query heads.
    """
    model_type = config.get("model_type")
    # their code ignores the config here
    if model_type in ("gpt_neox", "gpt_neox_japanese", "persimmon"):
        return heads
    if model_type == "falcon" and not config.get("new_decoder_architecture"):
        return 1 if config.get("multi_query", True) else heads
    nested = config.get("attn_config")  # DBRX
    names = (
        "num_key_value_heads",
        "num_kv_heads",
        "n_kv_heads",
        "n_head_kv",
        "kv_n_heads",
        "multi_query_group_num",
    )
    count = _count({**(nested if isinstance(nested, Mapping) else {}), **config}, heads, *names)
    if heads % count:
        raise RopeError("num_key_value_heads", f"must divide the number of heads, {heads}", count)
    return count


def _count(config: Mapping[str, Any], default: int | None, *keys: str, low: int = 1) -> int:
    """Return the value of the first of `keys` that the config has, after a check that it is an
    integer from `low` to 2^20, a bound for untrusted files; else `default`. Raise an error if the
    config has none of `keys` and `default` is None.
    """
    entry = find(config, *keys)
    if entry is not None:
        return integer(entry.key, entry.value, low=low, high=1 << 20)
    if default is None:
        raise RopeError(keys[0], "must be in the config", None)
    return default


def _sizes_of_layer(
    sizes: dict[str, HeadSizes], config: Mapping[str, Any], layer: int
) -> HeadSizes:
    """Return the head sizes of a layer; its type decides if the layer types have different sizes."""
    distinct = list(dict.fromkeys(sizes.values()))
    if len(distinct) == 1:
        return distinct[0]
    declared = layer_type(config, layer)
    if declared not in sizes:
        rule = (
            f"must name the type of layer {layer} ({', '.join(sizes)}), because their head sizes "
            "differ"
        )
        raise RopeError("layer_types", rule, declared)
    return sizes[declared]
