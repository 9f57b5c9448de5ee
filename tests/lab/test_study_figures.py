"""The figures of the studies: every line is the mean of committed rows, which are read here as plain
JSON, and titles and axes say what it is.
"""

import json
import math
from statistics import fmean
from types import SimpleNamespace

import numpy as np
import pytest
from study_cases import RESULTS, committed_results

pytestmark = pytest.mark.skipif(
    not RESULTS.is_dir(), reason="results/ is not part of an installation"
)
SIX = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]


def mean(rows, metric, **fields):
    """The mean over seeds of the mean over windows; None without rows."""
    found = [
        fmean(row["values"])
        for row in rows
        if row["metric"] == metric and all(row.get(name) == fields[name] for name in fields)
    ]
    return fmean(found) if found else None


def lines_of(rows, metric, name, x, *, label=str, to=lambda value: value, **fields):
    """{label: (xs, ys)}: a line for each value of the field `name`, at every value of `x`."""
    kept = [r for r in rows if r["metric"] == metric and fields.items() <= r.items()]
    lines = {}
    for each in dict.fromkeys(r[name] for r in kept):
        points = {
            at: mean(kept, metric, **{name: each, x: at}) for at in sorted({r[x] for r in kept})
        }
        points = {at: to(value) for at, value in points.items() if value is not None}
        lines[label(each)] = (list(points), list(points.values()))
    return lines


def extended(rows):
    """The losses at the length that each factor is for; the factor 1 is the unchanged model."""
    (trained,) = {r["length"] for r in rows if r.get("factor") == 1}
    zero_shot = [r for r in rows if r["metric"] == "loss" and r["tuned"] == 0]
    factors = sorted({r["factor"] for r in zero_shot})
    methods = dict.fromkeys(r["method"] for r in zero_shot if r["factor"] > 1)
    lines = {}
    for method in methods:
        ys = [
            mean(
                zero_shot,
                "loss",
                factor=f,
                length=f * trained,
                **({"method": method} if f > 1 else {}),
            )
            for f in factors
        ]
        lines[method] = (factors, ys)
    return lines


def passkeys(rows):
    """Per cent found, mean over depths and seeds; at the trained length those of no method."""
    lengths, methods, bases = (
        list(dict.fromkeys(r[field] for r in rows)) for field in ("length", "method", "base")
    )
    share = lambda base, method, length: (
        100
        * mean(
            rows,
            "found",
            base=base,
            length=length,
            method="none" if length == lengths[0] else method,
        )
    )
    return {
        f"{method}, base {base:,.0f}": (lengths, [share(base, method, n) for n in lengths])
        for base in bases
        for method in methods
    }


def stages(rows):
    trained = {r["stage"]: r["trained"] for r in rows}
    label = lambda stage: f"stage {stage}, at {trained[stage]}"
    return lines_of(rows, "loss", "stage", "length", label=label)


def matched(rows):
    """Per cent right."""
    found = lines_of(rows, "wrong", "encoding", "cut", to=lambda wrong: 100 * (1 - wrong))
    return {name: found[name] for name in ("rope", "learned")}


def shifted(rows):
    """The largest change over all rows; 0 is drawn as 1e-9, and what overflows is not drawn."""
    lines = {}
    for name in dict.fromkeys(r["model"] for r in rows):
        of_model = [r for r in rows if r["model"] == name]
        shifts = list(dict.fromkeys(r["shift"] for r in of_model))
        largest = [max(max(r["values"]) for r in of_model if r["shift"] == s) for s in shifts]
        lines[name] = (shifts, [np.nan if y >= 1e30 else max(y, 1e-9) for y in largest])
    return lines


def migrated(rows):
    shortest = min(r["length"] for r in rows)
    return lines_of(rows, "loss", "way", "steps", length=shortest)


TRAINED = "rope,none,nope layers,ssmax,lerope,pope,fope,rope++,selective,path"
APPLIED = "rope,yarn,cope,log_n,rerope,leaky_rerope,self_extend,dca,longrope2,drope"


def of_methods(names):
    """Plain RoPE first; then the methods that are trained, or those that are applied to RoPE."""

    def lines(rows):
        found = lines_of(rows, "loss", "model", "length")
        return {name: found[name] for name in names.split(",")}

    return lines


BY_LENGTH = ("tokens of context", "loss, nats per byte", "log", "linear")


def figure(run, title, axes, lines, name=None):
    x, y, x_scale, y_scale = axes
    return SimpleNamespace(
        run=run, title=title, x=x, y=y, scales=(x_scale, y_scale), lines=lines, name=name
    )


loss_by = lambda field, label=str, **fields: (
    lambda rows: lines_of(rows, "loss", field, "length", label=label, **fields)
)
FIGURES = {
    "encodings": figure(
        "h200_encodings",
        "Loss on the same last 256 tokens, trained at 256",
        BY_LENGTH,
        loss_by("model"),
    ),
    "extend": figure(
        "h200_extend",
        "Zero-shot, beyond the trained length",
        ("times the trained length", "loss", "log", "linear"),
        extended,
    ),
    "base": figure(
        "h200_base", "Loss by base", BY_LENGTH, loss_by("base", lambda base: f"base {base:,.0f}")
    ),
    "frequencies-stdlib": figure(
        "h200_frequencies",
        "Loss by kind of frequencies, code",
        BY_LENGTH,
        loss_by("frequencies", text="stdlib"),
    ),
    "frequencies-prose": figure(
        "h200_frequencies",
        "Loss by kind of frequencies, prose",
        BY_LENGTH,
        loss_by("frequencies", text="prose"),
    ),
    "norms": figure("cpu_norms", "Loss by norm of q and k", BY_LENGTH, loss_by("norm")),
    "passkey": figure(
        "h200_passkey", "Pass keys found", ("tokens", "%", "log", "linear"), passkeys
    ),
    "mlm_lengths": figure(
        "cpu_mlm_lengths",
        "Masked loss by length",
        ("length of the input", "loss, nats per byte", "log", "linear"),
        stages,
    ),
    "matching": figure(
        "h200_matching",
        "Matching cases by length",
        ("characters of each text", "% right", "log", "linear"),
        matched,
    ),
    "linear": figure(
        "cpu_linear",
        "Time of a forward pass",
        ("tokens", "ms", "log", "log"),
        lambda rows: lines_of(rows, "milliseconds", "model", "length"),
    ),
    "migrate": figure(
        "h200_migrate",
        "Migration to RoPE",
        ("steps of training after the change", "loss", "linear", "linear"),
        migrated,
    ),
    "multimodal": figure(
        "h200_multimodal",
        "The patch below the mark",
        ("patches per side", "% right", "linear", "linear"),
        lambda rows: lines_of(rows, "wrong", "model", "side", to=lambda w: 100 * (1 - w)),
    ),
    "decay": figure(
        "cpu_decay",
        "Attention by distance",
        ("distance", "weight", "log", "log"),
        lambda rows: lines_of(rows, "weight", "model", "distance"),
    ),
    "relative": figure(
        "cpu_relative",
        "Change of the logits by a shift",
        ("shift of all positions", "change (0 as 1e-9)", "log", "log"),
        shifted,
    ),
    "precision": figure(
        "cpu_precision",
        "Error of cos and sin by position",
        ("position", "largest error", "log", "log"),
        lambda rows: lines_of(rows, "error", "way", "position", to=lambda e: max(e, 1e-9)),
    ),
    "methods_trained": figure(
        "h200_methods",
        "Loss on the same last 256 tokens, trained at 256",
        BY_LENGTH,
        of_methods(TRAINED),
    ),
    "methods_applied": figure(
        "h200_methods",
        "Loss on the same last 256 tokens, trained at 256",
        BY_LENGTH,
        of_methods(APPLIED),
    ),
}


@pytest.fixture(scope="module")
def results():
    return committed_results()


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_of_a_study_shows_the_means_of_its_rows(results, name):
    wanted = FIGURES[name]
    text = (RESULTS / wanted.run / "rows.jsonl").read_text(encoding="utf-8")
    expected = wanted.lines([json.loads(line) for line in text.splitlines()])
    (ax,) = results[wanted.run].findings.figures[name]().axes
    assert ax.get_title(loc="left") == wanted.title
    assert (ax.get_xlabel(), ax.get_ylabel()) == (wanted.x, wanted.y)
    assert (ax.get_xscale(), ax.get_yscale()) == wanted.scales
    lines = {
        line.get_label(): line for line in ax.get_lines() if not line.get_label().startswith("_")
    }
    if name == "matching":
        best = lines.pop("best possible")
        assert [*best.get_ydata()][-1] == 100
    assert list(lines) == list(expected)
    for label, (xs, ys) in expected.items():
        assert list(lines[label].get_xdata()) == pytest.approx(xs), label
        assert list(lines[label].get_ydata()) == pytest.approx(ys, rel=1e-5, nan_ok=True), label
    # colours repeat after six lines, so the dashes change
    assert [line.get_linestyle() for line in lines.values()] == [
        ("-", "--", ":", "-.")[place // 6] for place in range(len(lines))
    ]
    colours = [line.get_color() for line in lines.values()]
    assert colours == [SIX[place % 6] for place in range(len(lines))]
    shown = [text.get_text() for text in ax.get_legend().texts]
    assert [each for each in shown if each != "best possible"] == list(expected)
    if wanted.scales[0] == "log":
        ticks = sorted({x for xs, _ in expected.values() for x in xs})
        assert [text.get_text() for text in ax.get_xticklabels()] == [f"{x:g}" for x in ticks]
        assert list(ax.get_xticks()) == pytest.approx(ticks)


@pytest.mark.parametrize("name", ["methods_trained", "methods_applied"])
def test_the_bars_of_the_methods_are_one_standard_error_to_each_side(results, name):
    text = (RESULTS / "h200_methods" / "rows.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    (ax,) = results["h200_methods"].findings.figures[name]().axes
    names = (TRAINED if name == "methods_trained" else APPLIED).split(",")
    assert len(ax.collections) == len(names)
    for model, bars in zip(names, ax.collections, strict=True):
        for segment in bars.get_segments():
            (length, low), (_, high) = segment
            values = np.array(
                [
                    row["values"]
                    for row in rows
                    if (row["metric"], row.get("model"), row.get("length"))
                    == ("loss", model, length)
                ]
            )
            windows = values.mean(0).std(ddof=1) / math.sqrt(values.shape[1])
            seeds = values.mean(1).std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0
            assert (high - low) / 2 == pytest.approx(math.hypot(windows, seeds), rel=1e-4)
            assert (high + low) / 2 == pytest.approx(values.mean(), rel=1e-5)


def test_every_figure_of_a_trained_study_is_compared_with_its_rows(results):
    """Figures of studies on pretrained models are tested in test_real_tables.py and elsewhere."""
    drawn = {
        name
        for result in results.values()
        if not result.facts["study"].startswith("real_")
        for name in result.findings.figures
    }
    assert drawn == set(FIGURES)


def test_the_figure_of_tuned_models_shows_the_loss_of_every_band(results):
    text = (RESULTS / "h200_real_tune" / "rows.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    (ax,) = results["h200_real_tune"].findings.figures["real_tune"]().axes
    assert (ax.get_title(loc="left"), ax.get_xlabel(), ax.get_ylabel()) == (
        "Loss by band after 100 steps",
        "band, from near to far",
        "nats per token",
    )
    means = {}
    for row in rows:
        if row["metric"] == "loss" and "objective" in row:
            key = f"{row['method']}, {row['objective']}"
            means.setdefault(key, []).append(fmean(row["values"]))
    for line in ax.get_lines():
        if not line.get_label().startswith("_"):
            shown = [float(y) for y in line.get_ydata()]
            assert shown
            for y in shown:
                assert any(y == pytest.approx(each, rel=1e-5) for each in means[line.get_label()])


@pytest.mark.parametrize(
    ("title", "metric", "unit", "digits"),
    [
        ("Milliseconds of a forward pass", "milliseconds", 1, 1),
        ("MiB of the cache", "remembered", 1024 * 1024, 2),
    ],
)
def test_a_table_of_costs_is_in_the_unit_of_its_title(results, title, metric, unit, digits):
    text = (RESULTS / "cpu_linear" / "rows.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    (table,) = (t for t in results["cpu_linear"].findings.tables if t.title == title)
    lengths = [int(length) for length in table.columns[1:]]
    for model, *cells in table.rows:
        expected = [mean(rows, metric, model=model, length=length) / unit for length in lengths]
        assert cells == [f"{value:.{digits}f}" for value in expected]
    # keys and values of a softmax grow with the length, the sums of linear attention do not
    if metric == "remembered":
        by_model = {model: [float(cell) for cell in cells] for model, *cells in table.rows}
        growth = lengths[-1] / lengths[0]
        softmax = by_model["softmax, rope"]
        assert softmax[-1] / softmax[0] == pytest.approx(growth, rel=0.05)
        assert len(set(by_model["linear, rope"])) == 1


def test_the_notes_of_tables_name_the_chance_of_a_guess(results):
    (table,) = results["h200_multimodal"].findings.tables
    assert "Trained on 8 x 8; chance is 6.2%." in table.note  # one of 16 colours
