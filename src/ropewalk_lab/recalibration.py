"""Recalibration: train a language model whose position encoding was changed for some steps, at its
old length, until it works again.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ropewalk.errors import RopeError, integer, number
from ropewalk.models.decoder import Decoder
from ropewalk_lab.evaluation import modes_kept


def recalibrate(
    model: Decoder,
    tokens: Tensor,
    steps: int,
    *,
    batch: int = 8,
    rate: float = 1e-4,
    warmup: int = 100,
    seed: int = 0,
    log: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train all parameters that require gradients with AdamW and return the loss of each step; the
    model is changed in place.

    tokens  integer [rows, length]: rows are drawn at random, with repetition, and `length` should
            be the trained length of the model
    batch   rows of one step
    rate    the learning rate, reached after `warmup` steps and then constant, as in DroPE, whose
            authors use 1e-4 to 3e-4
    log     called with each step and its loss
    """
    if tokens.ndim != 2 or tokens.shape[1] < 2 or not len(tokens):
        raise RopeError(
            "tokens", "must be [rows, length] with at least two tokens in a row", list(tokens.shape)
        )
    integer("steps", steps, low=0)
    integer("batch", batch, low=1)
    number("rate", rate, above=0)
    integer("warmup", warmup, low=0)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise RopeError("model", "must have parameters that require gradients", 0)
    device = parameters[0].device
    optimiser = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, (step + 1) / max(1, warmup))
    )
    generator = torch.Generator().manual_seed(integer("seed", seed, low=0))
    losses = []
    with modes_kept(model):
        model.train()
        for step in range(steps):
            rows = torch.randint(len(tokens), (batch,), generator=generator)
            loss = model.loss(tokens[rows].to(device))
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
            schedule.step()
            losses.append(float(loss.detach()))
            if log is not None:
                log(step, losses[-1])
    return losses
