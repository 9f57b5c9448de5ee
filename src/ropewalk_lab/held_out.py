"""Evaluate a model on a held-out part: loss, accuracy and the choice for each sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ropewalk_lab.data import FILE_OBJECTIVES, Part
from ropewalk_lab.distributed import Parallel
from ropewalk_lab.evaluation import MAX_TOKENS
from ropewalk_lab.objectives import OBJECTIVES, SCORES
from ropewalk_lab.progress import Progress

#: maximum number of logits in one forward pass of a language model
MAX_LOGITS = 1 << 26


@dataclass(frozen=True)
class Measured:
    """The mean loss in nats and the accuracy (0 to 1) over `count` targets; both are None if no
    target is known.

    choices  the index of the predicted class of each sample, for objectives with one target per
             sample; otherwise empty
    """

    loss: float | None
    accuracy: float | None
    count: int
    choices: tuple[int, ...] = ()

    @property
    def error(self) -> float | None:
        """The standard error of the accuracy, if targets are independent."""
        return (
            None
            if self.accuracy is None
            else math.sqrt(self.accuracy * (1 - self.accuracy) / self.count)
        )

    def numbers(self) -> dict[str, Any]:
        """Return loss, accuracy and count as plain data."""
        return {"loss": self.loss, "accuracy": self.accuracy, "count": self.count}


class _Output(nn.Module):
    """A model whose output is already known, so that a loss is computed without a second forward
    pass.
    """

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output

    def forward(self, *args: Any, **keywords: Any) -> Tensor:
        return self.output


@torch.no_grad()
def measure(
    predict: Callable[..., Tensor],
    part: Part,
    objective: str,
    length: int,
    parallel: Parallel | None = None,
    progress: str = "",
) -> Measured:
    """Return the mean loss, the accuracy and the chosen classes of a model on a held-out part.

    predict    a function from (tokens, **keywords) to the model's output
    objective  a name from OBJECTIVES
    length     tokens of a row
    parallel   None: this process alone
    progress   the title of a progress bar; empty: no bar
    """
    parallel = Parallel() if parallel is None else parallel
    batch_size = max(1, _batch_tokens(part, objective) // length)
    # 0: no sample is done yet
    bar = Progress(progress, part.count, 0, bool(progress) and parallel.first)
    loss, hits, count, choices = 0.0, 0.0, 0.0, []
    try:
        for start in range(0, part.count, batch_size):
            index = part.first + np.arange(start, min(start + batch_size, part.count))
            batch = parallel.shard(part.batches.batch(index, length)).to(parallel.device)
            output = predict(batch.inputs, **batch.keywords)
            chosen = SCORES[objective](output).argmax(-1)
            hits += (chosen == batch.targets).sum().item()
            # objectives return sums over the targets; some compute a mean first, which would be NaN
            # without a target
            loss += OBJECTIVES[objective](_Output(output), batch).item() if batch.count else 0.0
            count += batch.count
            if objective in FILE_OBJECTIVES:  # one target for each sample
                choices += chosen.tolist()
            bar.show(int(index[-1]) - part.first + 1, f"accuracy {hits / max(1, count):.1%}")
    finally:
        bar.close()
    if parallel.kind == "context":
        # each rank has a part of every row; otherwise each rank has evaluated all rows
        loss, hits, count = parallel.total(loss, hits, count)
    if not count:
        return Measured(loss=None, accuracy=None, count=0, choices=tuple(choices))
    return Measured(loss / count, hits / count, int(count), tuple(choices))


def _batch_tokens(part: Part, objective: str) -> int:
    """Return the bound on samples times tokens of a row in one forward pass.

    Samples with several rows, such as pairs, get a smaller bound, so that all rows together have at
    most MAX_TOKENS tokens. A language model may not have more than MAX_LOGITS logits either.
    """
    if objective in FILE_OBJECTIVES:
        rows_per_sample = {"pairs": 2, "triplets": 3, "classes": 1}[objective]
        return MAX_TOKENS // rows_per_sample
    return min(MAX_TOKENS, MAX_LOGITS // part.batches.vocab_size)
