"""A causal convolution over a few tokens, which the input-dependent encodings apply to what they compute from the tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ShortConv(nn.Module):
    """A depthwise causal convolution over the last `width` tokens; at first it passes every token on unchanged."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels, width))
        nn.init.ones_(self.weight[:, -1:])

    def forward(self, x: Tensor, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the result for x [B, S, channels], and the last tokens, to pass as `before` to the next call."""
        width = self.weight.shape[-1]
        if before is None:
            before = x.new_zeros(x.shape[0], width - 1, x.shape[-1])
        tokens = torch.cat((before, x), dim=1)
        windows = tokens.unfold(1, width, 1)  # [B, S, channels, width]
        return (windows * self.weight).sum(-1), tokens[:, tokens.shape[1] - (width - 1) :]
