"""CPU seconds of causal float32 attention on one thread: the native library beside torch, in the shapes of SmolLM2.

    OMP_NUM_THREADS=1 python benchmarks/cpu_attention.py results/cpu_attention.jsonl

The seconds are those of the thread, so other programs on the machine disturb them little. Each result is first compared with
attention in float64; `gflops` counts the scores that are not masked.
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from ropewalk.kernels.cpu import attention
from ropewalk.machine import machine

HEADS, GROUPS, DIM, ROUNDS = 9, 3, 64, 5


def main(path: Path, lengths: tuple[int, ...] = (1024, 2048, 4096, 8192)) -> None:
    """Write a row for each length and kind of attention; the two kinds take turns."""
    torch.set_num_threads(1)
    rows = []
    for length in lengths:
        q, k, v = (torch.randn(1, heads, length, DIM) for heads in (HEADS, GROUPS, GROUPS))
        kinds = {
            "ropewalk": lambda q=q, k=k, v=v: attention.attend(q, k, v, DIM**-0.5),
            "torch": lambda q=q, k=k, v=v: sdpa(q, k, v, is_causal=True, enable_gqa=True),
        }
        part = slice(0, 512)  # a causal result of the first tokens is that of the text cut there
        exact = sdpa(*(x[:, :, part].double() for x in (q, k, v)), is_causal=True, enable_gqa=True)
        errors = {name: float((run()[:, :, part] - exact).abs().max()) for name, run in kinds.items()}
        seconds: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(ROUNDS):
            for name, run in kinds.items():
                began = time.thread_time()
                run()
                seconds[name].append(time.thread_time() - began)
        for name, own in seconds.items():
            gflops = 2 * HEADS * DIM * length * (length + 1) / min(own) / 1e9
            shape = {"heads": HEADS, "groups": GROUPS, "dim": DIM, "length": length}
            measured = {"error": errors[name], "seconds": [round(each, 5) for each in own], "gflops": round(gflops, 2)}
            rows.append({"attention": name, **shape, **measured, "machine": machine(q.device)})
            print(json.dumps(rows[-1]), flush=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
