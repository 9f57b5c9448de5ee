"""Fine-tuning: the preset for a checkpoint and labelled files, and the evaluation of a fine-tuned
model on a file. A preset has all settings of a run, in the tables `model`, `data` and `train`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ropewalk.errors import RopeError, choice, integer, number
from ropewalk.models import load
from ropewalk_lab.data import FILE_OBJECTIVES, file_objective, make_data, open_data, open_part
from ropewalk_lab.distributed import Parallel
from ropewalk_lab.evaluation import evaluating
from ropewalk_lab.held_out import Measured, measure
from ropewalk_lab.matching import LABELS
from ropewalk_lab.model_folders import find_model, find_tokenizer, read_use
from ropewalk_lab.objectives import logits_of
from ropewalk_lab.settings import Preset, make_preset
from ropewalk_lab.tokenizer import TOKENIZER_FILES, open_tokenizer

#: settings of BERT's fine-tuning, in the `train` table of the preset
TRAIN: dict[str, Any] = {
    "schedule": "linear",
    "final": 0.0,
    "weight_decay": 0.01,
    "betas": (0.9, 0.999),
    "clip": 1.0,
}
#: the published table to show beside results, by objective
PUBLISHED_FOR = {"pairs": "roformer-cail", "triplets": "roformer-cail"}


#: upper bounds for the tokens of a row and the passes over a file; they catch typos
MOST_TOKENS, MOST_EPOCHS = 1 << 20, 1_000_000


@dataclass(frozen=True)
class Files:
    """Labelled files: triplets as in CAIL2019-SCM, or texts with classes as in GLUE.

    valid    None: a tenth of `train` is held out
    columns  for texts with classes: the columns of the texts and of the label; empty: those of GLUE
    """

    train: Path
    valid: Path | None = None
    test: Path | None = None
    columns: tuple[str, ...] = ()

    def table(self) -> dict[str, Any]:
        """Return these files as a `data` table of a preset."""
        paths = {"source": self.train, "valid": self.valid, "test": self.test}
        table: dict[str, Any] = {
            name: str(path) for name, path in paths.items() if path is not None
        }
        if self.columns:
            table["columns"] = self.columns
        return {**table, "objective": file_objective(self.train)}


def finetuning_preset(
    start: str | Path,
    files: Files,
    *,
    tokenizer: str | None = None,
    length: int = 512,
    batch: int = 16,
    epochs: float = 3.0,
    learning_rate: float = 2e-5,
    changes: Iterable[str] = (),
) -> Preset:
    """Return the preset that fine-tunes a checkpoint on labelled files.

    start      a Hugging Face folder of a RoFormer or BERT, a folder of `rw.save`, or the folder of
               a finished training
    tokenizer  "bytes" or a path; by default the tokenizer in the folder of the checkpoint
    length     tokens of a row at most; longer texts are truncated
    batch      samples of one step
    epochs     passes over the training file; the learning rate rises for a tenth of the steps and
               falls linearly to 0
    changes    settings to replace in the preset, such as train.weight_decay=0.1
    """
    changes = list(changes)
    data = {**files.table(), "tokenizer": tokenizer or find_tokenizer(start)}
    stage = {
        "length": integer("length", length, low=1, high=MOST_TOKENS),
        "batch": integer("batch", batch, low=1),
        "steps": 1,
    }
    tables = {
        "model": {"start": str(start)},
        "data": data,
        "train": {**TRAIN, "learning_rate": learning_rate, "stages": [stage], "warmup": 0},
    }
    # the number of steps, 1 until here, follows from the size of the training file, which the
    # changes may replace
    chosen = make_data(make_preset(tables, changes).data)
    choice("data.objective", chosen.objective, FILE_OBJECTIVES)
    if files.columns and chosen.objective != "classes":
        rule = (
            f"must be left out for the objective {chosen.objective}, whose lines have the fields "
            "A, B, C and label"
        )
        raise RopeError("columns", rule, ",".join(files.columns))
    # the data of these objectives always have a size
    size: int = open_data(chosen, 0, length).size  # type: ignore[assignment]
    steps = math.ceil(number("epochs", epochs, above=0, high=MOST_EPOCHS) * size / batch)
    stage["steps"] = steps  # `tables` holds this stage
    tables["train"] |= {"warmup": steps // 10, "evaluate_every": math.ceil(size / batch)}
    return make_preset(tables, changes)


def evaluate_file(
    model: str | Path,
    path: str | Path,
    *,
    length: int | None = None,
    device: str = "cpu",
    progress: bool = False,
) -> tuple[Measured, tuple[str, ...]]:
    """Return the loss and accuracy of a fine-tuned model on a labelled file, and the name of the
    predicted class of each line.

    model     a folder that a training wrote
    length    the rows are truncated to this length, by default that of the training
    progress  whether to show a progress bar
    """
    folder = find_model(model, "model")
    use = read_use(folder)  # what the model was trained for
    objective = choice("objective", use.objective, FILE_OBJECTIVES)
    # only a file of these names in the folder, never a path to somewhere else
    choice("tokenizer", use.tokenizer, ("bytes", *TOKENIZER_FILES))
    tokenizer = open_tokenizer("bytes" if use.tokenizer == "bytes" else folder / use.tokenizer)
    classes = use.classes if objective == "classes" else LABELS
    part = open_part(path, objective, use.columns, classes, tokenizer)
    loaded = load(folder, dtype=torch.float32).to(device)
    outputs = getattr(loaded.config, "num_labels", None)
    if objective == "classes" and outputs != len(classes):
        raise RopeError(
            "model", f"must have an output for each of its {len(classes)} classes", outputs
        )
    length = integer("length", use.length if length is None else length, low=1, high=MOST_TOKENS)
    with evaluating(loaded):
        predict = lambda tokens, **keywords: logits_of(loaded(tokens, **keywords))  # noqa: E731
        title = f"evaluate {Path(path).name}" if progress else ""
        result = measure(
            predict, part, objective, length, Parallel(device=torch.device(device)), title
        )
    return result, tuple(classes[chosen] for chosen in result.choices)
