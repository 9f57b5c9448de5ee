"""Studies on a few kilobytes of text, and a way to start one in a process of its own."""

import sys
from dataclasses import replace
from pathlib import Path

from lab_tiny import write_text

from ropewalk.lab.studies import STUDIES, Study, run_study

#: settings that make a study's smoke preset smaller still
SMALLER = {"mlm_lengths": {"stages": [[16, 4, 6], [48, 4, 3], [8, 4, 4]]}}


def tiny(name: str, folder: Path, **settings) -> Study:
    """A study whose smoke preset reads a small folder of text."""
    study = STUDIES[name]
    smoke = study.presets["smoke"] | SMALLER.get(name, {}) | settings
    if "changes" in smoke:
        text = write_text(folder / "text")
        smoke["changes"] = [*smoke["changes"], f"data.source={text}", f"data.cache={folder / 'cache'}"]
    return replace(study, presets={"smoke": smoke})


def run_tiny(name: str, folder: Path, out: str = "out", workers: int = 1, **settings) -> Path:
    return run_study(tiny(name, folder, **settings), "smoke", folder / out, workers=workers, quiet=True)


if __name__ == "__main__":
    run_tiny("base", Path(sys.argv[1]), sys.argv[2], bases=[100.0, 1000.0, 10000.0], seeds=1)
