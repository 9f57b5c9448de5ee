"""The peak memory of one call, measured apart from its timing."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

#: a log level of libkineto, torch's profiler: at a lower one it reports each start and stop on
#: stderr
QUIET = "6"


def peak_bytes(call: Callable[[], Any], device: str = "cpu") -> int:
    """Return the most bytes that torch's allocator holds for a call while it runs, including its
    results.
    """
    call()  # what a first call keeps, such as tables, is not counted
    return _on_gpu(call) if device == "cuda" else _on_cpu(call)


def _on_gpu(call: Callable[[], Any]) -> int:
    """Return how many bytes of GPU memory a call allocates at its peak, beyond those allocated
    before.
    """
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _on_cpu(call: Callable[[], Any]) -> int:
    """Return the most bytes of CPU memory that a call holds at one time: allocations less what was
    freed, from a profile.
    """
    from torch.profiler import ProfilerActivity, profile

    os.environ.setdefault("KINETO_LOG_LEVEL", QUIET)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        results = call()
    del results  # kept until here, so that they count while the call runs
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    memory_events = [event for event in events if event.get("name") == "[memory]"]
    allocated = peak = 0
    for event in sorted(memory_events, key=lambda event: event["ts"]):
        allocated += event["args"]["Bytes"]  # negative if memory is freed
        peak = max(peak, allocated)
    return peak
