"""The table and the sentences of a fit: one line per method, and the recommendation in words.

Words of this module:
  row       one measurement, with its "method", its "metric" ("text" or "passkey"), its "length" in
            tokens and the results: "loss", the mean, and "bands", the mean of each band of positions;
            or "found", 1 if the model found the pass key. Rows of texts of the length `to` have
            "seconds" and "memory" (the peak on the GPU, in bytes) too, and, if LongPPL was
            measured, "key_sum" and "key_count": the summed loss of the tokens that it counts, and
            their number
  facts     what identifies the fit: the model, the lengths `trained` and `to` in tokens, the bands,
            the number of windows and of pass keys, and more
  skipped   {method: why it was not measured}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ropewalk_lab.fit.decide import MATERIAL_KEYS, MATERIAL_LOSS, Decision
from ropewalk_lab.fit.ledger import Row
from ropewalk_lab.fit.methods import NONE, methods
from ropewalk_lab.fit.text import long_ppl
from ropewalk_lab.scores import Score


def short_length(tokens: int) -> str:
    """Return a number of tokens as people write it: 32768 is 32k, 1000 is 1,000."""
    return f"{tokens // 1024}k" if tokens % 1024 == 0 and tokens else f"{tokens:,}"


def score_text(values: Sequence[float]) -> str:
    """Return mean ± standard error as text, without the error for a single value; "not finite" if a
    value is not.
    """
    if not np.isfinite(values).all():
        return "not finite"
    score = Score(np.array([values]))  # of one training
    return f"{score.mean:.3f} ± {score.error:.3f}" if len(values) > 1 else f"{score.mean:.3f}"


def table(rows: Sequence[Row], facts: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the titles of the columns and the cells of each method that was measured on text; s
    are seconds for one window, GB the peak of GPU memory.
    """
    trained, to, bands = facts["trained"], facts["to"], facts["bands"]
    # methods that were measured on text; "keys" in the titles are pass keys
    names = [
        name
        for name in facts["methods"]
        if any(row["method"] == name and row["metric"] == "text" for row in rows)
    ]
    with_ppl = any("key_count" in row for row in rows)  # only if LongPPL was measured
    columns = ["method", *(f"{short_length(low)}-{short_length(high)}" for low, high in bands)]
    columns += ["LongPPL"] if with_ppl else []
    columns += [
        f"loss at {short_length(trained)}",
        f"keys to {short_length(trained)}",
        f"keys to {short_length(to)}",
        "s",
        "GB",
    ]
    return columns, [
        _cells(name, [row for row in rows if row["method"] == name], facts, with_ppl)
        for name in names
    ]


def _cells(name: str, rows: Sequence[Row], facts: dict[str, Any], with_ppl: bool) -> list[str]:
    """Return the cells of one method, from its rows, under the columns of `table`; "-" where
    nothing was measured. `with_ppl` says whether there is a column for LongPPL.
    """
    trained = facts["trained"]
    far = [row for row in rows if row["metric"] == "text" and row["length"] == facts["to"]]
    near = [row for row in rows if row["metric"] == "text" and row["length"] == trained]
    asked = [row for row in rows if row["metric"] == "passkey"]
    cells = [name]
    for band in range(len(facts["bands"])):
        cells.append(score_text([row["bands"][band] for row in far]) if far else "-")
    if with_ppl:
        ppl = long_ppl([row["key_sum"] for row in far], [row["key_count"] for row in far])
        cells.append(_ppl_text(ppl))
    cells.append(score_text([row["loss"] for row in near]) if near else "-")
    near_keys = [row["found"] for row in asked if row["length"] <= trained]
    far_keys = [row["found"] for row in asked if row["length"] > trained]
    cells += [f"{np.mean(found):.0%}" if found else "-" for found in (near_keys, far_keys)]
    cells.append(f"{np.median([row['seconds'] for row in far]):.2f}" if far else "-")
    # rows that were measured on a CPU have no figure for memory
    memory = [row["memory"] for row in far if row["memory"]]
    cells.append(f"{max(memory) / 1e9:.2f}" if memory else "-")
    return cells


def _ppl_text(ppl: float | None) -> str:
    """Return a perplexity as text: "-" for None, and an exponent from 10,000 on."""
    if ppl is None:
        return "-"
    return format(ppl, ".2f" if ppl < 1e4 else ".1e") if np.isfinite(ppl) else "not finite"


def note(facts: dict[str, Any]) -> str:
    """Return what the table was measured on."""
    texts, asked = ", ".join(map(str, facts["text"])), facts["passkeys"]
    trained, to = short_length(facts["trained"]), short_length(facts["to"])
    keys = (
        f"; {asked} pass keys for each method (keys to {trained}: the share found in texts of up "
        f"to that many tokens; keys to {to}: the share found in longer texts)"
        if asked
        else "; no pass keys"
    )
    ppl = "LongPPL: perplexity of tokens that need a long context. " if facts["long_ppl"] else ""
    return (
        f"Mean loss per token ± standard error over {facts['windows']} windows of {facts['to']:,} "
        f"tokens, by band of positions. Model {facts['model']} "
        f"({facts['dtype'].removeprefix('torch.')}, trained to {facts['trained']:,}), text "
        f"{texts}, seed {facts['seed']}{keys}. {ppl}s: seconds for one window. GB: "
        "peak memory of the GPU."
    )


def sentences(
    decision: Decision, facts: dict[str, Any], skipped: dict[str, str], rows: Sequence[Row]
) -> list[str]:
    """Return the recommendation, its reason and what the user should know beside it: methods that
    are no worse, the best one that a config can express, the loss at the new length, and `skipped`.
    """
    to, best = short_length(facts["to"]), decision.recommended
    lines = [
        f"Recommended for {to}: "
        + ("leave the model as it is." if best.method == NONE else f"{best.method}."),
        f"Why: {best.reason}.",
    ]
    if facts["windows"] == 1:
        lines.append(
            f"One window has no error bar: losses count as different beyond {MATERIAL_LOSS} nats; "
            "measure two windows or more to know."
        )
    if best.equal:
        lines.append(f"No difference beyond the noise: {', '.join(best.equal)}.")
    lines += _beside(decision, facts)
    # the band that ends at the trained length
    trained_band = [high for _, high in facts["bands"]].index(facts["trained"])
    gaps = [
        row["bands"][-1] - row["bands"][trained_band]
        for row in rows
        if (row["method"], row["metric"]) == (best.method, "text") and row["length"] == facts["to"]
    ]
    if len(gaps) > 1:
        score = Score(np.array([gaps]))
        if score.mean > 2 * score.error:  # beyond the noise
            lines.append(
                f"Its loss in the last band is {score.mean:.3f} ± {score.error:.3f} above that in "
                "the band up to the trained length; training at the new length lowers it."
            )
    lines += [f"Not measured: {name} ({reason})." for name, reason in skipped.items()]
    return lines


def _beside(decision: Decision, facts: dict[str, Any]) -> list[str]:
    """Return the sentences that compare the best method with the best one that a config can
    express; [] if they are the same.
    """
    best, in_config = decision.best.method, decision.in_config.method
    if best == in_config:
        return []
    serving = (
        f"No config expresses {best}: serving it takes a loaded transformers model and "
        f"ropewalk.extend(model, {best!r}{_factor(best, facts)}), not an engine that reads a "
        "config."
    )
    material = f"(material: {MATERIAL_LOSS} nats, or {MATERIAL_KEYS:.0%} of the pass keys)"
    if decision.recommended.method == best:
        instead = decision.in_config
        return [
            serving,
            f"The best method that a config can express: {in_config} ({instead.reason}).",
            f"{best} against {in_config}: {decision.gain} {material}.",
        ]
    return [
        f"{best} measured best, but not by enough to recommend a method that no config expresses: "
        f"{decision.gain} {material}.",
        serving,
    ]


def _factor(name: str, facts: dict[str, Any]) -> str:
    """Return the argument `factor` of `extend` as text, such as ", factor=4"; "" for a method that
    takes none.
    """
    method = methods().get(name)
    if method is None or not method.factor:
        return ""
    return f", factor={facts['to'] / facts['trained']:g}"
