"""What five inference engines compute from one config.

`readers` describes how each engine reads a config, `audit` compares the results.
"""

from ropewalk.engines.audit import Audit, Finding, audit
from ropewalk.engines.readers import ENGINES, REFERENCE

__all__ = ["ENGINES", "REFERENCE", "Audit", "Finding", "audit"]
