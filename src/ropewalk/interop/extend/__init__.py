"""Give a loaded model or a config a longer context.

`model` applies and undoes the change, `keys` computes the config keys it needs, `search` finds LongRoPE factors.
"""

from ropewalk.interop.extend.model import Extension, extend
from ropewalk.interop.extend.search import search_factors

__all__ = ["Extension", "extend", "search_factors"]
