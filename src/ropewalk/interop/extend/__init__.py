"""Give a loaded model or a config a longer context.

`model` is the public API; `keys` computes the config keys to change, `swap` sets and restores them
and the rotary modules, `angles` reads what the modules compute, `extension` is the report, `search`
and `longrope2` find LongRoPE factors. `remapped_model`, `remap` and `cached_positions` give a model
a remapping.
"""

from ropewalk.interop.extend.extension import Extension
from ropewalk.interop.extend.longrope2 import critical_pair, rescale_factors, search_longrope2
from ropewalk.interop.extend.model import extend
from ropewalk.interop.extend.search import search_factors

__all__ = [
    "Extension",
    "critical_pair",
    "extend",
    "rescale_factors",
    "search_factors",
    "search_longrope2",
]
