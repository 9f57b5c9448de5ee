"""Training on several devices under torchrun.

none      one process
ddp       every rank has the model and a part of the rows; gradients are averaged
fsdp      every rank has a part of the rows and a shard of every weight (FSDP2)
context   every rank has the model and a part of every row; attention is ring attention
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ropewalk.attention.softmax import Attended, SoftmaxAttention
from ropewalk.distributed.ring import ring_forward
from ropewalk.distributed.sharding import shard_positions
from ropewalk.errors import RopeError, choice
from ropewalk.models.decoder_attention import PackedLinearAttention
from ropewalk_lab.batches import IGNORED, Batch

KINDS = ("none", "ddp", "fsdp", "context")
#: how a context run divides each row among the ranks, an order of `shard_positions`
SHARDS = "head_tail"
TIMEOUT = timedelta(minutes=10)


def local(x: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor (a DTensor), or any other tensor as it is."""
    return x.to_local() if hasattr(x, "to_local") else x  # type: ignore[operator]


def unsharded(x: Tensor) -> Tensor:
    """Return a sharded tensor (a DTensor) in full, for which every rank must call this, or any
    other tensor as it is.
    """
    return x.full_tensor() if hasattr(x, "full_tensor") else x  # type: ignore[operator]


@dataclass(frozen=True)
class Parallel:
    """The rank of this process, the number of processes (`world`), and how they divide the work
    (`kind`, one of KINDS).
    """

    kind: str = "none"
    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    #: a gloo group, so that small host tensors are exchanged without synchronising the GPU; None on
    #: a CPU, where the default group is gloo
    host_group: Any = None

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def samples(self, index: np.ndarray) -> np.ndarray:
        """Return this rank's part of the sample numbers of a micro-batch; in a context run, ranks
        share every sample.
        """
        if self.world == 1 or self.kind == "context":
            return index
        if len(index) % self.world:
            raise RopeError(
                "batch",
                f"must be a multiple of the {self.world} ranks in every micro-batch",
                len(index),
            )
        return index.reshape(self.world, -1)[self.rank]

    def shard(self, batch: Batch) -> Batch:
        """Return this rank's tokens of a CPU batch in a context run, where sequences are divided,
        with their positions in the whole rows; otherwise the whole batch.
        """
        if self.kind != "context":
            return batch
        if batch.targets.ndim != 2:
            raise RopeError(
                "parallel",
                "must be ddp or fsdp for this objective: context divides sequences, so every token "
                "would need a target of its own",
                self.kind,
            )
        positions = shard_positions(batch.inputs.shape[1], self.rank, self.world, SHARDS)
        parts = {
            name: value[:, positions]
            for name, value in batch.keywords.items()
            if name != "positions"  # the batch gets those of this rank
        }
        targets = batch.targets[:, positions]
        count = int((targets != IGNORED).sum())
        return replace(
            batch,
            inputs=batch.inputs[:, positions],
            targets=targets,
            count=count,
            positions=positions,
            **parts,
        )

    def total(self, *values: float) -> list[float]:
        """Return the sum of each Python number over all ranks."""
        if self.world == 1:
            return list(values)
        summed = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(summed, group=self.host_group)
        return summed.tolist()

    def sum_of_ranks(self, x: Tensor) -> Tensor:
        """Sum a device tensor over all ranks, in place, and return it."""
        if self.world > 1:
            dist.all_reduce(x)
        return x

    def sum_of_shards(self, x: Tensor) -> Tensor:
        """Sum a device tensor over all shards of the weights, in place, and return it; without FSDP
        weights are not sharded, so it stays as it is.
        """
        return self.sum_of_ranks(x) if self.kind == "fsdp" else x

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model ready for this kind of run: sharded by FSDP, wrapped in DDP, wrapped in
        DDP with ring attention ("context"), or as it is ("none"). The model itself is changed.
        """
        if self.kind == "fsdp":
            return _fully_shard(model)
        if self.kind == "context":
            _use_ring_attention(model)
        if self.kind in ("ddp", "context"):
            # no device ids: the model and the inputs are on their device already
            return nn.parallel.DistributedDataParallel(model, device_ids=None)
        return model

    @contextmanager
    def micro_batch(self, model: nn.Module, last: bool) -> Iterator[None]:
        """Context manager for a micro-batch: gradients are averaged over the ranks only if it is
        the `last` of a step; until then each rank adds up its own.
        """
        if self.kind == "fsdp":
            model.set_requires_gradient_sync(last)  # type: ignore[operator]
        if self.kind in ("ddp", "context") and not last:
            with model.no_sync():  # type: ignore[operator]
                yield
        else:
            yield

    def gather(self, x: Tensor) -> Tensor:
        """Return the CPU tensors `x` of all ranks, stacked as [world, ...]."""
        if self.world == 1:
            return x[None].clone()
        parts = [torch.empty_like(x) for _ in range(self.world)]
        dist.all_gather(parts, x.contiguous(), group=self.host_group)
        return torch.stack(parts)

    def wait(self) -> None:
        """Wait for all ranks."""
        if self.world > 1:
            dist.barrier(group=self.host_group)


@contextmanager
def launched(
    kind: str | None = None, device: str | None = None, timeout: timedelta = TIMEOUT
) -> Iterator[Parallel]:
    """Join torchrun's process group, or run as a single process, and yield the Parallel of this
    process.

    kind     one of KINDS; by default ddp under torchrun, otherwise none
    device   as in `pick_device`; under torchrun "cuda" is the GPU with the number of the local rank
    timeout  a rank that waits longer than this for another one raises an error
    """
    world, under_torchrun = int(os.environ.get("WORLD_SIZE", 1)), "RANK" in os.environ
    if kind is None:
        kind = "ddp" if under_torchrun else "none"
    if choice("parallel", kind, KINDS) == "none":
        if world > 1:
            raise RopeError(
                "parallel",
                f"must be ddp, fsdp or context, since torchrun started {world} processes",
                kind,
            )
        yield Parallel(device=pick_device(device))
        return
    if not under_torchrun:
        raise RopeError(
            "parallel", "needs torchrun: torchrun --nproc-per-node 2 --no-python ropewalk ...", kind
        )
    local_device = pick_device(device, int(os.environ.get("LOCAL_RANK", 0)))
    if local_device.type == "cuda":
        torch.cuda.set_device(local_device)
    dist.init_process_group("nccl" if local_device.type == "cuda" else "gloo", timeout=timeout)
    try:
        # nccl exchanges tensors of GPUs only
        host_group = (
            dist.new_group(backend="gloo", timeout=timeout) if local_device.type == "cuda" else None
        )
        yield Parallel(kind, dist.get_rank(), dist.get_world_size(), local_device, host_group)
    finally:
        dist.destroy_process_group()


def pick_device(name: str | None = None, number: int | None = None) -> torch.device:
    """Return the device of a name; None: the GPU if there is one, otherwise the CPU. `number` says
    which GPU it is if the name does not.
    """
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise RopeError("device", "must be cpu: CUDA is not available here", name)
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", name):
        raise RopeError("device", "must be cpu, cuda or cuda:N", name)
    return torch.device(f"cuda:{number}" if name == "cuda" and number is not None else name)


def _fully_shard(model: nn.Module) -> nn.Module:
    """Return the model with the parameters of each layer, then of the rest, sharded over all ranks
    (FSDP2).
    """
    from torch.distributed.fsdp import fully_shard

    layers = [
        layer for module in model.modules() if isinstance(module, nn.ModuleList) for layer in module
    ]
    for layer in layers:
        if next(layer.parameters(), None) is not None:  # a layer without parameters has no shards
            fully_shard(layer)
    fully_shard(model)
    return model


def _use_ring_attention(model: nn.Module) -> None:
    """Make every softmax attention attend to the keys of all ranks; raise an error if the model has
    none, or has linear attention.
    """
    layers = [module for module in model.modules() if isinstance(module, SoftmaxAttention)]
    if not layers:
        raise RopeError(
            "parallel", "context needs a model with ropewalk's Attention", type(model).__name__
        )
    if any(isinstance(layer, PackedLinearAttention) for layer in layers):
        raise RopeError(
            "parallel",
            "must be ddp or fsdp with linear attention: context has softmax attention only",
            "context",
        )
    for layer in layers:
        layer.forward = _ring_forward(layer)  # type: ignore[method-assign]


def _ring_forward(layer: SoftmaxAttention):
    """Return a function that replaces the `forward` of an attention layer whose tokens are divided
    among ranks.
    """

    def forward(
        x: Tensor, positions: Tensor | None = None, *, padding=None, documents=None, **others
    ) -> Attended:
        """Return the attention of this rank's tokens over the tokens of all ranks."""
        # an argument that is None or False asks for nothing
        unsupported = [
            name for name, value in others.items() if value is not None and value is not False
        ]
        if unsupported:
            raise RopeError(
                "parallel",
                f"context attention does not support {', '.join(unsupported)}",
                unsupported,
            )
        if positions is None:
            raise RopeError(
                "positions",
                "must be given in a context run: the tokens of a rank are not consecutive",
                None,
            )
        out = ring_forward(layer, x, positions, order=SHARDS, padding=padding, documents=documents)
        return Attended(out, weights=None)

    return forward
