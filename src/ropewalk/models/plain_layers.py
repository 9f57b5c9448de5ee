"""Which layers of a Decoder the captured decode step and the invariant forward support: those with
plain attention, a gated network and RMS norms. Importing this does not import Triton. A spec, a
RopeSpec, describes a rotation.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ropewalk.attention.linear import identity_rope
from ropewalk.encodings.rotary import Rotary
from ropewalk.kernels.norm_rotation.config import NormRotationConfig, pick_config, why_not_spec
from ropewalk.models.decoder_attention import PackedAttention
from ropewalk.models.experts import GatedNetwork
from ropewalk.spec import RopeSpec


def why_not_layer(layer: nn.Module) -> str | None:
    """Return why the captured decode step and the invariant forward do not support a layer, or None
    if they do.
    """
    attention, network = layer.self_attn, layer.mlp
    if type(attention) is not PackedAttention or type(network) is not GatedNetwork:
        return f"{type(attention).__name__} with {type(network).__name__} has no decode kernels"
    if network.activation not in ("silu", "swish"):
        return f"the gate kernel computes silu, not {network.activation}"
    if attention.head_dim % 2 or attention.head_dim > 256:
        return "head_dim must be even and at most 256"
    linears = (attention.qkv_proj, attention.o_proj, network.gate_up_proj, network.down_proj)
    if any(type(linear) is not nn.Linear for linear in linears):
        return "a projection is not a plain nn.Linear"
    if (reason := attention.why_not_head_norm()) is not None:
        return reason
    if any(
        part is not None for part in (attention.temperature, attention.remapping, attention.sinks)
    ):
        return "a temperature, a remapping or learned sinks have no decode kernel"
    encoding = attention.encoding
    # entry "none": the encoding adds no positions, and `plain_spec` has all angles 0
    if not (_is_plain_rotary(encoding) or encoding.entry == "none"):
        return f"{type(encoding).__name__} has no decode kernel"
    spec = plain_spec(attention)
    return why_not_spec(spec.fingerprint, attention.qkv_proj.weight.device)


def _is_plain_rotary(encoding: Any) -> bool:
    """Return whether an encoding does nothing but rotate q and k, by frequencies that are not
    learned.
    """
    return isinstance(encoding, Rotary) and encoding.only_rotates and not encoding.rope.spec.learned


def plain_spec(attention: Any) -> RopeSpec:
    """Return the spec of a layer's rotation; one with all angles 0 if the layer does not rotate."""
    encoding = attention.encoding
    return (
        encoding.rope.spec
        if isinstance(encoding, Rotary)
        else identity_rope(attention.head_dim).spec
    )


def fixed_config(attention: Any) -> NormRotationConfig:
    """Return how norm and rotation are divided among GPU programs, the same for any number of
    tokens, so that the bits of the results are too.
    """
    # the configuration for one token
    return pick_config(1, attention.num_heads, attention.head_dim)
