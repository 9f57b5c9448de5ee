"""The page without a server: what `make web` builds, and the data files that it shows."""

import gzip
import json
import re
import sys
from pathlib import Path

import ropewalk as rw
from ropewalk_lab.page import server
from ropewalk_lab.page.answers import known_models
from test_architecture import RINGS

ROOT = Path(__file__).parents[2]
MOST_BYTES = 6_000_000


def test_the_build_packs_the_modules_of_the_first_ring():
    text = (ROOT / "web" / "build.mjs").read_text(encoding="utf-8")
    (names,) = re.findall(r'const RING = "([^"]+)"', text)
    assert set(names.split()) == {"__init__", *RINGS[1].split()}


def test_the_data_files_are_those_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    sys.modules.pop("page", None)
    from page.data import files

    for name, text in files().items():
        found = (server.STATIC / "data" / name).read_text(encoding="utf-8")
        assert found == text, f"run: PYTHONPATH=tools python -m page.data ({name})"


def test_a_table_of_stacks_is_read_as_one_of_engines(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from page.data import matrix

    row = {
        "stack": "a server",
        "version": "1.2",
        "date": "2026-11",
        "config": "mine",
        "verdict": "pairs",
        "first_pair": 3,
        "config_json": {
            "model_type": "llama",
            "rope_scaling": {"rope_type": "yarn", "factor": 2.0},
        },
        "evidence": "run",
    }
    found = matrix([[row]])
    assert found["engines"] == [{"name": "a server", "version": "1.2", "date": "2026-11"}]
    (only,) = found["rows"]
    assert (only["family"], only["scaling"]) == ("llama", "yarn")
    assert only["cells"] == [[["differs", None, 3, None, "run"]]]


def test_the_policy_of_the_page_names_no_other_host():
    text = (server.STATIC / "index.html").read_text(encoding="utf-8")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy
    assert "unsafe-inline" not in policy
    assert "'unsafe-eval'" not in policy
    assert re.findall(r'(?:src|href)="(?:https?:)?//', text) == []


def test_the_built_page_is_small_and_has_all_files(static):
    folder = ROOT / "build" / "web"
    files = [path for path in folder.rglob("*") if path.is_file()]
    sizes = {path: len(gzip.compress(path.read_bytes(), 6)) for path in files}
    assert sum(sizes.values()) <= MOST_BYTES
    assert (
        json.loads((folder / "data" / "known.json").read_text(encoding="utf-8")) == known_models()
    )
    assert (folder / "preview.png").read_bytes().startswith(b"\x89PNG")


def test_python_in_the_browser_answers_as_python_does(browser, static):
    browser.watch()
    browser.open(f"{static}/#methods?lang=en", "document.querySelector('svg.chart') !== null")
    asked = (("Qwen3-8B", "vllm", 131072), ("Llama-3.1-8B", "mlx-lm", 262144))
    for count, (model, engine, length) in enumerate(asked, 1):
        hash_ = f"#doctor?lang=en&model={model}&engine={engine}&length={length}"
        browser.js(f"location.hash = {json.dumps(hash_)}")
        answered = "document.documentElement.dataset.answered"
        browser.wait(f"Number({answered}) === {count}", "an answer", 120)
        found = rw.doctor(json.loads(known_models()[model]), engine, length)
        causes = browser.texts(".finding h3")
        assert causes == [each.cause for each in found.findings]
        if found.corrected:
            browser.press("[role=tab]", "config.json")
            shown = browser.js("document.querySelector('[role=tabpanel] pre').textContent")
            assert shown == json.dumps(found.corrected, indent=2)
    sent = [
        each for each in browser.requests() if not each.startswith(("about:", "blob:", "data:"))
    ]
    assert len(sent) > 20
    assert [each for each in sent if not each.startswith(f"{static}/")] == []
    assert browser.errors() == []


def test_every_cell_of_the_stacks_is_in_the_matrix():
    """By stack, version and date, with its config, its state and its reason."""
    stacks = json.loads((ROOT / "results" / "stacks.json").read_text(encoding="utf-8"))
    text = (server.STATIC / "data" / "matrix.json").read_text(encoding="utf-8")
    matrix = json.loads(text)
    columns = {(each["name"], each["version"]): i for i, each in enumerate(matrix["engines"])}
    rows = {row["name"]: row for row in matrix["rows"] if row["length"] is None}
    states = {"agrees": ["same"], "differs": ["differs", "factor"], "refuses": ["refused"]}
    assert len(stacks) == 20
    for stack in stacks:
        column = columns[stack["stack"], stack["version"]]
        assert matrix["engines"][column]["date"].startswith("2026-11")
        for name, cell in stack["cells"].items():
            (found,) = rows[name]["cells"][column]
            assert found[0] in states.get(cell["result"], ["cannot"]), (stack["stack"], name)
            assert found[4] is None or found[4].startswith(cell["words"][:100])
            assert json.loads(rows[name]["config"])
