"""Study `real_kv`: a pretrained model continues from a cache whose keys were re-rotated, instead of
reading the text again.

shift     all keys move by the same distance, and the next tokens follow them
evict     a stretch of old tokens is dropped; the rest keeps its positions, or closes the gap
reuse     a chunk that was read on its own is placed behind another text, at its own positions or
          re-rotated to the new ones

Words of this module:
  way     how the model continues: one of the above in detail, a key of REFERENCES, or a value of
          REFERENCES, what it is compared with
  row     one measurement: the "loss" for each window, with the field `way`
  ledger  a file with the losses of the windows that are measured already
  facts   what a report says of the run beside its rows: settings, seeds, texts
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.config.hf import from_hf
from ropewalk.interop.patch import patched
from ropewalk.rope import Rope
from ropewalk_lab.fit.fingerprint import model_fingerprint
from ropewalk_lab.fit.ledger import Ledger
from ropewalk_lab.fit.open_model import import_transformers, trained_length
from ropewalk_lab.plots import LIGHT, blank, finish, label_axes
from ropewalk_lab.scores import compare
from ropewalk_lab.studies.findings import Claim, Findings, Table, cell, claim_within
from ropewalk_lab.studies.jobs import Job, JobRunner, Workspace
from ropewalk_lab.studies.presets import ABOUT, presets_of
from ropewalk_lab.studies.real import open_real, real_facts, real_windows, source_note
from ropewalk_lab.studies.rows import Row, digest, distinct, row, score, scores_by, select
from ropewalk_lab.studies.study import Study

PRESETS = presets_of("real_kv")
#: what each way of continuing is compared with
AGAIN, AGAIN_SHORTER = "read again", "read again, without the dropped tokens"
REFERENCES = {
    "shift": AGAIN,
    "evict, gap kept": AGAIN_SHORTER,
    "evict, gap closed": AGAIN_SHORTER,
    "reuse, re-rotated": AGAIN,
    "reuse, as cached": AGAIN,
}


def run(runner: JobRunner) -> dict[str, Any]:
    """Run the study's one job and return the facts for the report.

    The job stores the losses of each window in a ledger, so that a run that was stopped continues.
    """
    settings = runner.pick("model", "text", "length", "next", "sinks", "shift", "windows")
    rows = runner.run([Job("caches", measure, settings)])
    return real_facts(runner, rows[0]["trained"])


def measure(
    workspace: Workspace,
    *,
    model: str,
    text: list[str],
    length: int,
    next: int,
    sinks: int,
    shift: int,
    windows: int,
) -> list[Row]:
    """Return a row for every way to continue from a cache: the loss of the `next` tokens after
    `length` tokens, on the same windows.

    sinks    how many tokens at the start are never dropped
    shift    the distance that all keys move by, in positions
    windows  how many windows are shared among the texts
    """
    loaded, encode = open_real(model, workspace.device)
    tokens = real_windows(text, encode, length + next, windows).to(workspace.device)
    setting = {
        "model": model,
        "fingerprint": model_fingerprint(loaded),
        "dtype": str(loaded.dtype),
        "text": text,
        "length": length,
        "next": next,
        "sinks": sinks,
        "shift": shift,
        "windows": windows,
    }
    ledger = Ledger(workspace.models / "real" / f"kv-{digest(setting)}.jsonl", setting)
    with patched(loaded):
        reader = Continuation(loaded)
        for place in range(len(tokens)):  # a short text has fewer than `windows`
            if ledger.find(window=place) is None:
                losses = reader.losses(tokens[place], next, sinks, shift)
                ledger.add({"window": place}, losses=losses)
    by_window = [ledger.find(window=place)["losses"] for place in range(len(tokens))]  # type: ignore[index]
    fields = {"trained": trained_length(loaded), "length": length}
    return [
        row("loss", [losses[way] for losses in by_window], way=way, **fields)
        for way in by_window[0]
    ]


class Continuation:
    """A transformers model that continues from a cache at chosen positions."""

    def __init__(self, model: nn.Module) -> None:
        self.model: Any = model
        self.rope = Rope(from_hf(model.config))  # type: ignore[arg-type]
        self.new_cache = import_transformers().DynamicCache

    @torch.no_grad()
    def read(self, tokens: Tensor, cache: Any, first: int) -> Tensor:
        """Add tokens [S] to a cache at positions from `first`, and return their logits [S,
        vocabulary].
        """
        positions = torch.arange(first, first + len(tokens), device=tokens.device)[None]
        return (
            self.model(tokens[None], past_key_values=cache, position_ids=positions, use_cache=True)
            .logits[0]
            .float()
        )

    def cached(self, tokens: Tensor, first: int = 0) -> Any:
        """Return a new cache that has read tokens [S] at positions from `first`."""
        cache = self.new_cache()
        self.read(tokens, cache, first)
        return cache

    def loss(self, tokens: Tensor, cache: Any, first: int) -> float:
        """Return the mean loss of tokens[1:], each predicted from the cache and the tokens before
        it; tokens[0] has the position `first`.
        """
        logits = self.read(tokens[:-1], cache, first)
        return float(F.cross_entropy(logits, tokens[1:]))

    def move(self, cache: Any, before: Tensor, after: Tensor) -> Any:
        """Re-rotate all keys of a cache from the positions `before` [S] to the positions `after`
        [S], in place, and return the cache.
        """
        for layer in cache.layers:
            layer.keys = self.rope.rerotate(layer.keys, before, after)
        return cache

    def losses(self, window: Tensor, count: int, sinks: int, shift: int) -> dict[str, float]:
        """Return {way to continue from a cache: the loss of the last `count` tokens of a window}.
        `sinks` and `shift` are those of `measure`.

        The cache has the tokens before these `count`, without those that are dropped and without
        the last one, which is read together with them, because its logits predict the first of them.
        """
        length = len(window) - count
        last, half = length - 1, length // 2
        seen, coming = window[:last], window[last:]
        positions = torch.arange(last, device=window.device)
        losses = {AGAIN: self.loss(coming, self.cached(seen), last)}
        losses["shift"] = self.loss(
            coming, self.move(self.cached(seen), positions, positions + shift), last + shift
        )
        # the first tokens and the second half are kept, those between are dropped
        kept = torch.cat([positions[:sinks], positions[half:]])
        losses[AGAIN_SHORTER] = self.loss(coming, self.cached(seen[kept]), len(kept))
        losses["evict, gap kept"] = self.loss(coming, _select(self.cached(seen), kept), last)
        closed = self.move(
            _select(self.cached(seen), kept), kept, torch.arange(len(kept), device=kept.device)
        )
        losses["evict, gap closed"] = self.loss(coming, closed, len(kept))
        # the second half was read on its own, at positions from 0; "as cached" leaves it there
        for name in ("reuse, re-rotated", "reuse, as cached"):
            front, chunk = self.cached(seen[:half]), self.cached(seen[half:])
            if name == "reuse, re-rotated":
                chunk_positions = torch.arange(last - half, device=window.device)
                chunk = self.move(chunk, chunk_positions, chunk_positions + half)
            losses[name] = self.loss(coming, _join(front, chunk), last)
        return losses


def _select(cache: Any, kept: Tensor) -> Any:
    """Drop all tokens of a cache but those with the indices `kept`, in place, and return the cache."""
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, kept], layer.values[:, :, kept]
    return cache


def _join(front: Any, chunk: Any) -> Any:
    """Append the keys and values of the cache `chunk` to the cache `front`, in place, and return
    it.
    """
    for layer, other in zip(front.layers, chunk.layers, strict=True):
        # [1, heads, tokens, size]
        layer.keys = torch.cat([layer.keys, other.keys], 2)
        layer.values = torch.cat([layer.values, other.values], 2)
    return front


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return the loss of each way to continue from a cache, and its paired difference from reading
    again (REFERENCES).
    """
    ways, cells = distinct(rows, "loss", "way"), []
    for way in ways:
        losses = score(rows, "loss", way=way)
        reference = score(rows, "loss", way=REFERENCES.get(way, way))
        difference = "-"
        if losses is not None and reference is not None and way in REFERENCES:
            paired = compare(losses, reference)
            difference = f"{paired.difference:+.4f} ± {paired.error:.4f}"
        cells.append((way, cell(losses), REFERENCES.get(way, "the reference"), difference))
    first = select(rows, "loss")[0]
    count = len(first["values"])
    after = (
        f"Loss of the tokens after the first {first['length']:,}, nats per token ± standard error over "
        f"{count} windows"
    )
    note = f"{after}; differences are paired over windows. {source_note(facts)}"
    table = Table(
        "Loss with a shifted, shortened or reused cache",
        ("way", "loss", "compared with", "difference"),
        cells,
        note,
    )
    return Findings([table], {"real_kv": _bars(rows, ways)}, claims(rows))


def _bars(rows: list[Row], ways: list[str]) -> Callable[[], Any]:
    """Return a function that draws the loss of each way as bars."""

    def draw() -> Any:
        """Return a figure with one bar per way."""
        figure, (ax,) = blank(LIGHT, 8.5, 3.6)
        scores = scores_by(rows, "loss", "way", ways)
        colours = [LIGHT.colour(place) for place in range(len(scores))]
        means = [each.mean for each in scores.values()]
        errors = [each.error for each in scores.values()]
        ax.barh(range(len(scores)), means, xerr=errors, color=colours)
        ax.set_yticks(range(len(scores)), list(scores))
        ax.invert_yaxis()
        label_axes(ax, LIGHT, title="Loss of the next tokens", x="nats per token")
        return finish(figure, LIGHT)

    return draw


def claims(rows: list[Row]) -> list[Claim]:
    """Return the claims that a shifted cache is within 0.01 nats of reading again, and that closed
    gaps and reused chunks are within 0.1.
    """
    result = []
    for way, limit in (
        ("shift", 0.01),
        ("evict, gap closed", 0.1),
        ("reuse, re-rotated", 0.1),
        ("reuse, as cached", 0.1),
    ):
        text = f"{way}: within {limit:g} nats of '{REFERENCES[way]}'"
        result.append(
            claim_within(
                text, score(rows, "loss", way=way), score(rows, "loss", way=REFERENCES[way]), limit
            )
        )
    return result


STUDY = Study(
    "real_kv",
    ABOUT["real_kv"],
    PRESETS,
    run,
    findings,
    seeded=False,
)
