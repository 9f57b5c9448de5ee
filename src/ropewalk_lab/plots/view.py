"""View: what a figure shows (a spec, its trained and served length) and how it looks."""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.errors import integer
from ropewalk.frequencies import Default, Linear, Llama3, Ntk, Yarn
from ropewalk.spec import RopeSpec
from ropewalk_lab.plots.look import LIGHT, Look


@dataclass(frozen=True)
class View:
    """What a figure shows: a spec, its trained and served length in tokens, and the look; every
    function of FIGURES takes a View.
    """

    spec: RopeSpec = RopeSpec(128)  # noqa: RUF009 - frozen
    trained: int = 4096
    served: int = 16_384
    look: Look = LIGHT

    def __post_init__(self) -> None:
        integer("trained", self.trained, low=8, high=1 << 40)
        integer("served", self.served, low=8, high=1 << 40)

    @property
    def scaled(self) -> bool:
        """Whether the spec has a scaling."""
        return not isinstance(self.spec.scaling, Default)

    @property
    def parameters(self) -> str:
        """The spec and the lengths as one line of text, for the subtitle of a figure."""
        spec, translate = self.spec, self.look.translate
        inner = spec.scaling.innermost
        # a scaling that contains another one has no factor of its own, so the name and the factor
        # of the inner one follow: "clipped yarn 4"
        scaling = (
            spec.scaling.name if inner is spec.scaling else f"{spec.scaling.name} {inner.name}"
        )
        if factor := getattr(inner, "factor", None):
            scaling += f" {factor:g}"
        lengths = translate(
            "trained {trained}, read {served}",
            trained=f"{self.trained:,}",
            served=f"{self.served:,}",
        )
        parts = [
            f"head_dim {spec.head_dim}",
            f"theta {spec.theta:,.6g}",
            *([scaling] if self.scaled else []),
            lengths,
        ]
        return " · ".join(parts)

    def stretched(self) -> dict[str, RopeSpec]:
        """Return {name of a scaling: the spec with it}, for four scalings that extend the trained
        length to the served one, and for the spec's own if it has one.
        """
        factor = max(self.served / self.trained, 1.0)
        scalings = (
            Linear(factor),
            Ntk(factor),
            Yarn(factor=factor, original_length=self.trained),
            Llama3(factor=factor, original_length=self.trained),
        )
        specs = {scaling.name: self.spec.with_(scaling=scaling) for scaling in scalings}
        if self.scaled:
            # the spec's own scaling is drawn last and replaces one of the same name
            specs.pop(self.spec.scaling.name, None)
            specs[self.spec.scaling.name] = self.spec
        return specs
