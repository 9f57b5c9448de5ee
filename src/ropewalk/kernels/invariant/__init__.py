"""Norm, matrix product and attention whose bits do not depend on the batch: not on the number of
rows, the place of a row, or how a prompt is divided.

Triton itself is imported at the first call.
"""

from ropewalk.kernels.invariant.api import attention, normed, product

__all__ = ["attention", "normed", "product"]
