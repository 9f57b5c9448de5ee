"""Kernels of a decode step: products with norm, rotation, cache write, gate or residual inside, and attention over the cache.

`qkv_norm_rope` is for any model; `launch` holds the launches that `ropewalk.models.decode_step` captures. Triton itself is
imported at the first call.
"""

from ropewalk.kernels.decode.api import qkv_norm_rope, why_not

__all__ = ["qkv_norm_rope", "why_not"]
