"""The short form of a grid of cases has every value of every parameter; the long form is the whole
grid.
"""

from itertools import product

import pytest

from sampling import sample

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.mark.sampled
@pytest.mark.parametrize(("size", "tile"), [(1, 4), (1, 8), (3, 4)])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_grid(size, tile, layout): pass

@pytest.mark.sampled(by=["backend"])
@pytest.mark.parametrize("backend", ["cpu", "triton"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [1, 2])
def test_each(backend, dtype, size): pass

@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("family", range(6))
def test_third(family): pass

def test_plain(): pass
"""


@pytest.mark.parametrize("sizes", [(1,), (3, 3), (5, 2, 3), (2, 7, 4, 2)])
def test_a_sample_has_every_value_and_hardly_more_cases_than_the_longest_list(sizes):
    grid = [set(enumerate(case)) for case in product(*map(range, sizes))]
    chosen = sample(grid)
    assert set.union(*(grid[i] for i in chosen)) == set.union(*grid)
    assert max(sizes) <= len(chosen) <= max(sizes) + 1


def test_a_sample_keeps_every_case_with_a_value_that_no_other_case_has():
    assert sample([{("a", 1)}, {("a", 1)}, {("a", 2)}]) == {0, 2}
    assert sample([]) == set()


@pytest.mark.parametrize(
    ("options", "grid", "each", "third"),
    [([], 3, 4, 2), (["--full"], 6, 8, 6), (["test_grids.py::test_grid[half-1-4]"], 1, 0, 0)],
    ids=["short", "full", "one"],
)
def test_with_full_or_a_test_id_the_cases_outside_the_sample_run(
    pytester, options, grid, each, third
):
    pytester.makeini("[pytest]\nmarkers = sampled")
    pytester.makepyfile(test_grids=TESTS)
    result = pytester.runpytest("-p", "sampling", "-p", "no:cacheprovider", "-v", *options)
    names = ("test_grid[", "test_each[", "test_third[")
    ran = [
        sum(line.startswith(f"test_grids.py::{name}") for line in result.outlines) for name in names
    ]
    assert ran == [grid, each, third]
    assert result.parseoutcomes().get("deselected", 0) == (0 if options else 11)
    assert result.ret == 0
