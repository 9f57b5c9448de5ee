"""Measure the tables of the documentation: `python docs/tables.py` writes them between their markers."""

from __future__ import annotations

from pathlib import Path

from ropewalk.attention.comparison import as_markdown, compare

PAGE = Path(__file__).parent / "encodings.md"
START, END = "<!-- comparison: start -->\n", "<!-- comparison: end -->"


def main() -> None:
    """Put the comparison of the encodings as measured now into its page, and print the path."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text[: text.index(START) + len(START)], text[text.index(END) :]
    PAGE.write_text(f"{before}{as_markdown(compare())}{after}", encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
