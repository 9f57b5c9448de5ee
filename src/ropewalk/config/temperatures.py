"""Temperatures in configs: which layers multiply their queries by a factor of the position, and by
which formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ropewalk.config.keys import TEMPERATURE_KEY
from ropewalk.errors import RopeError, flag, integer, number
from ropewalk.frequencies.scaling import TRAINED_LENGTH_KEY
from ropewalk.temperatures import FloorLog, LearnedLog, LogAbove, LogN, Power, Temperature

#: config -> (the temperature or None, the layers that have it: "all", "unrotated" or "full")
Reader = Callable[[Mapping[str, Any]], tuple[Temperature | None, str]]
#: layer types with a window; the others are the full ones
WINDOWED = ("sliding_attention", "hybrid_sliding", "chunked_attention")


def _llama4(config: Mapping[str, Any]) -> tuple[Temperature | None, str]:
    """Return the temperature of Llama 4, or None, and which layers have it: "all", "unrotated" or
    "full".
    """
    tuned = config.get("attn_temperature_tuning")
    if tuned is not None and not tuned:
        return None, "unrotated"
    scale, length = config.get("attn_scale", 0.1), config.get("floor_scale", 8192)
    return FloorLog(
        number("attn_scale", scale), integer("floor_scale", length, low=1), shift=1
    ), "unrotated"


def _ministral(config: Mapping[str, Any]) -> tuple[Temperature | None, str]:
    """Return the temperature of Ministral 3, or None, and which layers have it: "all", "unrotated"
    or "full".
    """
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    beta = rope.get(TEMPERATURE_KEY)
    if beta is None:
        return None, "all"
    if rope.get(TRAINED_LENGTH_KEY) is None:
        raise RopeError(TRAINED_LENGTH_KEY, f"must be given beside {TEMPERATURE_KEY}", None)
    return FloorLog(
        number(TEMPERATURE_KEY, beta), integer(TRAINED_LENGTH_KEY, rope[TRAINED_LENGTH_KEY], low=1)
    ), "all"


def _qwen(config: Mapping[str, Any]) -> tuple[Temperature | None, str]:
    """Return the temperature of the first Qwen, or None, and which layers have it: "all",
    "unrotated" or "full".
    """
    if not flag("use_logn_attn", config.get("use_logn_attn", True)):
        return None, "all"
    return LogN(integer("seq_length", config.get("seq_length", 2048), low=2)), "all"


def _inkling(config: Mapping[str, Any]) -> tuple[Temperature | None, str]:
    """Return the temperature of Inkling, or None, and which layers have it: "all", "unrotated" or
    "full".
    """
    length = config.get("log_scaling_n_floor")
    if length is None:
        return None, "full"
    scale = number("log_scaling_alpha", config.get("log_scaling_alpha", 0.1))
    return LogAbove(scale, integer("log_scaling_n_floor", length, low=1)), "full"


#: by model_type, what its code does
READERS: dict[str, Reader] = {
    "llama4_text": _llama4,
    "ministral3": _ministral,
    "mistral4": _ministral,
    "mistral_large4_text": lambda config: (LearnedLog(scale=0.0, bias=1.0), "all"),
    "beam": lambda config: (Power(), "unrotated"),
    "inkling_text": _inkling,
    "qwen": _qwen,
}
#: models that read `llama_4_scaling_beta`
WITH_BETA = tuple(name for name, reader in READERS.items() if reader is _ministral)
#: models whose positions are no rotation
WITHOUT_ROPE = ("inkling_text",)


def read_temperatures(
    config: Mapping[str, Any], rotated: Mapping[str, bool]
) -> dict[str, Temperature | None]:
    """Return {layer type: temperature or None}; `rotated` says of each layer type whether it is
    rotated.
    """
    reader = READERS.get(str(config.get("model_type")))
    if reader is None:
        return dict.fromkeys(rotated)
    temperature, layers = reader(config)
    unrotated = [name for name in rotated if not rotated[name]]
    full = [name for name in rotated if name not in WINDOWED]
    selected = {"all": list(rotated), "unrotated": unrotated, "full": full}[layers]
    return {name: temperature if name in selected else None for name in rotated}
