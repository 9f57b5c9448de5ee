"""The QKV product of many tokens, with bias, head norm, rotation and cache write in the same launch
(Hopper).

`forms.py` says which kernel computes a call: `specialised.py` in Gluon with Triton 3.6, otherwise
`kernel.py` in plain Triton. `ropewalk.kernels.qkv.qkv_norm_rope` and the captured decode step
launch them where they are faster, and import Triton then.
"""
