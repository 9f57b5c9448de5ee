"""pytest plug-in: the fixture `rope_conformance` tests a project's functions with the vectors.

def test_rope(rope_conformance):
    rope_conformance(my_rope, groups="yarn llama3")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def rope_conformance() -> Callable[..., Any]:
    """Return a function that calls `ropewalk_conformance.run`, and fails the test with the report if
    the run did not pass.
    """
    from ropewalk_conformance.runner import run

    def check(module: Any = None, **options: Any) -> Any:
        report = run(module, **options)
        if not report.passed:
            pytest.fail(str(report), pytrace=False)
        return report

    return check
