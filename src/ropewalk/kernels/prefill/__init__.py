"""The QKV product of many tokens, with bias, head norm, rotation and cache write in the same launch (Hopper).

`ropewalk.kernels.qkv.qkv_norm_rope` calls it where it is faster. Triton itself is imported at the first call.
"""
