"""Attention over a band of pairs with the log-sum-exp of its scores, in one Triton launch; `attention.lse` has its definition.

Triton itself is imported at the first call. With TRITON_INTERPRET=1 it also accepts CPU tensors.
"""

from ropewalk.kernels.banded.api import ROWS, BandedCall, run, why_not

__all__ = ["ROWS", "BandedCall", "run", "why_not"]
