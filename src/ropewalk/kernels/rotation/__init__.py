"""The rotation of q and k: its definition in equivalent forms (`definition.py`), plain torch
(`eager.py`), and Triton kernels (`triton`). `ropewalk.kernels.cpu` has the native CPU kernel.
"""
