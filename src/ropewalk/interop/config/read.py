"""One layer type's rope, from the values a config gives to a RopeSpec; every value remembers where it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ropewalk import axes
from ropewalk.errors import RopeError, choice, flag, integer, number
from ropewalk.frequencies import Llama3, LongRope, Ntk, Scaling, Yarn
from ropewalk.frequencies.scaling import mscale
from ropewalk.interop.config.scalings import SCALING_READERS
from ropewalk.interop.config.values import Layer, Value, find
from ropewalk.spec import MAX_HEAD_DIM, RopeSpec

ALIASES = {"su": "longrope", "mrope": "default", "xdrope": "dynamic"}
COMMON_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
AXIS_KEYS = {"mrope_section", "xdrope_section", "mrope_interleaved", "interleaved"}
#: what HunYuan's checkpoints carry beside `alpha` and their code never reads
BESIDE_ALPHA = {"factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}


def read_layer(layer: Layer, precision: str) -> RopeSpec:
    """The spec of one layer type; `layer` keeps where its values came from."""
    config, family = layer.config, layer.family
    layer.rope_type = _rope_type(layer)
    with _in_config_words(layer):
        inner, outer = layer.rope.get("rope_theta"), find(config, "rope_theta", "rotary_emb_base")
        theta = layer.use("theta", layer.either(inner, outer) or layer.default(family.theta, "rope_theta"))
        head = _head_dim(layer)
        where = _slice(layer, head)
        scaling = SCALING_READERS[layer.rope_type](layer)
        _warn_of_unread_keys(layer, scaling)
        layout, layout_out = _layout(layer)
        return RopeSpec(
            head_dim=head, theta=theta, scaling=scaling, layout=layout, layout_out=layout_out, precision=precision,
            axes=_axes(layer, where.get("rotary_dim", head) // 2), extra_softmax_factor=_softmax(layer, scaling), **where,
        )  # fmt: skip


@contextmanager
def _in_config_words(layer: Layer) -> Iterator[None]:
    try:
        yield
    except RopeError as error:
        name, bracket, index = error.field.partition("[")
        found = layer.names.get("mrope_section" if name in ("sections", "axes") else name)
        if found is None:
            raise
        raise RopeError(found.key + bracket + index, f"{error.rule} ({found})", error.value) from None


def _rope_type(layer: Layer) -> str:
    """`rope_type`, or its old name `type`, under its present name."""
    given = [layer.rope[key] for key in ("rope_type", "type") if key in layer.rope]
    names = []
    for found in given:
        value = choice(found.key, found.value, (*SCALING_READERS, *ALIASES))
        value = "longrope" if value == "yarn" and layer.family.yarn_is_longrope else ALIASES.get(value, value)
        names.append(value)
    if len(set(names)) > 1:
        raise RopeError("rope_type", f"contradicts type = {given[1].value!r}; keep one of the two", given[0].value)
    if not names:
        scaled = sorted(layer.rope.keys() - COMMON_KEYS - AXIS_KEYS)
        if scaled:
            raise RopeError("rope_type", f"must be given where {', '.join(scaled)} is", None)
        given, names = [layer.default("default", "rope_type")], ["default"]
    return layer.use("rope_type", replace(given[0], value=names[0]))


def _head_dim(layer: Layer) -> int:
    config, family = layer.config, layer.family
    found = None if family.at_end else find(config, "qk_rope_head_dim")
    found = found or _own_head_dim(layer) or find(config, "head_dim", "attention_head_dim", "kv_channels")
    if found is None and family.head_dim is not None and "head_dim" not in config:
        found = layer.default(family.head_dim, "head_dim")
    if found is None:
        hidden = _required(config, "hidden_size", "n_embd", "d_model")
        heads = _required(config, "num_attention_heads", "n_head", "n_heads")
        size, count = integer(hidden.key, hidden.value, low=1), integer(heads.key, heads.value, low=1)
        if size % count:
            raise RopeError(hidden.key, f"must be a multiple of {heads.key} = {count} where head_dim is not given", size)
        found = Value(size // count, hidden.key, f"{hidden.key} / {heads.key}", made=True)
    return integer(found.key, layer.use("head_dim", found), low=2, high=MAX_HEAD_DIM)


def _required(config: Mapping[str, Any], *keys: str) -> Value:
    found = find(config, *keys)
    if found is None:
        rule = "must be given where head_dim is not; a config.json that leaves it to its class needs transformers' own object"
        raise RopeError(keys[0], rule, None)
    return found


def _own_head_dim(layer: Layer) -> Value | None:
    """The head of this layer type where the model has more than one kind (Gemma 4)."""
    config = layer.config
    overrides, declared = config.get("per_layer_config"), config.get("layer_types")
    if isinstance(overrides, Mapping) and isinstance(declared, list | tuple):
        for index, name in enumerate(declared):
            own = overrides.get(str(index), overrides.get(index))
            if name == layer.layer_type and isinstance(own, Mapping) and own.get("head_dim") is not None:
                return Value(own["head_dim"], "head_dim", f"per_layer_config.{index}")
    if layer.layer_type != "full_attention" or layer.family.global_head_dim is None or overrides is not None:
        return None
    return find(config, "global_head_dim") or layer.default(layer.family.global_head_dim, "global_head_dim")


def _slice(layer: Layer, head: int) -> dict[str, Any]:
    """`rotary_dim` and `rotary_start`, where less than the whole head turns."""
    config, family = layer.config, layer.family
    if not family.at_end and config.get("qk_rope_head_dim") is not None:
        return {}
    outer = find(config, "partial_rotary_factor", "rotary_pct", "rotary_emb_fraction")
    partial = layer.either(layer.rope.get("partial_rotary_factor"), outer)
    width = find(config, "rotary_dim", "qk_rope_head_dim")
    if width is None and partial is None and family.rotary_dim is not None and "rotary_dim" not in config:
        width = layer.default(family.rotary_dim, "rotary_dim")
    fraction = None if partial is None else number(partial.key, partial.value, above=0, high=1)
    if layer.rope_type == "proportional":
        layer.use("fraction", partial or layer.default(1.0, "partial_rotary_factor"))
        return {}
    if layer.rope_type == "default" and layer.known and not family.reads_partial:
        for found in (partial, width):
            if found is not None and found.value not in (1, head):
                layer.warnings.append(f"{found} = {found.value!r} is ignored: an unscaled {layer.model} turns the whole head")
        return {}
    if width is not None:
        rotated = integer(width.key, width.value, low=2, high=head)
        if fraction is not None and int(head * fraction) != rotated:
            raise RopeError(width.key, f"contradicts {partial}, which makes {int(head * fraction)} of {head}", rotated)
    else:
        width = partial or (layer.default(family.partial, "partial_rotary_factor") if family.partial != 1 else None)
        rotated = head if width is None else int(head * (family.partial if fraction is None else fraction))
    if width is None or rotated == head:
        return {}
    layer.use("rotary_dim", replace(width, value=rotated))
    return {"rotary_dim": rotated, **({"rotary_start": head - rotated} if family.at_end else {})}


def _warn_of_unread_keys(layer: Layer, scaling: Scaling) -> None:
    read = {found.key for found in layer.names.values()} | COMMON_KEYS | AXIS_KEYS
    if isinstance(scaling, Ntk):
        read |= BESIDE_ALPHA
    if isinstance(scaling, Yarn | LongRope | Llama3):
        read.add("original_max_position_embeddings")
    unread = sorted(layer.rope.keys() - read)
    if unread:
        layer.warnings.append(f"{', '.join(unread)}: not read by rope_type {layer.rope_type!r} of {layer.model}")


def _layout(layer: Layer) -> tuple[str, str | None]:
    family, interleave = layer.family, find(layer.config, "rope_interleave")
    if interleave is not None and (family.has_interleave_flag or not layer.known):
        pairs = ("interleaved", "half") if flag(interleave.key, interleave.value) else ("half", None)
        layer.note("layout", pairs[0], interleave)
    else:
        pairs = family.layout, family.layout_out
        layer.note("layout", pairs[0], f"code of {layer.model}" if layer.known else "assumed: nothing in a config says it")
    if pairs[1] is not None:
        layer.note("layout_out", pairs[1], layer.entries[-1].source)
    return pairs


def _axes(layer: Layer, pairs: int) -> axes.AxisMap | None:
    family = layer.family
    sections = layer.either(layer.rope.get("mrope_section"), layer.rope.get("xdrope_section"))
    if sections is None and family.sections is not None:
        sections = layer.default(family.sections, "mrope_section")
    if sections is None:
        return None
    flagged = layer.rope.get("mrope_interleaved") or layer.rope.get("interleaved")
    order = "interleaved" if flagged is not None and flag(flagged.key, flagged.value) else "chunked"
    if flagged is not None and family.axis_order not in (None, order):
        layer.warnings.append(f"{flagged} = {flagged.value!r} is ignored: {layer.model} is always {family.axis_order}")
    order = family.axis_order or order
    layer.use("mrope_section", sections)
    layer.note("axis_order", order, f"code of {layer.model}" if family.axis_order else flagged or "assumed: no mrope_interleaved")
    found = axes.AXIS_ORDERS[order](_whole(sections.key, sections.value))
    if found.pairs != pairs:
        raise RopeError("sections", f"must add up to the {pairs} pairs that turn", sections.value)
    return found


def _whole(key: str, sections: Any) -> list[int]:
    if not isinstance(sections, list | tuple):
        raise RopeError(key, "must be a list with the number of pairs of each axis", sections)
    # HunYuan's sections were written as floats
    counts = (int(count) if isinstance(count, float) and count.is_integer() else count for count in sections)
    return [integer(f"{key}[{axis}]", count, low=0, high=MAX_HEAD_DIM) for axis, count in enumerate(counts)]


def _softmax(layer: Layer, scaling: Scaling) -> float:
    """MLA models square YaRN's second magnitude into their softmax scale."""
    if not isinstance(scaling, Yarn) or not scaling.mscale_all_dim or layer.config.get("qk_rope_head_dim") is None:
        return 1.0
    extra = float(mscale(scaling.factor, scaling.mscale_all_dim)) ** 2
    layer.note("extra_softmax_factor", extra, layer.names["mscale_all_dim"])
    return extra
