"""Checkpoints that are whole or absent: safetensors and JSON with checksums, written beside and renamed, the last few kept."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.interop.checkpoint.atomic_folder import atomic_folder
from ropewalk.interop.checkpoint.safetensors_file import build_header, parse_object, read_header, read_rows, write_file
from ropewalk.interop.checkpoint.shards import write_json
from ropewalk.lab.distributed import Parallel, local

logger = logging.getLogger("ropewalk.lab")
_NAME = re.compile(r"step-(\d{9})")
STATE = "state.json"


class Damaged(Exception):
    """A checkpoint that cannot be used, and why."""


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    found = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(found, reverse=True)


def write_checkpoint(
    folder: Path, step: int, files: Mapping[str, Mapping[str, Tensor]], state: dict[str, Any], keep: int
) -> None:
    """Write the tensors of each file and the state as one checkpoint, then remove all but the last `keep`."""
    target = folder / f"step-{step:09d}"
    if target.exists():
        # it was damaged, or it would have been resumed from; the same step is written again
        shutil.rmtree(target)
    with atomic_folder(target) as draft:
        for name, tensors in files.items():
            # wide types first, so that all are aligned
            ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
            header = build_header([(key, t.dtype, tuple(t.shape)) for key, t in ordered], {})
            write_file(draft / name, header, lambda key, tensors=tensors: [tensors[key]])
        sums = {name: _sha256(draft / name) for name in files}
        sealed = {**state, "step": step, "files": sums}
        write_json(draft / STATE, {**sealed, "sha256": _seal(sealed)})
    for old in checkpoints(folder)[keep:]:
        shutil.rmtree(old, ignore_errors=True)


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """(state, tensors by file) of one checkpoint, every byte of it checked; Damaged says what is wrong."""
    try:
        state = parse_object((path / STATE).read_bytes(), STATE)
        seal = state.pop("sha256", None)
        if seal != _seal(state):
            raise Damaged(f"the checksum of {STATE} differs")
        for name, known in state["files"].items():
            if _sha256(path / name) != known:
                raise Damaged(f"the checksum of {name} differs")
        return state, {name: _tensors(path / name) for name in state["files"]}
    except (OSError, RopeError) as error:
        raise Damaged(str(error)) from None


def newest(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]] | None:
    """The newest checkpoint that is whole; each damaged one on the way is named in the log."""
    known = checkpoints(folder)
    for number, path in enumerate(known):
        try:
            return read_checkpoint(path)
        except Damaged as reason:
            then = f"trying {known[number + 1].name}" if number + 1 < len(known) else "no older one is left"
            logger.warning("checkpoint %s cannot be used: %s; %s", path.name, reason, then)
    if known:
        raise RopeError("checkpoint", f"must be whole, and none in {folder} is; remove them to start anew", len(known))
    return None


def _tensors(path: Path) -> dict[str, Tensor]:
    header = read_header(path)
    return {key: read_rows(path, header, key) for key in header.entries}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def model_tensors(model: nn.Module, parallel: Parallel) -> dict[str, Tensor]:
    """Weights and buffers in full, tied ones once; every rank must call."""
    named = [*model.named_parameters(), *((n, b) for n, b in model.named_buffers() if n in model.state_dict())]
    return {name: parallel.whole(tensor.detach()).cpu() for name, tensor in named}


@torch.no_grad()
def load_model(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put weights and buffers in their place; a missing, surplus or misshapen one is named."""
    named = {**dict(model.named_parameters()), **{n: b for n, b in model.named_buffers() if n in model.state_dict()}}
    if named.keys() != tensors.keys():
        raise RopeError("checkpoint", "must have the tensors of this model", sorted(named.keys() ^ tensors.keys())[:5])
    for name, own in named.items():
        if own.shape != tensors[name].shape:
            raise RopeError("checkpoint", f"must have {name} in the shape {list(own.shape)}", list(tensors[name].shape))
        own.copy_(_placed_like(own, tensors[name]))


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, parallel: Parallel) -> dict[str, Tensor]:
    """The optimiser's numbers by "kind parameter", in full."""
    found = {}
    for name, parameter in model.named_parameters():
        for kind, value in optimizer.state.get(parameter, {}).items():
            found[f"{kind} {name}"] = parallel.whole(value.detach()).cpu()
    return found


def load_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """The optimiser as it was."""
    named = dict(model.named_parameters())
    fused = bool(optimizer.defaults.get("fused"))
    for key, value in tensors.items():
        kind, _, name = key.partition(" ")
        if name not in named:
            raise RopeError("checkpoint", "must have an optimiser of this model", key)
        parameter = named[name]
        if kind == "step":  # a count: fused optimisers keep it where the weights are
            placed = value.to(local(parameter).device) if fused else value
        else:
            placed = _placed_like(parameter, value)
        optimizer.state[parameter][kind] = placed


def _placed_like(own: Tensor, value: Tensor) -> Tensor:
    value = value.to(local(own).device)
    if hasattr(own, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(value, own.device_mesh, own.placements)  # type: ignore[attr-defined]
    return value


def random_tensors(parallel: Parallel) -> dict[str, Tensor]:
    """The state of torch's generators on every rank, [world, bytes]."""
    found = {"cpu": parallel.gathered(torch.get_rng_state())}
    if parallel.device.type == "cuda":
        found["cuda"] = parallel.gathered(torch.cuda.get_rng_state(parallel.device))
    return found


def load_random(tensors: Mapping[str, Tensor], parallel: Parallel) -> bool:
    """Generators as they were on this rank; False, and nothing done, for another number of ranks or another device."""
    wanted = {"cpu", "cuda"} if parallel.device.type == "cuda" else {"cpu"}
    if tensors.keys() != wanted or tensors["cpu"].shape[0] != parallel.world:
        return False
    torch.set_rng_state(tensors["cpu"][parallel.rank].clone())
    if "cuda" in wanted:
        torch.cuda.set_rng_state(tensors["cuda"][parallel.rank].clone(), parallel.device)
    return True
