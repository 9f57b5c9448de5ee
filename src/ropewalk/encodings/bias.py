"""Encodings that add a bias to the scores, which depends on the positions of query and key.

Words of this module:
  sizes        a `Sizes`: num_heads, head_dim, and `length`, the longest trained sequence
  entry        where positions enter attention: "scores" is the method `bias`
  relative     scores depend only on the difference of positions
  linear       works with linear attention, which has no scores
  causal_only  defined only if no query attends to a later key
  distances    query position - key position, [Sq, Sk], or [B, 1, Sq, Sk] where positions are [B, S]
  q_positions, k_positions  those of the queries and of the keys, [S] or [B, S]
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.encodings.base import Encoding, Sizes, distances
from ropewalk.errors import choice, integer


class ScoreBias(Encoding):
    """Base class of the encodings that override `bias`."""

    entry: ClassVar[str] = "scores"
    linear: ClassVar[bool] = False


def alibi_slopes(num_heads: int) -> Tensor:
    """Return ALiBi's slopes 2^(-8h/n) of heads h = 1 ... n, [n] in float64.

    If n is not a power of two, the slopes are those of the next lower power, then every second one
    of the next higher power.
    """
    power = 1 << (num_heads.bit_length() - 1)  # the largest power of two up to num_heads
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    # of the slopes for 2 * power heads
    every_second = [2 ** (-4 * (h + 1) / power) for h in range(0, 2 * power, 2)]
    return torch.tensor((slopes + every_second)[:num_heads], dtype=torch.float64)


class Alibi(ScoreBias):
    """ALiBi: subtracts slope_h * |distance| from the scores of head h; the slopes are fixed."""

    def bias(self, q: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return minus slope times |distance|, [H, Sq, Sk] or [B, H, Sq, Sk]."""
        slopes = alibi_slopes(self.sizes.num_heads).to(q.device).view(-1, 1, 1)
        return (-slopes * distances(q_positions, k_positions).abs()).float()


def t5_bucket(distance: Tensor, buckets: int, farthest: int, bidirectional: bool) -> Tensor:
    """Return T5's bucket of the distance query - key: integers from 0 to `buckets` - 1, in the
    shape of `distance`.

    Bidirectional: later keys have one half of the buckets, all others the other half. Causal: later
    keys are in bucket 0, as distance 0 is, and all buckets are for earlier keys. Of the buckets of
    one direction the first half hold one distance each; the others grow logarithmically up to
    `farthest`, and the last also holds all larger distances.
    """
    bucket = torch.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        bucket = torch.where(distance < 0, buckets, 0)
        distance = distance.abs()
    else:
        distance = distance.clamp(min=0)
    num_exact = buckets // 2
    # the logarithm of the distance, scaled to 0 at num_exact and 1 at `farthest`
    growth = (distance.clamp(min=1).float() / num_exact).log() / math.log(farthest / num_exact)
    log_bucket = (num_exact + (growth * (buckets - num_exact)).long()).clamp(max=buckets - 1)
    return bucket + torch.where(distance < num_exact, distance, log_bucket)


class T5Bias(ScoreBias):
    """T5: a learned bias for each head and bucket of distances; `buckets`, `farthest` and
    `bidirectional` are those of `t5_bucket`.
    """

    def __init__(
        self, sizes: Sizes, buckets: int = 32, farthest: int = 128, bidirectional: bool = True
    ) -> None:
        super().__init__(sizes)
        # at least two for each direction
        integer("buckets", buckets, low=4 if bidirectional else 2)
        # larger than every distance that has a bucket of its own
        integer("farthest", farthest, low=buckets // (4 if bidirectional else 2) + 1)
        self.buckets, self.farthest, self.bidirectional = buckets, farthest, bidirectional
        self.table = nn.Parameter(torch.randn(buckets, sizes.num_heads) * 0.02)

    def bias(self, q: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return the learned bias of each distance's bucket, [H, Sq, Sk] or [B, H, Sq, Sk]."""
        bucket = t5_bucket(
            distances(q_positions, k_positions), self.buckets, self.farthest, self.bidirectional
        )
        return self.table[bucket.squeeze(1) if bucket.ndim == 4 else bucket].movedim(-1, -3)


class T5CausalBias(T5Bias):
    """T5's decoder bias: the causal form of `t5_bucket`, in which all buckets are for earlier
    keys.
    """

    causal_only: ClassVar[bool] = True

    def __init__(self, sizes: Sizes, buckets: int = 32, farthest: int = 128) -> None:
        super().__init__(sizes, buckets, farthest, bidirectional=False)


class Kerple(ScoreBias):
    """KERPLE: -r1 log(1 + r2 |distance|), or in the form "power" -r1 |distance|^r2 with r2 <= 2; r1
    and r2 are positive and learned for each head.
    """

    def __init__(self, sizes: Sizes, form: str = "log") -> None:
        super().__init__(sizes)
        self.form = choice("form", form, ("log", "power"))
        # r1 is the softplus of raw_scale; r2 is the softplus of raw_shape, or in the form "power"
        # twice its sigmoid. These ranges keep the kernels conditionally positive definite during
        # training
        self.raw_scale = nn.Parameter(torch.zeros(sizes.num_heads))
        self.raw_shape = nn.Parameter(torch.zeros(sizes.num_heads))

    def bias(self, q: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return the bias of each head, [H, Sq, Sk] or [B, H, Sq, Sk]: minus a logarithm or a power
        of the distance.
        """
        distance = distances(q_positions, k_positions).abs().float()
        scale = F.softplus(self.raw_scale).float().view(-1, 1, 1)
        if self.form == "log":
            return -scale * torch.log1p(
                F.softplus(self.raw_shape).float().view(-1, 1, 1) * distance
            )
        # the clamp keeps the gradient finite at distance 0, where the power is replaced by 0
        power = torch.exp(
            2 * torch.sigmoid(self.raw_shape).float().view(-1, 1, 1) * distance.clamp(min=1).log()
        )
        return -scale * torch.where(distance > 0, power, 0.0)


class KerplePower(Kerple):
    """KERPLE's power form."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes, "power")


class Fire(ScoreBias):
    """FIRE: the bias is an MLP of log(c d + 1) / log(c max(L, i) + 1), for query position i and
    distance d; c and the threshold L are learned. The MLP has `width` hidden units.
    """

    relative: ClassVar[bool] = False  # the ratio depends on the query's own position
    causal_only: ClassVar[bool] = True

    def __init__(self, sizes: Sizes, width: int = 32) -> None:
        super().__init__(sizes)
        integer("width", width, low=1)
        self.hidden, self.out = nn.Linear(1, width), nn.Linear(width, sizes.num_heads)
        self.raw_rate = nn.Parameter(torch.zeros(()))  # its softplus is FIRE's c
        # the sigmoid of this, times the trained length, is FIRE's threshold L
        self.raw_threshold = nn.Parameter(torch.zeros(()))

    def bias(self, q: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return the bias of each head, [H, Sq, Sk] or [B, H, Sq, Sk]: the MLP of the ratio
        log(rate distance + 1) / log(rate max(threshold, query position) + 1).
        """
        distance = distances(q_positions, k_positions).clamp(min=0).float()
        rate = F.softplus(self.raw_rate).float()
        threshold = self.sizes.length * torch.sigmoid(self.raw_threshold).float()
        # [Sq, 1] or [B, Sq, 1]
        longest = torch.maximum(q_positions.float(), threshold).unsqueeze(-1)
        longest = longest if longest.ndim == 2 else longest.unsqueeze(1)
        # the clamp avoids 0 / 0, as at position 0 with a threshold that has become 0
        ratio = torch.log1p(rate * distance) / torch.log1p(rate * longest).clamp(min=1e-6)
        # the network has one number in, the ratio, and one number out for each head
        bias = self.out(
            self.hidden(ratio.unsqueeze(-1).to(self.hidden.weight.dtype)).relu()
        ).movedim(-1, -3)
        return bias if bias.ndim == 3 else bias.squeeze(1)


class RelativeBias(ScoreBias):
    """A learned bias for each head and each signed distance query - key, from -(length - 1) to
    length - 1; larger distances use the last entry of their side.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.table = nn.Parameter(torch.randn(sizes.num_heads, 2 * sizes.length - 1) * 0.02)

    def bias(self, q: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return the learned bias of each head and distance, [H, Sq, Sk] or [B, H, Sq, Sk]."""
        max_distance = self.sizes.length - 1
        index = (
            distances(q_positions, k_positions).clamp(-max_distance, max_distance) + max_distance
        )
        bias = self.table[:, index]  # [H, (B, 1,) Sq, Sk]
        return bias if index.ndim == 2 else bias.squeeze(2).movedim(0, 1)


class RelativeVectors(ScoreBias):
    """NEZHA: fixed sinusoidal vectors of the distance key - query, clipped to -farthest ...
    farthest, multiplied with the query and added to the values.
    """

    def __init__(self, sizes: Sizes, farthest: int = 64) -> None:
        super().__init__(sizes)
        self.farthest = integer("farthest", farthest, low=1, high=1 << 20)

    def _vectors(self, q_positions: Tensor, k_positions: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the vector of every distance, [Sq, Sk, head_dim] or [B, Sq, Sk, head_dim]."""
        # key - query, the sign of the paper and of its authors' code
        distance = -distances(q_positions, k_positions)
        distance = distance.squeeze(1) if distance.ndim == 4 else distance
        # the angle is index * frequency with index = distance + farthest, as in the authors' code.
        # The paper does not add `farthest`, which turns each pair by a fixed angle, the same for
        # all distances
        index = distance.clamp(-self.farthest, self.farthest) + self.farthest
        head_dim = self.sizes.head_dim
        frequencies = 10_000.0 ** (
            -torch.arange(0, head_dim, 2, device=index.device, dtype=torch.float64) / head_dim
        )
        angles = (
            torch.arange(2 * self.farthest + 1, device=index.device).unsqueeze(-1) * frequencies
        )
        # an odd head_dim has a sine at its end without its cosine
        table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[:, :head_dim]
        return table.to(dtype)[index]

    def bias(self, q: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return the products of each query with the vectors of its distances, scaled as scores
        are, [B, H, Sq, Sk].
        """
        vectors = self._vectors(q_positions, k_positions, q.dtype)
        equation = "bhid,ijd->bhij" if vectors.ndim == 3 else "bhid,bijd->bhij"
        return torch.einsum(equation, q, vectors) / math.sqrt(self.sizes.head_dim)

    def value_bias(self, weights: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return the sum of the vectors of each query's distances, weighted by its attention
        weights, [B, H, Sq, head_dim].
        """
        vectors = self._vectors(q_positions, k_positions, weights.dtype)
        return torch.einsum(
            "bhij,ijd->bhid" if vectors.ndim == 3 else "bhij,bijd->bhid", weights, vectors
        )
