"""CPU seconds of causal float32 attention on one thread: the native library beside torch, in the
shapes of SmolLM2.

The two take turns. The seconds are those of the thread, so other programs on the machine disturb
them little. Both must agree with attention in float64 on the first 512 tokens before they are
timed; `gflops` counts the scores that are not masked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from ropewalk.kernels.cpu import attention
from ropewalk_lab.bench.rows import run_script

#: query heads, key heads, dimensions of a head; and how often each contender is timed
HEADS, GROUPS, DIM, ROUNDS = 9, 3, 64, 5
LENGTHS = (1024, 2048, 4096, 8192)
#: the largest difference from attention in float64 for inputs of unit variance
CLOSE = 1e-5


def measure() -> Iterator[dict[str, Any]]:
    """Yield a row for each length and each contender: ropewalk and torch."""
    torch.set_num_threads(1)
    for length in LENGTHS:
        q, k, v = (torch.randn(1, heads, length, DIM) for heads in (HEADS, GROUPS, GROUPS))
        if (reason := attention.why_not(q, k, v)) is not None:
            raise SystemExit(f"cannot be measured here: {reason}")
        contenders = {
            "ropewalk": partial(attention.attend, q, k, v, DIM**-0.5),
            "torch": partial(sdpa, q, k, v, is_causal=True, enable_gqa=True),
        }
        # causal outputs of the first tokens do not depend on later ones, so these alone are checked
        first = slice(0, 512)
        exact = sdpa(*(x[:, :, first].double() for x in (q, k, v)), is_causal=True, enable_gqa=True)
        errors = {
            name: float((run()[:, :, first] - exact).abs().max())
            for name, run in contenders.items()
        }
        assert max(errors.values()) < CLOSE, errors
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(ROUNDS):
            for name, run in contenders.items():
                began = time.thread_time()
                run()
                seconds[name].append(time.thread_time() - began)
        for name, times in seconds.items():
            # two products (scores, output), each with a multiplication and an addition, over half
            # of the scores
            gflops = 2 * HEADS * DIM * length * (length + 1) / min(times) / 1e9
            yield {
                "attention": name,
                "heads": HEADS,
                "groups": GROUPS,
                "dim": DIM,
                "length": length,
                "error": errors[name],
                "seconds": [round(value, 5) for value in times],
                "gflops": round(gflops, 2),
            }


if __name__ == "__main__":
    run_script(__doc__, {"cpu": measure})
