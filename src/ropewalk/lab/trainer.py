"""One trainer for every model and objective: AdamW, stages, clipping, a log, checkpoints, and a resume that is exact.

A step depends on (settings, weights, step number) alone: data are functions of sample numbers, so there is no loader to
rewind. Losses stay on the device until the log is due, so no step waits for another.
"""

from __future__ import annotations

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
from ropewalk.lab import checkpoint
from ropewalk.lab.batches import Batch, Batches
from ropewalk.lab.distributed import Parallel
from ropewalk.lab.draws import fold
from ropewalk.lab.feed import Feed, Portion
from ropewalk.lab.gradients import GradientNorms, parameter_groups
from ropewalk.lab.interrupts import Interrupts
from ropewalk.lab.log import Log, Progress
from ropewalk.lab.objectives import Costed, Objective, answers
from ropewalk.lab.precision import autocast, usable
from ropewalk.lab.schedule import learning_rate
from ropewalk.lab.settings import Settings

logger = logging.getLogger("ropewalk.lab")


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `stopped` by the user or at a given step, or done."""

    step: int
    stopped: bool
    loss: float | None  # smoothed
    seconds: float


@dataclass(frozen=True)
class _Done:
    """A step whose numbers are still on the device."""

    portion: Portion
    rate: float
    total: float
    loss: Tensor
    norms: Tensor


class Trainer:
    """Trains `model` on `batches` by `objective`, which gives the sum of the losses of a batch's targets.

    With a `folder`, the log and checkpoints are kept there, and `run` goes on from the newest whole checkpoint. `evaluate`
    is called with the trainer every `settings.evaluate_every` steps, and what it returns is logged.
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
        self.parallel = Parallel() if parallel is None else parallel
        self.settings, self.batches, self.evaluate = settings, batches, evaluate
        self.folder = None if folder is None else Path(folder)
        if self.folder is not None and self.parallel.first:
            self.folder.mkdir(parents=True, exist_ok=True)
        self.model = model.to(self.parallel.device)
        self.wrapped = self.parallel.wrap(Costed(self.model, objective))
        self._called = torch.compile(self.wrapped) if settings.compile else self.wrapped
        self.optimizer = torch.optim.AdamW(
            parameter_groups(
                self.model,
                learning_rate=settings.learning_rate,
                weight_decay=settings.weight_decay,
                frequency_rate=settings.frequency_rate,
            ),
            betas=settings.betas,
            eps=settings.eps,
            fused=True,
        )
        self.norms = GradientNorms(self.model, self.parallel)
        self.log = Log(self.folder if self.parallel.first else None, tensorboard=tensorboard and self.parallel.first)
        self.step, self._average = 0, 0.0
        self._precision = usable(settings.precision, self.parallel.device)
        self._progress = progress and self.parallel.first
        self._waiting: list[_Done] = []

    def run(self, stop: int | None = None) -> Outcome:
        """Train to the last step, or to step `stop`; Ctrl-C saves after the step it came in."""
        began, steps = time.perf_counter(), self.settings.plan.steps
        if not self.step:
            torch.manual_seed(fold(self.settings.seed, self.parallel.rank))
        self.resume()
        last = steps if stop is None else min(stop, steps)
        bar = Progress(steps, self.step, self._progress)
        interrupted = False
        try:
            with Interrupts() as interrupts:
                interrupted = self._train(last, interrupts, bar)
        finally:
            bar.close()
            self.log.close()
        return Outcome(self.step, interrupted or self.step < steps, self.smoothed, time.perf_counter() - began)

    def _train(self, last: int, interrupts: Interrupts, bar: Progress) -> bool:
        """Steps up to `last`; True where the user broke in."""
        feed = Feed(self.batches, self.settings.plan, self.settings.accumulation, self.parallel)
        portions = feed.portions(self.step, last)
        clock, interrupted = time.perf_counter(), False
        self.wrapped.train()
        try:
            for portion in portions:
                # one small message a step: how many targets all ranks have, and whether any was told to stop
                total, stops = self.parallel.total(float(portion.count), float(interrupts.asked))
                self._waiting.append(self.take_step(portion, total))
                self.step += 1
                interrupted = stops > 0
                ends = interrupted or self.step == last
                saves = self.folder is not None and (ends or self.step % self.settings.save_every == 0)
                evaluates = self.evaluate is not None and self._due(self.settings.evaluate_every)
                if ends or saves or evaluates or self.step % self.settings.log_every == 0:
                    now = time.perf_counter()
                    self._flush(now - clock, bar)
                    clock = time.perf_counter()
                if evaluates:
                    clock += self._evaluate()
                if saves:
                    clock += self._save(must=ends)
                if interrupted:
                    break
        finally:
            portions.close()
        return interrupted

    def take_step(self, portion: Portion, total: float) -> _Done:
        """Forward, backward and update of one portion; `total` is the number of targets of all ranks."""
        settings, losses = self.settings, []
        for number, batch in enumerate(portion.parts):
            with self.parallel.part(self.wrapped, last=number + 1 == len(portion.parts)):
                with autocast(self._precision, self.parallel.device):
                    loss = self._called(batch)
                # ranks are averaged by those who gather gradients, so each counts `world` times
                (loss * (self.parallel.world / total)).backward()
            losses.append(loss.detach())
        norms = self.norms.measure()
        if settings.clip is not None:
            self.norms.clip(norms[0], settings.clip)
        rate = self.rate(portion.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["rate"]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return _Done(portion, rate, total, torch.stack(losses).sum(), norms)

    @torch.no_grad()
    def answer(self, tokens: Tensor, **given: Tensor) -> Tensor:
        """What the model says of tokens [B, S], however it is shared among ranks; in FSDP every rank must call."""
        with autocast(self._precision, self.parallel.device):
            return self.wrapped(Batch(tokens, tokens, 0, **given), answers)

    @property
    def smoothed(self) -> float | None:
        """The loss as an exponential moving average over the logged steps, without the pull of its start."""
        seen = self.step - len(self._waiting)
        return self._average / (1 - self.settings.smoothing**seen) if seen else None

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        s = self.settings
        return learning_rate(step, s.plan.steps, highest=s.learning_rate, schedule=s.schedule, warmup=s.warmup, final=s.final)

    def _due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0

    def _flush(self, seconds: float, bar: Progress) -> None:
        """Fetch the numbers of all waiting steps at once and log them."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        losses = self.parallel.sum_of_ranks(torch.stack([done.loss for done in waiting])).tolist()
        norms = torch.stack([done.norms for done in waiting]).tolist()
        rows = []
        for done, summed, norm in zip(waiting, losses, norms, strict=True):
            loss = summed / done.total if done.total else 0.0
            if not math.isfinite(loss):
                rule = f"must stay finite, and is not at step {done.portion.step + 1}; lower learning_rate or clip"
                raise RopeError("loss", rule, loss)
            self._average += (1 - self.settings.smoothing) * (loss - self._average)
            row = {"step": done.portion.step + 1, "loss": loss, "rate": done.rate, "gradient": norm[0]}
            rows.append({**row, "length": done.portion.length, "rows": done.portion.rows})
        tokens = sum(done.portion.length * done.portion.rows for done in waiting)
        speed = tokens / max(seconds, 1e-9)
        rows[-1] |= {
            "smoothed": self.smoothed,
            "gradients": dict(zip(self.norms.names, norms[-1][1:], strict=True)),
            "tokens_per_second": round(speed, 1),
            "data_seconds": round(sum(done.portion.seconds for done in waiting), 4),
            "seconds": round(seconds, 4),
        }
        if self.parallel.first:
            self.log.write(rows)
        bar.show(self.step, self.smoothed or 0.0, speed)

    def _evaluate(self) -> float:
        """Call the user's evaluation and log it; how long it took."""
        began = time.perf_counter()
        self.wrapped.eval()
        found = self.evaluate(self) if self.evaluate is not None else {}
        self.wrapped.train()
        if self.parallel.first:
            self.log.write([{"step": self.step, "evaluation": found}])
        return time.perf_counter() - began

    def _save(self, must: bool) -> float:
        """Save; a disk that is full costs the run nothing but this checkpoint, unless it is the last. How long it took."""
        began = time.perf_counter()
        try:
            self.save()
        except OSError as error:
            if must:
                raise
            logger.warning("step %d could not be saved (%s); training goes on, older checkpoints stay", self.step, error)
        return time.perf_counter() - began

    def save(self) -> None:
        """Write a checkpoint of this step; every rank must call."""
        if self.folder is None:
            raise RopeError("folder", "must be given to save checkpoints", None)
        files = {
            "model.safetensors": checkpoint.model_tensors(self.model, self.parallel),
            "optimizer.safetensors": checkpoint.optimizer_tensors(self.model, self.optimizer, self.parallel),
            "random.safetensors": checkpoint.random_tensors(self.parallel),
        }
        state = {"settings": self.settings.important(), "data": self.batches.fingerprint, "average": self._average}
        try:
            if self.parallel.first:
                checkpoint.write_checkpoint(self.folder, self.step, files, state, self.settings.keep)
        finally:
            self.parallel.wait()

    def resume(self) -> bool:
        """Go back to the newest whole checkpoint of the folder; False where there is none."""
        found = None if self.folder is None else checkpoint.newest(self.folder)
        if found is None or self.folder is None:
            return False
        state, tensors = found
        self._check_same(state)
        checkpoint.load_model(self.model, tensors["model.safetensors"])
        checkpoint.load_optimizer(self.model, self.optimizer, tensors["optimizer.safetensors"])
        self.step, self._average = state["step"], state["average"]
        if not checkpoint.load_random(tensors["random.safetensors"], self.parallel):
            torch.manual_seed(fold(self.settings.seed, self.parallel.rank, self.step))
        self._waiting.clear()
        if self.parallel.first:
            self.log.take_back(self.step)
        return True

    def _check_same(self, state: dict[str, Any]) -> None:
        """A run goes on only as what it was."""
        saved, own = state["settings"], _plain(self.settings.important())
        changed = sorted(name for name in saved.keys() | own.keys() if saved.get(name) != own.get(name))
        if changed:
            shown = {name: (saved.get(name), own.get(name)) for name in changed}
            raise RopeError("settings", f"must be those of the run in {self.folder}; use another folder to change", shown)
        if state["data"] != self.batches.fingerprint:
            raise RopeError("data", f"must be those of the run in {self.folder}, {state['data']}", self.batches.fingerprint)


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """As JSON gives them back: tuples as lists."""
    return {
        name: [dict(v) if isinstance(v, dict) else v for v in value] if isinstance(value, tuple | list) else value
        for name, value in settings.items()
    }
