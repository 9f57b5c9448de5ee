"""Python code that reproduces the page's view, to copy and run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from ropewalk.axes import AxisMap
from ropewalk.frequencies import Scaling
from ropewalk.spec import RopeSpec
from ropewalk_lab.explorer.controls import shown_sides
from ropewalk_lab.explorer.state import Values, spec_of

#: the figures that the program draws
FIGURES = ("clocks", "spectrum", "coverage", "decay", "similarity_map", "precision")


def program(values: Values) -> str:
    """Return Python code that makes the shown specs, computes cos and sin at the shown position,
    and saves the figures.
    """
    specs = {f"spec_{side}": spec_of(values, side) for side in shown_sides(values)}
    lines = [
        "from pathlib import Path",
        "",
        "import torch",
        "",
        "import ropewalk as rw",
        "from ropewalk_lab import plots",
    ]
    classes = {type(part) for spec in specs.values() for part in _parts(spec)}
    lines += sorted(f"from {each.__module__} import {each.__name__}" for each in classes)
    lines += ["", *(f"{name} = {_call(spec, 'rw.RopeSpec')}" for name, spec in specs.items())]
    for name, spec in specs.items():
        shape = (
            (spec.num_axes, 1, 1) if spec.num_axes > 1 else (1,)
        )  # of the positions of one token
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
    """Yield the axis map and the scalings inside a spec or scaling that the code of its constructor
    call has to import.
    """
    for _, part in _changed_fields(value):
        if isinstance(part, AxisMap | Scaling):
            yield part
            yield from _parts(part)


def _changed_fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of the fields of a dataclass that differ from their defaults, or have
    none.
    """
    defaults = {field.name: field.default for field in fields(value)}
    if isinstance(value, RopeSpec):  # two of its defaults depend on other fields
        defaults |= {"layout_out": value.layout, "rotary_dim": value.head_dim - value.rotary_start}
    for name, default in defaults.items():
        part = getattr(value, name)
        if default is MISSING or part != default:
            yield name, part


def _call(value: Any, name: str) -> str:
    """Return the code of the constructor call `name(...)` that makes the value."""
    arguments = [f"{field}={_source(part)}" for field, part in _changed_fields(value)]
    return f"{name}({', '.join(arguments)})"


def _source(value: Any) -> str:
    """Return Python code for the value of a field."""
    return (
        _call(value, type(value).__name__) if isinstance(value, AxisMap | Scaling) else repr(value)
    )
