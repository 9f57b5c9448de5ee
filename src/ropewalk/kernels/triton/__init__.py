"""The Triton backend for CUDA tensors: q and k in one launch, any memory order, exact phases instead of tables.

Triton itself is imported at the first call. Under TRITON_INTERPRET=1 it takes CPU tensors too.
"""

from ropewalk.kernels.triton.backend import prepare, run, why_not

__all__ = ["prepare", "run", "why_not"]
