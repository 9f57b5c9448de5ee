"""vLLM plug-in: rotary modules take their table of cos and sin from ropewalk, exact at every
position, and models with a scaling that only ropewalk has are served. A table that does not hold
plain cos and sin stays vLLM's own.

vLLM loads it by its entry point in every process. It does nothing unless ROPEWALK_VLLM=1 is set. In
a release that it does not know, or if its installation is broken, it logs one line and vLLM runs
without it.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
from typing import Any

SWITCH, ANY_VERSION = "ROPEWALK_VLLM", "ROPEWALK_VLLM_ANY_VERSION"
#: releases with which it was run
VERSIONS = ("0.32",)

logger = logging.getLogger("vllm.ropewalk")  # vLLM shows the loggers below its own


def register() -> None:
    """Register a subclass of each of vLLM's rotary classes (of Phi-3's LongRoPE, replace the method
    that makes the table), and put a `get_rope` that knows ropewalk's scalings in the place of
    vLLM's, if ROPEWALK_VLLM is 1; raises nothing.
    """
    if os.environ.get(SWITCH) != "1":
        return
    try:
        import vllm

        version = str(vllm.__version__)
        known = ".".join(version.split(".")[:2]) in VERSIONS
        if not known and os.environ.get(ANY_VERSION) != "1":
            logger.warning(
                "ropewalk is not used: it was run with vLLM %s, this is %s; %s=1 uses it anyway",
                ", ".join(VERSIONS),
                version,
                ANY_VERSION,
            )
            return
        _install()
    except Exception as error:  # vLLM would stop
        logger.error("ropewalk is not used: %s: %s", type(error).__name__, error)


@functools.cache
def _announce() -> None:
    """Log once that the plug-in is on; vLLM sets its logging up after plug-ins are loaded."""
    import vllm

    import ropewalk

    versions = ropewalk.__version__, vllm.__version__
    logger.info("ropewalk %s is on in vLLM %s: exact rotary tables", *versions)


@functools.cache
def _warn(text: str) -> None:
    """Log a warning once, not for every layer."""
    logger.warning(text)


def _install() -> None:
    from vllm.model_executor.custom_op import CustomOp
    from vllm.model_executor.layers import rotary_embedding
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase

    import ropewalk.interop.engine_tables  # noqa: F401 - if it is broken, nothing is changed

    original = rotary_embedding.get_rope
    if hasattr(original, "__wrapped__"):  # vLLM may load a plug-in twice
        return
    for each in list(_subclasses(RotaryEmbeddingBase)):
        CustomOp.register_oot(name=each.__name__)(_exact(each))
    long = rotary_embedding.Phi3LongRoPEScaledRotaryEmbedding  # no CustomOp
    long._compute_cos_sin_cache = _exact(long)._compute_cos_sin_cache
    wrapped = _get_rope(original)
    for module in list(sys.modules.values()):  # models that are imported hold the function too
        if getattr(module, "__dict__", {}).get("get_rope") is original:
            module.get_rope = wrapped


def _subclasses(kind: type) -> list[type]:
    found = [each for direct in kind.__subclasses__() for each in (direct, *_subclasses(direct))]
    return [each for each in dict.fromkeys(found) if each.__module__.startswith("vllm.")]


def _exact(original: type) -> Any:
    """Return a subclass whose table has exact angles; where the table has another form, it stays
    vLLM's own.
    """
    from ropewalk.interop.engine_tables import with_exact_angles

    compute = original._compute_cos_sin_cache

    def _compute_cos_sin_cache(self: Any, *args: Any, **named: Any) -> Any:
        return with_exact_angles(self, lambda: compute(self, *args, **named))

    return type(
        f"Ropewalk{original.__name__}",
        (original,),
        {"_compute_cos_sin_cache": _compute_cos_sin_cache},
    )


def _get_rope(original: Any) -> Any:
    """Return vLLM's `get_rope` with ropewalk's scalings."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def get_rope(*args: Any, **named: Any) -> Any:
        _announce()
        call = signature.bind(*args, **named)
        call.apply_defaults()
        if call.arguments["dual_chunk_attention_config"] is not None:
            _warn("ropewalk: the tables of dual chunk attention stay vLLM's own")
            return original(*args, **named)
        module = _own_module(**call.arguments)
        return original(*args, **named) if module is None else module

    return get_rope


def _own_module(
    head_size: int,
    max_position: int,
    is_neox_style: bool,
    rope_parameters: dict[str, Any] | None,
    dtype: Any,
    **_: Any,
) -> Any:
    """Return the rotary module of a scaling that only ropewalk has; None for vLLM's own."""
    import torch
    from vllm.config import get_current_vllm_config_or_none
    from vllm.model_executor.layers import rotary_embedding

    from ropewalk.interop.engine_tables import own_rope

    rope = rope_parameters or {}
    rotary_dim = rope.get("rope_dim") or int(head_size * rope.get("partial_rotary_factor", 1.0))
    model = getattr(get_current_vllm_config_or_none(), "model_config", None)
    length, flags = getattr(model, "max_model_len", None), getattr(model, "hf_text_config", None)
    found = own_rope(rope, rotary_dim, max_position, length=length, flags=flags)
    if found is None:
        return None
    dtype = dtype or torch.get_default_dtype()
    key = ("ropewalk", found, head_size, is_neox_style, dtype)
    modules = rotary_embedding._ROPE_DICT  # the layers of a model share one
    if key not in modules:
        kind = type(
            "RopewalkOwnRotaryEmbedding",
            (rotary_embedding.RotaryEmbedding,),
            {"_compute_cos_sin_cache": lambda self: found.table()},
        )
        theta = found.spec.theta
        modules[key] = kind(head_size, rotary_dim, found.rows, theta, is_neox_style, dtype)
        logger.log(
            logging.WARNING if found.spec.needs_length else logging.INFO, "ropewalk: %s", found
        )
    return modules[key]
