"""The native CPU library in C (cpu.c), called through ctypes: the rotation (`backend.py`), defined
in `ropewalk.kernels.rotation`, and causal attention (`attention.py`).
"""

from ropewalk.kernels.cpu.backend import prepare, run, why_not

__all__ = ["prepare", "run", "why_not"]
