"""Mixed precision by autocast: matrices in bfloat16, weights, sums and angles in float32."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch

logger = logging.getLogger("ropewalk.lab")
_PROBE = 192


def usable(precision: str, device: torch.device) -> str:
    """The precision to train in: float32 on a CPU whose bfloat16 is slower than that, and the log says so."""
    if precision == "bfloat16" and device.type == "cpu" and not bfloat16_pays():
        logger.warning("bfloat16 is slower than float32 on this CPU: training in float32")
        return "float32"
    return precision


def autocast(precision: str, device: torch.device) -> AbstractContextManager:
    """The context for a forward pass."""
    if precision == "float32":
        return nullcontext()

    return torch.autocast(device.type, torch.bfloat16)


@cache
def bfloat16_pays() -> bool:
    """Whether this CPU multiplies bfloat16 matrices faster than float32 ones; measured once, in milliseconds."""
    taken = {}
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(_PROBE, _PROBE, dtype=dtype)
        torch.mm(x, x)
        began = time.perf_counter()
        torch.mm(x, x)
        taken[dtype] = time.perf_counter() - began
    return taken[torch.bfloat16] < taken[torch.float32]
