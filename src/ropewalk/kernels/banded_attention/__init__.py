"""Attention over a band of (query, key) pairs, and the log-sum-exp of its scores, in one launch;
`definition.py` has it in plain torch.

Triton itself is imported at the first call. With TRITON_INTERPRET=1 the kernel also accepts CPU
tensors.
"""

from ropewalk.kernels.banded_attention.api import ROWS, BandedCall, run, why_not

__all__ = ["ROWS", "BandedCall", "run", "why_not"]
