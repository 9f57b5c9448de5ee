"""Attention with any encoding: softmax in O(n^2), linear in O(n), and a cache that can be re-rotated."""

from ropewalk.attention.cache import KVCache
from ropewalk.attention.linear import LinearAttention, linear_attention
from ropewalk.attention.softmax import Attention

__all__ = ["Attention", "KVCache", "LinearAttention", "linear_attention"]
