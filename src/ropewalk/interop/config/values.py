"""One layer type's rope while it is read: every value remembers the config's own name for it and where it stood."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ropewalk.errors import RopeError, flag, integer, number
from ropewalk.interop.config.families import Family


@dataclass(frozen=True)
class Value:
    """A value, the config's own name for it, and where it stood."""

    value: Any
    key: str
    where: str = "config"

    #: made from other values rather than read
    made: bool = False

    def __str__(self) -> str:
        return self.where if self.made else f"{self.where}.{self.key}"


def find(config: Mapping[str, Any], *keys: str) -> Value | None:
    """The first of `keys` that is given and not null."""
    return next((Value(config[key], key) for key in keys if config.get(key) is not None), None)


def numbers(key: str, value: Any) -> tuple[float, ...]:
    """The numbers of a list, each checked under its own name."""
    if not isinstance(value, list | tuple):
        raise RopeError(key, "must be a list of numbers", value)
    return tuple(number(f"{key}[{i}]", each) for i, each in enumerate(value))


def _as_it_is(key: str, value: Any) -> Any:
    return value


#: what a field of the spec must be, before the spec's own rules; the others are numbers
KINDS: dict[str, Callable[[str, Any], Any]] = {
    "rope_type": _as_it_is,
    "mrope_section": _as_it_is,
    "truncate": flag,
    "short_factor": numbers,
    "long_factor": numbers,
    **dict.fromkeys(("head_dim", "rotary_dim", "original_length"), lambda key, value: integer(key, value, low=1)),
}


@dataclass(frozen=True)
class Entry:
    """One resolved value: of which layer type, its name in the spec, and where it came from."""

    layer_type: str
    name: str
    value: Any
    source: str


@dataclass
class Layer:
    """The rope of one layer type while it is read."""

    config: Mapping[str, Any]
    family: Family
    #: what `model_type` is called in messages
    model: str
    known: bool
    layer_type: str
    rope: dict[str, Value]
    rope_type: str = ""
    #: the config's value behind each field of the spec: errors of the core are told in the config's words
    names: dict[str, Value] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def note(self, name: str, value: Any, source: object) -> None:
        self.entries.append(Entry(self.layer_type, name, value, str(source)))

    def default(self, value: Any, key: str) -> Value:
        """A value the config leaves to the family's code."""
        return Value(value, key, f"default of {self.model}" if self.known else "default of transformers", made=True)

    def use(self, name: str, found: Value) -> Any:
        """Take a value into the spec under `name`."""
        self.names[name] = found
        value = KINDS.get(name, number)(found.key, found.value)
        self.note(name, value, found)
        return value

    def take(self, key: str, name: str | None = None) -> dict[str, Any]:
        """{name: value} of a key of the rope, or nothing where it is absent."""
        return {name or key: self.use(name or key, self.rope[key])} if key in self.rope else {}

    def require(self, key: str, name: str | None = None) -> dict[str, Any]:
        if key not in self.rope:
            raise RopeError(key, f"must be given for rope_type {self.rope_type!r}", None)
        return self.take(key, name)

    def either(self, inner: Value | None, outer: Value | None) -> Value | None:
        """The first of two places for one value; a second opinion is told, not dropped in silence."""
        flat = {"rope_parameters", "rope_scaling"}
        if inner is not None and outer is not None and inner.value != outer.value and flat & {inner.where, outer.where}:
            self.warnings.append(f"{inner} is {inner.value!r}, {outer} is {outer.value!r}; the former is used")
        return inner or outer
