"""Configs that `from_hf` refuses and that some engine reads: what each engine takes them for.

A row `unread` of a rules file names one of REASONS, and with `as` one of TAKEN_AS if the engine
reads the config as another one. Without `as` the engine raises an error: with `always = true` in
any case, otherwise only if it reads the faulty value. An engine counts as not reading the value if
it computes the same from two configs with different values in its place, those of USUAL and OTHER.

Words of this module:
  rope      an object of a config with the settings of a rotation, or that of one layer type in it
  place     a config or a rope, since both may hold theta or the fraction of the head that rotates
  reason    one of REASONS, each with a function that says whether it holds: why `from_hf` refuses
            a config or, for those of READ_ANYWAY, reads it otherwise than it is written
  fault     a reason that is about the value of one key, one of FAULTS
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable
from typing import Any

from ropewalk.config.hf import read_specs
from ropewalk.engines.case import LENGTH_KEYS, TRAINED
from ropewalk.engines.rope_faults import (
    BANDS,
    FAULTS,
    MAGNITUDES,
    NUMBERS,
    WIDTHS,
    Config,
    all_ropes,
    below_zero,
    contradicts,
    faulty,
    has_empty_name,
    has_factor_below_zero,
    has_needed_ropes_misnamed,
    has_no_factor_list,
    has_no_name,
    has_no_sections,
    has_no_text_as_name,
    has_null_name,
    has_null_needed,
    has_null_ropes,
    has_null_sections,
    has_null_theta,
    has_null_type,
    has_number_as_rope,
    has_odd_interleaved,
    has_odd_truncate,
    has_odd_width,
    has_one_rope_for_all,
    has_other_number_of_axes,
    has_scaling_beside_layers,
    has_two_axes,
    has_two_ropes,
    has_two_widths,
    has_type_beside_layers,
    has_unknown_name,
    has_wrong_lists,
    has_wrong_sections,
    is_above,
    is_above_one,
    is_at_most_zero,
    is_below_one,
    is_below_zero,
    is_float_length,
    is_no_number,
    is_no_width,
    is_numeric_text,
    is_text_model,
    is_too_large,
    lacks_any_rope,
    lacks_factors,
    lacks_fitting_sections,
    lacks_needed,
    lacks_rope,
    name_of,
    no_numbers,
    no_objects,
    no_widths,
    places_of,
    unknown_keys,
    with_places,
    without,
    without_a_layer_type,
)
from ropewalk.engines.taken_as import (
    PLACEHOLDERS,
    TAKEN_AS,
    with_placeholders,
)
from ropewalk.errors import RopeError

NO_LAYER_TYPE = "rope under the name of no layer type"
TWO_ROPES = "rope_parameters that contradict rope_scaling"
ALL_NULL = "null as the rope of every layer type"
#: reasons that are ones even if `from_hf` reads the config
READ_ANYWAY = (NO_LAYER_TYPE, TWO_ROPES, ALL_NULL)


def _has(fault: str) -> Callable[[Config], bool]:
    """Return a function that says whether a config or its ropes have this fault, a key of FAULTS."""
    return lambda config: any(faulty(place, fault) for place in places_of(config))


#: why `from_hf` refuses a config that engines may read
REASONS: dict[str, Callable[[Config], bool]] = {
    "needed ropes under names of no layer type alone": has_needed_ropes_misnamed,
    ALL_NULL: lambda config: has_null_ropes(config),
    NO_LAYER_TYPE: lambda config: bool(without_a_layer_type(config)),
    "number as the rope of a layer type": has_number_as_rope,
    "missing rope in an unknown family": lacks_any_rope,
    "pair with two axes": has_two_axes,
    "empty rope that is no object": lambda config: any(
        not config[key] for key in no_objects(config)
    ),
    "rope that is no object": lambda config: any(config[key] for key in no_objects(config)),
    TWO_ROPES: has_two_ropes,
    "theta that is null": lambda config: any(map(has_null_theta, places_of(config))),
    "null as type": lambda config: any(map(has_null_type, all_ropes(config))),
    "null as rope_type": lambda config: any(map(has_null_name, all_ropes(config))),
    "rope_scaling named by type beside ropes of layer types": has_type_beside_layers,
    "rope_scaling beside ropes of layer types": has_scaling_beside_layers,
    "mrope_section that is null": has_null_sections,
    "mrope_section of the class that does not fit": lacks_fitting_sections,
    "mrope_section of another number of axes": has_other_number_of_axes,
    "mrope_interleaved that is no truth value": lambda config: any(
        map(has_odd_interleaved, all_ropes(config))
    ),
    "width below 0": lambda config: any(map(is_below_zero, map(config.get, WIDTHS))),
    "truncate that is no truth value": lambda config: any(map(has_odd_truncate, all_ropes(config))),
    "width that is no integer": lambda config: any(is_no_width(config.get(key)) for key in WIDTHS),
    "text instead of a served length": lambda config: any(
        is_numeric_text(config.get(key)) for key in LENGTH_KEYS
    ),
    "rope_type that is no text": lambda config: any(
        has_no_text_as_name(rope) and not has_empty_name(rope) for rope in all_ropes(config)
    ),
    "empty rope_type": lambda config: any(
        rope.get("rope_type") == "" for rope in all_ropes(config)
    ),
    "empty type": lambda config: any(map(has_empty_name, all_ropes(config))),
    "null as a frequency factor of llama3": lambda config: any(
        name_of(rope) == "llama3" and any(rope.get(key, 0) is None for key in BANDS)
        for rope in all_ropes(config)
    ),
    "something else than a number in the rope": lambda config: any(
        map(no_numbers, all_ropes(config))
    ),
    "something else than a number as theta": lambda config: any(
        is_no_number(place.get("rope_theta")) for place in (config, *all_ropes(config))
    ),
    "factor above a million in a linear rope": lambda config: any(
        map(is_too_large, all_ropes(config))
    ),
    **{fault: _has(fault) for fault in FAULTS},
    "served length below 1": lambda config: any(
        is_at_most_zero(config.get(key)) for key in LENGTH_KEYS if key in config
    ),
    "width that is a list or a word": lambda config: bool(no_widths(config)),
    "layer_types that are no list": lambda config: (
        not isinstance(config.get("layer_types"), list | tuple | None)
    ),
    "rotary_dim beside another fraction": has_two_widths,
    "mrope_section that is no list of numbers": has_no_sections,
    "fraction of an odd number of dimensions": has_odd_width,
    "factors of longrope that are no numbers": lambda config: any(
        map(has_no_factor_list, all_ropes(config))
    ),
    "factors of longrope of at most 0": lambda config: any(
        map(has_factor_below_zero, all_ropes(config))
    ),
    "fraction above 1": lambda config: any(map(is_above_one, (config, *all_ropes(config)))),
    "float length in the rope": lambda config: any(
        is_float_length(rope.get(TRAINED)) for rope in all_ropes(config)
    ),
    "float length beside the rope": lambda config: any(
        is_float_length(config.get(key)) for key in (*LENGTH_KEYS, TRAINED)
    ),
    "type contradicts rope_type in rope_scaling": lambda config: contradicts(
        config.get("rope_scaling") or {}
    ),
    "type contradicts rope_type in rope_parameters": lambda config: any(
        map(contradicts, all_ropes({"rope_parameters": config.get("rope_parameters")}))
    ),
    "one rope in rope_parameters for several layer types beside rope_scaling": lambda config: (
        has_one_rope_for_all(config) and config.get("rope_scaling") is not None
    ),
    "one rope in rope_parameters for several layer types": has_one_rope_for_all,
    "longrope without factors in rope_scaling": lambda config: lacks_factors(
        config, "rope_scaling"
    ),
    "longrope without factors in rope_parameters": lambda config: lacks_factors(
        config, "rope_parameters"
    ),
    "text instead of a trained length": lambda config: any(
        is_numeric_text(rope.get(TRAINED)) for rope in all_ropes(config)
    ),
    "text instead of a theta": lambda config: any(
        is_numeric_text(place.get("rope_theta")) for place in (config, *all_ropes(config))
    ),
    "text instead of a number": lambda config: any(
        is_numeric_text(rope.get(key))
        for rope in all_ropes(config)
        for key in NUMBERS
        if key not in (TRAINED, "rope_theta", *MAGNITUDES)
    ),
    "text instead of an attention_factor": lambda config: any(
        is_numeric_text(rope.get("attention_factor")) for rope in all_ropes(config)
    ),
    "text instead of a magnitude": lambda config: any(
        is_numeric_text(rope.get(key)) for rope in all_ropes(config) for key in MAGNITUDES
    ),
    "scaling without a number that it needs": lambda config: (
        not lacks_factors(config, "rope_scaling")
        and not lacks_factors(config, "rope_parameters")
        and any(map(lacks_needed, all_ropes(config)))
    ),
    "llama3 without one of its two frequency factors": lambda config: any(
        name_of(rope) == "llama3" and any(rope.get(key) is None for key in BANDS)
        for rope in all_ropes(config)
    ),
    "empty rope_parameters in a family whose default is scaled": lambda config: (
        lacks_rope(config) and config.get("rope_parameters") is not None
    ),
    "no rope in a family whose default is scaled": lacks_rope,
    "magnitude below 0": lambda config: any(map(below_zero, all_ropes(config))),
    "rope without a rope_type": lambda config: any(map(has_no_name, all_ropes(config))),
    # vLLM has a scaling of this name
    "rope_type ntk": lambda config: any(name_of(rope) == "ntk" for rope in all_ropes(config)),
    "rope_type with an unknown name": lambda config: any(map(has_unknown_name, all_ropes(config))),
    "null instead of a number that a scaling needs": lambda config: any(
        map(has_null_needed, all_ropes(config))
    ),
    "factor below 1": lambda config: any(
        is_below_one(rope) and name_of(rope) != "dynamic" for rope in all_ropes(config)
    ),
    "factor below 1 in a dynamic rope": lambda config: any(
        is_below_one(rope) and name_of(rope) == "dynamic" for rope in all_ropes(config)
    ),
    "beta_slow above beta_fast": lambda config: any(
        is_above(rope, "beta_slow", "beta_fast") for rope in all_ropes(config)
    ),
    "low_freq_factor above high_freq_factor": lambda config: any(
        is_above(rope, "low_freq_factor", "high_freq_factor") for rope in all_ropes(config)
    ),
    "longrope with factors for another number of pairs": has_wrong_lists,
    "rope_type mrope in a text model": lambda config: (
        is_text_model(config) and any(name_of(rope) == "mrope" for rope in all_ropes(config))
    ),
    "mrope_section of another number of pairs": lambda config: (
        has_wrong_sections(config) and not is_text_model(config)
    ),
    "mrope_section of another number of pairs in a text model": lambda config: (
        has_wrong_sections(config) and is_text_model(config)
    ),
    "longrope without a trained length": lambda config: (
        config.get(TRAINED) is None
        and any(
            name_of(rope) in ("longrope", "su")
            and rope.get(TRAINED) is None
            and rope.get("factor") is None
            for rope in all_ropes(config)
        )
    ),
    "text instead of truncate": lambda config: any(
        isinstance(rope.get("truncate"), str) for rope in all_ropes(config)
    ),
    "unknown key in the rope": lambda config: any(map(unknown_keys, all_ropes(config))),
}

#: how many keys `readable` leaves out, one after another, before it gives FRAME instead
MOST_LEFT_OUT = 8
#: what is given for a key without which `from_hf` reads nothing
GIVEN = {
    "hidden_size": {"head_dim": 64},
    "num_attention_heads": {"head_dim": 64},
    "rope_parameters": {"rope_theta": 10_000.0},
}
#: a config that `from_hf` reads, for one that it does not; no number of it is shown
FRAME = {"head_dim": 64, "rope_theta": 10_000.0}

#: {reason: the name in TAKEN_AS by which the config is read to find its layer types and lengths,
#: whatever engines do}
USUAL = {
    "needed ropes under names of no layer type alone": "an unscaled rope for every layer type",
    ALL_NULL: "no rope_parameters",
    NO_LAYER_TYPE: "ropes of layer types alone",
    "number as the rope of a layer type": "no rope_parameters",
    "missing rope in an unknown family": "theta 10,000 where there is no rope",
    "pair with two axes": "one axis",
    "empty rope that is no object": "no rope that is no object",
    "rope that is no object": "no rope that is no object",
    "theta that is null": "no theta that is null",
    "null as type": "unscaled where the name is null",
    "null as rope_type": "unscaled where the name is null",
    "rope_scaling named by type beside ropes of layer types": "no rope_scaling",
    "rope_scaling beside ropes of layer types": "no rope_scaling",
    "mrope_section that is null": "sections that add up",
    "mrope_section of the class that does not fit": "sections that add up",
    "mrope_section of another number of axes": "sections that add up",
    "mrope_interleaved that is no truth value": "the truth of mrope_interleaved",
    "width below 0": "a width of 64 instead of one below 0",
    "truncate that is no truth value": "the truth of truncate",
    "width that is no integer": "integer widths",
    "text instead of a served length": "integer lengths",
    "something else than a number in the rope": "numbers in the rope",
    "something else than a number as theta": "theta 10,000",
    "factors of longrope that are no numbers": "fitting lists",
    "factor above a million in a linear rope": "placeholders",
    **{fault: f"possible: {fault}" for fault in FAULTS},
    "served length below 1": "a served length of 4096",
    "width that is a list or a word": "no width that is no number",
    "layer_types that are no list": "layer types of the class",
    "rotary_dim beside another fraction": "the width of rotary_dim",
    "mrope_section that is no list of numbers": "sections that add up",
    "fraction of an odd number of dimensions": "no fraction of an odd number",
    "rope_type that is no text": "unscaled where the name is no text",
    "empty rope_type": "unscaled where the name is no text",
    "empty type": "unscaled where the name is no text",
    "null as a frequency factor of llama3": "complete",
    "factors of longrope of at most 0": "factors above 0",
    "fraction above 1": "no fraction",
    "float length in the rope": "integers",
    "float length beside the rope": "integers",
    "type contradicts rope_type in rope_scaling": "rope_type alone",
    "type contradicts rope_type in rope_parameters": "rope_type alone",
    "one rope in rope_parameters for several layer types beside rope_scaling": "no rope_parameters",
    "one rope in rope_parameters for several layer types": "no rope_parameters",
    "longrope without factors in rope_scaling": "no rope_scaling",
    "longrope without factors in rope_parameters": "no rope_parameters",
    TWO_ROPES: "the scaling of rope_scaling",
    "text instead of a trained length": "numbers",
    "text instead of a theta": "numbers",
    "text instead of a number": "numbers",
    "rope without a rope_type": "unscaled where there is no name",
    "rope_type with an unknown name": "linear where the name is unknown",
    "rope_type ntk": "linear where the name is unknown",
    "text instead of an attention_factor": "numbers",
    "llama3 without one of its two frequency factors": "complete",
    "empty rope_parameters in a family whose default is scaled": "an unscaled rope",
    "no rope in a family whose default is scaled": "an unscaled rope for every layer type",
    "scaling without a number that it needs": "complete",
    "null instead of a number that a scaling needs": "complete",
    "factor below 1": "placeholders",
    "factor below 1 in a dynamic rope": "placeholders",
    "beta_slow above beta_fast": "placeholders",
    "low_freq_factor above high_freq_factor": "both the higher",
    "longrope with factors for another number of pairs": "fitting lists",
    "mrope_section of another number of pairs": "sections that add up",
    "mrope_section of another number of pairs in a text model": "no sections",
    "rope_type mrope in a text model": "no sections",
    "longrope without a trained length": "trained for the served length",
    "text instead of a magnitude": "numbers",
    "magnitude below 0": "magnitude 1",
    "text instead of truncate": "truncate true",
    "unknown key in the rope": "known keys",
}

#: {reason: a second name in TAKEN_AS, which puts another value in the place of the faulty one}; an
#: engine that computes the same from both configs does not read the value
OTHER = {
    "missing rope in an unknown family": "theta 100,000 where there is no rope",
    "width below 0": "a width of 128 instead of one below 0",
    "theta that is null": "theta 123,456 where it is null",
    "null as type": "linear by 7 where the name is null",
    "null as rope_type": "linear by 7 where the name is null",
    "rope_scaling beside ropes of layer types": "rope_scaling added to the rope of full layers",
    "text instead of a served length": "an eighth of the served length",
    "empty rope that is no object": "linear by 7 instead of no object",
    "rope that is no object": "linear by 7 instead of no object",
    "something else than a number in the rope": "other numbers in the rope",
    "something else than a number as theta": "theta 100,000",
    "factors of longrope that are no numbers": "linear by 7",
    **{fault: f"other: {fault}" for fault in FAULTS},
    "served length below 1": "a served length of 512",
    "width that is a list or a word": "a width of 64 instead of no number",
    "layer_types that are no list": "full attention alone",
    "rotary_dim beside another fraction": "the width of the fraction",
    "mrope_section that is no list of numbers": "other sections that add up",
    "fraction of an odd number of dimensions": "a fourth instead of an odd number",
    "rope_type that is no text": "linear by 7 where the name is no text",
    "empty rope_type": "linear by 7 where the name is no text",
    "empty type": "linear by 7 where the name is no text",
    "null as a frequency factor of llama3": "linear by 7",
    "factors of longrope of at most 0": "other factors above 0",
    "fraction above 1": "fraction 0.625",
    "text instead of a trained length": "linear by 7",
    "text instead of a theta": "ten times the theta",
    "text instead of a number": "linear by 7",
    "rope_type with an unknown name": "linear by 7",
    "rope_type ntk": "linear by 7",
    "text instead of a magnitude": "magnitude 3",
    "text instead of an attention_factor": "magnitude 3",
    "llama3 without one of its two frequency factors": "linear by 7",
    "magnitude below 0": "magnitude 3",
    "longrope without a trained length": "linear by 7",
    "scaling without a number that it needs": "linear by 7",
    "null instead of a number that a scaling needs": "linear by 7",
    "longrope with factors for another number of pairs": "linear by 7",
    "rope_type mrope in a text model": "linear by 7 instead of mrope",
}


def reasons(config: Config) -> list[str]:
    """Return the REASONS that hold for a config; with a rope that is no object, only those about
    such ropes.
    """
    if no_objects(config):  # nothing else can be read
        names = ("empty rope that is no object", "rope that is no object")
        return [name for name in names if REASONS[name](config)]
    return [name for name, holds in REASONS.items() if holds(config)]


def usual(config: Config) -> Config:
    """Return the config, changed as USUAL says for each of REASONS that holds, in their order.
    `from_hf` may still refuse it, for something that is none of REASONS: see `readable`.
    """
    for reason, holds in REASONS.items():
        if holds(config):
            config = TAKEN_AS[USUAL[reason]](config)
    return config


def readable(config: Config, keys: Iterable[str] = ()) -> tuple[Config, list[str]]:
    """Return a config that `from_hf` reads, and the keys in which it differs from this one: keys
    that `from_hf` refuses, which are left out, or misses, which get a value of GIVEN. `keys` are
    left out first, and are among those returned.
    """
    left_out = [*keys]
    for key in left_out:
        config = with_places(config, without(key))
    for _ in range(MOST_LEFT_OUT):
        try:
            read_specs(config, "exact")
            return config, left_out
        except RopeError as error:
            # the key at the beginning of the field, which may go on after it
            key = re.split(r"[\[. ]", error.field)[0]
        if any(key in place for place in places_of(config)):
            config = with_places(config, without(key))
        else:  # it must be given
            config = {**config, **GIVEN.get(key, GIVEN["rope_parameters"])}
        left_out.append(key)
    return {**FRAME, **{key: config[key] for key in LENGTH_KEYS if key in config}}, left_out


def put_back(scaling: Any, rope: Config) -> Any:
    """Return the scaling that was made from `with_placeholders(rope)`, with the rope's own values
    in place of the placeholders; they are set without checks, since a scaling refuses them.
    """
    taken = with_placeholders(rope)
    # a rule may have changed a value after its placeholder was set; then it stays
    changed = {
        key: rope[key]
        for key, placeholder in PLACEHOLDERS.items()
        if key in rope and taken[key] != rope[key] and getattr(scaling, key, None) == placeholder
    }
    if not changed:
        return scaling
    unchecked = copy.copy(scaling)  # its own check would run in the constructor
    for key, value in changed.items():
        object.__setattr__(unchecked, key, float(value))
    return unchecked
