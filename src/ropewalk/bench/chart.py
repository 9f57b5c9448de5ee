"""Bar charts of result rows: the speed of each contender compared with a plain copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ropewalk.bench.tables import mean_percent


def gpu_chart(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw each contender's speed in per cent of a flat copy, by shape; forward above, forward+backward below."""
    from matplotlib.figure import Figure

    passes = ("forward", "forward+backward")
    cases = [(shape, order) for order in ("bshd", "bhsd") for shape in ("A", "D", "E", "F")]
    contenders = ("ropewalk", "liger-kernel", "transformers, compiled", "transformers, eager")
    colours = ("#0072B2", "#E69F00", "#56B4E9", "#999999")
    figure, percents = Figure(figsize=(10, 6.4), layout="constrained"), mean_percent(rows)
    for axis, what in zip(figure.subplots(2, 1, sharex=True), passes, strict=True):
        for i, (contender, colour) in enumerate(zip(contenders, colours, strict=True)):
            places = [x + (i - 1.5) * 0.2 for x in range(len(cases))]
            heights = [percents.get((contender, *case, what), 0) for case in cases]
            bars = axis.bar(places, heights, 0.19, color=colour, label=contender)
            axis.bar_label(bars, labels=[f"{h:.0f}" if h else "" for h in heights], fontsize=7, padding=1)
        axis.axhline(100, color="#444444", linewidth=0.8, linestyle="--")
        axis.set_ylabel(f"{what}\n% of a flat copy")
        axis.set_ylim(0, 112)
        axis.spines[["top", "right"]].set_visible(False)
    axis.set_xticks(range(len(cases)), [f"{shape}\n[{','.join(order.upper())}]" for shape, order in cases])
    figure.axes[0].legend(ncols=4, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.savefig(path, dpi=120)


def cpu_chart(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw each contender's time divided by the time of a copy, by shape and dtype; lower is better."""
    from matplotlib.figure import Figure

    timed = [r for r in rows if r.get("pass") == "forward"]
    cases = list(dict.fromkeys((r["shape"], r["order"], r["dtype"]) for r in timed))
    contenders = ("ropewalk", "ropewalk, eager", "transformers, eager", "transformers, compiled", "rotary-embedding-torch")
    colours = ("#0072B2", "#56B4E9", "#999999", "#E69F00", "#009E73")
    ratios = {(r["shape"], r["order"], r["dtype"], r["contender"]): r["times_copy"] for r in timed}
    figure = Figure(figsize=(10, 4), layout="constrained")
    axis = figure.subplots()
    for i, (contender, colour) in enumerate(zip(contenders, colours, strict=True)):
        places = [x + (i - 2) * 0.16 for x in range(len(cases))]
        axis.bar(places, [ratios.get((*case, contender), 0) for case in cases], 0.15, color=colour, label=contender)
    axis.set_yscale("log")
    axis.axhline(1, color="#444444", linewidth=0.8, linestyle="--")
    axis.set_ylabel("time / time of a copy")
    labels = [f"{shape.removeprefix('cpu ')}{order.removeprefix('bhsd')}\n{dtype}" for shape, order, dtype in cases]
    axis.set_xticks(range(len(cases)), labels, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(ncols=5, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=8)
    figure.savefig(path, dpi=120)
