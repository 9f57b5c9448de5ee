"""Attention layers that accept any encoding.

`Attention` is softmax attention in O(n^2), `LinearAttention` and `linear_attention` are O(n), `KVCache` holds keys and values.
`remap` replaces the distances of RoPE for longer contexts, `temperature` multiplies queries by a factor of their position.
"""

from ropewalk.attention import remap, temperature
from ropewalk.attention.cache import KVCache
from ropewalk.attention.linear import LinearAttention, linear_attention
from ropewalk.attention.softmax import Attention

__all__ = ["Attention", "KVCache", "LinearAttention", "linear_attention", "remap", "temperature"]
