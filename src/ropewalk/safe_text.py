"""Text from a file, as it may be printed: characters that a terminal would obey are escaped."""

from __future__ import annotations

import unicodedata

#: control characters, bidirectional and other invisible formats, lone surrogates, private and
#: unassigned characters, separators of lines and paragraphs
_ESCAPED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def shown(text: object) -> str:
    """Return a text in one line that a terminal shows and does not obey: "\\x1b" instead of ESC.

    A config or a file name may hold escape sequences, which change colours, titles or the
    clipboard, and bidirectional overrides, which show a text in another order than it has.
    """
    text = str(text)
    if text.isprintable():  # most texts
        return text
    return "".join(
        repr(each)[1:-1] if unicodedata.category(each) in _ESCAPED else each for each in text
    )
