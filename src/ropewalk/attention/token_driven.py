"""The base of causal attention whose position encoding follows from the tokens: Selective RoPE and
PaTH.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from torch import Tensor, nn

from ropewalk.attention.head_sizes import head_sizes
from ropewalk.attention.row_order import RowOrder, row_order

State = TypeVar("State")


class TokenDrivenAttention(nn.Module, Generic[State]):
    """Causal attention between the projections of q, k, v and of the output; a subclass says in
    `_attend` how tokens attend.

    num_kv_heads < num_heads shares keys, values and the encoding between heads (GQA).
    """

    def __init__(
        self, model_dim: int, num_heads: int, num_kv_heads: int | None, head_dim: int | None
    ) -> None:
        """Create the projections; num_kv_heads None: as many as heads, head_dim None: model_dim /
        num_heads.
        """
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = head_sizes(
            model_dim, num_heads, num_kv_heads, head_dim
        )
        self.qkv_proj = nn.Linear(
            model_dim, (self.num_heads + 2 * self.num_kv_heads) * self.head_dim, bias=False
        )
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, model_dim, bias=False)

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        *,
        padding: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> tuple[Tensor, State | None]:
        """Return the output [B, S, model_dim] for x, and the state; pass the state to the next call
        to continue the sequence.

        padding    boolean [B, S], True for real tokens; padded queries give 0
        documents  integer [B, S], the document index of each token of packed rows; the call then
                   takes no state and returns None for it
        """
        # the encoding depends on the tokens before, so each row is sorted: documents one after the
        # other, padding last; a call with both documents and a state is refused
        order = row_order(x, padding, documents, state is not None)
        if not x.shape[1]:  # without tokens the state stays as it is
            return self.o_proj(x.new_zeros(x.shape[0], 0, self.o_proj.in_features)), state
        x = x if order is None else order.sorted(x)
        # [B, H + 2 Hk, S, D]
        heads = self.qkv_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q, k, v = heads.split((self.num_heads, self.num_kv_heads, self.num_kv_heads), dim=1)
        out, after = self._attend(x, q, k, v, order, state)
        out = self.o_proj(out.transpose(1, 2).flatten(-2))
        # `restored` puts tokens back in their places, and 0 where padding was
        return out if order is None else order.restored(
            out
        ), None if documents is not None else after

    def _attend(
        self,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        order: RowOrder | None,
        state: State | None,
    ) -> tuple[Tensor, State]:
        """Return the output of every head [B, H, S, D], and the state after the last token.

        x [B, S, model_dim], q [B, H, S, D] and k, v [B, Hk, S, D]. With an `order` their tokens are
        already sorted by it: by document, padding last.
        """
        raise NotImplementedError

    def _for_every_head(self, shared: Tensor) -> Tensor:
        """Return what the heads of a group share [B, Hk, ..], repeated for every head [B, H,
        ..].
        """
        groups = self.num_heads // self.num_kv_heads
        return shared if groups == 1 else shared.repeat_interleave(groups, dim=1)
