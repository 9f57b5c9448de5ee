"""Study `real_precision`: how far a pretrained model in bfloat16 or float16 is from the same model
in float32.

The reference is the float32 model with the exact rotation at positions from 0. Attention depends on
differences of positions only, so a model with exact angles gives the same output at positions from
10,000,000.

Words of this module:
  row       one measurement: the "kl" for each window, with the fields `dtype`, `rotation`, `length`
            and `offset`, the first position
  job       one call of a function such as `measure`; a runner runs the jobs for the settings and
            the seeds of the study, and stores their rows
  KL        the Kullback-Leibler divergence of the next-token probabilities of a rounded model, that
            in bfloat16 or float16, from those of the reference
  rotation  EXACT (our kernels) or OWN (that of transformers)
  facts     what a report says of the run beside its rows: settings, seeds, texts
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.interop.patch import patched
from ropewalk_lab.fit.fingerprint import model_fingerprint
from ropewalk_lab.fit.ledger import Ledger
from ropewalk_lab.fit.open_model import trained_length
from ropewalk_lab.fit.reader import MAX_LOGITS, Reader
from ropewalk_lab.scores import compare
from ropewalk_lab.studies.findings import Claim, Findings, Table, claim_order, line_figure
from ropewalk_lab.studies.jobs import Job, JobRunner, Workspace
from ropewalk_lab.studies.presets import ABOUT, presets_of
from ropewalk_lab.studies.real import open_real, real_facts, real_windows, source_note
from ropewalk_lab.studies.rows import Row, digest, distinct, row, score, select
from ropewalk_lab.studies.study import Study

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
#: the names of the two rotations: ours, and the model's own in transformers
EXACT, OWN = "ropewalk", "transformers"
#: many CPUs have no arithmetic for bfloat16, so the small presets have float16
PRESETS = presets_of("real_precision")


def run(runner: JobRunner) -> dict[str, Any]:
    """Run the study's one job and return the facts for the report."""
    settings = runner.pick("model", "text", "dtypes", "lengths", "offsets", "windows")
    rows = runner.run([Job("kl", measure, settings)])
    return real_facts(runner, rows[0]["trained"])


def measure(
    workspace: Workspace,
    *,
    model: str,
    text: list[str],
    dtypes: list[str],
    lengths: list[int],
    offsets: list[int],
    windows: int,
) -> list[Row]:
    """Return rows with the KL to the float32 model, for every dtype, rotation, length and offset,
    on the same windows.

    A ledger keeps each KL as soon as it is known, so that a run that was stopped continues.

    dtypes   names of DTYPES
    lengths  of the windows, in tokens
    offsets  first positions at which the models of these dtypes read a window
    windows  how many windows are shared among the texts
    """
    reference, encode = open_real(model, workspace.device, torch.float32)
    trained = trained_length(reference)
    # without dtypes and offsets, which are fields of each KL: a run with others of them uses again
    # the KLs that are known
    setting = {
        "model": model,
        "fingerprint": model_fingerprint(reference),
        "text": text,
        "lengths": lengths,
        "windows": windows,
    }
    ledger = Ledger(workspace.models / "real" / f"precision-{digest(setting)}.jsonl", setting)
    # tokens [windows, length]
    texts = {length: real_windows(text, encode, length, windows) for length in lengths}
    # the hidden states of the reference, which every case is compared with
    hidden: dict[tuple[int, int], Tensor] = {}
    cases = [
        (rotation, length, offset)
        for rotation in (OWN, EXACT)
        for length in lengths
        for offset in offsets
    ]
    with patched(reference):
        for dtype in dtypes:
            rounded, _ = open_real(model, workspace.device, DTYPES[dtype])
            for rotation, length, offset in cases:
                with rotating(rounded, rotation):
                    for place in range(len(texts[length])):  # a short text has fewer than `windows`
                        fields = _fields(dtype, rotation, length, offset) | {"window": place}
                        if ledger.find(**fields) is None:
                            tokens = texts[length][place : place + 1].to(workspace.device)
                            if (length, place) not in hidden:
                                hidden[length, place] = hidden_states(reference, tokens)
                            ledger.add(
                                fields,
                                kl=mean_kl(
                                    reference, rounded, tokens, offset, hidden[length, place]
                                ),
                            )
    rows = []
    for fields in (_fields(dtype, *case) for dtype in dtypes for case in cases):
        places = range(len(texts[fields["length"]]))
        values = [ledger.find(**fields, window=place)["kl"] for place in places]  # type: ignore[index]
        rows.append(row("kl", values, trained=trained, **fields))
    return rows


def _fields(dtype: str, rotation: str, length: int, offset: int) -> dict[str, Any]:
    """Return the fields of a row that say what was measured."""
    return {"dtype": dtype, "rotation": rotation, "length": length, "offset": offset}


@contextmanager
def rotating(model: nn.Module, rotation: str) -> Iterator[None]:
    """Context manager: the model rotates as transformers does if `rotation` is OWN, otherwise with
    our kernels.
    """
    if rotation == OWN:
        yield
        return
    with patched(model):
        yield


@torch.no_grad()
def hidden_states(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the last hidden states [S, width] of tokens [1, S]."""
    return Reader(model).hidden(tokens)[0]


@torch.no_grad()
def mean_kl(
    reference: nn.Module,
    rounded: nn.Module,
    tokens: Tensor,
    offset: int,
    exact: Tensor | None = None,
) -> float:
    """Return the mean KL per token, in nats, of the rounded model from the reference on tokens
    [1, S]; the positions of the reference begin at 0, those of the rounded model at `offset`.

    exact  the hidden states [S, width] of the reference; None: they are computed
    """
    exact_reader, rounded_reader = Reader(reference), Reader(rounded)
    exact = hidden_states(reference, tokens) if exact is None else exact
    positions = torch.arange(offset, offset + tokens.shape[1], device=tokens.device)[None]
    decoder: Any = rounded.get_decoder()  # type: ignore[operator]
    inexact = decoder(input_ids=tokens, position_ids=positions, use_cache=False).last_hidden_state[
        0
    ]
    # the logits of both models are computed in chunks of tokens, to limit the memory
    total, chunk = 0.0, max(1, MAX_LOGITS // (2 * exact_reader.vocab_size))
    for start in range(0, len(exact), chunk):
        of_reference = exact_reader.head(exact[start : start + chunk]).float().log_softmax(-1)
        of_rounded = rounded_reader.head(inexact[start : start + chunk]).float().log_softmax(-1)
        total += float(F.kl_div(of_rounded, of_reference, reduction="sum", log_target=True))
    return total / len(exact)


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return the KL by dtype, rotation, length and offset, and whether our rotation is nearer to
    float32.
    """
    offsets = distinct(rows, "kl", "offset")
    cases = list(
        dict.fromkeys(
            (each["dtype"], each["length"], each["rotation"]) for each in select(rows, "kl")
        )
    )
    cells, series = [], {}
    for dtype, length, rotation in cases:
        scores = [
            score(rows, "kl", dtype=dtype, length=length, rotation=rotation, offset=offset)
            for offset in offsets
        ]
        texts = (f"{each.mean:.2e} ± {each.error:.1e}" if each else "-" for each in scores)
        cells.append((dtype, f"{length:,}", rotation, *texts))
        # logarithmic axes have no 0: it is drawn as position 1, and as a KL of 1e-12
        measured = [(max(o, 1), each.mean) for o, each in zip(offsets, scores, strict=True) if each]
        xs, ys = [float(x) for x, _ in measured], [max(mean, 1e-12) for _, mean in measured]
        series[f"{dtype}, {rotation}, {length:,}"] = (xs, ys)
    note = (
        "Mean KL per token from the float32 model with the exact rotation at positions from 0 (the "
        "reference) ± standard error."
    )
    columns = ("dtype", "tokens", "rotation", *(f"positions from {offset:,}" for offset in offsets))
    table = Table("KL to the float32 model", columns, cells, f"{note} {source_note(facts)}")
    figure = line_figure(
        series, title="KL to the float32 model", x="first position", y="nats per token", log_y=True
    )
    return Findings([table], {"real_precision": figure}, claims(rows))


def claims(rows: list[Row]) -> list[Claim]:
    """Return a claim for each dtype, length and offset: the model is nearer to float32 with our
    rotation than with its own.
    """
    result = []
    for dtype in distinct(rows, "kl", "dtype"):
        for length in distinct(rows, "kl", "length"):
            for offset in distinct(rows, "kl", "offset"):
                fields = {"dtype": dtype, "length": length, "offset": offset}
                pair = {name: score(rows, "kl", rotation=name, **fields) for name in (EXACT, OWN)}
                text = (
                    f"{dtype}, {length:,} tokens from position {offset:,}: {EXACT} is nearer to "
                    f"float32 than {OWN}"
                )
                result.append(
                    _scientific(claim_order(text, pair, [EXACT, OWN], same_model=True), pair)
                )
    return result


def _scientific(claim: Claim, pair: dict[str, Any]) -> Claim:
    """Return the claim with its difference in scientific notation: three digits after the point
    would show 0.000.
    """
    if None in pair.values():
        return claim
    paired = compare(pair[EXACT], pair[OWN])
    return Claim(
        claim.text,
        claim.verdict,
        f"{EXACT} minus {OWN}: {paired.difference:+.1e} ± {paired.error:.0e}",
    )


STUDY = Study(
    "real_precision",
    ABOUT["real_precision"],
    PRESETS,
    run,
    findings,
    seeded=False,
)
