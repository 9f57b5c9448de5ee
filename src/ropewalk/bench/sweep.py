"""Which configuration of the Triton kernel is fastest for a shape: what `kernels/triton_tuning.py` is filled from."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from ropewalk.bench.cases import make_case
from ropewalk.bench.contenders import ropewalk, ropewalk_inplace, ropewalk_positions
from ropewalk.bench.gpu import DECODE, ceiling_us, copies, forward_calls, replay_us
from ropewalk.kernels.triton.tuning import Config, forced

WARPS, TOKENS, HEADS = (1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8, 16, 32)


def candidates(order: str, pairs: int, q_heads: int, decode: bool) -> Iterator[Config]:
    """Configurations worth a try: a thread holds 2 to 16 pairs, and neighbours in memory go together."""
    for warps, tokens, heads in itertools.product(WARPS, TOKENS, HEADS):
        held = tokens * heads * pairs / (32 * warps)
        if heads > q_heads or not 2 <= held <= 16 or (order == "bshd") != (tokens == 1) or (order == "bhsd" and heads > 4):
            continue
        for together, hints in itertools.product((False, True), (False, True)):
            if (decode and hints) or (order == "bhsd" and together):
                continue
            yield Config(tokens, heads, warps, together=together, hints=hints)


def sweep(name: str, order: str, inplace: bool = False, variant: str = "plain") -> list[dict[str, Any]]:
    """Every candidate's time for one shape, fastest first; one that fails to compile or run is left out."""
    sets = copies(make_case(name, order, "cuda", variant=variant))
    case, copy = sets[0], ceiling_us(sets)
    found = []
    way = ropewalk_inplace if inplace else ropewalk if variant == "plain" else ropewalk_positions
    # a head that turns in part moves whole
    held = case.spec.head_dim // 2
    for config in candidates(order, held, case.q.shape[2 if order == "bshd" else 1], name in DECODE):
        try:
            with forced(config), torch.no_grad():
                us = replay_us(forward_calls(way(case), sets), replays=7)
        except RuntimeError as error:
            found.append({"config": str(config), "us": float("inf"), "error": str(error)[:200]})
            continue
        found.append({"config": str(config), "us": round(us, 3), "percent_of_copy": round(100 * copy / us, 1)})
    return sorted(found, key=lambda row: row["us"])
