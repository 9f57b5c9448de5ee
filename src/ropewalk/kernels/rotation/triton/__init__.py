"""The Triton backend for CUDA tensors: it rotates q and k, mostly in one launch, by exact phases or
by tables of cos and sin.

Triton itself is imported at the first call. With TRITON_INTERPRET=1 the backend also accepts CPU
tensors.
"""

from ropewalk.kernels.rotation.triton.backend import prepare, run, why_not

__all__ = ["prepare", "run", "why_not"]
