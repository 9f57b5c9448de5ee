"""One module for each stack: `rope(rope, config)` returns `apply(x, positions)`.

rope       what the config means: see the vectors' schema
x          [batch, heads, tokens, head_dim], positions [batch, tokens]
part       an adapter takes this keyword if the stack has models whose layers differ
AXES       True in a module whose stack has positions on several axes: [axes, batch, tokens]

An adapter raises `NotExpressible` where the stack has no argument for what the config says. Every
other error is the stack's own refusal.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

Rope = dict[str, Any]
Apply = Callable[[Any, Any], Any]
#: the most rows of a table that is made here
MOST_ROWS = 2**21


class NotExpressible(NotImplementedError):
    """The stack has no argument for what the config says."""


def only(rope: Rope, *kinds: str) -> dict[str, Any]:
    """Return the scaling; raise `NotExpressible` if it is of none of these kinds."""
    scaling = rope["scaling"]
    if scaling["type"] not in kinds:
        raise NotExpressible(f"no argument for {scaling['type']} scaling")
    return scaling


def unused(scaling: dict[str, Any], **fixed: Any) -> None:
    """Refuse a scaling in which a field has another value than the one that the stack uses, because
    it has no argument for that field.
    """
    for name, value in fixed.items():
        if scaling.get(name) != value:
            raise NotExpressible(f"no argument for {name}")


#: fields of a scaling whose name in a config is another
CONFIG_NAMES = {
    "type": "rope_type",
    "original_length": "original_max_position_embeddings",
    "fraction": "partial_rotary_factor",
}


def as_config(scaling: dict[str, Any]) -> dict[str, Any]:
    """Return a scaling as a config's `rope_scaling` says it."""
    return {
        CONFIG_NAMES.get(name, name): value
        for name, value in scaling.items()
        if value is not None and (name, value) != ("truncate", True)
    }


def halves_only(rope: Rope) -> None:
    """Refuse interleaved pairs, for a stack that neither rotates nor converts them."""
    if rope["layout"] != "half":
        raise NotExpressible("no argument for interleaved pairs")


def whole(rope: Rope) -> None:
    """Refuse a rope that rotates a part of the head."""
    if rope["rotary_dim"] != rope["head_dim"]:
        raise NotExpressible("no argument for partial rotation")


def at_start(rope: Rope) -> None:
    """Refuse a rope that rotates a slice that does not start at dimension 0."""
    if rope["rotary_start"]:
        raise NotExpressible("no argument for a slice at the end of the head")


def rows(positions: Any) -> int:
    """Return how many rows a table needs for these positions."""
    found = 1 + int(positions.max())
    if found > MOST_ROWS:
        raise NotExpressible("a table of as many rows as the position is too large to make here")
    return found


def in_layout(own: str, rope: Rope, apply: Apply) -> Apply:
    """Return a rotation of q and k in the config's layout, made from one in the stack's own layout.

    A stack with one layout permutes the rows of the weights when it loads a checkpoint.
    """
    if rope["layout"] == own:
        return apply
    import numpy as np

    d, start = rope["rotary_dim"], rope["rotary_start"]
    halves = np.arange(d).reshape(2, -1).T.reshape(-1)  # where the interleaved values are in halves
    order, back = np.arange(rope["head_dim"]), np.arange(rope["head_dim"])
    inside = halves if own == "interleaved" else np.argsort(halves)
    order[start : start + d] = start + inside
    back[start : start + d] = start + np.argsort(inside)
    return lambda x, positions: apply(x[..., order], positions)[..., back]


def one_by_one(rotate: Callable[[Any, int], Any], stack: Callable[..., Any]) -> Apply:
    """Return a rotation by a function that takes all heads [heads, head_dim] at one position.

    stack  the library's function that joins arrays along a new axis
    """

    def apply(x: Any, positions: Any) -> Any:
        made = [
            [rotate(x[b, :, t], int(positions[b, t])) for t in range(positions.shape[1])]
            for b in range(positions.shape[0])
        ]
        return stack([stack(tokens, 1) for tokens in made], 0)

    return apply


def bare(*names: str) -> None:
    """Make packages importable without running their `__init__`."""
    for name in names:
        below = name.replace(".", "/")
        found = [str(Path(base, below)) for base in sys.path if Path(base, below).is_dir()]
        if not found:
            raise ModuleNotFoundError(name)
        module = types.ModuleType(name)
        module.__path__ = found[:1]
        module.__spec__ = importlib.util.spec_from_loader(name, None, is_package=True)
        _put(module)


def _put(module: types.ModuleType) -> None:
    """Make a module importable, also as an attribute of its package."""
    sys.modules[module.__name__] = module
    package, _, last = module.__name__.rpartition(".")
    if package in sys.modules:
        setattr(sys.modules[package], last, module)


def empty(*names: str) -> None:
    """Put empty modules in the place of these, where they are not installed or not wanted."""
    from ropewalk_lab.engines_run.stubs import module

    for name in names:
        _put(module(name))


def absent(*names: str) -> None:
    """Put empty modules in the place of these packages and all their modules."""
    from ropewalk_lab.engines_run import stubs

    stubs.answer(*names)
