"""What `doctor` returns: the findings from the heaviest to the lightest, and the corrected config.

`words` are the texts of report.toml in one language, by their names: sentences with braces, the
signs between parts ("comma", "semicolon"), and tables of words such as those for severities.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ropewalk.caches import cached
from ropewalk.diagnosis.effects import Effect
from ropewalk.diagnosis.mistakes import SEVERITIES
from ropewalk.safe_text import shown

WORDS = Path(__file__).with_name("report.toml")
#: the exit status of `ropewalk doctor` by the severity of the heaviest finding; 2: a refused input
EXIT_STATUS = {"error": 4, "warning": 3, "note": 0}


@cached("words of reports", entries=1)
def _all_words() -> dict[str, dict[str, Any]]:
    """Return {language: its words}, for "en" and "zh"."""
    return tomllib.loads(WORDS.read_text(encoding="utf-8"))


def report_words(language: str) -> dict[str, Any]:
    """Return the words of a report around its findings, "en" or "zh"."""
    return _all_words()[language]


@dataclass(frozen=True)
class Evidence:
    """How the effect of a finding is known. `engine` and `version` are "" where none is meant.

    "formula"    by arithmetic on the config
    "run"        the engine, in this version, was run here with the config
    "recorded"   it was run elsewhere, and the result is kept in this library
    "rule"       by reading its source code
    "not known"  not at all
    """

    known: str = "formula"
    engine: str = ""
    version: str = ""

    def __str__(self) -> str:
        return self.in_words(report_words("en"))

    def in_words(self, words: Mapping[str, Any]) -> str:
        """Return the evidence as text; `words` are those of `report_words` in a language."""
        release = f"{self.engine} {self.version}".strip()
        return words["comma"].join(filter(None, (words["evidence"][self.known], release)))


@dataclass(frozen=True)
class Finding:
    """One mistake of a config.

    id                  the name of its row in mistakes.toml
    severity            "error": the model computes something else, or does not start; "warning":
                        engines or releases may differ; "note": worth knowing, nothing to change
    key, value          the config key that it is about, and its value
    cause, effect, fix  in words
    effects             the effect in numbers, for each layer type that it changes
    compared            which rope `effects` compare with the repaired one: that "before the
                        repair", or, if it cannot be read, that "without the rope object"
    repaired            whether the corrected config has the repair
    """

    id: str
    severity: str
    key: str
    value: Any
    cause: str
    effect: str
    fix: str
    evidence: Evidence = Evidence()
    effects: tuple[Effect, ...] = ()
    compared: str = "before the repair"
    repaired: bool = False

    def lines(self, language: str = "en") -> list[str]:
        """Return the finding as lines of text."""
        words = report_words(language)
        effects = words["semicolon"].join(each.in_words(words) for each in self.effects)
        numbers = {"compared": words["compared"][self.compared], "numbers": effects}
        known = self.evidence.in_words(words)
        head = {"severity": words["names"][self.severity], "cause": self.cause, "id": self.id}
        return [
            words["finding"].format(**head),
            words["effect"].format(effect=self.effect),
            *([words["numbers"].format(**numbers)] if effects else []),
            words["known"].format(known=known),
            words["fix"].format(fix=self.fix),
        ]


@dataclass(frozen=True)
class Diagnosis:
    """The findings about a config, and the corrected config with its other forms.

    known       whether the model_type is known
    findings    the mistakes, the heaviest first
    corrected   the config with all repairs; None if nothing was repaired
    patch       the difference between the config and the corrected one, as a unified diff
    flags       {engine: what to paste instead of changing the file}
    draft       the corrected config of the draft model; None if nothing in it was repaired
    engine      the engine that was asked for, as `audit` names it; None: none
    length      tokens of the longest sequence in use; None: not given
    language    the language of the texts, "en" or "zh"
    """

    model_type: str | None
    known: bool
    findings: tuple[Finding, ...] = ()
    corrected: dict[str, Any] | None = None
    patch: str = ""
    flags: Mapping[str, str] = field(default_factory=dict)
    draft: dict[str, Any] | None = None
    engine: str | None = None
    length: int | None = None
    language: str = "en"

    @property
    def severity(self) -> str | None:
        """The severity of the heaviest finding; None if there is none."""
        return next((s for s in SEVERITIES if any(f.severity == s for f in self.findings)), None)

    @property
    def exit_status(self) -> int:
        """0 if nothing is to be changed, 3 after a warning, 4 after an error."""
        return EXIT_STATUS.get(self.severity or "", 0)

    @property
    def verdict(self) -> str:
        """One line: how many findings there are, and how many errors and warnings are repaired."""
        words = report_words(self.language)
        about = self.model_type or words["no_type"]
        counts = {s: sum(f.severity == s for f in self.findings) for s in SEVERITIES}
        told = words["comma"].join(
            words["one" if n == 1 else "many"][s].format(n=n) for s, n in counts.items() if n
        )
        heavy = [f for f in self.findings if f.severity != "note"]
        if not heavy:
            told = words["told"].format(told=told) if told else ""
            return words["nothing"].format(about=about, told=told)
        repaired = sum(f.repaired for f in heavy)
        end = words["all" if repaired == len(heavy) else "some"].format(n=repaired)
        return words["verdict"].format(about=about, told=told, end=end)

    def as_dict(self) -> dict[str, Any]:
        """Return the diagnosis as plain data for JSON, in which NaN and infinity are texts."""
        plain = _plain(asdict(self))
        return {
            "verdict": self.verdict,
            "severity": self.severity,
            "exit_status": self.exit_status,
            **plain,
        }

    def __str__(self) -> str:
        """Return the verdict, the findings, and the repair."""
        words = report_words(self.language)
        lines = [self.verdict]
        for finding in self.findings:
            lines += ["", *map(shown, finding.lines(self.language))]
        if self.patch:
            lines += ["", words["corrected"], *map(shown, self.patch.splitlines())]
        for name, text in self.flags.items():
            # with the engine that was asked for, the others are of no use
            if self.engine in self.flags and name != self.engine:
                continue
            lines += ["", words["or"].format(engine=name), *map(shown, text.splitlines())]
        if self.draft is not None:
            lines += ["", words["draft"]]
        return "\n".join(lines)


def _plain(value: Any) -> Any:
    """Return a value with texts in place of NaN and infinity, and lists in place of tuples."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and value - value != 0:  # NaN or infinite
        return str(value)
    return value
