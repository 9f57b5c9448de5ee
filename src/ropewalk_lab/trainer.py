"""One trainer for every model and objective: AdamW, stages, clipping, a log, checkpoints, and exact
resume.

A step depends only on the settings, the weights and the step number: samples are numbered, so the
data loader has no state to restore. Losses stay on the device until the log is written, so that
steps do not synchronise with the device.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk_lab import checkpoint
from ropewalk_lab.batches import Batch, Batches
from ropewalk_lab.distributed import Parallel
from ropewalk_lab.gradients import GradientNorms, parameter_groups
from ropewalk_lab.loader import Loader, StepData
from ropewalk_lab.log import Log
from ropewalk_lab.objectives import ModelWithObjective, Objective, predict
from ropewalk_lab.precision import autocast, usable_precision
from ropewalk_lab.progress import Progress
from ropewalk_lab.schedule import learning_rate
from ropewalk_lab.settings import Settings
from ropewalk_lab.stateless_random import fold
from ropewalk_lab.stop_signals import StopSignals

logger = logging.getLogger("ropewalk_lab")


@dataclass(frozen=True)
class Outcome:
    """How a run ended: after how many steps, and in how many seconds; `stopped` is True if a signal
    ended it or the last step was not reached.
    """

    step: int
    stopped: bool
    loss: float | None  # smoothed
    seconds: float


@dataclass(frozen=True)
class _StepResult:
    """A finished step whose loss and norms are still on the device.

    rate   the learning rate
    total  the number of targets of all ranks
    loss   the loss summed over the targets of this rank
    norms  the norm of all gradients, then of each group of `GradientNorms.names`
    """

    data: StepData
    rate: float
    total: float
    loss: Tensor
    norms: Tensor


class Trainer:
    """Trains `model` on `batches` with `objective`, which returns the loss summed over the targets
    of a batch.

    With a `folder`, the log and checkpoints are written there, and `run` continues from the newest
    undamaged checkpoint. `evaluate` is called with the trainer every `settings.evaluate_every`
    steps, and its result is logged. `parallel` are the ranks that train together (None: this
    process alone). `step` is the number of finished steps.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        objective: Objective,
        settings: Settings,
        folder: str | Path | None = None,
        *,
        parallel: Parallel | None = None,
        evaluate: Callable[[Trainer], dict[str, Any]] | None = None,
        tensorboard: bool = False,
        progress: bool = True,
    ) -> None:
        """Move the model to its device, wrap it for several ranks, and make the optimizer and the
        log.
        """
        self.parallel = Parallel() if parallel is None else parallel
        self.settings, self.batches, self.evaluate = settings, batches, evaluate
        self.folder = None if folder is None else Path(folder)
        if self.folder is not None and self.parallel.first:
            self.folder.mkdir(parents=True, exist_ok=True)
        self.model = model.to(self.parallel.device)
        self.wrapped = self.parallel.wrap(ModelWithObjective(self.model, objective))
        self._compiled = torch.compile(self.wrapped) if settings.compile else self.wrapped
        rates = {"learning_rate": settings.learning_rate, "frequency_rate": settings.frequency_rate}
        groups = parameter_groups(self.model, weight_decay=settings.weight_decay, **rates)
        self.optimizer = torch.optim.AdamW(
            groups, betas=settings.betas, eps=settings.eps, fused=True
        )
        self.norms = GradientNorms(self.model, self.parallel)
        self.log = Log(self.folder if self.parallel.first else None, tensorboard=tensorboard)
        self.step, self._average = 0, 0.0
        self._precision = usable_precision(settings.precision, self.parallel.device)
        self._progress = progress and self.parallel.first
        self._unlogged: list[_StepResult] = []

    def run(self, stop: int | None = None) -> Outcome:
        """Train to the last step, or to step `stop`; Ctrl-C or SIGTERM ends the run after the
        current step, and a run with a folder saves a checkpoint.
        """
        began, steps = time.perf_counter(), self.settings.steps
        if not self.step:  # after a first `run`, the next one goes on with its random numbers
            torch.manual_seed(fold(self.settings.seed, self.parallel.rank))
        if not self.resume() and self.folder is not None and self.parallel.first:
            # remove the rows of a run that was killed before its first checkpoint
            self.log.truncate(self.step)
        last = steps if stop is None else min(stop, steps)
        bar = Progress("train", steps, self.step, self._progress)
        interrupted = False
        try:
            with StopSignals() as signals:
                interrupted = self._train(last, signals, bar)
        finally:
            bar.close()
            self.log.close()
        return Outcome(
            self.step, interrupted or self.step < steps, self.smoothed, time.perf_counter() - began
        )

    def _train(self, last: int, signals: StopSignals, bar: Progress) -> bool:
        """Train until `last` steps of the run are finished, or a signal is received, and return
        whether one was.
        """
        loader = Loader(
            self.batches, self.settings.stages, self.settings.accumulation, self.parallel
        )
        steps = loader.steps(self.step, last)
        clock, interrupted = time.perf_counter(), False
        self.wrapped.train()
        try:
            for data in steps:
                # one small all-reduce per step: the number of targets of all ranks, and of ranks that
                # received a signal, on which all ranks stop together
                total, stops = self.parallel.total(float(data.count), float(signals.received))
                self._unlogged.append(self.take_step(data, total))
                self.step += 1
                interrupted = stops > 0
                ends = interrupted or self.step == last
                saves = self.folder is not None and (
                    ends or self.step % self.settings.save_every == 0
                )
                every = self.settings.evaluate_every
                evaluates = self.evaluate is not None and every > 0 and self.step % every == 0
                if ends or saves or evaluates or self.step % self.settings.log_every == 0:
                    self._write_log(time.perf_counter() - clock, bar)
                    clock = time.perf_counter()
                # the seconds of an evaluation and of a checkpoint are not counted as training
                if evaluates:
                    clock += self._evaluate()
                if saves:
                    clock += self._save(must=ends)
                if interrupted:
                    break
        finally:
            steps.close()  # ends the thread that loads ahead
        return interrupted

    def take_step(self, data: StepData, total: float) -> _StepResult:
        """Run the forward and backward passes and the update of one step; `total` is the number of
        targets of all ranks.
        """
        settings, losses = self.settings, []
        for number, batch in enumerate(data.micro_batches):
            with self.parallel.micro_batch(
                self.wrapped, last=number + 1 == len(data.micro_batches)
            ):
                with autocast(self._precision, self.parallel.device):
                    loss = self._compiled(batch)
                # DDP and FSDP average gradients over the ranks, so each loss is multiplied by their
                # number; the loss of a step without targets is 0
                (loss * (self.parallel.world / max(total, 1.0))).backward()
            losses.append(loss.detach())
        norms = self.norms.measure()
        if settings.clip is not None:
            self.norms.clip(norms[0], settings.clip)
        rate = self.rate(data.step)
        # a group has its own multiple of the learning rate, as "rate"
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["rate"]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return _StepResult(data, rate, total, torch.stack(losses).sum(), norms)

    @torch.no_grad()
    def predict(self, tokens: Tensor, **keywords: Tensor) -> Tensor:
        """Return the model's logits for tokens [B, S]; with FSDP every rank must call this."""
        with autocast(self._precision, self.parallel.device):
            # the targets are not read
            return self.wrapped(Batch(tokens, tokens, 0, **keywords), predict)

    @property
    def smoothed(self) -> float | None:
        """The exponential moving average of the loss over the logged steps, corrected for its start
        at zero; None before the first is logged.
        """
        logged = self.step - len(self._unlogged)
        return self._average / (1 - self.settings.smoothing**logged) if logged else None

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        s = self.settings
        return learning_rate(
            step,
            s.steps,
            highest=s.learning_rate,
            schedule=s.schedule,
            warmup=s.warmup,
            final=s.final,
        )

    def _write_log(self, seconds: float, bar: Progress) -> None:
        """Copy the losses and norms of all unlogged steps from the device at once, and log a row
        for each; `seconds` is their time together. Raise an error if a loss is not finite.
        """
        results, self._unlogged = self._unlogged, []
        if not results:
            return
        losses = self.parallel.sum_of_ranks(
            torch.stack([result.loss for result in results])
        ).tolist()
        norms = torch.stack([result.norms for result in results]).tolist()
        rows = []
        for result, summed, norm in zip(results, losses, norms, strict=True):
            data, loss = result.data, summed / result.total if result.total else 0.0
            if not math.isfinite(loss):
                rule = (
                    f"must stay finite, but is not at step {data.step + 1}; lower learning_rate or "
                    "clip"
                )
                raise RopeError("loss", rule, loss)
            self._average += (1 - self.settings.smoothing) * (loss - self._average)
            row = {"step": data.step + 1, "loss": loss, "rate": result.rate, "gradient": norm[0]}
            rows.append({**row, "length": data.length, "rows": data.rows})
        tokens = sum(result.data.length * result.data.rows for result in results)
        speed = tokens / max(seconds, 1e-9)
        # what was measured over all these steps is in the row of the last one
        rows[-1] |= {
            "smoothed": self.smoothed,
            "gradients": dict(zip(self.norms.names, norms[-1][1:], strict=True)),
            "tokens_per_second": round(speed, 1),
            "data_seconds": round(sum(result.data.seconds for result in results), 4),
            "seconds": round(seconds, 4),
        }
        if self.parallel.first:
            self.log.write(rows)
        bar.show(self.step, f"loss {self.smoothed or 0.0:.4f}  {speed:,.0f} tokens/s")

    def _evaluate(self) -> float:
        """Call the user's evaluation and log its result; return the seconds it took."""
        began = time.perf_counter()
        self.wrapped.eval()
        result = self.evaluate(self) if self.evaluate is not None else {}
        self.wrapped.train()
        if self.parallel.first:
            self.log.write([{"step": self.step, "evaluation": result}])
        return time.perf_counter() - began

    def _save(self, must: bool) -> float:
        """Save and return the seconds it took; an OSError, such as a full disk, is only a warning
        unless `must` is True.
        """
        began = time.perf_counter()
        try:
            self.save()
        except OSError as error:
            if must:
                raise
            logger.warning(
                "step %d could not be saved (%s); training continues, older checkpoints are kept",
                self.step,
                error,
            )
        return time.perf_counter() - began

    def save(self) -> None:
        """Write a checkpoint of this step; every rank must call this."""
        if self.folder is None:
            raise RopeError("folder", "must be given to save checkpoints", None)
        files = {
            "model.safetensors": checkpoint.model_tensors(self.model),
            "optimizer.safetensors": checkpoint.optimizer_tensors(self.model, self.optimizer),
            "random.safetensors": checkpoint.random_states(self.parallel),
        }
        state = {
            "settings": self.settings.fixed(),
            "data": self.batches.fingerprint,
            "average": self._average,
        }
        try:
            if self.parallel.first:
                checkpoint.write_checkpoint(
                    self.folder, self.step, files, state, self.settings.keep
                )
        finally:
            self.parallel.wait()

    def resume(self) -> bool:
        """Restore the newest undamaged checkpoint of the folder and return True; return False if
        there is none. Raise an error if it is of other settings or other data.
        """
        saved = None if self.folder is None else checkpoint.read_newest(self.folder)
        if saved is None:
            return False
        state, tensors = saved
        self._check_same(state)
        checkpoint.load_model(self.model, tensors["model.safetensors"])
        checkpoint.load_optimizer(self.model, self.optimizer, tensors["optimizer.safetensors"])
        self.step, self._average = state["step"], state["average"]
        if not checkpoint.load_random(tensors["random.safetensors"], self.parallel):
            # the number of ranks or the device has changed: new random numbers for this step
            torch.manual_seed(fold(self.settings.seed, self.parallel.rank, self.step))
        self._unlogged.clear()
        if self.parallel.first:
            self.log.truncate(self.step)
        return True

    def _check_same(self, state: dict[str, Any]) -> None:
        """Raise an error if the checkpoint was saved by a run with different settings or data."""
        # through JSON, as the saved settings were: tuples become lists
        saved, current = state["settings"], json.loads(json.dumps(self.settings.fixed()))
        changed = sorted(
            name for name in saved.keys() | current.keys() if saved.get(name) != current.get(name)
        )
        if changed:
            shown = {name: (saved.get(name), current.get(name)) for name in changed}
            raise RopeError(
                "settings",
                f"must be those of the run in {self.folder}; use a new folder for other settings",
                shown,
            )
        if state["data"] != self.batches.fingerprint:
            raise RopeError(
                "data",
                f"must be those of the run in {self.folder}, {state['data']}; use a new folder for "
                "other data",
                self.batches.fingerprint,
            )
