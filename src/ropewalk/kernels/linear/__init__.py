"""Causal linear attention with rotation in two Triton launches; `attention.linear` has its definition in plain torch.

Triton itself is imported at the first call. Under TRITON_INTERPRET=1 it takes CPU tensors too.
"""

from ropewalk.kernels.linear.api import LinearCall, run, why_not

__all__ = ["LinearCall", "run", "why_not"]
