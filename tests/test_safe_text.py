"""Text of a file on a terminal: what a terminal would obey is shown instead."""

import sys
import unicodedata

import pytest

from ropewalk.errors import MissingExtra, RopeError
from ropewalk.safe_text import shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("title\x1b]0;x\x07", "title\\x1b]0;x\\x07"),
        ("\x9b31m", "\\x9b31m"),  # \x9b is the one-byte form of ESC [
        ("two\nlines\r\x7f", "two\\nlines\\r\\x7f"),
        ("abc\u202edcba", "abc\\u202edcba"),
        ("\u2066x\u2069\u200b\ufeff", "\\u2066x\\u2069\\u200b\\ufeff"),
        ("\u2028\udc80", "\\u2028\\udc80"),
        ("plain, 绳索, é, 🧵, \u3000", "plain, 绳索, é, 🧵, \u3000"),
        (3, "3"),
    ],
)
def test_control_characters_are_escaped_and_text_stays(text, expected):
    assert shown(text) == expected


def test_no_control_character_of_unicode_passes():
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)) in ("Cc", "Cf", "Zl", "Zp"):
            assert shown(chr(code)).isascii(), hex(code)
            assert shown(chr(code)).isprintable(), hex(code)


def test_an_error_shows_what_a_file_says():
    error = RopeError("key\x1b[2J", "must not be \u202e\x07", "\x9b")
    assert str(error) == "key\\x1b[2J: must not be \\u202e\\x07; got '\\x9b'"
    assert error.field == "key\x1b[2J"
    assert "\x1b" not in str(MissingExtra("\x1b", "torch", "torch"))
