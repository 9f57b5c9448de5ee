"""Bar charts of result rows: the speed of each contender compared with a plain copy.

Words of this module:
  contender  a way to rotate that was timed: ropewalk with some options, or another library
  shape      a name of SHAPES or CPU_SHAPES: batch, tokens, heads, head_dim, dtype
  order      of the axes in memory, a key of ORDERS
  pass       what was timed: "forward" or "forward+backward"
  row        a dict with one measurement
  way        how the QKV product and the rotation were computed, such as "rotation inside"
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError
from ropewalk_lab.bench.cases import SHAPES
from ropewalk_lab.bench.cpu import CPU_SHAPES
from ropewalk_lab.bench.tables import mean_percent

#: pixels per inch: twice those of a screen
DPI = 200
#: bars of the CPU chart are cut off at this height, with their number on top
MOST_COPIES = 16
#: memory order -> its words in a chart
ORDERS = {
    "bshd": "tokens, then heads",
    "bhsd": "heads, then tokens",
    "bhsd view": "heads, then tokens (view)",
}


def shape_name(shape: str) -> str:
    r"""Return a shape of SHAPES in words, such as "4 x 4,096 tokens\n32+8 heads of 128" for 32
    query heads and 8 key heads.
    """
    batch, tokens, q_heads, k_heads, head_dim, _ = (SHAPES | CPU_SHAPES)[shape]
    heads = f"{q_heads}" if q_heads == k_heads else f"{q_heads}+{k_heads}"
    # "64 x 1 tokens" has the plural, as there are 64
    size = "1 token" if batch == tokens == 1 else f"{tokens:,} tokens"
    batches = f"{batch} x " if batch > 1 else ""
    return f"{batches}{size}\n{heads} heads of {head_dim}"


def gpu_chart(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the speed of four contenders in per cent of a plain copy, by shape and memory order: the
    forward pass above, forward+backward below.
    """
    from matplotlib.figure import Figure

    passes = ("forward", "forward+backward")
    contenders = ("ropewalk", "liger-kernel", "transformers, compiled", "transformers, eager")
    colours = ("#0072B2", "#E69F00", "#56B4E9", "#999999")
    percents = mean_percent(rows)
    # the cases that one of the four was timed in
    timed = {(shape, order) for contender, shape, order, _ in percents if contender in contenders}
    cases = [(shape, order) for order in ("bshd", "bhsd") for shape in SHAPES]
    cases = [case for case in cases if case in timed]
    if not cases:
        rule = f"needs timings of {', '.join(contenders[:-1])} or {contenders[-1]}"
        raise RopeError("plot", rule, sorted({row["contender"] for row in rows}))
    figure = Figure(figsize=(12, 6.8), layout="constrained")
    title = "Speed of the rotation on a GPU, in per cent of a plain copy: higher is better"
    figure.suptitle(title, x=0.01, ha="left", weight="bold")
    for axis, pass_name in zip(figure.subplots(2, 1, sharex=True), passes, strict=True):
        for i, (contender, colour) in enumerate(zip(contenders, colours, strict=True)):
            # four bars side by side, centred on the tick of their case
            places = [x + (i - 1.5) * 0.2 for x in range(len(cases))]
            # 0, a bar that is not seen, where the contender was not timed
            heights = [percents.get((contender, *case, pass_name), 0) for case in cases]
            bars = axis.bar(places, heights, 0.19, color=colour, label=contender)
            axis.bar_label(
                bars, labels=[f"{h:.0f}" if h else "" for h in heights], fontsize=7, padding=1
            )
        axis.axhline(100, color="#444444", linewidth=0.8, linestyle="--")
        axis.set_ylabel(f"{pass_name}\n% of a plain copy")
        axis.set_ylim(0, 112)
        axis.spines[["top", "right"]].set_visible(False)
    axis.set_xticks(
        range(len(cases)),
        [f"{shape_name(shape)}\n{ORDERS[order]}" for shape, order in cases],
        fontsize=8,
    )
    figure.axes[0].legend(ncols=4, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.savefig(path, dpi=DPI)


def cpu_chart(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the time of five contenders divided by the time of a copy, by shape and dtype; bars are
    cut off at MOST_COPIES.
    """
    from matplotlib.figure import Figure

    timed = [r for r in rows if r.get("pass") == "forward"]
    cases = list(dict.fromkeys((r["shape"], r["order"], r["dtype"]) for r in timed))
    contenders = (
        "ropewalk",
        "ropewalk, eager",
        "transformers, eager",
        "transformers, compiled",
        "rotary-embedding-torch",
    )
    colours = ("#0072B2", "#56B4E9", "#999999", "#E69F00", "#009E73")
    ratios = {(r["shape"], r["order"], r["dtype"], r["contender"]): r["times_copy"] for r in timed}
    figure = Figure(figsize=(13, 4.8), layout="constrained")
    title = (
        "Time of the rotation on one CPU core, divided by the time of a plain copy: lower is better"
    )
    figure.suptitle(title, x=0.01, ha="left", weight="bold")
    axis = figure.subplots()
    for i, (contender, colour) in enumerate(zip(contenders, colours, strict=True)):
        # five bars side by side, centred on the tick of their case
        places = [x + (i - 2) * 0.17 for x in range(len(cases))]
        # 0, a bar that is not seen, where the contender was not timed
        heights = [ratios.get((*case, contender), 0) for case in cases]
        bars = axis.bar(
            places,
            [min(height, MOST_COPIES) for height in heights],
            0.16,
            color=colour,
            label=contender,
        )
        labels = [f"{height:.0f}" if height > MOST_COPIES else "" for height in heights]
        axis.bar_label(bars, labels=labels, fontsize=7, padding=1, rotation=90)
    axis.axhline(1, color="#444444", linewidth=0.8, linestyle="--")
    axis.set(ylim=(0, MOST_COPIES * 1.1), ylabel="time / time of a copy")
    labels = [
        f"{shape_name(shape)}\n{dtype}{', view' if order == 'bhsd view' else ''}"
        for shape, order, dtype in cases
    ]
    axis.set_xticks(range(len(cases)), labels, fontsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(ncols=5, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=8)
    figure.savefig(path, dpi=DPI)


def projection_chart(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw what each way to rotate adds to the time of the QKV product, in per cent, by the number
    of tokens.
    """
    from matplotlib.figure import Figure

    rows = [row for row in rows if row["what"] == "qkv"]
    # way -> (colour, the way in two launches that this one launch replaces, if any). The line of
    # one launch is interrupted where the two are faster, because ropewalk takes the two there
    ways = {
        "product, then rotation": ("#999999", None),
        "product, then norm, rotation and cache": ("#444444", None),
        "rotation inside": ("#0072B2", "product, then rotation"),
        "norm, rotation and cache inside": ("#E69F00", "product, then norm, rotation and cache"),
    }
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    title = (
        "What the rotation adds to the time of the QKV product of Llama-3-8B on a GPU: lower is "
        "better"
    )
    figure.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=11)
    axis = figure.subplots()
    counts = sorted({row["rows"] for row in rows})  # the numbers of tokens
    added = {(row["way"], row["rows"]): row["over_percent"] for row in rows}
    for way, (colour, replaced) in ways.items():
        heights = [added.get((way, count), math.nan) for count in counts]
        # no limit (inf) if the way replaces nothing, or if the two launches were not timed; NaN,
        # which is not drawn, interrupts the line
        limits = [added.get((replaced, count), math.inf) for count in counts]
        drawn = [
            height if height < limit else math.nan
            for height, limit in zip(heights, limits, strict=True)
        ]
        axis.plot(range(len(counts)), drawn, color=colour, marker="o", label=way)
    axis.axhline(0, color="#444444", linewidth=0.8, linestyle="--")
    axis.set_xticks(range(len(counts)), [f"{count:,}" for count in counts])
    axis.set(xlabel="tokens", ylabel="% over the product alone")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=DPI)
