"""Encodings at the score door: a number for each head and distance is added to the scores."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.encodings.base import Encoding, Sizes, distances
from ropewalk.errors import choice


def alibi_slopes(num_heads: int) -> Tensor:
    """2^(-8h/n) for h = 1 ... n; for other counts the nearest power of two, filled up from twice that power."""
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    between = [2 ** (-4 * (h + 1) / power) for h in range(0, 2 * power, 2)]
    return torch.tensor((slopes + between)[:num_heads], dtype=torch.float64)


class Alibi(Encoding):
    """A penalty of slope_h * |distance|, different for every head; nothing is trained."""

    door: ClassVar[str] = "scores"
    linear: ClassVar[bool] = False

    def bias(self, q: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        slopes = alibi_slopes(self.sizes.num_heads).to(q.device).view(-1, 1, 1)
        return (-slopes * distances(q_positions, k_positions).abs()).float()


def t5_bucket(distance: Tensor, buckets: int, farthest: int, bidirectional: bool) -> Tensor:
    """The bucket of query - key: half of them exact, the rest logarithmic up to `farthest`.

    Bidirectional: later keys have half of the buckets to themselves. Causal: they share bucket 0.
    """
    bucket = torch.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        bucket = torch.where(distance < 0, buckets, 0)
        distance = distance.abs()
    else:
        distance = distance.clamp(min=0)
    exact = buckets // 2
    growth = (distance.clamp(min=1).float() / exact).log() / math.log(farthest / exact)
    far = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
    return bucket + torch.where(distance < exact, distance, far)


class T5Bias(Encoding):
    """A trained number for each head and bucket of distances."""

    door: ClassVar[str] = "scores"
    linear: ClassVar[bool] = False

    def __init__(self, sizes: Sizes, buckets: int = 32, farthest: int = 128, bidirectional: bool = True) -> None:
        super().__init__(sizes)
        self.buckets, self.farthest, self.bidirectional = buckets, farthest, bidirectional
        self.table = nn.Parameter(torch.randn(buckets, sizes.num_heads) * 0.02)

    def bias(self, q: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        bucket = t5_bucket(distances(q_positions, k_positions), self.buckets, self.farthest, self.bidirectional)
        return self.table[bucket.squeeze(1) if bucket.ndim == 4 else bucket].movedim(-1, -3)


class T5CausalBias(T5Bias):
    """T5's buckets as its decoder has them: all of them look back."""

    causal_only: ClassVar[bool] = True

    def __init__(self, sizes: Sizes, buckets: int = 32, farthest: int = 128) -> None:
        super().__init__(sizes, buckets, farthest, bidirectional=False)


class Kerple(Encoding):
    """KERPLE: -r1 log(1 + r2 |distance|) or -r1 |distance|^r2; two trained positive numbers a head, the power at most 2."""

    door: ClassVar[str] = "scores"
    linear: ClassVar[bool] = False

    def __init__(self, sizes: Sizes, form: str = "log") -> None:
        super().__init__(sizes)
        self.form = choice("form", form, ("log", "power"))
        # softplus and sigmoid keep the kernels conditionally positive definite whatever training does
        self.raw_scale = nn.Parameter(torch.zeros(sizes.num_heads))
        self.raw_shape = nn.Parameter(torch.zeros(sizes.num_heads))

    def bias(self, q: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        distance = distances(q_positions, k_positions).abs().float()
        scale = F.softplus(self.raw_scale).float().view(-1, 1, 1)
        if self.form == "log":
            return -scale * torch.log1p(F.softplus(self.raw_shape).float().view(-1, 1, 1) * distance)
        # log of at least 1 keeps the gradient finite at distance 0, where the power is 0 by itself
        power = torch.exp(2 * torch.sigmoid(self.raw_shape).float().view(-1, 1, 1) * distance.clamp(min=1).log())
        return -scale * torch.where(distance > 0, power, 0.0)


class KerplePower(Kerple):
    """KERPLE's power form."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes, "power")


class Fire(Encoding):
    """FIRE: a small trained network of log(c d + 1) / log(c max(L, i) + 1): distances as a share of what is seen."""

    door: ClassVar[str] = "scores"
    relative: ClassVar[bool] = False  # the share depends on the query's own position
    causal_only: ClassVar[bool] = True
    linear: ClassVar[bool] = False

    def __init__(self, sizes: Sizes, width: int = 32) -> None:
        super().__init__(sizes)
        self.hidden, self.out = nn.Linear(1, width), nn.Linear(width, sizes.num_heads)
        self.raw_rate = nn.Parameter(torch.zeros(()))
        self.raw_threshold = nn.Parameter(torch.zeros(()))

    def bias(self, q: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        distance = distances(q_positions, k_positions).clamp(min=0).float()
        rate = F.softplus(self.raw_rate).float()
        threshold = self.sizes.length * torch.sigmoid(self.raw_threshold).float()
        seen = torch.maximum(q_positions.float(), threshold).unsqueeze(-1)  # [Sq, 1] or [B, Sq, 1]
        seen = seen if seen.ndim == 2 else seen.unsqueeze(1)
        share = torch.log1p(rate * distance) / torch.log1p(rate * seen).clamp(min=1e-6)
        found = self.out(self.hidden(share.unsqueeze(-1).to(self.hidden.weight.dtype)).relu()).movedim(-1, -3)
        return found if found.ndim == 3 else found.squeeze(1)


class RelativeBias(Encoding):
    """A trained number for each head and each distance up to `length`; farther ones share the last."""

    door: ClassVar[str] = "scores"
    linear: ClassVar[bool] = False

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.table = nn.Parameter(torch.randn(sizes.num_heads, 2 * sizes.length - 1) * 0.02)

    def bias(self, q: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        most = self.sizes.length - 1
        place = distances(q_positions, k_positions).clamp(-most, most) + most
        found = self.table[:, place]  # [H, (B, 1,) Sq, Sk]
        return found if place.ndim == 2 else found.squeeze(2).movedim(0, 1)


class RelativeVectors(Encoding):
    """NEZHA: sinusoidal vectors of the clipped distance, met by the query and mixed into the values; nothing is trained."""

    door: ClassVar[str] = "scores"
    linear: ClassVar[bool] = False

    def __init__(self, sizes: Sizes, farthest: int = 64) -> None:
        super().__init__(sizes)
        self.farthest = farthest

    def _vectors(self, q_positions: Tensor, k_positions: Tensor, dtype: torch.dtype) -> Tensor:
        """[Sq, Sk, head_dim], or [B, Sq, Sk, head_dim]."""
        place = distances(q_positions, k_positions)
        place = (place.squeeze(1) if place.ndim == 4 else place).clamp(-self.farthest, self.farthest) + self.farthest
        size = self.sizes.head_dim
        radians = 10_000.0 ** (-torch.arange(0, size, 2, device=place.device, dtype=torch.float64) / size)
        angles = torch.arange(2 * self.farthest + 1, device=place.device).unsqueeze(-1) * radians
        table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[:, :size]
        return table.to(dtype)[place]

    def bias(self, q: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        vectors = self._vectors(q_positions, k_positions, q.dtype)
        form = "bhid,ijd->bhij" if vectors.ndim == 3 else "bhid,bijd->bhij"
        return torch.einsum(form, q, vectors) / math.sqrt(self.sizes.head_dim)

    def value_bias(self, weights: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        vectors = self._vectors(q_positions, k_positions, weights.dtype)
        return torch.einsum("bhij,ijd->bhid" if vectors.ndim == 3 else "bhij,bijd->bhid", weights, vectors)
