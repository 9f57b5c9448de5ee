"""CPU timings of causal linear attention: against torch's fused softmax attention, and its growth with the length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from ropewalk.attention import linear_attention
from ropewalk.bench.cpu import times_in_turn
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec

LENGTHS = (8192, 16_384, 32_768, 65_536)


def measure(lengths: tuple[int, ...] = LENGTHS, rounds: int = 8) -> Iterator[dict[str, Any]]:
    """One head x 64, float32, one thread, forward; the softmax at the first length alone, where it already takes longest."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rope = Rope(RopeSpec(head_dim=64))
    try:
        with torch.no_grad():
            drawn = {length: torch.randn(3, 1, 1, length, 64) for length in lengths}
            calls: dict[str, Callable[[], Any]] = {}
            for length, (q, k, v) in drawn.items():
                calls[f"linear {length}"] = partial(linear_attention, q, k, v, rope)
            q, k, v = drawn[lengths[0]]
            calls["softmax"] = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True)
            taken = times_in_turn(calls, rounds)
    finally:
        torch.set_num_threads(threads)
    row = {"order": "bhsd", "dtype": "float32", "threads": 1, "pass": "forward"}
    softmax = taken["softmax"]
    yield {**row, "shape": f"attention 1x{lengths[0]} 1x64", "contender": "torch, fused softmax", "us": round(softmax, 1)}
    before = None
    for length in lengths:
        us = taken[f"linear {length}"]
        note = {"times_faster": round(softmax / us, 2)} if before is None else {"times_half_the_length": round(us / before, 2)}
        yield {**row, "shape": f"attention 1x{length} 1x64", "contender": "ropewalk, linear", "us": round(us, 1), **note}
        before = us
