"""The guard of repairs: a number that the config gives stays in it, unless the finding names it, so
that no repair loses a value without a word to the reader.

A repair that would lose one is undone, and its mistake is only reported. `row` is the row of
mistakes.toml that was found, and `facts` are what its finder returned: `key`, the reported config
key, and values for the texts of the row, in which they stand in braces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ropewalk.config import keys
from ropewalk.diagnosis.case import Facts, number_of
from ropewalk.diagnosis.mistakes import Mistake

#: repairs that remove a whole scaling, and say so; even these must keep theta and the fraction
OF_WHOLE_SCALINGS = (
    "remove_scaling",
    "replace_scaling",
    "put_published",
    "put_trained_length",
    "keep_one_object",
    "raise_theta",
)


def _numbers(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key, number) of every number in a config, also of those in lists."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _numbers(each, str(name))
    elif isinstance(value, list):
        for each in value:
            yield from _numbers(each, key)
    elif number_of(value) is not None:
        yield key, value


def loses(before: Mapping[str, Any], after: Mapping[str, Any], row: Mistake, facts: Facts) -> bool:
    """Return whether a repair loses a number: the config `before` it has one that the config `after`
    it has at no key, and the finding does not name it.

    A number is named if its key is in the texts of the row or in the facts `key`, `name`, `gone`
    (removed) or `follows` (changed with the rest), or if its value is a fact that these texts have;
    and, where a repair removes a whole scaling, if its key is one of a scaling, but not theta or
    the fraction.
    """
    kept = {value for _, value in _numbers(after)}
    lost = [(key, value) for key, value in _numbers(before) if value not in kept]
    if not lost:
        return False
    words = f"{row.cause} {row.effect} {row.fix}"
    # told: the names of keys that the finding has; a path counts as the names in it
    told = set(re.split(r"[\s,.]+", f"{facts['key']} {facts.get('name', '')} {words}"))
    # of a path such as "rope_scaling.factor" the last part is the key
    told |= {each.rsplit(".", 1)[-1] for each in facts.get("gone", ())}
    told |= {*facts.get("gone", ()), *facts.get("follows", ())}
    values = [facts[each] for each in re.findall(r"{(\w+)}", words) if each in facts]
    if row.repair in OF_WHOLE_SCALINGS:
        told |= keys.inner_keys() - {*keys.THETA_KEYS, *keys.FRACTION_KEYS}
        # `raise_theta` writes a larger theta in place of the scaling, and the length that it serves
        told |= {*keys.LENGTH_KEYS, "rope_theta"} if row.repair == "raise_theta" else set()
    return any(key not in told and value not in values for key, value in lost)
