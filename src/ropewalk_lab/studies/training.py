"""Train models for studies; each set of settings is trained once, saved, and used by all studies
that need it.

Words of this module:
  preset     the tables `model`, `data` and `train` of a training preset
  changes    settings to replace in a preset, such as "train.warmup=9"
  workspace  the folder of trained models, which all studies share, and the device
  row        one measurement: a metric, a value for each window, and fields that say what was
             measured
  window     a piece of held-out text
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ropewalk.interop.checkpoint.atomic_folder import alone_in
from ropewalk.models import Decoder
from ropewalk.spec import RopeSpec
from ropewalk_lab.batches import Batches
from ropewalk_lab.corpus import Corpus, open_corpus
from ropewalk_lab.data import make_batches, make_data
from ropewalk_lab.distributed import Parallel
from ropewalk_lab.evaluation import tail_means
from ropewalk_lab.objectives import OBJECTIVES, Objective
from ropewalk_lab.runs import make_model
from ropewalk_lab.schedule import Stage
from ropewalk_lab.settings import Preset, read_preset
from ropewalk_lab.studies.jobs import Workspace
from ropewalk_lab.studies.rows import Row, digest, row
from ropewalk_lab.tokenizer import open_tokenizer
from ropewalk_lab.trainer import Trainer


def make_preset(name: str, changes: Sequence[str], seed: int, **model: Any) -> Preset:
    """Return a preset with changes, such as "train.warmup=9", and a seed; `model` replaces values
    of its model table.
    """
    preset = read_preset(name, [*changes, f"train.seed={seed}"])
    return replace(preset, model={**preset.model, **model})


def make_rope_preset(name: str, changes: Sequence[str], seed: int, **rope: Any) -> Preset:
    """Return a preset whose model has RoPE with the given fields of a RopeSpec, such as theta."""
    sizes = read_preset(name, changes).model
    head_dim = sizes.get("head_dim", sizes["hidden_size"] // sizes["num_heads"])
    return make_preset(name, changes, seed, encoding=RopeSpec(head_dim, **rope))


def fine_tuning(
    preset: Preset, length: int, batch: int, steps: int, rate: float, seed: int
) -> Preset:
    """Return a preset to train a model further, at another length and learning rate.

    The seed is changed so that the model does not see the windows of the first training in the same
    order again; `seed` is that of the first training. A step has `batch` rows of `length` tokens;
    the learning rate rises to `rate` over a quarter of the steps, but at most 10.
    """
    stages = (Stage(length, batch, steps),)
    train = replace(
        preset.train,
        stages=stages,
        learning_rate=rate,
        warmup=min(10, steps // 4),
        seed=seed + 1000,
    )
    return replace(preset, train=train)


def make_trainer(
    workspace: Workspace,
    name: str,
    preset: Preset,
    *,
    start: nn.Module | None = None,
    origin: str = "",
    change: Callable[[nn.Module], nn.Module] = lambda model: model,
    batches: Batches | None = None,
    objective: Objective | None = None,
) -> Trainer:
    """Return a trainer whose folder depends on its settings and data, so that the same training is
    run only once.

    name       what the name of the folder begins with
    start      the model to train, by default a new one
    origin     a text that identifies the weights of `start`, or what `change` does, for the hash
               at the end of the folder's name
    change     returns the model to train, made from `start` or the new model
    batches    the data, by default the data of the preset
    objective  the loss, by default the loss of the preset
    """
    data = make_data(preset.data)
    batches = make_batches(data, preset.train.seed) if batches is None else batches
    model = (
        scale_embeddings(make_model(dict(preset.model), data, preset.train, batches.vocab_size))
        if start is None
        else start
    )
    model = change(model)
    objective = OBJECTIVES[data.objective] if objective is None else objective
    identity = [
        preset.model,
        preset.data,
        preset.train.fixed(),
        origin,
        batches.fingerprint,
        objective.__name__,
    ]
    folder = workspace.models / f"{name}-{digest(identity)}"
    settings = replace(preset.train, keep=1)  # only the latest checkpoint
    return Trainer(
        model,
        batches,
        objective,
        settings,
        folder,
        parallel=Parallel(device=workspace.device),
        progress=False,
    )


@torch.no_grad()
def scale_embeddings(model: nn.Module) -> nn.Module:
    """Scale the embeddings of a new decoder to a standard deviation of 1, unless they are tied to
    the output, and return the model.

    Sinusoidal encodings have amplitude 1, much larger than the initial embeddings; Transformers
    scale them for that reason.
    """
    if isinstance(model, Decoder) and model.lm_head is not None:
        model.embed_tokens.weight.div_(model.config.init_std)
    return model


def train_or_load(workspace: Workspace, name: str, preset: Preset, **options: Any) -> Trainer:
    """Return a trainer after its last step, loaded if the training is complete; `options` are
    passed to `make_trainer`. A training that a signal stopped raises KeyboardInterrupt.
    """
    trainer = make_trainer(workspace, name, preset, **options)
    # another study may train the same model in this folder, so one process at a time (the trainer
    # of a study always has a folder)
    with alone_in(trainer.folder):  # type: ignore[arg-type]
        outcome = trainer.run()
    if outcome.stopped:
        raise KeyboardInterrupt  # the training has saved a checkpoint
    trainer.model.eval()
    return trainer


def corpus_of(preset: Preset) -> Corpus:
    """Return the text that a preset trains on."""
    data = make_data(preset.data)
    return open_corpus(
        data.source, open_tokenizer(data.tokenizer), cache=data.cache, field=data.field
    )


def trained_length(preset: Preset) -> int:
    """Return the longest sequence that a preset trains on."""
    return max(stage.length for stage in preset.train.stages)


def held_out_windows(preset: Preset, count: int, longest: int) -> np.ndarray:
    """Return windows [count, longest + 1] of token ids of held-out text, the same for every model
    and seed of a study.
    """
    return corpus_of(preset).valid.windows(count, longest + 1)


def loss_rows(
    model: nn.Module, windows: np.ndarray, lengths: Sequence[int], tail: int, /, **fields: Any
) -> list[Row]:
    """Return two rows for each context length, with one value per window: the loss and the accuracy
    of the last `tail` tokens, which are the same at every length.
    """
    rows = []
    for length in lengths:
        losses, hits = tail_means(model, windows, length, tail)
        rows += [
            row("loss", losses, length=length, **fields),
            row("accuracy", hits, length=length, **fields),
        ]
    return rows


def train_and_measure(
    workspace: Workspace,
    name: str,
    preset: Preset,
    multiples: Sequence[int],
    windows: int,
    /,
    **fields: Any,
) -> list[Row]:
    """Train or load the model of a preset; return rows with its loss and its accuracy at multiples
    of the trained length.

    name     what the name of the model's folder in the workspace begins with
    windows  how many texts, each of the largest length
    fields   further columns of each row, such as the seed
    """
    length = trained_length(preset)
    lengths = [length * multiple for multiple in multiples]
    model = train_or_load(workspace, name, preset).model
    # at every length the same tokens are measured: the last ones, as many as the trained length
    return loss_rows(
        model, held_out_windows(preset, windows, max(lengths)), lengths, length, **fields
    )


def preset_facts(name: str, changes: Sequence[str]) -> dict[str, Any]:
    """Return the settings and the corpus of a preset as plain data, for the report."""
    preset = make_preset(name, changes, 0)  # any seed will do: facts name the seeds of a study
    tables = json.loads(
        json.dumps(
            {"model": preset.model, "data": preset.data, "train": asdict(preset.train)},
            default=repr,
        )
    )
    return {**tables, "corpus": corpus_of(preset).facts}
