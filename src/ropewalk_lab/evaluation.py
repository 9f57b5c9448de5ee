"""Evaluate a model: loss by context length, loss with sliding windows, and accuracy on tasks by
length and depth.

A model is any function from tokens [B, S] to logits [B, S, V]. A window is a sequence of held-out
text. The results have one value per window, or per sample of a task, so that two models can be
compared on each (see `scores`). The argument `device` is by default that of the model's parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.errors import RopeError, integer
from ropewalk_lab.batches import BEYOND_TRAINING, IGNORED, TaskBatches
from ropewalk_lab.objectives import logits_of

Model = Callable[[Tensor], Tensor]
#: maximum number of tokens in one forward pass, unless a single row has more
MAX_TOKENS = 16_384


@contextmanager
def modes_kept(module: nn.Module) -> Iterator[None]:
    """Context manager: at the end every module in it gets back its mode, training or evaluation."""
    was_training = [(each, each.training) for each in module.modules()]
    try:
        yield
    finally:
        module.train(was_training[0][1])  # a module may do more in `train` than set its mode
        for each, mode in was_training:
            each.training = mode


@contextmanager
def evaluating(model: Model, device: torch.device | None = None) -> Iterator[torch.device]:
    """Context manager: evaluation mode without gradients; yields `device`, by default the device of
    the model's parameters, the CPU if it has none.
    """
    # a plain function has no mode and no parameters; an Identity stands in for it
    module = model if isinstance(model, nn.Module) else nn.Identity()
    parameter = next(module.parameters(), None)
    # not inference_mode: tensors that a model caches in it could not be used by a later training
    # step
    with modes_kept(module), torch.no_grad():
        module.eval()
        yield device or (torch.device("cpu") if parameter is None else parameter.device)


def losses_and_hits(
    model: Model, rows: np.ndarray, tail: int, device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Return the loss of the last `tail` tokens of rows [N, L + 1], in nats, and whether the argmax
    is correct, bool; both are [N, tail] on the CPU.
    """
    if not 1 <= tail < rows.shape[1]:
        raise RopeError(
            "tail",
            f"must be from 1 to {rows.shape[1] - 1}, the number of tokens that have a context",
            tail,
        )
    losses, hits = [], []
    batch_size = max(1, MAX_TOKENS // rows.shape[1])
    with evaluating(model, device) as device:
        for start in range(0, len(rows), batch_size):
            tokens = torch.from_numpy(rows[start : start + batch_size].astype(np.int64)).to(device)
            logits = logits_of(model(tokens[:, :-1]))[:, -tail:].float()
            targets = tokens[:, -tail:]
            losses.append(
                F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
                .view_as(targets)
                .cpu()
            )
            hits.append((logits.argmax(-1) == targets).cpu())
    return torch.cat(losses), torch.cat(hits)


def tail_means(
    model: Model, windows: np.ndarray, length: int, tail: int, device: torch.device | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean loss and accuracy, both [N], of the last `tail` tokens of each window; the
    model reads only the last `length` + 1 tokens of it: `length` inputs, and the last target.
    """
    integer("lengths", length, low=tail, high=windows.shape[1] - 1)
    losses, hits = losses_and_hits(model, windows[:, -(length + 1) :], tail, device)
    return losses.double().mean(1).numpy(), hits.double().mean(1).numpy()


def losses_by_length(
    model: Model,
    windows: np.ndarray,
    lengths: Sequence[int],
    tail: int,
    device: torch.device | None = None,
) -> dict[int, np.ndarray]:
    """Return {length: mean loss [N]} of the same last `tail` tokens of each window, as `tail_means`
    measures it at each length.

    The mean over all tokens would decrease with the length for any model, since a smaller share of
    tokens has a short context.
    """
    return {length: tail_means(model, windows, length, tail, device)[0] for length in lengths}


def sliding_losses(
    model: Model,
    windows: np.ndarray,
    width: int,
    tail: int,
    stride: int | None = None,
    device: torch.device | None = None,
) -> np.ndarray:
    """Return the mean loss [N] of the last `tail` tokens of each window, which the model reads in
    chunks of `width` tokens.

    Chunks start `stride` tokens apart, by default half of `width`. So each token has more than
    width - stride tokens of context, or all that precede it in the window. Positions start at 0 in
    every chunk.
    """
    stride = max(1, width // 2) if stride is None else integer("stride", stride, low=1, high=width)
    integer("width", width, low=1, high=windows.shape[1] - 1)
    integer("tail", tail, low=1, high=windows.shape[1] - 1)
    # from the last chunk of a window to the first: each gives the losses of its last tokens, at
    # most `stride`; it has one token more than `width`, which is only a target
    sums, remaining, end = [], tail, windows.shape[1]
    while remaining > 0:
        count = min(stride, remaining)
        begin = max(0, end - width - 1)
        sums.append(losses_and_hits(model, windows[:, begin:end], count, device)[0].double().sum(1))
        remaining, end = remaining - count, end - count
    return (torch.stack(sums).sum(0) / tail).numpy()


def task_hits(
    model: Model,
    task: TaskBatches,
    length: int,
    count: int,
    *,
    first: int = BEYOND_TRAINING,
    device: torch.device | None = None,
) -> np.ndarray:
    """Return 1.0 for each solved sample and 0.0 for the others, [count]; solved means that every
    target is predicted correctly.

    Greedy decoding solves the same samples, although the model reads the whole answer here: a
    wrong token counts as a failure in both. Sample numbers start at `first`, by default beyond
    those of trainings.
    """
    solved = []
    index = first + np.arange(integer("count", count, low=1))
    batch_size = max(1, MAX_TOKENS // length)
    with evaluating(model, device) as device:
        for start in range(0, count, batch_size):
            batch = task.batch(index[start : start + batch_size], length).to(device)
            correct = logits_of(model(batch.inputs)).argmax(-1) == batch.targets
            solved.append((correct | (batch.targets == IGNORED)).all(1).cpu())
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
    """Return, for each (length, depth), which of `count` samples of a retrieval task are solved:
    1.0 or 0.0, [count].

    The depth is where the text to be retrieved lies: 0 at the start of the context, 1 at its end.
    """
    return {
        (length, depth): task_hits(
            model,
            TaskBatches(task, seed=seed, options=(("depth", depth),)),
            length,
            count,
            device=device,
        )
        for length in lengths
        for depth in depths
    }
