"""The picture of the page about layouts: which two dimensions of a head form a pair."""

from __future__ import annotations

from typing import Any

from ropewalk_lab import plots
from ropewalk_lab.plots import Look

#: name of a layout -> the dimensions of each pair of a head of eight, and who uses it
LAYOUTS = {
    "half": ([(i, i + 4) for i in range(4)], "transformers, GPT-NeoX, Qwen"),
    "interleaved": ([(2 * i, 2 * i + 1) for i in range(4)], "GPT-J, Meta's Llama, RoFormer"),
}


def layouts(look: Look) -> Any:
    """Draw the eight dimensions of a head in a row for each layout; an arc joins the two members of
    a pair, which have one colour.
    """
    from matplotlib.patches import Arc, FancyBboxPatch

    figure, (ax,) = plots.blank(look, 8.0, 3.4)
    figure.set_layout_engine("none")
    ax.set_position((0, 0, 1, 1))
    for row, (name, (pairs, users)) in enumerate(LAYOUTS.items()):
        y = -2.3 * row
        ax.text(-0.4, y + 0.16, look.translate(name), ha="right", color=look.ink, weight="bold")
        ax.text(-0.4, y - 0.32, users, ha="right", color=look.quiet, fontsize=9)
        for pair, members in enumerate(pairs):
            colour, (first, second) = look.colour(pair), members
            for place, letter in zip(members, "ab", strict=True):
                box = FancyBboxPatch(
                    (place + 0.08, y - 0.36),
                    0.76,
                    0.72,
                    boxstyle="round,pad=0,rounding_size=0.12",
                    facecolor=colour,
                    edgecolor="none",
                    alpha=0.25,
                )
                ax.add_patch(box)
                ax.text(
                    place + 0.46, y, f"${letter}_{pair}$", ha="center", va="center", color=look.ink
                )
                ax.text(
                    place + 0.46, y - 0.62, str(place), ha="center", color=look.quiet, fontsize=8
                )
            width, height = second - first, 1.5 if name == "half" else 0.7
            arc = Arc(
                ((first + second) / 2 + 0.46, y + 0.4),
                width,
                height,
                theta1=0,
                theta2=180,
                edgecolor=colour,
                linewidth=2,
            )
            ax.add_patch(arc)
    title = look.translate("Which two of eight dimensions form a pair")
    ax.text(-3.75, 1.5, title, color=look.ink, fontsize=13, weight="bold")
    ax.set(xlim=(-3.9, 8.2), ylim=(-3.2, 1.95))
    ax.axis("off")
    return plots.finish(figure, look)
