"""Give a loaded model or a config a longer context.

`model` is the public API; `keys` computes the config keys to change, `swap` sets and restores them and the rotary modules,
`angles` reads what the modules compute, `extension` is the report, `search` finds LongRoPE factors.
"""

from ropewalk.interop.extend.extension import Extension
from ropewalk.interop.extend.model import extend
from ropewalk.interop.extend.search import search_factors

__all__ = ["Extension", "extend", "search_factors"]
