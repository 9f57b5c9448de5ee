"""Studies on a few kilobytes of text, and a way to start one in a process of its own."""

import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from lab_tiny import write_text
from torch.nn import functional as F

from ropewalk.interop.checkpoint.safetensors_file import read_header, read_rows
from ropewalk.models import Decoder, DecoderConfig
from ropewalk_lab.report import read_results
from ropewalk_lab.studies import STUDIES, Study, run_study

#: absent where the tests run on an installation
RESULTS = Path(__file__).parents[2] / "results" / "lab"


@cache
def committed_results():
    """Return the results of the committed runs, which take seconds to read; no test changes them."""
    return read_results(RESULTS)


#: settings that make a study's smoke preset smaller still
SMALLER = {
    "mlm_lengths": {"stages": [[16, 4, 6], [48, 4, 3], [8, 4, 4]]},
    "methods": {"methods": ["rope", "path", "dca"]},
}


def tiny(name: str, folder: Path, **settings) -> Study:
    """Return a study whose only preset, smoke, reads a small folder of text."""
    study = STUDIES[name]
    smoke = study.presets["smoke"] | SMALLER.get(name, {}) | settings
    if "changes" in smoke:
        text = write_text(folder / "text")
        smoke["changes"] = [
            *smoke["changes"],
            f"data.source={text}",
            f"data.cache={folder / 'cache'}",
        ]
    return replace(study, presets={"smoke": smoke})


def run_tiny(
    name: str, folder: Path, out: str = "out", workers: int = 1, figures: bool = False, **settings
) -> Path:
    """Run a tiny study and return its folder. Figures are drawn only with `figures`, because they
    take longer than all else.
    """
    with nullcontext() if figures else mock.patch("ropewalk_lab.studies.study.draw_figures"):
        return run_study(
            tiny(name, folder, **settings), "smoke", folder / out, workers=workers, quiet=True
        )


SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_layers": 2,
    "num_heads": 2,
}
#: with smaller initial weights, attention in hardly trained models would be nearly uniform, and
#: positions would not matter
SHARP = ["model.init_std=0.4"]


def saved_decoder(models: Path, name: str, encoding) -> Decoder:
    """Return the trained decoder of a study, built here and with the weights of its checkpoint."""
    (path,) = models.glob(f"{name}-*/step-*/model.safetensors")
    header = read_header(path)
    model = Decoder(DecoderConfig(vocab_size=264, encoding=encoding, length=32, **SIZES))
    missing = model.load_state_dict(
        {key: read_rows(path, header, key) for key in header.entries}, strict=False
    )
    assert not missing.unexpected_keys
    return model.eval()


def tail_losses(model: Decoder, windows: np.ndarray, length: int, tail: int) -> list[float]:
    """The mean loss of the last `tail` tokens of each window, token by token."""
    found = []
    for window in torch.from_numpy(windows.astype(np.int64)):
        seen = window[-(length + 1) :]
        with torch.no_grad():
            logits = model(seen[None, :-1])[0]
        losses = [
            -F.log_softmax(logits[t].double(), -1)[seen[t + 1]].item()
            for t in range(length - tail, length)
        ]
        found.append(sum(losses) / tail)
    return found


if __name__ == "__main__":
    run_tiny("base", Path(sys.argv[1]), sys.argv[2], bases=[100.0, 1000.0, 10000.0], seeds=1)
