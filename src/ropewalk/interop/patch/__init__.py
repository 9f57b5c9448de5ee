"""Run a loaded transformers model on this library's kernels, and restore it.

`model` is the public API. `trials` recognises rotation functions by behaviour and finds their
`conventions`, `functions` replaces these functions. `rotary` recognises rotary modules, `angles`
carries positions from them to the layers. `methods` replaces methods on one instance, `length_hook`
computes length-dependent frequencies.
"""

from ropewalk.interop.patch.model import patch, patched, unpatch

__all__ = ["patch", "patched", "unpatch"]
