"""Training losses, summed over targets: the losses of micro-batches and ranks add up to the loss of
the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.errors import RopeError
from ropewalk_lab.batches import IGNORED, Batch

#: (model, batch) -> the sum of the losses of its `batch.count` targets
Objective = Callable[[nn.Module, Batch], Tensor]


def logits_of(output: Any) -> Tensor:
    """Return the logits of a model's output: the output itself if it is a tensor, or its `logits`."""
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        raise RopeError(
            "model", "must return a tensor, or an object with .logits", type(output).__name__
        )
    return logits


class ModelWithObjective(nn.Module):
    """A model and its objective as one module, so that DDP, FSDP and torch.compile wrap the whole
    forward pass.
    """

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch, objective: Objective | None = None) -> Tensor:
        """Return what the objective gives for a batch; `objective` replaces that of `__init__`."""
        return (self.objective if objective is None else objective)(self.model, batch)


def predict(model: nn.Module, batch: Batch) -> Tensor:
    """Return the model's logits for a batch, without a loss."""
    return logits_of(model(batch.inputs, **batch.keywords))


def language(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss of causal or masked language modelling, summed over the targets; the two
    differ only in their batches.

    If the model has a method `loss` (for chunked logits or the balance loss of experts), its mean
    is used, times the number of targets.
    """
    if hasattr(type(model), "loss"):
        return model.loss(batch.inputs, batch.targets, **batch.keywords) * batch.count  # type: ignore[operator]
    logits = predict(model, batch).flatten(0, -2).float()
    return F.cross_entropy(logits, batch.targets.flatten(), reduction="sum", ignore_index=IGNORED)


def pairs(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss of choosing between the rows (A, B) and (A, C), summed over the samples: one
    score per row, a softmax over both.
    """
    return F.cross_entropy(pair_scores(predict(model, batch)), batch.targets, reduction="sum")


def triplets(model: nn.Module, batch: Batch, margin: float = 0.2) -> Tensor:
    """Return the margin loss of the cosines of text A with texts B and C, summed over the samples:
    it is 0 once the cosine with the closer text is larger by `margin`.

    The model embeds the texts A, B and C of N samples as [3 N, D]. Target 0: A is more like B; 1:
    more like C; IGNORED: the sample does not count.
    """
    with_b, with_c = cosines(predict(model, batch)).unbind(-1)
    # how much larger the cosine with the closer text is
    margin_of_target = (with_b - with_c) * torch.where(batch.targets == 0, 1.0, -1.0)
    return (F.relu(margin - margin_of_target) * (batch.targets != IGNORED)).sum()


def classes(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss of classifying every row, summed over the rows: a softmax over the model's
    logits [B, classes].
    """
    return F.cross_entropy(class_scores(predict(model, batch)), batch.targets, reduction="sum")


def pair_scores(output: Tensor) -> Tensor:
    """Return the scores [N, 2] of texts B and C in N samples, from the 2 N scores of the rows (A,
    B) and (A, C), which alternate.
    """
    return output.float().view(-1, 2)


def cosines(output: Tensor) -> Tensor:
    """Return the cosines [N, 2] of text A with texts B and C in N samples, from the vectors [3 N,
    D] of A, B and C of the first sample, then of the second, and so on.
    """
    a, b, c = F.normalize(output.float(), dim=-1).unflatten(0, (-1, 3)).unbind(1)
    return torch.stack(((a * b).sum(-1), (a * c).sum(-1)), dim=-1)


def class_scores(output: Tensor) -> Tensor:
    """Return the logits, float32; each target is the index of one of them."""
    return output.float()


#: objectives by name
OBJECTIVES: dict[str, Objective] = {
    "causal": language,
    "masked": language,
    "pairs": pairs,
    "triplets": triplets,
    "classes": classes,
}
#: objective -> function from the model's output to scores [..., choices]; the highest score is the
#: prediction of a target
SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "causal": class_scores,
    "masked": class_scores,
    "pairs": pair_scores,
    "triplets": cosines,
    "classes": class_scores,
}
