"""Configs that `from_hf` refuses and that some engine reads: what each engine takes them for.

A row `unread` of a rules file names one of REASONS and one of TAKEN_AS, or refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ropewalk.engines.case import LENGTH_KEYS, TRAINED, ropes_by_layer_type

Config = Mapping[str, Any]
ROPES = ("rope_scaling", "rope_parameters")


def _ropes(config: Config) -> list[Config]:
    return [config[key] for key in ROPES if isinstance(config.get(key), Mapping)]


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
}


def _with_ropes(config: Config, change: Callable[[Config], Config]) -> Config:
    changed = {key: change(config[key]) for key in ROPES if isinstance(config.get(key), Mapping)}
    return {**config, **changed}


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
}


def reasons(config: Config) -> list[str]:
    """Return the REASONS that hold for a config."""
    return [name for name, holds in REASONS.items() if holds(config)]


def usual(config: Config) -> Config:
    """Return the config with everything that `from_hf` refuses in it taken in the usual way."""
    for reason in reasons(config):
        config = TAKEN_AS[USUAL[reason]](config)
    return config
