"""Draw the pictures of the documentation: `python docs/pictures.py` writes docs/images/*.png."""

from __future__ import annotations

from pathlib import Path

from ropewalk import RopeSpec, frequencies, plots, selfcheck

IMAGES = Path(__file__).parent / "images"


def main() -> None:
    """Write every picture and print its path."""
    stretched = {
        "linear": frequencies.Linear(4.0),
        "ntk": frequencies.Ntk(4.0),
        "yarn": frequencies.Yarn(factor=4.0, original_length=4096),
        "llama3": frequencies.Llama3(factor=4.0, original_length=4096),
    }
    plain = RopeSpec(128).frequencies().radians
    ratios = {name: (RopeSpec(128, scaling=s).frequencies().radians / plain).tolist() for name, s in stretched.items()}
    clock_hands = RopeSpec(12).frequencies().radians.tolist()
    print(plots.clocks(clock_hands, (0, 1, 4, 64), IMAGES / "clocks.png"))
    print(plots.precision(selfcheck.precision_curves(), IMAGES / "precision.png"))
    print(plots.scalings(ratios, IMAGES / "scalings.png"))


if __name__ == "__main__":
    main()
