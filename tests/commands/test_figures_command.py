"""`ropewalk figures`: files on disk, names on the screen, refusals in one line."""

import json

import pytest

import command_line
from ropewalk_lab import plots
from ropewalk_lab.plots import look


def call(capsys, *args):
    return command_line.call(capsys, "figures", *args)


def test_every_figure_and_a_sheet_are_written(capsys, tmp_path, monkeypatch):
    # each figure is rendered in its own test; here three stand for all
    for name in list(plots.FIGURES)[3:]:
        monkeypatch.delitem(plots.FIGURES, name)
    code, out, err = call(capsys, tmp_path / "all")
    assert (code, err) == (0, "")
    written = {path.name for path in (tmp_path / "all").iterdir()}
    assert written == {f"{name}.png" for name in plots.FIGURES} | {
        "reading.gif",
        "contact-sheet.png",
    }
    assert [line.rsplit("/", 1)[-1] for line in out.split()] == [
        *(f"{name}.png" for name in plots.FIGURES),
        "reading.gif",
        "contact-sheet.png",
    ]


def test_options_select_figures_format_theme_and_config(capsys, tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"rope_theta": 100.0, "head_dim": 8, "max_position_embeddings": 64}')
    args = (
        tmp_path,
        "--only",
        "spectrum",
        "--only",
        "angles",
        "--format",
        "svg",
        "--dark",
        "--config",
        config,
        "--json",
    )
    code, out, _ = call(capsys, *args)
    found = json.loads(out)
    assert code == 0
    assert list(found["figures"]) == ["spectrum", "angles"]
    assert found["note"] is None
    svg = (tmp_path / "spectrum.svg").read_text(encoding="utf-8")
    assert look.Look(dark=True).paper in svg
    assert (tmp_path / "contact-sheet.png").exists()


def test_a_missing_chinese_font_is_reported(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(look, "chinese_font", lambda: None)
    code, out, _ = call(capsys, tmp_path, "--only", "angles", "--language", "zh")
    assert code == 0
    assert "labels are in English" in out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--only", "pie"), "--only: must be one of rotation"),
        (("--format", "bmp"), "--format: must be one of png, svg, pdf; got 'bmp'"),
        (("--language", "fr"), "--language: must be one of en, zh; got 'fr'"),
        (("--config", "nowhere.json"), "--config: must be the path of a config.json"),
    ],
)
def test_a_bad_request_is_one_line(capsys, tmp_path, args, says):
    code, out, err = call(capsys, tmp_path, *args)
    assert (code, out) == (2, "")
    assert err.startswith(f"ropewalk: {says}")
    assert err.count("\n") == 1
