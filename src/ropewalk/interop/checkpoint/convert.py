"""A checkpoint folder from one pair layout to the other: tensor by tensor, and whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError, choice
from ropewalk.interop.checkpoint.atomic_folder import atomic_folder
from ropewalk.interop.checkpoint.rules import Rule, find_rules
from ropewalk.interop.checkpoint.safetensors_file import write_file
from ropewalk.interop.checkpoint.shards import Folder, open_folder, stays_inside, write_json
from ropewalk.interop.config import file as config_file
from ropewalk.interop.config.families import FAMILIES
from ropewalk.spec import LAYOUTS

#: other forms of the same weights, which would keep the old layout
WEIGHTS = (".safetensors", ".bin", ".pth", ".pt", ".gguf", ".onnx", ".h5", ".msgpack", ".npz", ".ckpt")


@dataclass(frozen=True)
class Conversion:
    """What a conversion does, or would do: each tensor that changes and its role, and what is copied or left out."""

    source_layout: str
    target_layout: str
    converted: dict[str, str]
    copied: tuple[str, ...]
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    bytes: int
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "from": self.source_layout, "to": self.target_layout, "converted": dict(self.converted),
            "copied_tensors": len(self.copied), "files": list(self.files), "left_out": list(self.left_out),
            "bytes": self.bytes, "warnings": list(self.warnings),
        }  # fmt: skip


def convert_checkpoint(
    source_folder: str | os.PathLike[str],
    target_folder: str | os.PathLike[str] | None,
    source_layout: str,
    target_layout: str,
    *,
    config: Any = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Conversion:
    """Write `target_folder` as `source_folder` with the rows of q and k moved from one pair layout to the other.

    target_folder  must not exist; it appears when all is written, so a killed run leaves nothing that looks whole. None
                   plans and writes nothing
    config         where the sizes come from, if not from the folder's config.json: an adapter needs that of its base
    progress       called with the bytes of each tensor as it is written

    Shards, index and headers stay as they are, byte for byte, and so do all other tensors; there and back gives the
    same files. One piece of a tensor is in memory at a time.
    """
    choice("source_layout", source_layout, LAYOUTS)
    choice("target_layout", target_layout, LAYOUTS)
    if source_layout == target_layout:
        raise RopeError("target_layout", "must differ from source_layout", target_layout)
    folder = open_folder(source_folder)
    known = read_config(folder, config)
    rules = find_rules(folder, known)
    small, left_out = _other_files(folder)
    plan = Conversion(
        source_layout, target_layout, {key: rule.role for key, rule in rules.items()},
        tuple(key for key in folder.keys if key not in rules), tuple(sorted((*folder.shards, *small))), tuple(left_out),
        sum(map(folder.bytes, folder.keys)), _warnings(known, target_layout),
    )  # fmt: skip
    if target_folder is not None:
        _refuse_nested(folder.path, Path(target_folder))
        _write(folder, Path(target_folder), rules, small, plan, progress)
    return plan


def read_config(folder: Folder, config: Any = None) -> Mapping[str, Any]:
    """The config that gives a folder's sizes: the one given, config.json, or params.json of Meta's and Mistral's folders."""
    if config is not None:
        return config_file.load(config)
    for name in ("config.json", "params.json"):
        if (folder.path / name).is_file():
            return config_file.read(folder.path / name)
    hint = "; an adapter needs the config of its base" if (folder.path / "adapter_config.json").is_file() else ""
    raise RopeError("config", f"must be given, or stand in the folder as config.json{hint}", str(folder.path))


def _write(
    folder: Folder, target: Path, rules: dict[str, Rule], small: list[str], plan: Conversion, progress: Callable[[int], None]
) -> None:
    def made(key: str):
        rule = rules.get(key)
        yield from folder.pieces(key) if rule is None else rule.convert(folder, key, plan.source_layout, plan.target_layout)
        progress(folder.bytes(key))

    with atomic_folder(target) as partial:
        for name, header in folder.shards.items():
            write_file(partial / name, header, made)
        for name in small:
            flagged = _with_flag(folder, name, plan.target_layout)
            if flagged is None:
                _copy(folder.path / name, partial / name)
            else:
                write_json(partial / name, flagged)


def _with_flag(folder: Folder, name: str, layout: str) -> dict[str, Any] | None:
    """The config with `rope_interleave` set, for the families whose code reads it; None: nothing to set."""
    if name != "config.json" or not _has_flag(folder.config):
        return None
    return {**folder.config, "rope_interleave": layout == "interleaved"}


def _has_flag(config: Mapping[str, Any]) -> bool:
    family = FAMILIES.get(str(config.get("model_type")))
    return family is not None and family.has_interleave_flag


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as read, target.open("xb") as write:
        shutil.copyfileobj(read, write)
        write.flush()
        os.fsync(write.fileno())


def _other_files(folder: Folder) -> tuple[list[str], list[str]]:
    """Files to copy beside the shards, and what is not copied."""
    small, left_out = [], []
    for entry in sorted(folder.path.iterdir()):
        if entry.name in folder.shards:
            continue
        plain = entry.is_file() and stays_inside(entry) and entry.suffix not in WEIGHTS
        (small if plain else left_out).append(entry.name)
    return small, left_out


def _warnings(config: Mapping[str, Any], target: str) -> tuple[str, ...]:
    text = config_file.text_part(config)
    family = FAMILIES.get(str(text.get("model_type")))
    if family is None or _has_flag(config) or family.layout == target:
        return ()
    return (f"the code of {text['model_type']} in transformers pairs {family.layout}: it will not run the converted weights",)


def _refuse_nested(source: Path, target: Path) -> None:
    inside, outside = source.resolve(), target.resolve()
    if inside == outside or inside in outside.parents or outside in inside.parents:
        raise RopeError("target_folder", "must lie outside the source folder, and not around it", str(target))
