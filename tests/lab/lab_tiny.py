"""A text of a few kilobytes, a model of a few thousand weights, and settings of a few steps."""

import random
from pathlib import Path

import torch

from ropewalk.models import Decoder, DecoderConfig
from ropewalk_lab.batches import TextBatches
from ropewalk_lab.corpus import open_corpus
from ropewalk_lab.objectives import language
from ropewalk_lab.schedule import Stage
from ropewalk_lab.settings import Settings
from ropewalk_lab.trainer import Trainer

WORDS = (
    "the",
    "rope",
    "is",
    "twisted",
    "in",
    "a",
    "long",
    "straight",
    "lane",
    "where",
    "strands",
    "walk",
    "from",
    "wheels",
)


def write_text(folder: Path, files: int = 30) -> Path:
    """Write a folder of short files, all different, and return it."""
    if folder.exists():  # other ranks may be reading it
        return folder
    folder.mkdir(parents=True)
    for number in range(files):
        draw = random.Random(number)
        words = (draw.choice(WORDS) for _ in range(40 + 5 * number))
        (folder / f"file{number:02d}.txt").write_text(" ".join(words) + "\n")
    return folder


def tiny_corpus(folder: Path):
    return open_corpus(write_text(folder / "text"), cache=folder / "cache")


def tiny_batches(folder: Path, seed: int = 0) -> TextBatches:
    corpus = tiny_corpus(folder)
    return TextBatches(corpus.train, corpus.vocab_size, corpus.fingerprint, seed)


def tiny_model(encoding: str = "rope", dropout: float = 0.0, seed: int = 0) -> Decoder:
    """Return a seeded Decoder of two layers with a few thousand weights."""
    torch.manual_seed(seed)
    return Decoder(
        DecoderConfig(
            264,
            20,
            28,
            num_layers=2,
            num_heads=2,
            head_dim=10,
            encoding=encoding,
            dropout=dropout,
            length=16,
        )
    )


def tiny_settings(**changes) -> Settings:
    """Return settings of two stages with nine steps in all, with some changed."""
    stages = (Stage(12, 4, 5), Stage(16, 4, 4))
    chosen = {
        "stages": stages,
        "warmup": 2,
        "log_every": 4,
        "save_every": 3,
        "learning_rate": 1e-2,
    } | changes
    return Settings(**chosen)


def tiny_trainer(folder: Path, run: str | None = "run", **options) -> Trainer:
    """Return a trainer of a tiny model on a tiny text; `options` may replace each part."""
    settings = options.pop("settings", None) or tiny_settings()
    model = options.pop("model", None) or tiny_model()
    batches = options.pop("batches", None) or tiny_batches(folder)
    options = {"progress": False} | options
    return Trainer(
        model, batches, language, settings, None if run is None else folder / run, **options
    )


def losses(trainer: Trainer) -> list[float]:
    return [row["loss"] for row in trainer.log.rows() if "loss" in row]
