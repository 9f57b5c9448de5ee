"""The peak memory of one call, measured apart from its timing."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

#: libkineto reports each start and stop of the profiler on stderr below this level
QUIET = "6"


def peak_bytes(call: Callable[[], Any], device: str = "cpu") -> int:
    """Return the largest number of bytes that torch's allocator holds during a call for it, including its results."""
    call()  # what a first call keeps, such as tables, is not counted
    return _on_gpu(call) if device == "cuda" else _on_cpu(call)


def _on_gpu(call: Callable[[], Any]) -> int:
    """Return how many bytes of GPU memory a call allocates at its peak, beyond those allocated before."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _on_cpu(call: Callable[[], Any]) -> int:
    """Return the peak of the sum of all allocations, less what was freed, in the order in which the profiler saw them."""
    from torch.profiler import ProfilerActivity, profile

    os.environ.setdefault("KINETO_LOG_LEVEL", QUIET)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        results = call()
    del results
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    held = peak = 0
    # the bytes of an event are negative if memory is freed
    for event in sorted((event for event in events if event.get("name") == "[memory]"), key=lambda event: event["ts"]):
        held += event["args"]["Bytes"]
        peak = max(peak, held)
    return peak
