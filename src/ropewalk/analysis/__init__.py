"""Numbers and advice about rotary encodings, from the standard library alone.

`Facts` and `advise` sum them up for one spec, `read_checkpoint` reads a config. The same numbers as
arrays, and functions of distance and order, are in `ropewalk_lab.analysis`.
"""

from ropewalk.analysis.advice import CHECKS, GUIDE, Advice, Check, Use, advise
from ropewalk.analysis.checkpoint import Checkpoint, read_checkpoint
from ropewalk.analysis.exactness import (
    BFLOAT16_ROUNDING,
    COS_SIN_METHODS,
    USED_BY,
    error_curves,
    true_angles,
)
from ropewalk.analysis.facts import Facts
from ropewalk.analysis.ladder import (
    BANDS,
    Aliasing,
    Coverage,
    aliasing,
    bands,
    cosine_sum,
    coverage,
    critical_dimension,
    first_negative,
    plain_radians,
    radians,
    stretch,
    turns,
    wavelengths,
)

__all__ = [
    "BANDS",
    "BFLOAT16_ROUNDING",
    "CHECKS",
    "COS_SIN_METHODS",
    "GUIDE",
    "USED_BY",
    "Advice",
    "Aliasing",
    "Check",
    "Checkpoint",
    "Coverage",
    "Facts",
    "Use",
    "advise",
    "aliasing",
    "bands",
    "cosine_sum",
    "coverage",
    "critical_dimension",
    "error_curves",
    "first_negative",
    "plain_radians",
    "radians",
    "read_checkpoint",
    "stretch",
    "true_angles",
    "turns",
    "wavelengths",
]
