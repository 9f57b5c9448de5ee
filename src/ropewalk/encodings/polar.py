"""PoPE: the magnitude of each channel comes from the content of the token, its angle from the
position.

`linear` (of `Encoding`) says whether linear attention is possible. A RopeSpec describes the
rotation of a head: `head_dim` dims, of which `rotated_dims` rotate in pairs.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.encodings.base import Sizes
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError
from ropewalk.kernels.rotation.definition import join_pairs
from ropewalk.spec import RopeSpec


class Polar(Rotary):
    """PoPE: every channel c of a head with d channels becomes a pair of length softplus(x_c) at the
    angle position * omega_c, omega_c = theta^(-c/d), so q and k are 2 d wide.

    The score of query i and key j is the sum of softplus(q_c) softplus(k_c) cos((j - i) omega_c +
    delta_c). delta is learned for each head and channel, within -2 pi ... 0: the authors' phase of
    the keys. Here it is subtracted from the angle of the queries, which gives the same score, also
    for keys that several heads share.
    """

    linear: ClassVar[bool] = False

    def __init__(self, sizes: Sizes, spec: RopeSpec | None = None) -> None:
        super().__init__(sizes, spec)
        used = self.rope.spec
        # every channel becomes a pair, and every pair rotates
        if (used.head_dim, used.rotated_dims) != (2 * sizes.head_dim,) * 2:
            rule = (
                f"must rotate all of {2 * sizes.head_dim} dimensions, twice the head: "
                f"RopeSpec({2 * sizes.head_dim})"
            )
            raise RopeError("spec", rule, [used.head_dim, used.rotated_dims])
        self.delta = nn.Parameter(torch.zeros(sizes.num_heads, sizes.head_dim))

    def default_spec(self, sizes: Sizes) -> RopeSpec:
        # d pairs: theta^(-2c / 2d) is PoPE's frequency of channel c
        return RopeSpec(head_dim=2 * sizes.head_dim)

    def rotate(
        self, x: Tensor, positions: Tensor, *, key: bool, length: int | Tensor | None = None
    ) -> Tensor:
        """Return x [B, H, S, d] as pairs of length softplus(x), rotated, [B, H, S, 2 d]; queries
        start at the learned angle -delta, keys at 0.
        """
        size = F.softplus(x.to(torch.promote_types(x.dtype, torch.float32)))
        if key:
            first, second = size, torch.zeros_like(size)
        else:
            delta = self.delta.to(size.dtype).clamp(-2 * math.pi, 0).unsqueeze(-2)  # [H, 1, d]
            first, second = size * delta.cos(), size * -delta.sin()
        pairs = join_pairs(first, second, self.rope.spec.layout)
        return self.rope.rotate(pairs, positions, key=key, length=length).to(x.dtype)

    def why_not(self, what: str) -> str | None:
        return "its features are twice as wide as the head" if what == "linear" else None
