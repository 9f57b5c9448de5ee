"""GPU timings of attention: what the rotation adds to torch's fused kernel, and linear attention against it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F

from ropewalk.attention import linear_attention
from ropewalk.bench.contenders import hf_turn
from ropewalk.bench.gpu import replay_us
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec


def measure_rotation(seq: int = 32_768) -> Iterator[dict[str, Any]]:
    """One layer's attention (32/8 heads x 128, causal, bf16) with and without the rotation of q and k."""
    q, k, v = (torch.randn(1, heads, seq, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for heads in (32, 8, 8))
    grad, rope = torch.randn_like(q), Rope(RopeSpec(head_dim=128))
    cos, sin = rope.cos_sin_hf(torch.arange(seq, device="cuda"), torch.bfloat16)

    def attend(q, k):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    ways = {
        "no rotation": lambda: attend(q, k),
        "ropewalk": lambda: attend(*rope(q, k)),
        "transformers, eager": lambda: attend(hf_turn(q, cos, sin), hf_turn(k, cos, sin)),
    }
    row = {"shape": f"attention 1x{seq} 32/8x128", "order": "bhsd", "dtype": "bfloat16"}
    with torch.no_grad():
        forward = {name: replay_us([way], replays=9) for name, way in ways.items()}
    both = {
        name: replay_us([lambda way=way: torch.autograd.grad(way(), (q, k, v), grad)], replays=7) for name, way in ways.items()
    }
    for what, taken in (("forward", forward), ("forward+backward", both)):
        for name, us in taken.items():
            added = round(100 * (us / taken["no rotation"] - 1), 2)
            yield {**row, "contender": name, "pass": what, "us": round(us, 1), "percent_added": added}


def in_turn_us(ways: dict[str, Callable[[], Any]], rounds: int = 5) -> dict[str, float]:
    """Median microseconds of each, one after the other in every round: under this load clocks fall as the GPU warms."""
    taken = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            taken[name].append(replay_us([way], replays=3))
    return {name: statistics.median(values) for name, values in taken.items()}


def measure_linear(seq: int = 65_536) -> Iterator[dict[str, Any]]:
    """Causal linear attention with RoPE against torch's fused softmax attention, 16 heads x 64, bf16, forward."""
    q, k, v = (torch.randn(1, 16, seq, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    rope = Rope(RopeSpec(head_dim=64))
    with torch.no_grad():
        softmax = replay_us([lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)], replays=7)
        linear = replay_us([lambda: linear_attention(q, k, v, rope)[0]], replays=7)
    row = {"shape": f"attention 1x{seq} 16x64", "order": "bhsd", "dtype": "bfloat16", "pass": "forward"}
    yield {**row, "contender": "torch, fused softmax", "us": round(softmax, 1)}
    yield {**row, "contender": "ropewalk, linear", "us": round(linear, 1), "times_faster": round(softmax / linear, 2)}
