"""Time attention: with and without rotation in torch's fused kernel, and linear attention compared
with softmax attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from ropewalk.attention import linear_attention
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec
from ropewalk_lab.bench.contenders import hf_rotate
from ropewalk_lab.bench.cpu import alternating_times, one_thread
from ropewalk_lab.bench.gpu import replay_us
from ropewalk_lab.bench.rows import run_script

CPU_LENGTHS = (8192, 16_384, 32_768, 65_536)


def measure_gpu() -> Iterator[dict[str, Any]]:
    """Yield the rows of both measurements on the GPU."""
    yield from measure_rotation()
    yield from measure_linear()


def measure_rotation(seq: int = 32_768) -> Iterator[dict[str, Any]]:
    """Yield the times of one attention layer (32/8 heads x 128, causal, bf16) with and without the
    rotation of q and k.
    """
    q, k, v = (
        torch.randn(1, heads, seq, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for heads in (32, 8, 8)
    )
    grad, rope = torch.randn_like(q), Rope(RopeSpec(head_dim=128))
    cos, sin = rope.cos_sin_hf(torch.arange(seq, device="cuda"), torch.bfloat16)

    def attend(q, k):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    calls = {
        "no rotation": lambda: attend(q, k),
        "ropewalk": lambda: attend(*rope(q, k)),
        "transformers, eager": lambda: attend(hf_rotate(q, cos, sin), hf_rotate(k, cos, sin)),
    }
    row = {"shape": f"attention 1x{seq} 32/8x128", "order": "bhsd", "dtype": "bfloat16"}
    with torch.no_grad():
        forward = {name: replay_us([call], replays=9) for name, call in calls.items()}
    forward_backward = {
        name: replay_us([lambda call=call: torch.autograd.grad(call(), (q, k, v), grad)], replays=7)
        for name, call in calls.items()
    }
    for pass_name, times in (("forward", forward), ("forward+backward", forward_backward)):
        for name, us in times.items():
            added = round(100 * (us / times["no rotation"] - 1), 2)
            yield {
                **row,
                "contender": name,
                "pass": pass_name,
                "us": round(us, 1),
                "percent_added": added,
            }


def measure_linear(seq: int = 65_536) -> Iterator[dict[str, Any]]:
    """Yield the times of causal linear attention with RoPE and of torch's fused softmax attention,
    16 heads x 64, bf16.
    """
    q, k, v = (torch.randn(1, 16, seq, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    rope = Rope(RopeSpec(head_dim=64))
    with torch.no_grad():
        softmax = replay_us(
            [lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)], replays=7
        )
        linear = replay_us([lambda: linear_attention(q, k, v, rope)[0]], replays=7)
    row = {
        "shape": f"attention 1x{seq} 16x64",
        "order": "bhsd",
        "dtype": "bfloat16",
        "pass": "forward",
    }
    yield {**row, "contender": "torch, fused softmax", "us": round(softmax, 1)}
    yield {
        **row,
        "contender": "ropewalk, linear",
        "us": round(linear, 1),
        "times_faster": round(softmax / linear, 2),
    }


def measure_cpu(
    lengths: tuple[int, ...] = CPU_LENGTHS, rounds: int = 8
) -> Iterator[dict[str, Any]]:
    """Yield the times of causal linear attention by length, one head x 64, float32, one thread, and
    of softmax attention.

    Softmax attention is timed at the first length only.
    """
    rope = Rope(RopeSpec(head_dim=64))
    inputs = {length: torch.randn(3, 1, 1, length, 64) for length in lengths}
    calls: dict[str, Callable[[], Any]] = {
        str(length): partial(linear_attention, *qkv, rope) for length, qkv in inputs.items()
    }
    calls["softmax"] = partial(F.scaled_dot_product_attention, *inputs[lengths[0]], is_causal=True)
    with one_thread(), torch.no_grad():
        times = alternating_times(calls, rounds)
    row = {"order": "bhsd", "dtype": "float32", "threads": 1, "pass": "forward"}
    softmax, previous = times["softmax"], None
    yield {
        **row,
        "shape": f"attention 1x{lengths[0]} 1x64",
        "contender": "torch, fused softmax",
        "us": round(softmax, 1),
    }
    for length in lengths:
        us = times[str(length)]
        comparison = {"times_faster": round(softmax / us, 2)}
        if previous is not None:
            comparison = {"times_half_the_length": round(us / previous, 2)}
        yield {
            **row,
            "shape": f"attention 1x{length} 1x64",
            "contender": "ropewalk, linear",
            "us": round(us, 1),
            **comparison,
        }
        previous = us


if __name__ == "__main__":
    run_script(__doc__, {"cuda": measure_gpu, "cpu": measure_cpu})
