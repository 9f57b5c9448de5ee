"""One cache per layer of a model: a KVCache for softmax attention, a RunningState for linear
attention.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ropewalk.attention import KVCache
from ropewalk.attention.linear_sums import State
from ropewalk.errors import RopeError


class RunningState:
    """The state of a linear attention layer between calls, of constant size; `state` is None before
    the first call.
    """

    def __init__(self) -> None:
        self.state: State | None = None

    @property
    def next_positions(self) -> Tensor | int:
        """The number of each row's real tokens so far, [B], as the position of its next token; 0 if
        the state is empty.

        If a call gave other positions, they are not remembered: give those of the next tokens too.
        """
        return 0 if self.state is None else self.state.count

    def reorder(self, rows: Tensor) -> None:
        """Replace the batch rows by those with the indices `rows`, as beam search does."""
        if self.state is not None:
            self.state = State(*(t.index_select(0, rows) for t in self.state))


Caches = list[KVCache] | list[RunningState]


def empty_caches(
    num_layers: int, attention: str, kind: str, capacity: int | None, sinks: int
) -> Caches:
    """Return an empty cache for each layer; kind, capacity and sinks are passed to KVCache and
    unused by linear attention.
    """
    if attention == "linear":
        return [RunningState() for _ in range(num_layers)]
    return [KVCache(kind, capacity, sinks) for _ in range(num_layers)]


def check_caches(caches: Sequence | None, num_layers: int) -> Sequence:
    """Return the caches, or a list of None if there are none; raise an error if their number or
    their type is wrong. An entry may be None: that layer has no cache.
    """
    if caches is None:
        return [None] * num_layers
    if not isinstance(caches, list | tuple):
        rule = "must be a list of caches, one for each layer, as `model.caches()` returns it"
        raise RopeError("caches", rule, caches)
    if len(caches) != num_layers:
        raise RopeError(
            "caches", f"must have one entry for each of the {num_layers} layers", len(caches)
        )
    for cache in caches:
        if not (cache is None or hasattr(cache, "next_positions")):
            raise RopeError("caches", "must hold caches, as `model.caches()` returns them", cache)
    return caches
