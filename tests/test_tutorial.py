"""The tutorial: its notebook runs from top to bottom and its Chinese blocks run."""

import json
import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def run(blocks: list[str], folder: Path, monkeypatch) -> dict:
    monkeypatch.chdir(folder)
    names = {"__name__": "__tutorial__"}
    for place, block in enumerate(blocks):
        # the documents are ours
        exec(compile(block, f"block {place}", "exec"), names)  # noqa: S102
    return names


def test_the_notebook_runs_and_recommends_a_method(tmp_path, monkeypatch, capsys):
    notebook = json.loads((DOCS / "tutorial.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in cells[1:]), "a reader sees what each cell prints"
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
