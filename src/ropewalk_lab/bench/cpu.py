"""CPU timings: the lower quartile of the CPU time of one thread, compared with torch's `copy_`;
contenders alternate.

Words of this module:
  contender  a way to rotate that is timed, a key of CONTENDERS: ropewalk with some options, or
             another library
  shape      a name of SHAPES: batch, tokens, heads, head_dim, dtype
  order      of the axes in memory: "bshd" is [B, S, H, D], "bhsd" is [B, H, S, D]
  pass       what was timed: "forward" or "forward+backward"
  copy       a plain copy of q and k, which a rotation cannot beat by much
  row        a dict with one measurement; "skipped" in it is the reason why there is none
  us         microseconds
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from ropewalk_lab.bench.cases import SHAPES, BenchCase, make_case
from ropewalk_lab.bench.contenders import CONTENDERS, Call, agrees, why_not
from ropewalk_lab.bench.memory import peak_bytes

#: shapes that fit a small machine: batch, tokens, query heads, key heads, head_dim, dtype
CPU_SHAPES = {
    "cpu prefill": (1, 2048, 32, 32, 128, torch.float32),
    "cpu mid": (1, 256, 32, 32, 128, torch.float32),
    "cpu decode": (1, 1, 32, 8, 128, torch.float32),
}
SHAPES.update(CPU_SHAPES)
#: memory orders of a shape: [B, H, S, D] contiguous, and as a view of [B, S, H, D], as a model's
#: projections produce it; other shapes have the first order alone
ORDERS = {"cpu prefill": ("bhsd", "bhsd view")}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: how often each contender is timed, in turns with the others
ROUNDS = 12
#: if all rounds would last longer than this many seconds, there are fewer, but at least three
ENOUGH = 120.0
#: seconds of untimed calls before each timing: an allocator returns freed pages to the system after
#: about ten milliseconds
WARM_UP = 0.025


def alternating_times(
    calls: dict[str, Callable[[], Any]], rounds: int = ROUNDS, at_least: float = 0.004
) -> dict[str, float]:
    """Return {name: the lower quartile of the CPU microseconds of its call}. Every round times all
    calls, so that noise affects them equally; if they are slow, there are fewer than `rounds`.

    A short call is repeated, so that each timing lasts about `at_least` seconds. Untimed calls
    precede each timing, so that the state of caches and allocator does not depend on the previous
    contender.
    """
    seconds_of_call, repeats, times = {}, {}, {name: [] for name in calls}
    for name, call in calls.items():
        call()  # a first call may compile or build tables
        start = time.process_time()
        call()
        seconds_of_call[name] = max(time.process_time() - start, 1e-6)  # a coarse clock shows 0
        repeats[name] = max(1, int(at_least / seconds_of_call[name]))
    # fewer rounds if slow calls would make them last longer than ENOUGH seconds; 2: a slow call
    # runs once untimed and once timed in each round; 1e-6: without calls the sum would be 0
    seconds_of_round = 2 * sum(seconds_of_call.values(), 1e-6)
    rounds = min(rounds, max(3, int(ENOUGH / seconds_of_round)))
    for _ in range(rounds):
        for name, call in calls.items():
            warm_until = time.perf_counter() + WARM_UP
            call()
            while time.perf_counter() < warm_until:
                call()
            start = time.process_time()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.process_time() - start) / repeats[name] * 1e6)
    return {name: statistics.quantiles(values, n=4)[0] for name, values in times.items()}


@contextmanager
def one_thread() -> Iterator[None]:
    """Context manager: torch's CPU operations run in one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def copy_call(case: BenchCase) -> Callable[[], Any]:
    """Return a function that copies q and k into existing tensors: close to the fastest possible
    rotation.
    """
    q, k = torch.empty_like(case.q), torch.empty_like(case.k)
    return lambda: (q.copy_(case.q), k.copy_(case.k))


def forward_backward(call: Call, case: BenchCase) -> Callable[[], Any]:
    """Return a function that runs one forward and backward pass through autograd."""
    q, k = case.q.clone().requires_grad_(), case.k.clone().requires_grad_()
    grads = (torch.randn_like(q), torch.randn_like(k))
    return lambda: torch.autograd.grad(call(q, k), (q, k), grads)


def measure(
    names: tuple[str, ...] = tuple(CPU_SHAPES),
    contenders: tuple[str, ...] = tuple(CONTENDERS),
    rounds: int = ROUNDS,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of each shape of `names`, order of dimensions, dtype and contender: one for
    each timed pass, or one with the reason why the contender cannot be timed.
    """
    with one_thread():
        for name in names:
            dtypes = DTYPES if name in CPU_SHAPES else (SHAPES[name][-1],)
            for order, dtype in itertools.product(ORDERS.get(name, ("bhsd",)), dtypes):
                yield from _case_rows(
                    _ordered(make_case(name, "bhsd", dtype=dtype), order), order, contenders, rounds
                )


def _ordered(case: BenchCase, order: str) -> BenchCase:
    """Return the case with q and k [B, H, S, D] contiguous if `order` is "bhsd", otherwise as views
    of [B, S, H, D] memory.
    """
    if order == "bhsd":
        return case
    q, k = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (case.q, case.k))
    return replace(case, q=q, k=k)


def _case_rows(
    case: BenchCase, order: str, contenders: tuple[str, ...], rounds: int
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one case: the forward pass of each contender, or why it was skipped; then,
    but not for a decode step, the forward+backward pass of ropewalk and of eager transformers.
    Only contenders with correct results are timed.
    """
    common = {
        "shape": case.name,
        "order": order,
        "dtype": str(case.q.dtype).removeprefix("torch."),
        "threads": 1,
    }
    # `calls` has the contenders that can run and agree with the definition
    calls, errors = {}, {}
    for contender in contenders:
        if reason := why_not(contender, case):
            yield {**common, "contender": contender, "skipped": reason}
            continue
        try:
            call = CONTENDERS[contender](case)
            with torch.no_grad():
                is_correct, errors[contender] = agrees(contender, call, case)
        except Exception as error:  # torch.compile needs a C++ compiler, for example
            yield {
                **common,
                "contender": contender,
                "skipped": f"{type(error).__name__}: {error}".splitlines()[0],
            }
            continue
        if is_correct:
            calls[contender] = call
        else:
            yield {
                **common,
                "contender": contender,
                "skipped": "does not agree with the definition",
            }
    # time the forward pass of all `calls`, then both passes of ropewalk and of eager transformers
    with torch.no_grad():
        timed = {name: (lambda call=call: call(case.q, case.k)) for name, call in calls.items()}
        times = alternating_times({"copy": copy_call(case), **timed}, rounds)
        copy = times.pop("copy")
        for contender, us in times.items():
            yield _row(
                common,
                contender,
                "forward",
                us,
                copy,
                errors[contender],
                peak_bytes(timed[contender]),
            )
    if case.decode:
        return
    steps = {
        name: forward_backward(calls[name], case)
        for name in ("ropewalk", "transformers, eager")
        if name in calls
    }
    # half as many rounds, because these calls are slower
    for contender, us in alternating_times(steps, max(4, rounds // 2)).items():
        # two copies move as many bytes as a forward and a backward pass
        yield _row(
            common,
            contender,
            "forward+backward",
            us,
            2 * copy,
            errors[contender],
            peak_bytes(steps[contender]),
        )


def _row(
    common: dict[str, Any],
    contender: str,
    pass_name: str,
    us: float,
    copy: float,
    error: float,
    peak: int,
) -> dict[str, Any]:
    """Return one row.

    common     the fields of the case
    pass_name  "forward" or "forward+backward"
    us         microseconds of the contender
    copy       microseconds of one copy; for "forward+backward", of two
    error      relative rms error
    peak       peak memory in bytes
    """
    measured = {
        "us": round(us, 2),
        "copy_us": round(copy, 2),
        "times_copy": round(us / copy, 2),
        "peak_bytes": peak,
        "rms_error": float(f"{error:.3g}"),
    }
    return {**common, "contender": contender, "pass": pass_name, **measured}
