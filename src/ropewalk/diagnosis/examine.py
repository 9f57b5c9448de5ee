"""`doctor`: look for every mistake of the table, repair what the config itself says how, and look
again.

Words of this module:
  row      one row of mistakes.toml: a kind of mistake, with its finder `find`, its `repair`, which
           is None where nothing can be written, and its texts
  facts    what a finder returns about a mistake: `key` and `value` are reported, the others are for
           the texts of the row and for its repair, which is not made if `fixable` is False
  finding  what the caller of `doctor` gets about a mistake
  error    a finding or a row with the severity "error"
  extension   a repair that makes the rope fit a longer length
  doubtful    of a repair: it writes another rope, which may not be what was meant
  withheld    of a repair: it was made, the result had an error, and it is not made again
  form     one of several ways to write a rope in a config; engines differ in which they read
  case     the config while it is examined, an `Examination`: a copy that repairs change in place;
           `case.root` is the whole config
  found    the rows that were found, each with its facts and the config before its repair
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ropewalk.config import file as config_file
from ropewalk.diagnosis import engine as engines_here
from ropewalk.diagnosis import (  # noqa: F401 - the rows name them
    foreign,
    impossible,
    layers,
    lengths,
    others,
    places,
    spelling,
    values,
)
from ropewalk.diagnosis.case import OBJECT_KEYS, Examination, Facts, Specs, specs_of
from ropewalk.diagnosis.effects import effects
from ropewalk.diagnosis.flags import TAKE_KEYS, flags, patch, same
from ropewalk.diagnosis.guard import loses
from ropewalk.diagnosis.lengths import serve
from ropewalk.diagnosis.mistakes import (
    FINDERS,
    LANGUAGES,
    REPAIRS,
    SEVERITIES,
    Mistake,
    in_language,
    mistakes,
)
from ropewalk.diagnosis.report import Diagnosis, Evidence, Finding, report_words
from ropewalk.errors import RopeError, choice, integer

if TYPE_CHECKING:
    from ropewalk.gguf import GgufSource

#: how often, at most, one row is found and repaired in a pass: a config may have the same mistake
#: at several keys
MOST = 64
#: how often, at most, all rows are looked for: after a repair few other mistakes can be found
PASSES = 8
#: repairs that extend a rope to a longer length
EXTENSIONS = ("add_yarn", "raise_factor", "put_factor")
#: finders of unusual settings of a scaling; not repaired beside a wrong length or factor, since
#: the scaling may be another one
SETTINGS = ("yarn_unusual",)
#: finders that compare lengths with what the scaling covers
FOLLOWING = ("factor_too_small", "factor_too_large", "served_beyond_scaling")
#: mistakes of the trained length and of the factor, from which an extension follows
BASES = (
    "trained_length_tiny",
    "trained_length_twice",
    "trained_length_wrong",
    "lengths_swapped",
    "factor_is_length",
    "factor_inverted",
)
#: repairs that write another rope, and are not made if the result has an error that the config had
#: not
DOUBTFUL = (
    *EXTENSIONS,
    "raise_theta",
    "translate",
    "put_theta",
    "put_scaling",
    "put_published",
    "put_trained_length",
    "swap_lengths",
    "take_arguments",
)


@dataclass(frozen=True)
class _Found:
    """A row that was found, its facts, the config before the repair, and whether that was made."""

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
    """Return what is wrong with a config, what each mistake does, and the corrected config.

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
    findings = _look_carefully(case)
    # an engine is asked only about a config without errors
    wrong = any(f.severity == "error" and not f.repaired for f in findings)
    if engine is not None and not wrong:
        findings += engines_here.findings(case, engine)
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    # a file that is no JSON is written anew, although its values stay
    changed = not same(case.root, original) or any(f.id == "not_json" for f in findings)
    # given an engine, the config was already rewritten for it; one with errors is not rewritten
    to_paste = _flags(original, case, written=engine is not None or wrong)
    if case.metadata is not None:  # a GGUF file is not written: only flags can correct it
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


def _look_carefully(case: Examination) -> list[Finding]:
    """Return the findings, and repair the config in place. A doubtful repair is withheld if errors
    remain that would not remain without doubtful repairs: what it would have written is not what
    was meant.
    """
    before = copy.deepcopy((case.root, case.draft, case.duplicates, case.not_json))
    own = None  # the errors that remain without doubtful repairs; None: not computed yet
    # each round withholds the last doubtful repair of the one before, and begins anew
    while True:
        found = _look(case)
        repaired = [each for each in found if each.repaired and each.row.repair in DOUBTFUL]
        errors = {each.row.id for each in found if not each.repaired} & _error_ids()
        if not repaired or not errors:
            break
        if own is None:
            own = _errors_of(case, before)
        if errors <= own:  # the repairs did not cause them
            break
        case.withheld.add(repaired[-1].row.id)
        case.root, case.draft, case.duplicates, case.not_json = copy.deepcopy(before)
        case.reaches = 0  # no repair has extended the rope yet
    # after a repair that wrote YaRN, the served length becomes `case.length`, the longest that the
    # model will be used with; `before[0]` is the config without repairs
    state = copy.deepcopy(case.root)
    raised = serve(case, before[0])
    if raised is not None:
        row = next(each for each in mistakes() if each.find == "length_follows")
        found.append(_Found(row, raised, state, True))
    meant = case.specs()
    return [_finding(case, meant, each) for each in found]


def _error_ids() -> set[str]:
    """Return the ids of the rows that are errors."""
    return {row.id for row in mistakes() if row.severity == "error"}


def _errors_of(case: Examination, before: tuple[Any, ...]) -> set[str]:
    """Return the ids of the errors that remain if the state `before` is repaired without the
    doubtful repairs.

    before  the fields root, draft (a draft model's config), duplicates and not_json of an
            Examination, as they were before any repair
    """
    root, draft, duplicates, not_json = copy.deepcopy(before)
    fresh = replace(case, root=root, draft=draft, duplicates=duplicates, not_json=not_json)
    fresh.reaches = 0  # in `before`, no repair has extended the rope yet
    fresh.withheld = {row.id for row in mistakes() if row.repair in DOUBTFUL}
    return {each.row.id for each in _look(fresh) if not each.repaired} & _error_ids()


def _look(case: Examination) -> list[_Found]:
    """Return what was found: what was repaired, and what the repaired config still has.

    After a repair an earlier row may find a mistake that could not be seen before, so all rows are
    looked for until none is repaired.
    """
    repaired: list[_Found] = []
    for _ in range(PASSES):
        found = _pass(case)
        new = [each for each in found if each.repaired]
        repaired += new
        if not new:
            break
    return [*_lasting(repaired), *(each for each in found if not each.repaired)]


def _lasting(repaired: list[_Found]) -> list[_Found]:
    """Return the repairs, without extensions of a scaling that a later repair replaced by another:
    what they say of its factor does not hold in the end.
    """
    # the fact "whole" is the scaling that a repair put in place of another
    whole = [index for index, each in enumerate(repaired) if "whole" in each.facts]
    last = max(whole, default=0)
    return [
        each
        for index, each in enumerate(repaired)
        if index >= last or each.row.repair not in EXTENSIONS
    ]


def _absent(facts: Facts) -> bool:
    """Return whether the key of a mistake is not in the config: a reported value of None then means
    that it is absent, and not that it is null.
    """
    holder = facts.get("holder")
    return isinstance(holder, dict) and facts.get("name") not in holder


def _pass(case: Examination) -> list[_Found]:
    """Look for every row in the order of the table, repair what can be repaired, and return what
    was found. After a repair the same row is looked for again.
    """
    found: list[_Found] = []
    for row in mistakes():
        # a row is for GGUF files or for other configs; those of unreadable configs are for both
        if row.gguf != (case.metadata is not None) and row.find != "unreadable":
            continue
        # an error that was found and not repaired says already why the config cannot be read
        told = any(each.row.severity == "error" and not each.repaired for each in found)
        if row.find == "unreadable" and told:
            continue
        # what follows from a wrong length or factor would contradict the finding about it
        if row.find in FOLLOWING and any(e.row.find in BASES and not e.repaired for e in found):
            continue
        for _ in range(MOST):
            facts = FINDERS[row.find](case, row)
            if facts is None:
                break
            before, state, reaches = copy.deepcopy(case.root), case.state(), case.reaches
            facts.setdefault("absent", _absent(facts))
            if row.repair and facts.get("fixable", True) and row.id not in case.withheld:
                # a wrong length or factor says nothing about how far to extend the rope, nor
                # whether the other settings of the scaling are meant
                wrong = any(each.row.find in BASES and not each.repaired for each in found)
                if not (wrong and (row.repair in EXTENSIONS or row.find in SETTINGS)):
                    REPAIRS[row.repair](case, row, facts)
                    # a repair that drops a number which the finding does not name is undone
                    if loses(before, case.root, row, facts):
                        case.root, case.reaches = copy.deepcopy(before), reaches
            changed = case.state() != state
            found.append(_Found(row, facts, before, changed))
            if not changed:  # the same row would be found again for ever
                break
    return found


def _finding(case: Examination, meant: Specs | None, found: _Found) -> Finding:
    """Return one finding. If it was repaired, it has numbers of how the rope before the repair
    differs from the rope that was `meant`; where the former cannot be read, a config without the
    rope object takes its place.
    """
    row, facts, repaired = in_language(found.row, case.language), found.facts, found.repaired
    words = _Words(facts)
    # the texts say that the key is absent, and not that it is null
    if facts["absent"] and facts["value"] is None:
        words["value"] = report_words(case.language)["absent"]
    effect = row.effect.format_map(words)
    numbers, compared = (), "before the repair"
    if repaired and case.metadata is None:  # a GGUF file is not changed
        length = case.length or case.served
        wrong = specs_of(found.before)
        if wrong is None and case.ropes():
            wrong, compared = specs_of(_without_ropes(case)), "without the rope object"
        numbers = effects(wrong, meant, length)
    # the part of `fix` before "|" says what was written, that after it what to decide
    fix = row.fix.split("|")[0 if repaired else -1].strip()
    return Finding(
        row.id,
        row.severity,
        str(facts["key"]),
        facts["value"],
        row.cause.format_map(words),
        effect,
        fix.format_map(words),
        Evidence(row.evidence, row.engine, row.version),
        numbers,
        compared,
        repaired,
    )


class _Words(dict):
    """Facts whose values `str.format_map` gets as text: numbers from 10,000 with commas, true,
    false and null as in JSON, and a text of more than 160 characters cut.
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
    """Return a copy of the corrected config without its rope objects."""

    def change(text: dict[str, Any]) -> None:
        """Remove the rope objects of a text part; a theta inside one moves to the config itself."""
        for key in OBJECT_KEYS:
            rope = text.pop(key, None)
            if isinstance(rope, dict) and text.get("rope_theta") is None and "rope_theta" in rope:
                text["rope_theta"] = rope["rope_theta"]

    return case.with_(change)


def _flags(original: dict[str, Any], case: Examination, written: bool) -> dict[str, str]:
    """Return {engine: what to paste to turn the `original` config into the corrected one}, without
    engines that need nothing. Engines that take config keys (TAKE_KEYS) get a form of the rope that
    they read as it is meant or at least start with, if there is one (see `written_for`). If
    `written`, they get the keys of the corrected config as they are.
    """
    specs = case.specs()
    every = flags(original, case.root, specs, case.length)
    if every and not written:
        for name in TAKE_KEYS:
            form = engines_here.written_for(case, name)
            every[name] = flags(original, form, specs, case.length).get(name, "")
    return {name: text for name, text in every.items() if text}


def _gguf_flags(findings: list[Finding], case: Examination) -> dict[str, str]:
    """Return {"llama.cpp": flags} that correct the first finding about a GGUF file whose new value
    is known; {} if there is none. A GGUF file is never changed itself.
    """
    for row in mistakes():
        if row.gguf and any(finding.id == row.id for finding in findings):
            facts = FINDERS[row.find](case, row)
            # `kind` is "theta", and `new` the new theta; or it is a scaling, and `new` its factor.
            # Facts without "type" are about YaRN
            kind, new = (facts or {}).get("type", "yarn"), (facts or {}).get("new")
            if facts is None or not new:
                continue
            if kind == "theta":
                return {"llama.cpp": f"--rope-freq-base {new:.17g}"}
            scaling = f"--rope-scaling {kind} --rope-scale {new:g}"
            end = f" --yarn-orig-ctx {facts['trained']}" if kind == "yarn" else ""
            return {"llama.cpp": scaling + end}
    return {}


def _gguf(config: Any) -> GgufSource | None:
    """Return the reader of a GGUF file, given as its path or as its metadata; None for other
    configs.
    """
    is_file = config_file.is_gguf(config)
    if isinstance(config, str | Path | Mapping) and not is_file:
        return None
    from ropewalk.gguf import GgufFile, GgufSource  # loaded only where one is read

    if isinstance(config, GgufSource):
        return config
    return GgufFile(cast("str | Path", config)) if is_file else None


def _case(config: Any, length: int | None, draft: Any) -> tuple[Examination, str | None]:
    """Return the config to examine, and the text of its file; None for a config without a file, and
    for a GGUF file. `length` is that of the longest sequence to come, `draft` the config of a draft
    model; None: not given.
    """
    other = None if draft is None else copy.deepcopy(dict(config_file.load(draft)))
    file = _gguf(config)
    if file is not None:
        from ropewalk.gguf import hf_config

        name = file.architecture
        try:
            root: dict[str, Any] = dict(hf_config(file))
        except RopeError:  # the rows for GGUF files read its metadata, and may say why
            root = {"model_type": name}
        tokens = getattr(file.metadata.get("tokenizer.ggml.tokens"), "length", None)
        # one of the sizes by which a published model is recognised: as given, or the tokens counted
        root["vocab_size"] = file.metadata.get(f"{name}.vocab_size", tokens)
        return Examination(root, length, other, file.metadata, name), None
    if not isinstance(config, str | Path):
        return Examination(copy.deepcopy(dict(config_file.load(config))), length, other), None
    path = Path(config) / "config.json" if Path(config).is_dir() else Path(config)
    duplicates: dict[str, list[Any]] = {}
    try:
        root = config_file.read(path)
    except RopeError as error:
        # what can be read all the same is examined, and a row reports why it is refused
        if error.rule.startswith("must be JSON ("):
            text = path.read_text(encoding="utf-8")
            root = config_file.parse(foreign.as_json(text, error).encode())
            why = error.rule.removeprefix("must be JSON (").removesuffix(")")
            return Examination(root, length, other, not_json=why), text
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
