"""VJepa2: the position encoding of V-JEPA-2, reproduced as its checkpoints were trained. It is not
a rotation.

Class attributes (of `Encoding`): `entry` says where positions enter attention, "qk" at q and k;
`relative` whether scores depend only on the difference of positions.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ropewalk.encodings.base import Encoding, Sizes
from ropewalk.errors import RopeError, number
from ropewalk.kernels.request import table_dtype


class VJepa2(Encoding):
    """V-JEPA-2: three equal slices of each head for time, row and column; positions [3, B, S], or
    the same on all axes.

    Its code pairs dims (2i, 2i + 1) but repeats cos and sin as if the pairs were (i, i + d/2), so
    the two dims of a pair get the cos and sin of different angles. The result changes lengths, has
    no inverse by the opposite angle, and scores are not relative. Use it for V-JEPA-2 checkpoints
    alone; `rope_3d` is the rotation that was meant. A cache cannot move keys that it stores
    encoded.
    """

    entry: ClassVar[str] = "qk"
    relative: ClassVar[bool] = False

    def __init__(self, sizes: Sizes, theta: float = 10_000.0) -> None:
        super().__init__(sizes)
        #: how many dims each axis has; dims beyond the three slices are not changed
        self.slice_dim = 2 * (sizes.head_dim // 3 // 2)
        if not self.slice_dim:
            raise RopeError(
                "head_dim", "must be at least 6, two dimensions for each axis", sizes.head_dim
            )
        self.theta = number("theta", theta, above=0)

    def rotate(
        self, x: Tensor, positions: Tensor, *, key: bool, length: int | Tensor | None = None
    ) -> Tensor:
        """Return x [B, H, S, D] with one slice per axis encoded by `_encoded`; the dims beyond the
        three slices stay.

        positions  [3, B, S], or [B, S] or [S]: the same on all axes. q and k are encoded alike,
                   whatever the length
        """
        if positions.ndim < 3:
            positions = positions.expand(3, *positions.shape)
        *slices, unchanged = x.split(
            [self.slice_dim] * 3 + [x.shape[-1] - 3 * self.slice_dim], dim=-1
        )
        encoded = [
            self._encoded(part, on_axis) for part, on_axis in zip(slices, positions, strict=True)
        ]
        return torch.cat([*encoded, unchanged], dim=-1)

    def why_not(self, what: str) -> str | None:
        # what: "linear" attention, or "rerotate", moving cached keys to other positions
        reason = "its encoding is no rotation and has no inverse; use KVCache(rotated=False)"
        return reason if what == "rerotate" else super().why_not(what)

    def _encoded(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return one slice x [B, H, S, slice_dim] as x cos + (x turned by a quarter turn) sin.

        positions  [S] or [B, S] on the axis of the slice

        As in V-JEPA-2, the quarter turn is that of pairs (2i, 2i + 1), while cos and sin repeat as
        for pairs (i, i + slice_dim / 2).
        """
        pairs = self.slice_dim // 2
        frequencies = self.theta ** (
            -torch.arange(pairs, dtype=torch.float64, device=x.device) / pairs
        )
        # [S, pairs] or [B, S, pairs], in radians
        angles = positions.to(torch.float64).unsqueeze(-1) * frequencies
        angles = torch.cat((angles, angles), dim=-1)
        angles = angles.unsqueeze(1) if angles.ndim == 3 else angles
        cos, sin = angles.cos().to(table_dtype(x)), angles.sin().to(table_dtype(x))
        quarter = torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
        return (x * cos + quarter * sin).to(x.dtype)
