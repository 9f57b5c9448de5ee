"""`ropewalk bench`: names are listed and checked, paths are checked before anything is timed, and
square brackets in names are printed as they are.
"""

import json
import re

import pytest

import command_line
from ropewalk_lab.bench import cases, chart, cpu
from ropewalk_lab.bench.contenders import CONTENDERS

ROW = {"shape": "s", "order": "bhsd", "dtype": "float32", "contender": "[bold]c[/bold]"}
TIMED = {
    **ROW,
    "pass": "forward",
    "us": 2.5,
    "copy_us": 2.0,
    "times_copy": 1.25,
    "peak_bytes": 3_450_000,
    "rms_error": 1e-7,
}


@pytest.fixture
def asked(monkeypatch):
    """Return the list of (shapes, contenders) for which measurements were asked."""
    calls = []

    def measure(shapes, contenders):
        calls.append((shapes, contenders))
        yield TIMED
        yield {**ROW, "skipped": "is not installed; run: pip install 'ropewalk[bench]'"}

    monkeypatch.setattr(cpu, "measure", measure)
    return calls


def test_the_table_has_times_and_memory_and_square_brackets_are_no_markup(capsys, asked):
    code, out, err = command_line.call(capsys, "bench", "--device", "cpu")
    assert (code, err) == (0, "")
    row = next(line for line in out.splitlines() if "forward" in line)
    assert re.split(" {2,}", row) == [
        "s",
        "bhsd",
        "float32",
        "[bold]c[/bold]",
        "forward",
        "2.5",
        "2.0",
        "1.25 x",
        "3.45",
        "1e-07",
    ]
    assert "not timed: [bold]c[/bold]: is not installed; run: pip install 'ropewalk[bench]'" in out
    assert asked == [(tuple(cpu.CPU_SHAPES), tuple(CONTENDERS))]


def test_shapes_and_contenders_are_chosen_by_name(capsys, asked):
    options = (
        "--shape",
        "doc shapes",
        "--shape",
        "A",
        "--contender",
        "ropewalk, basic",
        "--contender",
        "ropewalk",
    )
    code, out, _ = command_line.call(capsys, "bench", "--device", "cpu", *options, "--json")
    assert code == 0
    assert asked == [((*cases.GROUPS["doc shapes"], "A"), ("ropewalk, basic", "ropewalk"))]
    assert [
        json.loads(line)["peak_bytes"] for line in out.splitlines() if "skipped" not in line
    ] == [3_450_000]


def test_all_names_are_listed(capsys, asked):
    out = command_line.call(capsys, "bench", "--list")[1]
    listed = json.loads(command_line.call(capsys, "bench", "--list", "--json")[1])
    assert listed == {
        "shapes": [*cases.SHAPES],
        "groups": {k: [*v] for k, v in cases.GROUPS.items()},
        "contenders": [*CONTENDERS],
    }
    for name in (*cases.SHAPES, *cases.GROUPS, *CONTENDERS):
        assert name in out
    assert asked == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--shape", "nope"), "--shape: must be one of 'A', "),
        (("--contender", "nope"), "--contender: must be one of 'ropewalk', 'ropewalk, in place', "),
        (("--device", "tpu"), "--device: must be one of auto, cpu"),
        (
            ("--out", "."),
            "--out: must be the path of a file, not a folder or below a file; got '.'",
        ),
        (
            ("--out", "file/below"),
            "--out: must be the path of a file, not a folder or below a file; got 'file/below'",
        ),
        (("--plot", "chart.bmp"), "--plot: must end with .png, .svg, .pdf; got 'chart.bmp'"),
        (
            ("--plot", "file/chart.png"),
            "--plot: must be the path of a file, not a folder or below a file",
        ),
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_timed(
    capsys, monkeypatch, tmp_path, asked, options, says
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    code, out, err = command_line.call(capsys, "bench", *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"ropewalk: {says}")
    assert asked == []


def test_rows_are_written_and_drawn_and_the_verdict_is_printed(capsys, monkeypatch, tmp_path):
    """A GPU's rows have the share of a copy's speed; a row without one has a dash."""
    ours, other = (
        TIMED | {"contender": name, "us": us} for name, us in (("ropewalk", 4), ("x", 2))
    )
    del ours["times_copy"], other["times_copy"]
    rows = [ours | {"percent_of_copy": 50}, other]
    monkeypatch.setattr(cpu, "measure", lambda *_: iter(rows))
    drawn = []
    monkeypatch.setattr(chart, "cpu_chart", lambda *given: drawn.append(given))
    out, plot = tmp_path / "rows.jsonl", tmp_path / "chart.png"
    code, text, err = command_line.call(
        capsys, "bench", "--device", "cpu", "--out", out, "--plot", plot
    )
    assert code == 0
    cells = [re.split(" {2,}", line) for line in text.splitlines() if "forward" in line]
    assert [line[3:] for line in cells] == [
        ["ropewalk", "forward", "4", "2.0", "50 %", "3.45", "1e-07"],
        ["x", "forward", "2", "2.0", "-", "3.45", "1e-07"],
    ]
    assert " ".join(text.splitlines()[-1].split()) == (
        "Verdict: ropewalk is the fastest in 0 of 1 cases, in the median 2.00 times as long as a "
        "copy; elsewhere x is ahead most often (1)."
    )
    stored = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["us"] for row in stored] == [4, 2]
    assert drawn == [(stored, plot)]
    assert f"rows: {out}" in err
    assert f"chart: {plot}" in err
