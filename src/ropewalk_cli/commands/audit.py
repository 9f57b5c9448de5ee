"""`ropewalk audit`: compare the rope that inference engines compute from a config with that of
transformers.
"""

from __future__ import annotations

import json as json_format
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import ropewalk as rw
from ropewalk_cli.commands import Details, Example, Json, OptionalConfig, config_or_example
from ropewalk_cli.declare import Option
from ropewalk_cli.output import say, table

if TYPE_CHECKING:
    from ropewalk.engines import Audit, EngineFinding
    from ropewalk.engines.audit import EngineRun

LEGEND = (
    "logits: factor on every attention logit. pairs: number of pairs that rotate differently. "
    "change of a score: the largest change of q.k of unit vectors, over distances up to the "
    "length. 0.1 rad off: positions until a pair's angle is off by that. known by: run, the "
    "engine was run here; recorded, this very config was run before; rule, read in the engine's "
    "sources; each with the release and the date."
)
DETAILS_LEGEND = (
    "magnitude: the factor on cos and sin. mean change: of q.k, over pairs and distances. pi off: "
    "positions until some pair's angle is off by half a turn. tokens that differ: all, or those "
    "of images and video."
)


def audit(
    config: OptionalConfig = None,
    example: Example = None,
    length: Annotated[
        int | None,
        Option(
            "Tokens of the longest sequence of a batch; by default the served length, and also the "
            "trained one if the frequencies depend on the length."
        ),
    ] = None,
    max_model_len: Annotated[
        int | None,
        Option(
            "The longest sequence that engines are started for; by default each engine's own limit."
        ),
    ] = None,
    run: Annotated[
        bool,
        Option("Also run the engines that are installed here with a small model of the config."),
    ] = False,
    details: Details = False,
    json: Json = False,
) -> None:
    """Compare the rope that transformers, vLLM, SGLang, mlx-lm and llama.cpp compute from the same
    config.

    With --details also the other measures of each difference, and the source of every engine's
    rule.
    """
    given = config_or_example(config, example)
    lengths: dict[str, Any] = {"length": length, "max_model_len": max_model_len}
    result = rw.audit(given, **lengths)
    notes: list[str] = []
    if run:
        runs, notes = _run_installed(given, result, max_model_len)
        result = rw.audit(given, **lengths, runs=runs)
    if json:
        print(json_format.dumps(result.as_dict() | ({"not_run": notes} if run else {}), indent=2))
        return
    say(verdict(result), style="bold")
    for text in result.warnings:
        say(f"warning: {text}", style="yellow")
    for text in notes:
        say(text)
    columns = ("result", "why", "logits", "pairs", "change of a score", "0.1 rad off", "known by")
    _table(columns, result, _cells, LEGEND if result.disagreements else "")
    if not details:
        say(
            "--details shows the engines' rules with their sources, and more measures of each "
            "difference"
        )
        return
    columns = ("magnitude", "first pair", "mean change", "pi off", "tokens that differ", "evidence")
    _table(columns, result, _more_cells, DETAILS_LEGEND)
    say(*_rules(result))


def _run_installed(
    config: Any, result: Audit, max_model_len: int | None
) -> tuple[list[EngineRun], list[str]]:
    """Return what the installed engines compute from a config, and a line for each engine that was
    not run; raise an error for a GGUF file.
    """
    from ropewalk.config import file as config_file
    from ropewalk.errors import RopeError
    from ropewalk_lab.engines_run import config_runs, installed

    if isinstance(config, Path) and config.suffix == ".gguf":
        raise RopeError("--run", "must not be given for a GGUF file; give the config.json", config)
    raw = config_file.load(config)
    runs: list[EngineRun] = []
    notes: list[str] = []
    for engine, release in rw.engines.ENGINES.items():
        if (reason := installed.why_not(engine)) is not None:
            notes.append(f"{release.title}: not run, because {reason}")
            continue
        try:
            lengths = sorted({finding.length for finding in result.of(engine)})
            runs += config_runs.run(engine, raw, lengths, max_model_len)
        except RopeError as error:
            notes.append(f"{release.title}: not run, because {error.rule}")
    return runs, notes


def verdict(result: Audit) -> str:
    """Return one line: how many engines agree with transformers, what each engine that does not
    does instead, and for which engines that is not known.
    """
    engines = list(dict.fromkeys(finding.engine for finding in result.findings))
    first_disagreements: dict[str, EngineFinding] = {}
    for finding in result.disagreements:
        first_disagreements.setdefault(finding.engine, finding)
    different = [name for name in engines if name in first_disagreements]
    unknown = [
        name
        for name in engines
        if name not in different and any(finding.problem for finding in result.of(name))
    ]
    agree = len(engines) - len(different) - len(unknown)
    parts = [
        f"{agree} of {len(engines)} engines agree"
        if different or unknown
        else f"All {agree} engines agree"
    ]
    parts += [_differs(name, first_disagreements[name]) for name in different]
    titles = ", ".join(rw.engines.ENGINES[name].title for name in unknown)
    return "; ".join(parts) + "." + (f" Not known for {titles}." if unknown else "")


def _differs(engine: str, finding: EngineFinding) -> str:
    """Return a clause such as "vLLM ignores rope_theta: 12 of 64 pairs differ"."""
    title, difference = rw.engines.ENGINES[engine].title, finding.difference
    if difference is None:
        return f"{title} refuses the config: {(finding.problem or '').removeprefix('refused: ')}"
    # rules about these two subjects do not explain a difference of angles or of the magnitude
    rule = next(
        (rule for rule in finding.rules if rule.about not in ("model code", "K-shift")), None
    )
    verb = "differs" if rule is None else f"differs in {rule.about}"
    if rule is not None and rule.does.startswith("not "):  # such as "not read"
        verb = f"ignores {rule.about}"
    effects = (
        [f"logits x {difference.temperature:.2f}"] if abs(difference.temperature - 1) > 1e-6 else []
    )
    if difference.pairs:
        effects.append(f"{difference.pairs} of {len(finding.radians)} pairs differ")
    return f"{title} {verb}: {', '.join(effects)}"


def _table(
    columns: tuple[str, ...],
    result: Audit,
    cells: Callable[[EngineFinding], tuple[str, ...]],
    note: str,
) -> None:
    """Print a table with a line for each finding: layer type (if there are several), tokens,
    engine, then `cells`.
    """
    several = len({finding.layer_type for finding in result.findings}) > 1
    lines = [
        (
            finding.layer_type if several else "",
            f"{finding.length:,}",
            rw.engines.ENGINES[finding.engine].title,
            *cells(finding),
        )
        for finding in result.findings
    ]
    table("", ("layer type", "tokens", "engine", *columns), lines, note)


def _cells(finding: EngineFinding) -> tuple[str, ...]:
    """Return the cells of the first table: result, why, logits, pairs, change of a score, 0.1 rad
    off, known by.
    """
    difference = finding.difference
    # how the result is known, with the release and the date; --details shows the evidence
    known_by = f"{finding.known}, {finding.version}, {finding.date}"
    if finding.known == "not known":
        known_by = f"{finding.known}, {finding.version}"
    if difference is None:
        result = finding.problem or (
            "reference" if finding.engine == rw.engines.REFERENCE else "the same"
        )
        return result, "", "", "", "", "", known_by
    return (
        "differs",
        ", ".join(dict.fromkeys(rule.about for rule in finding.rules)),
        f"x {difference.temperature:.4g}",
        f"{difference.pairs} of {len(finding.radians)}" if difference.pairs else "",
        f"{difference.score_worst:.3g}",
        "" if difference.until_tenth is None else f"after {difference.until_tenth:,}",
        known_by,
    )


def _more_cells(finding: EngineFinding) -> tuple[str, ...]:
    """Return the cells of the table of --details.

    They are: magnitude, first pair that differs, mean change of the scores, position after which a
    pair is half a turn off, tokens that differ, evidence.
    """
    magnitude = "" if finding.magnitude is None else f"{finding.magnitude:.5g}"
    difference = finding.difference
    if difference is None:
        return magnitude, "", "", "", "", finding.evidence
    return (
        magnitude,
        "" if difference.first_pair is None else str(difference.first_pair),
        f"{difference.score_mean:.3g}",
        "" if difference.until_half_turn is None else f"after {difference.until_half_turn:,}",
        difference.tokens,
        finding.evidence,
    )


def _rules(result: Audit) -> list[str]:
    """Return a line for each rule of an engine, with its source and the date it was read."""
    lines = set()
    for finding in result.findings:
        title = rw.engines.ENGINES[finding.engine].title
        lines |= {
            f"{title}, {rule.about}: {rule.does} ({rule.reference}; read {rule.read})"
            for rule in finding.rules
        }
    return sorted(lines)
