"""When a rule of an engine applies: named conditions, for what no list of families or config keys
can say.

Words of this module:
  reading   what the engine has computed so far; `reading.spec` is its rope now
  case      one layer type of a config and how it is served, a `ServedLayer`; `case.config` has the
            keys of the text model. In a multimodal config the keys of the whole config are added to
            them under names that end with "_outside"
  null      `get(key, 0) is None`: the key is there and null; one that is absent gives 0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ropewalk.config.families import family_of
from ropewalk.config.keys import LAYER_COUNT_KEYS
from ropewalk.config.layers import types_by_pattern
from ropewalk.engines.case import (
    OUTER_ARCHITECTURES,
    OUTER_TYPE,
    ServedLayer,
    declared_types,
)
from ropewalk.engines.reading import EngineReading, frequencies_of
from ropewalk.engines.rope_faults import without_a_layer_type
from ropewalk.frequencies import Default, Linear

#: the keys under which llama.cpp's converter finds the function that scores experts
SCORE_FUNCTIONS = (
    "score_function",
    "scoring_func",
    "score_func",
    "moe_router_activation",
    "moe_router_activation_func",
    "expert_selection_fn",
    "router_score_func",
)
#: keys of the config of which rows ask whether they are written as null
NULL_KEYS = (
    "global_head_dim",
    "partial_rotary_factor",
    "rope_local_base_freq",
    "rope_scaling",
    "rotary_dim",
    "sliding_window",
    "sliding_window_pattern",
    "swa_rope_theta",
)


def _is_null(key: str, reading: EngineReading) -> bool:
    """Return whether the config has the key, and null under it."""
    return reading.case.config.get(key, 0) is None


#: what a row of a rules file may name in `when`; "not NAME" is the opposite
CONDITIONS: dict[str, Callable[[EngineReading], bool]] = {
    **{f"{key} is null": partial(_is_null, key) for key in NULL_KEYS},
    "by layer type": lambda reading: reading.case.by_layer_type,
    "latent": lambda reading: reading.case.latent,
    "axes": lambda reading: reading.case.mrope and reading.spec.axes is not None,
    "interleaved axes": lambda reading: (
        reading.case.interleaved_axes and reading.spec.axes is not None
    ),
    "interleaved pairs": lambda reading: reading.case.spec.layout == "interleaved",
    "partial": lambda reading: reading.case.spec.rotated_dims != reading.case.spec.head_dim,
    "scaled": lambda reading: not isinstance(reading.case.spec.scaling, Default),
    "theta given": lambda reading: _gives_theta(reading.case),
    "every theta given": lambda reading: _gives_every_theta(reading.case),
    # the config gives a theta outside of its ropes that this layer type does not use
    "theta not used": lambda reading: (
        reading.case.config.get("rope_theta") not in (None, reading.case.spec.theta)
    ),
    # `rope_scaling` is named by the old key `type` alone
    "named by type": lambda reading: (
        reading.case.value("v4.type") is not None and reading.case.value("v4.rope_type") is None
    ),
    "integer factor": lambda reading: (
        isinstance(reading.case.spec.scaling, Linear)
        and isinstance(reading.case.rope.get("factor"), int)
    ),
    # heads are not hidden_size / num_attention_heads wide
    "other head size": lambda reading: reading.case.spec.head_dim != reading.case.derived_head_dim,
    # full layers have heads of another size than the others
    "head sizes by layer type": lambda reading: (
        reading.case.value("config.global_head_dim")
        not in (None, reading.case.value("config.head_dim"))
    ),
    # the fraction that the config gives is not the one that the sections were made for
    "sections for another part": lambda reading: _sections_for_another_part(reading.case),
    "sections for another part outside": lambda reading: (
        reading.case.spec.rotated_dims
        != int(reading.case.head_dim * (reading.case.value("config.partial_rotary_factor") or 0.25))
    ),
    "longrope in some layer": lambda reading: any(
        rope.get("rope_type") == "longrope" for rope in reading.case.ropes
    ),
    "magnitude is not 1": lambda reading: frequencies_of(reading.spec)[1] != 1,
    # the engine's model reads a rope object of the config
    "rope object read": lambda reading: bool(reading.keys),
    # a multimodal config has a scaled rope beside its text model
    "scaled outside": lambda reading: _scaled_outside(reading.case),
    "in a multimodal config": lambda reading: "model_type_outside" in reading.case.config,
    # the layer types of the config are not as many as its layers
    "other number of layer types": lambda reading: _other_number_of_layer_types(reading.case),
    "no full layer": lambda reading: (
        "full_attention" not in (declared_types(reading.case.config) or ("full_attention",))
    ),
    "a layer type other than full and sliding attention": lambda reading: (
        reading.case.layer_type not in ("full_attention", "sliding_attention")
    ),
    "no sliding layer": lambda reading: (
        "sliding_attention" not in (declared_types(reading.case.config) or ("sliding_attention",))
    ),
    "a layer type without a rope": lambda reading: any(
        rope is None for rope in (reading.case.config.get("rope_parameters") or {}).values()
    ),
    # ropes by layer type, of which one that a layer has is absent or null
    "a hybrid layer lacks its rope": lambda reading: any(
        "rope_theta" not in ((reading.case.config.get("rope_parameters") or {}).get(name) or {})
        for name in {*declared_types(reading.case.config)} or {"hybrid"}
    ),
    "a layer type lacks its rope": lambda reading: _lacks_a_rope(reading.case),
    # a rope beside the text model has a scaling that is computed with a served length
    "scaled by a length outside": lambda reading: (
        _named_outside(reading.case) in ("yarn", "llama3", "longrope")
    ),
    "a name other than full and sliding attention": lambda reading: any(
        name not in ("full_attention", "sliding_attention") or not rope
        for name, rope in (reading.case.config.get("rope_parameters") or {}).items()
    ),
    "three sections": lambda reading: (
        len(reading.case.value("rope.mrope_section") or (0, 0, 0)) == 3
    ),
    "mrope without sections": lambda reading: (
        reading.case.rope_type == "mrope" and reading.case.value("rope.mrope_section") is None
    ),
    "longer than served": lambda reading: (
        reading.case.length > (reading.case.max_position or reading.case.length)
    ),
    # a published config, not the keys of the rope alone
    "whole config": lambda reading: bool(
        {"architectures", OUTER_TYPE} & reading.case.config.keys()
        and any(reading.case.config.get(key) for key in (*LAYER_COUNT_KEYS, "num_layers"))
    ),
    "sections that are floats": lambda reading: any(
        isinstance(count, float) for count in reading.case.value("rope.mrope_section") or ()
    ),
    # here and below, a list that is absent counts as a very long one: it is not too short
    "fewer entries of no_rope_layers than layers": lambda reading: (
        len(reading.case.config.get("no_rope_layers") or [0] * 10**6)
        < (reading.case.config.get("num_hidden_layers") or 0)
    ),
    "theta of more than 64 bits": lambda reading: any(
        isinstance(place.get("rope_theta"), int) and abs(place["rope_theta"]) >= 1 << 63
        for place in (reading.case.config, reading.case.rope)
    ),
    "yarn in some layer without a trained length": lambda reading: any(
        rope.get("rope_type") == "yarn" and "original_max_position_embeddings" not in rope
        for rope in reading.case.ropes
    ),
    "fewer entries of layer_rope_theta than layers": lambda reading: (
        len(reading.case.config.get("layer_rope_theta") or [0] * 10**6)
        < (reading.case.config.get("num_hidden_layers") or 0)
    ),
    "fewer thetas than layers": lambda reading: (
        isinstance(reading.case.config.get("rope_theta"), list)
        and len(reading.case.config["rope_theta"])
        < (reading.case.config.get("num_hidden_layers") or 0)
    ),
    # the layer types that have the scaling are listed, and this one is not among them
    "a layer type without this scaling": lambda reading: (
        reading.case.layer_type
        not in (reading.case.config.get("yarn_only_types") or (reading.case.layer_type,))
    ),
    "fewer layer types than layers": lambda reading: (
        len(declared_types(reading.case.config) or [""] * 10**6)
        < (reading.case.config.get("num_hidden_layers") or 0)
    ),
    "layer types of no pattern": lambda reading: _are_of_no_pattern(reading.case),
    "rope_ratio that is no number": lambda reading: (
        not isinstance(reading.case.config.get("rope_ratio", 1.0), int | float)
    ),
    "two interleaved sections": lambda reading: (
        len(_sections(reading)) == 2 and bool(reading.case.value("rope.mrope_interleaved"))
    ),
    "started for more than 4096 tokens": lambda reading: (
        reading.case.limit_is_given and reading.case.max_model_len > 4096
    ),
    "sections for another fraction": lambda reading: _are_for_another_fraction(reading),
    "max_model_len given": lambda reading: reading.case.limit_is_given,
    "a rope under the name of no layer type": lambda reading: bool(
        without_a_layer_type(reading.case.config)
    ),
    "odd rotary_dim": lambda reading: (reading.case.config.get("rotary_dim") or 0) % 2 == 1,
    "head_dim is not the rotated width": lambda reading: (
        reading.case.value("config.head_dim") not in (None, reading.case.head_dim)
    ),
    "head_dim is not that of query and key": lambda reading: (
        reading.case.value("config.head_dim")
        not in (None, reading.case.head_dim + (reading.case.config.get("qk_nope_head_dim") or 0))
    ),
    # a rope of the image tower with a scaling that is computed with a served length, which it lacks
    "vision rope without a length": lambda reading: bool(
        reading.case.config.get("vision_scaling_outside")
    ),
    # the rope of the whole config, which is beside the text model if there is one
    "own rope scaled by a length": lambda reading: (
        _own_name(reading.case) in ("yarn", "llama3", "longrope")
    ),
    "no key rope_scaling": lambda reading: "rope_scaling" not in reading.case.config,
    "no key factor": lambda reading: "factor" not in reading.case.rope_with_nulls,
    "v4 rope given": lambda reading: bool(reading.case.config.get("rope_scaling")),
    "mamba_d_head is a text": lambda reading: isinstance(
        reading.case.config.get("mamba_d_head"), str
    ),
    "fraction is null": lambda reading: any(
        key in place and place[key] is None
        for key in ("partial_rotary_factor", "rotary_pct")
        for place in (reading.case.config, reading.case.rope_with_nulls)
    ),
    "no score function": lambda reading: all(
        reading.case.config.get(key) is None for key in SCORE_FUNCTIONS
    ),
    "full layers other than the first of four": lambda reading: any(
        (name == "full_attention") != (index % 4 == 0)
        for index, name in enumerate(declared_types(reading.case.config))
    ),
    "nulls in sliding_window_pattern": lambda reading: (
        isinstance(reading.case.config.get("sliding_window_pattern"), list)
        and None in reading.case.config["sliding_window_pattern"]
    ),
    "other fractions than a half in full layers": lambda reading: (
        _fractions(reading.case.config) != _halves(reading.case.config)
    ),
    "mamba layers": lambda reading: "mamba" in declared_types(reading.case.config),
    "v5 rope given": lambda reading: bool(reading.case.config.get("rope_parameters")),
    "old class refuses": lambda reading: _old_class_refuses(reading.case),
    "mscale written": lambda reading: bool(
        {"mscale", "mscale_all_dim"} & reading.case.rope_with_nulls.keys()
    ),
    # some engines rotate all layers but each fourth one, whatever no_rope_layers says
    "a fourth layer rotates": lambda reading: any(map(_is_fourth, _rotating(reading.case))),
    "only fourth layers rotate": lambda reading: all(map(_is_fourth, _rotating(reading.case))),
    "head_dim is qk_nope_head_dim": lambda reading: (
        reading.case.config.get("head_dim") == reading.case.config.get("qk_nope_head_dim")
    ),
    # by a period, which some engines read in place of layer_types, every such layer has full
    # attention, and the others have a sliding window
    "full by the period": lambda reading: all(_by_period(reading.case)),
    "sliding by the period": lambda reading: not any(_by_period(reading.case)),
    "second layers alone": lambda reading: _are_second(reading.case),
    "no sixth layer": lambda reading: not any(_are_sixths(reading.case)),
    "sixth layers alone": lambda reading: all(_are_sixths(reading.case)),
    # with heads of 128 dimensions where the config does not say
    "heads do not fill the hidden size": lambda reading: (
        reading.case.config.get("head_dim", 128)
        * (reading.case.config.get("num_attention_heads") or 0)
        != (reading.case.config.get("hidden_size") or 0)
    ),
    "sliding_window_pattern that is no number": lambda reading: (
        not isinstance(reading.case.config.get("sliding_window_pattern", 1), int | float)
    ),
    "twice the key heads are too many": lambda reading: (
        2 * (reading.case.config.get("num_key_value_heads") or 0)
        > (reading.case.config.get("num_attention_heads") or 10**6)
    ),
    # the whole config names its model with null or an empty list
    "architectures that are empty": lambda reading: _names_no_model(reading.case.config),
    # the layers of one model have a window and have none, and max_window_layers is not their number
    "a window in some layers alone": lambda reading: _has_window_in_some(reading.case.config),
    # of full layers, whose heads Gemma's newer classes give by keys of their own
    "other heads in full layers": lambda reading: _has_other_heads(reading.case.config),
    "mamba heads that do not fill their width": lambda reading: (
        not _fills_mamba_width(reading.case.config)
    ),
    # whether the last position, not the length, is above the trained length
    "last position above trained": lambda reading: (
        reading.case.length - 1 > getattr(reading.spec.scaling, "original_length", 0)
    ),
}


def _sections(reading: EngineReading) -> list[int]:
    """Return the sections of M-RoPE in the rope; [] if they are absent or no list of integers."""
    given = reading.case.value("rope.mrope_section")
    is_list = isinstance(given, list) and all(isinstance(count, int) for count in given)
    return given if is_list else []


def _are_for_another_fraction(reading: EngineReading) -> bool:
    """Return whether the rope has sections, and the config a fraction of the head to whose pairs they
    do not add up.
    """
    fraction, sections = reading.case.value("fraction"), _sections(reading)
    if not sections or not isinstance(fraction, int | float):
        return False
    return 2 * sum(sections) != int(reading.spec.head_dim * fraction)


def _fractions(config: Mapping[str, Any]) -> list[Any]:
    """Return `partial_rotary_factors` for every layer; 0.5 where the list ends before."""
    count = config.get("num_hidden_layers") or 0
    return [*(config.get("partial_rotary_factors") or ()), *[0.5] * count][:count]


def _halves(config: Mapping[str, Any]) -> list[float]:
    """Return 1 for every sliding layer, and 0.5 for every other."""
    count = config.get("num_hidden_layers") or 0
    types = [*declared_types(config), *[""] * count][:count]
    return [1.0 if name == "sliding_attention" else 0.5 for name in types]


def _has_window_in_some(config: Mapping[str, Any]) -> bool:
    """Return whether some layers of a Qwen model have a sliding window and others have none, with
    the defaults of its class; False if `max_window_layers`, the layers without one, is all layers.
    """
    layers, full = config.get("num_hidden_layers"), config.get("max_window_layers", 28)
    if not isinstance(layers, int) or not isinstance(full, int) or full == layers:
        return False
    if isinstance(config.get("layer_types"), list):
        return len({*config["layer_types"]}) > 1
    has_window = config.get("use_sliding_window") and config.get("sliding_window", 4096) is not None
    return bool(has_window) and 0 < full < layers


def _has_other_heads(config: Mapping[str, Any]) -> bool:
    """Return whether full layers have heads of another size than the other layers, by the keys and
    the defaults of Gemma's newer classes; in EmbeddingGemma 2, also another number of key heads.
    """
    if config.get("global_head_dim", 512) != config.get("head_dim", 256):
        return True
    is_embedding = config.get("model_type") == "embedding_gemma2_text"
    heads = config.get("num_key_value_heads", 2)
    return is_embedding and config.get("num_global_key_value_heads", 1) != heads


def _fills_mamba_width(config: Mapping[str, Any]) -> bool:
    """Return whether the heads of mamba layers are as wide as these layers, with the defaults of
    SGLang's class of GraniteMoeHybrid.
    """
    size, count = config.get("mamba_d_head", 64), config.get("mamba_n_heads", 64)
    expand, hidden = config.get("mamba_expand", 2), config.get("hidden_size", 2048)
    given = (size, count, expand, hidden)
    return all(isinstance(each, int) for each in given) and size * count == expand * hidden


def _rotating(case: ServedLayer) -> list[int]:
    """Return the indices of the layers that rotate: those with 1 in `no_rope_layers`, despite its
    name; without entries in it, all but each fourth, or each `no_rope_layer_interval`-th.
    """
    config = case.config
    given, layers = config.get("no_rope_layers"), config.get("num_hidden_layers") or 0
    if isinstance(given, list) and given:
        return [index for index, rotates in enumerate(given) if rotates]
    every = config.get("no_rope_layer_interval") or 4
    return [index for index in range(layers) if (index + 1) % every]


def _by_period(case: ServedLayer) -> list[bool]:
    """Return for each layer of this type, by `layer_types`, whether it has full attention by the
    period that the config or the family gives; by default every layer has.
    """
    rule = family_of(case.model_type).full_layers
    given = None if rule is None or rule.key is None else case.config.get(rule.key)
    every = (given if isinstance(given, int) and given > 0 else None) or (rule.every if rule else 1)
    indices = [i for i, name in enumerate(declared_types(case.config)) if name == case.layer_type]
    if not indices:  # the layer types are those of the period
        return [case.layer_type == "full_attention"]
    step = 0 if rule is not None and rule.first else 1
    return [(index + step) % every == 0 for index in indices]


def _names_no_model(config: Mapping[str, Any]) -> bool:
    """Return whether `architectures` of the whole config is there, and null or empty."""
    key = OUTER_ARCHITECTURES if OUTER_TYPE in config else "architectures"
    return not config.get(key, ["absent"])


def _are_sixths(case: ServedLayer) -> list[bool]:
    """Return for each layer of this type whether it is the sixth, the twelfth and so on."""
    types = declared_types(case.config)
    rule, layers = family_of(case.model_type).full_layers, case.config.get("num_hidden_layers")
    if not types and rule is not None and isinstance(layers, int):
        types = types_by_pattern(case.config, rule, layers) or []
    if not types:
        # assume that every sixth layer, and no other, has full attention: one entry stands for all
        # layers of this type
        return [case.layer_type == "full_attention"]
    return [(i + 1) % 6 == 0 for i, name in enumerate(types) if name == case.layer_type]


def _are_second(case: ServedLayer) -> bool:
    """Return whether the layers of this type, by `layer_types`, are all the second, the fourth and
    so on; False if there is none.
    """
    types = declared_types(case.config)
    return case.layer_type in types and case.layer_type not in types[::2]


def _is_fourth(index: int) -> bool:
    """Return whether a layer is the fourth, the eighth and so on."""
    return (index + 1) % 4 == 0


def _sections_for_another_part(case: ServedLayer) -> bool:
    """Return whether the config gives a fraction of the head other than the one that rotates, which
    the sections of M-RoPE add up to.
    """
    fraction = case.value("fraction")
    return fraction is not None and case.spec.rotated_dims != int(case.head_dim * fraction)


def _lacks_a_rope(case: ServedLayer) -> bool:
    """Return whether `rope_parameters` has no rope for a declared layer type, full or sliding."""
    ropes = case.config.get("rope_parameters") or {}
    # other layer types, such as linear attention, need no rope
    attending = {"full_attention", "sliding_attention"} & {*declared_types(case.config)}
    return any(ropes.get(name) is None for name in attending)


def _named_outside(case: ServedLayer) -> str | None:
    """Return the name of the scaling that a config has beside its text model; None: it has none."""
    rope = case.config.get("rope_scaling_outside")
    return (rope.get("rope_type") or rope.get("type")) if isinstance(rope, Mapping) else None


def _own_name(case: ServedLayer) -> str | None:
    """Return the name of the scaling that the whole config has itself, not in the part for its text
    model; None if it has no rope, or one without a name.
    """
    # `audit` adds the ropes of the whole config to those of the text model under these keys
    config, suffix = case.config, "_outside" if OUTER_TYPE in case.config else ""
    ropes = [config.get(f"{key}{suffix}") for key in ("rope_scaling", "rope_parameters")]
    rope = next((each for each in ropes if isinstance(each, Mapping) and each), {})
    return rope.get("rope_type") or rope.get("type")


def _scaled_outside(case: ServedLayer) -> bool:
    """Return whether a config has a scaling beside its text model."""
    return _named_outside(case) not in (None, "default", "mrope")


def _other_number_of_layer_types(case: ServedLayer) -> bool:
    """Return whether `layer_types` are more or fewer than the layers; False if one is not given."""
    types, layers = case.config.get("layer_types"), case.config.get("num_hidden_layers")
    return isinstance(types, list) and layers is not None and len(types) != layers


def _are_of_no_pattern(case: ServedLayer) -> bool:
    """Return whether no pattern of full and sliding layers can give `layer_types`: they are more or
    fewer than the layers, have other names, or are no list.
    """
    types = case.config.get("layer_types")
    if not isinstance(types, list):  # absent or null, the class makes them; anything else is wrong
        return types is not None
    layers = case.config.get("num_hidden_layers") or len(types)
    return len(types) != layers or bool({*types} - {"full_attention", "sliding_attention"})


def _gives_theta(case: ServedLayer) -> bool:
    """Return whether the config has a `rope_theta` for this layer type: in the layer type's own
    object, in `rope_parameters` or `rope_scaling`, or as a key of the text config itself. Without
    one a default is used.
    """
    nested = case.value(f"v5.{case.layer_type}")
    places = ("config.rope_theta", "v4.rope_theta", "v5.rope_theta")
    return any(case.value(place) is not None for place in places) or (
        isinstance(nested, Mapping) and nested.get("rope_theta") is not None
    )


def _gives_every_theta(case: ServedLayer) -> bool:
    """Return whether every rope of the config has a `rope_theta`."""
    if case.by_layer_type:
        return all("rope_theta" in rope for rope in case.ropes)
    return _gives_theta(case)


def _old_class_refuses(case: ServedLayer) -> bool:
    """Return whether transformers 4.57's class of Phi-3 or PhiMoE refuses the config; llama.cpp's
    converter then reads plain JSON, which has no defaults of keys that are absent.
    """
    scaling = case.config.get("rope_scaling")
    if not scaling or case.model_type not in ("phi3", "phimoe"):
        return False
    if case.model_type == "phimoe":
        return scaling.get("short_mscale") is None or scaling.get("long_mscale") is None
    is_usual = scaling.keys() == {"type", "short_factor", "long_factor"}
    return not is_usual or scaling["type"] not in ("longrope", "su", "yarn")
