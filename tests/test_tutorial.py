"""The tutorial: its notebook runs from top to bottom, its Chinese blocks run, and its tables are
those of the committed rows.
"""

import json
import re
import sys
import warnings
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


def run(blocks: list[str], folder: Path, monkeypatch) -> dict:
    monkeypatch.chdir(folder)
    names = {"__name__": "__tutorial__"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about other engines
        for place, block in enumerate(blocks):
            # the documents are ours
            exec(compile(block, f"block {place}", "exec"), names)  # noqa: S102
    return names


def test_the_notebook_runs_and_recommends_a_method(tmp_path, monkeypatch, capsys):
    notebook = json.loads((DOCS / "tutorial.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells), "outputs of one machine are not committed"
    names = run(["".join(cell["source"]) for cell in cells], tmp_path, monkeypatch)
    assert names["found"].recommendation.method in names["found"].facts["methods"]
    assert "Recommended for" in capsys.readouterr().out


def test_the_chinese_page_runs(tmp_path, monkeypatch):
    text = (DOCS / "zh" / "tutorial.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks
    assert "model" in run(blocks, tmp_path, monkeypatch)
    links = [link for link in re.findall(r"\]\(([^)#\s]+)\)", text) if ":" not in link]
    assert all((DOCS / "zh" / link).exists() for link in links)


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    sys.modules.pop("tables", None)
    import tables

    yield tables
    sys.modules.pop("tables", None)


@pytest.mark.parametrize("name", ["tutorial.md", "zh/tutorial.md"])
def test_the_tables_are_those_of_the_committed_rows(tables, name):
    text = (DOCS / name).read_text(encoding="utf-8")
    assert tables.tutorial_page(text, tables.TUTORIALS[name]) == text, "run python docs/tables.py"


def test_a_study_without_rows_is_said_to_be_not_measured(tables, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    page = tables.tutorial_page(
        "<!-- real-models: start -->\n<!-- real-models: end -->", "missing {}"
    )
    assert [f"missing {study}" in page for study in tables.REAL] == [True] * 5
