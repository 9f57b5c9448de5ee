"""The native CPU kernel: C code called through ctypes."""
