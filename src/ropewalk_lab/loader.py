"""Load the batches of each training step onto the device; on a GPU a thread prepares them ahead of
time.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from ropewalk_lab.batches import Batch, Batches
from ropewalk_lab.distributed import Parallel
from ropewalk_lab.schedule import Stage, stage_at

#: steps prepared in advance
PREFETCHED = 3


@dataclass(frozen=True)
class StepData:
    """The micro-batches of one step on this rank, and the seconds it took to make them."""

    step: int
    length: int  # tokens of a row
    rows: int  # of all ranks and micro-batches
    micro_batches: list[Batch]
    seconds: float

    @property
    def count(self) -> int:
        """The number of targets on this rank."""
        return sum(batch.count for batch in self.micro_batches)


class Loader:
    """Loads the data of any step; it has no state, because the step number determines the sample
    numbers.

    accumulation  the number of micro-batches of a step
    """

    def __init__(
        self, batches: Batches, stages: Sequence[Stage], accumulation: int, parallel: Parallel
    ) -> None:
        """Keep where the samples come from, and how they are divided into steps and ranks."""
        self.batches, self.stages = batches, stages
        self.accumulation, self.parallel = accumulation, parallel

    def load(self, step: int) -> StepData:
        """Return the micro-batches of one step on this rank's device, and the seconds it took to
        load them.
        """
        began = time.perf_counter()
        stage, first_sample = stage_at(self.stages, step)
        micro_batches = []
        for samples in (first_sample + np.arange(stage.batch)).reshape(self.accumulation, -1):
            batch = self.parallel.shard(
                self.batches.batch(self.parallel.samples(samples), stage.length)
            )
            micro_batches.append(batch.to(self.parallel.device))
        return StepData(step, stage.length, stage.batch, micro_batches, time.perf_counter() - began)

    def steps(self, start: int, stop: int) -> Generator[StepData, None, None]:
        """Yield the data of steps start ... stop - 1."""
        if self.parallel.device.type == "cuda":
            yield from self._prefetch(start, stop)
        else:
            # on a CPU a second thread would slow the model down
            yield from map(self.load, range(start, stop))

    def _prefetch(self, start: int, stop: int) -> Generator[StepData, None, None]:
        """Yield the data of steps start ... stop - 1, which a thread loads ahead."""
        ready: queue.Queue = queue.Queue(maxsize=PREFETCHED)
        closed = threading.Event()

        def put(item) -> None:
            """Put an item into the queue; give up if the training has ended."""
            while not closed.is_set():
                try:
                    return ready.put(item, timeout=0.1)
                except queue.Full:
                    continue

        def work() -> None:
            """Load all steps; an error is put into the queue too."""
            try:
                for step in range(start, stop):
                    if closed.is_set():
                        return
                    put(self.load(step))
            except BaseException as error:  # raised again in the training thread
                put(error)

        thread = threading.Thread(target=work, name="ropewalk-loader", daemon=True)
        thread.start()
        try:
            for _ in range(start, stop):
                item = ready.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            closed.set()
            thread.join()
