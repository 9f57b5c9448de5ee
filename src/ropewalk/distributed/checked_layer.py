"""Which attention layers ring attention can compute."""

from __future__ import annotations

from ropewalk.attention.softmax import SoftmaxAttention
from ropewalk.errors import RopeError


def check_layer(layer: SoftmaxAttention) -> None:
    """Raise an error if ring attention cannot compute what `layer` does."""
    # linear attention has a `forward` of its own; latent attention projects its keys and values up
    # in `_attend`
    if any(
        getattr(type(layer), name) is not getattr(SoftmaxAttention, name)
        for name in ("forward", "_attend")
    ):
        rule = (
            "must be a layer that attends as `Attention` does, for ring attention; run a layer of "
            "this class on one rank"
        )
        raise RopeError("layer", rule, type(layer).__name__)
    if layer.dropout and layer.training:
        raise RopeError(
            "dropout",
            "must be 0 in training with ring attention, as each rank would drop other weights; "
            "set it to 0, or apply dropout after attention",
            layer.dropout,
        )
    # what a layer may do beside attention over rotated keys: other positions for far keys, rotated
    # values, scores that take part in the softmax without a key
    options = {
        "remapping": layer.remapping,
        "values": layer.values,
        "sinks": layer.sinks is not None,
        "rotary_value": getattr(layer, "rotary_value", False),  # of a RoFormer
    }
    for name, value in options.items():
        if value:
            raise RopeError(
                name,
                "is not supported by ring attention; leave it out, or attend on one rank",
                value,
            )
