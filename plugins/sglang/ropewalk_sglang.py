"""SGLang plug-in: rotary modules take their table of cos and sin from ropewalk, exact at every
position, and models with a scaling that only ropewalk has are served. A table that does not hold
plain cos and sin stays SGLang's own.

SGLang loads it by its entry point in every process. It does nothing unless ROPEWALK_SGLANG=1 is
set. In a release that it does not know, or if its installation is broken, it logs one line and
SGLang runs without it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import os
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

PACKAGE = "sglang.srt.layers.rotary_embedding"
SWITCH, ANY_VERSION = "ROPEWALK_SGLANG", "ROPEWALK_SGLANG_ANY_VERSION"
#: releases with which it was run
VERSIONS = ("0.5.23",)
#: a table of ropewalk's own grows to a multiple of this many rows
BLOCK = 4096

logger = logging.getLogger("sglang.ropewalk")
#: the ModelConfig that SGLang made last
_configs: list[Any] = []


def register() -> None:
    """Hook the methods of SGLang's rotary classes that make tables or append rows to them, and
    `get_rope`, if ROPEWALK_SGLANG is 1; raises nothing.
    """
    if os.environ.get(SWITCH) != "1":
        return
    try:
        import sglang

        version = str(sglang.__version__)
        known = ".".join(version.split(".")[:3]) in VERSIONS
        if not known and os.environ.get(ANY_VERSION) != "1":
            logger.warning(
                "ropewalk is not used: it was run with SGLang %s, this is %s; %s=1 uses it anyway",
                ", ".join(VERSIONS),
                version,
                ANY_VERSION,
            )
            return
        _install()
    except Exception as error:
        logger.error("ropewalk is not used: %s: %s", type(error).__name__, error)


@functools.cache
def _announce() -> None:
    """Log once that the plug-in is on; SGLang sets its logging up after plug-ins are loaded."""
    import sglang

    import ropewalk

    versions = ropewalk.__version__, sglang.__version__
    logger.info("ropewalk %s is on in SGLang %s: exact rotary tables", *versions)


@functools.cache
def _warn(text: str) -> None:
    """Log a warning once, not for every layer."""
    logger.warning(text)


def _install() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    import ropewalk.interop.engine_tables  # noqa: F401 - if it is broken, nothing is changed

    hooks = {
        **dict.fromkeys(_methods("_compute_cos_sin_cache"), _compute),
        **dict.fromkeys(_methods("_ensure_cos_sin_cache_length"), _lengthen),
        f"{PACKAGE}.factory.get_rope": _get_rope,
        "sglang.srt.configs.model_config.ModelConfig.__init__": _remember,
    }
    for path, hook in hooks.items():
        HookRegistry.register(path, hook, HookType.AROUND)


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


def _compute(original: Callable[..., Any], self: Any, *args: Any, **named: Any) -> Any:
    """Return the table of a rotary module with exact angles; a table of another form stays SGLang's
    own.
    """
    from ropewalk.interop.engine_tables import with_exact_angles

    return with_exact_angles(self, lambda: original(self, *args, **named))


def _lengthen(original: Callable[..., None], self: Any, *args: Any, **named: Any) -> None:
    """Append rows as SGLang does, then make all angles exact; without new rows nothing changes."""
    from ropewalk.interop.engine_tables import with_exact_angles

    def table() -> Any:
        original(self, *args, **named)
        return self.cos_sin_cache

    self.cos_sin_cache = with_exact_angles(self, table)


def _remember(original: Callable[..., None], self: Any, *args: Any, **named: Any) -> None:
    """Make a ModelConfig, and keep it: `get_rope` is not told what it says."""
    original(self, *args, **named)
    _configs[:] = [self]


def _get_rope(original: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Return the rotary module of a rope: ropewalk's if only ropewalk has its scaling."""
    _announce()
    call = inspect.signature(original).bind(*args, **named)
    call.apply_defaults()
    if call.arguments["dual_chunk_attention_config"] is not None:
        _warn("ropewalk: the tables of dual chunk attention stay SGLang's own")
        return original(*args, **named)
    module = _own_module(**call.arguments)
    return original(*args, **named) if module is None else module


def _own_module(
    head_size: int,
    rotary_dim: int,
    max_position: int,
    base: float,
    is_neox_style: bool,
    rope_scaling: dict[str, Any] | None,
    dtype: Any,
    partial_rotary_factor: float,
    **_: Any,
) -> Any:
    """Return the rotary module of a scaling that only ropewalk has; None for SGLang's own."""
    import torch
    from sglang.srt.layers.rotary_embedding import factory

    from ropewalk.interop.engine_tables import own_rope

    rotary_dim = int(rotary_dim * min(partial_rotary_factor, 1.0))
    model = _configs[0] if _configs else None
    length, flags = getattr(model, "context_len", None), getattr(model, "hf_text_config", None)
    found = own_rope(rope_scaling, rotary_dim, max_position, theta=base, length=length, flags=flags)
    if found is None:
        return None
    dtype = dtype or torch.get_default_dtype()
    key = ("ropewalk", found, head_size, is_neox_style, dtype)
    module = factory._get_live_rope_cache_entry(key)  # the layers of a model share one
    if module is None:
        kind = _own_class(factory.RotaryEmbedding, found)
        module = kind(head_size, rotary_dim, found.rows, base, is_neox_style, dtype)
        factory._ROPE_DICT[key] = module
        logger.log(
            logging.WARNING if found.spec.needs_length else logging.INFO, "ropewalk: %s", found
        )
    return module


def _own_class(rotary: type, found: Any) -> type:
    """Return a subclass of SGLang's rotary class with the table of an OwnRope."""

    def lengthen(self: Any, needed_max_pos: int) -> None:
        old = self.cos_sin_cache
        if needed_max_pos >= len(old):
            rows = (needed_max_pos // BLOCK + 1) * BLOCK
            self.cos_sin_cache = found.table(rows).to(old)

    methods = {
        "_compute_cos_sin_cache": lambda self: found.table(),
        "_ensure_cos_sin_cache_length": lengthen,
    }
    return type("RopewalkOwnRotaryEmbedding", (rotary,), methods)
