"""What an engine may take a config for that `from_hf` refuses: another config, which `from_hf`
reads.

Some of these configs have an arbitrary second value, such as a linear factor of 7, in the place of
a faulty one: unread.py compares what an engine computes with two values, to see whether it reads
them.

Words of this module:
  rope      an object of a config with the settings of a rotation, `rope_scaling` or
            `rope_parameters`, or that of one layer type in it. `with_ropes(config, change)` changes
            each
  place     the config or one of its ropes; `with_places(config, change)` changes each
  change    a function that returns a changed copy; all functions here leave what they are given
  fraction  that of the head that rotates
  sections  how many pairs rotate by each axis: time, height and width
  unscaled  with a rope but without a scaling of its frequencies, the rope_type "default"
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ropewalk.config import keys
from ropewalk.config.families import family_of
from ropewalk.engines.case import LENGTH_KEYS, TRAINED
from ropewalk.engines.rope_faults import (
    BANDS,
    FAULTS,
    FRACTIONS,
    LISTS,
    MAGNITUDES,
    NUMBERS,
    OTHERS,
    POSSIBLE,
    WIDTHS,
    Config,
    all_ropes,
    below_zero,
    faulty,
    has_no_name,
    has_no_text_as_name,
    has_null_name,
    has_null_theta,
    has_odd_width,
    has_unknown_name,
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
    is_too_large,
    lacks_needed,
    name_of,
    needed_keys,
    no_numbers,
    no_objects,
    no_widths,
    number_in,
    pairs_of,
    places_of,
    unknown_keys,
    width_of,
    with_numbers,
    with_places,
    with_ropes,
    without,
    without_a_layer_type,
)

#: the rope that transformers' class of a family has if the config has none
DEFAULT_ROPES: dict[str, dict[str, Any]] = {
    "gpt_oss": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        TRAINED: 4096,
    },
    "mistral_large4_text": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 2048.0,
        TRAINED: 512,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "attention_factor": 1.0,
    },
    "cwm": {
        "rope_type": "llama3",
        "factor": 16.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        TRAINED: 8192,
        "rope_theta": 1e6,
    },
    "apertus": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        TRAINED: 8192,
        "rope_theta": 12e6,
    },
    "gemma4_text": {
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1e6,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
    "laguna": {
        "full_attention": {
            "rope_type": "default",
            "partial_rotary_factor": 0.5,
            "rope_theta": 5e5,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
    "mellum": {
        "full_attention": {"rope_type": "default", "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
    "ministral3": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        TRAINED: 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale_all_dim": 1.0,
        "mscale": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
    "mistral4": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 128.0,
        TRAINED: 8192,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale_all_dim": 1.0,
        "mscale": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
    "mimo_v2_flash": {
        "full_attention": {
            "rope_type": "default",
            "partial_rotary_factor": 0.334,
            "rope_theta": 5e6,
        },
        "sliding_attention": {
            "rope_type": "default",
            "partial_rotary_factor": 0.334,
            "rope_theta": 1e4,
        },
    },
}

DEFAULT_ROPES["gemma4_unified_text"] = DEFAULT_ROPES["gemma4_text"]
DEFAULT_ROPES["openai_privacy_filter"] = DEFAULT_ROPES["gpt_oss"]

#: while the rules are applied, values that no scaling accepts are replaced by these; `put_back` of
#: unread.py writes the values themselves into the result
PLACEHOLDERS = {"factor": 1.0, "beta_fast": 33.5, "beta_slow": 1.5, "attention_factor": 0.9375}


def _if(
    wrong: Callable[[Config], Any], change: Callable[[Config], Config]
) -> Callable[[Config], Config]:
    """Return a function that changes those ropes of a config for which `wrong` holds."""
    return lambda config: with_ropes(config, lambda rope: change(rope) if wrong(rope) else rope)


def _scaled(factor: float) -> Callable[[Config], Config]:
    """Return a function that replaces the scaling of a rope by linear interpolation by `factor`; the
    keys that every scaling has, such as theta, and those of axes stay.
    """
    kept = {*keys.COMMON_KEYS, *keys.AXIS_KEYS} - {"rope_type", "type"}

    def change(rope: Config) -> Config:
        # the name stays under the key, or both keys, where it was
        names = {key for key in ("rope_type", "type") if key in rope} or {"rope_type"}
        others = {key: value for key, value in rope.items() if key in kept}
        return {**dict.fromkeys(names, "linear"), "factor": factor, **others}

    return change


def _fractions(config: Config, fraction: float, holds: Callable[[Config], Any]) -> Config:
    """Return the config with this fraction of the head in every place that has one, if
    `holds(config)` is true; else as it is.
    """

    def change(place: Config) -> Config:
        return {**place, **{key: fraction for key in FRACTIONS if key in place}}

    return with_places(config, change) if holds(config) else config


def _other_numbers(rope: Config) -> Config:
    """Return a rope with numbers of OTHERS in place of magnitudes that are no numbers, and of the
    factor of LongRoPE; with linear scaling by 7 if anything else is no number.
    """
    wrong = no_numbers(rope)
    # the factor of LongRoPE changes its magnitude alone
    own = ("factor",) if name_of(rope) in ("longrope", "su") else ()
    if {*wrong} - {*MAGNITUDES, *own}:
        return _scaled(7.0)(rope)
    return {**rope, **{key: OTHERS[key] for key in wrong}}


def _width_above_zero(config: Config, width: int) -> Config:
    """Return the config with this width in place of one below 0."""
    wrong = [key for key in WIDTHS if is_below_zero(config.get(key))]
    return {**config, **dict.fromkeys(wrong, width)}


def _served(config: Config, length: int) -> Config:
    """Return the config with this served length in place of one below 1."""
    wrong = [key for key in LENGTH_KEYS if key in config and is_at_most_zero(config[key])]
    return {**config, **dict.fromkeys(wrong, length)}


def _linear(rope: Config) -> Config:
    """Return a rope with linear interpolation by its own factor in place of its scaling."""
    return _scaled(float(rope["factor"]))(rope)  # type: ignore[arg-type]


def _linear_of_ntk(config: Config) -> Config:
    """Return the config with the linear scaling of another theta that is vLLM's scaling ntk: theta is
    multiplied by the factor, and every pair divided by the factor to the power of 2 / width.
    """
    width = 2 * pairs_of(config) or 2

    def change(rope: Config) -> Config:
        factor: Any = rope.get("factor", 1.0)
        theta: Any = rope.get("rope_theta") or _theta_of(config)
        return {**_scaled(factor ** (2 / width))(rope), "rope_theta": theta * factor}

    changed = _if(lambda rope: name_of(rope) == "ntk", change)(config)
    return without("rope_theta")(changed)


def _named(name: str) -> Callable[[Config], Config]:
    """Return a function that gives the scaling of a rope this name."""
    return lambda rope: {
        key: name if key in ("rope_type", "type") else value for key, value in rope.items()
    }


def _magnitude(value: float) -> Callable[[Config], Config]:
    """Return a function that puts `value`, `value` squared and so on in the place of the magnitudes
    of a rope that are texts or below 0.
    """

    def change(rope: Config) -> Config:
        wrong = [key for key in MAGNITUDES if is_numeric_text(rope.get(key))] + below_zero(rope)
        return {**rope, **{key: value ** (i + 1) for i, key in enumerate(wrong)}}

    return change


def _integer(value: Any) -> Any:
    """Return a number or numeric text without its fraction; itself if it is not finite."""
    return int(float(value)) if math.isfinite(float(value)) else value


def _unscaled(rope: Config) -> Config:
    """Return a rope without the keys of a scaling, with the rope_type default unless it has one."""
    kept = {*keys.COMMON_KEYS, *keys.AXIS_KEYS}
    return {"rope_type": "default", **{key: rope[key] for key in rope if key in kept}}


def _without_name(rope: Config) -> Config:
    """Return a rope without the name of its scaling."""
    return {key: value for key, value in rope.items() if key not in ("rope_type", "type")}


def _other_theta(config: Config) -> Config:
    """Return the config with ten times the theta wherever it is a text."""

    def change(place: Config) -> Config:
        theta = place.get("rope_theta")
        return {**place, "rope_theta": 10 * float(theta)} if is_numeric_text(theta) else place  # type: ignore[arg-type]

    return with_ropes(change(config), change)


def _theta_instead(config: Config, theta: float) -> Config:
    """Return the config with a theta wherever it has something else than a number."""

    def change(place: Config) -> Config:
        return {**place, "rope_theta": theta} if is_no_number(place.get("rope_theta")) else place

    return with_ropes(change(config), change)


def _first_thetas(config: Config) -> Config:
    """Return the config with the first theta of a list as its theta, and the second as that of
    sliding layers, both without the others; with another theta as it is.
    """
    thetas: Any = config.get("rope_theta")
    if not isinstance(thetas, list) or len(thetas) < 2:
        return config
    return {**config, "rope_theta": thetas[0], "local_rope_theta": thetas[1]}


def _theta_for_null(theta: float) -> Callable[[Config], Config]:
    """Return a function that puts a theta in the place of null in a config and its ropes."""
    return lambda config: with_places(
        config, lambda place: {**place, "rope_theta": theta} if has_null_theta(place) else place
    )


def _added_to_full_layers(config: Config) -> Config:
    """Return the config with the keys of `rope_scaling` in the rope of full layers."""
    ropes, added = config["rope_parameters"], config["rope_scaling"]
    full = ropes.get("full_attention") or {}
    if "rope_type" in full:  # which is read, not a `type` beside it
        added = without("type")(added)
    full = {**full, **added}
    changed = {**config, "rope_parameters": {**ropes, "full_attention": full}}
    return without("rope_scaling")(changed)


def _fraction_instead(config: Config, other: Config) -> Config:
    """Return the config with another fraction wherever it is above 1; `other` is the new entry
    {"partial_rotary_factor": fraction}, or {} for none.
    """

    def change(place: Config) -> Config:
        without_it = without("partial_rotary_factor")(place)
        return {**without_it, **other} if is_above_one(place) else place

    return with_ropes(change(config), change)


def _complete(config: Config) -> Config:
    """Return the config with every number that a scaling needs."""
    pairs = pairs_of(config)

    def fill(rope: Config) -> Config:
        """Return a rope with a possible value for each number that it lacks, for Llama 3 also for
        the BANDS, its two frequency factors.
        """
        needed = (
            *needed_keys(rope),
            *(BANDS if name_of(rope) == "llama3" else ()),
        )
        missing = {
            key: [2.0] * pairs if key in LISTS else NUMBERS[key]
            for key in needed
            if rope.get(key) is None
        }
        return {**rope, **missing}

    return with_ropes(config, fill)


def _factors_above_zero(factor: float) -> Callable[[Config], Config]:
    """Return a function that puts `factor` in the place of LongRoPE's factors of at most 0."""
    return lambda rope: {
        key: [factor if is_at_most_zero(each) else each for each in value]
        if key in LISTS and isinstance(value, list)
        else value
        for key, value in rope.items()
    }


def _fitting_lists(config: Config) -> Config:
    """Return the config with LongRoPE factors of 2 for every pair in place of those it gives."""
    pairs = pairs_of(config)
    return with_ropes(
        config,
        lambda rope: {
            key: [2.0] * pairs if key in LISTS and value is not None else value
            for key, value in rope.items()
        },
    )


def _lists_of_numbers(rope: Config, pairs: int) -> Config:
    """Return a rope with its long factors in both lists of LongRoPE; if they are one number, with
    that number for each of `pairs` pairs; as it is if it has none.
    """
    factor: Any = rope.get("long_factor")
    factors = [factor] * pairs if isinstance(factor, int | float) else factor
    return {**rope, **dict.fromkeys(LISTS, factors)} if factor is not None else rope


def _with_sections(
    config: Config, fit: Callable[[list[int], int], list[int]] | None, other: bool = False
) -> Config:
    """Return the config with sections that add up to the pairs that rotate.

    fit    called with the three sections of a rope and the number of pairs; returns the new ones.
           None, or a rope without three sections: a third of the pairs for each axis
    other  an eighth of the pairs instead of a third for height and width, the rest for time
    """
    pairs = pairs_of(config)
    part = pairs // (8 if other else 3)
    parts = [pairs - 2 * part, part, part]

    def change(rope: Config) -> Config:
        given: Any = rope.get("mrope_section")
        is_three = isinstance(given, list) and len(given) == 3
        fitting = fit(given, pairs) if fit is not None and is_three else parts
        return {**rope, "mrope_section": fitting}

    return _with_ropes_or_one(config, change)


def _even_width(config: Config) -> Config:
    """Return the config with one more rotated dimension, where they are an odd number, and the
    theta that leaves the frequencies as they were.
    """
    width = width_of(config)
    size: Any = config.get("head_dim")
    if size is None:
        size = config["hidden_size"] // config["num_attention_heads"]
    if not any("rope_theta" in place for place in (config, *all_ropes(config))):
        config = {**config, "rope_theta": _theta_of(config)}

    def change(place: Config) -> Config:
        """Return a config or a rope with another theta, if it has one."""
        theta: Any = place.get("rope_theta")
        return place if theta is None else {**place, "rope_theta": theta ** ((width + 1) / width)}

    return with_places(_fractions(config, (width + 1) / size, has_odd_width), change)


def _one_section(config: Config) -> Config:
    """Return the config with sections that give every pair to the first axis."""
    pairs = pairs_of(config)
    changed = _with_ropes_or_one(config, lambda rope: {**rope, "mrope_section": [pairs, 0, 0]})
    # rules look at the last key to tell that the config has no sections
    return {**changed, "one_section": True}


def _sections_of_the_class(config: Config) -> Config:
    """Return the config with the sections that its class gives where there are none."""
    sections = [*(family_of(config.get("model_type")).sections or ())]
    return _with_ropes_or_one(config, lambda rope: {**rope, "mrope_section": sections})


def _with_ropes_or_one(config: Config, change: Callable[[Config], Config]) -> Config:
    """Return the config with its ropes changed, or with an unscaled one that is changed if it has
    none.
    """
    if not any(config.get(key) for key in ("rope_scaling", "rope_parameters")):
        config = {**config, "rope_scaling": {"rope_type": "default"}}
    return with_ropes(config, change)


def _fitting_sections(config: Config) -> Config:
    """Return the config with sections scaled to the pairs that rotate, if they do not add up."""
    return _with_sections(config, _scaled_to_fit) if has_wrong_sections(config) else config


def _time_has_the_rest(sections: list[int], pairs: int) -> list[int]:
    """Return sections whose first one has the pairs that interleaved height and width leave: these
    two have every third pair, from pair 1 and from pair 2 on.
    """
    _, height, width = sections
    height, width = min(height, (pairs + 1) // 3), min(width, pairs // 3)
    return [pairs - height - width, height, width]


def _theta_of(config: Config) -> float:
    """Return the theta of the config beside its ropes, or else the default of its family."""
    return config.get("rope_theta") or family_of(config.get("model_type")).default("rope_theta")


def _default_rope(config: Config) -> Config:
    """Return the config with the rope of DEFAULT_ROPES; one for all layers that has no theta gets
    the config's.
    """
    rope = DEFAULT_ROPES[str(config.get("model_type"))]
    # one rope for all has a rope_type itself; of ropes by layer type each has its theta
    theta = {"rope_theta": _theta_of(config)} if "rope_type" in rope else {}
    return {**config, "rope_parameters": theta | rope}


def _ropes_beside(config: Config) -> Config:
    """Return the config with a rope for each layer type, of the keys beside the rope."""
    fraction = {
        key: config[key] for key in ("partial_rotary_factor",) if config.get(key) is not None
    }
    thetas = {"full_attention": "rope_theta", "sliding_attention": "swa_rope_theta"}
    ropes = {
        name: {"rope_type": "default", "rope_theta": config.get(key) or 10_000.0, **fraction}
        for name, key in thetas.items()
    }
    # rules look at the last key to tell that the ropes were not given
    return {**config, "rope_parameters": ropes, "ropes_beside": True}


def _default_layers(config: Config) -> Config:
    """Return the config with the family's ropes of DEFAULT_ROPES if it has one for each layer type
    there, or one with a theta, else with one unscaled rope.
    """
    # one rope for all layer types has a rope_type itself, ropes by layer type have not; a family that
    # is not in DEFAULT_ROPES counts as one with a rope for all
    rope = DEFAULT_ROPES.get(str(config.get("model_type")), {"rope_type": ""})
    # ropes of layer types, and one with a theta of its own, do not depend on the config
    is_own = "rope_type" not in rope or "rope_theta" in rope
    return TAKEN_AS["the default rope of the class" if is_own else "an unscaled rope"](config)


def _scaled_to_fit(sections: list[int], pairs: int) -> list[int]:
    """Return sections in the same proportions, each at least 1 but the last, which has the rest."""
    # `or 1`: all may be 0
    fitting = [max(1, count * pairs // (sum(sections) or 1)) for count in sections]
    return [*fitting[:-1], fitting[-1] + pairs - sum(fitting)]


def with_placeholders(rope: Config) -> Config:
    """Return a rope with PLACEHOLDERS for what no scaling accepts: a factor below 1, one above a
    million in a linear rope, a beta_slow above beta_fast, and an attention_factor of 0.
    """
    taken = dict(rope)
    can_be_negative = name_of(rope) in ("linear", "yarn", "llama3")
    is_negative = can_be_negative and faulty(rope, "factor below 0")
    if is_below_one(rope) or is_too_large(rope) or is_negative:
        taken["factor"] = PLACEHOLDERS["factor"]
    if faulty(rope, "attention_factor of 0"):
        taken["attention_factor"] = PLACEHOLDERS["attention_factor"]
    if is_above(rope, "beta_slow", "beta_fast"):
        taken |= {key: PLACEHOLDERS[key] for key in ("beta_fast", "beta_slow")}
    return taken


def _scaling_of_rope_scaling(config: Config) -> Config:
    """Return the config with the scaling of `rope_scaling` in both rope objects, each of which
    keeps its own theta.
    """
    new = config["rope_parameters"]
    theta = {key: new[key] for key in ("rope_theta",) if key in new}
    return {**config, "rope_parameters": {**config["rope_scaling"], **theta}}


def _integers(config: Config) -> Config:
    """Return a config or a rope with integers in place of lengths that are whole floats."""
    lengths = (*LENGTH_KEYS, TRAINED)
    return {
        key: int(value) if key in lengths and is_float_length(value) else value
        for key, value in config.items()
    }


def _by_layer_type(config: Config) -> Config:
    """Return the config with a rope for each layer type: that of `rope_parameters` for full layers,
    and for sliding ones an unscaled rope with the theta rope_local_base_freq or local_rope_theta,
    or 10,000.
    """
    theta = config.get("rope_local_base_freq", config.get("local_rope_theta", 10_000.0))
    ropes = {
        "full_attention": dict(config["rope_parameters"]),
        "sliding_attention": {"rope_type": "default", "rope_theta": theta},
    }
    return {**config, "rope_parameters": ropes}


def _instead(fault: str, values: Callable[[str, Any], Any]) -> Callable[[Config], Config]:
    """Return a function that replaces each value with this fault, a key of FAULTS, in a config and
    its ropes by `values(key, value)`.
    """

    def change(place: Config) -> Config:
        return {**place, **{key: values(key, place[key]) for key in faulty(place, fault)}}

    return lambda config: with_places(config, change)


def _possible(key: str, value: Any) -> Any:
    """Return the number that a text holds; for any other value a number that the key may have."""
    return number_in(value) if is_numeric_text(value) else POSSIBLE[key]


def _without_faulty(fault: str) -> Callable[[Config], Config]:
    """Return a function that leaves out the values with this fault, a key of FAULTS."""
    return lambda config: with_places(config, lambda place: without(*faulty(place, fault))(place))


#: what an engine may take such a config for: another config, which `from_hf` reads
TAKEN_AS: dict[str, Callable[[Config], Config]] = {
    "ropes of layer types alone": lambda config: {
        **config,
        "rope_parameters": without(*without_a_layer_type(config))(config["rope_parameters"]),
    },
    "no rope that is no object": lambda config: without(*no_objects(config))(config),
    "linear by 7 instead of no object": lambda config: {
        **config,
        **{key: {"rope_type": "linear", "factor": 7.0} for key in no_objects(config)},
    },
    "integer widths": lambda config: {
        key: _integer(value) if key in WIDTHS and is_no_width(value) else value
        for key, value in config.items()
    },
    "integer lengths": lambda config: {
        key: number_in(value) if key in LENGTH_KEYS else value for key, value in config.items()
    },
    # an engine that reads the length computes something else with an eighth of it
    "an eighth of the served length": lambda config: {
        key: int(number_in(value) / 8) if key in LENGTH_KEYS and is_numeric_text(value) else value
        for key, value in config.items()
    },
    "numbers in the rope": lambda config: with_ropes(
        config, lambda rope: {**rope, **{key: NUMBERS[key] for key in no_numbers(rope)}}
    ),
    "no theta that is null": lambda config: with_places(
        config, lambda place: without("rope_theta")(place) if has_null_theta(place) else place
    ),
    "theta 10,000 where it is null": _theta_for_null(10_000.0),
    "theta 123,456 where it is null": _theta_for_null(123_456.0),
    "unscaled where the name is null": _if(
        has_null_name, lambda rope: _unscaled(_without_name(rope))
    ),
    "linear by 7 where the name is null": _if(has_null_name, _scaled(7.0)),
    "rope_scaling added to the rope of full layers": _added_to_full_layers,
    "the thetas of the layers": lambda config: {
        **_theta_instead(config, 10_000.0),
        "thetas": config.get("rope_theta"),
    },
    "theta 10,000 where there is no rope": lambda config: {**config, "rope_theta": 10_000.0},
    "theta 100,000 where there is no rope": lambda config: {**config, "rope_theta": 100_000.0},
    # rules look at the last key to tell that the config has sections
    "one axis": lambda config: {
        **with_ropes(config, without(*keys.SECTION_KEYS)),
        "one_axis": True,
    },
    "the thetas of the first two layers": _first_thetas,
    "theta 10,000": lambda config: _theta_instead(config, 10_000.0),
    "theta 100,000": lambda config: _theta_instead(config, 100_000.0),
    "no fraction": lambda config: _fraction_instead(config, {}),
    "half of the head where no fraction is given": lambda config: (
        config
        if any(key in place for place in places_of(config) for key in FRACTIONS)
        else {**config, "partial_rotary_factor": 0.5}
    ),
    "the whole head for a fraction above 1": lambda config: _fraction_instead(
        config, {"partial_rotary_factor": 1.0}
    ),
    "fraction 0.625": lambda config: _fraction_instead(config, {"partial_rotary_factor": 0.625}),
    "integers": lambda config: with_ropes(_integers(config), _integers),
    "rope_type alone": lambda config: with_ropes(config, without("type")),
    "type alone": lambda config: with_ropes(config, without("rope_type")),
    "no rope_parameters": without("rope_parameters"),
    "no rope_scaling": without("rope_scaling"),
    "a rope of full layers": _by_layer_type,
    "numbers": with_numbers,
    "integers instead of their texts": lambda config: with_places(
        config,
        lambda place: {
            **place,
            **{
                key: int(place[key])
                for key in ("rope_theta",)
                if isinstance(place.get(key), str) and place[key].isdigit()
            },
        },
    ),
    "ten times the theta": _other_theta,
    "complete": _complete,
    "linear by 7": lambda config: with_ropes(config, _scaled(7.0)),
    "linear where the name is unknown": _if(has_unknown_name, _scaled(2.0)),
    "linear with another theta where it is ntk": _linear_of_ntk,
    "unscaled where the name is unknown": _if(
        has_unknown_name, lambda rope: _unscaled(_without_name(rope))
    ),
    "unscaled where the factor is 0": _if(
        lambda rope: faulty(rope, "factor of 0"), lambda rope: _unscaled(_without_name(rope))
    ),
    "unscaled where a number is missing": _if(
        lacks_needed, lambda rope: _unscaled(_without_name(rope))
    ),
    "yarn where the name is unknown": _if(has_unknown_name, _named("yarn")),
    # linear beside yarn: transformers' class adds the trained length to a rope of type yarn, which
    # the engine would read, and adds nothing to linear
    "linear with its keys where the name is unknown": _if(has_unknown_name, _named("linear")),
    "default with its keys where there is no name": _if(
        has_no_name, lambda rope: {"rope_type": "default", **rope}
    ),
    "linear with its keys where there is no name": _if(
        has_no_name, lambda rope: {"rope_type": "linear", **rope}
    ),
    "an unscaled rope": lambda config: {
        **config,
        "rope_parameters": {"rope_type": "default", "rope_theta": _theta_of(config)},
    },
    "an unscaled rope for every layer type": lambda config: _default_layers(config),
    "ropes of the keys beside them": _ropes_beside,
    "the default rope of the class": _default_rope,
    "the default scaling of the class": lambda config: {
        **config,
        "rope_parameters": {
            **DEFAULT_ROPES[str(config.get("model_type"))],
            "rope_theta": _theta_of(config),
        },
    },
    "unscaled where there is no name": _if(has_no_name, _unscaled),
    "placeholders": lambda config: with_ropes(config, with_placeholders),
    "both the higher": _if(
        lambda rope: is_above(rope, "low_freq_factor", "high_freq_factor"),
        lambda rope: {**rope, "high_freq_factor": rope["low_freq_factor"]},
    ),
    "both the lower": _if(
        lambda rope: is_above(rope, "low_freq_factor", "high_freq_factor"),
        lambda rope: {**rope, "low_freq_factor": rope["high_freq_factor"]},
    ),
    "fitting lists": _fitting_lists,
    "factors above 0": lambda config: with_ropes(config, _factors_above_zero(2.0)),
    "other factors above 0": lambda config: with_ropes(config, _factors_above_zero(3.0)),
    "the long factors for both": lambda config: with_ropes(
        config,
        lambda rope: (
            {**rope, "short_factor": rope["long_factor"]} if "long_factor" in rope else rope
        ),
    ),
    "the number for every pair": lambda config: with_ropes(
        config, lambda rope: _lists_of_numbers(rope, pairs_of(config))
    ),
    "no sections": lambda config: with_ropes(
        config,
        lambda rope: {
            key: "default" if value == "mrope" else value
            for key, value in rope.items()
            if key not in keys.AXIS_KEYS
        },
    ),
    "default instead of mrope": lambda config: with_ropes(
        config,
        lambda rope: {key: "default" if value == "mrope" else value for key, value in rope.items()},
    ),
    "linear by 7 instead of mrope": _if(lambda rope: name_of(rope) == "mrope", _scaled(7.0)),
    "one section": lambda config: _one_section(config),
    "sections of the class, time has the rest": lambda config: _with_sections(
        _sections_of_the_class(config), _time_has_the_rest
    ),
    "the truth of mrope_interleaved": _if(
        lambda rope: "mrope_interleaved" in rope,
        lambda rope: {**rope, "mrope_interleaved": bool(rope["mrope_interleaved"])},
    ),
    "the truth of truncate": _if(
        lambda rope: "truncate" in rope, lambda rope: {**rope, "truncate": bool(rope["truncate"])}
    ),
    "a width of 64 instead of one below 0": lambda config: _width_above_zero(config, 64),
    "a width of 128 instead of one below 0": lambda config: _width_above_zero(config, 128),
    "time has the rest": lambda config: _with_sections(config, _time_has_the_rest),
    "sections that add up": lambda config: _with_sections(config, None),
    "other sections that add up": lambda config: _with_sections(config, None, other=True),
    "sections scaled to fit": _fitting_sections,
    "whole heads and sections scaled to fit": lambda config: _fitting_sections(
        without("partial_rotary_factor")(with_ropes(config, without("partial_rotary_factor")))
    ),
    "truncate true": _if(
        lambda rope: isinstance(rope.get("truncate"), str), lambda rope: {**rope, "truncate": True}
    ),
    "known keys": lambda config: with_ropes(
        config, lambda rope: without(*unknown_keys(rope))(rope)
    ),
    "the scaling of rope_scaling": _scaling_of_rope_scaling,
    "magnitude 1": lambda config: with_ropes(config, _magnitude(1.0)),
    "magnitude 3": lambda config: with_ropes(config, _magnitude(3.0)),
    "trained for the served length": lambda config: {
        **config,
        TRAINED: config.get("max_position_embeddings"),
    },
    "trained for 4,096 tokens": lambda config: {**config, TRAINED: 4096},
    **{f"possible: {fault}": _instead(fault, _possible) for fault in FAULTS},
    **{f"other: {fault}": _instead(fault, lambda key, _: OTHERS[key]) for fault in FAULTS},
    **{f"absent: {fault}": _without_faulty(fault) for fault in FAULTS},
    "factor 1 instead of 0": _instead("factor of 0", lambda _, value: 1.0),
    "1 and 0 for truth values": _instead(
        "truth value instead of a number", lambda _, value: int(value)
    ),
    "an integer as trained length": _instead(
        "trained length that is no integer", lambda _, value: int(value)
    ),
    "all pairs divided by the factor": _if(
        lambda rope: faulty(rope, "low_freq_factor below 0"), _linear
    ),
    "unscaled where the name is no text": _if(
        has_no_text_as_name, lambda rope: _unscaled(_without_name(rope))
    ),
    "linear by 7 where the name is no text": _if(has_no_text_as_name, _scaled(7.0)),
    "layer types of the class": without("layer_types"),
    "full attention alone": lambda config: {
        **config,
        "layer_types": ["full_attention"] * (config.get("num_hidden_layers") or 1),
    },
    "no width that is no number": lambda config: without(*no_widths(config))(config),
    "a width of 64 instead of no number": lambda config: {
        **config,
        **dict.fromkeys(no_widths(config), 64),
    },
    "the width of the fraction": lambda config: {**config, "rotary_dim": width_of(config)},
    "the width of rotary_dim": lambda config: _fractions(
        config, config["rotary_dim"] / config["head_dim"], lambda _: True
    ),
    "an even width with the same frequencies": lambda config: _even_width(config),
    # rules look at the last key to tell that no dimension rotates
    "no dimension": lambda config: {
        **_instead("fraction of 0", lambda key, _: 0.5)(config),
        "no_dimension": True,
    },
    "no fraction of an odd number": lambda config: _fractions(config, 0.5, has_odd_width),
    "a fourth instead of an odd number": lambda config: _fractions(config, 0.25, has_odd_width),
    "a served length of 4096": lambda config: _served(config, 4096),
    "a served length of 512": lambda config: _served(config, 512),
    "other numbers in the rope": lambda config: with_ropes(config, _other_numbers),
}
