"""Checkpoints: folders of safetensors and JSON with checksums, created atomically; only the newest
few are kept.
"""

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
from ropewalk.interop.checkpoint.safetensors_file import (
    build_header,
    parse_object,
    read_header,
    read_rows,
    write_file,
)
from ropewalk.interop.checkpoint.shards import write_json
from ropewalk_lab.distributed import Parallel, local, unsharded

logger = logging.getLogger("ropewalk_lab")
#: names of checkpoint folders; the digits are the step, so names sort by step
_NAME = re.compile(r"step-(\d{9})")
#: the file with the step, the settings and the checksums
STATE = "state.json"


class DamagedCheckpoint(Exception):
    """A checkpoint is incomplete or its checksums differ."""


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, newest first."""
    return sorted(
        (path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)), reverse=True
    )


def write_checkpoint(
    folder: Path,
    step: int,
    files: Mapping[str, Mapping[str, Tensor]],
    state: dict[str, Any],
    keep: int,
) -> None:
    """Write a checkpoint, then remove those of later steps, and all but the newest `keep` of the
    others.

    files  {file name: {name of a tensor: tensor}}
    state  plain data for state.json; the step and the checksums of all files are added to it
    """
    target = folder / f"step-{step:09d}"
    if target.exists():
        # it is damaged, or this step is saved a second time
        shutil.rmtree(target)
    with atomic_folder(target) as draft:
        for name, tensors in files.items():
            # larger dtypes first, so that all tensors are aligned
            ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
            header = build_header([(label, t.dtype, tuple(t.shape)) for label, t in ordered], {})
            # each tensor is written as a single piece
            write_file(draft / name, header, lambda label, tensors=tensors: [tensors[label]])
        content = {**state, "step": step, "files": {name: _sha256(draft / name) for name in files}}
        write_json(draft / STATE, {**content, "sha256": _state_sha256(content)})
    # a run resumes from its newest undamaged checkpoint, so any of a later step is damaged
    kept = [path for path in checkpoints(folder) if path.name <= target.name][:keep]
    for path in checkpoints(folder):
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """Return (state, {file: {name: tensor}}) of a checkpoint; raise DamagedCheckpoint if a checksum
    differs or a file cannot be read.
    """
    try:
        state = parse_object((path / STATE).read_bytes(), STATE)
        if state.pop("sha256", None) != _state_sha256(state):
            raise DamagedCheckpoint(f"the checksum of {STATE} differs")
        tensors = {}
        for name, sha256 in state["files"].items():
            if _sha256(path / name) != sha256:
                raise DamagedCheckpoint(f"the checksum of {name} differs")
            header = read_header(path / name)
            tensors[name] = {
                label: read_rows(path / name, header, label) for label in header.entries
            }
        return state, tensors
    except (OSError, RopeError) as error:
        raise DamagedCheckpoint(str(error)) from None


def read_newest(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]] | None:
    """Return `read_checkpoint` of the newest undamaged checkpoint, and warn of newer ones that are
    damaged; None if there are no checkpoints. Raise an error if all are damaged.
    """
    paths = checkpoints(folder)
    for number, path in enumerate(paths):
        try:
            return read_checkpoint(path)
        except DamagedCheckpoint as reason:
            older = (
                f"trying {paths[number + 1].name}"
                if number + 1 < len(paths)
                else "there is no older one"
            )
            logger.warning("checkpoint %s cannot be used: %s; %s", path.name, reason, older)
    if paths:
        raise RopeError(
            "checkpoint",
            f"must be undamaged, but all in {folder} are damaged; remove them to start anew",
            [path.name for path in paths],
        )
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _state_sha256(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and persistent buffers of a model by name; tied parameters appear once."""
    persistent = model.state_dict()
    return {
        **dict(model.named_parameters()),
        **{name: b for name, b in model.named_buffers() if name in persistent},
    }


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights and persistent buffers by name, unsharded and on the CPU (those of a model
    on the CPU are not copied); every rank must call this.
    """
    return {
        name: unsharded(tensor.detach()).cpu() for name, tensor in _named_tensors(model).items()
    }


@torch.no_grad()
def load_model(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy weights and buffers into the model; missing tensors, extra tensors and different shapes
    are errors.
    """
    named = _named_tensors(model)
    if named.keys() != tensors.keys():
        raise RopeError(
            "checkpoint",
            "must have the same tensors as this model",
            sorted(named.keys() ^ tensors.keys())[:5],  # names that only one of the two has
        )
    for name, current in named.items():
        if current.shape != tensors[name].shape:
            raise RopeError(
                "checkpoint",
                f"must have {name} in the shape {list(current.shape)}",
                list(tensors[name].shape),
            )
        current.copy_(_sharded_like(current, tensors[name]))


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the tensors of the optimizer's state, unsharded and on the CPU, named as in "exp_avg
    embedding.weight"; every rank must call this.
    """
    return {
        f"{kind} {name}": unsharded(value.detach()).cpu()
        for name, parameter in model.named_parameters()
        for kind, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Restore the optimizer's state from the tensors of `optimizer_tensors`, named as in "exp_avg
    embedding.weight".
    """
    named = dict(model.named_parameters())
    fused = bool(optimizer.defaults.get("fused"))
    for label, value in tensors.items():
        kind, _, name = label.partition(" ")
        if name not in named:
            raise RopeError(
                "checkpoint", "must have optimizer states of this model's weights only", label
            )
        parameter = named[name]
        if kind == "step":  # a scalar; a fused optimizer needs it on the device of the weights
            placed = value.to(local(parameter).device) if fused else value
        else:
            placed = _sharded_like(parameter, value)
        optimizer.state[parameter][kind] = placed


def _sharded_like(pattern: Tensor, value: Tensor) -> Tensor:
    """Return `value` on the device of `pattern`, sharded as `pattern` is."""
    value = value.to(local(pattern).device)
    if hasattr(pattern, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(value, pattern.device_mesh, pattern.placements)  # type: ignore[attr-defined]
    return value


def random_states(parallel: Parallel) -> dict[str, Tensor]:
    """Return the states of torch's random generators on all ranks, uint8 [world, bytes], under
    "cpu" and, on a GPU, also under "cuda"; every rank must call this.
    """
    states = {"cpu": parallel.gather(torch.get_rng_state())}
    if parallel.device.type == "cuda":
        states["cuda"] = parallel.gather(torch.cuda.get_rng_state(parallel.device))
    return states


def load_random(tensors: Mapping[str, Tensor], parallel: Parallel) -> bool:
    """Restore torch's random generators on this rank from the tensors of `random_states`, and
    return True; return False, and change nothing, if the number of ranks or the device type is
    another than in the checkpoint.
    """
    needed = {"cpu", "cuda"} if parallel.device.type == "cuda" else {"cpu"}
    if tensors.keys() != needed or tensors["cpu"].shape[0] != parallel.world:
        return False
    torch.set_rng_state(tensors["cpu"][parallel.rank].clone())
    if "cuda" in needed:
        torch.cuda.set_rng_state(tensors["cuda"][parallel.rank].clone(), parallel.device)
    return True
