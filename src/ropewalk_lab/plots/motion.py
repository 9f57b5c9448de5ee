"""A moving picture: the hands of some pairs while a model reads past its trained length, without
and with a scaling.

Words of this module:
  view      what the picture shows: a spec, its trained length, the longer `served` length, the look
  progress  the share of the served length that has been read
  dial      one pair, drawn as a circle with a hand that turns by the angle of the pair
  new       of an angle: training never showed it, as the pair turns less within the trained length
  x, y      pixels of the finished picture from its upper left corner
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from ropewalk.caches import cached
from ropewalk.frequencies import Default
from ropewalk.spec import RopeSpec
from ropewalk_lab import analysis
from ropewalk_lab.plots.ladder import pairs_with_turns
from ropewalk_lab.plots.look import Look
from ropewalk_lab.plots.numerals import short
from ropewalk_lab.plots.view import View

#: how many pictures the animation has, and how many seconds it takes
FRAMES = 48
SECONDS = 8
#: a hand makes at most this many turns while the picture runs; faster ones could not be followed
MAX_TURNS = 12
#: pictures are drawn larger by this factor and then reduced, which smooths their edges
OVERSAMPLING = 2
#: turns within the trained length that the pairs are chosen for, fastest first
_WANTED_TURNS = (600.0, 20.0, 1.6, 0.8, 0.5, 0.3, 0.15, 0.05)
#: pixels: width of a dial's cell, height of a row, space for the row's name, radius of a dial
_CELL, _ROW, _LEFT, _RADIUS = 96, 128, 120, 36


@dataclass(frozen=True)
class Dial:
    """One pair, drawn as a dial with a hand: its wavelength (tokens per turn), and its turns within
    the trained and within the served length.

    The turns within the served length are those under the spec's scaling.
    """

    pair: int
    wavelength: float
    trained_turns: float
    served_turns: float

    @property
    def leaves_at(self) -> float:
        """The share of the served length after which the hand reaches angles that training never
        showed; 1 if it never does.
        """
        # a pair that completes a turn in training has shown all its angles; one that turns no
        # farther in the served length, apart from rounding errors, reaches no new ones
        if self.trained_turns >= 1 or self.served_turns <= self.trained_turns * (1 + 1e-9):
            return 1.0
        return self.trained_turns / self.served_turns


def dials_of(spec: RopeSpec, trained: int, served: int) -> list[Dial]:
    """Return the dials of up to eight pairs, from those that turn often in training to those that
    hardly turn.
    """
    turns = analysis.coverage(spec, trained, served)
    wavelengths = analysis.wavelengths(analysis.radians(spec, served))
    return [
        Dial(pair, float(wavelengths[pair]), float(turns.trained[pair]), float(turns.scaled[pair]))
        for pair in pairs_with_turns(np.asarray(turns.trained), _WANTED_TURNS)
    ]


def save_reading(view: View, path: Path) -> Path:
    """Write the moving picture as a GIF and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(reading(view))
    return path


def reading(view: View) -> bytes:
    """Return a GIF: one row of dials without scaling, one with the view's scaling (YaRN if it has
    none).
    """
    from PIL import Image

    scaled = view.spec if view.scaled else view.stretched()["yarn"]
    rows = {
        view.look.translate("no scaling"): view.spec.with_(scaling=Default()),
        scaled.scaling.name: scaled,
    }
    dials = {name: dials_of(spec, view.trained, view.served) for name, spec in rows.items()}
    frames = [_frame(view, dials, (number + 1) / FRAMES) for number in range(FRAMES)]
    # one palette for all frames, so that colours do not flicker; the last frame has every colour
    palette = frames[-1].quantize(96, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    pictures = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    file, duration = BytesIO(), round(1000 * SECONDS / FRAMES)  # milliseconds of a frame
    # the last frame stays longer before the loop restarts
    durations = [duration] * (FRAMES - 1) + [2000]
    pictures[0].save(
        file,
        "GIF",
        save_all=True,
        append_images=pictures[1:],
        duration=durations,
        loop=0,
        optimize=True,
    )
    return file.getvalue()


class _Canvas:
    """A drawing whose lengths are in pixels of the finished picture, y growing downwards; it is
    drawn OVERSAMPLING times as large.
    """

    def __init__(self, width: int, height: int, look: Look) -> None:
        from PIL import Image, ImageDraw

        self.image = Image.new("RGB", (width * OVERSAMPLING, height * OVERSAMPLING), look.paper)
        self.draw, self.look = ImageDraw.Draw(self.image), look

    def text(
        self, x: float, y: float, words: str, colour: str, anchor: str = "mm", size: int = 13
    ) -> None:
        """Write words at (x, y); `anchor` is PIL's: which point of the text is there, l(eft),
        m(iddle) or r(ight), then m for the middle of the height.
        """
        self.draw.text(
            self._at(x, y),
            words,
            fill=colour,
            font=_font(self.look.font, size * OVERSAMPLING),
            anchor=anchor,
        )

    def ring(
        self, x: float, y: float, start: float, degrees: float, colour: str, width: int = 7
    ) -> None:
        """Draw a ring segment of `degrees` degrees around (x, y), counter-clockwise from the angle
        `start`, which is 0 at the right; PIL's angles are clockwise, hence the signs.
        """
        box = (*self._at(x - _RADIUS, y - _RADIUS), *self._at(x + _RADIUS, y + _RADIUS))
        self.draw.arc(box, -start - degrees, -start, fill=colour, width=width * OVERSAMPLING)

    def line(
        self, x: float, y: float, to_x: float, to_y: float, colour: str, width: int = 3
    ) -> None:
        """Draw a line from (x, y) to (to_x, to_y)."""
        self.draw.line(
            (*self._at(x, y), *self._at(to_x, to_y)), fill=colour, width=width * OVERSAMPLING
        )

    def dot(self, x: float, y: float, radius: float, colour: str) -> None:
        """Draw a filled circle around (x, y)."""
        self.draw.ellipse(
            (*self._at(x - radius, y - radius), *self._at(x + radius, y + radius)), fill=colour
        )

    def finished(self) -> Any:
        """Return the picture, reduced to its final size."""
        return self.image.reduce(OVERSAMPLING)

    def _at(self, x: float, y: float) -> tuple[float, float]:
        """Return (x, y) in pixels of the enlarged drawing."""
        return x * OVERSAMPLING, y * OVERSAMPLING


@cached("fonts of moving pictures", entries=16)
def _font(family: str | None, size: int) -> Any:
    """Return the PIL font of a family, DejaVu Sans if None."""
    from matplotlib.font_manager import FontProperties, findfont
    from PIL import ImageFont

    return ImageFont.truetype(findfont(FontProperties(family=family or "DejaVu Sans")), size)


def _frame(view: View, rows: dict[str, list[Dial]], progress: float) -> Any:
    """Return one frame as an image, in which the share `progress` of the served length has been
    read; `rows` has the dials of each row by its title.
    """
    look, across = view.look, max(map(len, rows.values()))
    # pixels from top to bottom: 52 for the title, the rows of dials, 64 for the bar and its labels;
    # "lm" and "rm" say which point of a text is placed, see `_Canvas.text`
    width = _LEFT + across * _CELL
    canvas = _Canvas(width, 52 + _ROW * len(rows) + 64, look)
    new_colour = look.colour(1)  # of angles that training never showed
    lengths = {"trained": f"{view.trained:,}", "served": f"{view.served:,}"}
    canvas.text(
        16,
        24,
        look.translate("Trained on {trained} tokens, reading {served}", **lengths),
        look.ink,
        "lm",
        16,
    )
    for row, (name, dials) in enumerate(rows.items()):
        y = 52 + _ROW * row + _RADIUS + 8
        canvas.text(16, y, name, look.ink, "lm", 14)
        for column, dial in enumerate(dials):
            _draw_dial(canvas, _LEFT + _CELL * (column + 0.5), y, dial, progress, new_colour)
    # the bar below the dials: the trained length in one shade, the rest in another, and a dot at
    # the current position
    y, left, right = 52 + _ROW * len(rows) + 22, 16, width - 16
    trained_x = left + (right - left) * min(view.trained / view.served, 1.0)
    canvas.line(left, y, trained_x, y, look.quiet, 5)
    canvas.line(trained_x, y, right, y, look.grid, 5)
    beyond = progress * view.served > view.trained
    canvas.dot(left + (right - left) * progress, y, 7, new_colour if beyond else look.colour(0))
    position = look.translate("position {position}", position=f"{round(progress * view.served):,}")
    canvas.text(left, y + 24, position, look.ink, "lm")
    canvas.text(
        right,
        y + 24,
        look.translate("this colour: angles that training never showed"),
        new_colour,
        "rm",
    )
    return canvas.finished()


def _draw_dial(
    canvas: _Canvas, x: float, y: float, dial: Dial, progress: float, new_colour: str
) -> None:
    """Draw one dial around (x, y) when the share `progress` of the served length has been read:
    trained angles in grey, new ones in `new_colour`.
    """
    look = canvas.look
    canvas.ring(x, y, 0, 360, look.grid, 2)
    seen = 360 * min(dial.trained_turns, 1.0)  # degrees that training showed
    canvas.ring(x, y, 0, seen, look.quiet)
    # degrees, at most MAX_TURNS turns: a faster hand could not be followed
    turned = 360 * min(dial.served_turns, MAX_TURNS) * progress
    outside = progress > dial.leaves_at
    if outside:
        # max: a hand slowed to MAX_TURNS may still be within the trained angles
        canvas.ring(x, y, seen, max(min(turned, 360.0) - seen, 0.0), new_colour)
    angle, reach = math.radians(turned), _RADIUS - 10
    colour = new_colour if outside else look.colour(0)
    canvas.line(x, y, x + reach * math.cos(angle), y - reach * math.sin(angle), colour)
    canvas.dot(x, y, 3, look.ink)
    canvas.text(
        x, y + _RADIUS + 14, look.translate("pair {pair}", pair=dial.pair), look.quiet, size=11
    )
    turn = look.translate("a turn in {turn}", turn=short(dial.wavelength))
    canvas.text(x, y + _RADIUS + 28, turn, look.quiet, size=11)
