"""Plain text on a terminal or in a pipe: lines, headings and tables.

Every text passes `shown`, so that nothing in a file is obeyed by the terminal. Bold and colours are
used on a terminal only, and not if NO_COLOR is set or TERM is "dumb".
"""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TextIO

from ropewalk.safe_text import shown

#: columns of a line in a pipe
PIPE_WIDTH = 120
#: spaces between two columns of a table
GAP = 2
#: columns are not made narrower than this if that would break words
LEAST = 12
STYLES = {"bold": "1", "red": "31", "green": "32", "yellow": "33"}


def say(*texts: object, style: str = "", file: TextIO | None = None) -> None:
    """Print texts, each from the beginning of a line; a long line is not broken. `style` is a name
    in STYLES, `file` is stdout or stderr.
    """
    file = sys.stdout if file is None else file
    for text in texts:
        # progress, which is on stderr, must be seen at once
        for line in str(text).split("\n"):
            print(styled(shown(line), style, file), file=file, flush=file is sys.stderr)


def styled(text: str, style: str, file: TextIO | None = None) -> str:
    """Return the text in a style of STYLES if it is for a terminal; otherwise as it is."""
    if not style or not text or not has_colours(sys.stdout if file is None else file):
        return text
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


def has_colours(file: TextIO) -> bool:
    """Return whether a file is a terminal that shows bold and colours, unless NO_COLOR is set."""
    dumb = os.environ.get("TERM") == "dumb"
    return file.isatty() and not os.environ.get("NO_COLOR") and not dumb


def line_width() -> int:
    """Return the columns of the terminal, at least 40; always 120 if the output is piped."""
    return max(40, shutil.get_terminal_size().columns) if sys.stdout.isatty() else PIPE_WIDTH


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    note: str = "",
    *,
    red: str | None = None,
) -> None:
    """Print a table below its title, with a note below it; columns that are empty are left out.

    red  rows whose last cell begins with this are red
    """
    cells = [[shown(cell) for cell in row] for row in rows]
    kept = [place for place in range(len(columns)) if any(row[place] for row in cells)]
    head = [shown(columns[place]) for place in kept]
    body = [[row[place] or "-" for place in kept] for row in cells]
    widths = _widths([head, *body], line_width())
    if title:
        print(styled(shown(title), "bold"))
    if any(head):
        for line in _lines(head, widths):
            print(styled(line, "bold"))
        print((" " * GAP).join("-" * width for width in widths))
    for row in body:
        failed = red is not None and row[-1].startswith(red)
        for line in _lines(row, widths):
            print(styled(line, "red" if failed else ""))
    for line in wrapped(shown(note), line_width()) if note else ():
        print(line)
    print()


def columns_of(rows: Sequence[Sequence[str]], width: int, indent: int = 2) -> list[str]:
    """Return rows of cells as lines in columns, each line indented and at most `width` wide."""
    widths = _widths(rows, width - indent)
    return [" " * indent + line for row in rows for line in _lines(row, widths)]


def _widths(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the width of each column: the widest are narrowed until all fit in `width`, first to
    their longest words, and only then down to LEAST.
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(map(width_of, column)) for column in columns]
    # the longest word of each column
    words = [
        max(width_of(word) for cell in column for word in cell.split(" ")) for column in columns
    ]
    available = width - GAP * (len(widths) - 1)
    for least in (words, [LEAST] * len(words)):
        while sum(widths) > available:
            spare = [each - low for each, low in zip(widths, least, strict=True)]
            # the widest of the columns that may still be narrowed
            widest = max(range(len(widths)), key=lambda i: (spare[i] > 0, widths[i]))
            if spare[widest] <= 0:
                break
            widths[widest] -= 1
    return widths


def _lines(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return the lines of one row; a cell that is too wide takes several."""
    parts = [wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
    height = max(map(len, parts), default=0)
    filled = [[*part, *[""] * (height - len(part))] for part in parts]
    return [
        (" " * GAP)
        .join(
            text + " " * (width - width_of(text)) for text, width in zip(line, widths, strict=True)
        )
        .rstrip()
        for line in zip(*filled, strict=True)
    ]


def wrapped(text: str, width: int) -> list[str]:
    """Return a text in lines of at most `width` columns, broken at spaces where it has them."""
    lines, line = [], ""
    for word in text.split(" "):
        if line and width_of(line) + 1 + width_of(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
        while width_of(line) > width:  # a path, or a language without spaces
            head = _head(line, width)
            lines.append(head)
            line = line[len(head) :]
    return [*lines, line]


def _head(text: str, width: int) -> str:
    """Return as much of the beginning of a text as fits, at least one character."""
    taken = 0
    for place, character in enumerate(text):
        taken += width_of(character)
        if taken > width:
            return text[: max(1, place)]
    return text


def width_of(text: str) -> int:
    """Return how many columns a text takes: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in text
    )
