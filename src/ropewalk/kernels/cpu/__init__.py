"""The native CPU backend: a plain shared library in C (cpu.c), called through ctypes."""

from ropewalk.kernels.cpu.backend import prepare, run, why_not

__all__ = ["prepare", "run", "why_not"]
