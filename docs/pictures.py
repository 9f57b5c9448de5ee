"""Draw the pictures of the documentation: `python docs/pictures.py` writes docs/images/*.png.

`python docs/pictures.py further` draws only the loss of a pretrained model by position, from committed rows.
"""

from __future__ import annotations

import sys
from pathlib import Path

from method_pictures import METHOD_PICTURES  # beside this file
from PIL import Image

from ropewalk import RopeSpec, plots, selfcheck
from ropewalk.attention.remap import REMAPPINGS
from ropewalk.attention.temperature import FloorLog, LogAbove, LogN, Power
from ropewalk.lab.studies import read_study
from ropewalk.lab.studies.real_picture import picture
from ropewalk.plots import Look, methods

#: the rows of `ropewalk lab run real_extend` on a GPU
FURTHER = Path(__file__).parents[1] / "results" / "lab" / "h200_real_extend"
#: the README shows this multiple of the trained length, at which pass keys are measured too
MULTIPLE = 4
IMAGES = Path(__file__).parent / "images"
LOOKS = {"": Look(), "-dark": Look(dark=True)}


def main() -> None:
    """Write every picture, on light and on dark paper, and print its path."""
    if FURTHER.is_dir():
        draw_further(FURTHER, IMAGES)
    if sys.argv[1:] == ["further"]:
        return
    # this figure compares with 60 digits of the definition instead of float64 frequencies
    curves, clock_hands = selfcheck.precision_curves(), RopeSpec(12).frequencies().radians.tolist()
    remappings = {name: remapping.for_length(4096, 16384) for name, remapping in REMAPPINGS.items()}
    factors = {"log-n, 4096": LogN(4096), "Llama 4": FloorLog(0.1, 8192, shift=1), "Beam": Power(), "Inkling, 8192": LogAbove()}
    print(plots.save_reading(plots.View(), IMAGES / "reading.gif"))
    for suffix, look in LOOKS.items():
        drawn = {name: plots.draw(name, plots.View(look=look)) for name in plots.FIGURES}
        # two names stand for figures of their own on other pages
        renamed = {"clocks": "figure-clocks", "precision": "figure-precision"}
        pictures = {renamed.get(name, name): figure for name, figure in drawn.items()}
        pictures |= {
            "precision": plots.precision_lines(curves, look),
            "clocks": plots.clock_faces(clock_hands, (0, 1, 4, 64), look),
            "remapping": methods.distance_lines(remappings, 16383, trained=4096, look=look),
            "temperature": methods.temperature_lines(factors, 65536, look),
        }
        pictures |= {f"method-{name}": draw(look) for name, draw in METHOD_PICTURES.items()}
        for name, figure in pictures.items():
            print(reduced(plots.save(figure, IMAGES / f"{name}{suffix}.png")))
        print(reduced(plots.save(plots.contact_sheet(drawn, look), IMAGES / f"figures{suffix}.png", dpi=80)))


def draw_further(run: Path, folder: Path) -> None:
    """Write the loss of a pretrained model by position, from the rows of a run, on light and dark paper."""
    measured, facts = read_study(run)
    shown = [row for row in measured if row["factor"] == MULTIPLE]
    for suffix, look in LOOKS.items():
        print(reduced(plots.save(picture(shown, facts, look), folder / f"further{suffix}.png")))


def reduced(path: Path) -> Path:
    """Reduce a picture to 128 colours, a fifth of the bytes; maximum coverage keeps the colours of the lines."""
    picture = Image.open(path).convert("RGB").quantize(128, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)
    return path


if __name__ == "__main__":
    main()
