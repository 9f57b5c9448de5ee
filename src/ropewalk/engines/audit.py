"""Compare what each engine computes from one config with what transformers computes: where the two
first differ, and by how much.

There are three ways of knowing what an engine computes: it was *run* here, this very config was
*recorded*, or a *rule* was read in its sources. Anything else is "not known".

Words of this module:
  case          one layer type of a config and how it is served, a `ServedLayer`
  text          the keys of the text model; in a multimodal config also keys of the whole config,
                under names that end with "_outside"
  specs         {layer type: its spec, or None if it does not rotate}; `read_specs(config, "exact")`
                reads them with exact frequencies
  limit         the longest sequence that an engine is started for; None: its own default
  length        tokens of the longest sequence of a batch; None: not given
  release       one release of an engine with its rules, a `Release`
  reading       what the rules say that an engine computes for a case, an `EngineReading`
  problem       why there is no result: "refused: ..." or "not known: ..."
  finding       the result for one engine, layer type and length, an `EngineFinding`
  reference     transformers, to which the other engines are compared
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from ropewalk.config import file as config_file
from ropewalk.config.families import family_of
from ropewalk.config.hf import Explanation, read_specs
from ropewalk.engines.case import (
    OUTER_ARCHITECTURES,
    OUTER_CONFIG,
    OUTER_TYPE,
    ServedLayer,
    layer_types_of,
)
from ropewalk.engines.difference import Difference, Rotation, compare
from ropewalk.engines.operations import length_problem
from ropewalk.engines.reading import EngineReading, EngineRule
from ropewalk.engines.recorded import Record, digest
from ropewalk.engines.recorded import load as load_records
from ropewalk.engines.registries import registry_of
from ropewalk.engines.rope_faults import ROPES, all_ropes, name_of
from ropewalk.engines.rules import PackageReleases, Release
from ropewalk.engines.unread import READ_ANYWAY, REASONS, put_back, readable, reasons, usual
from ropewalk.errors import RopeError, choice, integer
from ropewalk.frequencies import Dynamic
from ropewalk.spec import RopeSpec

#: the newest release of every engine whose rules are in the package, the reference first
ENGINES: Mapping[str, Release] = PackageReleases()
REFERENCE = "hf"
#: the key under which `audit` puts what `_unread_part` returns
UNREAD_PART = "unread_part"
#: how a finding is known, by the words of the module's docstring
RUN, RECORDED, RULE, NOT_KNOWN = "run", "recorded", "rule", "not known"
#: keys whose null each family reads in its own way, as an error, the whole head or a default; the
#: rules do not say which
NULL_NOT_READ = ("rope_type", "type", "partial_rotary_factor", "rotary_pct")
#: the key that names the class of a model of diffusers
DIFFUSERS_KEY = "_class_name"
#: the problem of an engine that builds a rope of infinities
NO_NUMBERS = "refused: no angle is a number"
#: relative difference between the float32 numbers of a run and exact ones that is rounding
SAME_IN_RUNS = 2e-5


@dataclass(frozen=True)
class EngineRun:
    """What release `version` of an engine, run here on `date`, did with one layer type at one
    length: `found` is a rotation, None for no rotation, or the text of its error.
    """

    engine: str
    version: str
    date: str
    layer_type: str
    length: int
    found: Rotation | str | None


@dataclass(frozen=True)
class EngineFinding:
    """What one engine computes for one layer type at one length; `problem` says why there is no
    result.

    radians        the frequency of each pair in radians per token, and in axis_of_pair the index of
                   its position axis; () if there is a problem
    magnitude      the factor on cos and sin; None if there is a problem
    rules          what the engine does other than the config describes
    difference     from the reference; None: none, or there is a problem, or it is the reference
    known          how this is known: "run" (here), "recorded" (this very config was run), "rule"
                   (read in the sources of the release), or "not known"
    version, date  the release of the engine, and when it was run or read
    evidence       the last three in words
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
    known: str = NOT_KNOWN
    version: str = ""
    date: str = ""
    evidence: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the result is known and the same as the reference."""
        return self.problem is None and self.difference is None


@dataclass(frozen=True)
class Audit:
    """The findings for every engine, including the reference; print it, or call `as_dict()`.

    max_model_len  the longest sequence, in tokens, that an engine is started for
    engines        {engine: the release whose rules were used}; None: ENGINES
    """

    model_type: str | None
    max_model_len: int
    findings: tuple[EngineFinding, ...]
    warnings: tuple[str, ...] = ()
    engines: Mapping[str, Release] | None = None

    def of(self, engine: str) -> tuple[EngineFinding, ...]:
        """Return the findings of one engine."""
        choice("engine", engine, self.engines or ENGINES)
        return tuple(finding for finding in self.findings if finding.engine == engine)

    @property
    def disagreements(self) -> tuple[EngineFinding, ...]:
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
                name: {"title": engine.title, "tree": engine.version}
                for name, engine in (self.engines or ENGINES).items()
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
            title = (self.engines or ENGINES)[finding.engine].title
            lines.append(
                f"{finding.layer_type} at {finding.length}: {title}: {_in_words(finding)} "
                f"({finding.evidence})"
            )
            lines += [f"    {rule}" for rule in finding.rules]
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])


def in_one_line(finding: EngineFinding) -> str:
    """Return which engine differs, by how much, and why, as one line."""
    parts = [_in_words(finding), *map(str, finding.rules)]
    return f"{ENGINES[finding.engine].title} at {finding.length} tokens: {'; '.join(parts)}"


def _in_words(finding: EngineFinding) -> str:
    """Return in one line the problem of a finding, or how it differs from the reference."""
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
        parts.append(f"{difference.pairs} pairs differ, the first is pair {difference.first_pair}")
        # pairs that differ only in their axis never turn a text token wrongly: its position is the
        # same on all axes
        tenth = difference.until_tenth
        parts.append(
            "never 0.1 rad off" if tenth is None else f"0.1 rad off from distance {tenth:,}"
        )
    return ", ".join(parts) + (
        "" if difference.tokens == "all" else " (image and video tokens only)"
    )


def audit(
    config: Any,
    *,
    length: int | None = None,
    max_model_len: int | None = None,
    engines: Mapping[str, Release] | None = None,
    records: Mapping[str, Record] | None = None,
    runs: Iterable[EngineRun] = (),
) -> Audit:
    """Compare what transformers, vLLM, SGLang, mlx-lm and llama.cpp compute from one config.

    config         a transformers config, a dict, or the path of a config.json, of its folder or of
                   a GGUF file
    length         tokens of the longest sequence of a batch; None: max_model_len, and the trained
                   length too if the frequencies depend on the length
    max_model_len  the longest sequence that an engine is started for; None: each engine's own
                   limit, mostly the config's
    engines        the release of each engine whose rules are used, from `ropewalk.engines.rules`;
                   None: the newest ones of the package
    records        what releases were recorded to compute, from `ropewalk.engines.recorded`; None:
                   those of the package; {}: none
    runs           what engines that were run here computed from this config

    What was run comes first, then what was recorded, then the rules; `known` of each finding says
    which of them it rests on. Other releases may differ.
    """
    if config_file.is_gguf(config):
        from ropewalk.gguf import GgufFile, hf_config

        config = hf_config(GgufFile(config))
    loaded = config_file.load(config)
    text = _named(config_file.text_config(loaded), loaded)
    outside = {f"{key}_outside": loaded[key] for key in ROPES if loaded.get(key)}
    if any(loaded.get(name) is not None for name in config_file.TEXT_PARTS):
        for key in ("rope_theta", "max_position_embeddings"):
            if loaded.get(key) is not None:
                outside[f"{key}_outside"] = loaded[key]
        vision = loaded.get("vision_config")
        if isinstance(vision, Mapping) and any(vision.get(key) for key in ROPES):
            outside["vision_rope_outside"] = True
            named = {name_of(rope) for rope in all_ropes(vision)}
            outside["vision_scaling_outside"] = bool(
                named & {"yarn", "llama3", "longrope"} and "max_position_embeddings" not in vision
            )
        outside[UNREAD_PART] = _unread_part(loaded)
        if "architectures" in loaded:
            outside[OUTER_ARCHITECTURES] = loaded["architectures"]
        if _is_in_itself(loaded):
            parts = config_file.TEXT_PARTS
            outside[OUTER_CONFIG] = {key: loaded[key] for key in loaded if key not in parts}
        # rules are about the text model, and find keys of the whole config under these names
        text = {**text, **outside, OUTER_TYPE: loaded.get("model_type")}
    if DIFFUSERS_KEY in text:
        raise RopeError(
            DIFFUSERS_KEY,
            "must not be in the config: none of these engines runs a model of diffusers",
            text[DIFFUSERS_KEY],
        )
    releases = ENGINES if engines is None else engines
    asked = _Question(text, max_model_len, length, releases)
    known = {(run.engine, run.layer_type, run.length): run for run in runs}
    records = load_records() if records is None else records
    findings: list[EngineFinding] = []
    longest = 0
    for layer_type, case in asked.cases.items():
        longest = max(longest, case.max_model_len)
        for tokens in _lengths(case, length):
            findings += _findings(asked, layer_type, tokens, records, known)
    if not findings:
        findings = list(_unrotated(asked, length or max_model_len or 1))
    refused = _refused_as_a_whole(findings, layer_types_of(asked.text))
    warnings = (*asked.warnings, *asked.explanation.warnings)
    return Audit(asked.explanation.model_type, longest, refused, warnings, releases)


def _named(text: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `text`, the text model of `config`; if its text_config names no model type, with the
    one that transformers' config class gives it.
    """
    part = config.get("text_config")
    name = ENGINES[REFERENCE].text_types.get(str(config.get("model_type")))
    is_named = not isinstance(part, Mapping) or part.get("model_type") is not None
    return text if is_named or name is None else {**text, "model_type": name}


def _unread_part(config: Mapping[str, Any]) -> str | None:
    """Return in words where the config has its text model, if what transformers' config class does
    with one there was not read; else None. The config has at least one of TEXT_PARTS, the keys of
    a text model.
    """
    parts = [name for name in config_file.TEXT_PARTS if config.get(name) is not None]
    part = config[parts[0]]
    if parts[0] == "text_config" and isinstance(part.get("text_config"), Mapping):
        return "a text_config inside text_config"
    # what a class of transformers does with a text model under a key that is none of its own
    reference, model_type = ENGINES[REFERENCE], str(config.get("model_type"))
    is_own = parts[0] == "text_config" or (
        parts[0] == "thinker_config" and model_type in reference.lists["thinkers"]
    )
    if not is_own and model_type in reference.loads(ENGINES):
        return f"a text model under {parts[0]}"
    return None


def _is_in_itself(config: Mapping[str, Any]) -> bool:
    """Return whether the text_config of a config has the model_type of the whole config, though it
    is that of a text model.
    """
    part, name = config.get("text_config"), config.get("model_type")
    is_text = name in ENGINES[REFERENCE].families and name not in ENGINES[REFERENCE].text_types
    return isinstance(part, Mapping) and is_text and part.get("model_type") == name


class _Question:
    """One config, and what each engine takes it for.

    original  the config as given; an engine may take a config that `from_hf` refuses for another
              one, or raise an error
    text      the config as most engines read it, which `from_hf` reads; `specs` are its specs
    limit     the longest sequence that engines are started for; None: each has a default
    length    tokens of the longest sequence of the batch; None: not given
    why       REASONS for which `from_hf` refuses the original
    """

    def __init__(
        self,
        text: Mapping[str, Any],
        limit: int | None,
        length: int | None,
        releases: Mapping[str, Release],
    ) -> None:
        """Read a config; one that `from_hf` refuses is read as most engines take it. `limit` and
        `length` are those that the caller of `audit` gave.
        """
        self.length = length
        self.original, self.limit, self.releases = text, limit, releases
        #: names of REASONS: why `from_hf` refuses the config
        self.why: list[str] = []
        #: other keys that `from_hf` refuses or misses: `text` lacks them, or has a value for them
        self.left_out: list[str] = []
        self.warnings: tuple[str, ...] = ()
        try:
            self.specs, self.explanation = read_specs(text, "exact")
            self.text = text
            # `from_hf` takes any name for a layer type, and adds the keys of both ropes
            if any(REASONS[reason](text) for reason in READ_ANYWAY):
                self.why = reasons(text)
            if self.why:
                self.text = usual(text)
                self.specs, self.explanation = read_specs(self.text, "exact")
        except RopeError as error:
            if error.field == "model_type":  # what the config is for is not known
                raise
            self.warnings = (f"{error}; engines may read it all the same",)
            if error.field in family_of(text.get("model_type")).rotates_if:  # no layer rotates
                self.text, self.specs = text, {"full_attention": None}
                self.explanation = Explanation(text.get("model_type"), ())
                return
            self.why = reasons(text)
            self.text, self.left_out = readable(usual(text))
            self.specs, self.explanation = read_specs(self.text, "exact")

    @cached_property
    def cases(self) -> dict[str, ServedLayer]:
        """{layer type: its `ServedLayer`} of the layer types that rotate."""
        return self.cases_of(self.text, self.specs)

    def cases_of(
        self, text: Mapping[str, Any], specs: Mapping[str, RopeSpec | None]
    ) -> dict[str, ServedLayer]:
        """Return {layer type: its `ServedLayer`} of the layer types that rotate, for a config and
        its specs.
        """
        found = {}
        for layer_type, spec in specs.items():
            if spec is not None:
                given = self.limit is not None
                # only max_position is read of this one, whose lengths of 1 stand for any
                case = ServedLayer(spec, text, layer_type, 1, 1, given)
                limit = _default_limit(spec, case.max_position) or self.length
                if self.limit is not None:
                    limit = integer("max_model_len", self.limit, low=1)
                elif limit is None:
                    rule = (
                        "must be given, because the config has no max_position_embeddings (CLI: "
                        "--max-model-len)"
                    )
                    raise RopeError("max_model_len", rule, None)
                found[layer_type] = replace(case, max_model_len=limit, length=limit)
        return found

    def read(self, engine: str, layer_type: str, length: int) -> EngineReading:
        """Return what the rules of an engine say about a layer type at a length, if they are about the
        class that the config names.
        """
        reading = self._read(engine, layer_type, length)
        registry = registry_of(engine, self.releases[engine].version)
        if registry is None or (reading.problem or "").startswith("refused"):
            return reading
        problem = registry.problem(self.original)
        # an error is more than a rope that is not known
        keep = problem is None or (reading.problem is not None and problem.startswith("not known"))
        return reading if keep else reading.fail(str(problem))

    def _read(self, engine: str, layer_type: str, length: int) -> EngineReading:
        """Return what the rules of an engine say about a layer type at a length."""
        release = self.releases[engine]
        if (part := self.original.get(UNREAD_PART)) is not None:
            case = replace(self.cases[layer_type], length=length)
            return EngineReading(case, release.read).fail(
                f"not known: what the class does with {part}"
            )
        if (whole := self.original.get(OUTER_CONFIG)) is not None:
            return self._read_around(whole, engine, layer_type, length)
        written = replace(self.cases[layer_type], config=self.original, length=length)
        if (problem := length_problem(release, written, self.releases)) is not None:
            return EngineReading(written, release.read).fail(problem)
        if (without_model := release.has_no_model(written, self.releases)) is not None:
            return without_model
        if not self.why and not self.left_out:
            return self._apply(release, self.cases[layer_type], length)

        def failed(problem: str) -> EngineReading:
            """Return a reading with this problem."""
            case = replace(self.cases[layer_type], length=length)
            return EngineReading(case, release.read).fail(problem)

        def reading_of(config: Mapping[str, Any]) -> EngineReading:
            """Return what the rules say about a config that `from_hf` reads."""
            try:
                cases = self.cases_of(config, read_specs(config, "exact")[0])
            except RopeError as error:  # it has a fault that no reason is about
                return failed(f"not known: {error}")
            if layer_type not in cases and len(cases) == 1:  # one rope for all layers
                cases = {layer_type: replace(*cases.values(), layer_type=layer_type)}
            if layer_type not in cases:
                return failed("not known: another set of layer types")
            return self._apply(release, cases[layer_type], length)

        def same(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
            """Return whether the engine computes the same from two configs."""
            one, other = reading_of(first), reading_of(second)
            return (one.problem, one.frequencies()) == (other.problem, other.frequencies())

        # for `take`, the config without the keys that no reason is about
        original, left_out = self.original, ""
        if self.left_out:
            # an engine may refuse the config for a reason that has nothing to do with these keys
            refused, _ = release.take(original, self.why, same)
            if isinstance(refused, str) and refused.startswith("refused"):
                return failed(refused)
            original, _ = readable(original, self.left_out)
            left_out = f"not known: what {release.title} does with {self.left_out[0]} as it is"

        taken, notes = release.take(original, self.why, same)
        if isinstance(taken, str):
            return failed(taken)
        # a theta that the config lacks and the engine does not read
        if self.left_out == ["rope_parameters"] and "rope_theta" in taken:
            left_out = "" if same(taken, {**taken, "rope_theta": 123_456.0}) else left_out
        reading = reading_of(taken)
        if left_out and len(reading.unrotated_pairs) < reading.spec.pairs:  # some pair rotates
            return failed(left_out)
        if reading.problem is None:
            rope = ServedLayer(reading.spec, self.original, layer_type, 1, 1).rope_with_nulls
            # the rules were applied to placeholders of values that no scaling accepts
            reading.spec = reading.spec.with_(scaling=put_back(reading.spec.scaling, rope))
            try:
                reading.frequencies()  # they must be numbers
            except (ArithmeticError, ValueError) as error:
                return failed(f"not known: {error}")
        reading.rules[:0] = notes
        return reading

    def _read_around(
        self, whole: Mapping[str, Any], engine: str, layer_type: str, length: int
    ) -> EngineReading:
        """Return what the rules of an engine say about a config whose text_config has the model_type
        of the whole config; `whole` is the config without it.
        """
        release = self.releases[engine]
        reading = EngineReading(replace(self.cases[layer_type], length=length), release.read)
        how = release.code.get("text_config", "not known: what the class does with text_config")
        if how != "not read":
            return reading.fail(how)
        case = replace(reading.case, config=whole)
        if (problem := release.has_no_model(case, self.releases)) is not None:
            return problem
        needed = [key for key in release.needs.get(case.model_type or "", ()) if key not in whole]
        if needed:
            return reading.fail(f"refused: {needed[0]} must be given beside text_config")
        if not any(key in whole for key in ("hidden_size", "head_dim", "qk_rope_head_dim")):
            return reading.fail("not known: the widths that the class has by default")
        around = _Question(whole, self.limit, self.length, self.releases)
        if layer_type not in around.cases:
            return reading.fail("not known: another set of layer types")
        found = around.read(engine, layer_type, length)
        found.add_rule("text_config", "not read", "the family's file in models")
        return found

    def _apply(self, release: Release, case: ServedLayer, length: int) -> EngineReading:
        """Return what the rules of a release say about a case at a length."""
        case = replace(case, length=length)
        reading = EngineReading(case, release.read)
        # keys of NULL_NOT_READ that are null and that the rules of this release are not about
        places = (case.rope_with_nulls, case.config)
        nulls = [
            key
            for key in NULL_NOT_READ
            if key not in release.nulls
            and any(key in place and place[key] is None for place in places)
        ]
        if nulls:
            return reading.fail(f"not known: {nulls[0]} is null; remove the key")
        try:
            reading = release.apply(case, self.releases)
            reading.frequencies()  # raises an error for numbers that no rope can have
        except (RopeError, ArithmeticError, ValueError) as error:
            return EngineReading(case, release.read).fail(f"not known: {error}")
        return reading


def _unrotated(asked: _Question, length: int) -> Iterator[EngineFinding]:
    """Yield the findings about a config of which no layer rotates."""
    spec = RopeSpec(head_dim=64)  # any spec: nothing of it is shown
    for layer_type in asked.specs:
        for engine, release in asked.releases.items():
            case = ServedLayer(spec, asked.original, layer_type, length, length)
            refused = release.has_no_model(case, asked.releases)
            problem = None if refused is None else refused.problem
            anyway = case.model_type in release.lists.get("rotate_anyway", ())
            if (
                problem is None
                and anyway
                and (found := _rotated_anyway(asked, engine, layer_type, length))
            ):
                yield found
                continue
            # `read_unrotated`: the families of which it was read that such layers do not rotate
            if problem is None and case.model_type not in release.lists.get("read_unrotated", ()):
                problem = f"not known: whether {release.title} rotates a layer of this config"
            # the specs, by which no layer rotates, are what transformers reads from the config
            if engine == REFERENCE and refused is None:
                problem = None
            known = NOT_KNOWN if (problem or "").startswith("not known") else RULE
            yield EngineFinding(
                engine,
                layer_type,
                length,
                radians=(),
                magnitude=1.0 if problem is None else None,
                axis_of_pair=(),
                rules=(),
                problem=problem,
                known=known,
                version=release.version,
                date=release.read,
                evidence=f"{known}, {release.title} {release.version}",
            )


def _rotated_anyway(
    asked: _Question, engine: str, layer_type: str, length: int
) -> EngineFinding | None:
    """Return the finding for an engine that does not read the keys by which no layer rotates, such
    as `no_rope_layers` and its interval, and rotates layers by their index or their type; None if no
    layer has attention.

    layer_type  the layer type of the finding; the engine may rotate another one
    """
    unread = ("no_rope_layers", "no_rope_layer_interval")
    text = {key: value for key, value in asked.original.items() if key not in unread}
    for key, values in family_of(asked.original.get("model_type")).rotates_if.items():
        text[key] = values[0]
    read = _Question(text, asked.limit, asked.length, asked.releases)
    if not read.cases:  # no layer has attention
        return None
    # any layer type that rotates without the keys
    reading = read.read(engine, next(iter(read.cases)), length)
    finding = _of_rules(engine, asked.releases[engine], reading, None, layer_type, length)
    pairs = len(finding.radians)
    return _compared(finding, Rotation((0.0,) * pairs, 1.0, (0,) * pairs), length)


def _refused_as_a_whole(
    findings: list[EngineFinding], layers: list[str]
) -> tuple[EngineFinding, ...]:
    """Return the findings; an engine that refuses one layer type builds no model, so all its
    findings get that problem. But transformers builds a rope of infinities, and no engine builds
    the rope of a type that is not among the `layers`, [] if these are not known.
    """
    types = {finding.layer_type for finding in findings}
    refused = [
        finding
        for finding in findings
        if (finding.problem or "").startswith("refused")
        and not (finding.engine == REFERENCE and finding.problem == NO_NUMBERS)
        and (finding.layer_type in layers or not types & {*layers})
    ]
    # reversed, so that the first problem of each engine is the one that stays
    problems = {finding.engine: finding.problem for finding in reversed(refused)}
    empty: dict[str, Any] = {"radians": (), "magnitude": None, "axis_of_pair": ()}
    return tuple(
        replace(f, problem=problems[f.engine], difference=None, **empty)
        if f.engine in problems
        else f
        for f in findings
    )


def _default_limit(spec: RopeSpec, max_position: int | None) -> int | None:
    """Return the default served length: `max_position`, or, if it is None or the scaling dynamic,
    trained length x factor.
    """
    # a config with a dynamic scaling has the trained length under the key of `max_position`
    scaling = spec.scaling.innermost
    trained, factor = getattr(scaling, "original_length", None), getattr(scaling, "factor", None)
    if trained and factor and (isinstance(scaling, Dynamic) or max_position is None):
        return round(trained * factor)
    return max_position


def _lengths(case: ServedLayer, length: int | None) -> tuple[int, ...]:
    """Return the lengths to compare at: the given one; else the longest sequence that engines are
    started for, and the trained length too if the scaling depends on the length.
    """
    if length is not None:
        return (integer("length", length, low=1),)
    if not case.spec.needs_length:
        return (case.max_model_len,)
    # scalings that depend on the length have a trained one
    trained = case.spec.scaling.innermost.original_length  # type: ignore[attr-defined]
    return tuple(sorted({min(trained, case.max_model_len), case.max_model_len}))


def _findings(
    asked: _Question,
    layer_type: str,
    length: int,
    records: Mapping[str, Record],
    runs: Mapping[tuple[str, str, int], EngineRun],
) -> list[EngineFinding]:
    """Return one finding per engine: what it computes, and how that differs from transformers.

    asked       the config, its specs and the limit of the engines
    layer_type  the layer type that is compared
    length      the length of the longest sequence
    records     {engine: its recorded runs}
    runs        {(engine, layer type, length): what a run here found}; it comes before a record
    """
    spec = asked.cases[layer_type].spec
    text = {
        key: value
        for key, value in asked.text.items()
        if key not in (OUTER_TYPE, OUTER_ARCHITECTURES, OUTER_CONFIG, UNREAD_PART)
    }
    # the name of the config in the records. A record of the config as `from_hf` would read it says
    # nothing of one that `from_hf` refuses
    name = "" if asked.why else digest(text, asked.specs, length, asked.limit)
    found = []
    for engine, release in asked.releases.items():
        reading = asked.read(engine, layer_type, length)
        finding = _of_rules(engine, release, reading, records.get(engine), layer_type, length)
        record = records.get(engine)
        cell = record.rope(name, layer_type, spec, length) if record is not None else None
        if record is not None and record.version == release.version and cell is not None:
            evidence = f"recorded, {release.title} {record.releases()}, {record.date}"
            finding = _measured(
                finding, cell.found, RECORDED, record.version, record.date, evidence
            )
        if (run := runs.get((engine, layer_type, length))) is not None:
            evidence = f"run here, {release.title} {run.version}, {run.date}"
            finding = _measured(finding, run.found, RUN, run.version, run.date, evidence)
        found.append(finding)
    if all(_rotation(finding) is None for finding in found):  # there is nothing to compare
        return found
    reference = next(finding for finding in found if finding.engine == REFERENCE)
    # what the config of an unknown family describes is a guess
    if _rotation(reference) is None and not asked.explanation.known:
        return found
    # where transformers computes no rope, engines are compared with what the config describes
    described = EngineReading(replace(asked.cases[layer_type], length=length))
    ours = _rotation(reference) or Rotation(*described.frequencies(), spec.axis_of_pair)  # type: ignore[arg-type]
    return [_compared(finding, ours, length) for finding in found]


def _of_rules(
    engine: str,
    release: Release,
    reading: EngineReading,
    record: Record | None,
    layer_type: str,
    length: int,
) -> EngineFinding:
    """Return a finding that rests on the rules of a release.

    reading             what the rules say
    record              recorded runs of the engine, or None; the evidence mentions those of the
                        same family and scaling
    layer_type, length  what the finding is about
    """
    radians, magnitude = reading.frequencies()  # () and None if there is a problem
    axes = reading.spec.axis_of_pair if reading.problem is None else ()
    case = reading.case
    if (reading.problem or "").startswith("not known"):
        known, evidence = NOT_KNOWN, f"not known, {release.title} {release.version}"
    else:
        known, evidence = RULE, f"rule, {release.title} {release.version}, read {release.read}"
        # runs of another release prove nothing about this one
        families = {} if record is None or record.version != release.version else record.families
        if case.spec.scaling.name in families.get(case.model_type or "", ()):
            evidence += "; runs of this family and scaling agree"
    return EngineFinding(
        engine,
        layer_type,
        length,
        radians,
        magnitude,
        axes,
        rules=tuple(reading.rules),
        problem=reading.problem,
        known=known,
        version=release.version,
        date=release.read,
        evidence=evidence,
    )


def _measured(
    finding: EngineFinding,
    found: Rotation | str | None,
    known: str,
    version: str,
    date: str,
    evidence: str,
) -> EngineFinding:
    """Return a finding of the rules with what a run found in place of their numbers.

    finding                 what the rules say
    found                   what the run found: a rotation, None for no rotation, or the text of the
                            engine's error
    known                   RUN for a run here, RECORDED for a recorded one
    version, date, evidence the release that ran, when, and the sentence that says so

    If both agree, the numbers of the rules stay, because they are exact. The rules are listed
    unless they said that the engine has a problem and the run found a rotation.
    """
    about: dict[str, Any] = {"known": known, "version": version, "date": date, "evidence": evidence}
    if isinstance(found, str):
        # the words of a rule that foresaw the error are clearer than its text
        problem = finding.problem or ""
        told = problem if problem.startswith("refused") else f"refused: {found}"
        empty: dict[str, Any] = {"radians": (), "magnitude": None, "axis_of_pair": ()}
        return replace(finding, problem=told, **empty, **about)
    if found is None:  # all frequencies are 0
        found = Rotation((0.0,) * len(finding.radians), 1.0, (0,) * len(finding.radians))
    said = _rotation(finding)
    # over 2 tokens: only whether they differ is asked
    if said is not None and compare(said, found, 2, SAME_IN_RUNS) is None:
        return replace(finding, **about)  # the rule's numbers are the exact ones
    numbers: dict[str, Any] = {
        "radians": found.radians,
        "magnitude": found.magnitude,
        "axis_of_pair": found.axis_of_pair,
    }
    rules = finding.rules if finding.problem is None else ()
    return replace(finding, problem=None, rules=rules, **numbers, **about)


def _rotation(finding: EngineFinding) -> Rotation | None:
    """Return the rotation that an engine computes; None if it has a problem."""
    if finding.problem is not None or finding.magnitude is None:
        return None
    return Rotation(finding.radians, finding.magnitude, finding.axis_of_pair)


def _compared(finding: EngineFinding, reference: Rotation, length: int) -> EngineFinding:
    """Return the finding with its difference from the reference; unchanged if it is the reference's
    own, or has a problem.
    """
    rotation = _rotation(finding)
    if rotation is None or finding.engine == REFERENCE:
        return finding
    # what was run has the numbers of float32; others are exact, and differ by the last bits alone
    same = SAME_IN_RUNS if finding.known in (RUN, RECORDED) else 1e-6
    return replace(finding, difference=compare(reference, rotation, length, same))
