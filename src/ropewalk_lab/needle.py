"""The score of LongRoPE2's search: the loss of the answer alone, to a question about the start of a
long text.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from ropewalk_lab.batches import IGNORED, TaskBatches
from ropewalk_lab.evaluation import MAX_TOKENS, Model, evaluating
from ropewalk_lab.objectives import logits_of

#: the sample number of the first text; evaluations and trainings use smaller numbers
FIRST = 1 << 41


def answer_loss(
    model: Model,
    length: int,
    count: int = 10,
    *,
    seed: int = 0,
    task: str = "passkey",
    device: torch.device | None = None,
) -> float:
    """Return the mean loss of the answer's tokens in `count` texts of `length` tokens that state
    the answer at the start.

    Other tokens do not count: most of them do not need a long context, so their loss would hide
    whether the model uses it.
    """
    needle = TaskBatches(task, seed=seed, options=(("depth", 0.0),))
    index = FIRST + np.arange(count)  # the numbers of the samples
    batch_size = max(1, MAX_TOKENS // length)  # samples in one forward pass
    total, num_targets = 0.0, 0
    with evaluating(model, device) as device:
        for start in range(0, count, batch_size):
            batch = needle.batch(index[start : start + batch_size], length).to(device)
            logits = logits_of(model(batch.inputs)).float().flatten(0, 1)
            total += float(
                F.cross_entropy(
                    logits, batch.targets.flatten(), ignore_index=IGNORED, reduction="sum"
                )
            )
            num_targets += int((batch.targets != IGNORED).sum())
    return total / num_targets
