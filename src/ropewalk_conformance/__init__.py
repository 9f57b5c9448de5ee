"""Conformance: test vectors for rotary position embedding, and a runner that names mistakes.

    from ropewalk_conformance import run
    print(run(inv_freq=my_inv_freq, rotate=my_rotate))

The standard library is enough. `vectors` reads the data, `definition` computes ropes and wrong ones
in plain floats, `mistakes.toml` lists the mistakes, `runner` calls a project's functions.
"""

from __future__ import annotations

from ropewalk_conformance.runner import Report, run
from ropewalk_conformance.vectors import groups, load

__all__ = ["Report", "groups", "load", "run"]
