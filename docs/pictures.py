"""Draw the pictures of the documentation: `python docs/pictures.py` writes docs/images/*.png."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from ropewalk import RopeSpec, plots, selfcheck

IMAGES = Path(__file__).parent / "images"
#: figures that a page shows in full size; the contact sheet has all
SHOWN = ("scalings", "decay", "coverage", "beyond", "variants")


def main() -> None:
    """Write every picture and print its path."""
    # this figure compares with 60 digits of the definition instead of float64 frequencies
    print(plots.save(plots.precision_lines(selfcheck.precision_curves()), IMAGES / "precision.png"))
    clock_hands = RopeSpec(12).frequencies().radians.tolist()
    print(plots.save(plots.clock_faces(clock_hands, (0, 1, 4, 64)), IMAGES / "clocks.png"))
    drawn = {name: plots.draw(name) for name in plots.FIGURES}
    for name in SHOWN:
        print(plots.save(drawn[name], IMAGES / f"{name}.png"))
    sheet = plots.save(plots.contact_sheet(drawn), IMAGES / "figures.png", dpi=80)
    # 256 colours take a fifth of the bytes; maximum coverage keeps the colours of the lines
    reduced = Image.open(sheet).convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    reduced.save(sheet, optimize=True)
    print(sheet)


if __name__ == "__main__":
    main()
