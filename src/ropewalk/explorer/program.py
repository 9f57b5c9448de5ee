"""Python code that reproduces the page's view, to copy and run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from ropewalk.axes import AxisMap
from ropewalk.explorer.controls import SIDES
from ropewalk.explorer.state import Values, spec_of
from ropewalk.frequencies import Scaling
from ropewalk.spec import RopeSpec

#: the figures that the program draws
FIGURES = ("clocks", "spectrum", "coverage", "decay", "similarity_map", "precision")


def program(values: Values) -> str:
    """Return code that makes the shown specs, computes cos and sin at the shown position, and saves the figures."""
    specs = {f"spec_{side}": spec_of(values, side) for side in SIDES[: 1 + values["compare"]]}
    lines = ["from pathlib import Path", "", "import torch", "", "import ropewalk as rw", "from ropewalk import plots"]
    kinds = {type(part) for spec in specs.values() for part in _parts(spec)}
    lines += sorted(f"from {kind.__module__} import {kind.__name__}" for kind in kinds)
    lines += ["", *(f"{name} = {_call(spec, 'rw.RopeSpec')}" for name, spec in specs.items())]
    for name, spec in specs.items():
        shape = (spec.num_axes, 1, 1) if spec.num_axes > 1 else (1,)
        lines += [
            "",
            f"positions = torch.full({shape}, {values['position']})",
            f"cos, sin = rw.Rope({name}).cos_sin(positions, length={values['served']})",
            f"view = plots.View({name}, trained={values['trained']}, served={values['served']})",
            f"for figure in {FIGURES}:",
            f'    plots.save(plots.draw(figure, view), Path(f"{name}-{{figure}}.png"))',
        ]
    return "\n".join(lines) + "\n"


def _parts(value: Any) -> Iterator[Any]:
    """Yield the axis map and scalings that the constructor call of a spec contains."""
    for _, part in _changed_fields(value):
        if isinstance(part, AxisMap | Scaling):
            yield part
            yield from _parts(part)


def _changed_fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of the fields that differ from their defaults; two defaults depend on other fields."""
    dependent = {}
    if isinstance(value, RopeSpec):
        dependent = {"layout_out": value.layout, "rotary_dim": value.head_dim - value.rotary_start}
    for field in fields(value):
        part = getattr(value, field.name)
        if field.default is MISSING or part != dependent.get(field.name, field.default):
            yield field.name, part


def _call(value: Any, name: str) -> str:
    arguments = [f"{field}={_source(part)}" for field, part in _changed_fields(value)]
    return f"{name}({', '.join(arguments)})"


def _source(value: Any) -> str:
    return _call(value, type(value).__name__) if isinstance(value, AxisMap | Scaling) else repr(value)
