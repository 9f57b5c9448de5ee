"""Convert the page's values to specs and back, limit values that depend on others, and read configs
as values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ropewalk.axes import AxisMap
from ropewalk.config import file as config_file
from ropewalk.errors import RopeError, integer
from ropewalk.frequencies import SCALINGS, Default, Scaling, Yarn
from ropewalk.spec import RopeSpec
from ropewalk_lab.analysis import read_checkpoint
from ropewalk_lab.explorer.controls import (
    MAX_HEAD_DIM,
    SIDES,
    Control,
    pairs_of,
    read,
    scaling_controls,
    shown_sides,
)

Values = Mapping[str, Any]


def limited(values: Values) -> dict[str, Any]:
    """Return the values, limited where they depend on others; a smaller head, for example, has
    fewer rotated dimensions.
    """
    new = dict(values)
    for side in SIDES:
        head_dim = new[f"{side}.head_dim"]
        start = min(new[f"{side}.rotary_start"], max(head_dim - 2, 0))
        new[f"{side}.rotary_start"] = start
        new[f"{side}.rotary_dim"] = min(
            new[f"{side}.rotary_dim"], (head_dim - start) // 2 * 2
        )  # an even number
    new["position"] = min(new["position"], new["served"] - 1)
    sides = (
        SIDES[:1] if new["view"] == "story" else shown_sides(new)
    )  # the story is about the first spec alone
    new["pair"] = min(new["pair"], min(pairs_of(new, side) for side in sides) - 1)
    return new


def spec_of(values: Values, side: str = "a") -> RopeSpec:
    """Return the spec of one side, "a" or "b"; raises a RopeError that names the wrong value."""
    of_side = {
        name.removeprefix(f"{side}."): value
        for name, value in values.items()
        if name.startswith(f"{side}.")
    }
    pairs = pairs_of(values, side)
    # the axis of each pair; the list keeps its proportions when the number of pairs changes
    axes = tuple(
        int(axis) for axis in stretched(_numbers("axes", of_side["axes"]), pairs, nearest=True)
    )
    return RopeSpec(
        head_dim=integer("head_dim", of_side["head_dim"], low=2, high=MAX_HEAD_DIM),
        theta=of_side["theta"],
        scaling=scaling_of(of_side["scaling"], of_side, pairs),
        layout=of_side["layout"],
        layout_out=None if of_side["layout_out"] == "same" else of_side["layout_out"],
        rotary_dim=of_side["rotary_dim"] or None,
        rotary_start=of_side["rotary_start"],
        axes=AxisMap(axes, max(axes) + 1, of_side["ladder"]) if axes else None,
        precision=of_side["precision"],
        magnitude_on=of_side["magnitude_on"],
        extra_softmax_factor=of_side["extra_softmax_factor"],
    )


def fitted(values: Values, side: str) -> dict[str, Any]:
    """Return the values that fit the chosen scaling to the lengths: factor = target / trained,
    original_length = trained.
    """
    name = values[f"{side}.scaling"]
    new = {
        "factor": max(values["served"] / values["trained"], 1.0),
        "original_length": values["trained"],
    }
    fields = scaling_controls(SCALINGS[name])
    return {f"{side}.{name}.{field}": value for field, value in new.items() if field in fields}


def scaling_of(name: str, values: Values, pairs: int) -> Scaling:
    """Return the scaling `name` for `pairs` pairs, with the values under "<name>.<field>", or
    defaults if there are none.
    """
    fields = {}
    for field, control in scaling_controls(SCALINGS[name]).items():
        fields[field] = _field_value(
            field, control, values.get(f"{name}.{field}", control.default), pairs
        )
    return SCALINGS[name](**fields)


def _field_value(field: str, control: Control, value: Any, pairs: int) -> Any:
    """Return a control's value in the form that the field of a scaling has; lists per pair are
    stretched to `pairs` entries.
    """
    if control.kind == "scaling":
        return scaling_of(value, {}, pairs)
    if control.kind == "numbers":
        return (
            stretched(_numbers(field, value), pairs) if control.per_pair else _numbers(field, value)
        )
    return value


def _numbers(name: str, value: Any) -> tuple[float, ...]:
    """Return a list of numbers as a tuple; widgets hold lists as text."""
    return read(name, Control("numbers", ()), value) if isinstance(value, str) else tuple(value)


def stretched(values: tuple[float, ...], count: int, *, nearest: bool = False) -> tuple[float, ...]:
    """Return a list stretched or shrunk to `count` entries, linearly or by the nearest entry; an
    empty one stays empty.
    """
    if len(values) in (0, count):
        return values
    places = np.linspace(0, len(values) - 1, count)
    if nearest:
        return tuple(values[int(place)] for place in places.round())
    return tuple(np.interp(places, np.arange(len(values)), values).tolist())


def values_of(spec: RopeSpec, side: str = "a") -> dict[str, Any]:
    """Return the page's values for a spec; the inverse of `spec_of`."""
    if spec.mixed or spec.per_head or spec.fractional:
        raise RopeError(
            "axes",
            "must assign each pair to one axis with integer positions, to be shown on the page",
            spec.axes,
        )
    integer("head_dim", spec.head_dim, low=2, high=MAX_HEAD_DIM)
    axes = spec.axes if isinstance(spec.axes, AxisMap) else None
    same_name = (
        "head_dim",
        "theta",
        "layout",
        "rotary_start",
        "precision",
        "magnitude_on",
        "extra_softmax_factor",
    )
    of_side = {
        **{name: getattr(spec, name) for name in same_name},
        "layout_out": "same" if spec.output_layout == spec.layout else spec.output_layout,
        "rotary_dim": 0
        if spec.rotated_dims == spec.head_dim - spec.rotary_start
        else spec.rotated_dims,
        "axes": tuple(map(float, axes.axis_of_pair)) if axes else (),
        "ladder": axes.ladder if axes else "shared",
        "scaling": spec.scaling.name,
    }
    for field, control in scaling_controls(type(spec.scaling)).items():
        value = getattr(spec.scaling, field)
        if control.kind == "scaling":
            # the page has a control for the name of an inner scaling, and none for its fields
            if value.name not in control.choices or value != scaling_of(value.name, {}, spec.pairs):
                raise RopeError(
                    field,
                    f"must be one of {', '.join(control.choices)} with its defaults, to be "
                    "shown here",
                    value,
                )
            value = value.name
        of_side[f"{spec.scaling.name}.{field}"] = value
    return {f"{side}.{name}": value for name, value in of_side.items()}


def layers_of(config: Mapping[str, Any] | bytes) -> dict[str, dict[str, Any]]:
    """Return the page's values for each layer type with a rope; bytes are parsed as a config.json."""
    checkpoint = read_checkpoint(config_file.parse(config) if isinstance(config, bytes) else config)
    rotated = {name: facts for name, facts in checkpoint.layers.items() if facts is not None}
    if not rotated:
        raise RopeError(
            "config", "must have a rope in at least one layer type", list(checkpoint.layers)
        )
    # 8 is the least length that the page has controls for
    return {
        name: _layer_values(facts.spec, max(facts.trained, 8), max(facts.served, 8))
        for name, facts in rotated.items()
    }


def _layer_values(spec: RopeSpec, trained: int, served: int) -> dict[str, Any]:
    """Return the page's values with the spec on side a, and on side b without its scaling, or with
    YaRN if it has none.
    """
    scaled = not isinstance(spec.scaling, Default)
    other = spec.with_(scaling=Default() if scaled else Yarn(factor=4.0, original_length=trained))
    return {**values_of(spec), **values_of(other, "b"), "trained": trained, "served": served}
