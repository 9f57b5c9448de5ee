"""The table of peak memory: every library has a line, measured or with the reason that it was not."""

from ropewalk_lab.bench.tables import memory_table


def test_every_library_has_a_line_and_what_was_not_measured_says_so():
    common = {"shape": "A", "dtype": "bfloat16"}
    measured = {**common, "pass": "forward", "order": "bshd", "peak_bytes": 3 * 2**20}
    rows = [
        {**measured, "contender": "transformers, eager"},
        {**measured, "contender": "transformers, eager", "shape": "B", "peak_bytes": 9 * 2**20},
        {**measured, "contender": "ropewalk", "order": "bhsd", "peak_bytes": 0},
        {**common, "order": "bshd", "contender": "liger-kernel", "skipped": "needs a GPU"},
    ]
    lines = memory_table(rows).splitlines()
    assert "| transformers, eager | 3 | no row |" in lines
    assert "| transformers, compiled | no row | no row |" in lines
    assert "| liger-kernel | needs a GPU | needs a GPU |" in lines
    assert "| ropewalk | no row | 0 |" in lines
