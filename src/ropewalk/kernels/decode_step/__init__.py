"""Kernels of a decode step: products with norm, gate or residual inside, attention over the cache,
and the choice of the next token. `definition.py` has each in plain torch.

`ropewalk.models.decode_step` captures the launches in `launch.py`, and the QKV product of
`ropewalk.kernels.qkv`, which is built from the same parts.
"""
