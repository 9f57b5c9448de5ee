"""The definition of `qkv_norm_rope` by a product and `qk_norm_rope`, which has its own definition.
It also runs the calls that the kernel does not support.

A call is a checked `NormRotationCall`: spec, norm, positions, cache and slots, with one token axis.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from ropewalk.kernels.norm_rotation.api import qk_norm_rope
from ropewalk.kernels.norm_rotation.definition import NormRotationCall


def run(
    x: Tensor, weight: Tensor, bias: Tensor | None, call: NormRotationCall, shape: tuple[int, ...]
) -> Any:
    """Return what `qkv_norm_rope` returns. `shape` holds the sizes of the token axes of x; in
    `call`, whose q and k have no values, they are one axis.
    """
    packed = F.linear(x, weight, bias)
    heads = (call.q.shape[1], call.k.shape[1])
    options = {"spec": call.spec, "heads": heads, "norm": call.norm}
    positions = call.positions.unflatten(-1, shape)
    if call.cache is not None:
        assert call.slots is not None
        slots = call.slots.unflatten(-1, shape)
        return qk_norm_rope(packed, positions=positions, cache=call.cache, slots=slots, **options)
    q, k = qk_norm_rope(packed, positions=positions, **options)
    # the heads after those of q and k are those of v
    return q, k, packed.unflatten(-1, (-1, call.spec.head_dim))[..., sum(heads) :, :]
