"""Attention layers and their options.

`Attention` is softmax attention with any encoding, in O(n^2); `LatentAttention` is MLA, with one
latent per token; `LinearAttention` and `linear_attention` take RoPE and are O(n); `KVCache` holds
keys and values.
`SelectiveAttention` and `PathAttention` have position encodings that follow from the tokens
themselves. `remap` replaces the distances of RoPE for longer contexts, `temperature` multiplies
queries by a factor of their position, `choices` has the options of a softmax layer.
"""

from ropewalk.attention import choices, remap, temperature
from ropewalk.attention.cache import KVCache
from ropewalk.attention.latent import LatentAttention
from ropewalk.attention.linear import LinearAttention, linear_attention
from ropewalk.attention.path import PathAttention
from ropewalk.attention.selective import SelectiveAttention
from ropewalk.attention.softmax import Attention

__all__ = [
    "Attention",
    "KVCache",
    "LatentAttention",
    "LinearAttention",
    "PathAttention",
    "SelectiveAttention",
    "choices",
    "linear_attention",
    "remap",
    "temperature",
]
