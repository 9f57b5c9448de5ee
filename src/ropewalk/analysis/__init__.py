"""Numbers about rotary encodings: functions of frequencies and specs that return float64 arrays.

`Facts` and `advise` sum them up for one spec, `read_checkpoint` reads a config, `comparison`
measures all encodings.
"""

from ropewalk.analysis.advice import CHECKS, GUIDE, Advice, Check, Use, advise
from ropewalk.analysis.checkpoint import Checkpoint, read_checkpoint
from ropewalk.analysis.distance import (
    abel_bound,
    cosine_sum,
    decay,
    first_negative,
    pairs_of,
    partial_sums,
    phasors,
    score_matrix,
    scores,
    similarity,
    similarity_matrix,
)
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
    coverage,
    critical_dimension,
    plain_radians,
    radians,
    stretch,
    turns,
    wavelengths,
)
from ropewalk.analysis.order import (
    EntryComparison,
    attend,
    compare_entries,
    permutation_gap,
    query_path,
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
    "EntryComparison",
    "Facts",
    "Use",
    "abel_bound",
    "advise",
    "aliasing",
    "attend",
    "bands",
    "compare_entries",
    "cosine_sum",
    "coverage",
    "critical_dimension",
    "decay",
    "error_curves",
    "first_negative",
    "pairs_of",
    "partial_sums",
    "permutation_gap",
    "phasors",
    "plain_radians",
    "query_path",
    "radians",
    "read_checkpoint",
    "score_matrix",
    "scores",
    "similarity",
    "similarity_matrix",
    "stretch",
    "true_angles",
    "turns",
    "wavelengths",
]
