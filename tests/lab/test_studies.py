"""Every study runs, its rows are what the definition gives for the saved models, and work that is
done is not done again.
"""

import cmath
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pytest
from study_cases import SHARP, run_tiny, saved_decoder, tail_losses, tiny

from ropewalk import RopeSpec
from ropewalk.errors import RopeError
from ropewalk.frequencies import Given
from ropewalk.interop.checkpoint.atomic_folder import lock_folder
from ropewalk_lab.corpus import open_corpus
from ropewalk_lab.report import write_report
from ropewalk_lab.settings import toml_value
from ropewalk_lab.studies import STUDIES, matching, read_study, run_study
from ropewalk_lab.studies.findings import FAILS, HOLDS, TIED, UNKNOWN
from ropewalk_lab.studies.rows import distinct, select
from ropewalk_lab.studies.study import FACTS, ROWS


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("studies")


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_runs_and_writes_rows_facts_and_figures(name, place):
    folder = run_tiny(name, place, figures=True)
    rows, facts = read_study(folder)
    assert rows == [json.loads(line) for line in (folder / ROWS).read_text().splitlines()]
    assert (facts["study"], facts["preset"]) == (name, "smoke")
    findings = STUDIES[name].findings(rows, facts)
    assert all(
        len(cells) == len(table.columns) for table in findings.tables for cells in table.rows
    )
    assert findings.claims
    assert {claim.verdict for claim in findings.claims} <= {HOLDS, TIED, FAILS, UNKNOWN}
    assert findings.figures, "a study has at least one figure"
    for figure in findings.figures:
        pixels = matplotlib.image.imread(folder / f"{figure}.png")
        assert min(pixels.shape[:2]) > 200
        # one number for each colour, because np.unique takes seconds for rows of three numbers
        colours = pixels @ np.arange(1.0, 1 + pixels.shape[-1])
        assert len(np.unique(colours)) > 10, "an empty picture has a single colour"
        assert (folder / f"{figure}.svg").read_text().rstrip().endswith("</svg>")
    assert set(findings.ours) <= set(STUDIES[name].published)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_every_preset_and_refuses_unknown_settings(name):
    study = STUDIES[name]
    assert list(study.presets) == ["smoke", "cpu", "gpu", "cluster"]
    assert all(
        preset.keys() == study.presets["smoke"].keys() and preset["seeds"] >= 1
        for preset in study.presets.values()
    )
    assert study.settings("cpu", ["seeds=7"])["seeds"] == 7
    with pytest.raises(RopeError, match=f"a setting of {name}"):
        study.settings("cpu", ["nonsense=1"])
    with pytest.raises(RopeError, match="preset"):
        study.settings("huge")
    for wrong in (
        ("[]", "[2, 4]", "[1, 4, 2]", "[1, 1]") if "multiples" in study.presets["cpu"] else ()
    ):
        with pytest.raises(RopeError, match="ascend from 1"):
            study.settings("cpu", [f"multiples={wrong}"])


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("real_extend", "methods=[]", "must give methods at least one value"),
        ("real_extend", "methods=[3]", "must give methods a value like the preset's"),
        ("extend", "factors=[2, 2.5]", "must give factors a value like the preset's"),
        ("extend", "factors=[true]", "must give factors a value like the preset's"),
        ("mlm_lengths", "stages=[[16, 4, 'x']]", "must give stages a value like the preset's"),
    ],
)
def test_a_list_has_values_of_the_types_of_the_preset(name, change, said):
    with pytest.raises(RopeError, match=said):
        STUDIES[name].settings("smoke", [change])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("real_extend", "factors=[1.5, 2]"),
        ("base", "changes=[]"),
        ("base", "changes=['train.clip=2']"),
        ("base", "bases=[10]"),
    ],
)
def test_a_list_may_have_the_types_of_another_preset(name, change):
    setting, _, text = change.partition("=")
    assert STUDIES[name].settings("cpu", [change])[setting] == toml_value(text)


def test_a_study_whose_findings_fail_has_no_facts_for_a_report(tmp_path):
    def fail(rows, facts):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_study(
            replace(tiny("precision", tmp_path), findings=fail),
            "smoke",
            tmp_path / "out",
            workers=1,
            quiet=True,
        )
    folder = tmp_path / "out" / "precision"
    assert (folder / ROWS).exists()
    assert not (folder / FACTS).exists()


@pytest.mark.parametrize("encoding", ["rope", "sinusoidal"])
def test_losses_of_encodings_are_those_of_the_saved_models(encoding, place):
    rows, facts = read_study(run_tiny("encodings", place, "sharp", changes=SHARP))
    windows = open_corpus(place / "text", cache=place / "cache").valid.windows(6, 129)
    model = saved_decoder(place / "sharp" / "models", f"{encoding}-0", encoding)
    for length in (32, 128):
        (row,) = select(rows, "loss", model=encoding, length=length)
        np.testing.assert_allclose(
            row["values"], tail_losses(model, windows, length, 32), rtol=2e-5
        )
    assert (
        facts["corpus"]["fingerprint"]
        == open_corpus(place / "text", cache=place / "cache").fingerprint
    )


def test_the_sliding_window_of_encodings_gives_the_losses_of_limited_attention(place):
    rows, _ = read_study(run_tiny("encodings", place, "sharp", changes=SHARP))
    plain, windowed = (
        select(rows, "loss", model=m, length=32)[0]["values"]
        for m in ("rope", "rope, sliding window")
    )
    assert plain == windowed
    windows = open_corpus(place / "text", cache=place / "cache").valid.windows(6, 129)
    model = saved_decoder(place / "sharp" / "models", "rope-0", "rope")
    for layer in model.layers:
        layer.self_attn.window = 32  # type: ignore[union-attr, assignment]
    (row,) = select(rows, "loss", model="rope, sliding window", length=128)
    np.testing.assert_allclose(row["values"], tail_losses(model, windows, 128, 32), rtol=2e-5)


def test_losses_of_the_method_linear_are_those_of_divided_frequencies(place):
    rows, _ = read_study(run_tiny("extend", place, "sharp", changes=SHARP))
    windows = open_corpus(place / "text", cache=place / "cache").valid.windows(6, 129)
    slower = tuple(float(10_000.0 ** (-2 * pair / 16)) / 4 for pair in range(8))
    model = saved_decoder(
        place / "sharp" / "models", "rope-0", RopeSpec(head_dim=16, scaling=Given(radians=slower))
    )
    (row,) = select(rows, "loss", method="linear", factor=4, tuned=0, length=128)
    np.testing.assert_allclose(row["values"], tail_losses(model, windows, 128, 32), rtol=2e-5)


@pytest.mark.parametrize("preset", ["cpu", "gpu", "cluster"])
def test_all_presets_but_smoke_train_the_four_bases_of_the_stated_ablation(preset):
    assert STUDIES["base"].presets[preset]["bases"] == [100, 1_000, 10_000, 100_000]


@pytest.mark.parametrize("base", [100.0, 10_000.0])
def test_every_base_has_frequencies_of_its_own(base, place):
    rows, _ = read_study(run_tiny("base", place, "sharp", changes=SHARP, seeds=1))
    windows = open_corpus(place / "text", cache=place / "cache").valid.windows(6, 65)
    ladder = tuple(base ** (-pair / 8) for pair in range(8))
    model = saved_decoder(
        place / "sharp" / "models",
        f"base-{base:g}-0",
        RopeSpec(head_dim=16, scaling=Given(radians=ladder)),
    )
    for length in (32, 64):
        (row,) = select(rows, "loss", base=base, length=length)
        np.testing.assert_allclose(
            row["values"], tail_losses(model, windows, length, 32), rtol=2e-5
        )


def test_pass_keys_are_asked_of_models_with_the_base_that_the_rows_name(place, monkeypatch):
    asked = []

    def watched(model, lengths, depths, count, **options):
        spec = model.layers[0].self_attn.encoding.rope.spec
        asked.append((spec.theta, lengths, spec.scaling.name))
        return {(lengths[0], depth): np.ones(count) for depth in depths}

    monkeypatch.setattr("ropewalk_lab.studies.passkey.depth_grid", watched)
    rows, _ = read_study(run_tiny("passkey", place, "watched"))
    expected = [
        (base, [length], scaling)
        for base in (10_000.0, 500_000.0)
        for length, scaling in ((96, "default"), (192, "default"), (192, "yarn"))
    ]
    assert asked == expected
    methods = {"default": "none", "yarn": "yarn"}
    for base, (length,), scaling in expected:
        assert len(select(rows, "found", base=base, length=length, method=methods[scaling])) == 2


def test_the_decay_study_has_the_bound_and_the_wavelengths_of_128_dimensions(place):
    rows, _ = read_study(run_tiny("decay", place))
    steps = [10_000.0 ** (-2 * i / 128) for i in range(64)]

    def mean_of_sums(distance):
        return np.abs(np.cumsum([cmath.exp(1j * distance * step) for step in steps])).mean()

    bounds = select(rows, "bound")
    assert [row["distance"] for row in bounds] == [1, 2, 4, 8, 16]
    for row in bounds:
        assert row["mean"] == pytest.approx(
            mean_of_sums(row["distance"]) / mean_of_sums(0), rel=1e-5
        )
    found = {row["pair"]: row["mean"] for row in select(rows, "wavelength")}
    assert found == pytest.approx(
        {"fastest": 2 * math.pi, "slowest": 2 * math.pi / steps[-1]}, rel=1e-5
    )


def test_four_studies_train_their_common_rope_model_once(place):
    for name in ("encodings", "extend", "decay", "norms"):
        run_tiny(name, place)
    assert len(list((place / "out" / "models").glob("rope-0-*"))) == 1


def test_a_second_run_of_a_study_repeats_no_job_and_no_training(place, monkeypatch):
    first = read_study(run_tiny("encodings", place))[0]

    def fails(*_, **__):
        raise AssertionError("worked again")

    with monkeypatch.context() as patch:
        patch.setattr("ropewalk_lab.studies.encodings.measure", fails)
        assert read_study(run_tiny("encodings", place))[0] == first
    # a job that is gone is measured again, with the model that is still there
    next((place / "out" / "encodings" / "jobs").glob("rope-*")).unlink()
    monkeypatch.setattr("ropewalk_lab.studies.training.Trainer.take_step", fails)
    assert read_study(run_tiny("encodings", place))[0] == first
    with pytest.raises(AssertionError, match="worked again"):
        run_tiny("encodings", place, encodings=["rope", "kerple_log"])


def test_a_study_that_was_killed_goes_on_to_the_same_rows(tmp_path):
    script = Path(__file__).parent / "study_cases.py"
    run = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), "killed"], cwd=script.parent
    )
    jobs = tmp_path / "killed" / "base" / "jobs"
    deadline = time.monotonic() + 120
    while not list(jobs.glob("base-100-*.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.01)
    run.send_signal(signal.SIGKILL)
    run.wait()
    done = {path: path.stat().st_mtime_ns for path in jobs.glob("base-*.jsonl")}
    assert done
    assert not (tmp_path / "killed" / "base" / FACTS).exists(), "too late to be killed midway"
    settings = {"bases": [100.0, 1000.0, 10000.0], "seeds": 1}
    found = read_study(run_tiny("base", tmp_path, "killed", **settings))[0]
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert found == read_study(run_tiny("base", tmp_path, "whole", **settings))[0]


@pytest.mark.parametrize("name", ["base", "mlm_lengths"])
def test_a_model_is_trained_by_one_study_at_a_time(name, tmp_path, monkeypatch):
    """While it is trained its folder is locked; a second study waits and then finds the model."""
    taken = []

    def run(trainer, stop=None):
        taken.append(lock_folder(trainer.folder) is None)
        return SimpleNamespace(stopped=False, step=stop)

    monkeypatch.setattr("ropewalk_lab.trainer.Trainer.run", run)
    folder = run_tiny(name, tmp_path)
    assert taken
    assert all(taken)
    monkeypatch.undo()
    for model in (folder.parent / "models").iterdir():
        free = lock_folder(model)
        assert free is not None
        os.close(free)


def test_two_workers_give_the_rows_of_one(place):
    alone = read_study(run_tiny("base", place, "alone", bases=[100.0]))[0]
    assert read_study(run_tiny("base", place, "together", workers=2, bases=[100.0]))[0] == alone
    assert distinct(alone, "loss", "seed") == [0, 1]


def test_real_triplets_come_from_a_file(place):
    lines = [
        {"A": f"case {n} of theft", "B": f"again theft {n}", "C": f"fraud {n}", "label": "B"}
        for n in range(60)
    ]
    path = place / "cail.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8-sig")
    rows, facts = read_study(run_tiny("matching", place, "real", data=str(path)))
    assert facts["triplets"]["source"] == str(path)
    assert facts["triplets"]["train"] + facts["triplets"]["valid"] == 60
    assert {len(row["values"]) for row in rows} == {facts["triplets"]["valid"]}
    assert STUDIES["matching"].findings(rows, facts).tables[0].rows[0][3] == "-"


def test_texts_of_any_language_are_cut_at_characters(place, monkeypatch):
    """A Chinese character is three bytes of UTF-8, and each is a token; texts of ASCII letters
    have as many tokens as characters.
    """
    read, words = {}, "案情相同的借款纠纷"

    def trained(_, name, preset, batches, objective):
        text = bytes(batches.batch(np.arange(1), preset.train.stages[-1].length).inputs[0].tolist())
        read[name] = text.decode()
        raise InterruptedError

    monkeypatch.setattr("ropewalk_lab.studies.matching.train_or_load", trained)
    given = {"preset": "mlm", "changes": [], "short": 16, "long": 40, "batch": 2, "steps": 1}
    path = place / "chinese.jsonl"
    path.write_text(
        "\n".join(json.dumps(dict.fromkeys("ABC", f"{n:02}" + 2 * words)) for n in range(60)),
        encoding="utf-8",
    )
    for data in (str(path), ""):
        with pytest.raises(InterruptedError):
            matching.measure(
                None, cut=16, encoding="rope", seed=int(bool(data)), count=60, data=data, **given
            )
    assert [len(text) for text in read.values()] == [16, 16]
    assert read["matching-rope-16-1"][2:] == (2 * words)[:14]


def test_missing_or_broken_rows_and_incomplete_facts_are_refused(place):
    folder = run_tiny("precision", place, "broken")
    lines = (folder / ROWS).read_text().splitlines(keepends=True)
    (folder / ROWS).write_text("".join(lines[:-1]))  # cut at the end of a line
    with pytest.raises(
        RopeError,
        match=rf"rows: must be as many as study.json says, {len(lines)}; .*got {len(lines) - 1}",
    ):
        write_report(folder.parent)
    (folder / ROWS).write_text('{"metric": "error"')
    with pytest.raises(RopeError, match="must be JSON lines"):
        read_study(folder)
    (folder / ROWS).write_text("".join(lines))
    (folder / FACTS).write_text('{"study": "precision", "preset": "cpu"}')
    with pytest.raises(
        RopeError, match=r"precision/study\.json: must have preset, seeds, settings, machine; run"
    ):
        write_report(folder.parent)


def test_a_changed_list_of_a_study_is_read_as_toml(place):
    assert tiny("extend", place).settings("smoke", ["factors=[2, 8]", "preset=cpu"])["factors"] == [
        2,
        8,
    ]
