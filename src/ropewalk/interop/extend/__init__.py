"""Give a loaded model or a config a longer context.

`model` is the public API; `keys` computes the config keys to change, `swap` sets and restores them and the rotary modules,
`search` finds LongRoPE factors.
"""

from ropewalk.interop.extend.model import Extension, extend
from ropewalk.interop.extend.search import search_factors

__all__ = ["Extension", "extend", "search_factors"]
