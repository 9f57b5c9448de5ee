"""What to use for what, read from the rows of studies: no row, no advice; and none for what the noise covers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.lab.statistics import Score, compare, rank
from ropewalk.lab.studies.page import HOLDS, Page, floor_of, gap
from ropewalk.lab.studies.rows import Row, chosen, known, score

#: text that is source code
CODE = ("code", "stdlib", "torch")


@dataclass(frozen=True)
class Value:
    """A study that was run: its rows, its facts, and what it says of them."""

    rows: list[Row]
    facts: dict[str, Any]
    page: Page


@dataclass(frozen=True)
class Advice:
    """What to use for what, and the measured reason."""

    use: str
    advice: str
    because: str


Studies = Mapping[str, Value]


def guidance(studies: Studies) -> list[Advice]:
    """An answer, or a refusal with its reason, for every use in RULES."""
    found = []
    for use, (needs, rule) in RULES.items():
        if needs in studies:
            found.append(Advice(use, *rule(studies[needs])))
        else:
            found.append(Advice(use, "Not measured here.", f"run: ropewalk lab run {needs}"))
    return found


def lowest(scores: Mapping[str, Score], what: str, *, same_model: bool = False) -> tuple[str, str]:
    """(advice, reason): the lowest of some scores, or all that cannot be told from it."""
    if len(scores) < 2:
        return "No advice: there is nothing to compare with.", f"only {', '.join(scores) or 'nothing'} was measured"
    floor = floor_of(list(scores.values()), same_model=same_model)
    groups = rank(scores, floor=floor)
    first, told = groups[0], [name for group in groups for name in group]
    if len(first) == len(scores):
        return "No advice: the noise covers every difference.", f"{what}: {', '.join(f'{n} {scores[n].mean:.3f}' for n in told)}"
    second = groups[1][0]
    step = compare(scores[first[0]], scores[second], floor=floor)
    reason = f"{what}: {first[0]} {scores[first[0]].mean:.3f}, {second} {scores[second].mean:.3f}, paired {gap(step)}"
    if len(first) > 1:
        return f"Any of {', '.join(first)}: the noise covers the difference.", reason
    return f"{first[0]}.", reason


def _corpus(found: Value) -> str:
    return str(found.facts.get("data", {}).get("source", "text"))


def _near(found: Value) -> tuple[str, str]:
    length = known(found.rows, "loss", "length")[0]
    names = [name for name in known(found.rows, "loss", "model") if "," not in name]
    scores = _scores(found.rows, "model", names, length=length)
    return lowest(scores, f"loss at the trained length, {length}, on {_corpus(found)}")


def _code(found: Value) -> tuple[str, str]:
    if _corpus(found) not in CODE:
        return "Not measured here.", f"the text was {_corpus(found)}; set data.source to code"
    length = known(found.rows, "loss", "length")[-1]
    scores = _scores(found.rows, "model", known(found.rows, "loss", "model"), length=length)
    return lowest(scores, f"loss at {length} tokens of source code, trained on fewer")


def _stream(found: Value) -> tuple[str, str]:
    lengths = known(found.rows, "loss", "length")
    flat = []
    for name in known(found.rows, "loss", "model"):
        near, far = (score(found.rows, "loss", model=name, length=n) for n in (lengths[0], lengths[-1]))
        if near is not None and far is not None:
            step = compare(far, near)
            if step.difference + 2 * step.error <= 0.05:
                flat.append((far.mean, f"{name} ({gap(step)})"))
    if not flat:
        return "None of those measured.", f"every loss rises by more than 0.05 from {lengths[0]} to {lengths[-1]}"
    told = ", ".join(text for _, text in sorted(flat))
    return "One of these, lowest loss first: " + told + ".", f"loss at {lengths[-1]} less that at {lengths[0]}, at most +0.05"


def _zero_shot(found: Value) -> tuple[str, str]:
    factor = max(known(found.rows, "loss", "factor", tuned=0))
    scores = _scores(found.rows, "method", known(found.rows, "loss", "method", tuned=0), tuned=0, factor=factor)
    return lowest(scores, f"loss at {factor}x, without training", same_model=True)


def _tuned(found: Value) -> tuple[str, str]:
    rows = [r for r in found.rows if r["metric"] == "loss" and r["tuned"]]
    if not rows:
        return "Not measured here.", "no method was fine-tuned; set tuned_factors"
    factor = max(r["factor"] for r in rows)
    rows = [r for r in rows if r["factor"] == factor]
    start = chosen(found.rows, "loss", tuned=0, factor=1)[0]["length"]
    scores = _scores(rows, "method", known(rows, "loss", "method"), length=factor * start)
    return lowest(scores, f"loss at {factor}x after {rows[0]['tuned']} steps there")


def _retrieval(found: Value) -> tuple[str, str]:
    if found.page.claims[0].verdict != HOLDS:
        return "No advice: the keys were not found even at the trained length.", found.page.claims[0].evidence
    far = max(known(found.rows, "found", "length"))
    wrong = {}
    for method in known(found.rows, "found", "method", length=far):
        hits = score(found.rows, "found", method=method, length=far)
        if hits is not None:
            wrong[method] = Score(1 - hits.values)
    return lowest(wrong, f"share of pass keys missed at {far}", same_model=True)


def _claim(found: Value) -> tuple[str, str]:
    claim = found.page.claims[0]
    return f"{claim.text}: {claim.verdict}.", claim.evidence


def _scores(rows: list[Row], field: str, names: list[str], **what: Any) -> dict[str, Score]:
    found = {name: score(rows, "loss", **{field: name}, **what) for name in names}
    return {name: each for name, each in found.items() if each is not None}


#: use -> (the study it needs, how to read it)
RULES: dict[str, tuple[str, Callable[[Value], tuple[str, str]]]] = {
    "Short text, within the trained length": ("encodings", _near),
    "Code longer than the trained length": ("encodings", _code),
    "Text without end": ("encodings", _stream),
    "Long documents, a trained RoPE model, no training": ("extend", _zero_shot),
    "Long documents, a little training": ("extend", _tuned),
    "Finding one fact far away": ("passkey", _retrieval),
    "Images and other grids": ("multimodal", _claim),
    "Memory and time linear in the length": ("linear", _claim),
    "A model with another encoding": ("migrate", _claim),
}
