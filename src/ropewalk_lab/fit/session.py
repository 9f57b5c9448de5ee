"""`fit`: measure ways to read longer texts with a model, train nothing, and recommend one.

A fit has these steps: open the model, plan the samples, measure each method, decide, write.

Words of this module:
  method   a way to read longer texts: a scaling or remapping of `extend`, or NONE, the unchanged
           model
  row      one measurement of a method, on a window of text or on a pass key
  facts    what identifies a fit: the model, the text, the lengths, the seed, and more
  config   that of a transformers model, with which an engine serves it
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.errors import RopeError, choice
from ropewalk.models.decoder import Decoder
from ropewalk_lab.fit import methods as registry
from ropewalk_lab.fit import summary
from ropewalk_lab.fit.decide import Decision, MethodChoice, decide, scores_of
from ropewalk_lab.fit.ledger import Ledger, Row, only_writer
from ropewalk_lab.fit.measure import Meter, Report, print_step
from ropewalk_lab.fit.methods import LONGROPE, NONE, Method
from ropewalk_lab.fit.open_model import open_subject
from ropewalk_lab.fit.plan import FitSize, Plan, make_plan
from ropewalk_lab.fit.reader import reading
from ropewalk_lab.json_lines import write_atomically
from ropewalk_lab.machine import machine

#: files in the folder of a fit; none has a name that a folder with a model has
ROWS, FACTS, CONFIG = "rows.jsonl", "fit.json", "fit-config.json"


@dataclass(frozen=True, eq=False)
class Fit:
    """What `fit` measured (the rows, and facts about model, text and machine), and its decision.

    config   the model's config with the method `in_config`; None if that is the unchanged model, or
             if no config can express it, as for a Decoder
    skipped  methods that could not be measured or have no finite loss, and why
    """

    rows: list[Row]
    facts: dict[str, Any]
    decision: Decision
    config: dict[str, Any] | None
    skipped: dict[str, str]

    @property
    def recommendation(self) -> MethodChoice:
        """The recommended method."""
        return self.decision.recommended

    @property
    def in_config(self) -> MethodChoice:
        """The best method that a config can express."""
        return self.decision.in_config

    def __str__(self) -> str:
        """The table with aligned columns, then the recommendation in words."""
        columns, cells = self.table()
        widths = [
            max(len(line[column]) for line in (columns, *cells)) for column in range(len(columns))
        ]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True))
            for line in (columns, *cells)
        ]
        return "\n".join([*lines, "", *self.sentences()])

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the titles of the columns, and the cells of each method."""
        return summary.table(self.rows, self.facts)

    def sentences(self) -> list[str]:
        """Return the recommendation in words."""
        return summary.sentences(self.decision, self.facts, self.skipped, self.rows)

    def write(self, folder: Path) -> None:
        """Write the facts with the decision, and the config, into a folder. If there is no config,
        the config that an earlier fit wrote there is removed.
        """
        kept = self.facts | self.decision.as_dict() | {"skipped": self.skipped}
        for name, data in ((FACTS, kept), (CONFIG, self.config)):
            if data is None:
                (folder / name).unlink(missing_ok=True)
            else:
                write_atomically(folder / name, json.dumps(data, indent=2, default=str) + "\n")


def fit(
    model: Any,
    to: int,
    *,
    text: str | Path | Sequence[str | Path] | Tensor | None = None,
    tokenizer: Any = None,
    methods: Iterable[str] | None = None,
    windows: int = 6,
    passkeys: int = 10,
    search: int = 0,
    long_ppl: bool = True,
    trained: int | None = None,
    out: str | Path | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    report: Report | None = None,
) -> Fit:
    """Measure ways to read `to` tokens with a model as it is, and recommend one; nothing is
    trained.

    model      a loaded transformers causal language model, a Decoder, a Hugging Face folder or a
               GGUF file
    text       files or folders of text, from which windows are taken evenly; or tokens. None:
               Python's own documentation
    tokenizer  of a loaded model, or a function from text to tokens; without one there are no pass
               keys and text must be tokens
    methods    names of methods besides the unchanged model; None: every scaling and remapping that
               `extend` offers, and the entries of METHODS
    windows    number of windows of `to` tokens, which all methods read
    passkeys   number of pass keys for each length, at depths from 0 to 1
    search     about how many candidates a search for LongRoPE's factors tries, on a window of its
               own; 0 leaves longrope out
    long_ppl   whether to measure LongPPL; the tokens that it counts take as long to find as four
               readings of every window
    trained    the trained length; None reads it from the config
    out        a folder for the rows, facts and config; a second call with the same model, text and
               settings measures only what is missing
    report     called with a Step before each measurement and each search, such as `print`; None
               prints to stderr

    Each method is judged by its loss in the last band of positions, by pass keys beyond the trained
    length, and by the loss and the pass keys within it. Differences are paired over windows and
    pass keys, and count only beyond two standard errors. A method that no config can express, so
    that engines do not serve it, is recommended only for a material gain.
    """
    size = FitSize(windows, passkeys, search, long_ppl, seed)
    names = _checked_names(methods, size)
    subject = open_subject(model, tokenizer, device, trained)
    plan = make_plan(subject, to, text, size)
    folder = None if out is None else Path(out)
    rows = None if folder is None else folder / ROWS
    with only_writer(rows):
        with reading(subject.model) as reader:
            ledger = Ledger(rows, plan.facts)
            meter = Meter(reader, plan.samples, ledger, report or print_step, long_ppl)
            chosen, skipped = _measure(meter, size, names)
        result = _decided(meter, plan, chosen, skipped)
        if folder is not None:
            result.write(folder)
    return result


def _checked_names(methods: Iterable[str] | None, size: FitSize) -> list[str] | None:
    """Return the names of the methods to measure, without duplicates, the unchanged model first;
    None, which stands for all methods, stays None. Raise an error for an unknown name, or for
    longrope without a search.
    """
    if methods is None:
        return None
    known = (*registry.methods(), LONGROPE)
    names = [choice("methods", name, known) for name in methods]
    if LONGROPE in names and not size.search:
        raise RopeError(
            "search",
            "must be given to measure longrope, whose factors are searched; such as search=96",
            0,
        )
    return list(dict.fromkeys((NONE, *names)))


def _measure(
    meter: Meter, size: FitSize, names: list[str] | None
) -> tuple[dict[str, Method], dict[str, str]]:
    """Measure the named methods, or all if None; return {name: method} of those that were tried,
    and {name: why it could not be measured}.
    """
    candidates, skipped = size.search, {}
    # LongRoPE's factors, if an earlier fit in this folder has searched them
    factors = meter.stored_longrope(candidates)
    must_search = candidates > 0 and factors is None and (names is None or LONGROPE in names)
    # the number of steps to report, before the first one begins
    meter.expect(_chosen(names, factors), search=candidates if must_search else 0)
    if must_search:
        try:
            factors = meter.find_longrope(candidates)
        except RopeError as error:
            skipped[LONGROPE] = str(error)
    chosen = _chosen(names, factors)
    meter.expect(chosen)  # again: the search has ended, with or without factors
    for name, method in chosen.items():
        try:
            meter.measure(name, method)
        except RopeError as error:
            skipped[name] = str(error)
    return chosen, skipped


def _chosen(names: list[str] | None, factors: tuple[float, ...] | None) -> dict[str, Method]:
    """Return the named methods, or all if None; longrope only if its `factors` are given."""
    known = registry.methods(factors)
    return known if names is None else {name: known[name] for name in names if name in known}


def _decided(meter: Meter, plan: Plan, chosen: dict[str, Method], skipped: dict[str, str]) -> Fit:
    """Return the fit of what was measured: the recommended method, and the config of the best one
    that a config can express. Methods without a finite loss are added to `skipped`. Raise an error
    if nothing could be measured.
    """
    samples, rows = plan.samples, meter.rows_of(chosen)
    scores = scores_of(rows, samples.trained, samples.to)
    for name in chosen:
        if name not in scores:
            # a method that failed is in `skipped` already, with its own reason
            skipped.setdefault(name, "its loss is not finite")
    if not scores:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise RopeError("methods", f"must have one that can be measured ({reasons})", list(chosen))
    model = meter.reader.model
    configs = {
        name: registry.config_with(model, chosen[name], samples.factor, samples.trained)
        for name in scores
    }
    # no engine reads the config of a Decoder, so none of its methods is easier to serve than others
    own = isinstance(model, Decoder)
    decision = decide(scores, [name for name in scores if own or configs[name] is not None])
    facts = plan.facts | {
        "kernels": meter.reader.kernels,
        "attention": meter.reader.attention,
        "machine": machine(meter.reader.device),
        "methods": list(chosen),
    }
    return Fit(rows, facts, decision, configs[decision.in_config.method], skipped)
