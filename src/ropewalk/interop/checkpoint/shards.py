"""A checkpoint folder as untrusted data: config, index and safetensors shards, read lazily and written atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.errors import RopeError, integer
from ropewalk.interop.checkpoint.atomic_folder import atomic_folder
from ropewalk.interop.checkpoint.safetensors_file import (
    Header,
    build_header,
    parse_object,
    read_header,
    read_pieces,
    read_rows,
    write_file,
)
from ropewalk.interop.config import file as config_file

INDEX_SUFFIX = ".safetensors.index.json"
MAX_INDEX_BYTES = 32 << 20
MAX_SHARDS = 4096
#: (key, shape, dtype, a function that makes the tensor when its turn comes)
NewTensor = tuple[str, tuple[int, ...], torch.dtype, Callable[[], Tensor]]


@dataclass(frozen=True)
class Folder:
    """An open checkpoint folder: headers are read and checked, tensors are read when asked for."""

    path: Path
    #: file name -> its header, in the order of their names
    shards: dict[str, Header]
    #: tensor key -> file name
    files: dict[str, str]
    #: the index as it stands in its file; None: there is none
    index: dict[str, Any] | None
    index_name: str | None

    @property
    def keys(self) -> tuple[str, ...]:
        """Every tensor's key, shard by shard."""
        return tuple(self.files)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The object in config.json."""
        return config_file.read(self.path / "config.json")

    def shape(self, key: str) -> tuple[int, ...]:
        """The shape of a tensor, from its header."""
        return self._header(key).entries[key].shape

    def dtype(self, key: str) -> torch.dtype:
        """The dtype of a tensor, from its header."""
        return self._header(key).entries[key].dtype

    def bytes(self, key: str) -> int:
        """The bytes of a tensor on disk."""
        entry = self._header(key).entries[key]
        return entry.end - entry.begin

    def read(self, key: str) -> Tensor:
        """A tensor, on the CPU, in memory of its own."""
        header = self._header(key)
        return read_rows(self.path / self.files[key], header, key)

    def pieces(self, key: str, start: int = 0, stop: int | None = None, *, rows: int = 1) -> Iterator[Tensor]:
        """Rows start:stop of a tensor in pieces of whole groups of `rows` rows, one piece in memory at a time."""
        header = self._header(key)
        return read_pieces(self.path / self.files[key], header, key, start, stop, rows=rows)

    def expect(self, keys: Iterable[str], *, ignored: Callable[[str], bool] = lambda key: False) -> None:
        """Refuse, by name, keys that are missing and keys that nobody asked for."""
        wanted = dict.fromkeys(keys)
        missing = [key for key in wanted if key not in self.files]
        surplus = [key for key in self.files if key not in wanted and not ignored(key)]
        if missing or surplus:
            told = [f"{what} {_few(names)}" for what, names in (("lacks", missing), ("has surplus", surplus)) if names]
            raise RopeError(str(self.path), "must hold the tensors of its config: it " + ", and ".join(told), len(self.files))

    def _header(self, key: str) -> Header:
        if key not in self.files:
            raise RopeError("key", f"must be one of the {len(self.files)} tensors of {self.path}", key)
        return self.shards[self.files[key]]


def open_folder(path: str | os.PathLike[str]) -> Folder:
    """Open a folder of safetensors files, with or without an index; nothing but headers is read.

    With an index its files count and no others; without one every *.safetensors file does. Refused by name: a shard
    outside the folder, a shard or a tensor that is missing or not in the index, a tensor that two files hold, and
    anything a safetensors file may not be.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise RopeError("path", "must be a folder with safetensors files", str(path))
    index_name, index = _read_index(folder)
    names = sorted(set(index["weight_map"].values())) if index else sorted(each.name for each in folder.glob("*.safetensors"))
    if not names:
        others = sorted(each.name for each in folder.iterdir() if each.suffix in (".bin", ".pth", ".pt"))
        hint = f"; {_few(others)} may run code when loaded and is not read" if others else ""
        raise RopeError("path", f"must hold safetensors files{hint}", str(path))
    if len(names) > MAX_SHARDS:
        raise RopeError("path", f"must hold at most {MAX_SHARDS} safetensors files", len(names))
    shards = {name: read_header(_inside(folder, name)) for name in names}
    files: dict[str, str] = {}
    for name, header in shards.items():
        for key in header.entries:
            if key in files:
                raise RopeError(key, f"must stand in one file, not in {files[key]} and", name)
            files[key] = name
    if index:
        _check_index(index_name or "", index["weight_map"], files)
    return Folder(folder, shards, files, index, index_name)


def write_folder(
    path: str | os.PathLike[str],
    tensors: Iterable[NewTensor],
    config: Mapping[str, Any] | None = None,
    *,
    max_shard_bytes: int = 5_000_000_000,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a checkpoint folder that appears whole or not at all, one tensor in memory at a time.

    tensors          (key, shape, dtype, make); `make()` is called once, when the tensor's turn comes
    config           written as config.json
    max_shard_bytes  several shards and an index where the tensors together are larger; a shard holds at least one
    """
    integer("max_shard_bytes", max_shard_bytes, low=1)
    makers: dict[str, Callable[[], Tensor]] = {}
    plan: list[tuple[str, torch.dtype, tuple[int, ...]]] = []
    for key, shape, dtype, make in tensors:
        if key in makers:
            raise RopeError("tensors", "must have each key once", key)
        makers[key] = make
        plan.append((key, dtype, tuple(shape)))
    metadata = {"format": "pt"} if metadata is None else dict(metadata)
    headers = _named([build_header(part, metadata) for part in _split(plan, max_shard_bytes)])
    shapes = {key: shape for key, _, shape in plan}

    def made(key: str) -> tuple[Tensor]:
        tensor = makers[key]()
        if tuple(tensor.shape) != shapes[key]:
            raise RopeError(key, f"must be made with the shape it was announced with, {list(shapes[key])}", list(tensor.shape))
        return (tensor,)

    with atomic_folder(path) as folder:
        for name, header in headers.items():
            write_file(folder / name, header, made)
        if len(headers) > 1:
            weight_map = {key: name for name, header in headers.items() for key in header.entries}
            total = sum(entry.end - entry.begin for header in headers.values() for entry in header.entries.values())
            write_json(
                folder / f"model{INDEX_SUFFIX}",
                {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))},
            )
        if config is not None:
            write_json(folder / "config.json", config)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object as JSON, synced to disk."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a new small file, synced to disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def stays_inside(path: Path) -> bool:
    """Whether a path, links followed, leads to the folder it stands in, or to where the hub's cache keeps its files."""
    home = path.parent.resolve()
    # the cache keeps every file of a snapshot as a link into the blobs beside the snapshots
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    return path.resolve().parent in (home, blobs)


def _read_index(folder: Path) -> tuple[str | None, dict[str, Any] | None]:
    names = sorted(each.name for each in folder.glob("*" + INDEX_SUFFIX))
    if not names:
        return None, None
    if len(names) > 1:
        raise RopeError("path", f"must hold one index, not {_few(names)}", str(folder))
    with _inside(folder, names[0]).open("rb") as file:
        data = file.read(MAX_INDEX_BYTES + 1)
    if len(data) > MAX_INDEX_BYTES:
        raise RopeError(names[0], f"must be at most {MAX_INDEX_BYTES} bytes", f"{len(data)} bytes or more")
    index = parse_object(data, names[0])
    weights = index.get("weight_map")
    if not isinstance(weights, dict) or not weights or not all(isinstance(name, str) for name in weights.values()):
        raise RopeError(names[0], "must have a weight_map of tensor keys to file names", weights)
    return names[0], index


def _inside(folder: Path, name: str) -> Path:
    """The path of a file of the folder; a name or a link that leads elsewhere is refused."""
    if not name or name in (".", "..") or any(char in name for char in "/\\\0:") or not name.endswith((".safetensors", ".json")):
        raise RopeError("weight_map", "must name safetensors files of the folder itself", name)
    path = folder / name
    if not stays_inside(path):
        raise RopeError(name, "must not be a link out of its folder", str(path.resolve()))
    if not path.is_file():
        raise RopeError(name, f"must be a file of {folder}", "none" if not path.exists() else "not a file")
    return path


def _check_index(index_name: str, weight_map: Mapping[str, str], files: Mapping[str, str]) -> None:
    missing = [key for key in weight_map if key not in files]
    surplus = [key for key in files if key not in weight_map]
    moved = [key for key, name in weight_map.items() if files.get(key, name) != name]
    for what, keys in (("no file holds", missing), ("it does not list", surplus), ("another file holds", moved)):
        if keys:
            raise RopeError(index_name, f"must agree with its files: {what} {_few(keys)}", len(keys))


def _split(
    plan: list[tuple[str, torch.dtype, tuple[int, ...]]], limit: int
) -> list[list[tuple[str, torch.dtype, tuple[int, ...]]]]:
    """The tensors shard by shard, in their order; inside a shard wide dtypes first, so that all are aligned."""
    parts: list[list[tuple[str, torch.dtype, tuple[int, ...]]]] = [[]]
    filled = 0
    for key, dtype, shape in plan:
        size = torch.Size(shape).numel() * dtype.itemsize
        if parts[-1] and filled + size > limit:
            parts.append([])
            filled = 0
        parts[-1].append((key, dtype, shape))
        filled += size
    return [sorted(part, key=lambda each: -each[1].itemsize) for part in parts]


def _named(headers: list[Header]) -> dict[str, Header]:
    if len(headers) == 1:
        return {"model.safetensors": headers[0]}
    return {f"model-{number:05}-of-{len(headers):05}.safetensors": header for number, header in enumerate(headers, 1)}


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
