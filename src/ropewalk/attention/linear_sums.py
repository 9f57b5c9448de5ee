"""The sums of linear attention in plain torch: for calls that the kernels do not support, and for
the backward pass of all calls.

A weight is a dot product of features, so later queries need only two sums over past keys: of key
feature times value, and of key features. The forms "numerator", "cosine" and "rotated" are those of
`ropewalk.attention.linear`: which features they have, `make_features` says.

Shapes: B rows, H heads, S tokens in N chunks of C tokens; D dimensions of a head of q and k, Dv of
v; F features of each token and head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ropewalk.errors import RopeError
from ropewalk.rope import Rope

FORMS = ("numerator", "cosine", "rotated")
#: tokens in a chunk; scores are formed only between tokens of the same chunk
CHUNK = 128


def elu_plus_one(x: Tensor) -> Tensor:
    """Return elu(x) + 1: x + 1 if x > 0, else e^x. On a CPU this takes half the time of torch's
    elu.
    """
    return x.clamp(max=0).exp() + F.relu(x)


FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {"elu": elu_plus_one, "relu": F.relu}


class State(NamedTuple):
    """Sums over all past tokens, in float32 or float64; the size does not grow with the number of
    tokens.

    kv_sum  [B, H, F, Dv], the sum of (key feature) (value)^T for the numerator; the key features
            are rotated to their absolute positions
    k_sum   [B, H, F], the sum of key features for the denominator: not rotated in the form
            "numerator", the same features as in kv_sum in the other forms
    count   [B], the number of real tokens so far: by default the position of each row's next token
    """

    kv_sum: Tensor
    k_sum: Tensor
    count: Tensor


class Features(NamedTuple):
    """Features of queries and keys, [B, H, S, F]: F features for each token and head.

    q, k              of the numerator, rotated
    q_plain, k_plain  of the denominator: not rotated in the form "numerator"; in the other forms
                      the same as q and k
    """

    q: Tensor
    k: Tensor
    q_plain: Tensor
    k_plain: Tensor


def make_features(
    q: Tensor,
    k: Tensor,
    rope: Rope,
    positions: Tensor,
    padding: Tensor | None,
    form: str,
    phi: str | Callable[[Tensor], Tensor],
    scale: Tensor | float,
) -> Features:
    """Return the features of q and k [B, H, S, D], in float32 (or float64).

    The numerator weighs each value by q.k; the denominator is the sum of q_plain.k_plain.

    padding  boolean [B, S], True for real tokens; the features of keys that are padding are 0
    form     "numerator": q and k are phi(q) and phi(k), rotated; q_plain and k_plain are the same
             without rotation
             "rotated": q_plain and k_plain are rotated too
             "cosine": unit vectors, rotated, with a constant feature, so that q.k is
             1 + scale cos(q, k); q_plain and k_plain are the same
    phi      the map from vectors to features, or its name in FEATURE_MAPS; "cosine" has none
    scale    the factor on the cosine; the other forms do not use it
    """
    compute_dtype = torch.promote_types(q.dtype, torch.float32)
    if form != "cosine":
        phi = FEATURE_MAPS[phi] if isinstance(phi, str) else phi
        q_plain, k_plain = phi(q.to(compute_dtype)), phi(k.to(compute_dtype))
        q, k = rope.rotate(q_plain, positions), rope.rotate(k_plain, positions, key=True)
        if form == "rotated":
            q_plain, k_plain = q, k
    else:
        q, k = (
            rope.rotate(F.normalize(x.to(compute_dtype), dim=-1), positions, key=key)
            for x, key in ((q, False), (k, True))
        )
        # a constant feature 1 adds the 1 of the weight 1 + scale cos
        one = torch.ones_like(q[..., :1])
        q, k = torch.cat((one, q * scale), dim=-1), torch.cat((one, k), dim=-1)
        q_plain, k_plain = q, k
    if padding is not None:
        real = padding[:, None, :, None]
        k, k_plain = k * real, k_plain * real
    return Features(q, k, q_plain, k_plain)


def key_sums(features: Features, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return `kv_sum` and `k_sum` of `State` for these keys and values."""
    return features.k.mT @ v.to(features.k.dtype), features.k_plain.sum(dim=-2)


def in_chunks(x: Tensor, chunk: int) -> Tensor:
    """Return x [.., S, F] as [.., N, chunk, F]; zeros follow the last token, up to whole chunks."""
    seq = x.shape[-2]
    return F.pad(x, (0, 0, 0, -seq % chunk)).unflatten(-2, (-(-seq // chunk), chunk))


def causal_sums(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """Return sum_{j <= i} (q_i.k_j) v_j for every i, and `state` after the last token.

    q, k [B, H, S, F], v [B, H, S, Dv], and state [B, H, F, Dv], the sum of k_j v_j^T over preceding
    tokens. Cost O(S chunk (F + Dv) + S F Dv): linear in S.
    """
    seq = q.shape[-2]
    q, k, v = (in_chunks(t, chunk) for t in (q, k, v))  # [B, H, N, C, .]
    # contiguous, because CPU libraries may take twice as long to multiply a transposed view
    k_transposed = k.transpose(-1, -2).contiguous()
    inside = (q @ k_transposed).tril_()  # the scores within each chunk
    # the state before each chunk, and after the last one, [B, H, N + 1, F, Dv]
    states = torch.cat((state.unsqueeze(2), k_transposed @ v), dim=2).cumsum(dim=2)
    return (inside @ v + q @ states[:, :, :-1]).flatten(2, 3)[:, :, :seq], states[:, :, -1]


def causal_denominators(q: Tensor, k: Tensor, k_sum: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Return the denominators q_i.(k_sum + sum_{j <= i} k_j) [B, H, S, 1], and k_sum + sum_j k_j.

    q, k [B, H, S, F] are features, and k_sum [B, H, F] is the sum of the keys before these. To
    reduce rounding error, keys are summed within chunks, then across chunks.
    """
    seq = k.shape[-2]
    inside = in_chunks(k, chunk).cumsum(dim=-2)  # running sums within each chunk, [B, H, N, C, F]
    # the sum before each chunk, and after the last one, [B, H, N + 1, F]
    before = torch.cat((k_sum.unsqueeze(2), inside[..., -1, :]), dim=2).cumsum(dim=2)
    running = (inside + before[:, :, :-1, None]).flatten(2, 3)[:, :, :seq]
    return (q * running).sum(dim=-1, keepdim=True), before[:, :, -1]


def checked_state(state: State | None, q: Tensor, v: Tensor, form: str) -> State:
    """Return `state`, or if it is None zeros, the state before the first token. Raise an error if
    it does not fit q [B, H, S, D], v [B, H, S, Dv] and the form.
    """
    batch, heads, _, head_dim = q.shape
    # the form "cosine" has the constant feature 1
    features = head_dim + 1 if form == "cosine" else head_dim
    shapes = [(batch, heads, features, v.shape[-1]), (batch, heads, features), (batch,)]
    if state is None:
        dtype = torch.promote_types(q.dtype, torch.float32)
        kv_sum, k_sum = (q.new_zeros(shape, dtype=dtype) for shape in shapes[:2])
        return State(kv_sum, k_sum, count=q.new_zeros(batch, dtype=torch.int64))
    if [tuple(t.shape) for t in state] != shapes:
        rule = (
            "must come from a call with the same batch, heads, head sizes and form, so its tensors "
            f"must have the shapes {shapes}"
        )
        raise RopeError("state", rule, [tuple(t.shape) for t in state])
    return state


def divide(numerator: Tensor, denominator: Tensor, eps: float) -> Tensor:
    """Return numerator / denominator, or 0 where the absolute value of the denominator is at most
    `eps`, as for queries without keys.
    """
    defined = denominator.abs() > eps
    return torch.where(defined, numerator / torch.where(defined, denominator, 1.0), 0.0)


def attend(
    features: Features, v: Tensor, state: State, causal: bool, chunk: int = CHUNK, eps: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (out, kv_sum, k_sum): the output [B, H, S, Dv], and the sums of `state` with these
    tokens added.

    chunk  if causal, tokens in a chunk; scores are formed only between tokens of the same chunk
    eps    the output is 0 where the absolute value of the denominator is at most this
    """
    # q and k for the numerator, the other two for the denominator
    q, k, q_plain, k_plain = features
    v, kv_sum, k_sum = v.to(k.dtype), state.kv_sum, state.k_sum
    if causal:
        numerator, kv_sum = causal_sums(q, k, v, kv_sum, chunk)
        denominator, k_sum = causal_denominators(q_plain, k_plain, k_sum, chunk)
    else:
        new_kv_sum, new_k_sum = key_sums(features, v)
        kv_sum, k_sum = kv_sum + new_kv_sum, k_sum + new_k_sum
        numerator, denominator = q @ kv_sum, q_plain @ k_sum.unsqueeze(-1)
    return divide(numerator, denominator, eps), kv_sum, k_sum
