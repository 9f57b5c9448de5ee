"""Chinese translations of the page's texts, by English text, from words.toml; labels of figures
come from `plots`.
"""

from __future__ import annotations

from collections.abc import Callable

from ropewalk.frequencies import Scaling
from ropewalk_lab.data_files import toml_beside
from ropewalk_lab.plots.words import CHINESE as FIGURES_CHINESE

#: returns a text in the language of the page, with its {names} replaced
Translate = Callable[..., str]

_PARTS = toml_beside(__file__)
CHINESE: dict[str, str] = dict(FIGURES_CHINESE)
for _part in _PARTS.values():
    CHINESE |= _part


def about(scaling: type[Scaling], language: str) -> str:
    """Return the first docstring line of a scaling, translated if the language is zh."""
    paragraph = (scaling.__doc__ or scaling.__name__).strip().split("\n\n")[0]
    line = " ".join(paragraph.split())
    return CHINESE.get(line, line) if language == "zh" else line


def translator(language: str) -> Translate:
    """Return a function that translates the page's texts to a language."""

    def translate(text: str, **values: object) -> str:
        return (CHINESE[text] if language == "zh" else text).format(**values)

    return translate
