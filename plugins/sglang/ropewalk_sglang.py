"""SGLang plug-in: every rotary module takes its table of cos and sin from ropewalk, exact at every
position.

SGLang loads it by its entry point in every process. It does nothing unless ROPEWALK_SGLANG=1 is
set.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import torch

PACKAGE = "sglang.srt.layers.rotary_embedding"


def register() -> None:
    """Hook the methods of SGLang's rotary classes that make tables or append rows to them, if
    ROPEWALK_SGLANG is 1.
    """
    if os.environ.get("ROPEWALK_SGLANG") != "1":
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for path in _methods("_compute_cos_sin_cache"):
        HookRegistry.register(path, _compute, HookType.AROUND)
    for path in _methods("_ensure_cos_sin_cache_length"):
        HookRegistry.register(path, _lengthen, HookType.AROUND)


def _methods(name: str) -> Iterator[str]:
    """Yield the dotted path of every method of that name that a rotary class of SGLang defines
    itself.
    """
    package = importlib.import_module(PACKAGE)
    for found in pkgutil.iter_modules(package.__path__, f"{PACKAGE}."):
        module = importlib.import_module(found.name)
        for each in vars(module).values():
            if isinstance(each, type) and each.__module__ == module.__name__ and name in vars(each):
                yield f"{module.__name__}.{each.__name__}.{name}"


def _compute(
    original: Callable[..., torch.Tensor], self: Any, *args: Any, **named: Any
) -> torch.Tensor:
    """Return the table of a rotary module with exact angles; a table of another form stays SGLang's
    own.
    """
    from ropewalk.interop.engine_tables import with_exact_angles

    return with_exact_angles(self, lambda: original(self, *args, **named))


def _lengthen(original: Callable[..., None], self: Any, *args: Any, **named: Any) -> None:
    """Append rows as SGLang does, then make all angles exact; without new rows nothing changes."""
    from ropewalk.interop.engine_tables import with_exact_angles

    def table() -> torch.Tensor:
        original(self, *args, **named)
        return self.cos_sin_cache

    self.cos_sin_cache = with_exact_angles(self, table)
