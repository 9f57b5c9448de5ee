"""The short form of the tests: `--full` runs every case; without it, tests marked `sampled` run a
few of theirs.

A module of its own, so that a process without the conftest has the option too:
`pytest -p sampling --noconftest`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from random import Random

import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--full",
        action="store_true",
        help="run slow studies and grids of cases whole, not in their small form",
    )


@pytest.fixture
def full(request) -> bool:
    return request.config.getoption("--full")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave out cases of tests marked `sampled`, unless a case was asked for by its id.

    `sampled` keeps a few cases in which every value of every parameter occurs;
    `sampled(by=["backend"])` keeps such cases for each backend, because all cases of a backend that
    is not installed are skipped. `sampled(every=3)` keeps a third of the cases, drawn with the name
    of the test as seed, so that two tests with the same grid keep different thirds.
    """
    if config.getoption("--full") or any("[" in argument for argument in config.args):
        return
    grids = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is not None and hasattr(item, "callspec"):
            by = (item.callspec.params[name] for name in mark.kwargs.get("by", ()))
            grids[item.nodeid.partition("[")[0], mark.kwargs.get("every"), *by].append(item)
    dropped = set()
    for (name, every, *_), cases in grids.items():
        if every:
            kept = Random(name).sample(range(len(cases)), math.ceil(len(cases) / every))
        else:
            kept = sample([values(case) for case in cases])
        dropped |= {case for i, case in enumerate(cases) if i not in kept}
    if dropped:
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = [item for item in items if item not in dropped]


def values(case: pytest.Item) -> set[tuple]:
    """Return the values of a case, one for each `parametrize` of its test, as (names, id of the
    value of each name).
    """
    # "a" or "a, b" or ("a", "b")
    arguments = [mark.args[0] for mark in case.iter_markers("parametrize")]
    all_names = [
        names.replace(" ", "").split(",") if isinstance(names, str) else names
        for names in arguments
    ]
    return {
        (tuple(names), *(id(case.callspec.params[name]) for name in names)) for names in all_names
    }


def sample(cases: Sequence[set[tuple]]) -> set[int]:
    """Return the indices of a few cases that have all values of all cases."""
    missing, chosen = list(cases), set()
    while any(missing):
        # the case with the most values that no chosen case has yet
        best = max(range(len(cases)), key=lambda i: len(missing[i]))
        chosen.add(best)
        covered = missing[best]
        missing = [values_of_case - covered for values_of_case in missing]
    return chosen
