"""Draw the pictures of the documentation: `python docs/pictures.py` writes docs/images/*.png."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from ropewalk import RopeSpec, plots, selfcheck
from ropewalk.plots import Look

IMAGES = Path(__file__).parent / "images"
LOOKS = {"": Look(), "-dark": Look(dark=True)}


def main() -> None:
    """Write every picture, on light and on dark paper, and print its path."""
    # this figure compares with 60 digits of the definition instead of float64 frequencies
    curves, clock_hands = selfcheck.precision_curves(), RopeSpec(12).frequencies().radians.tolist()
    print(plots.save_reading(plots.View(), IMAGES / "reading.gif"))
    for suffix, look in LOOKS.items():
        drawn = {name: plots.draw(name, plots.View(look=look)) for name in plots.FIGURES}
        # two names stand for figures of their own on other pages
        renamed = {"clocks": "figure-clocks", "precision": "figure-precision"}
        pictures = {renamed.get(name, name): figure for name, figure in drawn.items()}
        pictures |= {
            "precision": plots.precision_lines(curves, look),
            "clocks": plots.clock_faces(clock_hands, (0, 1, 4, 64), look),
        }
        for name, figure in pictures.items():
            print(reduced(plots.save(figure, IMAGES / f"{name}{suffix}.png")))
        print(reduced(plots.save(plots.contact_sheet(drawn, look), IMAGES / f"figures{suffix}.png", dpi=80)))


def reduced(path: Path) -> Path:
    """Reduce a picture to 128 colours, a fifth of the bytes; maximum coverage keeps the colours of the lines."""
    picture = Image.open(path).convert("RGB").quantize(128, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)
    return path


if __name__ == "__main__":
    main()
