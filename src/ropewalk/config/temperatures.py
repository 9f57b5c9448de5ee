"""Temperatures in configs: which layers multiply their queries by a factor of the position, and by
which formula.

Words of this module:
  temperature  the formula of the factor with its numbers: `FloorLog`, `LogN`, ...
  reader       a function that reads the temperature of one model_type from two mappings of Values,
               whether it uses both or not: `config`, the keys outside any rope object, and `rope`,
               those of the rope. It returns the temperature, or None, and the layers that have it:
               "all", "unrotated" (layers that do not rotate) or "full" (layers without a window)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ropewalk.config.keys import TEMPERATURE_KEY
from ropewalk.config.values import Value
from ropewalk.errors import RopeError, flag, integer, number
from ropewalk.frequencies.scaling import TRAINED_LENGTH_KEY
from ropewalk.temperatures import FloorLog, LearnedLog, LogAbove, LogN, Power, Temperature

Values = Mapping[str, Value]
#: (values outside the ropes, values of the rope) -> (the temperature or None, the layers that have
#: it: "all", "unrotated" or "full")
Reader = Callable[[Values, Values], tuple[Temperature | None, str]]
#: layer types with a window; the others are the full ones
WINDOWED = ("sliding_attention", "hybrid_sliding", "chunked_attention")


def _get(values: Values, key: str, default: Any = None) -> Any:
    """Return the plain value of a key; the default if it is absent."""
    return values[key].value if key in values else default


def _llama4(config: Values, rope: Values) -> tuple[Temperature | None, str]:
    """Return the temperature of Llama 4, or None, and which layers have it."""
    tuned = _get(config, "attn_temperature_tuning")
    # if the key is absent or null, queries have the temperature
    if tuned is not None and not tuned:
        return None, "unrotated"
    scale = number("attn_scale", _get(config, "attn_scale", 0.1))
    length = integer("floor_scale", _get(config, "floor_scale", 8192), low=1)
    # shift 1: the formula of Llama 4 counts positions from 1
    return FloorLog(scale, length, shift=1), "unrotated"


def _ministral(config: Values, rope: Values) -> tuple[Temperature | None, str]:
    """Return the temperature of Ministral 3, or None, and which layers have it; raise an error if
    the config has the temperature and no trained length.
    """
    beta, length = _get(rope, TEMPERATURE_KEY), _get(rope, TRAINED_LENGTH_KEY)
    if beta is None:
        return None, "all"
    if length is None:
        raise RopeError(TRAINED_LENGTH_KEY, f"must be given beside {TEMPERATURE_KEY}", None)
    scale = number(TEMPERATURE_KEY, beta)
    return FloorLog(scale, integer(TRAINED_LENGTH_KEY, length, low=1)), "all"


def _qwen(config: Values, rope: Values) -> tuple[Temperature | None, str]:
    """Return the temperature of the first Qwen, or None, and which layers have it."""
    if not flag("use_logn_attn", _get(config, "use_logn_attn", True)):
        return None, "all"
    return LogN(integer("seq_length", _get(config, "seq_length", 2048), low=2)), "all"


def _inkling(config: Values, rope: Values) -> tuple[Temperature | None, str]:
    """Return the temperature of Inkling, or None, and which layers have it."""
    length = _get(config, "log_scaling_n_floor")
    if length is None:
        return None, "full"
    scale = number("log_scaling_alpha", _get(config, "log_scaling_alpha", 0.1))
    return LogAbove(scale, integer("log_scaling_n_floor", length, low=1)), "full"


#: by model_type, what its code does
READERS: dict[str, Reader] = {
    "llama4_text": _llama4,
    "ministral3": _ministral,
    "mistral4": _ministral,
    "mistral_large4_text": lambda config, rope: (LearnedLog(scale=0.0, bias=1.0), "all"),
    "beam": lambda config, rope: (Power(), "unrotated"),
    "inkling_text": _inkling,
    "qwen": _qwen,
}
#: models that do not rotate and may have a temperature
WITHOUT_ROPE = ("inkling_text",)


def read_temperatures(
    model_type: str | None,
    config: Values,
    rope: Values,
    rotated: Mapping[str, bool],
) -> dict[str, Temperature | None]:
    """Return {layer type: temperature or None} of a model.

    config   the config's own values
    rope     the values of the rope of the first layer type that is rotated
    rotated  {layer type: whether it is rotated}
    """
    reader = READERS.get(str(model_type))
    if reader is None:
        return dict.fromkeys(rotated)
    temperature, layers = reader(config, rope)
    unrotated = [name for name in rotated if not rotated[name]]
    full = [name for name in rotated if name not in WINDOWED]
    selected = {"all": list(rotated), "unrotated": unrotated, "full": full}[layers]
    return {name: temperature if name in selected else None for name in rotated}
