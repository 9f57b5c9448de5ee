"""Kernels of a decode step: products with norm, rotation, cache write, gate or residual inside, and
attention over the cache.

`launch` holds the launches that `ropewalk.models.decode_step` captures; `ropewalk.kernels.qkv` uses
one of them for few tokens.
"""
