"""Sphinx extension: the search of the site finds English words and Chinese ones.

Chinese has no spaces, so a run of its characters is indexed and searched by each two neighbours.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.search.en import SearchEnglish

_WORD = re.compile(r"[\u4e00-\u9fff]+|[^\W\u4e00-\u9fff]+")
_CHINESE = re.compile(r"[\u4e00-\u9fff]{3,}")


class EnglishAndChinese(SearchEnglish):
    """English stems, and pairs of Chinese characters."""

    lang = "en+zh"
    #: the same as `split`; free of characters that HTML escapes
    js_splitter_code = r"""
var splitQuery = function (query) {
  const words = query.match(/[\u4e00-\u9fff]+|(?:(?![\u4e00-\u9fff])[\p{Letter}\p{Number}_])+/gu) || [];
  return words.flatMap(function (word) {
    if (!/^[\u4e00-\u9fff]{3,}$/.test(word)) return [word];
    return Array.from({ length: word.length - 1 }, function (_, i) { return word.slice(i, i + 2); });
  });
};
"""

    def split(self, input: str) -> list[str]:
        """Return the words of a text; a Chinese one of more than two characters as its pairs."""
        return [
            part
            for word in _WORD.findall(input)
            for part in (
                [word[i : i + 2] for i in range(len(word) - 1)]
                if _CHINESE.fullmatch(word)
                else [word]
            )
        ]


def setup(app: Any) -> dict[str, bool]:
    """Register the language with Sphinx."""
    app.add_search_language(EnglishAndChinese)
    return {"parallel_read_safe": True}
