"""The words of the page: the same keys in both languages, and every one that the code names."""

import json
import re
from pathlib import Path

import pytest

from ropewalk_lab.page import server

WORDS = {
    name: json.loads((server.STATIC / "words" / f"{name}.json").read_text(encoding="utf-8"))
    for name in ("en", "zh")
}
CODE = {path.name: path.read_text(encoding="utf-8") for path in (server.STATIC / "js").glob("*.js")}
HAN = re.compile("[\u4e00-\u9fff]")
#: words that are the same in both languages
NAMES = ("comma", "scaling.", "doctor.config", "case.linear", "study.h200_fit")


def places(text: str) -> set[str]:
    return set(re.findall(r"\{\w+\}", text))


def test_both_languages_have_the_same_keys_and_placeholders():
    english, chinese = WORDS["en"], WORDS["zh"]
    assert set(chinese) == set(english)
    wrong = [key for key in english if places(english[key]) != places(chinese[key])]
    assert wrong == []


def test_chinese_is_chinese_and_english_is_not():
    left = [
        key
        for key, text in WORDS["zh"].items()
        if not HAN.search(text) and not key.startswith(NAMES)
    ]
    assert left == []
    assert [key for key, text in WORDS["en"].items() if HAN.search(text)] == []


@pytest.mark.parametrize("name", sorted(CODE))
def test_the_keys_of_words_in_the_javascript_exist(name):
    found = re.findall(r"\b(?:t|rich)\(\"([\w. ]+)\"", CODE[name])
    assert [key for key in found if key not in WORDS["en"]] == []
    # keys that the code puts together: at least one key exists that begins and ends as the parts do
    for start, end in re.findall(r"\bt\(`([\w.]*)\$\{[^`]*?\}([\w.]*)`", CODE[name]):
        assert any(key.startswith(start) and key.endswith(end) for key in WORDS["en"]), start


@pytest.mark.parametrize("name", sorted(CODE))
def test_no_javascript_file_contains_a_sentence(name):
    lines = [
        line for line in CODE[name].splitlines() if not line.lstrip().startswith(("//", "*", "/*"))
    ]
    code = re.sub(r'(class|className)\b[:= ]+["`][^"`]*["`]', "", "\n".join(lines))
    texts = re.findall(r'"((?:[^"\\\n]|\\.)*)"', code)
    sentence = re.compile(r"[a-z]{2,} [a-z]{2,} [a-z]{2,}", re.IGNORECASE)
    # the names of a module's parts, split at spaces, are no sentence
    assert [text for text in texts if sentence.search(text)] == []


def test_every_part_of_a_chosen_word_exists():
    """Keys whose end the page takes from a value of the data: the key for each value exists."""
    from ropewalk_lab.page.reading import TEXTS

    keys = [f"model.text.{name}" for name in TEXTS]
    methods = json.loads((server.STATIC / "data" / "methods.json").read_text(encoding="utf-8"))
    keys += [f"study.{name.split(' x')[0]}" for name in methods]
    keys += [f"methods.{metric}" for study in methods.values() for metric in study["curves"]]
    keys += [f"known.{name}" for name in ("formula", "run", "recorded", "rule", "not known")]
    assert [key for key in keys if key not in WORDS["en"]] == []


def test_nothing_is_put_into_the_page_as_html():
    for name, code in CODE.items():
        for way in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            'setTimeout("',
        ):
            assert way not in code, (name, way)
    assert Path(server.STATIC / "index.html").read_text(encoding="utf-8").count("<script") == 1
