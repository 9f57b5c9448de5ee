"""The comparison of scores that studies use; `ropewalk.analysis.statistics` defines it."""

from ropewalk.analysis.statistics import SIGMAS, Comparison, Score, compare, rank, standard_error

__all__ = ["SIGMAS", "Comparison", "Score", "compare", "rank", "standard_error"]
