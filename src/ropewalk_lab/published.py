"""Results of others to show beside our own, with their sources; none was measured by this project."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ropewalk_lab.data_files import toml_beside
from ropewalk_lab.studies.findings import Findings, Table


@dataclass(frozen=True)
class PublishedTable:
    """A table of results of others; its first column names the rows.

    source   the publication; "" for figures that articles about RoPE state without one
    setting  describes their models, which differ from ours
    """

    source: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    setting: str

    @property
    def heading(self) -> str:
        """The title, preceded by "As published", or by "As stated" if there is no publication."""
        return f"{'As published' if self.source else 'As stated'}: {self.title}"

    @property
    def origin(self) -> str:
        """The source and the setting as text."""
        return f"{self.source or 'Articles about RoPE state this table without a source'}. {self.setting}."


def _table(row: dict[str, Any]) -> PublishedTable:
    """Return one table of the data file; `row` has its fields as they were read, with lists in the
    place of tuples.
    """
    rows = tuple(tuple(cells) for cells in row["rows"])
    return PublishedTable(**{**row, "columns": tuple(row["columns"]), "rows": rows})


#: tables by name, from published.toml
PUBLISHED: dict[str, PublishedTable] = {
    name: _table(row) for name, row in toml_beside(__file__).items()
}


def beside(name: str, findings: Findings) -> Table:
    """Return the table `name` of PUBLISHED with our columns on the right; "-" where the study has
    no counterpart of a row. Without any value of ours, the table is as published.

    findings  of a study; its `ours` has our values for each table, by the first cell of a row
    """
    table, ours = PUBLISHED[name], findings.ours.get(name)
    if ours is None:
        return Table(table.heading, table.columns, list(table.rows), table.origin)
    columns = (*table.columns, *(f"ours: {column}" for column in ours.columns))
    rows = [(*row, *ours.cells.get(row[0], ("-",) * len(ours.columns))) for row in table.rows]
    return Table(table.heading, columns, rows, table.origin)


def compared(names: Iterable[str], findings: Findings) -> list[Table]:
    """Return those of the named tables of PUBLISHED for which the study has values of its own, with
    both.
    """
    return [beside(name, findings) for name in names if name in findings.ours]
