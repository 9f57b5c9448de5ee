"""A value of a config with its key and the place where it was found, and the record of it in an
explanation.

The served length is the longest sequence that a config says the model is used with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.config.keys import LENGTH_KEYS


@dataclass(frozen=True)
class Value:
    """A value of a config.

    key      its config key
    where    the object that holds the key, such as "config" or "rope_parameters"
    derived  the value is computed from other values, or is a default; `where` then says how
    """

    value: Any
    key: str
    where: str = "config"
    derived: bool = False

    def __str__(self) -> str:
        return self.where if self.derived else f"{self.where}.{self.key}"


def find(config: Mapping[str, Any], *keys: str) -> Value | None:
    """Return the value of the first of `keys` that the config has and that is not null; None if
    there is none.
    """
    return next((Value(config[key], key) for key in keys if config.get(key) is not None), None)


def served_length(config: Mapping[str, Any]) -> Value | None:
    """Return the config's served length; None if it has none."""
    return find(config, *LENGTH_KEYS)


@dataclass(frozen=True)
class Entry:
    """One value of a spec: its layer type, its name in the spec, and the config key or default it
    came from.
    """

    layer_type: str
    name: str
    value: Any
    source: str
