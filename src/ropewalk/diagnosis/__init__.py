"""What is wrong with a config, what it does, and the corrected config.

`mistakes.toml` has one row for each mistake, `published.json` the ropes of well-known models;
`doctor` looks for all of them.
"""

from ropewalk.diagnosis.examine import doctor
from ropewalk.diagnosis.report import Diagnosis, Evidence, Finding

__all__ = ["Diagnosis", "Evidence", "Finding", "doctor"]
