"""RoPE++: the imaginary part of RoPE's complex score as further heads.

Class attributes (of `Encoding`): `linear` says whether linear attention is possible, `query_copies`
how many query heads `rotate` makes of each one. The rotated slice of a head are the dims of its
pairs; `rotary_start` is the first of them.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ropewalk.encodings.rotary import Rotary
from ropewalk.kernels.rotation.definition import join_pairs, split_pairs


class RotaryPlus(Rotary):
    """RoPE++: every query head attends twice, once as in RoPE and once with its query turned back
    by a quarter turn; both use the same keys and values.

    The second score is the imaginary part of the complex product whose real part RoPE uses. Query
    heads become real 0, imaginary 0, real 1, ..., so heads that share keys stay neighbours, and the
    output projection is twice as wide.
    """

    linear: ClassVar[bool] = False
    query_copies: ClassVar[int] = 2

    def rotate(
        self, x: Tensor, positions: Tensor, *, key: bool, length: int | Tensor | None = None
    ) -> Tensor:
        """Return x rotated. Queries get twice the heads: each head is followed by its copy, turned
        back by a quarter turn.
        """
        if key:
            return super().rotate(x, positions, key=True, length=length)
        # [B, H, 2, S, D] -> [B, 2H, S, D]: real 0, imaginary 0, real 1, ...
        copies = torch.stack((x, self._quarter_turn_back(x)), dim=2).flatten(1, 2)
        return super().rotate(copies, positions, key=False, length=length)

    def _quarter_turn_back(self, x: Tensor) -> Tensor:
        """Return x with every rotated pair (a, b) replaced by (b, -a); dimensions outside the
        rotated slice stay.
        """
        spec = self.rope.spec
        start, width = spec.rotary_start, 2 * spec.pairs
        before, rotary_slice, after = x.split([start, width, x.shape[-1] - start - width], dim=-1)
        a, b = split_pairs(rotary_slice, spec.layout)
        return torch.cat((before, join_pairs(b, -a, spec.layout), after), dim=-1)

    def why_not(self, what: str) -> str | None:
        """Return why RoPE++ does not support `what`, such as "linear" attention, or None."""
        return (
            "each query head attends twice, which our linear attention does not support"
            if what == "linear"
            else None
        )
