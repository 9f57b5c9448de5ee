"""One command on many devices: torchrun says who we are; the model is copied, sharded, or its sequences are cut.

none      one process
ddp       every rank has the model and its share of the rows; gradients are averaged
fsdp      every rank has its share of the rows and of every weight (FSDP2)
context   every rank has the model and its share of every row; attention goes round the ring
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ropewalk.attention.softmax import Attended, Attention
from ropewalk.distributed.ring import ring_forward
from ropewalk.distributed.sharding import shard_positions
from ropewalk.errors import RopeError, choice
from ropewalk.lab.batches import IGNORED, Batch

KINDS = ("none", "ddp", "fsdp", "context")
SHARDS = "head_tail"
PATIENCE = timedelta(minutes=10)


def local(x: Tensor) -> Tensor:
    """This rank's part of a sharded tensor, or the tensor itself."""
    return x.to_local() if hasattr(x, "to_local") else x  # type: ignore[operator]


@dataclass(frozen=True)
class Parallel:
    """Who this process is among all, and how the work is shared."""

    kind: str = "none"
    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    #: a group on the host, so that small facts travel without waiting for the device
    talk: Any = None

    @property
    def first(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0

    def share(self, index: np.ndarray) -> np.ndarray:
        """This rank's samples of those in `index`."""
        if self.world == 1 or self.kind == "context":
            return index
        if len(index) % self.world:
            raise RopeError("batch", f"must be a multiple of {self.world} ranks in every accumulated part", len(index))
        return index.reshape(self.world, -1)[self.rank]

    def cut(self, batch: Batch) -> Batch:
        """This rank's tokens of a batch on the host, where sequences are cut; the count is then its own."""
        if self.kind != "context":
            return batch
        if batch.targets.ndim != 2:
            raise RopeError("parallel", "context cuts sequences, so every token needs a target of its own", self.kind)
        held = shard_positions(batch.inputs.shape[1], self.rank, self.world, SHARDS)
        parts = {name: value[:, held] for name, value in batch.given.items() if name != "positions"}
        targets = batch.targets[:, held]
        count = int((targets != IGNORED).sum())
        return replace(batch, inputs=batch.inputs[:, held], targets=targets, count=count, positions=held, **parts)

    def total(self, *values: float) -> list[float]:
        """The sums of host numbers over all ranks."""
        if self.world == 1:
            return list(values)
        summed = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(summed, group=self.talk)
        return summed.tolist()

    def sum_of_ranks(self, x: Tensor) -> Tensor:
        """The sum of a tensor over all ranks, on the device."""
        if self.world > 1:
            dist.all_reduce(x)
        return x

    def sum_of_shards(self, x: Tensor) -> Tensor:
        """The sum over all shards of the weights."""
        return self.sum_of_ranks(x) if self.kind == "fsdp" else x

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model as this kind of run wants it; it is changed in place."""
        if self.kind == "fsdp":
            return _sharded(model)
        if self.kind == "context":
            _attend_in_a_ring(model)
        if self.kind in ("ddp", "context"):
            return nn.parallel.DistributedDataParallel(model, device_ids=None)
        return model

    @contextmanager
    def part(self, model: nn.Module, last: bool) -> Iterator[None]:
        """Around the forward and backward of one accumulated part: gradients meet after the last alone."""
        if self.kind == "fsdp":
            model.set_requires_gradient_sync(last)  # type: ignore[operator]
        if self.kind in ("ddp", "context") and not last:
            with model.no_sync():  # type: ignore[operator]
                yield
        else:
            yield

    def whole(self, x: Tensor) -> Tensor:
        """A sharded tensor in full, on every rank."""
        return x.full_tensor() if hasattr(x, "full_tensor") else x  # type: ignore[operator]

    def gathered(self, x: Tensor) -> Tensor:
        """[world, ...] of a host tensor that every rank has one of."""
        if self.world == 1:
            return x[None].clone()
        found = [torch.empty_like(x) for _ in range(self.world)]
        dist.all_gather(found, x.contiguous(), group=self.talk)
        return torch.stack(found)

    def wait(self) -> None:
        """Until every rank is here."""
        if self.world > 1:
            dist.barrier(group=self.talk)


@contextmanager
def launched(kind: str | None = None, device: str | None = None, patience: timedelta = PATIENCE) -> Iterator[Parallel]:
    """The run torchrun started, or one process; `kind` defaults to ddp under torchrun and none without.

    A rank that hears nothing of the others for `patience` gives up.
    """
    world = int(os.environ.get("WORLD_SIZE", 1))
    kind = choice("parallel", kind if kind is not None else ("ddp" if "RANK" in os.environ else "none"), KINDS)
    if kind == "none":
        if world > 1:
            raise RopeError("parallel", f"must share the work of {world} processes: ddp, fsdp or context", kind)
        yield Parallel(device=pick_device(device))
        return
    if "RANK" not in os.environ:
        raise RopeError("parallel", "needs torchrun: torchrun --nproc-per-node 2 --no-python ropewalk ...", kind)
    here = pick_device(device, int(os.environ.get("LOCAL_RANK", 0)))
    if here.type == "cuda":
        torch.cuda.set_device(here)
    dist.init_process_group("nccl" if here.type == "cuda" else "gloo", timeout=patience)
    try:
        talk = dist.new_group(backend="gloo", timeout=patience) if here.type == "cuda" else None
        yield Parallel(kind, dist.get_rank(), dist.get_world_size(), here, talk)
    finally:
        dist.destroy_process_group()


def pick_device(name: str | None = None, number: int | None = None) -> torch.device:
    """The device of a name, or the GPU where there is one."""
    kind = name if name is not None else ("cuda" if torch.cuda.is_available() else "cpu")
    if kind.startswith("cuda") and not torch.cuda.is_available():
        raise RopeError("device", "has no CUDA here; use cpu", name)
    return torch.device(f"cuda:{number}" if kind == "cuda" and number is not None else kind)


def _sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    layers = [layer for module in model.modules() if isinstance(module, nn.ModuleList) for layer in module]
    for layer in layers:
        if next(layer.parameters(), None) is not None:
            fully_shard(layer)
    fully_shard(model)
    return model


def _attend_in_a_ring(model: nn.Module) -> None:
    """Let every softmax attention look at the keys of all ranks."""
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    if not layers:
        raise RopeError("parallel", "context needs a model whose attention is ropewalk's", type(model).__name__)
    for layer in layers:
        layer.forward = _in_a_ring(layer)  # type: ignore[method-assign]


def _in_a_ring(layer: Attention):
    def forward(x: Tensor, positions: Tensor | None = None, *, padding=None, documents=None, **refused) -> Attended:
        unknown = [name for name, value in refused.items() if value is not None and value is not False]
        if unknown:
            raise RopeError("parallel", f"context attention takes no {', '.join(unknown)}", unknown)
        if positions is None:
            raise RopeError("positions", "must be given to every attention: in memory tokens have another order", None)
        return Attended(ring_forward(layer, x, positions, order=SHARDS, padding=padding, documents=documents), None)

    return forward
