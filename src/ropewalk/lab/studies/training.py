"""Models for studies: trained once for the same settings, kept, and shared by all studies that ask for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ropewalk.lab.batches import Batches
from ropewalk.lab.corpus import Corpus, open_corpus
from ropewalk.lab.distributed import Parallel
from ropewalk.lab.evaluation import scored
from ropewalk.lab.objectives import OBJECTIVES, Objective
from ropewalk.lab.runs import make_batches, make_data, make_model
from ropewalk.lab.settings import Preset, read_preset
from ropewalk.lab.studies.rows import Row, digest, row
from ropewalk.lab.studies.workshop import Place
from ropewalk.lab.trainer import Trainer
from ropewalk.models import Decoder

#: what studies change of the presets: matrices begin near 1 / sqrt(width), with which small models learn much faster in the few
#: steps there are, and embeddings at one (see `widen`); on a GPU, a dozen models in minutes, and a rate at which none diverges
CPU_CHANGES = ["model.init_std=0.05", "model.tie_embeddings=false"]
GPU_CHANGES = [
    "model.init_std=0.04", "model.tie_embeddings=false", "train.stages=[{length=256, batch=128, steps=600}]",
    "train.learning_rate=2e-3", "train.warmup=100", "train.save_every=1000",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Trained:
    """A model and what its training cost; seconds are those of the whole training, whenever it was done."""

    model: nn.Module
    steps: int
    loss: float
    seconds: float


def preset_of(name: str, changes: Sequence[str], seed: int, **model: Any) -> Preset:
    """A preset with changes, for one seed; `model` replaces keys of its model table, by values of any kind."""
    found = read_preset(name, [*changes, f"train.seed={seed}"])
    return replace(found, model={**found.model, **model})


def prepare(
    place: Place,
    name: str,
    preset: Preset,
    *,
    start: nn.Module | None = None,
    origin: str = "",
    batches: Batches | None = None,
    objective: Objective | None = None,
) -> Trainer:
    """A trainer in a folder of its own, which it shares with every run of the same settings and data.

    start      the model to go on from, whose weights are changed; `origin` says where they come from
    batches    the data, and `objective` the loss, where the preset's are not meant
    """
    data = make_data(preset.data)
    batches = make_batches(data, preset.train.seed) if batches is None else batches
    model = widen(make_model(dict(preset.model), data, preset.train, batches.vocab_size)) if start is None else start
    wanted = OBJECTIVES[data.objective] if objective is None else objective
    said = [preset.model, preset.data, preset.train.important(), origin, batches.fingerprint, wanted.__name__]
    folder = place.models / f"{name}-{digest(said)}"
    settings = replace(preset.train, keep=1)
    return Trainer(model, batches, wanted, settings, folder, parallel=Parallel(device=place.device), progress=False)


@torch.no_grad()
def widen(model: nn.Module) -> nn.Module:
    """Embeddings of a new decoder at a deviation of one, unless they make the logits too.

    A sinusoid of amplitude one would drown what is much smaller; Transformers multiply their embeddings for that reason.
    """
    if isinstance(model, Decoder) and model.lm_head is not None:
        model.embed_tokens.weight.div_(model.config.init_std)
    return model


def train(trainer: Trainer) -> Trained:
    """Train to the end, or take what is there; a training that is interrupted has saved itself and ends the study."""
    outcome = trainer.run()
    if outcome.stopped:
        raise KeyboardInterrupt
    told = trainer.log.rows()
    seconds = sum(line.get("seconds", 0.0) for line in told)
    trainer.model.eval()
    return Trained(trainer.model, outcome.step, outcome.loss or 0.0, seconds)


def trained(place: Place, name: str, preset: Preset, **options: Any) -> Trained:
    """The model of a preset; `options` as in `prepare`."""
    return train(prepare(place, name, preset, **options))


def corpus_of(preset: Preset) -> Corpus:
    """The text that a preset trains on."""
    data = make_data(preset.data)
    return open_corpus(data.source, cache=data.cache, field=data.field)


def length_of(preset: Preset) -> int:
    """The longest sequence that a preset trains on."""
    return max(stage.length for stage in preset.train.stages)


def held_out_windows(preset: Preset, count: int, longest: int) -> np.ndarray:
    """Windows of `longest` + 1 tokens, the same for every model and seed of a study."""
    return corpus_of(preset).valid.windows(count, longest + 1)


def measured(model: nn.Module, windows: np.ndarray, lengths: Sequence[int], tail: int, /, **what: Any) -> list[Row]:
    """Loss and accuracy of the same last tokens at each context length: two rows a length."""
    found = []
    for length in lengths:
        losses, hits = scored(model, windows[:, -(length + 1) :], tail)
        found.append(row("loss", losses.double().mean(1).numpy(), length=length, **what))
        found.append(row("accuracy", hits.double().mean(1).numpy(), length=length, **what))
    return found


def facts_of(preset: Preset) -> dict[str, Any]:
    """What a report says of a preset: settings and text, as plain data."""
    corpus = corpus_of(preset)
    table = json.loads(json.dumps({"model": preset.model, "data": preset.data, "train": asdict(preset.train)}, default=repr))
    return {**table, "corpus": corpus.facts}
