"""Mixed precision by autocast: matrix products in bfloat16; weights, sums and angles in float32."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager, nullcontext

import torch

from ropewalk.caches import cached

logger = logging.getLogger("ropewalk_lab")
#: rows and columns of the matrices that are timed
_TIMED_SIZE = 192


def usable_precision(precision: str, device: torch.device) -> str:
    """Return the precision to train in: `precision`, or "float32" if that is bfloat16 and the
    device is a CPU where bfloat16 is no faster; a warning is logged then.
    """
    if precision == "bfloat16" and device.type == "cpu" and not bfloat16_is_faster():
        logger.warning("bfloat16 is slower than float32 on this CPU: training in float32")
        return "float32"
    return precision


def autocast(precision: str, device: torch.device) -> AbstractContextManager:
    """Return the context manager for a forward pass; with "float32" it does nothing."""
    return nullcontext() if precision == "float32" else torch.autocast(device.type, torch.bfloat16)


@cached("speed of bfloat16", entries=1)
def bfloat16_is_faster() -> bool:
    """Return whether this CPU multiplies bfloat16 matrices faster than float32 ones; the first call
    measures it.
    """
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(_TIMED_SIZE, _TIMED_SIZE, dtype=dtype)
        torch.mm(x, x)  # the first product also loads the code for it
        began = time.perf_counter()
        torch.mm(x, x)
        seconds[dtype] = time.perf_counter() - began
    return seconds[torch.bfloat16] < seconds[torch.float32]
