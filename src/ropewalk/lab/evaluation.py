"""Evaluate a model: loss by context length on the same last tokens, sliding windows, tasks by length and depth.

A model is any function from tokens [B, S] to logits [B, S, V]. Every result has one value per window, so that two models
can be compared window by window (see `statistics`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.errors import RopeError, integer
from ropewalk.lab.batches import IGNORED, TaskBatches
from ropewalk.lab.objectives import logits_of

Model = Callable[[Tensor], Tensor]
#: the most tokens in one forward pass
MOST_TOKENS = 16_384


@contextmanager
def evaluating(model: Model, device: torch.device | None = None) -> Iterator[torch.device]:
    """Put the model in evaluation mode without gradients; yield `device`, or by default that of the model."""
    module = model if isinstance(model, nn.Module) else nn.Identity()
    first = next(module.parameters(), None)
    was_training = module.training
    module.eval()
    try:
        # not inference mode: cached tables made in it could not be used by a later training step
        with torch.no_grad():
            yield device or (torch.device("cpu") if first is None else first.device)
    finally:
        module.train(was_training)


def losses_and_hits(model: Model, rows: np.ndarray, last: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Return the loss of the last tokens of rows [N, L + 1] and whether the model's first choice is right, [N, last] each."""
    if not 1 <= last < rows.shape[1]:
        raise RopeError("last", f"must be from 1 to {rows.shape[1] - 1}, the number of tokens that have a context", last)
    losses, hits = [], []
    size = max(1, MOST_TOKENS // rows.shape[1])
    with evaluating(model, device) as device:
        for start in range(0, len(rows), size):
            tokens = torch.from_numpy(rows[start : start + size].astype(np.int64)).to(device)
            logits = logits_of(model(tokens[:, :-1]))[:, -last:].float()
            targets = tokens[:, -last:]
            losses.append(F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets).cpu())
            hits.append((logits.argmax(-1) == targets).cpu())
    return torch.cat(losses), torch.cat(hits)


def tail_means(
    model: Model, windows: np.ndarray, length: int, tail: int, device: torch.device | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean loss and accuracy [N] of the last `tail` tokens of each window, given `length` tokens of context."""
    integer("lengths", length, low=tail, high=windows.shape[1] - 1)
    losses, hits = losses_and_hits(model, windows[:, -(length + 1) :], tail, device)
    return losses.double().mean(1).numpy(), hits.double().mean(1).numpy()


def losses_by_length(
    model: Model, windows: np.ndarray, lengths: Sequence[int], tail: int, device: torch.device | None = None
) -> dict[int, np.ndarray]:
    """Return, for each context length, the mean loss [N] of the same last `tail` tokens of each window.

    A mean over whole windows would fall with the length by itself, since fewer of the tokens have a short context.
    """
    return {length: tail_means(model, windows, length, tail, device)[0] for length in lengths}


def sliding_losses(
    model: Model, windows: np.ndarray, width: int, tail: int, stride: int | None = None, device: torch.device | None = None
) -> np.ndarray:
    """Return the mean loss [N] of the last `tail` tokens if the model sees pieces of `width` tokens, `stride` apart.

    Each token has a context of at least width - stride tokens; positions start at 0 in every piece.
    """
    stride = max(1, width // 2) if stride is None else integer("stride", stride, low=1, high=width)
    integer("width", width, low=1, high=windows.shape[1] - 1)
    integer("tail", tail, low=1, high=windows.shape[1] - 1)
    sums, left, end = [], tail, windows.shape[1]
    while left > 0:
        count = min(stride, left)
        begin = max(0, end - width - 1)
        sums.append(losses_and_hits(model, windows[:, begin:end], count, device)[0].double().sum(1))
        left, end = left - count, end - count
    return (torch.stack(sums).sum(0) / tail).numpy()


def task_hits(
    model: Model, task: TaskBatches, length: int, count: int, *, first: int = 1 << 40, device: torch.device | None = None
) -> np.ndarray:
    """Return whether each of `count` samples is solved, float64 [count]: every target is right, given the tokens before it.

    These are the samples that greedy decoding solves. They are numbered from `first`, far beyond those of any training.
    """
    solved = []
    index = first + np.arange(integer("count", count, low=1))
    size = max(1, MOST_TOKENS // length)
    with evaluating(model, device) as device:
        for start in range(0, count, size):
            batch = task.batch(index[start : start + size], length).to(device)
            right = logits_of(model(batch.inputs)).argmax(-1) == batch.targets
            solved.append((right | (batch.targets == IGNORED)).all(1).cpu())
    return torch.cat(solved).double().numpy()


def depth_grid(
    model: Model,
    lengths: Sequence[int],
    depths: Sequence[float],
    count: int,
    *,
    task: str = "passkey",
    seed: int = 0,
    device: torch.device | None = None,
) -> dict[tuple[int, float], np.ndarray]:
    """Return, for each (length, depth), which samples of a retrieval task are solved, [count] each."""
    return {
        (length, depth): task_hits(model, TaskBatches(task, seed=seed, options=(("depth", depth),)), length, count, device=device)
        for length in lengths
        for depth in depths
    }
