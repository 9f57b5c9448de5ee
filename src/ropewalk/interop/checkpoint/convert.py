"""Convert a checkpoint folder from one pair layout to the other, tensor by tensor and atomically.

Words of this module:
  rule   how the rows of one tensor are converted; a tensor without a rule is copied
  shard  a safetensors file of the folder
  flag   the config key rope_interleave, by which the code of some families chooses the layout
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.config import file as config_file
from ropewalk.config.families import families
from ropewalk.errors import RopeError, choice
from ropewalk.interop.checkpoint.atomic_folder import atomic_folder
from ropewalk.interop.checkpoint.layout_record import (
    RECORD_FILE,
    reads_interleave_flag,
    record_of,
    stated_layout,
    with_interleave_flag,
)
from ropewalk.interop.checkpoint.safetensors_file import write_file
from ropewalk.interop.checkpoint.shards import Folder, open_folder, stays_inside, write_json
from ropewalk.interop.checkpoint.tensor_rules import (
    TensorRule,
    check_complete,
    find_rules,
    read_config,
)
from ropewalk.spec import LAYOUTS

#: weights in other formats, or in files the index does not list; not copied, because they would
#: keep the old layout
WEIGHT_SUFFIXES = (
    ".safetensors",
    ".bin",
    ".pth",
    ".pt",
    ".gguf",
    ".onnx",
    ".h5",
    ".msgpack",
    ".npz",
    ".ckpt",
)


@dataclass(frozen=True)
class Conversion:
    """What a conversion does, or would do.

    converted  {name of a tensor: its role, such as "q"}
    copied     names of the tensors that stay the same
    files      names of the files in the new folder; `left_out`: files and folders that are not
               copied
    bytes      size of all tensors
    warnings   texts, such as that transformers cannot run the new layout
    """

    source_layout: str
    target_layout: str
    converted: dict[str, str]
    copied: tuple[str, ...]
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    bytes: int
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        return {
            "from": self.source_layout,
            "to": self.target_layout,
            "converted": dict(self.converted),
            "copied_tensors": len(self.copied),
            "files": list(self.files),
            "left_out": list(self.left_out),
            "bytes": self.bytes,
            "warnings": list(self.warnings),
        }


def convert_checkpoint(
    source_folder: str | os.PathLike[str],
    target_folder: str | os.PathLike[str] | None,
    source_layout: str,
    target_layout: str,
    *,
    config: Any = None,
    progress: Callable[[int], None] = lambda size: None,
) -> Conversion:
    """Copy a checkpoint folder, convert the rows of q and k from one pair layout to the other, and
    return the report.

    target_folder  a folder that is empty or does not exist yet; it appears only when everything is
                   written. None: only report what would be done
    config         the config with the model's sizes, in place of the folder's config.json; an
                   adapter needs the config of its base model
    progress       called after each tensor with the number of its bytes

    All other tensors, the shard names, the index and the headers stay the same byte for byte, so
    converting back restores the original weights. Only one piece of a tensor is in memory at a
    time. The new layout is stated by the key rope_interleave, in configs of families that read it,
    else by the file pair_layout.json, unless it is the original one again. Raises an error that
    names the tensors if a layer is not understood.
    """
    choice("source_layout", source_layout, LAYOUTS)
    choice("target_layout", target_layout, LAYOUTS)
    if source_layout == target_layout:
        raise RopeError("target_layout", "must differ from source_layout", target_layout)
    folder = open_folder(source_folder)
    model_config = read_config(folder, config)
    stated = stated_layout(folder)
    if stated is not None and stated.layout != source_layout:
        raise RopeError(
            "source_layout",
            f"must be {stated.layout!r}, because {stated.source} says so",
            source_layout,
        )
    rules = find_rules(folder, model_config)
    check_complete(folder, model_config)
    small_files, left_out = _other_files(folder)
    new_files = [] if record_of(folder, source_layout, target_layout) is None else [RECORD_FILE]
    report = Conversion(
        source_layout,
        target_layout,
        converted={name: rule.role for name, rule in rules.items()},
        copied=tuple(name for name in folder.names if name not in rules),
        files=tuple(sorted((*folder.shards, *small_files, *new_files))),
        left_out=tuple(left_out),
        bytes=sum(map(folder.bytes, folder.names)),
        warnings=_warnings(model_config, target_layout),
    )
    if target_folder is not None:
        target = Path(target_folder)
        _refuse_nested(folder.path, target)
        _write(folder, target, rules, small_files, report, progress)
    return report


def _write(
    folder: Folder,
    target: Path,
    rules: dict[str, TensorRule],
    small_files: list[str],
    report: Conversion,
    progress: Callable[[int], None],
) -> None:
    """Write the converted shards, the other files and the record to `target`, which appears only
    when it is complete.

    small_files  the names of the files to copy beside the shards
    progress     called after each tensor with the number of its bytes
    """

    def pieces_of(name: str):
        """Yield the tensor `name` in pieces, converted if it has a rule, and report its bytes as
        done.
        """
        if name in rules:
            yield from rules[name].convert(folder, name, report.source_layout, report.target_layout)
        else:
            yield from folder.pieces(name)
        progress(folder.bytes(name))

    with atomic_folder(target) as partial:
        for file_name, header in folder.shards.items():
            write_file(partial / file_name, header, pieces_of)
        for file_name in small_files:
            if file_name == "config.json" and reads_interleave_flag(folder.config):
                write_json(
                    partial / file_name,
                    with_interleave_flag(folder.config, report.target_layout == "interleaved"),
                )
            else:
                _copy(folder.path / file_name, partial / file_name)
        record = record_of(folder, report.source_layout, report.target_layout)
        if record is not None:
            write_json(partial / RECORD_FILE, record)


def _copy(source: Path, target: Path) -> None:
    """Copy a file to a new one and wait until it is on disk."""
    with source.open("rb") as read, target.open("xb") as write:
        shutil.copyfileobj(read, write)
        write.flush()
        os.fsync(write.fileno())


def _other_files(folder: Folder) -> tuple[list[str], list[str]]:
    """Return the names of the files to copy beside the shards, and of the files and folders that
    are left out.
    """
    small_files, left_out = [], []
    for entry in sorted(folder.path.iterdir()):
        # the shards and the record are written anew
        if entry.name in (*folder.shards, RECORD_FILE):
            continue
        if entry.is_file() and stays_inside(entry) and entry.suffix not in WEIGHT_SUFFIXES:
            small_files.append(entry.name)
        else:
            left_out.append(entry.name)
    return small_files, left_out


def _warnings(config: Mapping[str, Any], target_layout: str) -> tuple[str, ...]:
    """Return a warning if the transformers code of this model cannot run the target layout. There
    is none if its code reads the flag, since it then runs both, or if the model_type is unknown.
    """
    model_type = str(config_file.text_part(config).get("model_type"))
    family = families().get(model_type)
    if family is None or reads_interleave_flag(config) or family.layout == target_layout:
        return ()
    return (
        f"the transformers code of {model_type} uses the {family.layout} layout and cannot run "
        "the converted weights",
    )


def _refuse_nested(source: Path, target: Path) -> None:
    """Raise an error if the target is the source folder, or one of the two is in the other."""
    source, resolved = source.resolve(), target.resolve()
    if source == resolved or source in resolved.parents or resolved in source.parents:
        raise RopeError(
            "target_folder",
            "must not be the source folder, inside it, or a parent of it",
            str(target),
        )
