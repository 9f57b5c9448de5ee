"""A causal convolution over a few tokens, which Selective RoPE and PaTH apply to what they compute
from the tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.attention.row_order import RowOrder


class ShortConv(nn.Module):
    """A depthwise causal convolution over the last `width` tokens; before training it passes every
    token on unchanged.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels, width))
        nn.init.ones_(self.weight[:, -1:])

    def forward(
        self, x: Tensor, before: Tensor | None = None, order: RowOrder | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the result for x [B, S, channels], and the last width - 1 real tokens (zeros in
        place of those that do not exist), to pass as `before` to the next call.

        With an `order` (a RowOrder: by document, padding last), x is sorted by it already, and a
        token does not see tokens of other documents. With documents, `before` is None.
        """
        earlier = self.weight.shape[-1] - 1
        if before is None:
            before = x.new_zeros(x.shape[0], earlier, x.shape[-1])
        tokens = torch.cat((before, x), dim=1)
        windows = tokens.unfold(1, earlier + 1, 1)  # [B, S, channels, width]
        if order is not None and order.documents is not None:
            same = F.pad(order.documents, (earlier, 0)).unfold(
                1, earlier + 1, 1
            ) == order.documents.unsqueeze(-1)
            # without `before`, the tokens ahead of the first are zeros, so they may count as any
            # document's
            windows = windows * same.unsqueeze(2)
        out = (windows * self.weight).sum(-1)
        if order is None or order.real is None:
            return out, tokens[:, tokens.shape[1] - earlier :]
        # sorted, the real tokens come first: the last (width - 1) of them are right before the
        # first padding
        last = order.real.sum(-1, keepdim=True) + torch.arange(earlier, device=x.device)
        return out, tokens.take_along_dim(last.unsqueeze(-1), dim=1)
