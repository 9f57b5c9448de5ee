"""A vocabulary of letters, checkpoints of a few thousand weights, and labelled files that a small
model can learn.
"""

import json
import random
from pathlib import Path

import torch

import ropewalk as rw
from ropewalk.models import RoFormer, RoFormerConfig

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh甲乙丙丁"]
SIZES = {
    "hidden_size": 24,
    "num_layers": 1,
    "num_heads": 2,
    "intermediate_size": 32,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}


def write_checkpoint(folder: Path, seed: int = 0, **changes) -> Path:
    """Save a RoFormer with random weights and its vocabulary into a folder, and return the folder."""
    torch.manual_seed(seed)
    rw.save(
        RoFormer(
            RoFormerConfig(**{"vocab_size": len(TOKENS), "head": "masked_lm", **SIZES, **changes})
        ),
        folder,
    )
    (folder / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    return folder


def triplet_lines(count: int, seed: int) -> list[dict]:
    """Return lines {A, B, C, label}: of B and C, the text nearer to A contains 甲 and the other 乙,
    so a model can score a text without reading A.
    """
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        a, near, far = (" ".join(draw.choices("abcdefgh", k=draw.randint(2, 5))) for _ in range(3))
        near, far, label = near + "甲", far + "乙", draw.choice("BC")
        lines.append(
            {
                "A": a,
                "B": near if label == "B" else far,
                "C": far if label == "B" else near,
                "label": label,
            }
        )
    return lines


def write_triplets(path: Path, count: int, seed: int = 0) -> Path:
    """Write triplets as JSON lines, and return the path."""
    path.write_text(
        "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in triplet_lines(count, seed)),
        encoding="utf-8",
    )
    return path


def write_classes(path: Path, count: int, seed: int = 0, classes: str = "甲乙丙") -> Path:
    """Write sentences with labels as TSV; the class of a sentence is its Chinese character."""
    draw = random.Random(seed)
    rows = ["sentence\tlabel"]
    for _ in range(count):
        kind = draw.choice(classes)
        letters = " ".join(draw.choices("abcdefgh", k=draw.randint(2, 5)))
        rows.append(f"{letters}{kind}\tkind {classes.index(kind)}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path
