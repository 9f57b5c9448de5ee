"""qkv_norm_rope: the QKV product with head norm, rotation and cache write; for few tokens with a
cache in one launch.

Triton itself is imported at the first call that uses the kernel.
"""

from ropewalk.kernels.qkv.api import qkv_norm_rope, why_not

__all__ = ["qkv_norm_rope", "why_not"]
