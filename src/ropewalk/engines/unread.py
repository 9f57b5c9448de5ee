"""Configs that `from_hf` refuses and that some engine reads: what each engine takes them for.

A row `unread` of a rules file names one of REASONS, and one of TAKEN_AS if the engine reads the
config as another one. Without it the engine raises an error: with `always = true` in any case,
otherwise if it reads the value. It does not if it computes the same from two configs with different
values in that place, those of USUAL and of OTHER.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from ropewalk.config import keys
from ropewalk.config.families import family_of
from ropewalk.config.hf import read_specs
from ropewalk.engines.case import LENGTH_KEYS, TRAINED, ropes_by_layer_type
from ropewalk.errors import RopeError

Config = Mapping[str, Any]
ROPES = ("rope_scaling", "rope_parameters")


#: keys of a rope whose values are numbers, and a value that they may have
NUMBERS = {
    "factor": 2.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "attention_factor": 1.0,
    "attn_factor": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "rope_theta": 10_000.0,
    TRAINED: 4096,
}
#: scaling: keys without which it cannot be computed
NEEDED: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "su": ("short_factor", "long_factor"),
}
LISTS = ("short_factor", "long_factor")
BANDS = ("low_freq_factor", "high_freq_factor")
MAGNITUDES = ("attention_factor", "attn_factor", "mscale", "mscale_all_dim")
#: the rope that transformers' class of gpt_oss has if the config has none
GPT_OSS = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    TRAINED: 4096,
}
#: values that no scaling accepts are replaced by these to apply the rules, and put back after them
PLACEHOLDERS = {"factor": 1.0, "beta_fast": 33.5, "beta_slow": 1.5}


def _ropes(config: Config) -> list[Config]:
    """Return the rope objects of a config, those of layer types one by one."""
    found: list[Config] = []
    for key in ROPES:
        rope = config.get(key)
        if isinstance(rope, Mapping):
            nested = [each for each in rope.values() if isinstance(each, Mapping)]
            found += nested or [rope]
    return found


def _named(rope: Config) -> Any:
    return rope.get("rope_type") or rope.get("type")


def _numeric_text(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(float(value))
    except ValueError:
        return False


def _number(value: Any) -> Any:
    """Return the number that a text holds, an int if it is whole and written so."""
    if not _numeric_text(value):
        return value
    return int(value) if value.isdigit() else float(value)


def _lacks_needed(rope: Config) -> bool:
    return any(rope.get(key) is None for key in NEEDED.get(str(_named(rope)), ()))


def _below_zero(rope: Config) -> list[str]:
    numbers = {key: rope.get(key) for key in MAGNITUDES}
    return [key for key, value in numbers.items() if isinstance(value, int | float) and value < 0]


def _below_one(rope: Config) -> bool:
    factor = rope.get("factor")
    is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
    named = ("linear", "yarn", "llama3", "dynamic")
    return is_number and 0 < factor < 1 and _named(rope) in named


def _is_above(rope: Config, first: str, second: str) -> bool:
    """Return whether the first of two values is above the second, if both are numbers."""
    values = rope.get(first), rope.get(second)
    both = all(isinstance(each, int | float) for each in values)
    return both and values[0] > values[1]


def _unknown_name(rope: Config) -> bool:
    known = {*keys.rope_types(), *keys.ROPE_TYPE_ALIASES}
    return isinstance(_named(rope), str) and _named(rope) not in known


def _without_name(rope: Config) -> bool:
    common = keys.COMMON_KEYS | keys.AXIS_KEYS | keys.OTHER_KEYS
    return _named(rope) is None and bool({key for key in rope if key not in common})


def _unknown_keys(rope: Config) -> set[str]:
    return set(rope) - set(keys.inner_keys())


def _pairs(config: Config) -> int:
    """Return how many pairs of a head rotate; 0 if that cannot be read."""

    def plain(rope: Config) -> Config:
        # a scaled rope reads partial_rotary_factor in families whose unscaled one does not
        is_scaled = _named(rope) not in (None, "default", "mrope")
        name = {"rope_type": "linear", "factor": 2.0} if is_scaled else {"rope_type": "default"}
        kept = ("rope_theta", "partial_rotary_factor")
        return name | {key: rope[key] for key in kept if key in rope}

    if not _text_model(config):  # a family with axes has sections by default, which may not fit
        config = _without("model_type")(config)
    try:
        read = read_specs(_with_ropes(_numbers(config), plain), "exact")[0]
        specs = [spec for spec in read.values() if spec is not None]
    except RopeError:
        return 0
    return specs[0].pairs if specs else 0


def _wrong_lists(config: Config) -> bool:
    lengths = {
        len(rope[key])
        for rope in _ropes(config)
        for key in LISTS
        if _named(rope) in ("longrope", "su") and isinstance(rope.get(key), list)
    }
    return bool(lengths - {_pairs(config)})


def _wrong_sections(config: Config) -> bool:
    """Return whether the sections of some rope do not add up to the pairs that rotate."""
    given = [rope.get("mrope_section") for rope in _ropes(config)]
    lists = [each for each in given if isinstance(each, list)]
    counts = [each for each in lists if all(isinstance(count, int) for count in each)]
    return any(sum(each) != _pairs(config) for each in counts)


def _text_model(config: Config) -> bool:
    family = family_of(config.get("model_type"))
    return family.known and family.axis_order is None


def _two_ropes(config: Config) -> bool:
    old, new = config.get("rope_scaling"), config.get("rope_parameters")
    if not isinstance(old, Mapping) or not isinstance(new, Mapping) or not old or not new:
        return False
    if ropes_by_layer_type(config):
        return False
    return any(old[key] != new[key] for key in old.keys() & new.keys()) or (
        _named(old) != _named(new)
    )


def _is_float_length(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _contradicts(rope: Config) -> bool:
    old, new = rope.get("type"), rope.get("rope_type")
    return old is not None and new is not None and old != new


def _lacks_factors(config: Config, key: str) -> bool:
    """Return whether a Phi has a rope that is LongRoPE to its config class and has no factors."""
    rope = config.get(key) or {}
    names = ("yarn", "longrope", "su")
    return (
        config.get("model_type") in ("phi3", "phimoe")
        and (rope.get("rope_type") or rope.get("type")) in names
        and "short_factor" not in rope
    )


#: why `from_hf` refuses a config that engines may read
REASONS: dict[str, Callable[[Config], bool]] = {
    "float length in the rope": lambda config: any(
        _is_float_length(rope.get(TRAINED)) for rope in _ropes(config)
    ),
    "float length beside the rope": lambda config: any(
        _is_float_length(config.get(key)) for key in (*LENGTH_KEYS, TRAINED)
    ),
    "type contradicts rope_type in rope_scaling": lambda config: _contradicts(
        config.get("rope_scaling") or {}
    ),
    "type contradicts rope_type in rope_parameters": lambda config: _contradicts(
        config.get("rope_parameters") or {}
    ),
    "one rope in rope_parameters for several layer types": lambda config: (
        config.get("model_type") in ("gemma3_text", "gemma3n_text", "olmo3", "modernbert")
        and bool(config.get("rope_parameters"))
        and not ropes_by_layer_type(config)
    ),
    "longrope without factors in rope_scaling": lambda config: _lacks_factors(
        config, "rope_scaling"
    ),
    "longrope without factors in rope_parameters": lambda config: _lacks_factors(
        config, "rope_parameters"
    ),
    "rope_parameters that contradict rope_scaling": _two_ropes,
    "text instead of a trained length": lambda config: any(
        _numeric_text(rope.get(TRAINED)) for rope in _ropes(config)
    ),
    "text instead of a theta": lambda config: any(
        _numeric_text(place.get("rope_theta")) for place in (config, *_ropes(config))
    ),
    "text instead of a number": lambda config: any(
        _numeric_text(rope.get(key))
        for rope in _ropes(config)
        for key in NUMBERS
        if key not in (TRAINED, "rope_theta", *MAGNITUDES)
    ),
    "text instead of an attention_factor": lambda config: any(
        _numeric_text(rope.get("attention_factor")) for rope in _ropes(config)
    ),
    "text instead of a magnitude": lambda config: any(
        _numeric_text(rope.get(key)) for rope in _ropes(config) for key in MAGNITUDES
    ),
    "llama3 without one of its two frequency factors": lambda config: any(
        _named(rope) == "llama3" and any(rope.get(key) is None for key in BANDS)
        for rope in _ropes(config)
    ),
    "no rope in a family whose default is scaled": lambda config: (
        family_of(config.get("model_type")).rope_required and not _ropes(config)
    ),
    "magnitude below 0": lambda config: any(map(_below_zero, _ropes(config))),
    "rope without a rope_type": lambda config: any(map(_without_name, _ropes(config))),
    "rope_type with an unknown name": lambda config: any(map(_unknown_name, _ropes(config))),
    "scaling without a number that it needs": lambda config: (
        not _lacks_factors(config, "rope_scaling")
        and not _lacks_factors(config, "rope_parameters")
        and any(map(_lacks_needed, _ropes(config)))
    ),
    "factor below 1": lambda config: any(
        _below_one(rope) and _named(rope) != "dynamic" for rope in _ropes(config)
    ),
    "factor below 1 in a dynamic rope": lambda config: any(
        _below_one(rope) and _named(rope) == "dynamic" for rope in _ropes(config)
    ),
    "beta_slow above beta_fast": lambda config: any(
        _is_above(rope, "beta_slow", "beta_fast") for rope in _ropes(config)
    ),
    "low_freq_factor above high_freq_factor": lambda config: any(
        _is_above(rope, "low_freq_factor", "high_freq_factor") for rope in _ropes(config)
    ),
    "longrope with factors for another number of pairs": _wrong_lists,
    "rope_type mrope in a text model": lambda config: (
        _text_model(config) and any(_named(rope) == "mrope" for rope in _ropes(config))
    ),
    "mrope_section of another number of pairs": lambda config: (
        _wrong_sections(config) and not _text_model(config)
    ),
    "mrope_section of another number of pairs in a text model": lambda config: (
        _wrong_sections(config) and _text_model(config)
    ),
    "longrope without a trained length": lambda config: (
        config.get(TRAINED) is None
        and any(
            _named(rope) in ("longrope", "su")
            and rope.get(TRAINED) is None
            and rope.get("factor") is None
            for rope in _ropes(config)
        )
    ),
    "text instead of truncate": lambda config: any(
        isinstance(rope.get("truncate"), str) for rope in _ropes(config)
    ),
    "unknown key in the rope": lambda config: any(map(_unknown_keys, _ropes(config))),
}


def _with_ropes(config: Config, change: Callable[[Config], Config]) -> Config:
    """Return the config with every rope object changed, those of layer types one by one."""
    changed: dict[str, Any] = {}
    for key in ROPES:
        rope = config.get(key)
        if isinstance(rope, Mapping):
            nested = any(isinstance(each, Mapping) for each in rope.values())
            changed[key] = (
                {n: change(each) if isinstance(each, Mapping) else each for n, each in rope.items()}
                if nested
                else change(rope)
            )
    return {**config, **changed}


def _if(
    wrong: Callable[[Config], Any], change: Callable[[Config], Config]
) -> Callable[[Config], Config]:
    """Return what changes the ropes of a config for which `wrong` holds."""
    return lambda config: _with_ropes(config, lambda rope: change(rope) if wrong(rope) else rope)


def _scaled(factor: float) -> Callable[[Config], Config]:
    """Return what replaces the scaling of a rope by linear interpolation, where it has one."""
    kept = {*keys.COMMON_KEYS, *keys.AXIS_KEYS} - {"rope_type", "type"}

    def change(rope: Config) -> Config:
        names = {key for key in ("rope_type", "type") if key in rope} or {"rope_type"}
        others = {key: value for key, value in rope.items() if key in kept}
        return {**dict.fromkeys(names, "linear"), "factor": factor, **others}

    return change


def _magnitude(value: float) -> Callable[[Config], Config]:
    """Return what sets the magnitudes of a rope that are texts or below 0."""

    def change(rope: Config) -> Config:
        wrong = [key for key in MAGNITUDES if _numeric_text(rope.get(key))] + _below_zero(rope)
        return {**rope, **dict.fromkeys(wrong, value)}

    return change


def _unscaled(rope: Config) -> Config:
    kept = {*keys.COMMON_KEYS, *keys.AXIS_KEYS}
    return {"rope_type": "default", **{key: rope[key] for key in rope if key in kept}}


def _numbers(config: Config) -> Config:
    """Return the config with numbers instead of texts."""
    theta = {"rope_theta": _number(config["rope_theta"])} if "rope_theta" in config else {}
    return _with_ropes(
        {**config, **theta},
        lambda rope: {
            key: _number(value) if key in NUMBERS else value for key, value in rope.items()
        },
    )


def _other_theta(config: Config) -> Config:
    """Return the config with ten times the theta wherever it is a text."""

    def change(place: Config) -> Config:
        theta = place.get("rope_theta")
        return {**place, "rope_theta": 10 * float(theta)} if _numeric_text(theta) else place  # type: ignore[arg-type]

    return _with_ropes(change(config), change)


def _complete(config: Config) -> Config:
    """Return the config with every number that a scaling needs."""
    pairs = _pairs(config)

    def fill(rope: Config) -> Config:
        needed = (*NEEDED.get(str(_named(rope)), ()), *(BANDS if _named(rope) == "llama3" else ()))
        missing = {
            key: [2.0] * pairs if key in LISTS else NUMBERS[key]
            for key in needed
            if rope.get(key) is None
        }
        return {**rope, **missing}

    return _with_ropes(config, fill)


def _fitting_lists(config: Config) -> Config:
    pairs = _pairs(config)
    return _with_ropes(
        config,
        lambda rope: {
            key: [2.0] * pairs if key in LISTS and isinstance(value, list) else value
            for key, value in rope.items()
        },
    )


def _with_sections(config: Config, fit: Callable[[list[int], int], list[int]] | None) -> Config:
    """Return the config with sections that add up to the pairs: those of `fit`, or a third each."""
    pairs = _pairs(config)
    third = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]

    def change(rope: Config) -> Config:
        given = rope.get("mrope_section")
        is_three = isinstance(given, list) and len(given) == 3
        fitting = fit(given, pairs) if fit is not None and is_three else third
        return {**rope, "mrope_section": fitting}

    return _with_ropes(config, change)


def _fitting_sections(config: Config) -> Config:
    return _with_sections(config, _scaled_to_fit) if _wrong_sections(config) else config


def _time_has_the_rest(sections: list[int], pairs: int) -> list[int]:
    """Return sections whose first one has the pairs that interleaved height and width leave."""
    _, height, width = sections
    height, width = min(height, (pairs + 1) // 3), min(width, pairs // 3)
    return [pairs - height - width, height, width]


def _theta_of(config: Config) -> float:
    return config.get("rope_theta") or family_of(config.get("model_type")).default("rope_theta")


def _scaled_to_fit(sections: list[int], pairs: int) -> list[int]:
    """Return sections in the same proportions, at least 1 each; the last one gets the rest."""
    fitting = [max(1, int(count * pairs / sum(sections))) for count in sections]
    return [*fitting[:-1], fitting[-1] + pairs - sum(fitting)]


def _replaced(rope: Config) -> Config:
    """Return a rope with placeholders for what no scaling accepts."""
    taken = dict(rope)
    if _below_one(rope):
        taken["factor"] = PLACEHOLDERS["factor"]
    if _is_above(rope, "beta_slow", "beta_fast"):
        taken |= {key: PLACEHOLDERS[key] for key in ("beta_fast", "beta_slow")}
    return taken


def _scaling_of_rope_scaling(config: Config) -> Config:
    """Return the config with the scaling of `rope_scaling` in both, and the theta of each."""
    new = config["rope_parameters"]
    theta = {key: new[key] for key in ("rope_theta",) if key in new}
    return {**config, "rope_parameters": {**config["rope_scaling"], **theta}}


def _without(*keys: str) -> Callable[[Config], Config]:
    return lambda config: {key: value for key, value in config.items() if key not in keys}


def _integers(config: Config) -> Config:
    lengths = (*LENGTH_KEYS, TRAINED)
    return {
        key: int(value) if key in lengths and _is_float_length(value) else value
        for key, value in config.items()
    }


def _by_layer_type(config: Config) -> Config:
    """One rope for the full layers, and the theta of sliding layers beside it."""
    theta = config.get("rope_local_base_freq", 10_000.0)
    ropes = {
        "full_attention": dict(config["rope_parameters"]),
        "sliding_attention": {"rope_type": "default", "rope_theta": theta},
    }
    return {**config, "rope_parameters": ropes}


#: what an engine may take such a config for: another config, which `from_hf` reads
TAKEN_AS: dict[str, Callable[[Config], Config]] = {
    "integers": lambda config: _with_ropes(_integers(config), _integers),
    "rope_type alone": lambda config: _with_ropes(config, _without("type")),
    "type alone": lambda config: _with_ropes(config, _without("rope_type")),
    "no rope_parameters": _without("rope_parameters"),
    "no rope_scaling": _without("rope_scaling"),
    "a rope of full layers": _by_layer_type,
    "numbers": _numbers,
    "ten times the theta": _other_theta,
    "complete": _complete,
    "linear by 7": lambda config: _with_ropes(config, _scaled(7.0)),
    "linear where the name is unknown": _if(_unknown_name, _scaled(2.0)),
    "yarn where the name is unknown": _if(
        _unknown_name,
        lambda rope: {
            key: "yarn" if key in ("rope_type", "type") else value for key, value in rope.items()
        },
    ),
    "an unscaled rope": lambda config: {
        **config,
        "rope_parameters": {"rope_type": "default", "rope_theta": _theta_of(config)},
    },
    "the default rope of gpt_oss": lambda config: {
        **config,
        "rope_parameters": {**GPT_OSS, "rope_theta": _theta_of(config)},
    },
    "unscaled where there is no name": _if(_without_name, _unscaled),
    "placeholders": lambda config: _with_ropes(config, _replaced),
    "both the higher": _if(
        lambda rope: _is_above(rope, "low_freq_factor", "high_freq_factor"),
        lambda rope: {**rope, "high_freq_factor": rope["low_freq_factor"]},
    ),
    "both the lower": _if(
        lambda rope: _is_above(rope, "low_freq_factor", "high_freq_factor"),
        lambda rope: {**rope, "low_freq_factor": rope["high_freq_factor"]},
    ),
    "fitting lists": _fitting_lists,
    "no sections": lambda config: _with_ropes(
        config,
        lambda rope: {
            key: "default" if value == "mrope" else value
            for key, value in rope.items()
            if key not in keys.AXIS_KEYS
        },
    ),
    "time has the rest": lambda config: _with_sections(config, _time_has_the_rest),
    "sections that add up": lambda config: _with_sections(config, None),
    "whole heads and sections scaled to fit": lambda config: _fitting_sections(
        _without("partial_rotary_factor")(_with_ropes(config, _without("partial_rotary_factor")))
    ),
    "truncate true": _if(
        lambda rope: isinstance(rope.get("truncate"), str), lambda rope: {**rope, "truncate": True}
    ),
    "known keys": lambda config: _with_ropes(
        config, lambda rope: _without(*_unknown_keys(rope))(rope)
    ),
    "the scaling of rope_scaling": _scaling_of_rope_scaling,
    "magnitude 1": lambda config: _with_ropes(config, _magnitude(1.0)),
    "magnitude 3": lambda config: _with_ropes(config, _magnitude(3.0)),
    "trained for the served length": lambda config: {
        **config,
        TRAINED: config.get("max_position_embeddings"),
    },
}
#: how the config is read to find its layer types and lengths, whatever engines do
USUAL = {
    "float length in the rope": "integers",
    "float length beside the rope": "integers",
    "type contradicts rope_type in rope_scaling": "rope_type alone",
    "type contradicts rope_type in rope_parameters": "rope_type alone",
    "one rope in rope_parameters for several layer types": "no rope_parameters",
    "longrope without factors in rope_scaling": "no rope_scaling",
    "longrope without factors in rope_parameters": "no rope_parameters",
    "rope_parameters that contradict rope_scaling": "the scaling of rope_scaling",
    "text instead of a trained length": "numbers",
    "text instead of a theta": "numbers",
    "text instead of a number": "numbers",
    "rope without a rope_type": "unscaled where there is no name",
    "rope_type with an unknown name": "linear where the name is unknown",
    "text instead of an attention_factor": "numbers",
    "llama3 without one of its two frequency factors": "complete",
    "no rope in a family whose default is scaled": "an unscaled rope",
    "scaling without a number that it needs": "complete",
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
#: the same with another value in that place: an engine that computes the same does not read it
OTHER = {
    "text instead of a trained length": "linear by 7",
    "text instead of a theta": "ten times the theta",
    "text instead of a number": "linear by 7",
    "rope_type with an unknown name": "linear by 7",
    "text instead of a magnitude": "magnitude 3",
    "text instead of an attention_factor": "magnitude 3",
    "llama3 without one of its two frequency factors": "linear by 7",
    "magnitude below 0": "magnitude 3",
    "longrope without a trained length": "linear by 7",
    "scaling without a number that it needs": "linear by 7",
    "longrope with factors for another number of pairs": "linear by 7",
}


def reasons(config: Config) -> list[str]:
    """Return the REASONS that hold for a config."""
    return [name for name, holds in REASONS.items() if holds(config)]


def usual(config: Config) -> Config:
    """Return the config with everything that `from_hf` refuses in it taken in the usual way."""
    for reason, holds in REASONS.items():
        if holds(config):
            config = TAKEN_AS[USUAL[reason]](config)
    return config


def put_back(scaling: Any, rope: Config) -> Any:
    """Return a scaling with the values of a rope where it has their placeholders, without a check."""
    changed = {
        key: rope[key]
        for key, placeholder in PLACEHOLDERS.items()
        if key in rope
        and key in _replaced(rope)
        and getattr(scaling, key, None) == placeholder
        and _replaced(rope)[key] != rope[key]
    }
    if not changed:
        return scaling
    unchecked = copy.copy(scaling)
    for key, value in changed.items():
        object.__setattr__(unchecked, key, float(value))
    return unchecked
