"""Model folders: start from the folder of a model, and write the model of a run as a Hugging Face
folder with its tokenizer.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ropewalk.errors import RopeError, integer
from ropewalk.interop.checkpoint.safetensors_file import parse_object
from ropewalk.interop.checkpoint.shards import open_folder
from ropewalk.models import RoFormer, RoFormerConfig, load, migrate, save
from ropewalk.models.migrate import apply_freeze
from ropewalk_lab import checkpoint
from ropewalk_lab.json_lines import write_atomically
from ropewalk_lab.subwords import Subwords
from ropewalk_lab.tokenizer import TOKENIZER_FILES, Tokenizer
from ropewalk_lab.trainer import Trainer

#: beside config.json: what the model was trained for
USE_FILE = "ropewalk.json"


@dataclass(frozen=True)
class ModelUse:
    """What a model was trained for: the objective, the length of its rows, its tokenizer, the
    classes of its targets, and the columns of its training file (empty: those of GLUE).
    """

    objective: str
    length: int
    tokenizer: str  # "bytes", or the name of a file in the folder
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


def find_model(folder: str | Path, name: str = "start") -> Path:
    """Return the folder of a checkpoint: `folder` itself, or the folder `model` that a finished
    training wrote into it. Raise an error if it is no folder, or that of an unfinished training.

    name  what the caller calls the folder, for error messages
    """
    # a preset may give a value of any type
    path = Path(folder) if isinstance(folder, str | Path) else None
    if path is None or not path.is_dir():
        rule = "must be the folder of a checkpoint, which holds config.json and safetensors files"
        raise RopeError(name, rule, folder if path is None else str(path))
    if (path / "model" / "config.json").is_file():
        return path / "model"
    if not (path / "config.json").exists() and checkpoint.checkpoints(path):
        rule = (
            "must be a training that has finished; run its command again, which writes the folder "
            "`model` at the end"
        )
        raise RopeError(name, rule, str(path))
    return path


def find_tokenizer(start: str | Path) -> str:
    """Return the tokenizer of a model folder: the path of a file in it, or "bytes" if its model was
    trained on bytes; raise an error if there is neither.
    """
    folder = find_model(start)
    files = [str(folder / name) for name in TOKENIZER_FILES if (folder / name).is_file()]
    if files:
        return files[0]
    if (folder / USE_FILE).is_file() and read_use(folder).tokenizer == "bytes":
        return "bytes"
    rule = (
        f"must be given, because {folder} has no {' or '.join(TOKENIZER_FILES)}: a path, or bytes"
    )
    raise RopeError("tokenizer", rule, None)


def read_use(folder: Path) -> ModelUse:
    """Return the objective, length, tokenizer, classes and columns that the model in a folder was
    trained with; raise an error if the folder has no such record, or one with other contents.
    """
    path = folder / USE_FILE
    if not path.is_file():
        raise RopeError(
            "model", f"must be a folder that a training wrote, with {USE_FILE} in it", str(folder)
        )
    table = parse_object(path.read_bytes(), USE_FILE)
    classes, columns = table.get("classes", []), table.get("columns", [])
    unknown = table.keys() - {field.name for field in fields(ModelUse)}
    has_texts = isinstance(table.get("objective"), str) and isinstance(table.get("tokenizer"), str)
    if unknown or not has_texts or not _is_list_of_texts(classes) or not _is_list_of_texts(columns):
        rule = (
            "must have the objective, the tokenizer and the length of a training, and the lists "
            "classes and columns"
        )
        raise RopeError(USE_FILE, rule, table)
    length = integer("length", table.get("length"), low=1)
    return ModelUse(table["objective"], length, table["tokenizer"], tuple(classes), tuple(columns))


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def fingerprint(start: str | Path) -> str:
    """Return a hash (sha256) of the config and the weight files of a checkpoint."""
    source = open_folder(find_model(start))
    digest = hashlib.sha256((source.path / "config.json").read_bytes())
    for name in source.shards:
        with (source.path / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def load_start(
    start: str | Path,
    head: str,
    *,
    num_labels: int | None = None,
    freeze: str = "none",
    **changes: Any,
) -> nn.Module:
    """Return the model of a checkpoint in float32; the output layer of a RoFormer or BERT is
    replaced by a new one if it is not of the kind `head`, or has another number of outputs.

    num_labels  the number of outputs of the head
    freeze      a policy from FREEZES: which weights are not trained
    changes     further fields of its config; another `encoding` replaces the positional weights
    """
    source = load(find_model(start), dtype=torch.float32)
    if isinstance(source, RoFormer):  # or BERT, a RoFormer with learned position embeddings
        changes = {"head": head, "causal": head == "causal_lm", **changes}
        if num_labels is not None:
            changes["num_labels"] = num_labels
    elif head != "causal_lm":
        rule = f"must be the folder of a RoFormer or BERT, since a decoder has no head {head!r}"
        raise RopeError("start", rule, str(start))
    if "encoding" in changes:
        return migrate(source, changes.pop("encoding"), freeze=freeze, **changes).model
    unknown = sorted(set(changes) - set(vars(source.config)))
    if unknown:
        raise RopeError(
            "model",
            "must have only start, freeze and fields of the checkpoint's config as settings",
            unknown,
        )
    model = type(source)(replace(source.config, **changes))  # type: ignore[arg-type]  # a dataclass
    # weights of the checkpoint are used where the model has the same shape, those of the head only
    # if it is of the same kind
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    same_head = getattr(source.config, "head", None) == getattr(model.config, "head", None)
    usable = {
        name: value
        for name, value in source.state_dict().items()
        if same_head or not name.startswith("head.")
    }
    kept = {name: value for name, value in usable.items() if value.shape == shapes.get(name)}
    new = [name for name in shapes if name not in kept]
    if not_in_checkpoint := [name for name in new if not name.startswith("head.")]:
        raise RopeError(
            "model", "must keep the sizes of the checkpoint it starts from", not_in_checkpoint[:5]
        )
    model.load_state_dict(kept, strict=False)  # not strict: `kept` lacks the new weights
    apply_freeze(model, freeze, tuple(new))
    return model


def tokens_needed(tokenizer: Tokenizer, objective: str) -> int:
    """Return how many tokens the vocabulary of a model must have for a tokenizer: those that occur
    in text, and the mask if the objective is "masked".
    """
    return (
        max(tokenizer.num_text_ids, tokenizer.mask_id + 1)
        if objective == "masked"
        else tokenizer.num_text_ids
    )


def check_start(
    model: nn.Module, tokenizer: Tokenizer, length: int, start: str, objective: str, two_texts: bool
) -> None:
    """Raise an error if a model has a smaller vocabulary than the tokenizer needs; a RoFormer also
    if it has fewer positions than `length`, or fewer than two token types for two texts.

    start      the folder of the model, for error messages
    two_texts  whether rows have two texts
    """
    config: Any = model.config
    if (needed := tokens_needed(tokenizer, objective)) > config.vocab_size:
        rule = (
            f"must have at most {config.vocab_size} tokens, as the model in {start}; use the "
            "tokenizer it was trained with"
        )
        raise RopeError("tokenizer", rule, needed)
    if (
        isinstance(config, RoFormerConfig)
        and config.encoding_class.bounded
        and length > config.length
    ):
        rule = (
            f"must be at most {config.length}, the positions of the model in {start}; set "
            "model.encoding=rope to replace them"
        )
        raise RopeError("length", rule, length)
    if two_texts and isinstance(config, RoFormerConfig) and config.type_vocab_size < 2:
        raise RopeError(
            "start", "must have at least two token types, to mark the second of two texts", start
        )


def write_model(trainer: Trainer, folder: Path, tokenizer: Tokenizer, use: ModelUse) -> None:
    """Write the trained model to a folder, which is replaced, with its tokenizer and what it was
    trained for.

    Every rank must call this.
    """
    tensors = checkpoint.model_tensors(trainer.model)
    if not trainer.parallel.first:
        return
    unsharded = type(trainer.model)(trainer.model.config)  # type: ignore[call-arg]  # on the CPU
    checkpoint.load_model(unsharded, tensors)
    # name in the folder -> content, read first because the tokenizer may lie in the folder that is
    # replaced
    copies = {}
    if isinstance(tokenizer, Subwords):
        copies[use.tokenizer] = tokenizer.path.read_bytes()
        settings = tokenizer.path.with_name("tokenizer_config.json")
        # a vocabulary of words has its settings, such as lower case, in a file of its own
        if tokenizer.path.suffix == ".txt" and settings.is_file():
            copies[settings.name] = settings.read_bytes()
    if folder.exists():
        shutil.rmtree(folder)
    save(unsharded, folder)
    for name, content in copies.items():
        (folder / name).write_bytes(content)
    write_atomically(folder / USE_FILE, json.dumps(vars(use), indent=2, ensure_ascii=False))


def stored_name(tokenizer: Tokenizer) -> str:
    """Return the name of a tokenizer's file in a model folder, or "bytes"."""
    if not isinstance(tokenizer, Subwords):
        return tokenizer.name
    return "vocab.txt" if tokenizer.path.suffix == ".txt" else "tokenizer.json"
