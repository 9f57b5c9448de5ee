"""audit: from one config, what each engine computes, where it first parts from transformers, and how much that matters."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ropewalk.errors import RopeError, integer
from ropewalk.frequencies import Dynamic
from ropewalk.interop.config import file as config_file
from ropewalk.interop.config.families import FAMILIES, Family
from ropewalk.interop.config.hf import explain, from_hf
from ropewalk.interop.config.layers import layer_ropes
from ropewalk.interop.config.values import find
from ropewalk.interop.engines.rules import ENGINES, REFERENCE, Case, Reading, Rule
from ropewalk.spec import RopeSpec

#: how many distances the change of a score is looked at
DISTANCES = 512
#: rows and columns by which an image's coordinates part from its text position
IMAGE_SIDE = 32
#: frequencies nearer than this, relative, are the same: float32 would round them alike
SAME = 1e-6


@dataclass(frozen=True)
class Difference:
    """How one engine parts from the reference.

    first_pair      the first pair with another frequency or another axis; None where only the magnitude differs
    pairs           how many pairs differ so
    temperature     what every logit is multiplied by: the square of the ratio of magnitudes
    score_worst     the largest change of q . k over unit vectors and distances up to the length; `score_mean` the mean
    until_tenth     positions until some pair is off by more than 0.1 rad, `until_half_turn` by more than pi; None: never
    tokens          which tokens see it: "all", or "image" where only other axes differ
    """

    first_pair: int | None
    pairs: int
    reference_radians: float | None
    engine_radians: float | None
    temperature: float
    score_worst: float
    score_mean: float
    until_tenth: int | None
    until_half_turn: int | None
    tokens: str = "all"


@dataclass(frozen=True)
class Finding:
    """What one engine computes for one layer type and one length; `problem` says why where it is not known."""

    engine: str
    layer_type: str
    length: int
    radians: tuple[float, ...]
    magnitude: float | None
    axis_of_pair: tuple[int, ...]
    rules: tuple[Rule, ...]
    difference: Difference | None = None
    problem: str | None = None

    @property
    def agrees(self) -> bool:
        """Known, and the same as the reference."""
        return self.problem is None and self.difference is None


@dataclass(frozen=True)
class Audit:
    """The findings of every engine, the reference's own among them; print it, or take `as_dict()`."""

    model_type: str | None
    max_model_len: int
    findings: tuple[Finding, ...]
    warnings: tuple[str, ...] = ()

    def of(self, engine: str) -> tuple[Finding, ...]:
        """The findings of one engine."""
        if engine not in ENGINES:
            raise RopeError("engine", f"must be one of {', '.join(ENGINES)}", engine)
        return tuple(finding for finding in self.findings if finding.engine == engine)

    @property
    def disagreements(self) -> tuple[Finding, ...]:
        """Findings that differ from the reference, or are no table at all; what is not known is not among them."""
        return tuple(f for f in self.findings if f.difference is not None or (f.problem or "").startswith("no table"))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "model_type": self.model_type,
            "reference": REFERENCE,
            "max_model_len": self.max_model_len,
            "engines": {name: {"title": engine.title, "tree": engine.tree} for name, engine in ENGINES.items()},
            "findings": [asdict(finding) for finding in self.findings],
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        lines = [f"model_type {self.model_type or 'not given'}, served up to {self.max_model_len} tokens"]
        for finding in self.findings:
            lines.append(f"{finding.layer_type} at {finding.length}: {ENGINES[finding.engine].title}: {in_words(finding)}")
            lines += [f"    {_line(rule)}" for rule in finding.rules]
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])


def in_one_line(finding: Finding) -> str:
    """Who parts from the reference, by how much, and why."""
    why = "; ".join(_line(rule) for rule in finding.rules)
    return f"{ENGINES[finding.engine].title} at {finding.length} tokens: {in_words(finding)}; {why}"


def _line(rule: Rule) -> str:
    return f"{rule.about}: {rule.does} ({rule.reference}, read {rule.read})"


def in_words(finding: Finding) -> str:
    """One line that says how a finding stands to the reference."""
    if finding.problem is not None:
        return finding.problem
    if finding.engine == REFERENCE:
        return f"the reference, magnitude {finding.magnitude:.6g}"
    found = finding.difference
    if found is None:
        return "the same"
    parts = []
    if found.temperature != 1:
        parts.append(f"logits x {found.temperature:.4g}")
    if found.first_pair is not None:
        until = "never" if found.until_tenth is None else f"after {found.until_tenth} positions"
        parts.append(f"{found.pairs} pairs differ from pair {found.first_pair} on, 0.1 rad off {until}")
    return ", ".join(parts) + ("" if found.tokens == "all" else " (image and video tokens only)")


def audit(config: Any, *, length: int | None = None, max_model_len: int | None = None) -> Audit:
    """What transformers, vLLM, SGLang, mlx-lm and llama.cpp compute from one config, and where they part.

    config         a transformers config, a dict, or the path of a config.json or of its folder
    length         tokens of the longest sequence of a batch; None looks at the trained and the served length where
                   frequencies follow it
    max_model_len  the longest sequence an engine is started for; None = the config's own

    Rules are facts read in the engines' sources in the month each one names; a newer tree may differ.
    """
    text = config_file.text_part(config_file.load(config))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # kept in `warnings`
        specs = from_hf(text, per_layer=True, precision="exact")
    assert isinstance(specs, dict)  # for the type checker: per_layer gives one
    told = explain(text)
    found: list[Finding] = []
    served = 0
    for layer_type, spec in specs.items():
        if spec is None:
            continue
        case = _case(text, spec, layer_type, max_model_len)
        served = max(served, case.max_model_len)
        for asked in _lengths(case, length):
            found += _findings(layer_type, replace(case, length=asked))
    if not found:
        raise RopeError("rope_parameters", "must rotate at least one layer type", list(specs))
    return Audit(told.model_type, served, tuple(found), told.warnings)


def _case(text: Mapping[str, Any], spec: RopeSpec, layer_type: str, max_model_len: int | None) -> Case:
    model_type = text.get("model_type")
    rope = layer_ropes(text, FAMILIES.get(model_type or "", Family(reads_partial=True))).get(layer_type) or {}
    longest = find(text, "max_position_embeddings", "n_positions", "max_seq_len", "model_max_length")
    max_position = None if longest is None else integer(longest.key, longest.value, low=1)
    served = _served(spec, max_position) if max_model_len is None else integer("max_model_len", max_model_len, low=1)
    nested = any(found.where == f"rope_parameters.{layer_type}" for found in rope.values())
    keys = {key: found.value for key, found in rope.items()}
    latent = text.get("qk_rope_head_dim") is not None
    return Case(spec, keys, model_type, max_position, served, served, latent, nested)


def _served(spec: RopeSpec, max_position: int | None) -> int:
    """The length engines are started for unless told otherwise."""
    trained, factor = (getattr(spec.scaling, name, None) for name in ("original_length", "factor"))
    if isinstance(spec.scaling, Dynamic) or (max_position is None and trained and factor):
        return round(trained * factor)  # type: ignore[operator]  # both are given
    if max_position is None:
        raise RopeError("max_model_len", "must be given where the config has no max_position_embeddings", None)
    return max_position


def _lengths(case: Case, length: int | None) -> tuple[int, ...]:
    if length is not None:
        return (integer("length", length, low=1),)
    if not case.spec.needs_length:
        return (case.max_model_len,)
    trained = case.spec.scaling.original_length  # type: ignore[attr-defined]  # all that follow a length have one
    return tuple(sorted({min(trained, case.max_model_len), case.max_model_len}))


def _findings(layer_type: str, case: Case) -> list[Finding]:
    readings = {name: engine.read(case) for name, engine in ENGINES.items()}
    reference = readings[REFERENCE]
    made = []
    for name, reading in readings.items():
        radians, magnitude = _numbers(reading)
        difference = None if name == REFERENCE or reading.spec is None else compare(reference, reading, case.length)
        axis = () if reading.spec is None else reading.spec.axis_of_pair
        made.append(Finding(name, layer_type, case.length, radians, magnitude, axis, reading.rules, difference, reading.problem))
    return made


def _numbers(reading: Reading) -> tuple[tuple[float, ...], float | None]:
    if reading.spec is None:
        return (), None
    found = reading.spec.ladder_frequencies(reading.length)
    return tuple(found.radians.tolist()), float(found.magnitude)


def compare(reference: Reading, engine: Reading, length: int) -> Difference | None:
    """How far two known readings are apart over `length` tokens; None where they are the same."""
    (ours, our_size), (theirs, their_size) = _numbers(reference), _numbers(engine)
    if len(ours) != len(theirs):
        raise RopeError("engine", f"must turn the {len(ours)} pairs of the reference", len(theirs))
    first, second = (torch.tensor(radians, dtype=torch.float64) for radians in (ours, theirs))
    other_pace = (first - second).abs() > SAME * first.abs()
    axes = [torch.tensor(reading.spec.axis_of_pair) for reading in (reference, engine)]  # type: ignore[union-attr]
    other_axis = axes[0] != axes[1]
    differs = (other_pace | other_axis).nonzero().flatten().tolist()
    temperature = (their_size / our_size) ** 2  # type: ignore[operator]  # both are known
    if not differs and abs(temperature - 1) <= SAME:
        return None
    only_image = bool(other_axis.any()) and not bool(other_pace.any()) and abs(temperature - 1) <= SAME
    # where only axes differ, a pair lags by its pace times the distance between the two coordinates
    gap = torch.where(other_axis, first, 0.0) if only_image else torch.where(other_pace, second - first, 0.0)
    reach = min(length, IMAGE_SIDE) if only_image else length
    change = _score_change(first, first - gap if only_image else second, temperature, reach)
    at = differs[0] if differs else None
    return Difference(
        at, len(differs), None if at is None else ours[at], None if at is None else theirs[at], temperature,
        float(change.max()) * our_size**2, float(change.mean()) * our_size**2,  # type: ignore[operator]
        _until(gap, 0.1), _until(gap, math.pi), "image" if only_image else "all",
    )  # fmt: skip


def _score_change(first: Tensor, second: Tensor, temperature: float, reach: int) -> Tensor:
    """|t e^{i w' d} - e^{i w d}| [distances, pairs]: what q . k of unit vectors in one pair can change by at most."""
    steps = torch.logspace(0, math.log10(reach), DISTANCES, dtype=torch.float64).round().unique().unsqueeze(-1)
    return (temperature * torch.exp(1j * steps * second) - torch.exp(1j * steps * first)).abs()


def _until(gap: Tensor, angle: float) -> int | None:
    """The first position at which some pair is off by more than `angle`."""
    widest = float(gap.abs().max())
    return math.floor(angle / widest) + 1 if widest > 0 else None
