"""`ropewalk bench`: a wrong kernel is not timed, rows survive a round trip, charts are drawn from
rows.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ropewalk import Rope
from ropewalk.errors import RopeError
from ropewalk.kernels.rotation.definition import rotate_vector
from ropewalk_lab.bench import cases, chart, contenders, cpu, rows, tables
from ropewalk_lab.machine import machine

DOCS = Path(__file__).resolve().parents[2] / "docs"
TINY = (2, 7, 3, 1, 10, torch.float32)


@pytest.fixture(autouse=True)
def _tiny_shape(monkeypatch):
    monkeypatch.setitem(cases.SHAPES, "tiny", TINY)


def test_a_decode_shape_has_positions_on_every_axis(monkeypatch):
    monkeypatch.setitem(cases.SHAPES, "tiny", (3, 1, 3, 1, 10, torch.float32))
    case = cases.make_case("tiny", "bhsd", variant="mrope")
    assert case.positions.shape == (3, 3, 1)
    rotate = Rope(case.spec).rotate
    assert cases.rms_error(tuple(rotate(x, case.positions) for x in (case.q, case.k)), case) < 1e-6


@pytest.mark.parametrize("order", ["bshd", "bhsd"])
def test_the_definition_equals_the_rotation_in_numpy(order):
    case = cases.make_case("tiny", order)
    rotated = cases.definition(case.q, case.positions, case)
    token = (1, 4, 2) if order == "bshd" else (1, 2, 4)
    expected = rotate_vector(case.q[token].numpy(), position=4, layout="half")
    np.testing.assert_allclose(rotated[token].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("tokens", [7, 1 << 15])
def test_the_error_is_relative_to_q_and_k_together(monkeypatch, tokens):
    """A long row is compared alone, two short ones at once."""
    monkeypatch.setitem(cases.SHAPES, "tiny", (2, tokens, 8, 1, 4, torch.float32))
    case = cases.make_case("tiny", "bshd")
    q, k = (cases.definition(x, case.positions, case) for x in (case.q, case.k))
    norms = [float(x.square().sum()) for x in (case.q, case.k)]  # a rotation keeps them
    expected = (0.02**2 * norms[0] + 0.5**2 * norms[1]) / sum(norms)
    assert cases.rms_error((1.02 * q, 1.5 * k), case) == pytest.approx(expected**0.5, rel=1e-6)


@pytest.mark.parametrize("variant", cases.VARIANTS)
@pytest.mark.parametrize("order", ["bshd", "bhsd"])
def test_every_variant_of_ropewalk_agrees_with_the_definition(order, variant):
    case = cases.make_case("tiny", order, variant=variant)
    good, error = contenders.agrees(
        "ropewalk, positions", contenders.ropewalk(case, explicit=True), case
    )
    assert good
    assert error < 1e-6


@pytest.mark.parametrize("name", [n for n in contenders.CONTENDERS if "compiled" not in n])
def test_every_contender_agrees_with_the_definition_or_says_why_it_cannot_run(name):
    case = cases.make_case("tiny", "bhsd")
    if reason := contenders.why_not(name, case):
        assert name in reason
        return
    assert contenders.agrees(name, contenders.CONTENDERS[name](case), case)[0]


def test_a_contender_that_rotates_backwards_is_not_timed(monkeypatch):
    def backwards(case):
        rope = contenders.Rope(case.spec)
        return lambda q, k: (rope.unrotate(q), rope.unrotate(k))

    monkeypatch.setitem(contenders.CONTENDERS, "backwards", backwards)
    (row,) = cpu._case_rows(cases.make_case("tiny", "bhsd"), "bhsd", ("backwards",), rounds=2)
    assert row["skipped"] == "does not agree with the definition"


def test_a_contender_that_cannot_run_is_skipped_and_the_others_are_timed(monkeypatch):
    def broken(case):
        def call(q, k):
            raise RuntimeError("no compiler\nin the path")

        return call

    monkeypatch.setitem(contenders.CONTENDERS, "broken", broken)
    found = list(
        cpu._case_rows(cases.make_case("tiny", "bhsd"), "bhsd", ("broken", "ropewalk"), rounds=2)
    )
    assert [(each["contender"], each.get("skipped")) for each in found[:2]] == [
        ("broken", "RuntimeError: no compiler"),
        ("ropewalk", None),
    ]


def test_rows_have_the_time_of_a_call_and_of_a_copy(tmp_path):
    found = list(
        cpu._case_rows(
            cases.make_case("tiny", "bhsd"), "bhsd", ("ropewalk", "transformers, eager"), rounds=2
        )
    )
    assert {(r["contender"], r["pass"]) for r in found} == {
        (c, p) for c in ("ropewalk", "transformers, eager") for p in ("forward", "forward+backward")
    }
    assert all(r["us"] > 0 and r["copy_us"] > 0 for r in found)
    path = tmp_path / "rows.jsonl"
    rows.write(path, [{**r, **machine("cpu")} for r in found])
    assert rows.read(path)[0]["versions"]["torch"] == torch.__version__
    assert [json.loads(line)["contender"] for line in path.read_text().splitlines()] == [
        r["contender"] for r in found
    ]


def test_a_view_has_the_same_heads_in_another_memory_order():
    case = cases.make_case("tiny", "bhsd")
    view = cpu._ordered(case, "bhsd view")
    assert torch.equal(view.q, case.q)
    assert torch.equal(view.k, case.k)
    assert view.q.transpose(1, 2).is_contiguous()
    assert not view.q.is_contiguous()


def test_a_gpu_chart_has_a_bar_for_each_case_of_the_rows(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda self, *_, **__: drawn.append(self)
    )
    row = {"shape": "B", "order": "bshd", "contender": "ropewalk", "pass": "forward"}
    chart.gpu_chart([{**row, "percent_of_copy": 90.0}], tmp_path / "gpu.png")
    forward = drawn[0].axes[0]
    assert [bar.get_height() for bar in forward.patches if bar.get_height()] == [90.0]
    assert len(drawn[0].axes[1].get_xticks()) == 1
    with pytest.raises(RopeError, match="plot: needs timings of ropewalk"):
        chart.gpu_chart([{**row, "contender": "complex product"}], tmp_path / "gpu.png")


def test_charts_show_what_the_rows_say(tmp_path):
    timed = [
        {"shape": s, "order": o, "contender": c, "pass": p, "percent_of_copy": 90.0}
        for s in "ADEF"
        for o in ("bshd", "bhsd")
        for c in ("ropewalk", "liger-kernel")
        for p in ("forward", "forward+backward")
    ]
    chart.gpu_chart(timed, tmp_path / "gpu.png")
    chart.cpu_chart(
        [
            {
                "shape": "cpu mid",
                "order": "bhsd",
                "dtype": "float32",
                "contender": "ropewalk",
                "pass": "forward",
                "times_copy": 1.2,
            }
        ],
        tmp_path / "cpu.png",
    )
    drawn = [
        {"what": "qkv", "rows": rows, "way": way, "over_percent": 4.0}
        for rows in (1, 64)
        for way in ("product, then rotation", "rotation inside")
    ]
    drawn.insert(3, {"what": "qkv sweep", "rows": 7, "over_percent": {}})  # the chart ignores it
    # without the last row: "rotation inside" was not measured for 64 rows
    chart.projection_chart(drawn[:4], tmp_path / "projection.png")
    for name in ("gpu.png", "cpu.png", "projection.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"


def test_a_way_that_is_no_faster_than_what_it_replaces_is_not_drawn(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda self, *_, **__: kept.append(self)
    )
    added = {
        "product, then rotation": {1: 9.0, 64: 6.0, 512: 3.0},
        "rotation inside": {1: 4.0, 64: 7.0, 512: 3.0},
        "product, then norm, rotation and cache": {1: 30.0, 64: 20.0, 512: 10.0},
        "norm, rotation and cache inside": {1: 31.0, 64: 8.0},
    }
    rows_ = [
        {"what": "qkv", "way": way, "rows": count, "over_percent": percent}
        for way, by_count in added.items()
        for count, percent in by_count.items()
    ]
    chart.projection_chart(rows_, tmp_path / "projection.png")
    (axis,) = kept[0].axes
    drawn = {line.get_label(): line.get_ydata() for line in axis.get_lines()}
    nothing = float("nan")
    wanted = {
        "product, then rotation": [9, 6, 3],
        "product, then norm, rotation and cache": [30, 20, 10],
        "rotation inside": [4, nothing, nothing],
        "norm, rotation and cache inside": [nothing, 8, nothing],
    }
    for way, heights in wanted.items():
        np.testing.assert_array_equal(drawn[way], heights)
    assert [text.get_text() for text in axis.get_xticklabels()] == ["1", "64", "512"]


def test_a_bar_of_the_cpu_is_cut_off_at_sixteen_copies_with_its_number(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda self, *_, **__: kept.append(self)
    )
    row = {"shape": "cpu mid", "order": "bhsd", "dtype": "float32", "pass": "forward"}
    times = {"ropewalk": 1.25, "transformers, eager": 16.0, "rotary-embedding-torch": 40.0}
    others = [
        {**row, "contender": "ropewalk", "pass": "forward+backward", "times_copy": 9.0},
        {**row, "contender": "liger-kernel", "times_copy": 9.0},
    ]
    rows_ = [{**row, "contender": name, "times_copy": ratio} for name, ratio in times.items()]
    chart.cpu_chart([*rows_, *others], tmp_path / "cpu.png")
    (axis,) = kept[0].axes
    heights = {bars.get_label(): bars.patches[0].get_height() for bars in axis.containers}
    assert {name: height for name, height in heights.items() if height} == {
        "ropewalk": 1.25,
        "transformers, eager": 16,
        "rotary-embedding-torch": 16,
    }
    assert [text.get_text() for text in axis.texts if text.get_text()] == ["40"]


#: every page with a table that docs/tables.py writes from committed rows; encodings.md is left out,
#: because its table is measured anew
MADE = sorted(
    path.relative_to(DOCS).as_posix()
    for path in DOCS.rglob("*.md")
    if ": start -->" in path.read_text(encoding="utf-8") and path.name != "encodings.md"
)


@pytest.mark.parametrize("page", MADE)
def test_pages_show_the_committed_rows(page, monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import tables as page_tables

    text = (DOCS / page).read_text(encoding="utf-8")
    assert page_tables.page(text) == text, "run python docs/tables.py"


def test_every_table_is_on_a_page(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import tables as page_tables

    text = "".join(path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md"))
    assert [name for name in page_tables.MAKERS if f"<!-- {name}: start -->" not in text] == []


def test_a_vertical_bar_in_a_markdown_cell_is_escaped():
    header, alignment, line = tables.markdown(["of", "|x|"], [["a", "1"]]).splitlines()
    assert header == r"| of | \|x\| |"
    assert alignment.count("|") == line.count("|") == 3


def test_the_table_of_peers_has_the_largest_error_and_the_mean_over_runs(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import tables as page_tables

    case = {"pass": "forward", "shape": "A", "dtype": "bfloat16", "versions": {"other": "1.2"}}
    timed = [
        {**case, "contender": name, "order": order, "us": us, "copy_us": 10.0, "rms_error": error}
        for name, order, us, error in (
            ("ropewalk", "bshd", 11.0, 1e-3),
            ("ropewalk", "bshd", 14.0, 3e-3),
            ("other, fast", "bshd", 20.0, 2e-3),
            ("other, fast", "bhsd", 30.0, 1e-3),
        )
    ]
    # of other cases
    timed += [
        {**timed[0], "pass": "eager loop", "rms_error": 1.0},
        {**timed[0], "shape": "B", "rms_error": 1.0},
        {**timed[0], "dtype": "float32", "rms_error": 1.0},
        {**timed[0], "variant": "packed", "rms_error": 1.0},
    ]
    assert page_tables.peers_table(timed).splitlines() == [
        "| contender | version | rms error | time over a copy, [B,S,H,D] "
        "| time over a copy, [B,H,S,D] |",
        "|---|---|---:|---:|---:|",
        "| ropewalk | this one | 3.0e-03 | 1.25 | - |",
        "| other, fast | 1.2 | 2.0e-03 | 2.00 | 3.00 |",
    ]
