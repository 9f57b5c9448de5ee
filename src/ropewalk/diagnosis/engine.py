"""What one engine makes of the corrected config, and how to write it so that the engine agrees.

Words of this module:
  audit     compares what an engine computes from a config with what transformers computes. Its
            findings, one for each layer type and length, are read here: `agrees`, or `problem`, why
            there is no result ("refused: ..." or "not known: ..."), or the `difference`
  form      a way of writing the same rope, by other keys or in another place; FORMS has a function
            for each, which rewrites the text part of a config in place
  starts    the engine takes the config, whatever it computes then
  row       a row of mistakes.toml, here for its texts: "engine_refuses", "engine_differs" or
            "engine_not_known"
  repaired  the config was rewritten in a form that the engine agrees with, or starts with
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

from ropewalk.diagnosis.case import Examination, Facts, specs_of, text_of
from ropewalk.diagnosis.mistakes import Mistake, finder, in_language, mistakes
from ropewalk.diagnosis.places import as_v4, as_v5
from ropewalk.diagnosis.report import Evidence, Finding
from ropewalk.errors import RopeError, choice
from ropewalk.frequencies.scaling import SERVED_LENGTH_KEY, TRAINED_LENGTH_KEY

#: {name of an engine that a caller may give: its name in `audit`}
NAMES = {
    "transformers": "hf",
    "hf": "hf",
    "vllm": "vllm",
    "sglang": "sglang",
    "mlx-lm": "mlx-lm",
    "mlx": "mlx-lm",
    "llama.cpp": "llama.cpp",
    "llama-cpp": "llama.cpp",
}


def name_of(engine: str) -> str:
    """Return the name of an engine as `audit` has it; raise an error for an unknown one."""
    return NAMES[choice("engine", str(engine).lower(), NAMES)]


def findings(case: Examination, engine: str) -> list[Finding]:
    """Return a finding for each layer type and length at which an engine refuses the examined
    config, computes another rope than transformers, or at which it is not known what it computes.

    If the engine agrees with another form of the same config, the config is changed to that form
    and no further finding is added. If it only starts with another form, the config is changed to
    that one, and the findings about that form follow.
    """
    kinds = ("engine_refuses", "engine_differs", "engine_not_known")
    rows = {row.id: in_language(row, case.language) for row in mistakes() if row.id in kinds}
    try:
        found = _audited(case.root, engine, case.length)
    except RopeError as error:
        facts = {"key": error.field, "value": engine, "why": str(error)}
        return [_finding(rows["engine_not_known"], facts, None, False)]
    told: list[Finding] = []
    whys: set[str] = set()
    for each in found:
        if each.agrees:
            continue
        problem = each.problem or ""
        kind = "engine_differs"
        if problem:
            kind = "engine_refuses" if problem.startswith("refused") else "engine_not_known"
        why = problem or _in_words(each)
        # the same refusal was told already, for another length or layer type
        if kind == "engine_refuses" and why in whys:
            continue
        whys.add(why)
        # first a form that the engine agrees with, else, if it refuses this one, one that it takes
        repaired = kind != "engine_not_known" and _rewritten(case, engine)
        starts = not repaired and kind == "engine_refuses" and _rewritten(case, engine, starts=True)
        repaired = repaired or starts
        facts = {"key": each.layer_type, "value": engine, "why": why}
        told.append(_finding(rows[kind], facts, each, repaired))
        if starts:  # what it computes then
            return told + findings(case, engine)
        if repaired:  # the further findings are about the form that is replaced
            break
    return told


def written_for(case: Examination, engine: str) -> dict[str, Any]:
    """Return a copy of the examined config in a form that the engine agrees with or at least
    starts with; unchanged, if it agrees with it as it is or no form helps.
    """
    # `findings` changes the config of its examination
    other = copy.copy(case)
    other.root = copy.deepcopy(case.root)
    findings(other, name_of(engine))
    return other.root


def _audited(config: dict[str, Any], engine: str, length: int | None) -> list[Any]:
    """Return the findings of `audit` about one engine that serves up to `length` tokens; None: its
    own default.
    """
    from ropewalk.engines import ENGINES, REFERENCE, audit

    releases = {name: ENGINES[name] for name in dict.fromkeys((REFERENCE, engine))}
    result = audit(config, max_model_len=length, engines=releases)
    return list(result.of(engine))


def _rewritten(case: Examination, engine: str, starts: bool = False) -> bool:
    """Write the config in the first form that has the same specs and that the engine agrees with,
    or if `starts`, with which it starts; return whether there is one.
    """
    meant = case.specs()
    forms = list(FORMS)
    # a larger served length is a form of the same rope only if the scaling covers it
    if case.length is not None and all(
        _covers(spec, case.length) for spec in (meant or {}).values()
    ):
        forms.append(partial(_serve, length=case.length))
    for form in forms:
        root = copy.deepcopy(case.root)
        try:
            form(text_of(root))
            # the form changes nothing, or it cannot say this rope
            if root == case.root or specs_of(root) != meant:
                continue
            found = _audited(root, engine, case.length)
            if all(each.problem is None if starts else each.agrees for each in found):
                case.root.clear()
                case.root.update(root)
                return True
        except (RopeError, KeyError, TypeError):  # this config cannot be written in the form
            continue
    return False


def _covers(spec: Any, length: int) -> bool:
    """Return whether the scaling of a spec extends its trained length at least to this length; True
    for a layer type without rotation, False for a rope without a scaling.
    """
    scaling = None if spec is None else spec.scaling.innermost
    trained = getattr(scaling, "original_length", None)
    return spec is None or (trained or 0) * getattr(scaling, "factor", 1.0) >= length


def _serve(text: dict[str, Any], length: int) -> None:
    """Raise the served length to `length`: some engines do not start for more than the config's."""
    text[SERVED_LENGTH_KEY] = max(length, int(text.get(SERVED_LENGTH_KEY) or 0))


def _with_outer_length(text: dict[str, Any]) -> None:
    """Write the trained length outside the rope too, where some engines read it."""
    for key in ("rope_parameters", "rope_scaling"):
        rope = text.get(key)
        if isinstance(rope, dict) and TRAINED_LENGTH_KEY in rope:
            text[TRAINED_LENGTH_KEY] = rope[TRAINED_LENGTH_KEY]


def _with_both_types(text: dict[str, Any]) -> None:
    """Write the name of the scaling under both keys, `rope_type` and the older `type`."""
    for key in ("rope_parameters", "rope_scaling"):
        rope = text.get(key)
        if isinstance(rope, dict):
            name = rope.get("rope_type") or rope.get("type")
            if name is not None:
                rope["rope_type"] = rope["type"] = name


def _as_v4_with_both_types(text: dict[str, Any]) -> None:
    """Rewrite the rope as transformers 4 reads it, with the name of its scaling under both
    `rope_type` and `type`.
    """
    as_v4(text)
    _with_both_types(text)


#: ways of writing the same rope, tried in this order
FORMS: tuple[Callable[[dict[str, Any]], None], ...] = (
    as_v4,
    _with_both_types,
    _as_v4_with_both_types,
    as_v5,
    _with_outer_length,
)


def _in_words(finding: Any) -> str:
    """Return in one line how an engine's rope differs, with the rules that explain it."""
    difference = finding.difference
    parts = []
    if difference.first_pair is not None:
        parts.append(f"{difference.pairs} pairs differ, the first is pair {difference.first_pair}")
        tenth = difference.until_tenth
        parts.append(
            "never 0.1 rad off" if tenth is None else f"0.1 rad off from distance {tenth:,}"
        )
    if difference.temperature != 1:
        parts.append(f"logits x {difference.temperature:.4g}")
    return "; ".join([*parts, *map(str, finding.rules)])


def _finding(row: Mistake, facts: dict[str, Any], found: Any, repaired: bool) -> Finding:
    """Return a finding in the words of a row.

    facts     the words in braces of the row; `value` is the name of the engine
    found     the finding of `audit` about this engine; None if `audit` raised an error
    repaired  whether the config was rewritten for the engine
    """
    words = {key: str(value) for key, value in facts.items()}
    evidence = Evidence("not known", words["value"])
    if found is not None:
        evidence = Evidence(found.known, facts["value"], found.version)
    # the part of `fix` before "|" says what was written, that after it what to decide
    fix = row.fix.split("|")[0 if repaired else -1].strip()
    return Finding(
        row.id,
        row.severity,
        words["key"],
        facts["value"],
        row.cause.format_map(words),
        row.effect.format_map(words),
        fix,
        evidence,
        repaired=repaired,
    )


@finder
def by_audit(case: Examination, row: Mistake) -> Facts | None:
    """Find nothing. The rows about engines name this finder, since every row needs one; their
    mistakes are found by `findings`, after all other rows.
    """
    return None
