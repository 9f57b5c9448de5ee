"""Convert the page's values to specs and back, limit values that depend on others, and read configs as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ropewalk.analysis import read_checkpoint
from ropewalk.axes import AxisMap
from ropewalk.errors import RopeError, integer
from ropewalk.explorer.controls import MAX_HEAD_DIM, SIDES, Control, pairs_of, read, scaling_controls
from ropewalk.frequencies import SCALINGS, Default, Scaling, Yarn
from ropewalk.interop.config import file as config_file
from ropewalk.spec import RopeSpec

Values = Mapping[str, Any]


def settle(values: Values) -> dict[str, Any]:
    """Return the values, limited where they depend on others; a smaller head, for example, has fewer rotated dimensions."""
    new = dict(values)
    for side in SIDES:
        head = new[f"{side}.head_dim"]
        start = new[f"{side}.rotary_start"] = min(new[f"{side}.rotary_start"], max(head - 2, 0))
        new[f"{side}.rotary_dim"] = min(new[f"{side}.rotary_dim"], (head - start) // 2 * 2)
    new["position"] = min(new["position"], new["served"] - 1)
    new["pair"] = min(new["pair"], min(pairs_of(new, side) for side in SIDES[: 1 + new["compare"]]) - 1)
    return new


def spec_of(values: Values, side: str = "a") -> RopeSpec:
    """Return the spec of one side, "a" or "b"; raises a RopeError that names the wrong value."""
    own = {name.removeprefix(f"{side}."): value for name, value in values.items() if name.startswith(f"{side}.")}
    pairs = pairs_of(values, side)
    # the axis of each pair; the list keeps its proportions when the number of pairs changes
    axes = tuple(int(axis) for axis in stretched(_numbers("axes", own["axes"]), pairs, nearest=True))
    return RopeSpec(
        head_dim=integer("head_dim", own["head_dim"], low=2, high=MAX_HEAD_DIM),
        theta=own["theta"],
        scaling=scaling_of(own["scaling"], own, pairs),
        layout=own["layout"],
        layout_out=None if own["layout_out"] == "same" else own["layout_out"],
        rotary_dim=own["rotary_dim"] or None,
        rotary_start=own["rotary_start"],
        axes=AxisMap(axes, max(axes) + 1, own["ladder"]) if axes else None,
        precision=own["precision"],
        magnitude_on=own["magnitude_on"],
        extra_softmax_factor=own["extra_softmax_factor"],
    )


def fitted(values: Values, side: str) -> dict[str, Any]:
    """Return the values that fit the chosen scaling to the lengths: factor = target / trained, original_length = trained."""
    name = values[f"{side}.scaling"]
    wanted = {"factor": max(values["served"] / values["trained"], 1.0), "original_length": values["trained"]}
    fields = scaling_controls(SCALINGS[name])
    return {f"{side}.{name}.{field}": value for field, value in wanted.items() if field in fields}


def scaling_of(name: str, own: Values, pairs: int) -> Scaling:
    """Return the scaling `name` with the values in `own`, or defaults; lists per pair are interpolated to `pairs` entries."""
    fields = scaling_controls(SCALINGS[name])
    field_values = {field: own.get(f"{name}.{field}", control.default) for field, control in fields.items()}
    return SCALINGS[name](**{field: _field(field, fields[field], value, pairs) for field, value in field_values.items()})


def _field(field: str, control: Control, value: Any, pairs: int) -> Any:
    """Return the value of a control as a field of a scaling with this number of pairs."""
    if control.kind == "scaling":
        return scaling_of(value, {}, pairs)
    if control.kind == "numbers":
        return stretched(_numbers(field, value), pairs) if control.per_pair else _numbers(field, value)
    return value


def _numbers(name: str, value: Any) -> tuple[float, ...]:
    """Return a list of numbers as a tuple; widgets hold lists as text."""
    return read(name, Control("numbers", ()), value) if isinstance(value, str) else tuple(value)


def stretched(values: tuple[float, ...], count: int, *, nearest: bool = False) -> tuple[float, ...]:
    """Return a list stretched to `count` entries, linearly or by the nearest entry."""
    if len(values) in (0, count):
        return values
    places = np.linspace(0, len(values) - 1, count)
    if nearest:
        return tuple(values[int(place)] for place in places.round())
    return tuple(np.interp(places, np.arange(len(values)), values).tolist())


def values_of(spec: RopeSpec, side: str = "a") -> dict[str, Any]:
    """Return the page's values for a spec; the inverse of `spec_of`."""
    if spec.mixed or spec.per_head or spec.fractional:
        raise RopeError("axes", "must assign each pair to one axis with integer positions, to be shown on the page", spec.axes)
    integer("head_dim", spec.head_dim, low=2, high=MAX_HEAD_DIM)
    axes = spec.axes if isinstance(spec.axes, AxisMap) else None
    own = {
        **{name: getattr(spec, name) for name in ("head_dim", "theta", "layout", "rotary_start", "precision")},
        **{name: getattr(spec, name) for name in ("magnitude_on", "extra_softmax_factor")},
        "layout_out": "same" if spec.layout_out == spec.layout else spec.layout_out,
        "rotary_dim": 0 if spec.rotary_dim == spec.head_dim - spec.rotary_start else spec.rotary_dim,
        "axes": tuple(map(float, axes.axis_of_pair)) if axes else (),
        "ladder": axes.ladder if axes else "shared",
        "scaling": spec.scaling.name,
    }
    for field, control in scaling_controls(type(spec.scaling)).items():
        value = getattr(spec.scaling, field)
        own[f"{spec.scaling.name}.{field}"] = value.name if control.kind == "scaling" else value
    return {f"{side}.{name}": value for name, value in own.items()}


def layers_of(config: Mapping[str, Any] | bytes) -> dict[str, dict[str, Any]]:
    """Return the page's values for each layer type with a rope; bytes are parsed as a config.json."""
    checkpoint = read_checkpoint(config_file.parse(config) if isinstance(config, bytes) else config)
    rotated = {name: facts for name, facts in checkpoint.layers.items() if facts is not None}
    if not rotated:
        raise RopeError("config", "must have a rope in at least one layer type", list(checkpoint.layers))
    return {name: _layer(facts.spec, max(facts.trained, 8), max(facts.served, 8)) for name, facts in rotated.items()}


def _layer(spec: RopeSpec, trained: int, served: int) -> dict[str, Any]:
    """Return values with the spec on side a; on side b it has no scaling, or YaRN with factor 4 if it had none."""
    scaled = not isinstance(spec.scaling, Default)
    other = spec.with_(scaling=Default() if scaled else Yarn(factor=4.0, original_length=trained))
    return {**values_of(spec), **values_of(other, "b"), "trained": trained, "served": served}
