"""Run the jobs of a study, one after the other or in parallel processes; finished jobs are not run
again.

The rows of each finished job are stored in a file. A killed study resumes with the unfinished jobs,
and a killed training resumes from its checkpoint.

A row is one measurement: a dict with a metric, its values, and fields that say what was measured.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ropewalk_lab.log import LOG, read_log
from ropewalk_lab.progress import Progress
from ropewalk_lab.studies.rows import Row, digest, read_rows, write_rows

#: seconds between two reads of the workers' logs
POLL = 1.0
#: seconds between two lines of progress where there is no terminal
LINES = 15.0
#: a training that wrote to its log in the last RECENT seconds is running
RECENT = 15.0


@dataclass(frozen=True)
class Workspace:
    """Where a job runs: the folder of trained models, which all studies share, and the device."""

    models: Path
    device: torch.device


@dataclass(frozen=True)
class Job:
    """A module-level function `work` that is called with the workspace and with `settings` (plain
    data) as its keyword arguments, and returns rows.
    """

    name: str
    work: Callable[..., list[Row]]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The name of the file with the rows; it depends on the settings."""
        return f"{self.name}-{digest(self.settings)}.jsonl"


class JobRunner:
    """Runs the jobs of one study and collects their rows."""

    def __init__(
        self,
        folder: Path,
        workspace: Workspace,
        settings: dict[str, Any],
        seeds: int,
        workers: int,
        quiet: bool,
    ) -> None:
        """Prepare to run jobs in `workers` processes, with seeds from 0 to `seeds` - 1.

        folder    of the study, in which `jobs` keeps the rows of each job
        settings  those of the study
        quiet     whether no progress is shown
        """
        self.folder, self.workspace = folder, workspace
        self.settings, self.seeds = settings, range(seeds)
        self.workers, self.quiet = workers, quiet
        self.rows: list[Row] = []

    def pick(self, *names: str) -> dict[str, Any]:
        """Return some of the study's settings."""
        return {name: self.settings[name] for name in names}

    def run_each(
        self,
        work: Callable[..., list[Row]],
        field: str,
        values: Iterable,
        name: Callable[[Any], str] = str,
        /,
        **shared: Any,
    ) -> list[Row]:
        """Run a job for each seed and each value of a setting, and return the rows of all.

        field   the argument of `work` that gets the value; `shared` are its other arguments,
                besides the seed
        name    a function from the value to the name of the job, without its seed
        """
        # `/` in the signature lets `shared` have arguments named `work`, `field`, `values` or `name`
        each = [(seed, value) for seed in self.seeds for value in values]
        return self.run(
            Job(f"{name(value)}-{seed}", work, {field: value, "seed": seed, **shared})
            for seed, value in each
        )

    def run(self, jobs: Iterable[Job]) -> list[Row]:
        """Run the jobs that have no file yet, and return the rows of all jobs in their order, which
        are also added to `rows`.
        """
        jobs = list(jobs)
        (self.folder / "jobs").mkdir(parents=True, exist_ok=True)
        missing = [job for job in jobs if not self._path(job).exists()]
        status = _Status(self.folder.name, len(jobs), len(jobs) - len(missing), self.quiet)
        try:
            if self.workers == 1 or len(missing) < 2:
                for job in missing:
                    self._finish(job, _run_job(self.workspace, job), status)
            else:
                self._run_in_parallel(missing, status)
        finally:
            status.bar.close()
        rows = [row for job in jobs for row in read_rows(self._path(job))]
        self.rows += rows
        return rows

    def _path(self, job: Job) -> Path:
        return self.folder / "jobs" / job.file

    def _finish(self, job: Job, result: tuple[list[Row], float], status: _Status) -> None:
        """Store the rows of a finished job; `result` is (rows, seconds), from `_run_job`."""
        rows, seconds = result
        write_rows(self._path(job), rows)
        status.job_done(f"{job.name}, {seconds:.0f} s")

    def _run_in_parallel(self, jobs: list[Job], status: _Status) -> None:
        """Run the jobs in worker processes and store the rows of each one as soon as it has
        finished.

        If one fails, those that are running or already queued for a worker end and are stored, then
        its error is raised.
        """
        workers = min(self.workers, len(jobs))
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(
            workers, context, initializer=_start_worker, initargs=(os.getpid(),)
        )
        with _one_openmp_thread():
            # submit starts the worker processes, with the environment of this moment
            running: dict[Future, Job] = {
                pool.submit(_run_job, self.workspace, job): job for job in jobs
            }
        errors: list[BaseException] = []
        try:
            while running and not errors:
                finished, _ = wait(running, timeout=POLL, return_when=FIRST_COMPLETED)
                status.show_trainings(self.workspace.models)
                errors += self._store(finished, running, status)
        finally:
            # running trainings may save a checkpoint. Jobs that have not started are dropped, except
            # the few that the pool has already queued for its workers
            pool.shutdown(wait=True, cancel_futures=True)
            errors += self._store(
                [future for future in running if not future.cancelled()], running, status
            )
        if errors:
            raise errors[0]

    def _store(
        self, finished: Iterable[Future], running: dict[Future, Job], status: _Status
    ) -> list[BaseException]:
        """Store the rows of finished jobs, take the jobs from `running`, and return the errors of
        those that failed.
        """
        errors = []
        for future in finished:
            job, error = running.pop(future), future.exception()
            if error is None:
                self._finish(job, future.result(), status)
            else:
                errors.append(error)
        return errors


def _run_job(workspace: Workspace, job: Job) -> tuple[list[Row], float]:
    """Return the rows of a job and the seconds it took."""
    began = time.perf_counter()
    return job.work(workspace, **job.settings), time.perf_counter() - began


@contextmanager
def _one_openmp_thread() -> Iterator[None]:
    """Set OMP_NUM_THREADS=1 for the processes that are started inside, and restore it at the end.

    `torch.set_num_threads(1)` in a process is not enough: batched matrix products use as many
    threads as OpenMP had when the process started.
    """
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _start_worker(parent: int) -> None:
    """Set up a worker process: torch has one thread; SIGINT is ignored, except by a training, which
    sets its own handler and stops at it; the process ends when its parent process, with the number
    `parent`, has ended.
    """
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        """End this process when another process has become its parent."""
        while os.getppid() == parent:
            time.sleep(POLL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _Status:
    """Shows finished jobs and running trainings on stderr; shows nothing if quiet."""

    def __init__(self, title: str, total: int, done: int, quiet: bool) -> None:
        self.done = done
        self.bar = Progress(title, total, done, not quiet)

    def job_done(self, text: str) -> None:
        """Count a finished job and show it."""
        self.done += 1
        self.bar.show(self.done, text, now=True)

    def show_trainings(self, models: Path) -> None:
        """Show the step and loss of trainings that wrote to their logs in the last RECENT s, or
        "running" if there are none; where there is no terminal, only every LINES s.

        models  the folder of trained models, with a folder for each
        """
        if not self.bar.is_due(LINES):
            return
        recent = [
            path
            for path in sorted(models.glob(f"*/{LOG}"))
            if time.time() - path.stat().st_mtime < RECENT
        ]
        # the folder of a model is its name and a hash
        last_rows = [
            (path.parent.name.rsplit("-", 1)[0], row)
            for path in recent
            for row in read_log(path)[-1:]
        ]
        text = "  ".join(
            f"{name} step {row['step']} loss {row['loss']:.2f}"
            for name, row in last_rows
            if "loss" in row
        )
        self.bar.show(self.done, text or "running", now=True)
