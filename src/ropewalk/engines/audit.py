"""Compare what each engine computes from one config with transformers: where they first differ, and
by how much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ropewalk.config import file as config_file
from ropewalk.config.checks import rope_objects
from ropewalk.config.diffusion import CLASS_KEY
from ropewalk.config.families import family_of
from ropewalk.config.hf import read_specs
from ropewalk.config.keys import LATENT_KEY
from ropewalk.config.layers import layer_ropes
from ropewalk.config.values import served_length
from ropewalk.engines.difference import Difference, compare
from ropewalk.engines.readers import ENGINES, REFERENCE, Case, Engine, EngineRule, Reading
from ropewalk.engines.runs import FAMILIES, RUNS, SINCE
from ropewalk.errors import RopeError, choice, integer
from ropewalk.frequencies import Dynamic
from ropewalk.gguf import GgufFile, hf_config, is_gguf
from ropewalk.spec import RopeSpec

#: the scalings whose code was read in every engine
SCALINGS_READ = (
    "default",
    "linear",
    "dynamic",
    "yarn",
    "longrope",
    "llama3",
    "proportional",
    "ntk",
)
#: keys that every family has another use for if they are null: an error, the whole head, or a
#: default
NULL_NOT_READ = ("rope_type", "type", "partial_rotary_factor", "rotary_pct")


@dataclass(frozen=True)
class Finding:
    """What one engine computes for one layer type at one length; `problem` says why there is no
    result.
    """

    engine: str
    layer_type: str
    length: int
    radians: tuple[float, ...]
    magnitude: float | None
    axis_of_pair: tuple[int, ...]
    rules: tuple[EngineRule, ...]
    difference: Difference | None = None
    problem: str | None = None
    #: "run, vLLM 0.32.0, 2026-11" if this family and scaling were run in that release, "0.31.0 to
    #: 0.32.0" if older ones were run too and compute the same, else "read, vLLM 0.32.0, not run"
    evidence: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the result is known and the same as the reference."""
        return self.problem is None and self.difference is None


@dataclass(frozen=True)
class Audit:
    """The findings for every engine, including the reference; print it, or call `as_dict()`."""

    model_type: str | None
    max_model_len: int
    findings: tuple[Finding, ...]
    warnings: tuple[str, ...] = ()

    def of(self, engine: str) -> tuple[Finding, ...]:
        """Return the findings of one engine."""
        choice("engine", engine, ENGINES)
        return tuple(finding for finding in self.findings if finding.engine == engine)

    @property
    def disagreements(self) -> tuple[Finding, ...]:
        """The findings that differ from the reference, or whose engine raises an error ("refused:
        ...").
        """
        return tuple(
            f
            for f in self.findings
            if f.difference is not None or (f.problem or "").startswith("refused")
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the audit as plain data for JSON."""
        return {
            "model_type": self.model_type,
            "reference": REFERENCE,
            "max_model_len": self.max_model_len,
            "engines": {
                name: {"title": engine.title, "tree": engine.tree}
                for name, engine in ENGINES.items()
            },
            "findings": [asdict(finding) for finding in self.findings],
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        """Return the findings as text, one line each, with the rules below it."""
        lines = [
            f"model_type {self.model_type or 'not given'}, served up to {self.max_model_len} tokens"
        ]
        for finding in self.findings:
            title = ENGINES[finding.engine].title
            lines.append(
                f"{finding.layer_type} at {finding.length}: {title}: {_in_words(finding)} "
                f"({finding.evidence})"
            )
            lines += [f"    {rule}" for rule in finding.rules]
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])


def in_one_line(finding: Finding) -> str:
    """Return which engine differs, by how much, and why, as one line."""
    parts = [_in_words(finding), *map(str, finding.rules)]
    return f"{ENGINES[finding.engine].title} at {finding.length} tokens: {'; '.join(parts)}"


def _in_words(finding: Finding) -> str:
    """Return the difference from the reference in one line."""
    if finding.problem is not None:
        return finding.problem
    if finding.engine == REFERENCE and finding.difference is None:
        return f"the reference, magnitude {finding.magnitude:.6g}"
    difference = finding.difference
    if difference is None:
        return "the same"
    parts = []
    if difference.temperature != 1:
        parts.append(f"logits x {difference.temperature:.4g}")
    if difference.first_pair is not None:
        until = (
            "never"
            if difference.until_tenth is None
            else f"after {difference.until_tenth} positions"
        )
        parts.append(
            f"{difference.pairs} pairs differ, the first is pair {difference.first_pair}, 0.1 "
            f"rad off {until}"
        )
    return ", ".join(parts) + (
        "" if difference.tokens == "all" else " (image and video tokens only)"
    )


def audit(config: Any, *, length: int | None = None, max_model_len: int | None = None) -> Audit:
    """Compare what transformers, vLLM, SGLang, mlx-lm and llama.cpp compute from one config.

    config         a transformers config, a dict, or the path of a config.json, of its folder or of
                   a GGUF file
    length         tokens of the longest sequence of a batch; None: the trained and the served
                   length if the frequencies depend on it
    max_model_len  the longest sequence that an engine is started for; None: each engine's own
                   limit, mostly the config's

    The rules were read in the engines' sources and checked by runs of the releases that `evidence`
    names; other releases may differ.
    """
    config = hf_config(GgufFile(config)) if is_gguf(config) else config
    text = config_file.text_part(config_file.load(config))
    if CLASS_KEY in text:
        raise RopeError(
            CLASS_KEY,
            "must not be in the config: none of these engines runs a model of diffusers",
            text[CLASS_KEY],
        )
    specs, explanation = read_specs(text, "exact")
    findings: list[Finding] = []
    longest = 0
    for layer_type, spec in specs.items():
        if spec is None:
            continue
        case = case_of(text, spec, layer_type, max_model_len)
        longest = max(longest, case.max_model_len)
        for tokens in _lengths(case, length):
            findings += _findings(layer_type, replace(case, length=tokens))
    if not findings:
        raise RopeError("rope_parameters", "must rotate at least one layer type", list(specs))
    return Audit(
        explanation.model_type, longest, _refused_as_a_whole(findings), explanation.warnings
    )


def _refused_as_a_whole(findings: list[Finding]) -> tuple[Finding, ...]:
    """Return the findings; an engine that refuses one layer type builds no model, so all its
    findings get that problem.
    """
    refused = [finding for finding in findings if (finding.problem or "").startswith("refused")]
    problems = {
        finding.engine: finding.problem for finding in reversed(refused)
    }  # the first problem of each engine
    empty: dict[str, Any] = {
        "radians": (),
        "magnitude": None,
        "axis_of_pair": (),
        "difference": None,
    }
    return tuple(
        replace(f, problem=problems[f.engine], **empty) if f.engine in problems else f
        for f in findings
    )


def case_of(
    text: Mapping[str, Any], spec: RopeSpec, layer_type: str, max_model_len: int | None
) -> Case:
    """Return the case that all engines are asked about: spec, config keys and lengths of one layer
    type.
    """
    model_type = text.get("model_type")
    ropes = layer_ropes(text, rope_objects(text), family_of(model_type))
    rope = ropes.get(layer_type) or {}
    served = served_length(text)
    max_position = None if served is None else served.value
    limit = (
        _default_limit(spec, max_position)
        if max_model_len is None
        else integer("max_model_len", max_model_len, low=1)
    )
    return Case(
        spec,
        {key: value.value for key, value in rope.items()},
        model_type,
        max_position,
        max_model_len=limit,
        length=limit,
        latent=text.get(LATENT_KEY) is not None,
        config=text,
        layer_type=layer_type,
        limit_is_given=max_model_len is not None,
        by_layer_type=any(
            value.where == f"rope_parameters.{layer_type}" for value in rope.values()
        ),
    )


def _default_limit(spec: RopeSpec, max_position: int | None) -> int:
    """Return the default served length: `max_position`, or, if it is None or the scaling dynamic,
    trained length x factor.
    """
    scaling = spec.scaling.innermost
    trained, factor = getattr(scaling, "original_length", None), getattr(scaling, "factor", None)
    if isinstance(scaling, Dynamic) or (max_position is None and trained and factor):
        return round(trained * factor)  # type: ignore[operator]  # both are given
    if max_position is None:
        rule = (
            "must be given, because the config has no max_position_embeddings (CLI: "
            "--max-model-len)"
        )
        raise RopeError("max_model_len", rule, None)
    return max_position


def _lengths(case: Case, length: int | None) -> tuple[int, ...]:
    """Return the lengths to compare at: the given one, or the trained and the served length if the
    scaling depends on it.
    """
    if length is not None:
        return (integer("length", length, low=1),)
    if not case.spec.needs_length:
        return (case.max_model_len,)
    # length-dependent scalings have one
    trained = case.spec.scaling.innermost.original_length  # type: ignore[attr-defined]
    return tuple(sorted({min(trained, case.max_model_len), case.max_model_len}))


def _findings(layer_type: str, case: Case) -> list[Finding]:
    """Return one finding per engine: what it computes, and how that differs from transformers."""
    readings = {name: _read(engine, case) for name, engine in ENGINES.items()}
    # where transformers cannot compute it, engines are compared with what the config describes
    reference = readings[REFERENCE] if readings[REFERENCE].problem is None else Reading(case)
    findings = []
    for name, reading in readings.items():
        is_known = reading.problem is None
        # None: no difference, or nothing to compare
        difference = (
            compare(reference, reading, case.length) if is_known and name != REFERENCE else None
        )
        radians, magnitude = reading.frequencies()
        axis_of_pair = reading.spec.axis_of_pair if is_known else ()
        finding = Finding(
            name,
            layer_type,
            case.length,
            radians,
            magnitude,
            axis_of_pair,
            rules=tuple(reading.rules),
            difference=difference,
            problem=reading.problem,
            evidence=evidence(name, case),
        )
        findings.append(finding)
    return findings


def evidence(engine: str, case: Case) -> str:
    """Return what the audit of this case rests on: the engine was run (which releases, when), or
    only its code was read.
    """
    version, date = RUNS[engine]
    title = ENGINES[engine].title
    if case.spec.scaling.name in FAMILIES.get(case.model_type or "", ()):
        releases = f"{SINCE[engine]} to {version}" if engine in SINCE else version
        return f"run, {title} {releases}, {date}"
    return f"read, {title} {version}, not run"


def _read(engine: Engine, case: Case) -> Reading:
    """Return what an engine computes; its `problem` is "not known: ..." if no rule was read for a
    scaling or a null key.
    """
    if engine is not ENGINES[REFERENCE] and case.spec.scaling.name not in SCALINGS_READ:
        return Reading(case).fail(f"not known: rope_type {case.spec.scaling.name}")
    places = (case.rope_with_nulls, case.config)
    nulls = [
        key for key in NULL_NOT_READ if any(key in place and place[key] is None for place in places)
    ]
    if nulls:
        return Reading(case).fail(f"not known: {nulls[0]} is null; remove the key")
    try:
        reading = engine.read(case)
        reading.frequencies()
    except RopeError as error:
        return Reading(case).fail(f"not known: {error}")
    return reading
