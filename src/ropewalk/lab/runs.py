"""Build the model, the data and the trainer that a preset describes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ropewalk.errors import RopeError, choice, integer, number
from ropewalk.lab.batches import Batches, MaskedBatches, MixedBatches, TaskBatches, TextBatches
from ropewalk.lab.corpus import open_corpus
from ropewalk.lab.distributed import Parallel
from ropewalk.lab.matching import TripletBatches, read_triplets, split_triplets
from ropewalk.lab.objectives import OBJECTIVES
from ropewalk.lab.settings import Preset, Settings, check_names
from ropewalk.lab.text_tasks import TASKS
from ropewalk.lab.tokenizer import Tokenizer, open_tokenizer
from ropewalk.lab.trainer import Trainer
from ropewalk.models import Decoder, DecoderConfig, RoFormer, RoFormerConfig

#: kind -> (config, model); the fields of the config are the names in the preset's model table
MODELS: dict[str, tuple[Any, Callable[[Any], nn.Module]]] = {
    "decoder": (DecoderConfig, Decoder),
    "roformer": (RoFormerConfig, RoFormer),
}
#: layers, or experts, that a model may have; more would be a typing error
MOST_LAYERS = 10_000
#: the model head that a RoFormer needs for each objective
_ROFORMER_HEADS = {"masked": "masked_lm", "causal": "causal_lm", "pairs": "classification", "triplets": "similarity"}


@dataclass(frozen=True)
class Data:
    """The `data` table of a preset.

    source     a name from SOURCES or a path; for pairs and triplets a file of JSON lines with A, B, C
    objective  a name from OBJECTIVES
    tokenizer  "bytes", or the path of a tokenizer.json
    field      the field of a JSON line that holds its text
    documents  whether attention is limited to the token's own document
    task       a name from TASKS, used instead of text, or mixed into it if `share` is given
    masked     share of the tokens, or of the words with `whole_words`, that masked language modelling predicts
    cache      folder of the tokenized text; by default ROPEWALK_CACHE or the user's cache folder
    """

    source: str = "code"
    objective: str = "causal"
    tokenizer: str = "bytes"
    field: str = "text"
    documents: bool = False
    task: str | None = None
    share: float | None = None
    masked: float = 0.15
    whole_words: bool = False
    cache: str | None = None

    def __post_init__(self) -> None:
        choice("data.objective", self.objective, OBJECTIVES)
        if self.task is not None:
            choice("data.task", self.task, TASKS)
        if self.share is not None:
            number("data.share", self.share, above=0, high=1)
            if self.task is None:
                raise RopeError("data.share", "needs a task: set data.task", self.share)


def make_data(table: dict[str, Any]) -> Data:
    """Make Data from plain data; an unknown name is an error."""
    check_names("data", table, Data)
    return Data(**table)


def make_batches(data: Data, seed: int) -> Batches:
    """Make the training samples that a `data` table describes."""
    tokenizer: Tokenizer = open_tokenizer(data.tokenizer)
    if data.objective in TripletBatches.FORMS:
        train, _ = split_triplets(read_triplets(data.source))
        return TripletBatches(train, data.objective, tokenizer, seed)
    task = None if data.task is None else TaskBatches(data.task, tokenizer.vocab_size, seed)
    if task is not None and data.tokenizer != "bytes":
        raise RopeError("data.task", "needs the tokenizer bytes: tasks are made of bytes", data.task)
    if task is not None and data.share is None:
        return task
    corpus = open_corpus(data.source, tokenizer, cache=data.cache, field=data.field)
    text = TextBatches(corpus.train, corpus.vocab_size, corpus.fingerprint, seed, data.documents)
    if data.objective == "masked":
        return MaskedBatches(text, tokenizer, data.masked, data.whole_words, seed)
    return text if task is None else MixedBatches((text, task), (1 - data.share, data.share), seed)  # type: ignore[operator]


def make_model(table: dict[str, Any], data: Data, settings: Settings, vocab_size: int) -> nn.Module:
    """Make a new model; ranks and runs with the same seed get the same weights."""
    table = {"length": max(stage.length for stage in settings.stages), "vocab_size": vocab_size, **table}
    kind = choice("model.kind", table.pop("kind", "decoder"), MODELS)
    if kind == "roformer":
        table = {"head": _ROFORMER_HEADS[data.objective], "causal": data.objective == "causal", **table}
        table |= {"num_labels": 1} if data.objective == "pairs" else {}
    elif data.objective != "causal":
        raise RopeError("model.kind", f"must be roformer for the objective {data.objective}", kind)
    config, build = MODELS[kind]
    check_names("model", table, config)
    table = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
    for name in ("num_layers", "num_experts"):
        integer(f"model.{name}", table.get(name, 1), low=0, high=MOST_LAYERS)
    with torch.random.fork_rng(devices=[]):  # leave the caller's CPU generator unchanged
        torch.manual_seed(settings.seed)
        try:
            return build(config(**table))
        except (RuntimeError, MemoryError, OverflowError) as error:
            raise RopeError("model", f"must fit in memory ({' '.join(str(error).split())[:80]})", table) from None


def make_trainer(
    preset: Preset, folder: str | Path | None = None, *, parallel: Parallel | None = None, **options: Any
) -> Trainer:
    """Make the trainer of a preset, ready to `run()`; `options` are passed to Trainer."""
    data = make_data(preset.data)
    batches = make_batches(data, preset.train.seed)
    model = make_model(dict(preset.model), data, preset.train, batches.vocab_size)
    return Trainer(model, batches, OBJECTIVES[data.objective], preset.train, folder, parallel=parallel, **options)
