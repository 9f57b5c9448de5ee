"""Ways to read beyond the trained length, as functions of the factor: what `extend` and `passkey` compare."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import numpy as np
from torch import nn

from ropewalk.frequencies import Dynamic, Linear, LongRope, Ntk, Yarn
from ropewalk.frequencies.scaling import Scaling
from ropewalk.interop.extend.search import search_factors
from ropewalk.lab.evaluation import scored
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec


def yarn(factor: float, length: int, **options: float) -> Yarn:
    """YaRN for a short training length: 32 turns, its default, fit only where a pair makes so many."""
    return Yarn(factor=factor, original_length=length, beta_fast=max(2.0, min(32.0, length / 16)), truncate=False, **options)


#: method -> the scaling for a factor and the trained length; LongRoPE is searched for, see `searched`
METHODS: dict[str, Callable[[float, int], Scaling]] = {
    "linear": lambda factor, length: Linear(factor=factor),
    "ntk": lambda factor, length: Ntk(factor=factor),
    "by_parts": lambda factor, length: yarn(factor, length, attention_factor=1.0),
    "yarn": yarn,
    "dynamic": lambda factor, length: Dynamic(factor=factor, original_length=length),
}
NONE, LONGROPE = "none", "longrope"


def spec_for(
    method: str, plain: RopeSpec, factor: float, length: int, factors: tuple[float, ...] | list[float] | None = None
) -> RopeSpec:
    """The spec of a method; `factors` are LongRoPE's own."""
    if method == NONE:
        return plain
    if method == LONGROPE:
        found = tuple(factors or ())
        return plain.with_(
            scaling=LongRope(short_factor=(1.0,) * len(found), long_factor=found, original_length=length, factor=factor)
        )
    return plain.with_(scaling=METHODS[method](factor, length))


def searched(
    model: nn.Module, windows: np.ndarray, factor: int, length: int, *, population: int, rounds: int, seed: int
) -> tuple[float, ...]:
    """LongRoPE's factors for a model: those with the least loss on the last tokens of windows it is not judged by."""
    model = deepcopy(model)
    plain = model.layers[0].self_attn.encoding.rope.spec  # type: ignore[union-attr, index]
    rows = windows[:, -(factor * length + 1) :]

    def loss(factors: tuple[float, ...]) -> float:
        rope = Rope(spec_for(LONGROPE, plain, factor, length, factors))
        for layer in model.layers:  # type: ignore[union-attr]
            layer.self_attn.encoding.rope = rope
        return float(scored(model, rows, length)[0].double().mean())

    return search_factors(loss, plain.pairs, factor, population=population, rounds=rounds, seed=seed)
