"""Study `real_tune`: train a pretrained model a little at a longer length, with cross entropy and
with LongCE.

Words of this module:
  row     one measurement: a metric, its values, and fields. All rows have `method`, `objective`,
          `seed`, `trained` (the trained length) and `steps`. The metrics are "training", the loss
          of each step; "loss", that of each window in one `band`, with its `end`; and "found", 1
          for each pass key found in texts of one `length`, else 0
  job     one call of a function such as `measure`; a runner runs the jobs for the settings and the
          seeds of the study, and stores their rows
  band    positions such as "8k-16k"; `end` is the second of these numbers
  meter   measures a method, and keeps what it has measured
  LongCE  cross entropy in which tokens that need a long context weigh more
  code    five digits that a training text states and asks for later
  facts   what a report says of the run beside its rows: settings, seeds, texts
"""

from __future__ import annotations

import math
import random
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ropewalk.config.hf import from_hf
from ropewalk.errors import RopeError, choice
from ropewalk.interop.patch import patched
from ropewalk.spec import RopeSpec
from ropewalk_lab.codes import with_codes
from ropewalk_lab.fit.ledger import Ledger
from ropewalk_lab.fit.measure import Meter
from ropewalk_lab.fit.methods import LONGROPE, Method, extended
from ropewalk_lab.fit.open_model import trained_length
from ropewalk_lab.fit.passkeys import Encode, shortest_passkey
from ropewalk_lab.fit.reader import Reader
from ropewalk_lab.fit.summary import short_length
from ropewalk_lab.fit.text import limited_losses, windows_of
from ropewalk_lab.long_ce import chunked_loss
from ropewalk_lab.scores import Score
from ropewalk_lab.studies.findings import (
    FAILS,
    HOLDS,
    TIED,
    Claim,
    Findings,
    Table,
    cell,
    line_figure,
)
from ropewalk_lab.studies.jobs import Job, JobRunner, Workspace
from ropewalk_lab.studies.presets import ABOUT, presets_of
from ropewalk_lab.studies.real import (
    CHARACTERS,
    PYTHON,
    known_methods,
    make_meter,
    open_real,
    real_facts,
    real_text,
    source_note,
)
from ropewalk_lab.studies.rows import Row, distinct, row, score, select
from ropewalk_lab.studies.study import Study

CE, LONG_CE = "cross entropy", "LongCE"
#: what claims demand: the loss in the last band is at most this share above that in the band up to
#: the trained length, and at least this share of the pass keys is found
CLOSE, FOUND = 0.02, 0.9
PRESETS = presets_of("real_tune")


def run(runner: JobRunner) -> dict[str, Any]:
    """Run a job for each method, objective and seed, which trains a model and then measures its
    loss by band and its pass keys; return the facts for the report.
    """
    settings = runner.settings
    for objective in settings["objectives"]:
        choice("objectives", objective, (CE, LONG_CE))
    shared = runner.pick(
        "model",
        "text",
        "factor",
        "steps",
        "rate",
        "train_text",
        "codes",
        "windows",
        "depths",
        "search",
    )
    # the first method with every objective, then the others: a run that is stopped early can still
    # compare the objectives
    cases = [(settings["methods"][0], objective) for objective in settings["objectives"]]
    cases += [
        (method, objective)
        for objective in settings["objectives"]
        for method in settings["methods"][1:]
    ]
    jobs = []
    for seed in runner.seeds:
        for method, objective in cases:
            name = f"{method}-{objective.replace(' ', '-')}-{seed}"
            jobs.append(
                Job(
                    name,
                    measure,
                    {"method": method, "objective": objective, "seed": seed, **shared},
                )
            )
    rows = runner.run(jobs)
    training = {"train_text": Path(settings["train_text"]).name, "codes": settings["codes"]}
    return real_facts(runner, rows[0]["trained"]) | training


def measure(
    workspace: Workspace,
    *,
    method: str,
    objective: str,
    seed: int,
    model: str,
    text: list[str],
    factor: float,
    steps: int,
    rate: float,
    train_text: str,
    codes: int,
    windows: int,
    depths: int,
    search: int,
) -> list[Row]:
    """Train one model and measure it afterwards; return the rows.

    Windows to measure are taken from the first CHARACTERS of each text, those to train on from what
    follows in `train_text`; the small text PYTHON serves for both.

    method       a method of `ropewalk_lab.fit`, or "clipped"
    objective    CE or LONG_CE
    text         the texts to measure on
    factor       how many times longer the new length is than the trained one
    steps, rate  of the training: its steps and its highest learning rate
    codes        how many codes each training window states and asks for
    windows      how many windows of the new length are measured
    depths       how many depths of pass keys are asked for at each length; 0: none
    search       candidates of the search for LongRoPE's factors; 0: no search
    """
    loaded, encode = open_real(model, workspace.device, torch.float32)
    trained = trained_length(loaded)
    to = round(factor * trained)
    first = 0 if train_text == PYTHON else CHARACTERS
    tokens = torch.tensor(encode(real_text(train_text, first, 3 * CHARACTERS)))
    # lengths of the texts with pass keys, 5 % shorter to leave some tokens for the answer
    asked = [
        n
        for n in (round(0.95 * trained), round(0.95 * to))
        if depths and n >= shortest_passkey(encode)
    ]
    with patched(loaded), mixed_precision(workspace.device), cudnn_first():
        meter = make_meter(
            workspace,
            loaded,
            encode,
            text,
            name=model,
            trained=trained,
            factor=factor,
            windows=windows,
            lengths=asked,
            num_depths=depths,
            search=search,
        )
        chosen = _method(method, meter, search, from_hf(loaded.config))  # type: ignore[arg-type]
        curve = train(
            loaded, chosen, tokens, trained, factor, objective, steps, rate, seed, encode, codes
        )
        # without a ledger file: the weights of a trained model are not kept, so its results are not
        # reused
        meter.ledger = Ledger(path=None, setting={})
        meter.measure(method, chosen)
    fields = {
        "method": method,
        "objective": objective,
        "seed": seed,
        "trained": trained,
        "steps": steps,
    }
    return [row("training", curve, **fields), *_rows(meter, fields)]


def mixed_precision(device: torch.device, enabled: bool | None = None) -> torch.autocast:
    """Return autocast to bfloat16, by default on a GPU only; `enabled` overrides that (tests, on a
    CPU). Its cache of weights in bfloat16 is off: the context stays open over all steps, so the
    cache would keep the weights of the first one.
    """
    enabled = device.type == "cuda" if enabled is None else enabled
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled, cache_enabled=False)


def cudnn_first() -> AbstractContextManager[Any]:
    """Return a context in which torch's attention runs in cuDNN where that can, else in torch's own
    kernels.
    """
    order = [
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.MATH,
    ]
    return sdpa_kernel(order, set_priority=True)


def _method(name: str, meter: Meter, search: int, spec: RopeSpec) -> Method:
    """Return a method by name: longrope has searched factors, clipped the number of pairs with less
    than one turn in training; raise an error for longrope without a search.

    search  candidates of the search; 0: no search
    spec    the rope of the model
    """
    if name == "clipped":
        angles = [w * meter.samples.trained for w in spec.ladder_frequencies().radians]
        slow = sum(angle < 2 * math.pi for angle in angles)
        return Method(name, factor=False, options={"pairs": slow})
    if name == LONGROPE:
        if not search:
            raise RopeError(
                "search", "must be at least 1 to tune longrope, whose factors are searched", search
            )
        return known_methods([name], meter.find_longrope(search))[name]
    return known_methods([name])[name]


def train(
    model: nn.Module,
    method: Method,
    tokens: Tensor,
    trained: int,
    factor: float,
    objective: str,
    steps: int,
    rate: float,
    seed: int,
    encode: Encode,
    codes: int = 0,
) -> list[float]:
    """Train at the new length, one window a step, and return the loss of each step.

    The learning rate rises to `rate` over the first tenth of the steps and then falls linearly
    towards 0. Each window states `codes` codes and asks for them later, because most texts hardly
    need their distant tokens.

    tokens           of the text to train on [N]
    trained, factor  the trained length, and how many times longer the new length is
    objective        CE or LONG_CE
    seed             of the order of the windows and of the codes
    encode           text -> tokens, for the codes
    """
    reader, to = Reader(model), round(factor * trained)
    if len(tokens) < to:
        rule = (
            f"must have at least {to} tokens to train on (of a file, those after its first "
            f"{CHARACTERS:,} characters); use a longer text"
        )
        raise RopeError("train_text", rule, f"{len(tokens)} tokens")
    rows = windows_of(tokens, to, min(steps, len(tokens) // to))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    draw = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0, betas=(0.9, 0.95))
    warm_up = max(1, steps // 10)
    if _needs_checkpointing(model, to) and callable(
        enable := getattr(model, "gradient_checkpointing_enable", None)
    ):
        enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    curve = []
    with extended(model, method, factor, trained):
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = rate * min(
                    (step + 1) / warm_up, (steps - step) / max(1, steps - warm_up)
                )
            # a text with fewer windows than steps is read again from its first window on
            window = with_codes(rows[order[step % len(rows)]], codes, encode, draw)
            curve.append(_step(reader, window, trained, objective))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if not np.isfinite(curve[-1]):
                raise RopeError("rate", "must be smaller: the loss is not finite", rate)
    if callable(disable := getattr(model, "gradient_checkpointing_disable", None)):
        disable()
    model.eval()
    return curve


def _needs_checkpointing(model: Any, tokens: int) -> bool:
    """Return whether the activations of a training step may need more than 70 % of the unused GPU
    memory; True on a CPU.
    """
    device, config = next(model.parameters()).device, model.config
    if device.type != "cuda":
        return True
    # torch's allocator keeps the memory of an earlier training for this process, and the GPU does
    # not count that as free
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    left = torch.cuda.mem_get_info(device)[0] + unused
    # bytes of all tensors that the layers keep for their backward pass, for 16-bit products and a
    # float32 residual stream
    kept = (
        tokens * config.num_hidden_layers * (64 * config.hidden_size + 8 * config.intermediate_size)
    )
    return kept > 0.7 * left


def _step(reader: Reader, window: Tensor, trained: int, objective: str) -> float:
    """Add the gradients of one window of tokens [S], and return its loss. With LongCE, first read
    the window with a short context.
    """
    window, context = window.to(reader.device), max(2, trained // 2)
    # losses with `context` tokens of context or a little more, which LongCE compares with those of
    # the whole window
    short = None
    if objective == LONG_CE:
        reader.model.eval()
        # in pieces that start a quarter of the context apart
        short = limited_losses(reader, window.cpu(), context, max(1, context // 4)).to(
            reader.device
        )
    reader.model.train()
    hidden = reader.hidden(window[None])[0, :-1]
    loss = chunked_loss(hidden, reader.head, window[1:], reader.vocab_size, short, context)
    loss.backward()
    return float(loss.detach())


def _rows(meter: Meter, fields: dict[str, Any]) -> list[Row]:
    """Return the rows of one trained model, with the further columns `fields`: the loss of each
    window in every band of positions, and the pass keys found (1 or 0) at each length. The meter
    has also measured texts of the trained length, which have no rows here.
    """
    samples = meter.samples
    texts = sorted(
        (each for each in meter.ledger.rows if each["metric"] == "text"),
        key=lambda each: each["window"],
    )
    far = [each for each in texts if each["length"] == samples.to]
    rows = [
        row(
            "loss",
            [each["bands"][place] for each in far],
            band=f"{short_length(low)}-{short_length(high)}",
            end=high,
            **fields,
        )
        for place, (low, high) in enumerate(samples.bands)
    ]
    found: dict[int, list[float]] = {}
    for each in meter.ledger.rows:
        if each["metric"] == "passkey":
            found.setdefault(each["length"], []).append(each["found"])
    return [
        *rows,
        *(row("found", values, length=length, **fields) for length, values in found.items()),
    ]


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return the loss by band and the pass keys of each method and objective after training."""
    bands, lengths = distinct(rows, "loss", "band"), distinct(rows, "found", "length")
    cells, series = [], {}
    for method in distinct(rows, "loss", "method"):
        for objective in distinct(rows, "loss", "objective", method=method):
            fields = {"method": method, "objective": objective}
            losses = [score(rows, "loss", band=band, **fields) for band in bands]
            keys = [score(rows, "found", length=length, **fields) for length in lengths]
            shares = (f"{each.mean:.0%} ± {each.error:.0%}" if each else "-" for each in keys)
            cells.append((f"{method}, {objective}", *(cell(each) for each in losses), *shares))
            points = [(float(place), each.mean) for place, each in enumerate(losses) if each]
            series[f"{method}, {objective}"] = ([x for x, _ in points], [y for _, y in points])
    steps = select(rows, "loss")[0]["steps"]
    asked = (
        f" with {facts['codes']} codes in each window, stated and later asked for"
        if facts.get("codes")
        else ""
    )
    note = f"After {steps} steps on {facts.get('train_text')}{asked}. {source_note(facts)}"
    note += " ± standard error over windows and pass keys."
    columns = ("method, objective", *bands, *(f"keys in {length:,}" for length in lengths))
    title = f"Loss by band after {steps} steps"
    figure = line_figure(
        series, title=title, x="band, from near to far", y="nats per token", log_x=False
    )
    return Findings(
        [Table("After training at the new length", columns, cells, note)],
        {"real_tune": figure},
        claims(rows, facts),
    )


def claims(rows: list[Row], facts: dict[str, Any]) -> list[Claim]:
    """Return up to two claims for every method and objective, as far as they were measured: the
    loss in the last band is close to that up to the trained length, and pass keys are found at the
    longest length.
    """
    result = []
    for method in distinct(rows, "loss", "method"):
        for objective in distinct(rows, "loss", "objective", method=method):
            fields = {"method": method, "objective": objective}
            bands = distinct(rows, "loss", "band", **fields)
            far = score(rows, "loss", band=bands[-1], **fields)
            near = score(rows, "loss", end=facts["trained"], **fields)
            if far is not None and near is not None:
                gap = Score(far.values / near.values - 1)  # of the same windows
                near_band = distinct(rows, "loss", "band", end=facts["trained"], **fields)[0]
                text = (
                    f"{method}, {objective}: the loss in {bands[-1]} is within {CLOSE:.0%} of that "
                    f"in {near_band}"
                )
                result.append(
                    Claim(text, _verdict(gap, CLOSE), f"{gap.mean:+.1%} ± {gap.error:.1%}")
                )
            for length in distinct(rows, "found", "length", **fields)[-1:]:
                found = score(rows, "found", length=length, **fields)
                assert found is not None
                text = (
                    f"{method}, {objective}: at least {FOUND:.0%} of the pass keys in {length:,} "
                    "tokens are found"
                )
                value = f"{found.mean:.0%} ± {found.error:.0%}"
                result.append(Claim(text, _verdict(Score(1 - found.values), 1 - FOUND), value))
    return result


def _verdict(value: Score, limit: float) -> str:
    """Return the verdict on the claim that a value is at most the limit, with two standard errors
    of margin.
    """
    if value.mean + 2 * value.error <= limit + 1e-9:  # 1e-9 for rounding errors
        return HOLDS
    return FAILS if value.mean - 2 * value.error > limit else TIED


STUDY = Study(
    "real_tune",
    ABOUT["real_tune"],
    PRESETS,
    run,
    findings,
)
