"""Encodings that rotate q and k: RoPE of any spec, on its own or combined with a score bias.

Words of this module:
  spec         a RopeSpec: head_dim, theta, and the scaling and the axes of the frequencies
  axial(n, m)  axes that rotate the first n pairs by the first position, the next m by the second
  entry        where positions enter attention: "qk" is the method `rotate`
  linear       works with linear attention, which has no scores
  causal_only  defined only if no query attends to a later key
  Sizes        num_heads, head_dim, and the longest trained sequence
  q_positions, k_positions  those of the queries and of the keys
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ropewalk import axes, frequencies
from ropewalk.encodings.base import Encoding, Sizes
from ropewalk.encodings.bias import Alibi, RelativeBias
from ropewalk.errors import RopeError
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec


class Rotary(Encoding):
    """RoPE: q and k are rotated by their positions, so their dot product depends only on the
    distance.
    """

    entry: ClassVar[str] = "qk"

    def __init__(self, sizes: Sizes, spec: RopeSpec | None = None) -> None:
        super().__init__(sizes)
        self.rope = Rope(spec if spec is not None else self.default_spec(sizes))

    def default_spec(self, sizes: Sizes) -> RopeSpec:
        """Return the spec to use if none is given."""
        return RopeSpec(head_dim=sizes.head_dim)

    @property
    def only_rotates(self) -> bool:
        """Whether the encoding is the rotation of `rope` and nothing else."""
        methods = ("embed", "rotate", "bias", "value_bias")
        return all(getattr(type(self), name) is getattr(Rotary, name) for name in methods)

    def rotate(
        self, x: Tensor, positions: Tensor, *, key: bool, length: int | Tensor | None = None
    ) -> Tensor:
        return self.rope.rotate(x, positions, key=key, length=length)


class XPosRotary(Rotary):
    """xPos: RoPE whose scores also decay with distance."""

    causal_only: ClassVar[bool] = True

    def default_spec(self, sizes: Sizes) -> RopeSpec:
        return RopeSpec(head_dim=sizes.head_dim, scaling=frequencies.XPos())


class LearnableRotary(Rotary):
    """RoPE with learned frequencies."""

    def default_spec(self, sizes: Sizes) -> RopeSpec:
        return RopeSpec(head_dim=sizes.head_dim, scaling=frequencies.Learnable())


class ImageRotary(Rotary):
    """RoPE over the row and the column of each patch of an image; positions [2, B, S]."""

    def default_spec(self, sizes: Sizes) -> RopeSpec:
        # rows get half of the pairs, rounded up. An axis of an image has few positions, so theta is
        # small: with a large one, most pairs would hardly rotate
        pairs = sizes.head_dim // 2
        return RopeSpec(
            head_dim=sizes.head_dim, axes=axes.axial(pairs - pairs // 2, pairs // 2), theta=100.0
        )


class VideoRotary(Rotary):
    """RoPE over the time, row and column of each patch of a video; positions [3, B, S]."""

    def default_spec(self, sizes: Sizes) -> RopeSpec:
        # rows and columns get a third of the pairs each, rounded down, and time gets the rest. An
        # axis has few positions, so theta is small: with a large one, most pairs would hardly
        # rotate
        third = sizes.head_dim // 2 // 3
        return RopeSpec(
            head_dim=sizes.head_dim,
            axes=axes.axial(sizes.head_dim // 2 - 2 * third, third, third),
            theta=100.0,
        )


class _RotaryWithBias(Rotary):
    """RoPE plus the score bias of another encoding, `bias_class`."""

    linear: ClassVar[bool] = False
    bias_class: ClassVar[type[Encoding]]

    def __init__(self, sizes: Sizes, spec: RopeSpec | None = None) -> None:
        super().__init__(sizes, spec)
        if self.rope.spec.num_axes > 1:
            raise RopeError(
                "spec", "must have one axis: the bias depends on one distance", self.rope.spec.axes
            )
        self.other = self.bias_class(sizes)

    def bias(self, q: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        return self.other.bias(q, q_positions, k_positions)


class RotaryAlibi(_RotaryWithBias):
    """RoPE + ALiBi."""

    bias_class = Alibi


class RotaryRelativeBias(_RotaryWithBias):
    """RoPE + a learned bias per distance."""

    bias_class = RelativeBias
