"""Run a loaded transformers model on this library's kernels, and restore it.

`model` is the public API; `functions` and `rotary` recognise a model's rotation functions and rotary modules by behaviour,
`methods` replaces them on one instance, `angles` carries positions between them, `length_hook` updates length-dependent
frequencies.
"""

from ropewalk.interop.patch.model import patch, patched, unpatch

__all__ = ["patch", "patched", "unpatch"]
