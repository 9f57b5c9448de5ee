"""Draw the pictures of the documentation: `python docs/pictures.py` writes docs/images/*.png.

`python docs/pictures.py further` draws only what committed rows say about a pretrained model: its
loss by position, and the pass keys that it finds after training.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from layout_picture import layouts  # beside this file
from method_pictures import METHOD_PICTURES  # beside this file
from PIL import Image

from ropewalk import RopeSpec
from ropewalk.attention.remap import REMAPPINGS
from ropewalk.temperatures import FloorLog, LogAbove, LogN, Power
from ropewalk_lab import plots, selfcheck
from ropewalk_lab.plots import Look, methods
from ropewalk_lab.studies import read_study
from ropewalk_lab.studies.real_picture import picture

#: the rows of `ropewalk lab run real_extend` on a GPU
FURTHER = Path(__file__).parents[1] / "results" / "lab" / "h200_real_extend"
#: the README shows this multiple of the trained length, at which pass keys are measured too
MULTIPLE = 4
#: the rows of `ropewalk lab run real_tune` on a GPU -> what a line of the picture says about its
#: training windows
TUNED = {"h200_real_tune_200": "", "h200_real_tune_codes": ", codes"}
IMAGES = Path(__file__).parent / "images"
LOOKS = {"": Look(), "-dark": Look(dark=True)}
#: pictures that Chinese pages show, drawn with Chinese words if a font has the glyphs
CHINESE = ("clocks", "scalings", "precision", "coverage", "layouts")
CHINESE_LOOKS = {
    f"-zh{suffix}": Look(dark=look.dark, language="zh") for suffix, look in LOOKS.items()
}


def main() -> None:
    """Write every picture, on light and on dark paper, and print its path."""
    if FURTHER.is_dir():
        draw_further(FURTHER, IMAGES)
        draw_tuned({FURTHER.with_name(run): said for run, said in TUNED.items()}, IMAGES)
    if sys.argv[1:] == ["further"]:
        return
    # the errors of the picture `precision` are against the self-check's frequencies of 60 digits;
    # those of `figure-precision` against the package's own
    curves, clock_hands = selfcheck.precision_curves(), RopeSpec(12).frequencies().radians
    remappings = {name: remapping.for_length(4096, 16384) for name, remapping in REMAPPINGS.items()}
    factors = {
        "log-n, 4096": LogN(4096),
        "Llama 4": FloorLog(0.1, 8192, shift=1),
        "Beam": Power(),
        "Inkling, 8192": LogAbove(),
    }
    for suffix in ("", "-zh"):
        view = plots.View(look=(LOOKS | CHINESE_LOOKS)[suffix])
        print(plots.save_reading(view, IMAGES / f"reading{suffix}.gif"))
    for suffix, look in (LOOKS | CHINESE_LOOKS).items():
        drawn = {name: plots.draw(name, plots.View(look=look)) for name in plots.FIGURES}
        # two names stand for figures of their own on other pages
        renamed = {"clocks": "figure-clocks", "precision": "figure-precision"}
        pictures = {renamed.get(name, name): figure for name, figure in drawn.items()}
        pictures |= {
            "precision": plots.precision_lines(curves, look),
            "clocks": plots.clock_faces(clock_hands, (0, 1, 4, 64), look),
            "remapping": methods.distance_lines(remappings, 16383, trained=4096, look=look),
            "temperature": methods.temperature_lines(factors, 65536, look),
            "layouts": layouts(look),
        }
        if suffix in CHINESE_LOOKS:
            for name in CHINESE:
                print(reduced(plots.save(pictures[name], IMAGES / f"{name}{suffix}.png")))
            continue
        pictures |= {f"method-{name}": draw(look) for name, draw in METHOD_PICTURES.items()}
        for name, figure in pictures.items():
            print(reduced(plots.save(figure, IMAGES / f"{name}{suffix}.png")))
        print(
            reduced(
                plots.save(
                    plots.contact_sheet(drawn, look), IMAGES / f"figures{suffix}.png", dpi=80
                )
            )
        )


def draw_further(run: Path, folder: Path) -> None:
    """Write the loss of a pretrained model by position, from the rows of a run, on light and dark
    paper.
    """
    measured, facts = read_study(run)
    shown = [row for row in measured if row["factor"] == MULTIPLE]
    for suffix, look in (LOOKS | CHINESE_LOOKS).items():
        print(reduced(plots.save(picture(shown, facts, look), folder / f"further{suffix}.png")))


def draw_tuned(runs: dict[Path, str], folder: Path) -> None:
    """Write which of the pass keys far away each trained model finds, on light and dark paper;
    `runs` has a text for each.
    """
    found: dict[str, list[float]] = {}
    for run, said in runs.items():
        keys = [row for row in read_study(run)[0] if row["metric"] == "found"]
        far = max(row["length"] for row in keys)
        found |= {
            f"{row['method']}, {row['objective']}{said}": row["values"]
            for row in keys
            if row["length"] == far
        }
    for suffix, look in LOOKS.items():
        print(reduced(plots.save(keys_by_place(found, look), folder / f"tuned{suffix}.png")))


def keys_by_place(found: dict[str, list[float]], look: Look) -> Any:
    """Return a figure with a line for each model: a mark for each pass key, from the start of the
    text to its end.
    """
    figure, (ax,) = plots.blank(look, 8.0, 1.2 + 0.35 * len(found))
    for line, values in enumerate(found.values()):
        for kind, colour, mark in ((1, look.colour(0), "o"), (0, look.colour(1), "x")):
            places = [
                place / (len(values) - 1) for place, value in enumerate(values) if value == kind
            ]
            ax.plot(
                places, [line] * len(places), mark, color=colour, markersize=7, markeredgewidth=2
            )
    ax.set_yticks(
        range(len(found)),
        [f"{name}: {sum(values):.0f} of {len(values)}" for name, values in found.items()],
    )
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["start", "25 %", "50 %", "75 %", "end"])
    ax.invert_yaxis()
    plots.label_axes(
        ax, look, title="Pass keys found (o) and missed (x)", x="place of the key in the text"
    )
    return plots.finish(figure, look)


def reduced(path: Path) -> Path:
    """Reduce a picture to 128 colours, a fifth of the bytes; maximum coverage keeps the colours of
    the lines.
    """
    picture = (
        Image.open(path)
        .convert("RGB")
        .quantize(128, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    )
    picture.save(path, optimize=True)
    return path


if __name__ == "__main__":
    main()
