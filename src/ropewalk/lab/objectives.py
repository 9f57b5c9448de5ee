"""What a batch costs: the sum over its targets, so that any cut into parts and ranks adds up to the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.errors import RopeError
from ropewalk.lab.batches import IGNORED, Batch

#: (model, batch) -> the sum of the losses of its `batch.count` targets
Objective = Callable[[nn.Module, Batch], Tensor]


def tensor_of(output: Any) -> Tensor:
    """A model's answer: a tensor, or what it calls `logits`."""
    found = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(found, Tensor):
        raise RopeError("model", "must return a tensor, or something with .logits", type(output).__name__)
    return found


class Costed(nn.Module):
    """A model with its objective, so that what copies, shards or compiles a module sees the whole of a step."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch, objective: Objective | None = None) -> Tensor:
        return (self.objective if objective is None else objective)(self.model, batch)


def answers(model: nn.Module, batch: Batch) -> Tensor:
    """What the model says of a batch; no loss."""
    return tensor_of(model(batch.inputs, **batch.given))


def language(model: nn.Module, batch: Batch) -> Tensor:
    """Causal and masked language modelling: they differ in their batches only.

    A model that knows its own mean `loss` (without all logits in memory, with its experts' balance) is asked for it.
    """
    if hasattr(type(model), "loss"):
        return model.loss(batch.inputs, batch.targets, **batch.given) * batch.count  # type: ignore[operator]
    logits = answers(model, batch).flatten(0, -2).float()
    return F.cross_entropy(logits, batch.targets.flatten(), reduction="sum", ignore_index=IGNORED)


def pairs(model: nn.Module, batch: Batch) -> Tensor:
    """Which of two pairs (A, B), (A, C) belongs together: rows in twos, one score a row, a softmax of two."""
    scores = answers(model, batch).float().view(-1, 2)
    return F.cross_entropy(scores, batch.targets, reduction="sum")


def triplets(model: nn.Module, batch: Batch, margin: float = 0.2) -> Tensor:
    """Which of B and C is nearer to A, by cosine of embeddings [3B, D]; rows in threes A, B, C."""
    vectors = F.normalize(answers(model, batch).float(), dim=-1)
    a, b, c = vectors.unflatten(0, (-1, 3)).unbind(1)
    lead = ((a * b).sum(-1) - (a * c).sum(-1)) * torch.where(batch.targets == 0, 1.0, -1.0)
    return F.relu(margin - lead).sum()


#: what is learned, by name: a function of (model, batch) that gives the sum of the losses of its targets
OBJECTIVES: dict[str, Objective] = {"causal": language, "masked": language, "pairs": pairs, "triplets": triplets}
