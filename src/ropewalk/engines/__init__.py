"""What five inference engines compute from one config.

`rules/` has what was read in the sources of each release, `recorded/` what releases computed from
the configs they were run with; `audit` compares the results. Both are data files: a new release of
an engine is a new file.
"""

from ropewalk.engines.audit import ENGINES, REFERENCE, Audit, EngineFinding, audit

__all__ = ["ENGINES", "REFERENCE", "Audit", "EngineFinding", "audit"]
