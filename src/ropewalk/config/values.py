"""Values of a config while one layer type is read: each keeps its config key and where it was
found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ropewalk.config.families import Family
from ropewalk.config.keys import FRACTION_KEYS, LENGTH_KEYS, THETA_KEYS
from ropewalk.errors import RopeError, integer
from ropewalk.spec import MAX_HEAD_DIM

#: the longest length that a config may give: with any factor it still fits in 64 bits
MAX_LENGTH = 2**40


@dataclass(frozen=True)
class Value:
    """A value, its config key, and the object that holds the key."""

    value: Any
    key: str
    where: str = "config"
    #: computed from other values, or a default; `where` then says how
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


def section_sizes(key: str, sections: Any) -> list[int]:
    """Return the number of pairs of each axis as integers."""
    if not isinstance(sections, list | tuple) or not sections:
        raise RopeError(key, "must be a list with the number of pairs of each axis", sections)
    # HunYuan's sections were written as floats
    counts = (
        int(count) if isinstance(count, float) and count.is_integer() else count
        for count in sections
    )
    return [
        integer(f"{key}[{axis}]", count, low=1, high=MAX_HEAD_DIM)
        for axis, count in enumerate(counts)
    ]


@dataclass(frozen=True)
class Entry:
    """One value of a spec: its layer type, its name in the spec, and the config key or default it
    came from.
    """

    layer_type: str
    name: str
    value: Any
    source: str


@dataclass
class Layer:
    """The rope of one layer type while it is read: `rope` holds its config keys, `entries` and
    `warnings` are the record.
    """

    config: Mapping[str, Any]
    family: Family
    #: the `model_type` as messages name it
    model: str
    #: whether FAMILIES has this model_type
    is_known: bool
    layer_type: str
    rope: dict[str, Value]
    rope_type: str = ""
    #: the config's value behind each field of the spec, so that errors about a field can name its
    #: config key
    sources: dict[str, Value] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def record(self, name: str, value: Any, source: object) -> None:
        """Record where a value of the spec came from."""
        self.entries.append(Entry(self.layer_type, name, value, str(source)))

    def default(self, value: Any, key: str) -> Value:
        """Return the default that the model's code uses for a key that the config does not have."""
        return Value(
            value,
            key,
            f"default of {self.model}" if self.is_known else "default of transformers",
            derived=True,
        )

    def check_and_record(
        self, name: str, value: Value, check: Callable[[str, Any], Any] | None = None
    ) -> Any:
        """Check a value, record it as the field `name` of the spec, and return it."""
        self.sources[name] = value  # before the check, so that its error can name the config key
        checked = value.value if check is None else check(name, value.value)
        self.record(name, checked, value)
        return checked

    def first_given(self, first: Value | None, second: Value | None) -> Value | None:
        """Return `first` if it is given, else `second`; warn if they differ and one is in a rope
        object for all layer types.

        A rope object of a single layer type may differ from the config's own key: the latter is for
        the other types.
        """
        if first is None or second is None:
            return first or second
        for_all_types = {"rope_parameters", "rope_scaling"}
        if first.value != second.value and for_all_types & {first.where, second.where}:
            self.warnings.append(
                f"{first} is {first.value!r}, {second} is {second.value!r}; the former is used"
            )
        return first

    @property
    def is_by_layer_type(self) -> bool:
        """Whether transformers' class holds one rope for each layer type, because the config or the
        family does.
        """
        return bool(self.family.layer_thetas) or any(
            value.where.startswith("rope_parameters.") for value in self.rope.values()
        )

    def theta(self) -> Value | None:
        """Return theta, from the rope or the config; None if neither has it."""
        return self.first_given(
            self.rope.get(THETA_KEYS[0]), self._outside(THETA_KEYS, self.family.theta_key)
        )

    def fraction(self) -> Value | None:
        """Return the fraction of the head that rotates, from the rope or the config; None if
        neither has it.
        """
        return self.first_given(
            self.rope.get(FRACTION_KEYS[0]), self._outside(FRACTION_KEYS, self.family.fraction_key)
        )

    def _outside(self, keys: tuple[str, ...], only_key: str | None) -> Value | None:
        """Return the first of `keys` in the config itself; of `only_key` alone, if given, and warn
        about the others.
        """
        if only_key is None:
            return find(self.config, *keys)
        given, unread = (
            find(self.config, only_key),
            find(self.config, *(key for key in keys if key != only_key)),
        )
        if unread is not None and (given is None or given.value != unread.value):
            self.warnings.append(
                f"{unread} = {unread.value!r} is ignored: {self.model} reads {only_key}"
            )
        return given
