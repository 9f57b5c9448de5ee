"""Times of causal attention with a window, and with packed documents: one mask tensor, blocks of
queries, and on a GPU FlexAttention.

The mask tensor is made in every call, as in a layer of a model. FlexAttention keeps the block mask
of a window between calls, and makes that of documents in every call. A way must agree with the mask
tensor before it is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ropewalk.attention.backends import Call, pick, run_flex, run_sdpa, trimmed
from ropewalk.attention.masks import Visibility
from ropewalk_lab.bench.rows import run_script

#: lengths by device
LENGTHS = {"cuda": (1024, 2048, 4096, 8192, 16_384, 32_768), "cpu": (1024, 2048, 4096, 8192)}
#: query heads, key heads, head_dim and dtype by device
SIZES = {"cuda": (32, 8, 128, torch.bfloat16), "cpu": (4, 4, 64, torch.float32)}
KINDS: dict[str, dict[str, int]] = {
    "window 512": {"window": 512},
    "window 4096": {"window": 4096},
    "documents of 512": {"size": 512},
}
ROUNDS = 9


def make_call(device: str, length: int, window: int | None = None, size: int | None = None) -> Call:
    """Return a causal call of `length` tokens, with a window or with packed documents of `size`
    tokens.
    """
    q_heads, k_heads, dim, dtype = SIZES[device]
    q, k, v = (
        torch.randn(1, heads, length, dim, device=device, dtype=dtype)
        for heads in (q_heads, k_heads, k_heads)
    )
    documents = None if size is None else (torch.arange(length, device=device) // size)[None]
    return Call(
        q, k, v, dim**-0.5, Visibility(True, window, q_documents=documents, k_documents=documents)
    )


def one_mask(call: Call) -> Tensor:
    """Return torch's attention with one mask tensor for all queries and keys."""
    mask, grouped = call.full_mask(call.q.dtype), call.q.shape[1] != call.k.shape[1]
    return F.scaled_dot_product_attention(
        call.q, call.k, call.v, mask, scale=call.scale, enable_gqa=grouped
    )


def milliseconds(run: Callable[[], Any], device: str) -> float:
    """Return the milliseconds of the fastest of ROUNDS calls; a call ends when the device has
    finished.
    """
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times = []
    for _ in range(ROUNDS):
        wait()
        start = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


@torch.no_grad()
def measure(device: str) -> Iterator[dict[str, Any]]:
    """Yield a row for every kind, length and way; `chosen` is the backend that a layer takes by
    itself.
    """
    torch.manual_seed(0)
    for kind, options in KINDS.items():
        for length in LENGTHS[device]:
            whole = make_call(device, length, **options)
            call = trimmed(whole)
            if call.visible.only_causal:  # the window is not shorter than the sequence
                continue
            ways: dict[str, Callable[[], Tensor]] = {
                "torch, one mask": lambda whole=whole: one_mask(whole),
                "sdpa": lambda call=call: run_sdpa(call)[0],
            }
            if device == "cuda":
                ways["flex"] = lambda call=call: run_flex(call)[0]
            want = ways["torch, one mask"]()
            tolerance = 2e-2 if want.dtype == torch.bfloat16 else 1e-4
            for way, run in ways.items():
                torch.testing.assert_close(run(), want, atol=tolerance, rtol=tolerance)
                yield {
                    "what": "window",
                    "kind": kind,
                    "length": length,
                    "way": way,
                    "chosen": pick(call)[0],
                    "heads": f"{call.q.shape[1]}/{call.k.shape[1]}x{call.q.shape[-1]}",
                    "dtype": str(want.dtype).removeprefix("torch."),
                    "ms": round(milliseconds(run, device), 3),
                    "rounds": ROUNDS,
                }


if __name__ == "__main__":
    run_script(
        __doc__, {device: lambda device=device: measure(device) for device in ("cuda", "cpu")}
    )
