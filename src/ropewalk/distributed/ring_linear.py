"""Linear attention over a sequence that is sharded across ranks: only sums of constant size are
exchanged.

A rank's tokens form runs of consecutive tokens of the sequence. Each run needs the sums over all
tokens before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ropewalk.attention.linear import check_linear, checked_scale
from ropewalk.attention.linear_sums import (
    CHUNK,
    FORMS,
    Features,
    State,
    attend,
    key_sums,
    make_features,
)
from ropewalk.attention.masks import check_token_masks
from ropewalk.distributed.sharding import (
    Ring,
    check_order,
    exchange_lengths,
    gather,
    order_number,
    token_indices,
)
from ropewalk.distributed.tiles import MAX_RUNS, runs_of
from ropewalk.errors import RopeError
from ropewalk.positions import left_padded
from ropewalk.rope import Rope


class TokenRun(NamedTuple):
    """A slice of a rank's tokens that are consecutive in the whole sequence.

    The runs of all ranks are numbered: `number` is the number of this run, `earlier` has the
    numbers of the runs before it in the sequence, `others` those of all other runs.
    """

    local: slice
    number: int
    earlier: list[int]
    others: list[int]


def ring_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rope: Rope,
    positions: Tensor | None = None,
    *,
    form: str = "numerator",
    phi: str | Callable[[Tensor], Tensor] = "elu",
    scale: Tensor | float = 1.0,
    causal: bool = True,
    padding: Tensor | None = None,
    order: str | Tensor = "contiguous",
    group: dist.ProcessGroup | None = None,
    chunk: int = CHUNK,
    eps: float = 1e-6,
) -> tuple[Tensor, State]:
    """Return linear attention of this rank's q [B, H, S, D] over the keys of all ranks, and a
    state. Every rank must call it.

    positions  by default 0, 1, 2, ... over the real tokens of each row of the whole sequence
    padding    [B, S], True for this rank's real tokens
    order      as in `ring_attention`; a rank may hold at most 8 runs of consecutive tokens

    `form`, `phi`, `scale`, `chunk` and `eps` are as in `linear_attention`.

    Ranks may hold different numbers of tokens. The returned state is the state after the last of
    this rank's tokens, or after all tokens if not causal or if the rank has none. To continue the
    sequence, use the state of the rank that has the last token.
    """
    check_linear(q, k, v, rope, form, phi, state=None, chunk=chunk)
    scale = checked_scale(scale, q, form)
    if rope.spec.needs_length:
        rule = (
            "must not depend on the length, which a rank does not know; use another scaling, or "
            "ring_attention"
        )
        raise RopeError("scaling", rule, rope.spec.scaling)
    check_token_masks(q.shape[0], q.shape[-2], padding, documents=None)
    check_order(order, q.shape[-2])
    ring = Ring(group)
    sizes = {
        "batch": q.shape[0],
        "heads": q.shape[1],
        "head_dim": q.shape[-1],
        "v head_dim": v.shape[-1],
    }
    facts = {
        "dtype": q.dtype,
        "form": FORMS.index(form),
        "causal": causal,
        "order": order_number(order),
    }
    # raises an error too if `sizes` or `facts` differ between ranks
    lengths = exchange_lengths(q.shape[-2], q.device, group, sizes | facts)
    runs, most_runs = _runs(token_indices(order, lengths, ring), ring.rank)

    real = (
        torch.ones(q.shape[0], q.shape[-2], dtype=torch.bool, device=q.device)
        if padding is None
        else padding
    )
    # exchange how many real tokens every run has, [ranks * most_runs, B]; `before` is how many come
    # before each of this rank's runs
    counts = _gather_runs([real[:, run.local].sum(dim=-1) for run in runs], most_runs, group)
    before = [counts[run.earlier].sum(dim=0) for run in runs]
    if positions is None:  # `left_padded` counts the real tokens of a run from 0
        parts = [
            left_padded(real[:, run.local]) + base[:, None]
            for run, base in zip(runs, before, strict=True)
        ]
        positions = torch.cat(parts, dim=-1)
    features = make_features(q, k, rope, positions, padding, form, phi, scale)
    features_of_runs = [Features(*(t[:, :, run.local] for t in features)) for run in runs]
    values_of_runs = [v[:, :, run.local] for run in runs]
    # exchange the sums over the keys of every run; other ranks need only these sums, not the keys
    our_sums = [key_sums(*of_run) for of_run in zip(features_of_runs, values_of_runs, strict=True)]
    kv_shape, k_shape = (sums.shape for sums in our_sums[0])
    joined = [torch.cat((kv_sum.flatten(1), k_sum.flatten(1)), dim=1) for kv_sum, k_sum in our_sums]
    kv_sums, k_sums = _gather_runs(joined, most_runs, group).split(
        (kv_shape[1:].numel(), k_shape[1:].numel()), dim=-1
    )
    outs, states = [], []
    for run, run_features, values, base in zip(
        runs, features_of_runs, values_of_runs, before, strict=True
    ):
        visible = run.earlier if causal else run.others
        state = State(
            kv_sums[visible].sum(dim=0).view(kv_shape),
            k_sums[visible].sum(dim=0).view(k_shape),
            base,
        )
        out, kv_sum, k_sum = attend(run_features, values, state, causal, chunk, eps)
        outs.append(out)
        states.append(State(kv_sum, k_sum, counts[[*visible, run.number]].sum(dim=0)))
    # the run with the most earlier runs is this rank's last one in the sequence
    last = max(range(len(runs)), key=lambda i: len(runs[i].earlier))
    return torch.cat(outs, dim=-2).to(v.dtype), states[last]


def _runs(indices: Sequence[Tensor], rank: int) -> tuple[list[TokenRun], int]:
    """Return the runs of `rank`, and the largest number of runs on any rank; raise an error if a
    rank has too many.

    indices  for each rank, the indices of its tokens in the whole sequence

    A rank without tokens has one empty run, which counts as later than all tokens.
    """
    bounds = [runs_of(each) for each in indices]
    most = max(map(len, bounds))
    if most > MAX_RUNS:
        rule = (
            f"must give a rank at most {MAX_RUNS} runs of consecutive tokens; use 'contiguous' or "
            "'head_tail', or ring_attention"
        )
        raise RopeError("order", rule, [len(each) for each in bounds])
    # number of a run (its row in `_gather_runs`) -> index of its first token in the sequence; an
    # empty run is after all tokens
    first_token = {}
    for owner, runs in enumerate(bounds):
        for i, (start, end) in enumerate(runs):
            first_token[owner * most + i] = int(indices[owner][start]) if end > start else 2**62
    our_runs = []
    for i, (start, end) in enumerate(bounds[rank]):
        number = rank * most + i
        earlier = [other for other in first_token if first_token[other] < first_token[number]]
        others = [other for other in first_token if other != number]
        our_runs.append(TokenRun(slice(start, end), number, earlier, others))
    return our_runs, most


def _gather_runs(ours: list[Tensor], most: int, group: dist.ProcessGroup | None) -> Tensor:
    """Return the tensors of the runs of all ranks, [world * most, ...], given those of this rank's
    runs, `ours`; a rank with fewer than `most` runs adds zeros.
    """
    missing = most - len(ours)
    filled = [*ours, *[torch.zeros_like(ours[0])] * missing]
    return gather(torch.stack(filled), group).flatten(0, 1)
