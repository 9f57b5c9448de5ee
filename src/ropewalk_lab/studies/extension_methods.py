"""Methods that extend a RoPE model beyond its trained length, as functions of the factor (studies
`extend`, `passkey`).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import numpy as np
from torch import nn

from ropewalk.frequencies import Dynamic, DynamicYarn, Linear, LongRope, Ntk, Yarn
from ropewalk.frequencies.scaling import Scaling
from ropewalk.interop.extend.search import search_factors
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec
from ropewalk_lab.evaluation import losses_and_hits


def beta_fast(length: int) -> float:
    """Return YaRN's beta_fast for a model trained on `length` tokens: `length` / 16, but at least 2
    and at most 32, YaRN's default.

    YaRN keeps the frequencies of pairs that make at least beta_fast turns over the trained length.
    Over a short one, few pairs or none make 32 turns.
    """
    return max(2.0, min(32.0, length / 16))


def yarn(factor: float, length: int, **options: float) -> Yarn:
    """Return YaRN with a beta_fast that suits the trained length, and with a ramp whose ends are
    not rounded to whole pairs; `options` are other fields of `Yarn`.
    """
    return Yarn(
        factor=factor,
        original_length=length,
        beta_fast=beta_fast(length),
        truncate=False,
        **options,
    )


#: method -> the scaling for a factor and the trained length; LongRoPE's factors are searched, see
#: `search_longrope`
METHODS: dict[str, Callable[[float, int], Scaling]] = {
    "linear": lambda factor, length: Linear(factor=factor),
    "ntk": lambda factor, length: Ntk(factor=factor),
    # YaRN without its factor on attention
    "by_parts": lambda factor, length: yarn(factor, length, attention_factor=1.0),
    "yarn": yarn,
    "dynamic": lambda factor, length: Dynamic(factor=factor, original_length=length),
    # its factor is the sequence's own length over the trained length
    "dynamic_yarn": lambda factor, length: DynamicYarn(
        original_length=length, beta_fast=beta_fast(length), truncate=False
    ),
}
#: the methods without an entry in METHODS: no scaling, and LongRoPE
OTHERS = NONE, LONGROPE = "none", "longrope"


def rope_spec(model: nn.Module) -> RopeSpec:
    """Return the spec of the rope of a decoder in which all layers have the same."""
    return model.layers[0].self_attn.encoding.rope.spec  # type: ignore[union-attr, index, return-value]


def spec_for(
    method: str,
    plain: RopeSpec,
    factor: float,
    length: int,
    factors: tuple[float, ...] | list[float] | None = None,
) -> RopeSpec:
    """Return the spec by which a method extends a model with the spec `plain` to `factor` times its
    trained `length`.

    `factors` are the searched factors of LongRoPE, one for each pair; other methods have none.
    """
    if method == NONE:
        return plain
    if method == LONGROPE:
        long = tuple(factors or ())
        # short factors of 1: frequencies are unscaled up to the trained length; the magnitude
        # applies at every length
        scaling = LongRope(
            short_factor=(1.0,) * len(long), long_factor=long, original_length=length, factor=factor
        )
        return plain.with_(scaling=scaling)
    return plain.with_(scaling=METHODS[method](factor, length))


def search_longrope(
    model: nn.Module,
    windows: np.ndarray,
    factor: int,
    length: int,
    *,
    population: int,
    rounds: int,
    seed: int,
) -> tuple[float, ...]:
    """Return the LongRoPE factors with the lowest loss that a search finds.

    Of each window the model reads the factor * length tokens before the last one; the loss is that
    of the window's last `length` tokens.

    windows             token ids [N, at least factor * length + 1]
    factor, length      how many times longer the context becomes; the trained length
    population, rounds  the candidates in a round of the evolutionary search, and its rounds
    """
    model = deepcopy(model)
    plain = rope_spec(model)
    rows = windows[:, -(factor * length + 1) :]

    def loss(factors: tuple[float, ...]) -> float:
        """Return the mean loss of the last `length` tokens of each row with these LongRoPE factors,
        which the model keeps.
        """
        rope = Rope(spec_for(LONGROPE, plain, factor, length, factors))
        for layer in model.layers:  # type: ignore[union-attr]
            layer.self_attn.encoding.rope = rope
        return float(losses_and_hits(model, rows, tail=length)[0].double().mean())

    return search_factors(
        loss, plain.pairs, factor, population=population, rounds=rounds, seed=seed
    )
