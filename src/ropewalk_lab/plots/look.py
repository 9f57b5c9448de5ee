"""The look of all figures: Okabe-Ito colours for colour-blind readers, light or dark background,
English or Chinese.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from ropewalk.caches import cached
from ropewalk.errors import MissingExtra, choice, flag
from ropewalk_lab.plots.words import CHINESE

LANGUAGES = ("en", "zh")
FORMATS = ("png", "svg", "pdf")
#: Okabe and Ito's palette, without the colours that are too close to the background
ON_LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
ON_DARK = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00")
#: sequential and diverging maps that stay ordered for colour-blind readers and in grey
MAP, SIGNED_MAP = "cividis", "PuOr"
#: font families with Chinese glyphs, most preferred first; other families are tried after them
CHINESE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "PingFang SC",
    "Microsoft YaHei",
    "Hiragino Sans GB",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "SimHei",
    "Heiti SC",
    "Arial Unicode MS",
    # older matplotlib lists only this family of the Noto collection
    "Noto Sans CJK JP",
)
#: a Chinese character; a font that has it is assumed to have all of them
SAMPLE = "频"
#: pixels per inch: twice those of a screen
DPI = 200
#: inches between the labels and the edge of the figure
MARGIN = 0.1


@dataclass(frozen=True)
class Look:
    """The background and language of a figure."""

    dark: bool = False
    language: str = "en"

    def __post_init__(self) -> None:
        flag("dark", self.dark)
        choice("language", self.language, LANGUAGES)

    @property
    def paper(self) -> str:
        """The background colour."""
        return "#14181d" if self.dark else "#ffffff"

    @property
    def ink(self) -> str:
        """The colour of titles and labels."""
        return "#e8ecf0" if self.dark else "#1d2733"

    @property
    def quiet(self) -> str:
        """The colour of what should not draw attention: ticks, notes, reference lines."""
        return "#98a3af" if self.dark else "#6b7682"

    @property
    def grid(self) -> str:
        """The colour of grid lines."""
        return "#2b333c" if self.dark else "#e6eaee"

    def colour(self, index: int) -> str:
        """Return the colour of the index-th series; colours repeat after six."""
        colours = ON_DARK if self.dark else ON_LIGHT
        return colours[index % len(colours)]

    @property
    def font(self) -> str | None:
        """The font family for Chinese labels; None if the language is English or no font has the
        glyphs.
        """
        return chinese_font() if self.language == "zh" else None

    def translate(self, text: str, **values: object) -> str:
        """Return a label in the figure's language with its {names} replaced by `values`, if there
        are any.

        It stays English if no font has Chinese glyphs, and a text that has no translation stays as
        it is.
        """
        label = CHINESE.get(text, text) if self.font else text
        return label.format(**values) if values else label


LIGHT = Look()


@cached("Chinese font of figures", entries=1)
def chinese_font() -> str | None:
    """Return an installed font family with Chinese glyphs, or None."""
    from matplotlib import font_manager

    entries = font_manager.fontManager.ttflist
    family = _chinese_among(entries)
    if family is None:
        # matplotlib keeps its list of fonts on disk, so it may miss fonts that were installed since
        for path in sorted(
            set(font_manager.findSystemFonts()) - {entry.fname for entry in entries}
        ):
            with suppress(OSError, RuntimeError):  # not a font file
                font_manager.fontManager.addfont(path)
        family = _chinese_among(entries)
    return family


def _chinese_among(entries: Sequence[Any]) -> str | None:
    """Return the most preferred family with Chinese glyphs among matplotlib's font entries, or
    None.
    """
    from matplotlib.ft2font import FT2Font

    # the font "Last Resort" has an empty box for every character, so it would seem to have SAMPLE;
    # a listed file may have been removed
    real = (
        entry
        for entry in entries
        if not entry.name.startswith("Last Resort") and Path(entry.fname).is_file()
    )
    for entry in sorted(real, key=lambda entry: _rank(entry.name)):
        if FT2Font(entry.fname).get_char_index(ord(SAMPLE)):
            return entry.name
    return None


def _rank(name: str) -> int:
    """Return the place of a font family among CHINESE_FONTS; families not listed come last."""
    return CHINESE_FONTS.index(name) if name in CHINESE_FONTS else len(CHINESE_FONTS)


def blank(
    look: Look, width: float = 8.0, height: float = 4.2, across: int = 1
) -> tuple[Any, list[Any]]:
    """Return an empty figure, `width` by `height` inches, and its axes, `across` of them side by
    side.
    """
    try:
        # not pyplot: no global state and no display
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise MissingExtra("figure", "matplotlib", "lab") from None

    layout = ConstrainedLayoutEngine(w_pad=MARGIN, h_pad=MARGIN)
    figure = Figure(figsize=(width, height), layout=layout, facecolor=look.paper)
    panels = list(figure.subplots(1, across, squeeze=False)[0])
    for ax in panels:
        ax.set_facecolor(look.paper)
        ax.tick_params(which="both", colors=look.quiet, length=0)
        for side in ax.spines.values():
            side.set_visible(False)
        ax.grid(color=look.grid, linewidth=0.8)
        ax.set_axisbelow(True)
    return figure, panels


def label_axes(ax: Any, look: Look, *, title: str = "", x: str = "", y: str = "") -> None:
    """Set the title and axis labels, translated to the figure's language; empty texts are skipped."""
    if title:
        ax.set_title(
            look.translate(title), loc="left", color=look.ink, weight="bold", fontsize=13, pad=12
        )
    for text, set_label in ((x, ax.set_xlabel), (y, ax.set_ylabel)):
        if text:
            set_label(look.translate(text), color=look.ink)


def subtitle(ax: Any, look: Look, text: str) -> None:
    """Write a line between the title and the axes, and move the title up to make room."""
    ax.set_title(
        ax.get_title(loc="left"), loc="left", color=look.ink, weight="bold", fontsize=13, pad=28
    )
    placement = {
        "xycoords": "axes fraction",
        "textcoords": "offset points",
        "va": "bottom",
        "ha": "left",
    }
    ax.annotate(
        text, (0, 1), (0, 10), color=look.quiet, fontsize=9, annotation_clip=False, **placement
    )


def legend(ax: Any, look: Look, **options: Any) -> None:
    """Add a legend whose labels have the colours of their lines."""
    ax.legend(frameon=False, labelcolor="linecolor", prop={"weight": "bold", "size": 9}, **options)


def heat(
    figure: Any,
    ax: Any,
    look: Look,
    values: Any,
    *,
    signed: bool,
    label: str,
    extent: Sequence[float],
) -> None:
    """Draw a matrix as a heat map with a colour bar, row 0 at the bottom; if `signed`, the colours
    are centred on 0. `extent` is (left, right, bottom, top), as in imshow.
    """
    limit = abs(values).max()
    colours = {"cmap": SIGNED_MAP, "vmin": -limit, "vmax": limit} if signed else {"cmap": MAP}
    image = ax.imshow(values, extent=extent, origin="lower", **colours)
    ax.grid(False)
    colour_bar(figure, ax, look, image, label)


def colour_bar(figure: Any, ax: Any, look: Look, coloured: Any, label: str) -> None:
    """Add a colour bar beside the axes for an image or points, with a translated label."""
    bar = figure.colorbar(coloured, ax=ax)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=look.quiet, length=0)
    bar.set_label(look.translate(label), color=look.ink)


def finish(figure: Any, look: Look) -> Any:
    """Return the figure; if the look has a font for Chinese, all labels are set in that font, and
    characters that the font lacks in DejaVu Sans.
    """
    from matplotlib.text import Text

    if look.font:
        for text in figure.findobj(Text):
            text.set_fontfamily([look.font, "DejaVu Sans"])
    return figure


def format_of(path: Path) -> str:
    """Return the picture format that the suffix of a path names; raise an error if it is not one of
    FORMATS.
    """
    return choice("format", path.suffix.lower().lstrip("."), FORMATS)


def save(figure: Any, path: Path, dpi: int = DPI) -> Path:
    """Write a figure as PNG, SVG or PDF, depending on the suffix, and return the path; the same
    figure gives the same bytes.
    """
    suffix = format_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(figure, path, suffix, dpi)
    return path


def write(figure: Any, file: Path | BytesIO, file_format: str, dpi: int = DPI) -> None:
    """Write a figure to a path or an open file as PNG, SVG or PDF."""
    from matplotlib import rc_context

    # None leaves out what differs between two machines or days
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    # with a fixed salt the ids of an SVG are the same each time; fonttype "none" keeps labels as
    # searchable text
    with rc_context({"svg.hashsalt": "ropewalk", "svg.fonttype": "none"}):
        figure.savefig(
            file,
            format=file_format,
            dpi=dpi,
            metadata=metadata[file_format],
            facecolor=figure.get_facecolor(),
        )
