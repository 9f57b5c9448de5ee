"""Read Hugging Face configs as specs, explain where each value came from, and write specs as config
keys.

The public functions are in `hf`; `families` holds the facts that only a model's code contains.
"""

from ropewalk.config.families import add_families
from ropewalk.config.hf import (
    Explanation,
    explain,
    from_hf,
    layer_specs,
    temperatures_from_hf,
    to_hf,
)

__all__ = [
    "Explanation",
    "add_families",
    "explain",
    "from_hf",
    "layer_specs",
    "temperatures_from_hf",
    "to_hf",
]
