"""What a figure shows: one spec, the length it was trained on, the length it serves, and the look."""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.errors import integer
from ropewalk.frequencies import Default, Linear, Llama3, Ntk, Yarn
from ropewalk.plots.look import LIGHT, Look
from ropewalk.spec import RopeSpec


@dataclass(frozen=True)
class View:
    """The subject of a figure; every figure of FIGURES takes one."""

    spec: RopeSpec = RopeSpec(128)  # noqa: RUF009 - frozen
    trained: int = 4096
    served: int = 16_384
    look: Look = LIGHT

    def __post_init__(self) -> None:
        integer("trained", self.trained, low=8, high=1 << 40)
        integer("served", self.served, low=8, high=1 << 40)

    @property
    def scaled(self) -> bool:
        """The spec has a scaling of its own."""
        return not isinstance(self.spec.scaling, Default)

    def stretched(self) -> dict[str, RopeSpec]:
        """The spec under each static scaling from the trained to the served length, and under its own where it has one."""
        factor = max(self.served / self.trained, 1.0)
        known = (
            Linear(factor),
            Ntk(factor),
            Yarn(factor=factor, original_length=self.trained),
            Llama3(factor=factor, original_length=self.trained),
        )
        found = {scaling.name: self.spec.with_(scaling=scaling) for scaling in known}
        if self.scaled:
            # drawn last and in its own right, also where it shares a name
            found.pop(self.spec.scaling.name, None)
            found[self.spec.scaling.name] = self.spec
        return found
