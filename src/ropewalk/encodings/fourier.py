"""FoPE: each pair is multiplied by cos and sin that are mixed over several frequencies. That is not
a rotation: the length of a pair changes.

Words of this module:
  kept            the pairs that complete a turn in training, or how many they are; they are the
                  first pairs, because frequencies fall from pair to pair
  mix             a matrix [kept, kept] that multiplies cos or sin of the kept pairs
  entry           where positions enter attention: "qk" is the method `rotate`
  relative        scores depend only on the difference of positions
  linear          works with linear attention
  Sizes           num_heads, head_dim, and `length`, the longest trained sequence
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.encodings.base import Encoding, Sizes
from ropewalk.errors import RopeError, number
from ropewalk.rope import Rope
from ropewalk.rotation import rotate_half
from ropewalk.spec import RopeSpec


class Fourier(Encoding):
    """FoPE: cos and sin of each pair that completes a turn in training are mixed over all such
    pairs; the other pairs do not depend on the position.

    A pair is kept if its frequency is at least 2 pi / `length`. cos(p omega) is multiplied by
    `cos_mix` and sin(p omega) by `sin_mix`, the identity plus a random matrix of standard deviation
    `gain` / sqrt(kept pairs), not trained unless `learnable`. The other pairs have cos 1 and sin 1,
    as in the authors' code. `per_head`: every head has its own two matrices; heads must then
    not share keys.
    """

    entry: ClassVar[str] = "qk"
    relative: ClassVar[bool] = False
    linear: ClassVar[bool] = False

    def __init__(
        self, sizes: Sizes, *, gain: float = 0.3, learnable: bool = False, per_head: bool = False
    ) -> None:
        """Create the two mixes: the identity plus noise of deviation `gain` / sqrt(kept pairs)."""
        super().__init__(sizes)
        number("gain", gain, low=0)
        spec = RopeSpec(head_dim=sizes.head_dim)
        # pairs that complete a turn in training are mixed; 1 - 1e-12 also admits a pair that
        # completes exactly one, although its frequency may be rounded down
        slowest = 2 * math.pi / sizes.length * (1 - 1e-12)
        self.kept = sum(radians >= slowest for radians in spec.ladder_frequencies().radians)
        self.per_head = per_head
        self.rope = Rope(spec)
        shape = (sizes.num_heads, self.kept, self.kept) if per_head else (self.kept, self.kept)
        noise = (gain / math.sqrt(max(1, self.kept)) * torch.randn(shape) for _ in range(2))
        mixes = [torch.eye(self.kept) + each for each in noise]
        self.cos_mix, self.sin_mix = (nn.Parameter(mix, requires_grad=learnable) for mix in mixes)

    def rotate(
        self, x: Tensor, positions: Tensor, *, key: bool, length: int | Tensor | None = None
    ) -> Tensor:
        """Return x cos + rotate_half(x) sin, where cos and sin of each kept pair are mixed over all
        kept pairs. Queries and keys are encoded alike, whatever the length.
        """
        if self.per_head and x.shape[1] != self.sizes.num_heads:
            rule = (
                f"must be {self.sizes.num_heads}, for keys too, with per_head=True; use "
                "per_head=False to share keys between heads"
            )
            raise RopeError("heads", rule, x.shape[1])
        dtype = torch.promote_types(x.dtype, torch.float32)
        tables = self.rope.cos_sin(positions, dtype)
        cos, sin = (
            self._mixed(t, mix) for t, mix in zip(tables, (self.cos_mix, self.sin_mix), strict=True)
        )
        wide = x.to(dtype)
        return (wide * cos + rotate_half(wide) * sin).to(x.dtype)

    def _mixed(self, table: Tensor, mix: Tensor) -> Tensor:
        """Return `table`, cos or sin [.., S, pairs], as [.., S, head_dim] in the half layout: times
        `mix` for the kept pairs, and 1 for the other pairs.
        """
        kept = table[..., : self.kept]
        if self.per_head or kept.ndim == 3:
            # an axis for the heads, if `mix` has one, or if tables differ from row to row
            kept = kept.unsqueeze(-3)
        pairs = F.pad(kept @ mix.to(table.dtype), (0, table.shape[-1] - self.kept), value=1.0)
        return torch.cat((pairs, pairs), dim=-1)

    def why_not(self, what: str) -> str | None:
        """Return why FoPE does not support `what`, "linear" or "rerotate" of `Encoding.why_not`, or
        None if it supports it.
        """
        reasons = {
            "linear": "linear attention rotates features, and FoPE is no rotation",
            "rerotate": (
                "FoPE is no rotation, so keys cannot be moved to other positions; compute them "
                "again"
            ),
        }
        return reasons.get(what)
