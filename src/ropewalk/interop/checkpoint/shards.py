"""Read a checkpoint folder (config, index, safetensors shards) without trusting it, and write one
atomically.

A shard is a safetensors file of the folder, which begins with a header. The index is a JSON file
whose weight_map says which shard holds each tensor; a folder with one shard needs none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.config import file as config_file
from ropewalk.errors import RopeError, integer
from ropewalk.interop.checkpoint.atomic_folder import atomic_folder
from ropewalk.interop.checkpoint.safetensors_file import (
    Header,
    SafetensorsEntry,
    build_header,
    parse_object,
    read_header,
    read_pieces,
    read_rows,
    write_file,
)

INDEX_SUFFIX = ".safetensors.index.json"
MAX_INDEX_BYTES = 32 << 20
MAX_SHARDS = 4096
#: (name, shape, dtype, a function that creates the tensor when it is written)
NewTensor = tuple[str, tuple[int, ...], torch.dtype, Callable[[], Tensor]]


@dataclass(frozen=True)
class Folder:
    """An open checkpoint folder: its headers are read and checked, its tensors are read on request."""

    path: Path
    #: file name -> its header, sorted by file name
    shards: dict[str, Header]
    #: tensor name -> file name
    files: dict[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tensors, shard by shard."""
        return tuple(self.files)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The contents of config.json."""
        return config_file.read(self.path / "config.json")

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, from its header."""
        return self._entry(name).shape

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of a tensor, from its header."""
        return self._entry(name).dtype

    def bytes(self, name: str) -> int:
        """Return the size of a tensor on disk, in bytes."""
        return self._entry(name).bytes

    def read(self, name: str) -> Tensor:
        """Return a tensor, read into new memory on the CPU."""
        return read_rows(*self._location(name))

    def pieces(
        self, name: str, start: int = 0, stop: int | None = None, *, rows: int = 1
    ) -> Iterator[Tensor]:
        """Yield rows start:stop of a tensor in pieces of a few megabytes; all but the last are a
        multiple of `rows` rows.
        """
        return read_pieces(*self._location(name), start, stop, rows=rows)

    def expect(
        self, names: Iterable[str], *, ignored: Callable[[str], bool] = lambda name: False
    ) -> None:
        """Raise an error if the folder does not hold exactly the tensors `names`; `ignored` ones
        may be there too.
        """
        wanted = dict.fromkeys(names)
        missing = [name for name in wanted if name not in self.files]
        check_names(
            str(self.path),
            missing,
            [name for name in self.files if name not in wanted and not ignored(name)],
        )

    def _location(self, name: str) -> tuple[Path, Header, str]:
        """Return the first arguments of `read_rows` for a tensor: its file, header and name."""
        if name not in self.files:
            raise RopeError(
                "name", f"must be one of the {len(self.files)} tensors of {self.path}", name
            )
        return self.path / self.files[name], self.shards[self.files[name]], name

    def _entry(self, name: str) -> SafetensorsEntry:
        return self._location(name)[1].entries[name]


def check_names(field: str, missing: Collection[str], unexpected: Collection[str]) -> None:
    """Raise an error about `field`, which names the source of the weights, that lists the missing
    and the unexpected tensors, if there are any.
    """
    lists = [
        f"{what}: {_first_few(names)}"
        for what, names in (("missing", missing), ("unexpected", unexpected))
        if names
    ]
    if lists:
        counts = f"{len(missing)} missing, {len(unexpected)} unexpected"
        raise RopeError(
            field,
            f"must hold exactly the weights that its config describes ({', '.join(lists)})",
            counts,
        )


def open_folder(path: str | os.PathLike[str]) -> Folder:
    """Open a folder of safetensors files and read their headers only.

    With an index, only the files it lists are opened; without one, every *.safetensors file is.
    Raises an error for a shard that is missing, malformed or outside the folder, a tensor in two
    files, and an index that does not match.
    """
    folder = Path(path)
    if not folder.is_dir():
        rule = (
            "must be a local folder with config.json and safetensors files; download a model from "
            "the hub first"
        )
        raise RopeError("path", rule, str(path))
    index_name, weight_map = _read_index(folder)
    file_names = sorted(
        set(weight_map.values())
        if weight_map
        else (each.name for each in folder.glob("*.safetensors"))
    )
    if not file_names:
        pickles = sorted(
            each.name for each in folder.iterdir() if each.suffix in (".bin", ".pth", ".pt")
        )
        hint = (
            f"; {_first_few(pickles)} can run code when loaded and is not read: save as "
            "safetensors first"
        )
        rule = "must contain safetensors files" + (hint if pickles else "")
        raise RopeError("path", rule, str(path))
    if len(file_names) > MAX_SHARDS:
        raise RopeError(
            "path", f"must contain at most {MAX_SHARDS} safetensors files", len(file_names)
        )
    shards = {file_name: read_header(_inside(folder, file_name)) for file_name in file_names}
    files: dict[str, str] = {}
    for file_name, header in shards.items():
        for name in header.entries:
            if name in files:
                raise RopeError(name, "must be in one file only", [files[name], file_name])
            files[name] = file_name
    if weight_map:
        _check_index(index_name, weight_map, files)
    return Folder(folder, shards, files)


def write_folder(
    path: str | os.PathLike[str],
    tensors: Iterable[NewTensor],
    config: Mapping[str, Any] | None = None,
    *,
    max_shard_bytes: int = 5_000_000_000,
    metadata: Mapping[str, str] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Write a checkpoint folder atomically, with one tensor in memory at a time.

    tensors          (name, shape, dtype, make); `make()` is called once, when the tensor is written
    config           contents of config.json
    max_shard_bytes  larger checkpoints become several shards and an index; a shard holds at least
                     one tensor
    metadata         texts in the header of every file; None: {"format": "pt"}
    files            contents of further files by name, such as tokenizer.json
    """
    integer("max_shard_bytes", max_shard_bytes, low=1)
    makers = {}
    shards: list[list[tuple[str, torch.dtype, tuple[int, ...]]]] = [[]]
    shard_bytes = 0
    for name, shape, dtype, make in tensors:
        if name in makers:
            raise RopeError("tensors", "must have unique names", name)
        makers[name] = make, tuple(shape)
        size = torch.Size(shape).numel() * dtype.itemsize
        if shards[-1] and shard_bytes + size > max_shard_bytes:
            shards.append([])
            shard_bytes = 0
        shards[-1].append((name, dtype, tuple(shape)))
        shard_bytes += size
    metadata = {"format": "pt"} if metadata is None else dict(metadata)
    # wide dtypes first, so that every tensor is aligned
    headers = [
        build_header(sorted(shard, key=lambda each: -each[1].itemsize), metadata)
        for shard in shards
    ]
    count = len(headers)
    names = (
        [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
        if count > 1
        else ["model.safetensors"]
    )
    by_file = dict(zip(names, headers, strict=True))

    def create(name: str) -> tuple[Tensor]:
        """Return the tensor `name` as one piece, made only now; raise an error if it does not have
        the declared shape.
        """
        make, shape = makers[name]
        tensor = make()
        if tuple(tensor.shape) != shape:
            raise RopeError(name, f"must have the declared shape {list(shape)}", list(tensor.shape))
        return (tensor,)

    with atomic_folder(path) as folder:
        for file_name, header in by_file.items():
            write_file(folder / file_name, header, create)
        if len(by_file) > 1:
            weight_map = {
                name: file_name for file_name, header in by_file.items() for name in header.entries
            }
            total = sum(entry.bytes for header in headers for entry in header.entries.values())
            index = {
                "metadata": {"total_size": total},
                "weight_map": dict(sorted(weight_map.items())),
            }
            write_json(folder / f"model{INDEX_SUFFIX}", index)
        if config is not None:
            write_json(folder / "config.json", config)
        for name, data in (files or {}).items():
            _write_bytes(folder / name, data)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object as JSON to a new file and sync it to disk."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    _write_bytes(path, text.encode("utf-8"))


def _write_bytes(path: Path, data: bytes) -> None:
    """Write a new file and sync it to disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def stays_inside(path: Path) -> bool:
    """Return whether a path, with links resolved, is in its own folder or in the blobs of the
    Hugging Face hub cache.
    """
    home = path.parent.resolve()
    # in the hub cache the files in a snapshot's folder are links into ../../blobs
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    return path.resolve().parent in (home, blobs)


def _read_index(folder: Path) -> tuple[str, dict[str, str]]:
    """Return the name of the index file and its weight map; both are empty if there is no index."""
    names = sorted(each.name for each in folder.glob("*" + INDEX_SUFFIX))
    if not names:
        return "", {}
    if len(names) > 1:
        raise RopeError("path", "must contain one index file only", names)
    with _inside(folder, names[0]).open("rb") as file:
        data = file.read(MAX_INDEX_BYTES + 1)
    if len(data) > MAX_INDEX_BYTES:
        raise RopeError(
            names[0], f"must be at most {MAX_INDEX_BYTES} bytes", f"{len(data)} bytes or more"
        )
    weight_map = parse_object(data, names[0]).get("weight_map")
    if (
        not isinstance(weight_map, dict)
        or not weight_map
        or not all(isinstance(name, str) for name in weight_map.values())
    ):
        raise RopeError(
            names[0], "must have a weight_map from tensor names to file names", weight_map
        )
    return names[0], weight_map


def _inside(folder: Path, name: str) -> Path:
    """Return the path of a shard or an index (.json) in the folder; refuse a name or a link that
    leads out of it.

    A link into the blobs of the hub cache is allowed, since its folders hold nothing but such
    links.
    """
    if (
        not name
        or name in (".", "..")
        or any(char in name for char in "/\\\0:")
        or not name.endswith((".safetensors", ".json"))
    ):
        raise RopeError("weight_map", "must name safetensors files in the same folder", name)
    path = folder / name
    if not stays_inside(path):
        raise RopeError(
            name, "must not be a link to a file outside its folder", str(path.resolve())
        )
    if not path.is_file():
        raise RopeError(
            name,
            f"must be a file in {folder}",
            "no such file" if not path.exists() else "not a file",
        )
    return path


def _check_index(index_name: str, weight_map: Mapping[str, str], files: Mapping[str, str]) -> None:
    """Raise an error if the index and the shards do not list the same tensors."""
    misplaced = [name for name, file in weight_map.items() if files.get(name, file) != file]
    rules = {
        "must list only tensors that a shard holds": [
            name for name in weight_map if name not in files
        ],
        "must also list these tensors of its shards": [
            name for name in files if name not in weight_map
        ],
        "must name the shard that holds these tensors": misplaced,
    }
    for rule, names in rules.items():
        if names:
            raise RopeError(index_name, rule, names)


def _first_few(names: Iterable[str]) -> str:
    """Return the first five names as text, and how many more there are."""
    names = list(names)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
