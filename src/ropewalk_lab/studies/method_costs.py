"""The costs of the models of the study `methods`: time and peak memory of a training step and of
reading a long text.

Words of this module:
  row     one measurement: the "milliseconds" of each call, or the peak "bytes"; its fields are
          `model`, the method, and `what` was called
  method  a name of TRAINED, of a model trained with it, or one that changes a trained RoPE model;
          DROPE removes its rotation
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ropewalk.models.migrate import migrate
from ropewalk_lab.data import make_data
from ropewalk_lab.precision import autocast, usable_precision
from ropewalk_lab.runs import make_model
from ropewalk_lab.studies import training
from ropewalk_lab.studies.jobs import Workspace
from ropewalk_lab.studies.method_models import DROPE, TRAINED, adapted, new_model, preset_of
from ropewalk_lab.studies.rows import Row, row

#: bytes and special tokens
VOCABULARY = 264


def costs(
    workspace: Workspace,
    *,
    methods: list[str],
    multiple: int,
    preset: str,
    changes: list[str],
    repeats: int,
) -> list[Row]:
    """Return rows with milliseconds and, on a GPU, peak bytes: of a training step, and of a forward
    pass without gradients over `multiple` times the trained length.

    Models are untrained. A method that changes a trained RoPE model has no training step of its
    own. `repeats` calls are timed. `preset` and `changes` are the training preset and changes of
    its settings.
    """
    rows = []
    for method in methods:
        base = method if method in TRAINED else "rope"  # the model that the method begins with
        # the seed, here and below, is 0: costs do not depend on it
        full_preset = preset_of(base, preset, changes, 0)
        stage = full_preset.train.stages[0]
        precision = usable_precision(full_preset.train.precision, workspace.device)
        model: Any = make_model(
            dict(full_preset.model), make_data(full_preset.data), full_preset.train, VOCABULARY
        )
        model = new_model(base, model, 0).to(workspace.device)
        if method in TRAINED:
            tokens = torch.randint(256, (stage.batch, stage.length), device=workspace.device)
            rows += _cost(
                workspace.device,
                "step",
                lambda: _step(model, tokens, precision),  # noqa: B023
                repeats,
                model=method,
            )
        elif method == DROPE:
            model = migrate(model, to=DROPE).model
        else:
            model = adapted(model, method, multiple, training.trained_length(full_preset))
        text = torch.randint(
            256, (1, multiple * training.trained_length(full_preset)), device=workspace.device
        )
        rows += _cost(workspace.device, "read", lambda: _read(model, text), repeats, model=method)  # noqa: B023
    return rows


def _step(model: Any, tokens: Tensor, precision: str) -> None:
    """Run the forward and backward pass of a training step on tokens [B, S]."""
    with autocast(precision, tokens.device):
        loss = model.loss(tokens)
    loss.backward()
    model.zero_grad(set_to_none=True)


@torch.no_grad()
def _read(model: Any, tokens: Tensor) -> None:
    """Run a forward pass in float32, as the losses are measured."""
    model.features(tokens)


def _cost(
    device: torch.device, what: str, call: Callable[[], None], repeats: int, **fields: Any
) -> list[Row]:
    """Return a row with the milliseconds of each of `repeats` calls, after one that is not counted,
    and on a GPU a row with the peak memory.

    what    the name of the call in the rows: "step" or "read"
    fields  further fields of the rows
    """
    is_gpu = device.type == "cuda"
    call()
    if is_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    times = []
    for _ in range(repeats):
        _wait(device)
        began = time.perf_counter()
        call()
        _wait(device)
        times.append(1000 * (time.perf_counter() - began))
    peak = (
        [row("bytes", torch.cuda.max_memory_allocated(device), what=what, **fields)]
        if is_gpu
        else []
    )
    return [row("milliseconds", times, what=what, **fields), *peak]


def _wait(device: torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
