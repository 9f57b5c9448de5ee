"""vLLM plug-in: every rotary module takes its table of cos and sin from ropewalk, exact at every
position.

vLLM loads it by its entry point in every process. It does nothing unless ROPEWALK_VLLM=1 is set.
"""

from __future__ import annotations

import os
from typing import Any

import torch


def register() -> None:
    """Register a subclass of each of vLLM's rotary classes, if ROPEWALK_VLLM is 1."""
    if os.environ.get("ROPEWALK_VLLM") != "1":
        return
    from vllm.model_executor.custom_op import CustomOp
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase

    for original in list(_subclasses(RotaryEmbeddingBase)):
        CustomOp.register_oot(name=original.__name__)(_exact(original))


def _subclasses(kind: type) -> list[type]:
    found = [each for direct in kind.__subclasses__() for each in (direct, *_subclasses(direct))]
    return [each for each in dict.fromkeys(found) if each.__module__.startswith("vllm.")]


def _exact(original: type) -> type:
    """Return a subclass whose table has exact angles; where the table has another form, it stays
    vLLM's own.
    """
    from ropewalk.interop.engine_tables import with_exact_angles

    def _compute_cos_sin_cache(self: Any) -> torch.Tensor:
        return with_exact_angles(self, lambda: original._compute_cos_sin_cache(self))

    return type(
        f"Ropewalk{original.__name__}",
        (original,),
        {"_compute_cos_sin_cache": _compute_cos_sin_cache},
    )
