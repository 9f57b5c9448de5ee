"""What keys of other stacks mean: the table of aliases.toml.

A stack is a library or a program that has model configs with keys of its own, such as llama.cpp. A
meaning is mostly a key of transformers; the table has words of its own for the others, such as
"1/factor". Its parts are for keys inside a rope object, for keys outside it, in the config itself,
and for keys that mean the same anywhere.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from ropewalk.caches import cached

TABLE = Path(__file__).with_name("aliases.toml")
#: a key with the name of a GGUF architecture before it, such as qwen2.rope.freq_base
PREFIXED = re.compile(r"[a-z0-9_]+?_(?=(rope|rotary)_|context_length$)")


@cached("keys of other stacks", entries=1)
def _meanings() -> tuple[dict[str, str], dict[str, str]]:
    """Return {key of another stack: what it means}, first for keys inside a rope object, then for
    keys outside it.
    """
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))

    def senses(*parts: str) -> dict[str, str]:
        """Return {key: meaning} of parts of the table, in which each meaning has a list of keys."""
        return {key: sense for part in parts for sense in table[part] for key in table[part][sense]}

    return senses("anywhere", "inside"), senses("anywhere", "outside")


@cached("scalings that keys of other stacks mean", entries=1)
def scalings() -> dict[str, str]:
    """Return {name of a factor in another stack: the scaling that it is the factor of}."""
    types = tomllib.loads(TABLE.read_text(encoding="utf-8"))["types"]
    return {key: kind for kind, each in types.items() for key in each}


def meaning(key: str, inside: bool = False) -> str | None:
    """Return what a key of another stack means, by aliases.toml: mostly a key of transformers; None
    if it is not in the table. Capitals do not count, and "." and "-" count as "_".

    inside  whether the key is in a rope object; False: it is in the config itself
    """
    inner, outer = _meanings()
    known = inner if inside else outer
    plain = re.sub(r"[.\-]", "_", key.lower())
    if plain in known:
        return known[plain]
    # only GGUF keys, which have dots, begin with the name of an architecture
    return known.get(PREFIXED.sub("", plain, count=1)) if "." in key else None
