"""All studies, one module each; the command line, the report and the tests use all entries of
STUDIES.

Names are imported when they are first used: a study needs torch, a list of them does not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ropewalk_lab.studies.registry import STUDIES
    from ropewalk_lab.studies.study import Study, read_study, run_study

__all__ = ["STUDIES", "Study", "read_study", "run_study"]


def __getattr__(name: str) -> Any:
    """Return a name of `__all__` from its module, which is imported now."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    part = "registry" if name == "STUDIES" else "study"
    return getattr(importlib.import_module(f"{__name__}.{part}"), name)
