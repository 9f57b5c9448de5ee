"""The rows of stacks.toml, and the results file."""

from __future__ import annotations

import json
import tomllib
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "stacks.json"
#: fields of a stack's row in stacks.toml that its result repeats
TOLD = ("stack", "version", "how", "entry", "calls")


@cache
def table() -> dict[str, Any]:
    """Return the contents of stacks.toml."""
    return tomllib.loads((Path(__file__).parent / "stacks.toml").read_text(encoding="utf-8"))


def stacks() -> list[dict[str, Any]]:
    """Return the rows, one for each stack."""
    return table()["stack"]


def row(name: str) -> dict[str, Any]:
    """Return the row of a stack."""
    return next(each for each in stacks() if each["stack"] == name)


def because(name: str, cell: str, result: dict[str, Any]) -> str | None:
    """Return the sentence that says why a cell differs, written by hand from the stack's source; None
    if there is none.
    """
    for each in [*row(name).get("because", ()), *table()["because"]]:
        fits = any(fnmatch(cell, pattern) for pattern in each.get("cells", ["*"]))
        if fits and each.get("mistake", result["mistake"]) == result["mistake"]:
            return each["words"]
    return None


def record(name: str, date: str, cells: dict[str, dict[str, Any]] | str) -> dict[str, Any]:
    """Return the result of a stack: its cells, or the reason why there are none."""
    kept = {key: row(name)[key] for key in TOLD} | {"date": date}
    if isinstance(cells, str):
        return kept | {"failed": cells}
    for cell, result in cells.items():
        if result["result"] == "differs":
            result["because"] = because(name, cell, result)
    return kept | {"cells": cells}


def read() -> list[dict[str, Any]]:
    """Return the recorded results."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []


def write(results: list[dict[str, Any]]) -> None:
    """Write the results in the order of the data file, one cell in a line."""
    order = [each["stack"] for each in stacks()]
    lines = []
    for each in sorted(results, key=lambda result: order.index(result["stack"])):
        head = {key: value for key, value in each.items() if key != "cells"}
        text = json.dumps(head, ensure_ascii=False)
        if "cells" in each:
            inside = [
                f"   {json.dumps(cell)}: {json.dumps(result, ensure_ascii=False)}"
                for cell, result in each["cells"].items()
            ]
            text = text[:-1] + ',\n  "cells": {\n' + ",\n".join(inside) + "\n  }}"
        lines.append(f" {text}")
    RESULTS.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
