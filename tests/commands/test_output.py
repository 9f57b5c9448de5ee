"""Tables and lines of the command line: aligned, within the width, and nothing that a terminal
obeys.
"""

import io
import sys
import unicodedata

import pytest

from ropewalk_cli import output


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Standard output as a terminal of some columns."""

    def of(columns):
        screen = Terminal()
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        return screen

    return of


def columns_taken(line: str) -> int:
    """Columns of a line, counted as a terminal does."""
    wide = [each for each in line if unicodedata.east_asian_width(each) in "WF"]
    return len(unicodedata.normalize("NFC", line)) + len(wide)


def test_a_table_has_a_heading_aligned_columns_and_a_note(capsys):
    rows = [("theta", "10,000", ""), ("scaling", "yarn", "")]
    output.table("Values", ("name", "value", "never"), rows, "a note")
    assert capsys.readouterr().out == (
        "Values\nname     value\n-------  ------\ntheta    10,000\nscaling  yarn\na note\n\n"
    )


def test_empty_cells_are_dashes_and_wide_characters_take_two_columns(capsys):
    output.table("", ("a", "b", "c"), [("绳索", "", "1"), ("e\u0301", "x", "2")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "绳索  -  1"
    assert lines[3] == "e\u0301     x  2"


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_wide_table_is_broken_at_words_within_the_terminal(terminal, monkeypatch, width):
    screen = terminal(width)
    monkeypatch.setenv("NO_COLOR", "1")
    words = "the quick brown fox jumps over the lazy dog " * 3
    output.table("", ("a", "b"), [(words, words), ("敏捷的棕色狐狸跳过懒狗" * 4, "x" * 100)])
    lines = screen.getvalue().splitlines()
    assert max(map(columns_taken, lines)) <= width
    found = " ".join(screen.getvalue().split())
    assert found.count("quick") == 6
    assert found.replace(" ", "").count("x" * 1) == 106  # 100, and the six foxes


def test_words_stay_whole_while_another_column_can_give_way(terminal):
    screen = terminal(40)
    output.table(
        "", ("name", "text"), [("one_long_name_of_20_ch", "a b c d e f g h i j k l m n o")]
    )
    assert "one_long_name_of_20_ch" in screen.getvalue()


@pytest.mark.parametrize(
    ("no_color", "term", "coloured"),
    [("", "xterm", True), ("1", "xterm", False), ("", "dumb", False)],
)
def test_colours_are_for_a_terminal_that_wants_them(
    terminal, monkeypatch, no_color, term, coloured
):
    screen = terminal(80)
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", term)
    output.say("text", style="bold")
    assert screen.getvalue() == ("\x1b[1mtext\x1b[0m\n" if coloured else "text\n")


def test_a_pipe_gets_neither_colours_nor_escapes_of_a_file(capsys):
    output.say("a\x1b[31mb\nc\u202ed", style="red")
    output.table("t\x07", ("h\x1b",), [("c\x9b2J",)], "n\x1b]0;x\x07")
    out = capsys.readouterr().out
    assert out.startswith("a\\x1b[31mb\nc\\u202ed\nt\\x07\nh\\x1b\n")
    assert not any(unicodedata.category(each) in ("Cc", "Cf") for each in out if each != "\n")
