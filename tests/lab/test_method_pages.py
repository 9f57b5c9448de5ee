"""The tables of a pretrained model on the pages of methods are those of the committed rows."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = {
    "no method": "none",
    "YaRN": "yarn",
    "DCA": "dca",
    "ReRoPE": "rerope",
    "Leaky ReRoPE": "leaky_rerope",
    "Self-Extend": "self_extend",
}


def measured(study: str) -> list[dict]:
    lines = (ROOT / "results" / "lab" / f"h200_{study}" / "rows.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def tables(page: str) -> list[list[list[str]]]:
    """The tables of a page that begin with a column `method`: their lines of cells, without the
    rule below the head.
    """
    found: list[list[list[str]]] = []
    for line in (ROOT / "docs" / "methods" / f"{page}.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| method |"):
            found.append([cells])
        elif line.startswith("|") and found and not line.startswith("|---"):
            found[-1].append(cells)
    return found


@pytest.mark.parametrize("page", ["dual-chunk-attention", "rerope", "self-extend"])
def test_method_pages_show_the_committed_losses_and_pass_keys(page):
    (_, *bands), *losses = tables(page)[-2]
    (_, *lengths), *keys = tables(page)[-1]
    assert {line[0] for line in losses} == {line[0] for line in keys} >= {"no method", "YaRN"}
    of_bands = {
        (row["method"], row["band"]): row["mean"]
        for row in measured("real_extend")
        if row.get("factor") == 4 and "band" in row
    }
    for name, *cells in losses:
        assert cells == [f"{of_bands[NAMES[name], band]:.3f}" for band in bands]
    for name, *cells in keys:
        found = [row for row in measured("real_passkey") if row["method"] == NAMES[name]]
        counts = [
            sum(row["mean"] for row in found if row["length"] == int(length.replace(",", "")))
            for length in lengths
        ]
        assert cells == [f"{count:.0f}" for count in counts]
