"""Hugging Face configs: read as specs, explained value by value, and written back.

`hf` is the public API; `file` loads JSON, `layers` finds the rope of each layer type, `read` and `write` convert,
`families` holds what only a model's code says.
"""

from ropewalk.interop.config.hf import Explanation, explain, from_hf, to_hf

__all__ = ["Explanation", "explain", "from_hf", "to_hf"]
