"""Write the tables of the documentation between their markers: `python docs/tables.py`.

The encodings are measured now; benchmarks are read from `results/`, with their charts.
"""

from __future__ import annotations

from pathlib import Path

from ropewalk.attention.comparison import as_markdown, compare
from ropewalk.bench import chart, rows, tables

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
START, END = "<!-- {}: start -->\n", "<!-- {}: end -->"


def filled(text: str, name: str, table: str) -> str:
    """The page with what stands between the markers of `name` replaced."""
    start, end = START.format(name), END.format(name)
    return text[: text.index(start) + len(start)] + table + text[text.index(end) :]


def benchmark_page(text: str) -> str:
    """The benchmark page with every table as the committed rows have it."""
    for name, (file, table) in tables.TABLES.items():
        text = filled(text, name, table(rows.read(RESULTS / file)))
    return text


def main() -> None:
    """Rewrite the pages and charts, and print their paths."""
    encodings, benchmarks = DOCS / "encodings.md", DOCS / "benchmarks.md"
    encodings.write_text(filled(encodings.read_text(encoding="utf-8"), "comparison", as_markdown(compare())), encoding="utf-8")
    benchmarks.write_text(benchmark_page(benchmarks.read_text(encoding="utf-8")), encoding="utf-8")
    chart.gpu_chart(rows.read(RESULTS / "h200.jsonl"), DOCS / "images" / "gpu.png")
    chart.cpu_chart(rows.read(RESULTS / "cpu.jsonl"), DOCS / "images" / "cpu.png")
    print(encodings, benchmarks, sep="\n")


if __name__ == "__main__":
    main()
