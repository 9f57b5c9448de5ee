"""PaTH attention: every score applies the reflections of the tokens between its key and its query.

    score_ij = k_j^T H_{j+1} ... H_i q_i,   H_t = I - beta_t w_t w_t^T,  0 <= beta_t <= 2

PaTH replaces RoPE. A product of matrices H_t is I - W^T M W with a triangular M, so a chunk of
tokens costs a few matrix products.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.attention.row_order import RowOrder, real_tokens, visible_keys
from ropewalk.attention.short_conv import ShortConv
from ropewalk.attention.token_driven import TokenDrivenAttention
from ropewalk.errors import integer


def path_scores(q: Tensor, k: Tensor, w: Tensor, beta: Tensor) -> Tensor:
    """Return the scores [.., S, S] by the definition, one token after the other; 0 above the
    diagonal.

    q, k, w [.., S, D] with w of length 1, beta [.., S]; S is at least 1.
    """
    rows, count = [], q.shape[-2]
    keys = k[..., :0, :]  # all keys so far, as token t sees them
    for t in range(count):
        keys = torch.cat(
            (reflected(keys, w[..., t, :], beta[..., t]), k[..., t : t + 1, :]), dim=-2
        )
        scores = (keys @ q[..., t, :].unsqueeze(-1)).squeeze(-1)
        rows.append(F.pad(scores, (0, count - t - 1)))
    return torch.stack(rows, dim=-2)


def reflected(keys: Tensor, w: Tensor, beta: Tensor) -> Tensor:
    """Return earlier keys [.., N, D] as the next token sees them: k^T H for its w [.., D] and beta
    [..].
    """
    return keys - beta[..., None, None] * (keys @ w.unsqueeze(-1)) * w.unsqueeze(-2)


def path_scores_in_chunks(
    q: Tensor, k: Tensor, w: Tensor, beta: Tensor, chunk: int = 64, earlier: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the scores [.., S, E + S] and all keys [.., E + S, D], each reflected by all tokens
    after it so far, for the next call.

    q, k, w and beta are as in `path_scores`; `earlier` are the E keys [.., E, D] that an earlier
    call returned. Reflections are multiplied within chunks of `chunk` tokens.
    """
    count, rows = q.shape[-2], []
    keys = k[..., :0, :] if earlier is None else earlier
    total = keys.shape[-2] + count
    # `keys` holds the earlier keys times all reflections up to this chunk; within the chunk, the
    # product of its reflections H_{j+1} ... H_i is I - W^T M W, with the rows of W that lie between
    # j and i
    for start in range(0, count, integer("chunk", chunk, low=1)):
        tokens = slice(start, start + chunk)
        q_new, k_new, w_new = q[..., tokens, :], k[..., tokens, :], w[..., tokens, :]
        middle = _middle(w_new, beta[..., tokens])
        w_after = (k_new @ w_new.mT).triu(1)  # each key meets the reflections after it
        w_until = (w_new @ q_new.mT).triu()  # each query meets those up to itself
        inside = (k_new @ q_new.mT - w_after @ middle @ w_until).triu()
        # each query times the reflections of this chunk up to it, for its scores with earlier keys
        reflected_q = q_new - (w_new.mT @ (middle @ w_until)).mT
        scores = torch.cat((reflected_q @ keys.mT, inside.mT), dim=-1)
        rows.append(F.pad(scores, (0, total - scores.shape[-1])))
        keys = torch.cat(
            (keys - keys @ w_new.mT @ middle @ w_new, k_new - w_after @ middle @ w_new), dim=-2
        )
    return torch.cat(rows, dim=-2), keys


def _middle(w: Tensor, beta: Tensor) -> Tensor:
    """Return M of H_1 ... H_n = I - W^T M W: (I + B U)^-1 B, U the part of W W^T above the diagonal
    and B = diag(beta).
    """
    weights = beta.unsqueeze(-1)
    triangle = torch.eye(w.shape[-2], dtype=w.dtype, device=w.device) + weights * (w @ w.mT).triu(1)
    return torch.linalg.solve_triangular(triangle, torch.diag_embed(beta), upper=True)


class PathState(NamedTuple):
    """What later tokens depend on.

    tokens  the last two inputs of the convolution [B, 2, Hk D]
    k, v    the keys, each reflected by every token after it so far, and the values, [B, Hk, N, D]
    real    [B, N], False for the keys of padding; None: no key is padding
    """

    tokens: Tensor
    k: Tensor
    v: Tensor
    real: Tensor | None = None


class PathAttention(TokenDrivenAttention[PathState]):
    """Causal softmax attention with PaTH instead of RoPE, for small models: all scores are held in
    memory.

    num_kv_heads < num_heads shares keys, values and reflections between heads (GQA). `rank` is the
    inner width of the projection that makes the directions w of the reflections; scores are
    computed for `chunk` tokens at a time.
    """

    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        num_kv_heads: int | None = None,
        rank: int = 32,
        chunk: int = 64,
    ) -> None:
        """Create the projections; with fewer `num_kv_heads`, heads share keys, values and
        reflections. Scores are computed for `chunk` tokens at a time.
        """
        super().__init__(model_dim, num_heads, num_kv_heads, head_dim)
        self.chunk, width = integer("chunk", chunk, low=1), self.num_kv_heads * self.head_dim
        # the directions w of the reflections, made by two projections of inner width `rank`, and
        # their strengths beta
        self.w_proj = nn.Sequential(
            nn.Linear(model_dim, rank, bias=False), nn.Linear(rank, width, bias=False)
        )
        self.w_conv = ShortConv(width, 3)  # over the last three tokens
        self.beta_proj = nn.Linear(model_dim, self.num_kv_heads)

    def _attend(
        self,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        order: RowOrder | None,
        state: PathState | None,
    ) -> tuple[Tensor, PathState]:
        """Return the output of every head [B, H, S, D], and the state after the last token.

        x        the tokens [B, S, model_dim], in the order of `order`
        q, k, v  their queries [B, H, S, D], keys and values [B, Hk, S, D]
        order    how the tokens were sorted by document, and which are padding; None: not sorted, no
                 padding
        state    what an earlier call returned; None: x starts the sequence

        The keys in the state are reflected already by every token after them, so a later token need
        not do it again; its `real` tells which of them are not padding.
        """
        w, tokens = self.w_conv(self.w_proj(x), None if state is None else state.tokens, order)
        w = F.normalize(F.silu(w).unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2), dim=-1)
        beta = 2 * self.beta_proj(x).sigmoid().transpose(1, 2)
        if order is not None and order.real is not None:
            beta = beta * order.real.unsqueeze(1)  # padding reflects nothing
        scores, keys = self._scores(q, k, w, beta, None if state is None else state.k)
        values = v if state is None else torch.cat((state.v, v), dim=-2)
        real = real_tokens(
            None if state is None else state.real, keys.shape[-2] - x.shape[1], order, x
        )
        visible = visible_keys(scores.shape[-2], scores.shape[-1], order, real, x.device)
        weights = (
            (scores / math.sqrt(self.head_dim)).masked_fill(~visible, float("-inf")).softmax(dim=-1)
        )
        return weights.to(values.dtype) @ self._for_every_head(values), PathState(
            tokens, keys, values, real
        )

    def _scores(
        self, q: Tensor, k: Tensor, w: Tensor, beta: Tensor, earlier: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the scores [B, H, S, N] and all keys [B, Hk, N, D], in float32 or float64.

        q is [B, H, S, D], k and w are [B, Hk, S, D] and beta is [B, Hk, S]; `earlier` are the keys
        that an earlier call returned, or None. Products of many reflections lose too much in 16
        bits, also under autocast.
        """
        dtype = torch.promote_types(q.dtype, torch.float32)
        q, k, w, beta = (each.to(dtype) for each in (q, k, w, beta))
        with torch.autocast(q.device.type, enabled=False):
            # the heads of a group meet the same keys and reflections
            q = q.unflatten(1, (self.num_kv_heads, -1))
            k, w, beta = (each.unsqueeze(2) for each in (k, w, beta))
            scores, keys = path_scores_in_chunks(
                q, k, w, beta, self.chunk, None if earlier is None else earlier.unsqueeze(2)
            )
        return scores.flatten(1, 2), keys.squeeze(2)
