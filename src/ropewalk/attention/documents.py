"""Packed documents: tokens of a row with equal document indices are one document, whether or not
they are neighbours.

Linear attention forms scores only between tokens of the same chunk; earlier chunks are in sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.attention.linear_sums import Features, divide, in_chunks


def positions_in_documents(documents: Tensor, padding: Tensor | None) -> Tensor:
    """Return positions [B, S] that count the real tokens of each document from 0.

    documents  [B, S], the number of each token's document
    padding    boolean [B, S], True for real tokens; None: all are real. A padding token has the
               position of the last real token before it in its document, or 0 if there is none
    """
    # sort the tokens by document, count the real ones, and subtract the count at the start of each
    # document
    order = documents.argsort(dim=-1, stable=True)
    numbers = documents.gather(-1, order)
    real = torch.ones_like(order) if padding is None else padding.long().gather(-1, order)
    counted = real.cumsum(dim=-1)
    starts = torch.ones_like(numbers, dtype=torch.bool)
    starts[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
    # the count only grows, so the running maximum carries each document's value at its start to its
    # later tokens
    before_document = torch.where(starts, counted - real, 0).cummax(dim=-1).values
    # back in the order of the row
    return torch.empty_like(order).scatter(-1, order, (counted - before_document - 1).clamp(min=0))


def in_last_document(documents: Tensor, padding: Tensor | None) -> Tensor:
    """Return [B, S], True for the real tokens of the document that each row's last real token
    belongs to.

    padding  boolean [B, S], True for real tokens; None if all are
    """
    if not documents.shape[-1]:
        return torch.zeros_like(documents, dtype=torch.bool)
    index = torch.arange(documents.shape[-1], device=documents.device).expand_as(documents)
    # the index of each row's last real token; 0 if there is none
    last = (index if padding is None else index * padding).amax(dim=-1, keepdim=True)
    same = documents == documents.gather(-1, last)
    return same if padding is None else same & padding


def attend_in_documents(
    features: Features, v: Tensor, documents: Tensor, causal: bool, chunk: int, eps: float
) -> Tensor:
    """Return linear attention [B, H, S, Dv] in which a query attends only to its own document.

    features   of q and k for the numerator, and q_plain and k_plain for the denominator
    v          the values [B, H, S, Dv]
    documents  [B, S], the number of each token's document
    causal     whether a query attends only to tokens up to itself
    chunk      tokens in a chunk; scores are formed only between tokens of the same chunk
    eps        the result of a query is 0 if the absolute value of its denominator is at most this,
               as for a query without keys
    """
    # tokens of a document become neighbours and keep their order
    order = documents.argsort(dim=-1, stable=True)
    numbers = documents.gather(-1, order)
    # the order of Features: those of the numerator, then those of the denominator
    q, k, q_plain, k_plain, v = (
        t.take_along_dim(order[:, None, :, None], dim=-2)
        for t in (*features, v.to(features.k.dtype))
    )
    numerator = _sums(q, k, v, numbers, causal, chunk)
    denominator = _sums(q_plain, k_plain, torch.ones_like(v[..., :1]), numbers, causal, chunk)
    return divide(numerator, denominator, eps).take_along_dim(
        order.argsort(dim=-1)[:, None, :, None], dim=-2
    )


def _sums(q: Tensor, k: Tensor, v: Tensor, documents: Tensor, causal: bool, chunk: int) -> Tensor:
    """Return each query's sum of (q.k) v over its own document, up to itself if causal; the tokens
    of a document are adjacent.
    """
    earlier = _causal_sums(q, k, v, documents, chunk)
    if causal:
        return earlier
    later = _causal_sums(q.flip(-2), k.flip(-2), v.flip(-2), documents.flip(-1), chunk).flip(-2)
    # the second sum is over keys from the end of the row back to the query, in reversed order; both
    # sums include the query's own key
    return earlier + later - (q * k).sum(dim=-1, keepdim=True) * v


def _causal_sums(q: Tensor, k: Tensor, v: Tensor, documents: Tensor, chunk: int) -> Tensor:
    """Return the sum of (q_i.k_j) v_j over j <= i in the same document, for every i; tokens of a
    document are neighbours.

    Within a chunk all scores are formed. `state` is the sum of k_j v_j^T over the earlier chunks'
    tokens of the latest document.
    """
    seq = q.shape[-2]
    # N chunks of C tokens, [B, H, N, C, .]
    q, k, v = (in_chunks(t, chunk) for t in (q, k, v))
    # the tokens that fill the last chunk are zeros, so they may belong to any document
    numbers = in_chunks(documents.unsqueeze(-1), chunk).squeeze(-1)  # [B, N, C]
    same = (numbers.unsqueeze(-1) == numbers.unsqueeze(-2)).unsqueeze(1)
    inside = ((q @ k.mT).tril() * same) @ v
    # what each chunk's queries get from earlier chunks: only those of the document that goes on
    pasts, state = [], q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    for n in range(numbers.shape[1]):
        first, last = numbers[:, n, :1], numbers[:, n, -1:]
        of_state = numbers[:, n - 1, -1:] if n else first  # the document that `state` belongs to
        pasts.append((q[:, :, n] @ state) * (numbers[:, n] == of_state)[:, None, :, None])
        in_last = (numbers[:, n] == last)[:, None, :, None]
        # the state is kept if its document is also the chunk's last one, and dropped otherwise
        state = state * (last == of_state)[..., None, None] + (k[:, :, n] * in_last).mT @ v[:, :, n]
    # without tokens there is no chunk
    past = torch.stack(pasts, dim=2) if pasts else torch.zeros_like(inside)
    return (inside + past).flatten(2, 3)[:, :, :seq]
