"""Build the model and the trainer that a preset describes, run it, and evaluate it on the held-out
parts.

Words of this module:
  preset  all settings of a run, in the tables `model`, `data` and `train`
  start   the folder of a checkpoint, with whose weights a training begins
  part    held-out samples, called "valid" or "test"
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ropewalk.errors import RopeError, choice, integer
from ropewalk.interop.checkpoint.atomic_folder import lock_folder
from ropewalk.models import Decoder, DecoderConfig, RoFormer, RoFormerConfig
from ropewalk_lab.checkpoint import checkpoints
from ropewalk_lab.data import Data, RunData, make_data, open_data
from ropewalk_lab.distributed import Parallel
from ropewalk_lab.evaluation import evaluating
from ropewalk_lab.held_out import Measured, measure
from ropewalk_lab.json_lines import write_atomically
from ropewalk_lab.model_folders import (
    ModelUse,
    check_start,
    find_model,
    fingerprint,
    load_start,
    stored_name,
    tokens_needed,
    write_model,
)
from ropewalk_lab.objectives import OBJECTIVES
from ropewalk_lab.settings import Preset, Settings, check_names
from ropewalk_lab.tokenizer import Tokenizer
from ropewalk_lab.trainer import Outcome, Trainer

#: kind -> (config, model); the fields of the config are the names in the preset's model table
MODELS: dict[str, tuple[Any, Callable[[Any], nn.Module]]] = {
    "decoder": (DecoderConfig, Decoder),
    "roformer": (RoFormerConfig, RoFormer),
}
#: upper bound for the layers, and for the experts, of a model; catches typos
MOST_LAYERS = 10_000
#: the model head that a RoFormer needs for each objective
_ROFORMER_HEADS = {
    "masked": "masked_lm",
    "causal": "causal_lm",
    "pairs": "classification",
    "classes": "classification",
    "triplets": "similarity",
}
RUN_FILE, RESULTS_FILE = "run.json", "results.json"


@dataclass(frozen=True)
class RunReport:
    """How a run ended, its results on the held-out parts, and the folder of its model; `reason`
    says why there is no model.
    """

    outcome: Outcome
    held_out: dict[str, Measured]
    model: Path | None = None
    reason: str = ""


def make_model(
    table: dict[str, Any], data: Data, settings: Settings, vocab_size: int, num_classes: int = 2
) -> nn.Module:
    """Return a new model, or with `start` that of a checkpoint; ranks and runs with the same seed
    get the same weights.

    table        the `model` table of a preset: `kind` or `start`, and fields of the model's config;
                 `start` is removed from it
    data         its objective decides which head the model has
    settings     of the training; they give the seed and the longest sequence
    vocab_size   tokens of the vocabulary
    num_classes  labels of a model that classifies texts
    """
    head = _ROFORMER_HEADS[data.objective]
    # a model that scores pairs of texts has one output, one that classifies a text has one for each
    # class
    labels = {"pairs": {"num_labels": 1}, "classes": {"num_labels": num_classes}}.get(
        data.objective, {}
    )
    with torch.random.fork_rng(devices=[]):  # leave the caller's CPU generator unchanged
        torch.manual_seed(settings.seed)
        if "start" in table:
            return load_start(table.pop("start"), head, **labels, **table)
        table = {"length": longest(settings), "vocab_size": vocab_size, **table}
        kind = choice("model.kind", table.pop("kind", "decoder"), MODELS)
        if kind == "roformer":
            table = {"head": head, "causal": data.objective == "causal", **table, **labels}
        elif data.objective != "causal":
            raise RopeError(
                "model.kind", f"must be roformer for the objective {data.objective}", kind
            )
        config, build = MODELS[kind]
        check_names("model", table, config)
        table = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in table.items()
        }
        for name in ("num_layers", "num_experts"):
            integer(f"model.{name}", table.get(name, 1), low=0, high=MOST_LAYERS)
        try:
            return build(config(**table))
        except (RuntimeError, MemoryError, OverflowError) as error:
            raise RopeError(
                "model", f"must fit in memory ({' '.join(str(error).split())[:80]})", table
            ) from None


def longest(settings: Settings) -> int:
    """Return the longest rows of a training; the held-out part is evaluated at this length."""
    return max(stage.length for stage in settings.stages)


class HeldOut:
    """The held-out parts of a run; calling it evaluates the part "valid", for the log, and returns
    {} if there is none.
    """

    def __init__(self, opened: RunData, data: Data, length: int) -> None:
        """Keep the data of the run as they were opened, the settings `data` that describe them, and
        the length of the rows to evaluate.
        """
        self.opened, self.data, self.length = opened, data, length
        self._latest: tuple[int, Measured] | None = None  # the step and result of "valid"

    def __call__(self, trainer: Trainer) -> dict[str, Any]:
        """Return the results on the part "valid", for the trainer's log; {} if there is none."""
        return (
            {"valid": self.measure(trainer, "valid").numbers()}
            if "valid" in self.opened.parts
            else {}
        )

    def measure(self, trainer: Trainer, name: str, progress: bool = False) -> Measured:
        """Return loss and accuracy on the part `name` at the trainer's step; every rank must call
        this.
        """
        if name == "valid" and self._latest is not None and self._latest[0] == trainer.step:
            return self._latest[1]  # measured already, during the training
        title = f"evaluate {name}" if progress else ""
        result = measure(
            trainer.predict,
            self.opened.parts[name],
            self.data.objective,
            self.length,
            trainer.parallel,
            title,
        )
        if name == "valid":
            self._latest = trainer.step, result
        return result


def make_trainer(
    preset: Preset,
    folder: str | Path | None = None,
    *,
    parallel: Parallel | None = None,
    **options: Any,
) -> Trainer:
    """Return the trainer of a preset, ready to `run()`.

    preset    the data, the model and the schedule. A model with the key "start" begins with the
              weights of that checkpoint; its tokenizer, length and objective must fit the data
    folder    where the run is stored; a folder with a run of another model is refused
    parallel  the ranks that train together; None: this process alone
    options   passed to Trainer; `evaluate` replaces the evaluation on held-out data
    """
    data, length = make_data(preset.data), longest(preset.train)
    opened = open_data(data, preset.train.seed, length)
    model = make_model(
        dict(preset.model), data, preset.train, opened.train.vocab_size, len(opened.classes)
    )
    if "start" in preset.model:
        # only texts with classes are examples; each may have one text or two
        examples = getattr(opened.train, "examples", ())
        two_texts = data.objective == "pairs" or any(
            example.second is not None for example in examples
        )
        check_start(
            model, opened.tokenizer, length, preset.model["start"], data.objective, two_texts
        )
    else:
        _check_vocabulary(model, opened.tokenizer, data.objective)
    if folder is not None and (parallel is None or parallel.first):
        _check_model(Path(folder), preset.model)
    options = {"evaluate": HeldOut(opened, data, length), **options}
    return Trainer(
        model,
        opened.train,
        OBJECTIVES[data.objective],
        preset.train,
        folder,
        parallel=parallel,
        **options,
    )


def _check_vocabulary(model: Any, tokenizer: Tokenizer, objective: str) -> None:
    """Raise an error if a new model has a smaller vocabulary than `tokens_needed` by the tokenizer
    for this objective.
    """
    least = tokens_needed(tokenizer, objective)
    if model.config.vocab_size < least:
        rule = f"must be at least {least}, the tokens of {tokenizer.name}; it can be left out"
        raise RopeError("model.vocab_size", rule, model.config.vocab_size)


def _check_model(folder: Path, table: dict[str, Any]) -> None:
    """Raise an error if the folder has checkpoints of another model, if its folder `model` was
    written by no run, or if `start` lies in that folder; else record this model in RUN_FILE.

    table  the `model` table of the preset; its `start` is recorded as a hash

    Models are compared here, because a checkpoint of another model loads without an error if its
    weights have the same shapes.
    """
    written = folder / "model"  # the trained model replaces this folder
    if "start" in table and find_model(table["start"]).resolve().is_relative_to(written.resolve()):
        raise RopeError(
            "folder",
            f"must not be that of the start, because the run replaces {written}",
            str(folder),
        )
    if written.exists() and not (folder / RUN_FILE).exists():
        rule = (
            f"must be new or that of a run, because the run replaces {written}, which no run "
            "wrote; use a new folder"
        )
        raise RopeError("folder", rule, str(folder))
    described = {**table, "start": fingerprint(table["start"])} if "start" in table else table
    model = json.loads(json.dumps(described))  # as it is read back: tuples become lists
    path = folder / RUN_FILE
    # without checkpoints the run starts anew, and may be of another model
    saved = _saved_model(path) if path.exists() and checkpoints(folder) else model
    if changed := {
        name: (saved.get(name), model.get(name))
        for name in saved | model
        if saved.get(name) != model.get(name)
    }:
        raise RopeError(
            "model",
            f"must be that of the run in {folder}; use a new folder for another model",
            changed,
        )
    write_atomically(path, json.dumps({"model": model}, indent=2))


def _saved_model(path: Path) -> dict[str, Any]:
    """Return the model settings that a run recorded in the file `path`; raise an error if it has
    none.
    """
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))["model"]
    except (ValueError, TypeError, LookupError):
        saved = None
    if not isinstance(saved, dict):
        raise RopeError(
            "folder",
            f"must have a complete {RUN_FILE}, which says what the run trains; use a new folder",
            str(path),
        )
    return saved


def run_preset(
    preset: Preset,
    folder: Path,
    parallel: Parallel,
    *,
    tensorboard: bool = False,
    progress: bool = True,
) -> RunReport:
    """Train the model of a preset, evaluate it on the held-out parts, and write it to the folder
    `model` of the run.

    Every rank must call this. A run that was stopped has no results at the end, and its model is
    not written, nor is a model that transformers does not have.

    folder       where the run is stored; no other run may use it meanwhile
    parallel     the ranks that train together
    tensorboard  also write a log for TensorBoard
    progress     show a progress bar on the first rank
    """
    with _only_run(folder) if parallel.first else nullcontext():
        return _run_preset(preset, folder, parallel, tensorboard, progress)


@contextmanager
def _only_run(folder: Path) -> Iterator[None]:
    """Context manager that refuses a second run in a folder while a first is going: both would
    write one log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = lock_folder(folder)
    if lock is None:
        raise RopeError(
            "folder",
            "must not be that of a run that is still going; wait for it, or use a new folder",
            str(folder),
        )
    try:
        yield
    finally:
        os.close(lock)
        with suppress(OSError):
            folder.rmdir()  # only an empty folder can be removed: that of a run that was refused


def _run_preset(
    preset: Preset, folder: Path, parallel: Parallel, tensorboard: bool, progress: bool
) -> RunReport:
    """Do the work of `run_preset` in a folder that no other run uses."""
    trainer = make_trainer(
        preset, folder, parallel=parallel, tensorboard=tensorboard, progress=progress
    )
    outcome = trainer.run()
    if outcome.stopped:
        return RunReport(
            outcome, {}, reason="the training was stopped; run the same command to continue it"
        )
    held_out: HeldOut = trainer.evaluate  # type: ignore[assignment]  # make_trainer passes one
    opened, data = held_out.opened, held_out.data
    with evaluating(trainer.wrapped):
        results = {name: held_out.measure(trainer, name, progress) for name in opened.parts}
    use = ModelUse(
        data.objective, held_out.length, stored_name(opened.tokenizer), opened.classes, data.columns
    )
    model, reason = folder / "model", ""
    try:
        write_model(trainer, model, opened.tokenizer, use)
    except RopeError as error:  # transformers has no such model
        model, reason = None, str(error)
    if parallel.first:
        numbers = {
            "step": outcome.step,
            **{name: result.numbers() for name, result in results.items()},
        }
        write_atomically(folder / RESULTS_FILE, json.dumps(numbers, indent=2))
    parallel.wait()  # no rank leaves while the first still writes
    return RunReport(outcome, results, model, reason)
