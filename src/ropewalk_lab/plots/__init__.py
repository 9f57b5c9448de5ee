"""Figures about rotary embeddings: FIGURES maps each name to a function from a View to a matplotlib
Figure.

The functions are in `ladder`, `distance` and `rotation`, the moving picture in `motion`; `look` has
colours, fonts and file formats; `captions` says what each figure shows, `words` has Chinese labels.
`methods` and `further` draw figures that are not in FIGURES.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ropewalk.errors import choice
from ropewalk_lab.plots import distance, ladder, rotation
from ropewalk_lab.plots.captions import CAPTIONS
from ropewalk_lab.plots.ladder import clock_faces, ratio_lines
from ropewalk_lab.plots.look import (
    FORMATS,
    LIGHT,
    Look,
    blank,
    finish,
    format_of,
    label_axes,
    legend,
    save,
    subtitle,
)
from ropewalk_lab.plots.motion import reading, save_reading
from ropewalk_lab.plots.rotation import precision_lines
from ropewalk_lab.plots.view import View

#: all figures by name; `ropewalk figures`, the contact sheet and the tests use all entries
FIGURES: dict[str, Callable[[View], Any]] = {
    figure.__name__: figure
    for figure in (
        rotation.rotation,
        ladder.clocks,
        ladder.spectrum,
        ladder.angles,
        ladder.periodicity,
        ladder.beyond,
        ladder.coverage,
        ladder.scalings,
        distance.decay,
        distance.similarity,
        distance.similarity_map,
        distance.inner_products,
        distance.tsne,
        distance.base_bound,
        rotation.variants,
        rotation.precision,
    )
}


#: the name of the moving picture among the figures that a command writes
MOTION = "reading"


def draw(name: str, view: View | None = None) -> Any:
    """Draw one figure by name, with the parameters of the view below its title, and return it as a
    matplotlib Figure; `clocks` has no title and no parameters.
    """
    view = view or View()
    figure = FIGURES[choice("figure", name, FIGURES)](view)
    if name != "clocks":
        subtitle(figure.axes[0], view.look, view.parameters)
    return finish(figure, view.look)


def contact_sheet(figures: Mapping[str, Any], look: Look = LIGHT, across: int = 4) -> Any:
    """Return one figure that shows all given figures as small pictures, at most `across` in a row,
    with their names as titles.
    """
    across = min(across, len(figures))
    # `blank` gives the figure its colours and margins; its axes are replaced
    sheet, _ = blank(look, 4.2 * across, 3.0 * math.ceil(len(figures) / across), across=1)
    sheet.clear()
    for number, (name, figure) in enumerate(figures.items(), start=1):
        ax = sheet.add_subplot(math.ceil(len(figures) / across), across, number)
        ax.imshow(_pixels(figure))
        ax.set_title(name, color=look.ink, fontsize=10)
        # align the titles of a row, even if its pictures have different heights
        ax.set_anchor("N")
        ax.axis("off")
    return sheet


def _pixels(figure: Any) -> np.ndarray:
    """Return the figure as an array of RGBA pixels, 72 per inch; the figure keeps its own dpi."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    old_dpi = figure.dpi
    figure.set_dpi(72)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba()).copy()
    figure.set_dpi(old_dpi)
    return pixels


def write_all(
    folder: Path, view: View | None = None, names: list[str] | None = None, suffix: str = "png"
) -> list[Path]:
    """Write the named figures (by default all) and a contact sheet of them into a folder; return
    the paths, the sheet's last.

    The name `reading` is the moving picture, which is always a GIF and not on the sheet. If it is
    the only name, there is no sheet.
    """
    view, names = view or View(), names or [*FIGURES, MOTION]
    figures_by_name = {name: draw(name, view) for name in names if name != MOTION}
    paths = [save(figure, folder / f"{name}.{suffix}") for name, figure in figures_by_name.items()]
    if MOTION in names:
        paths.append(save_reading(view, folder / f"{MOTION}.gif"))
    if figures_by_name:
        paths.append(
            save(contact_sheet(figures_by_name, view.look), folder / "contact-sheet.png", dpi=100)
        )
    return paths


__all__ = [
    "CAPTIONS",
    "FIGURES",
    "FORMATS",
    "LIGHT",
    "MOTION",
    "Look",
    "View",
    "blank",
    "clock_faces",
    "contact_sheet",
    "draw",
    "finish",
    "format_of",
    "label_axes",
    "legend",
    "precision_lines",
    "ratio_lines",
    "reading",
    "save",
    "save_reading",
    "write_all",
]
