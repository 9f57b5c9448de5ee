"""`doctor`: look for every mistake of the table, repair what the config itself says how, and look
again.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ropewalk.config import file as config_file
from ropewalk.diagnosis import engine as engines_here
from ropewalk.diagnosis import lengths, others, places, spelling, values  # noqa: F401 - the rows name them
from ropewalk.diagnosis.case import OBJECT_KEYS, Examination, Facts, Specs, specs_of
from ropewalk.diagnosis.effects import effects
from ropewalk.diagnosis.flags import flags, patch, same
from ropewalk.diagnosis.mistakes import (
    FINDERS,
    LANGUAGES,
    REPAIRS,
    SEVERITIES,
    Mistake,
    in_language,
    mistakes,
)
from ropewalk.diagnosis.report import Diagnosis, Evidence, Finding
from ropewalk.errors import RopeError, choice, integer

if TYPE_CHECKING:
    from ropewalk.gguf import GgufSource

#: how often, at most, one row is found and repaired in a pass, and all rows are looked for
MOST = 64


@dataclass(frozen=True)
class _Found:
    """A row that was found, its facts, the config before the repair, and whether it was repaired."""

    row: Mistake
    facts: Facts
    before: dict[str, Any]
    repaired: bool


def doctor(
    config: Any,
    engine: str | None = None,
    length: int | None = None,
    *,
    draft: Any = None,
    language: str = "en",
) -> Diagnosis:
    """Return what is wrong with a config, what it does, and the corrected config.

    config  a transformers config, a dict, the path of a config.json, of its folder or of a GGUF
            file, or the metadata of one (`ropewalk.gguf.InMemory`)
    engine  also compare what this engine computes: "vllm", "sglang", "mlx-lm" or "llama.cpp"
    length  the longest sequence that the model will be used with
    draft   the config of a draft model for speculative decoding, which needs the same rope
    language  the language of the findings: "en" or "zh"

    The repair is exact: it is made only where the config itself, its family or its published form
    says what was meant. Otherwise the finding says what to decide.
    """
    length = None if length is None else integer("length", length, low=1)
    engine = None if engine is None else engines_here.name_of(engine)
    choice("language", language, LANGUAGES)
    case, text = _case(config, length, draft)
    case.language, case.examine = language, partial(doctor, language=language)
    original, original_draft = copy.deepcopy(case.root), copy.deepcopy(case.draft)
    findings = _look(case)
    unread = any(f.severity == "error" and not f.repaired for f in findings)
    if engine is not None and not unread:
        findings += engines_here.findings(case, engine)
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    changed = not same(case.root, original)
    to_paste = flags(original, case.root, case.specs(), length)
    if case.metadata is not None:
        to_paste = _gguf_flags(findings, case)
        changed = False
    return Diagnosis(
        case.model_type,
        case.family.known,
        tuple(findings),
        case.root if changed else None,
        patch(original, case.root, text, "config.json") if changed else "",
        to_paste,
        None if same(case.draft, original_draft) else case.draft,
        engine,
        length,
        language,
    )


def _look(case: Examination) -> list[Finding]:
    """Return the findings: those that were repaired, and what the repaired config still has.

    A repair may show a mistake of an earlier row, so all rows are looked for until none is
    repaired.
    """
    repaired: list[_Found] = []
    for _ in range(MOST):
        found = _pass(case)
        new = [each for each in found if each.repaired]
        repaired += new
        if not new:
            break
    meant = case.specs()
    left = [each for each in found if not each.repaired]
    return [_finding(case, meant, each) for each in (*repaired, *left)]


def _pass(case: Examination) -> list[_Found]:
    """Look for every row once, in the order of the table, and repair what can be repaired."""
    found: list[_Found] = []
    for row in mistakes():
        if row.gguf != (case.metadata is not None) and row.find != "unreadable":
            continue
        # an error that is not repaired says why the config cannot be read
        told = any(each.row.severity == "error" and not each.repaired for each in found)
        if row.find == "unreadable" and told:
            continue
        for _ in range(MOST):
            facts = FINDERS[row.find](case, row)
            if facts is None:
                break
            before, state = copy.deepcopy(case.root), case.state()
            if row.repair is not None and facts.get("fixable", True):
                REPAIRS[row.repair](case, row, facts)
            can = case.state() != state
            found.append(_Found(row, facts, before, can))
            if not can:
                break
    return found


def _finding(case: Examination, meant: Specs | None, found: _Found) -> Finding:
    """Return one finding. If it was repaired, it has numbers of how the rope before the repair
    differs from the rope that was `meant`; where the former cannot be read, a config without the
    rope object takes its place.
    """
    row, facts, repaired = in_language(found.row, case.language), found.facts, found.repaired
    words = _Words(facts)
    effect = row.effect.format_map(words)
    numbers, compared = (), "before the repair"
    if repaired and case.metadata is None:
        length = case.length or case.served
        wrong = specs_of(found.before)
        if wrong is None and case.ropes():
            wrong = specs_of(_without_ropes(case))
            numbers = effects(wrong, meant, length)
            compared = "without the rope object"
        else:
            numbers = effects(wrong, meant, length)
    fix = row.fix if repaired or "|" not in row.fix else row.fix.split("|")[1].strip()
    return Finding(
        row.id,
        row.severity,
        str(facts["key"]),
        facts["value"],
        row.cause.format_map(words),
        effect,
        fix.split("|")[0].strip().format_map(words),
        Evidence(row.evidence, row.engine, row.version),
        numbers,
        compared,
        repaired,
    )


class _Words(dict):
    """Facts whose values are read as text, for `str.format_map`: numbers from 10,000 with commas,
    true, false and null as in JSON, and a text of more than 160 characters cut.
    """

    def __getitem__(self, key: str) -> str:
        value = super().__getitem__(key)
        if isinstance(value, bool) or value is None:
            return json.dumps(value)
        if isinstance(value, int):
            return f"{value:,}" if abs(value) >= 10_000 else str(value)
        if isinstance(value, float):
            return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:g}"
        text = value if isinstance(value, str) else repr(value)
        return text if len(text) <= 160 else text[:157] + "..."


def _without_ropes(case: Examination) -> dict[str, Any]:
    """Return the corrected config without a scaling."""

    def change(text: dict[str, Any]) -> None:
        """Remove the rope objects of the text; a theta inside one moves to the config itself."""
        for key in OBJECT_KEYS:
            rope = text.pop(key, None)
            if isinstance(rope, dict) and text.get("rope_theta") is None and "rope_theta" in rope:
                text["rope_theta"] = rope["rope_theta"]

    return case.with_(change)


def _gguf_flags(findings: list[Finding], case: Examination) -> dict[str, str]:
    """Return the flags of llama.cpp that correct a GGUF file, which no patch can change."""
    for row in mistakes():
        if row.gguf and any(finding.id == row.id for finding in findings):
            facts = FINDERS[row.find](case, row)
            kind, new = (facts or {}).get("type", "yarn"), (facts or {}).get("new")
            if facts is None or not new:
                continue
            if kind == "theta":
                return {"llama.cpp": f"--rope-freq-base {new:.17g}"}
            flags = f"--rope-scaling {kind} --rope-scale {new:g}"
            end = f" --yarn-orig-ctx {facts['trained']}" if kind == "yarn" else ""
            return {"llama.cpp": flags + end}
    return {}


def _gguf(config: Any) -> GgufSource | None:
    """Return the GGUF file that a config is, or its metadata; None for other configs."""
    is_file = config_file.is_gguf(config)
    if isinstance(config, str | Path | Mapping) and not is_file:
        return None
    from ropewalk.gguf import GgufFile, GgufSource  # loaded only where one is read

    if isinstance(config, GgufSource):
        return config
    return GgufFile(cast("str | Path", config)) if is_file else None


def _case(config: Any, length: int | None, draft: Any) -> tuple[Examination, str | None]:
    """Return the config to examine, and the text of its file if it is one."""
    other = None if draft is None else copy.deepcopy(dict(config_file.load(draft)))
    file = _gguf(config)
    if file is not None:
        from ropewalk.gguf import hf_config

        name = file.architecture
        try:
            root: dict[str, Any] = dict(hf_config(file))
        except RopeError:  # a row may say why
            root = {"model_type": name}
        tokens = getattr(file.metadata.get("tokenizer.ggml.tokens"), "length", None)
        # one of the sizes by which a published model is recognised
        root["vocab_size"] = file.metadata.get(f"{name}.vocab_size", tokens)
        return Examination(root, length, other, file.metadata, name), None
    if not isinstance(config, str | Path):
        return Examination(copy.deepcopy(dict(config_file.load(config))), length, other), None
    path = Path(config) / "config.json" if Path(config).is_dir() else Path(config)
    duplicates: dict[str, list[Any]] = {}
    try:
        root = config_file.read(path)
    except RopeError as error:
        if "given once" not in error.rule and "must be finite" not in error.rule:
            raise
        root = _lenient(path, duplicates)
    return Examination(root, length, other, duplicates=duplicates), path.read_text(encoding="utf-8")


def _lenient(path: Path, duplicates: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the object of a file that has NaN or a key twice; put every key that occurs more than
    once, with its values, into `duplicates`.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return a JSON object as a dict, and record the keys that it has more than once."""
        given: dict[str, list[Any]] = {}
        for key, value in items:
            given.setdefault(key, []).append(value)
        duplicates.update({key: each for key, each in given.items() if len(each) > 1})
        return dict(items)

    try:
        value = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=pairs)
    except ValueError as error:
        raise RopeError("config", f"must be JSON ({error})", str(path)) from None
    if not isinstance(value, Mapping):
        raise RopeError("config", "must be a JSON object", str(path))
    return dict(value)
