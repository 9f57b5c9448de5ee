"""GPU timings: CUDA graphs replayed over buffers larger than the L2 cache, compared with one flat
copy of the same bytes.

Words of this module:
  contender  a way to rotate that is timed, a key of CONTENDERS: ropewalk with some options, or
             another library
  shape      a name of SHAPES: batch, tokens, heads, head_dim, dtype
  order      of the axes in memory: "bshd" is [B, S, H, D], "bhsd" is [B, H, S, D]
  pass       what was timed: "forward", "forward+backward" or, for a decode step, "eager loop":
             calls of Python without a CUDA graph
  copy       a plain copy of q and k, which a rotation cannot beat by much
  row        a dict with one measurement; "skipped" in it is the reason why there is none
  us         microseconds
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ropewalk_lab.bench.cases import SHAPES, BenchCase, make_case
from ropewalk_lab.bench.contenders import CONTENDERS, Call, agrees, why_not
from ropewalk_lab.bench.memory import peak_bytes

#: the bytes of all copies of a case, fewer for a small one: more than the L2 cache, so that calls
#: read from memory
COLD_BYTES = 256 << 20
#: the shapes with one token per batch row
DECODE = ("B", "C")
#: contenders without a forward+backward timing
FORWARD_ONLY = (
    "ropewalk, in place",
    "ropewalk, positions",
    "ropewalk, interleaved",
    "ropewalk, basic",
    "ropewalk, eager",
)
#: how often a CUDA graph of calls is replayed for one timing
REPLAYS = 25


def captured(calls: list[Callable[[], Any]]) -> tuple[torch.cuda.CUDAGraph, list[Any]]:
    """Return a CUDA graph of all calls, which was replayed to warm up, and their results."""
    # the first two calls also run outside the graph, on another stream as CUDA graphs require:
    # kernels are compiled and tables built there
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph, results = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for call in calls:
            # results stay alive, so that no two calls write to the same, cached memory
            results.append(call())
    for _ in range(3):
        graph.replay()
    return graph, results


def replayed_us(graph: torch.cuda.CUDAGraph, calls: int) -> float:
    """Return the mean microseconds of a call, from one replay of a graph; `calls` is how many calls
    the graph contains.
    """
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1000 / calls


def replay_us(calls: list[Callable[[], Any]], replays: int = REPLAYS) -> float:
    """Return the median microseconds of one call, from replays of a CUDA graph that contains all
    calls.
    """
    graph, _ = captured(calls)
    return statistics.median(replayed_us(graph, len(calls)) for _ in range(replays))


def host_us(call: Callable[[], Any], rounds: int = 24, loops: int = 100) -> dict[str, float]:
    """Return the microseconds per call of a loop in Python, without a CUDA graph. Host (CPU) and
    device (GPU) work at the same time, so this is the time of the slower of them.

    The rounds last more than a second; their lower quartile ("us") and median are returned, because
    a rented core runs at half speed while its other hyperthread is busy.
    """
    times = []
    for _ in range(rounds):
        for _ in range(20):  # untimed, so that caches and clocks are as in a long loop
            call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(loops):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / loops * 1e6)
        time.sleep(0.05)  # spreads the rounds over more than a second
    low, median, _ = statistics.quantiles(times, n=4)
    return {"us": round(low, 2), "median_us": round(median, 2)}


def copies(case: BenchCase) -> list[BenchCase]:
    """Return the case and copies of it, 2 to 200 in all: enough to exceed the L2 cache, if 200 do."""
    count = max(2, min(200, -(-COLD_BYTES // case.bytes)))
    return [case, *(replace(case, q=case.q.clone(), k=case.k.clone()) for _ in range(count - 1))]


def ceiling_us(sets: list[BenchCase], passes: int = 1) -> float:
    """Return the microseconds of `passes` flat copies of q and k (`sets`: copies of a case): close
    to the fastest rotation.
    """
    # two rows for each case: the source and the target of its copy
    buffers = [torch.empty(2, case.bytes, dtype=torch.uint8, device="cuda") for case in sets]
    return passes * replay_us([partial(target.copy_, source) for source, target in buffers])


def backward_calls(call: Call, sets: list[BenchCase]) -> list[Callable[[], Any]]:
    """Return, for each case of `sets`, a function that runs one forward and backward pass with
    random gradients.
    """

    def step(case: BenchCase) -> Callable[[], tuple[Tensor, ...]]:
        q, k = case.q.detach().requires_grad_(), case.k.detach().requires_grad_()
        grads = (torch.randn_like(case.q), torch.randn_like(case.k))
        # views: a contender that rotates in place writes to them, not to the leaf tensors themselves
        return lambda: torch.autograd.grad(call(q.view_as(q), k.view_as(k)), (q, k), grads)

    return [step(case) for case in sets]


def measure(
    names: tuple[str, ...] = tuple(SHAPES), contenders: tuple[str, ...] = tuple(CONTENDERS)
) -> Iterator[dict[str, Any]]:
    """Yield the rows of each shape of `names`, memory order and contender; a decode step has one
    order alone.
    """
    for name in names:
        for order in ("bshd",) if name in DECODE else ("bshd", "bhsd"):
            sets = copies(make_case(name, order, "cuda"))  # together they exceed the L2 cache
            row = {
                "shape": name,
                "order": order,
                "dtype": str(sets[0].q.dtype).removeprefix("torch."),
            }
            for contender in contenders:
                yield from rows_of(contender, sets, row)
            del sets
            torch.cuda.empty_cache()


def rows_of(contender: str, sets: list[BenchCase], row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each timed pass of a contender; the first pass that cannot be timed ends them
    with a row that has the reason.

    sets  copies of one case
    row   the fields of the case, which every row has
    """
    case, row = sets[0], {**row, "contender": contender}
    if reason := why_not(contender, case):
        yield {**row, "skipped": reason}
        return
    try:
        call = CONTENDERS[contender](case)
        with torch.no_grad():
            is_correct, error = agrees(contender, call, case)
            row["rms_error"] = float(f"{error:.3g}")
            if not is_correct:
                yield {**row, "skipped": "does not agree with the definition"}
                return
            measured = beside_copy(
                [partial(call, each.q, each.k) for each in sets], lambda: ceiling_us(sets)
            )
            yield {
                **row,
                "pass": "forward",
                **measured,
                "peak_bytes": peak_bytes(lambda: call(case.q, case.k), "cuda"),
            }
            if row["shape"] in DECODE:
                yield {**row, "pass": "eager loop", **host_us(lambda: call(case.q, case.k))}
        if row["shape"] not in DECODE and contender not in FORWARD_ONLY:
            # only two sets, because each has gradients too; compared with two copies, which move as
            # many bytes as both passes
            calls = backward_calls(call, sets[:2])
            measured = beside_copy(calls, lambda: ceiling_us(sets, passes=2))
            yield {
                **row,
                "pass": "forward+backward",
                **measured,
                "peak_bytes": peak_bytes(calls[0], "cuda"),
            }
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        yield {**row, "skipped": "does not fit in memory"}


def beside_copy(calls: list[Callable[[], Any]], ceiling: Callable[[], float]) -> dict[str, float]:
    """Return the microseconds of one call and of a copy, and the speed of the call in percent of
    the copy's.

    calls    the same call with different tensors
    ceiling  times the copy; it runs before and after the calls because clocks drift
    """
    before, us, after = ceiling(), replay_us(calls), ceiling()
    copy = (before + after) / 2
    return {
        "us": round(us, 3),
        "copy_us": round(copy, 3),
        "percent_of_copy": round(100 * copy / us, 1),
    }
