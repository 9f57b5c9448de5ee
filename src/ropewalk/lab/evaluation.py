"""What a trained model can do: loss by context length on the same last tokens, sliding windows, tasks by length and depth.

A model here is anything that maps tokens [B, S] to logits [B, S, V]. Every result is one value a window, so that models
are compared in pairs (see `statistics`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.errors import RopeError, integer
from ropewalk.lab.batches import IGNORED, TaskBatches
from ropewalk.lab.objectives import tensor_of

Model = Callable[[Tensor], Tensor]
#: tokens of one forward pass
MOST_TOKENS = 16_384


def _device_of(model: Model) -> torch.device:
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return torch.device("cpu") if first is None else first.device


class _Evaluating:
    """The model in evaluation mode and without gradients, for as long as the block lasts."""

    def __init__(self, model: Model) -> None:
        self.model, self.was_training = model, isinstance(model, nn.Module) and model.training

    def __enter__(self) -> None:
        # not inference mode: tables that are kept would be of no use to a training step after it
        self._without = torch.no_grad()
        self._without.__enter__()
        if isinstance(self.model, nn.Module):
            self.model.eval()

    def __exit__(self, *error) -> None:
        self._without.__exit__(*error)
        if isinstance(self.model, nn.Module):
            self.model.train(self.was_training)


def scored(model: Model, rows: np.ndarray, last: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """(losses, hits) [N, last] of the last tokens of rows [N, L + 1], each from the L tokens before the end."""
    if not 1 <= last < rows.shape[1]:
        raise RopeError("last", f"must be from 1 to {rows.shape[1] - 1}, the tokens with something before them", last)
    device = _device_of(model) if device is None else device
    losses, hits = [], []
    with _Evaluating(model):
        for part in _chunks(rows):
            tokens = torch.from_numpy(part.astype(np.int64)).to(device)
            logits = tensor_of(model(tokens[:, :-1]))[:, -last:].float()
            targets = tokens[:, -last:]
            losses.append(F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets).cpu())
            hits.append((logits.argmax(-1) == targets).cpu())
    return torch.cat(losses), torch.cat(hits)


def _chunks(rows: np.ndarray) -> Iterable[np.ndarray]:
    size = max(1, MOST_TOKENS // rows.shape[1])
    return (rows[start : start + size] for start in range(0, len(rows), size))


def losses_by_length(
    model: Model, windows: np.ndarray, lengths: Sequence[int], tail: int, device: torch.device | None = None
) -> dict[int, np.ndarray]:
    """Length -> mean loss of the same last `tail` tokens of each window, seen with that much context: [N] each.

    Only the context grows: an average over whole windows would gain by length alone, for fewer tokens come early.
    """
    return {length: _tails(model, windows, length, tail, device)[0] for length in _fitting(windows, lengths, tail)}


def accuracy_by_length(
    model: Model, windows: np.ndarray, lengths: Sequence[int], tail: int, device: torch.device | None = None
) -> dict[int, np.ndarray]:
    """Length -> share of the same last `tail` tokens of each window that the model names: [N] each."""
    return {length: _tails(model, windows, length, tail, device)[1] for length in _fitting(windows, lengths, tail)}


def _tails(model: Model, windows: np.ndarray, length: int, tail: int, device: torch.device | None):
    losses, hits = scored(model, windows[:, -(length + 1) :], tail, device)
    return losses.double().mean(1).numpy(), hits.double().mean(1).numpy()


def _fitting(windows: np.ndarray, lengths: Sequence[int], tail: int) -> Sequence[int]:
    for length in lengths:
        integer("lengths", length, low=tail, high=windows.shape[1] - 1)
    return lengths


def sliding_losses(
    model: Model, windows: np.ndarray, width: int, tail: int, stride: int | None = None, device: torch.device | None = None
) -> np.ndarray:
    """Mean loss [N] of the last `tail` tokens when the model is run on pieces of `width` tokens, `stride` apart.

    Each token is foreseen from at least width - stride tokens before it, as if the text began there.
    """
    stride = max(1, width // 2) if stride is None else integer("stride", stride, low=1, high=width)
    integer("width", width, low=1, high=windows.shape[1] - 1)
    integer("tail", tail, low=1, high=windows.shape[1] - 1)
    found, left, end = [], tail, windows.shape[1]
    while left > 0:
        count = min(stride, left)
        begin = max(0, end - width - 1)
        found.append(scored(model, windows[:, begin:end], count, device)[0].double().sum(1))
        left, end = left - count, end - count
    return (torch.stack(found).sum(0) / tail).numpy()


def task_hits(
    model: Model, task: TaskBatches, length: int, count: int, *, first: int = 1 << 40, device: torch.device | None = None
) -> np.ndarray:
    """Whether each of `count` samples is solved: every token that counts is named, given those before it. float64 [count].

    Greedy decoding solves exactly these. Samples are counted from `first`, which no training reaches.
    """
    device = _device_of(model) if device is None else device
    solved = []
    index = first + np.arange(integer("count", count, low=1))
    size = max(1, MOST_TOKENS // length)
    with _Evaluating(model):
        for start in range(0, count, size):
            batch = task.batch(index[start : start + size], length).on(device)
            right = tensor_of(model(batch.inputs)).argmax(-1) == batch.targets
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
    """(length, depth) -> which samples of a retrieval task are solved there: [count] each."""
    return {
        (length, depth): task_hits(model, TaskBatches(task, seed=seed, options=(("depth", depth),)), length, count, device=device)
        for length in lengths
        for depth in depths
    }
