"""From sample numbers to tensors on the device, ahead of the step that wants them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from ropewalk.lab.batches import Batch, Batches
from ropewalk.lab.distributed import Parallel
from ropewalk.lab.schedule import Plan

AHEAD = 3


@dataclass(frozen=True)
class Portion:
    """What one step of this rank sees: accumulated parts, how many targets they have, and how long they took to make."""

    step: int
    length: int
    rows: int  # of all ranks
    parts: list[Batch]
    seconds: float

    @property
    def count(self) -> int:
        """Targets of this rank."""
        return sum(batch.count for batch in self.parts)


class Feed:
    """Portions from a step on. On a GPU a thread makes the next ones while this one runs; the place is the step alone."""

    def __init__(self, batches: Batches, plan: Plan, accumulation: int, parallel: Parallel) -> None:
        self.batches, self.plan, self.accumulation, self.parallel = batches, plan, accumulation, parallel

    def portion(self, step: int) -> Portion:
        """The portion of a step."""
        began = time.perf_counter()
        stage, first = self.plan.at(step)
        samples = first + np.arange(stage.batch)
        parts = []
        for part in samples.reshape(self.accumulation, -1):
            batch = self.parallel.cut(self.batches.batch(self.parallel.share(part), stage.length))
            parts.append(batch.on(self.parallel.device))
        return Portion(step, stage.length, stage.batch, parts, time.perf_counter() - began)

    def portions(self, start: int, stop: int) -> Generator[Portion, None, None]:
        """The portions of steps start ... stop - 1."""
        if self.parallel.device.type != "cuda":
            # on a CPU a second thread would take its time from the model
            yield from map(self.portion, range(start, stop))
            return
        yield from self._ahead(start, stop)

    def _ahead(self, start: int, stop: int) -> Generator[Portion, None, None]:
        made: queue.Queue = queue.Queue(maxsize=AHEAD)
        ended = threading.Event()

        def put(item) -> None:
            while not ended.is_set():
                try:
                    return made.put(item, timeout=0.1)
                except queue.Full:
                    continue

        def work() -> None:
            try:
                for step in range(start, stop):
                    if ended.is_set():
                        return
                    put(self.portion(step))
            except BaseException as error:  # said where it is waited for
                put(error)

        thread = threading.Thread(target=work, name="ropewalk-feed", daemon=True)
        thread.start()
        try:
            for _ in range(start, stop):
                item = made.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            ended.set()
            thread.join()
