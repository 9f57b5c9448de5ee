"""From words to values: types, names, choices and defaults of a signature, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest

from command_line import all_functions, call
from ropewalk import cli
from ropewalk_cli.declare import Argument, Option, parameters
from ropewalk_cli.words import HelpAsked, UsageError, read

SEEN = []


def sample(
    source: Annotated[Path, Argument("Where from.")],
    target: Annotated[Path | None, Argument("Where to.", "TO")] = None,
    *,
    count: Annotated[int, Option("How many.")] = 3,
    rate: float | None = None,
    from_layout: Annotated[Literal["half", "interleaved"], Option("", "--from")] = "half",
    change: Annotated[list[str] | None, Option("", "--set")] = None,
    browser: bool = True,
    dry_run: bool = False,
) -> None:
    """Take one of each."""
    SEEN.append((source, target, count, rate, from_layout, change, browser, dry_run))


DEFAULTS = {
    "target": None,
    "count": 3,
    "rate": None,
    "from_layout": "half",
    "change": None,
    "browser": True,
    "dry_run": False,
}


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("a", {}),
        ("a b", {"target": Path("b")}),
        # an argument that may be left out, after an option
        ("a --count 5 b", {"target": Path("b"), "count": 5}),
        ("--dry-run a --rate=-2.5 b", {"target": Path("b"), "rate": -2.5, "dry_run": True}),
        ("a --count -4", {"count": -4}),
        ("a -7", {"target": Path("-7")}),
        ("a -- --count", {"target": Path("--count")}),
        ("a -", {"target": Path("-")}),
        ("a --from interleaved", {"from_layout": "interleaved"}),
        ("a --set x=1 --set=y=-2 --set -z", {"change": ["x=1", "y=-2", "-z"]}),
        ("a --no-browser", {"browser": False}),
        ("a --no-browser --browser", {}),
        ("a --count 1 --count 2", {"count": 2}),
    ],
)
def test_words_become_values(words, values):
    expected = {"source": Path("a"), **DEFAULTS, **values}
    assert read(words.split(), parameters(sample)) == expected


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "SOURCE must be given"),
        # a wrong word is named before a missing one
        ("--cuont 3", r"no such option: --cuont (did you mean --count?)"),
        ("a -x", "no such option: -x"),
        ("--hlp", "no such option: --hlp (did you mean --help?)"),
        ("a b c", "one argument too many: 'c'"),
        ("a --count", "--count needs a value"),
        ("a --count --dry-run", "--count needs a value"),
        ("a --dry-run=1", "--dry-run takes no value"),
        ("a --no-dry-run", "no such option: --no-dry-run (did you mean --dry-run?)"),
    ],
)
def test_words_that_are_not_understood_are_refused_with_what_to_write(words, says):
    with pytest.raises(UsageError) as raised:
        read(words.split(), parameters(sample))
    assert str(raised.value) == says


def test_help_is_asked_for_anywhere_but_after_two_dashes():
    for words in (["--help"], ["a", "-h"], ["--count", "x", "--help"]):
        with pytest.raises(HelpAsked):
            read(words, parameters(sample))
    assert read(["--", "--help"], parameters(sample))["source"] == Path("--help")


@pytest.fixture
def ran(capsys, monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "sample", f"{__name__}:sample")
    return lambda *words: call(capsys, "sample", *words)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("a --count x", "--count: must be an integer; got 'x'"),
        ("a --count 1.5", "--count: must be an integer; got '1.5'"),
        ("a --rate 1,5", "--rate: must be a number; got '1,5'"),
        ("a --from=up", "--from: must be one of half, interleaved; got 'up'"),
        (
            "a --cuont 3",
            "no such option: --cuont (did you mean --count?); see: ropewalk sample --help",
        ),
    ],
)
def test_an_error_names_the_option_in_one_line(ran, words, says):
    assert ran(*words.split()) == (2, "", f"ropewalk: {says}\n")


def test_help_shows_choices_and_defaults_and_no_value_beside_a_flag(ran):
    lines = [" ".join(line.split()) for line in ran("--help")[1].splitlines()]
    assert "Usage: ropewalk sample [OPTIONS] SOURCE [TO]" in lines
    for line in (
        "SOURCE Where from.",
        "--count INTEGER How many. [default: 3]",
        "--from TEXT [one of half, interleaved; default: half]",
        "--set TEXT [may be repeated]",
        "--browser, --no-browser [default: --browser]",
        "--dry-run",
    ):
        assert line in lines


def test_an_argument_of_a_type_that_no_word_can_give_is_an_error():
    def wrong(value: dict) -> None:
        """Take a dict."""

    with pytest.raises(TypeError, match="a command takes str, int"):
        parameters(wrong)


def test_no_two_options_of_a_command_have_one_name():
    for words, function in all_functions().items():
        names = [name for each in parameters(function) for name in each.names]
        assert len(names) == len(set(names)), words


def test_choices_are_those_of_the_library():
    """They are written in signatures, so that help imports nothing."""
    from ropewalk.diagnosis.engine import NAMES
    from ropewalk.frequencies import Ntk
    from ropewalk.interop.extend.keys import kinds
    from ropewalk.spec import LAYOUTS
    from ropewalk_lab.engines_run.installed import TITLES
    from ropewalk_lab.plots.look import FORMATS, LANGUAGES

    functions = all_functions()
    choices = {
        (words, each.shown): set(each.choices)
        for words, function in functions.items()
        for each in parameters(function)
    }
    written = {name for name, scaling in kinds().items() if scaling.in_configs or scaling is Ntk}
    assert choices["extend", "KIND"] == written
    assert choices["engines", "--only"] == set(TITLES)
    assert {NAMES[name] for name in choices["doctor", "--engine"]} == set(NAMES.values())
    assert choices["convert", "--from"] == choices["convert", "--to"] == set(LAYOUTS)
    assert choices["figures", "--format"] == set(FORMATS)
    assert choices["figures", "--language"] == set(LANGUAGES)
