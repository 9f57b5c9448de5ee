"""What the commands of the lab print: tables, verdicts and their colours, and JSON in place of
text.
"""

import json

import pytest

import command_line
from ropewalk_cli.commands import lab
from ropewalk_lab import downloads
from ropewalk_lab.published import PUBLISHED
from ropewalk_lab.studies.findings import FAILS, HOLDS, TIED, Claim, Findings, Ours, Table

FOUND = Findings(
    [Table("Loss", ("base", "8"), [("100", "1.5"), ("10,000", "2.5")], "Nats per byte.")],
    claims=[
        Claim("one is lower", HOLDS, "-1.0"),
        Claim("two is lower", FAILS, "+1.0"),
        Claim("three is lower", TIED, "0.0"),
    ],
    ours={"base-ablation": Ours(("loss at 8",), {"100": ("1.5",)})},
)


def test_a_study_is_shown_with_its_tables_those_of_others_and_its_verdicts(monkeypatch):
    tables, lines = [], []
    monkeypatch.setattr(lab, "table", lambda *parts: tables.append(parts))
    monkeypatch.setattr(lab, "say", lambda text, style="": lines.append((text, style)))
    lab.show(FOUND, "base")
    assert tables[0] == ("base: Loss", ("base", "8"), FOUND.tables[0].rows, "Nats per byte.")
    titles = [title for title, *_ in tables[1:]]
    assert f"base: As stated: {PUBLISHED['base-ablation'].title}" in titles
    assert all(title.startswith("base: ") for title in titles)
    assert lines == [
        ("holds: one is lower (-1.0)", "green"),
        ("does not hold: two is lower (+1.0)", "red"),
        ("within noise: three is lower (0.0)", ""),
    ]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_sample_names_its_files_one_on_a_line_or_as_json(capsys, tmp_path, as_json):
    options = ["--count", "20", "--json"] if as_json else ["--count", "20"]
    code, out, err = command_line.call(capsys, "lab", "sample", tmp_path / "s", *options)
    assert (code, err) == (0, "")
    files = sorted(str(path) for path in (tmp_path / "s").iterdir())
    named = json.loads(out)["files"] if as_json else out.splitlines()
    assert files
    assert sorted(named) == files


@pytest.fixture
def fetched(monkeypatch):
    """Return the list of (name, options) that were to be fetched; nothing is downloaded."""
    asked = []

    def fetch(name, folder, *, archive, report):
        asked.append((name, folder, archive))
        report(f"{name} is there")
        return f"/there/{name}"

    monkeypatch.setattr(downloads, "fetch", fetch)
    return asked


def test_fetched_files_are_named_by_name_as_json_alone(capsys, fetched, tmp_path):
    names = ("smollm2", "moby-dick")
    words = ("lab", "fetch", *names, "--folder", tmp_path)
    code, out, _ = command_line.call(capsys, *words, "--json")
    assert code == 0
    assert json.loads(out) == {name: f"/there/{name}" for name in names}
    assert command_line.call(capsys, *words)[1] == "smollm2 is there\nmoby-dick is there\n"
    assert fetched == [(name, tmp_path, None) for name in names] * 2


def test_what_would_be_fetched_is_described_and_not_fetched(capsys, fetched):
    words = ("lab", "fetch", "smollm2", "--dry-run")
    text = downloads.DOWNLOADS["smollm2"].describe()
    assert " ".join(command_line.call(capsys, *words)[1].split()) == f"smollm2: {text}"
    assert json.loads(command_line.call(capsys, *words, "--json")[1]) == {"smollm2": text}
    assert fetched == []


def test_an_archive_is_that_of_one_name(capsys, fetched, tmp_path):
    archive = tmp_path / "pack.whl"
    archive.write_bytes(b"")
    words = ("lab", "fetch", "smollm2", "--archive", archive)
    assert command_line.call(capsys, *words)[0] == 0
    assert fetched == [("smollm2", None, archive)]
    code, _, err = command_line.call(capsys, *words, "moby-dick")
    assert code == 2
    assert err.startswith("ropewalk: --archive: must be given with one NAME only")


def test_every_option_of_a_run_reaches_its_studies(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(
        "ropewalk_lab.studies.run_study", lambda *given, **named: calls.append((given, named))
    )
    monkeypatch.setattr(lab, "_write_report", lambda *_: None)
    lab.run(
        ["relative", "passkey"],
        preset="smoke",
        seeds=3,
        out=tmp_path,
        change=["seeds=2"],
        device="cpu",
        models=tmp_path / "models",
        workers=2,
        json=True,
    )
    for name, (given, named) in zip(("relative", "passkey"), calls, strict=True):
        assert (given[0].name, *given[1:]) == (name, "smoke", tmp_path)
        assert named == {
            "seeds": 3,
            "changes": ["seeds=2"],
            "device": "cpu",
            "models": tmp_path / "models",
            "workers": 2,
            "quiet": True,
        }
