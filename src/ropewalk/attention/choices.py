"""`Choices`: the options of a softmax attention layer, and the rules between them. An option that
has options of its own is a small frozen class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from ropewalk.attention.backends import ATTENTION_BACKENDS
from ropewalk.attention.lse import LSE_BACKENDS
from ropewalk.attention.remap import Remapping
from ropewalk.attention.remapped import check_remapping
from ropewalk.encodings import Encoding
from ropewalk.encodings.bias import RelativeVectors
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError, choice, flag, integer, number
from ropewalk.temperatures import Temperature


@dataclass(frozen=True)
class HeadNorm:
    """RMSNorm of every head of q and k, before the rotation."""

    eps: float = 1e-6


@dataclass(frozen=True)
class ProjectionBias:
    """Biases of the projections of q, k and v, and of the output."""

    qkv: bool = False
    out: bool = False


@dataclass(frozen=True)
class LearnedSinks:
    """Each head has one more score in its softmax, which is learned and belongs to no token, so
    that the weights add up to less than one (gpt-oss, DeepSeek-V4).
    """

    def check(self, encoding: Encoding) -> None:
        """Raise an error if attention with this encoding cannot have sinks."""
        if encoding.query_copies > 1:
            rule = "must be None with RoPE++, whose queries attend twice"
            raise RopeError("sinks", rule, type(encoding).__name__)


@dataclass(frozen=True)
class RotatedValues:
    """Values rotate by their positions like keys, and the output rotates back by the position of
    its query, so that what a token contributes depends on its distance too.

    shared  keys are also the values, and there is no v_proj (DeepSeek-V4, with num_kv_heads=1)
    """

    shared: bool = False

    def __post_init__(self) -> None:
        flag("shared", self.shared)

    def check(self, encoding: Encoding) -> None:
        """Raise an error unless the encoding can rotate values and undo it on the output."""
        if not (isinstance(encoding, Rotary) and encoding.only_rotates):
            rule = "needs an encoding that only rotates, such as 'rope'"
            raise RopeError("values", rule, type(encoding).__name__)
        spec = encoding.rope.spec
        # a magnitude is a factor on q and k, as of YaRN, unless the softmax scale has it instead;
        # a growth is a factor that depends on the position, as of xPos
        keeps_norms = spec.magnitude_on == "scale" or spec.magnitude() == 1
        if spec.needs_length or not keeps_norms or spec.has_growth:
            rule = (
                "needs frequencies that do not depend on the length, and no growth or magnitude on "
                "q and k, which would scale the values; use another scaling, or "
                "magnitude_on='scale' for a magnitude"
            )
            raise RopeError("values", rule, spec.scaling)


class FurtherChoices(TypedDict, total=False):
    """The options that most layers leave at their defaults; see `Choices`."""

    scale: float | None
    backend: str | None
    temperature: Temperature | None
    remapping: Remapping | None
    values: RotatedValues | None
    sinks: LearnedSinks | None


@dataclass(frozen=True)
class Choices:
    """The options of a softmax attention layer besides its sizes, its encoding and its projections.

    causal       a query attends to itself and to earlier tokens only
    window       how many keys a query attends to, up to and including its own (and as many from its
                 own on if not causal); padding and tokens of other documents count too
    dropout      the probability that an attention weight is dropped, in training
    scale        of the softmax; by default 1/sqrt(head_dim), times the spec's softmax factor
    backend      the attention kernel; by default chosen for each call
    temperature  multiplies each query by a factor that depends on its position; None: no factor
    remapping    replaces the distances by which RoPE scores far tokens; None: the true distances
    values       whether values rotate too; None: they do not
    sinks        a learned score of each head that belongs to no token; None: no such score
    """

    causal: bool = True
    window: int | None = None
    dropout: float = 0.0
    scale: float | None = None
    backend: str | None = None
    temperature: Temperature | None = None
    remapping: Remapping | None = None
    values: RotatedValues | None = None
    sinks: LearnedSinks | None = None

    def __post_init__(self) -> None:
        """Raise an error for a wrong window, dropout, scale, backend, values or sinks, and for
        values or sinks beside a remapping.
        """
        if self.window is not None:
            integer("window", self.window, low=1)
        number("dropout", self.dropout, low=0, high=1)
        if self.scale is not None:
            number("scale", self.scale, above=0)
        for name, kind in (("values", RotatedValues), ("sinks", LearnedSinks)):
            value = getattr(self, name)
            if not (value is None or isinstance(value, kind)):
                raise RopeError(name, f"must be {kind.__name__}() or None", value)
            if value is not None and self.remapping is not None:
                rule = "must be None with a remapping, which attends in pieces"
                raise RopeError(name, rule, value)
        if self.backend is not None:
            # sinks and remappings need the log-sum-exp of the scores
            needs_lse = self.sinks is not None or self.remapping is not None
            choice("backend", self.backend, LSE_BACKENDS if needs_lse else ATTENTION_BACKENDS)

    @classmethod
    def given(cls, owner: str, options: Mapping[str, Any], **more: Any) -> Choices:
        """Return the choices of a layer of class `owner`: the caller's further `options`, whose
        names are checked, and `more`, the options that are named parameters of the layer.
        """
        names = [field.name for field in fields(cls)]
        for name, value in options.items():
            if name not in names:
                rule = f"is not an option of {owner}; leave it out. Choices: {', '.join(names)}"
                raise RopeError(name, rule, value)
        return cls(**options, **more)

    def check(self, encoding: Encoding) -> None:
        """Raise an error if attention with this encoding cannot have these choices."""
        if encoding.causal_only and not self.causal:
            rule = "is defined for causal attention only; pass causal=True"
            raise RopeError("encoding", rule, type(encoding).__name__)
        for part in (self.values, self.sinks):
            if part is not None:
                part.check(encoding)
        check_remapping(self.remapping, encoding, self.causal)

    def softmax_scale(self, encoding: Encoding, head_dim: int) -> float:
        """Return the factor of the scores for heads of this size: `scale`, or 1/sqrt(head_dim)
        times the softmax factor of a rotary encoding's spec. Raise an error if the encoding needs
        1/sqrt(head_dim) and `scale` is another number.
        """
        if self.scale is None:
            factor = encoding.rope.spec.softmax_factor if isinstance(encoding, Rotary) else 1.0
            return factor / math.sqrt(head_dim)
        if isinstance(encoding, RelativeVectors) and self.scale != 1 / math.sqrt(head_dim):
            rule = "must be None for 'nezha', whose bias is scaled by 1 / sqrt(head_dim)"
            raise RopeError("scale", rule, self.scale)
        return float(self.scale)
