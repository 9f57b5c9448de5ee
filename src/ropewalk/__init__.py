"""ropewalk: rotary position embedding, exact at any position.

Names are imported when they are first used. What describes a rope or reads and checks a config
(`RopeSpec`, `frequencies`, `axes`, `from_hf`, `to_hf`, `explain`, `audit`, `doctor`) needs the
standard library alone; `Rope` and all that works on tensors imports torch. A submodule is reached
as an attribute too: `rw.kernels.BACKENDS`.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ropewalk import axes, frequencies
    from ropewalk.attention import Attention, KVCache, LinearAttention
    from ropewalk.config import explain, from_hf, to_hf
    from ropewalk.diagnosis import doctor
    from ropewalk.engines import audit
    from ropewalk.errors import RopeError
    from ropewalk.interop.extend import extend
    from ropewalk.interop.patch import patch, unpatch
    from ropewalk.layout import convert_layout
    from ropewalk.models import Decoder, RoFormer
    from ropewalk.models.checkpoints import load, save
    from ropewalk.rope import Rope
    from ropewalk.rotation import apply_rotary_pos_emb, rotate_half
    from ropewalk.spec import RopeSpec
    from ropewalk_lab.fit import fit

__version__ = "0.1.0"
__all__ = [
    "Attention",
    "Decoder",
    "KVCache",
    "LinearAttention",
    "RoFormer",
    "Rope",
    "RopeError",
    "RopeSpec",
    "apply_rotary_pos_emb",
    "audit",
    "axes",
    "convert_layout",
    "doctor",
    "explain",
    "extend",
    "fit",
    "frequencies",
    "from_hf",
    "load",
    "patch",
    "rotate_half",
    "save",
    "to_hf",
    "unpatch",
]

#: public name -> the module it is imported from; `axes` and `frequencies` are modules themselves
_MODULE_OF = {
    "Attention": "ropewalk.attention",
    "Decoder": "ropewalk.models",
    "KVCache": "ropewalk.attention",
    "LinearAttention": "ropewalk.attention",
    "RoFormer": "ropewalk.models",
    "Rope": "ropewalk.rope",
    "RopeError": "ropewalk.errors",
    "RopeSpec": "ropewalk.spec",
    "apply_rotary_pos_emb": "ropewalk.rotation",
    "audit": "ropewalk.engines",
    "convert_layout": "ropewalk.layout",
    "doctor": "ropewalk.diagnosis",
    "explain": "ropewalk.config",
    "extend": "ropewalk.interop.extend",
    "fit": "ropewalk_lab.fit",
    "from_hf": "ropewalk.config",
    "load": "ropewalk.models.checkpoints",
    "patch": "ropewalk.interop.patch",
    "rotate_half": "ropewalk.rotation",
    "save": "ropewalk.models.checkpoints",
    "to_hf": "ropewalk.config",
    "unpatch": "ropewalk.interop.patch",
}


def __getattr__(name: str) -> Any:
    """Return a public name from its module, or a submodule; both are imported at first use."""
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(_MODULE_OF[name]), name)
        globals()[name] = value  # from now on Python finds it without this function
        return value
    if not name.startswith("_"):  # Python asks for names such as __path__, which are no submodules
        module = f"{__name__}.{name}"
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:  # the submodule exists, and a package that it needs does not
                raise
    raise AttributeError(f"module 'ropewalk' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


# torch.export.load needs the operators of a program registered. They are registered here if torch
# is imported already; code that imports torch after ropewalk has to `import ropewalk.ops` before it
# loads a program
if sys.modules.get("torch") is not None:
    importlib.import_module("ropewalk.ops")
