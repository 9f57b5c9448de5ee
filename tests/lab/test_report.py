"""The report holds every number of every study, needs nothing but itself, and advises only where
the rows decide.
"""

import base64
import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
from study_cases import run_tiny

from command_line import call
from ropewalk.errors import RopeError
from ropewalk_lab.log import read_log
from ropewalk_lab.published import PUBLISHED
from ropewalk_lab.recommendations import USE_CASES, StudyResult, _stream, lowest, recommend
from ropewalk_lab.report import _environment, noise, read_all, write_report
from ropewalk_lab.report_html import details_html, table_html
from ropewalk_lab.scores import Score
from ropewalk_lab.studies import STUDIES, read_study
from ropewalk_lab.studies.findings import FAILS, HOLDS, Claim, Findings, Table
from ropewalk_lab.studies.rows import row
from ropewalk_lab.studies.study import FACTS

RUN = ("precision", "relative", "matching", "mlm_lengths")


class Reader(HTMLParser):
    """Collects the text of a page and the addresses it points to, and checks that tags are closed."""

    EMPTY = ("meta", "img", "br")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.targets: list[str] = []
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.targets += [value for name, value in attrs if name in ("src", "href") and value]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("report")
    for name in RUN:
        run_tiny(name, place, figures=True)
    return place / "out"


def test_the_report_holds_every_cell_of_every_study_and_published_table(folder):
    page = Reader(write_report(folder).read_text(encoding="utf-8"))
    assert page.open == []
    text = " ".join(page.words)
    for name in RUN:
        found = STUDIES[name].findings(*read_study(folder / name))
        for table in found.tables:
            assert table.title in text
            assert all(cell in page.words for cells in table.rows for cell in cells)
        assert not any(claim.text in text for claim in found.claims), "a smoke run has no verdicts"
        for published in STUDIES[name].published:
            assert PUBLISHED[published].origin in text
            assert all(cell in page.words for cells in PUBLISHED[published].rows for cell in cells)
            ours = found.ours.get(published)
            assert ours is None or all(
                cell in page.words for cells in ours.cells.values() for cell in cells
            )
    headings = [PUBLISHED[each].heading for name in RUN for each in STUDIES[name].published]
    assert sorted(
        word for word in page.words if word.startswith(("As published", "As stated"))
    ) == sorted(headings)
    assert read_study(folder / "mlm_lengths")[1]["corpus"]["fingerprint"] in text


def test_a_smoke_run_is_too_short_to_conclude_and_a_longer_one_is_not(folder, tmp_path, capsys):
    shutil.copytree(folder / "relative", tmp_path / "relative")
    claims = STUDIES["relative"].findings(*read_study(tmp_path / "relative")).claims
    assert claims
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert page.index("Too short to conclude") < page.index("<table", page.index('id="relative"'))
    assert HOLDS not in Reader(page).words
    facts = json.loads((tmp_path / "relative" / FACTS).read_text())
    (tmp_path / "relative" / FACTS).write_text(json.dumps(facts | {"preset": "cpu"}))
    words = Reader(write_report(tmp_path).read_text(encoding="utf-8")).words
    assert "Too short to conclude" not in " ".join(words)
    assert all(claim.text in words and claim.verdict in words for claim in claims)


def test_the_command_redraws_figures_from_the_rows(folder, tmp_path, capsys):
    shutil.copytree(folder / "relative", tmp_path / "any name")
    drawing = next((tmp_path / "any name").glob("*.svg"))
    right = drawing.read_bytes()
    drawing.write_text("<svg>stale</svg>")
    assert call(capsys, "lab", "report", str(tmp_path))[0] == 0
    assert drawing.read_bytes() == right


def test_the_report_links_no_other_file_and_has_no_script(folder):
    html = write_report(folder).read_text(encoding="utf-8")
    targets = Reader(html).targets
    assert all(target.startswith(("#", "data:image/svg+xml;base64,")) for target in targets)
    assert "<script" not in html
    assert "@import" not in html
    assert "url(" not in html
    pictures = [base64.b64decode(t.split(",")[1]) for t in targets if t.startswith("data:")]
    assert len(pictures) == sum(
        len(STUDIES[name].findings(*read_study(folder / name)).figures) for name in RUN
    )
    assert all(picture.startswith(b"<?xml") for picture in pictures)


def test_html_in_a_table_is_escaped(folder):
    hostile = Table("<script>alert(1)</script>", ("a",), [("<b>&",)])
    html = write_report(folder, [hostile]).read_text(encoding="utf-8")
    assert "<script" not in html
    assert "<b>&" in Reader(html).words


def test_an_empty_folder_is_refused_with_the_command(tmp_path):
    with pytest.raises(RopeError, match="ropewalk lab run"):
        write_report(tmp_path)


def scores(**means: float) -> dict[str, Score]:
    noise = np.random.default_rng(0).normal(0, 0.02, (3, 50))
    return {
        name: Score(noise + np.random.default_rng(i).normal(mean, 0.01, (3, 50)))
        for i, (name, mean) in enumerate(means.items())
    }


def test_advice_names_the_lowest_or_says_tied_or_nothing_to_compare():
    assert lowest(scores(rope=1.6, alibi=1.8, none=2.2), "loss")[0] == "rope."
    assert lowest(scores(rope=1.6, alibi=1.6, none=2.2), "loss")[0].startswith("Any of")
    assert lowest(scores(rope=1.6, alibi=1.6), "loss")[0] == "No recommendation: all are tied."
    assert lowest(scores(rope=1.6), "loss")[0].startswith("No recommendation")


def encodings_result(source: str, rope_far: float) -> StudyResult:
    rows = []
    for seed in range(3):
        draw = np.random.default_rng(seed).normal(0, 0.001, 30)
        for model, near, far in (
            ("rope", 1.6, rope_far),
            ("alibi", 1.8, 1.79),
            ("rope, sliding window", 1.6, 1.61),
        ):
            rows += [
                row("loss", draw + near, model=model, seed=seed, length=128),
                row("loss", draw + far, model=model, seed=seed, length=512),
            ]
    return StudyResult(
        rows, {"study": "encodings", "seeds": 3, "data": {"source": source}}, Findings()
    )


def test_recommendations_follow_the_rows():
    by_use = {each.use: each for each in recommend({"encodings": encodings_result("stdlib", 2.5)})}
    assert list(by_use) == list(USE_CASES)
    assert by_use["Short text, within the trained length"].advice == "rope."
    assert by_use["Code longer than the trained length"].advice == "rope, sliding window."
    stream = by_use["Streams of unlimited length"].advice
    assert stream.index("rope, sliding window") < stream.index("alibi")
    assert "rope (" not in stream
    assert by_use["Images and other grids"].advice == "Not measured here."
    assert "ropewalk lab run multimodal" in by_use["Images and other grids"].reason
    prose = {
        each.use: each.advice for each in recommend({"encodings": encodings_result("prose", 2.5)})
    }
    assert prose["Code longer than the trained length"] == "Not measured here."


def test_every_run_of_a_study_has_its_own_recommendation():
    runs = {"encodings": encodings_result("stdlib", 2.5), "second": encodings_result("stdlib", 1.5)}
    by_use = {each.use: each.advice for each in recommend(runs)}
    assert by_use["Code longer than the trained length"] == "rope, sliding window."
    assert by_use["Code longer than the trained length (second)"] == "rope."
    assert len(by_use) == len(USE_CASES) + 3


def test_runs_may_have_folders_of_any_name_and_no_figures(folder, tmp_path):
    for name in ("here", "there"):
        shutil.copytree(
            folder / "relative", tmp_path / name, ignore=shutil.ignore_patterns("*.svg", "*.png")
        )
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert list(read_all(tmp_path)) == ["here", "there"]
    for name in ("here", "there"):
        assert f'<section id="{name}">' in page
    assert len([t for t in Reader(page).targets if t.startswith("data:image/svg+xml")]) == 2
    facts = json.loads((tmp_path / "here" / FACTS).read_text())
    (tmp_path / "here" / FACTS).write_text(json.dumps(facts | {"study": "nonsense"}))
    with pytest.raises(RopeError, match=r"here/study.json, study: must be one of"):
        write_report(tmp_path)


def test_retrieval_is_advised_only_if_pass_keys_are_found_at_the_trained_length():
    common = {"base": 10_000.0, "seed": 0, "length": 96, "depth": 0.0}
    rows = [row("found", [0.0, 1.0], method="none", **common)]
    failed = StudyResult(
        rows, {"study": "passkey", "seeds": 1}, Findings(claims=[Claim("found", FAILS, "50 %")])
    )
    assert recommend({"passkey": failed})[5].advice.startswith("No recommendation")
    hits = {"none": [0.0] * 20 + [1.0], "yarn": [1.0] * 21}
    rows = [row("found", values, method=name, **common) for name, values in hits.items()]
    # rows of a model with another base must not count
    rows += [row("found", [1.0] * 21, method="none", **(common | {"base": 500_000.0}))]
    held = StudyResult(
        rows, {"study": "passkey", "seeds": 1}, Findings(claims=[Claim("found", HOLDS, "100 %")])
    )
    assert recommend({"passkey": held})[5].advice == "yarn."


def test_depths_of_a_pass_key_are_samples_and_not_seeds():
    """Of 40 pass keys YaRN finds 20 more, all at one depth: 0.5 more, with a standard error of 0.08."""
    common = {"base": 10_000.0, "seed": 0, "length": 96}
    rows = [
        row(
            "found",
            [0.0 if name == "none" and depth else 1.0] * 20,
            method=name,
            depth=depth,
            **common,
        )
        for name in ("none", "yarn")
        for depth in (0.0, 1.0)
    ]
    held = StudyResult(
        rows, {"study": "passkey", "seeds": 1}, Findings(claims=[Claim("found", HOLDS, "100 %")])
    )
    assert recommend({"passkey": held})[5].advice == "yarn."


def test_the_report_states_the_measured_noise_of_seeds_or_the_published_one():
    rows = [
        row("loss", [mean], model="a", length=8, seed=seed)
        for seed, mean in enumerate((1.0, 1.2, 1.4))
    ]
    assert "0.2000" in noise(rows, {"seeds": 3})
    assert "as published" in noise(rows, {"seeds": 1, "study": "encodings"})
    assert noise(rows, {"seeds": 1, "study": "real_kv"}) == ""  # one model, which is not trained
    # a model with one training has no deviation
    once = [row("loss", [9.0], model="b", length=8, seed=0)]
    assert "0.2000" in noise(rows + once, {"seeds": 3})
    assert noise(once, {"seeds": 3}) == ""
    close = [
        row("loss", [mean], model="c", length=8, seed=seed)
        for seed, mean in enumerate((1.0, 1.1, 1.2))
    ]
    assert "0.1500" in noise(rows + close, {"seeds": 3})  # the median of 0.1 and 0.2


def test_a_table_without_a_note_has_no_paragraph_for_it():
    assert "<p" not in table_html(Table("title", ("a",), [("b",)]))
    assert '<p class="note">how to read it</p>' in table_html(
        Table("title", ("a",), [("b",)], "how to read it")
    )


def test_the_report_names_the_text_of_a_trained_model_and_of_a_pretrained_one():
    machine = {"torch": "2.13", "python": "3.12", "date": "2026-01-01", "device": "cpu"}
    facts = {"preset": "cpu", "seeds": 1, "machine": machine}
    trained = {**facts, "model": {"hidden_size": 64}, "corpus": {"fingerprint": "ab" * 32}}
    assert _environment(trained).endswith("2026-01-01. Text: sha256 abababababababab.")
    pretrained = {**facts, "model": "smollm2", "text": ["moby-dick", "sotu"]}
    assert _environment(pretrained).endswith("2026-01-01. Model smollm2, text moby-dick, sotu.")


def test_settings_in_the_report_are_indented_json():
    shown = Reader(details_html("Settings", {"text": {"名": 1}})).words
    assert shown == ["Settings", '{\n  "text": {\n    "名": 1\n  }\n}']


def test_fine_tuning_is_advised_from_tuned_rows_alone():
    fields = {"factor": 4, "length": 128}
    rows = [row("loss", [1.0, 1.1], method="none", seed=0, tuned=0, factor=1, length=32)]
    rows += [
        row("loss", [mean, mean + 0.1], method=name, seed=0, tuned=0, **fields)
        for name, mean in (("none", 3), ("yarn", 2))
    ]
    use = "Long documents, a little training"

    def advice(rows):
        return {
            each.use: each
            for each in recommend({"extend": StudyResult(rows, {"study": "extend"}, Findings())})
        }[use]

    assert (advice(rows).advice, advice(rows).reason) == (
        "Not measured here.",
        "no method was fine-tuned; set tuned_factors",
    )
    tuned = [
        row("loss", [mean, mean + 0.1], method=name, seed=0, tuned=40, **fields)
        for name, mean in (("none", 1), ("yarn", 2))
    ]
    assert advice(rows + tuned).advice == "none."
    assert advice(rows + tuned).reason.startswith(
        "loss at 4x after 40 steps at that length: none 1.050, yarn 2.050"
    )


def test_the_command_lists_runs_and_reports(capsys, tmp_path):
    code, out, _ = call(capsys, "lab", "list", "--json")
    assert code == 0
    assert list(json.loads(out)) == list(STUDIES)
    code, out, _ = call(
        capsys,
        "lab",
        "run",
        "precision",
        "--preset",
        "smoke",
        "--out",
        str(tmp_path),
        "--json",
        "--device",
        "cpu",
    )
    found = json.loads(out)
    assert code == 0
    assert found["studies"]["precision"] == []
    assert found["report"] == str(tmp_path / "report.html")
    (tmp_path / "report.html").unlink()
    code, out, _ = call(capsys, "lab", "report", str(tmp_path))
    assert code == 0
    assert (tmp_path / "report.html").exists()
    assert "report.html" in out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("lab", "run", "nonsense"), "NAME: must be one of encodings"),
        (("lab", "run", "precision", "--preset", "huge"), "preset: must be one of smoke, cpu"),
        (("lab", "run", "precision", "--set", "colour=red"), "a setting of precision"),
        (("lab", "report", "."), "ropewalk lab run"),
    ],
)
def test_a_bad_lab_command_exits_with_2_and_the_rule(capsys, tmp_path, monkeypatch, args, says):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *args)
    assert (code, out) == (2, "")
    assert says in re.sub(r"\s+", " ", err)


@pytest.mark.parametrize("text", ["[]", "null", "{"])
def test_a_study_without_its_facts_is_named(tmp_path, text):
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(RopeError, match=r"study: must have a .*study\.json"):
        read_study(tmp_path)


def test_a_damaged_log_is_named(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n{"step\n{"step": 3}\n')
    with pytest.raises(RopeError, match="log: must have a JSON object on every line"):
        read_log(tmp_path / "log.jsonl")


def test_a_stream_has_no_advice_if_every_loss_may_rise():
    """By more than 0.05 nats, two standard errors of the rise included."""

    def advice(rise):
        rows = []
        for model in ("rope, sliding window", "alibi"):
            near = np.array([1.0, 1.2, 1.4, 1.6])
            rows.append(row("loss", near, model=model, seed=0, length=8))
            rows.append(row("loss", near + rise, model=model, seed=0, length=32))
        result = StudyResult(rows, {"study": "encodings"}, Findings())
        return _stream(result)

    assert advice(0.051) == (
        "None of those measured.",
        "every loss may rise by more than 0.05 from 8 to 32",
    )
    assert advice(0.049) == (
        "One of these, lowest loss first: "
        "alibi (+0.049 ± 0.000); rope, sliding window (+0.049 ± 0.000).",
        "loss at 32 minus loss at 8, at most +0.05",
    )


@pytest.mark.parametrize(("spread", "advised"), [(0.005, True), (0.04, False)])
def test_a_rise_counts_with_two_standard_errors_of_it(spread, advised):
    """The mean rise is 0.03 nats; its windows are `spread` above and below it."""
    near = np.array([1.0, 1.2, 1.4, 1.6])
    rise = 0.03 + spread * np.array([1, -1, 1, -1])
    error = spread * np.sqrt(4 / 3) / 2  # of four windows, with n - 1
    rows = [
        row("loss", near, model="alibi", seed=0, length=8),
        row("loss", near + rise, model="alibi", seed=0, length=32),
    ]
    advice, _ = _stream(StudyResult(rows, {"study": "encodings"}, Findings()))
    assert (0.03 + 2 * error <= 0.05) == advised
    assert advice == (
        f"One of these, lowest loss first: alibi (+0.030 ± {error:.3f})."
        if advised
        else "None of those measured."
    )
