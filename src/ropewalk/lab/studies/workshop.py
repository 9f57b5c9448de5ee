"""Where a study works: jobs done once and kept, one model a core side by side on a CPU, one after the other on a GPU.

A job that is done is a file; a killed study goes on with what is missing, and a killed training with its checkpoint.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ropewalk.lab.log import LOG, read_log
from ropewalk.lab.studies.rows import Row, digest, read_rows, write_rows

#: how often the bar looks at what the workers log
GLANCE = 1.0


@dataclass(frozen=True)
class Place:
    """What a job knows of where it runs: a folder for trained models, shared by all studies, and a device."""

    models: Path
    device: torch.device


@dataclass(frozen=True)
class Job:
    """Work by a function of a module, called with a place and settings that are plain data; it returns rows."""

    name: str
    work: Callable[..., list[Row]]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The name of its rows: other settings, another file."""
        return f"{self.name}-{digest(self.settings)}.jsonl"


class Workshop:
    """Runs the jobs of one study and keeps their rows."""

    def __init__(self, folder: Path, place: Place, settings: dict[str, Any], seeds: int, workers: int, quiet: bool) -> None:
        self.folder, self.place, self.settings, self.seeds = folder, place, settings, range(seeds)
        self.workers, self.quiet = workers if place.device.type == "cpu" else 1, quiet
        self.rows: list[Row] = []

    def each(self, jobs: Iterable[Job]) -> list[Row]:
        """The rows of all jobs in their order; those found on disk are not worked for again."""
        jobs = list(jobs)
        (self.folder / "jobs").mkdir(parents=True, exist_ok=True)
        missing = [job for job in jobs if not self._path(job).exists()]
        with _Bar(self.folder.name, len(jobs), len(jobs) - len(missing), self.quiet) as bar:
            if self.workers == 1 or len(missing) < 2:
                for job in missing:
                    self._done(job, _perform(self.place, job), bar)
            else:
                self._side_by_side(missing, bar)
        found = [row for job in jobs for row in read_rows(self._path(job))]
        self.rows += found
        return found

    def _path(self, job: Job) -> Path:
        return self.folder / "jobs" / job.file

    def _done(self, job: Job, outcome: tuple[list[Row], float], bar: _Bar) -> None:
        rows, seconds = outcome
        write_rows(self._path(job), rows)
        bar.advance(f"{job.name}, {seconds:.0f} s")

    def _side_by_side(self, jobs: list[Job], bar: _Bar) -> None:
        workers = min(self.workers, len(jobs))
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, context, initializer=_settle, initargs=(os.getpid(),))
        with _one_thread_each():
            # a worker is started by what is submitted, and takes the environment as it is then
            waiting: dict[Future, Job] = {pool.submit(_perform, self.place, job): job for job in jobs}
        try:
            while waiting:
                ended, _ = wait(waiting, timeout=GLANCE, return_when=FIRST_COMPLETED)
                bar.glance(self.place.models)
                for future in ended:
                    self._done(waiting.pop(future), future.result(), bar)
        finally:
            # what runs may save itself; what waits is dropped
            pool.shutdown(wait=True, cancel_futures=True)


def _perform(place: Place, job: Job) -> tuple[list[Row], float]:
    began = time.perf_counter()
    return job.work(place, **job.settings), time.perf_counter() - began


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes started inside have one OpenMP thread from the first: batched products do not heed a later wish."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _settle(parent: int) -> None:
    """A worker has one thread, leaves Ctrl-C to the training it runs, and ends when its parent is gone."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(GLANCE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _Bar:
    """Progress on a terminal, a line a job elsewhere, nothing where it is not wanted."""

    def __init__(self, title: str, total: int, done: int, quiet: bool) -> None:
        self.title, self.total, self.done, self.quiet = title, total, done, quiet
        self._bar: Any = None

    def __enter__(self) -> _Bar:
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            words = TextColumn("{task.description}", markup=False)
            self._bar = Progress(words, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=Console(stderr=True))
            self._task = self._bar.add_task(self.title, total=self.total, completed=self.done)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, said: str) -> None:
        self.done += 1
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, description=f"{self.title}: {said}")
        elif not self.quiet:
            print(f"{self.title}: {said} ({self.done} of {self.total})", file=sys.stderr, flush=True)

    def glance(self, models: Path) -> None:
        """Say where the trainings are that logged just now."""
        if self._bar is None:
            return
        recent = [path for path in sorted(models.glob(f"*/{LOG}")) if time.time() - path.stat().st_mtime < 15]
        last = [(path.parent.name.rsplit("-", 1)[0], read_log(path)) for path in recent]
        said = "  ".join(f"{name} step {log[-1]['step']} loss {log[-1]['loss']:.2f}" for name, log in last if "loss" in log[-1])
        if said:
            self._bar.update(self._task, description=f"{self.title}: {said}")
