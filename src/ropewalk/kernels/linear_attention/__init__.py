"""Causal linear attention with rotation in two Triton launches; `definition.py` has it in plain
torch.

Triton itself is imported at the first call. With TRITON_INTERPRET=1 the kernels also accept CPU
tensors.
"""

from ropewalk.kernels.linear_attention.api import LinearCall, run, why_not

__all__ = ["LinearCall", "run", "why_not"]
