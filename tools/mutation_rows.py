"""The results file of a mutation run: a line of JSON for each mutant; and the list of mutants that
change no result.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Collection
from pathlib import Path

from mutants import Mutant, mutants
from mutation_bench import ROOT

EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
Row = dict[str, object]


def equivalents() -> set[tuple[str, str, str]]:
    """Return (module, before, after) of the mutants known to change no result."""
    listed = (
        tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["equivalent"]
        if EQUIVALENT.exists()
        else []
    )
    return {(entry["module"], entry["before"], entry["after"]) for entry in listed}


def row_of(mutant: Mutant, verdict: str, caught_by: str | None = None) -> Row:
    """Return the row of a mutant; `caught_by` is that of its `Outcome`, mostly the first test that
    failed.
    """
    where = {
        "file": f"{mutant.module}.py",
        "line": mutant.line,
        "before": mutant.before,
        "after": mutant.after,
    }
    return {**where, "verdict": verdict, "caught_by": caught_by}


def append_row(path: Path, row: Row) -> None:
    """Write a row at the end of a file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def replace_rows(path: Path, rows: dict[int, Row]) -> None:
    """Replace lines of a file, given by their numbers from 0."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, row in rows.items():
        lines[number] = json.dumps(row)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def not_in(out: Path | None, picked: list[Mutant]) -> list[Mutant]:
    """Return the mutants of `picked` without a row in the file `out`."""
    if out is None or not out.exists():
        return picked
    rows = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    done = {(row["file"], row["line"], row["before"], row["after"]) for row in rows}
    return [m for m in picked if (f"{m.module}.py", m.line, m.before, m.after) not in done]


def survivors_in(path: Path, modules: Collection[str]) -> dict[Mutant, int]:
    """Return {mutant: number of its line, from 0} for the mutants of `modules` that survive in a
    file.

    A mutant is found by its text, so it may have moved within its module; one whose text is gone is
    named and left out.
    """
    found: dict[Mutant, int] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        row = json.loads(line)
        module = row["file"].removesuffix(".py")
        if row["verdict"] != "survived" or module not in modules:
            continue

        def nearest(keys: list, row: dict = row) -> list:
            """Return the (line, before, after) with the text of the row whose line is nearest to
            the row's, in a list.
            """
            same = [key for key in keys if key[1:] == (row["before"], row["after"])]
            return sorted(same, key=lambda key: abs(key[0] - row["line"]))[:1]

        source = ROOT / "src" / "ropewalk" / row["file"]
        same = (
            mutants(module, source.read_text(encoding="utf-8"), nearest) if source.is_file() else []
        )
        if not same:
            print(
                f"left out, because the code has changed: {row['file']}:{row['line']} "
                f"{row['before']}",
                file=sys.stderr,
            )
        found |= dict.fromkeys(same, number)
    return found
