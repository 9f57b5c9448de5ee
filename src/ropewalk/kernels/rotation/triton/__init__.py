"""The Triton backend for CUDA tensors: it rotates q and k in one launch, with any strides, by exact
phases.

Triton itself is imported at the first call. With TRITON_INTERPRET=1 it also accepts CPU tensors.
"""

from ropewalk.kernels.rotation.triton.backend import prepare, run, why_not

__all__ = ["prepare", "run", "why_not"]
