"""Attention with remapped distances: the pieces of a remapping, rotated, attended to and merged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ropewalk import rotation
from ropewalk.attention.backends import Call
from ropewalk.attention.cache import KVCache
from ropewalk.attention.lse import attend_with_lse, merge
from ropewalk.attention.masks import Visibility
from ropewalk.attention.remap import REMAPPINGS, Remapping
from ropewalk.attention.temperature import multiply
from ropewalk.caches import cached
from ropewalk.encodings import Encoding
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError
from ropewalk.frequencies import Default, Linear
from ropewalk.spec import RopeSpec

#: called with (True for k or False for q, positions, slowdown); returns k or q rotated at these
#: positions, by frequencies divided by slowdown
Rotate = Callable[[bool, Tensor, int], Tensor]


def attend_remapped(
    remapping: Remapping,
    rotate: Rotate,
    v: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    scale: float,
    visible: Visibility,
    backend: str | None = None,
) -> Tensor:
    """Return causal attention [B, H, Sq, D] with the distances of `remapping`: its pieces, each
    with its own band, are merged.

    rotate       rotate(key, positions, slowdown) returns q, or k if `key` is True, rotated at these
                 positions by frequencies divided by slowdown
    v            the values [B, Hk, Sk, D]
    q_positions  integers [Sq] or [B, Sq], and k_positions [Sk] or [B, Sk]: where the tokens are
    scale        the factor on the scores
    visible      the masks of all pieces, to which each piece adds its band
    backend      a name in LSE_BACKENDS, or None
    """
    factor, parts = remapping.query_factor(q_positions), []
    for piece in remapping.pieces(q_positions, k_positions):
        q = rotate(False, piece.q_positions, piece.slowdown)
        if factor is not None:
            # [Sq] stays, [B, Sq] becomes [B, 1, Sq]: the same for all heads
            q = multiply(q, factor if factor.ndim == 1 else factor.unsqueeze(-2))
        k = rotate(True, piece.k_positions, piece.slowdown)
        call = Call(q, k, v, scale, replace(visible, band=piece.band))
        parts.append(attend_with_lse(call, backend))
    return merge(parts, v.dtype)


def check_remapping(remapping: Remapping | None, encoding: Encoding, causal: bool) -> None:
    """Raise an error if attention with this encoding cannot have the remapping."""
    if remapping is None:
        return
    if not isinstance(remapping, Remapping):
        raise RopeError(
            "remapping", f"must be a remapping ({', '.join(REMAPPINGS)}) or None", remapping
        )
    if not (
        isinstance(encoding, Rotary) and encoding.only_rotates and encoding.rope.spec.num_axes == 1
    ):
        rule = "needs an encoding that only rotates q and k, by one axis"
        raise RopeError(
            "remapping", f"{rule}; remove the remapping for {type(encoding).__name__}", remapping
        )
    if not causal:
        raise RopeError(
            "remapping", "is defined for causal attention only; pass causal=True", remapping
        )
    slowdown = getattr(remapping, "slowdown", 1)  # only LeakyReRope has one
    if slowdown > 1:
        # refuses a spec whose frequencies cannot be divided
        slowed_spec(encoding.rope.spec, slowdown)


def remapped_attention(
    layer: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    visible: Visibility,
    cache: KVCache | None,
    return_weights: bool,
) -> Tensor:
    """Return the output [B, H, S, head_dim] of `layer`, an `Attention` with a remapping; a cache
    holds keys that are not rotated.

    q, k, v    the new tokens' [B, H or Hk, S, head_dim], not rotated
    positions  integers [S] or [B, S] of these tokens
    visible    the masks of these tokens; a cache replaces their padding and offset by its own
    """
    check_remapped_call(layer, return_weights)
    length: int | Tensor | None = None
    k_positions = positions
    # the cached tokens are keys too; each piece rotates them at its own positions, so they are
    # stored unrotated
    if cache is not None:
        if cache.rotated:
            raise RopeError(
                "cache",
                "must hold keys that are not rotated for a remapping; use KVCache(rotated=False)",
                True,
            )
        cache.rotated = False  # it was None if the cache is new
        seq = k.shape[-2]  # of the new tokens
        seen = cache.append(k, v, positions, visible.padding)
        k, v, k_positions = seen.k, seen.v, seen.positions
        visible = replace(
            visible, padding=seen.valid if cache.padded else None, offset=k.shape[-2] - seq
        )
        length = cache.next_positions  # of each row: its largest position + 1
    elif layer.encoding.rope.spec.needs_length and positions.numel():
        # the largest true position of each row + 1, which a call without tokens does not have; the
        # pieces may rotate at smaller positions
        length = positions.amax(dim=-1).to(torch.int64) + 1

    def rotate(key: bool, positions: Tensor, slowdown: int) -> Tensor:
        """Return the keys, or the queries, rotated at `positions`, all pairs slower by the factor
        `slowdown`.
        """
        x = k if key else q
        # a spec that is slowed has no other scaling, so it needs no length
        if slowdown > 1:
            return rotation.rotate(
                x, slowed_spec(layer.encoding.rope.spec, slowdown), positions, key=key
            )
        return layer.encoding.rotate(x, positions, key=key, length=length)

    return attend_remapped(
        layer.remapping, rotate, v, positions, k_positions, layer.scale, visible, layer.backend
    )


def check_remapped_call(layer: Any, return_weights: bool) -> None:
    """Raise an error if a call of an `Attention` with a remapping asks for the weights, or is in
    training with dropout.
    """
    if return_weights:
        raise RopeError(
            "return_weights",
            "must be False with a remapping, whose pieces never form all weights",
            True,
        )
    if layer.training and layer.dropout:
        raise RopeError(
            "dropout", "must be 0 with a remapping, or the model in eval mode", layer.dropout
        )


@cached("slowed specs", entries=32)
def slowed_spec(spec: RopeSpec, slowdown: int) -> RopeSpec:
    """Return the spec with all frequencies divided by `slowdown`; raise an error if it has a
    scaling.
    """
    if not isinstance(spec.scaling, Default):
        rule = (
            "divides the frequencies, so the spec must have no scaling; use self_extend or remove "
            "the scaling"
        )
        raise RopeError("leaky_rerope", rule, spec.scaling)
    return spec.with_(scaling=Linear(float(slowdown)))
