"""Read the RopeSpec of one layer type from its values in normal form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ropewalk import axes
from ropewalk.config.keys import CLIP_KEYS, CLIPPED_PAIRS, LATENT_KEY, MSCALE_KEYS
from ropewalk.config.values import Entry, Value
from ropewalk.errors import RopeError, integer, number
from ropewalk.frequencies import SCALINGS, Clipped, Ntk, Scaling, Yarn
from ropewalk.frequencies.formulas import mscale
from ropewalk.frequencies.scaling import settings_of
from ropewalk.spec import MAX_HEAD_DIM, RopeSpec


def read_layer(
    layer_type: str, values: Mapping[str, Value], precision: str
) -> tuple[RopeSpec, tuple[Entry, ...]]:
    """Return the spec of one layer type, and where each of its values came from."""
    reader = _Reader(layer_type, values)
    with reader.config_keys_in_errors():
        spec = reader.spec(precision)
    return spec, tuple(reader.entries)


@dataclass
class _Reader:
    """The values of one layer type, and the record of which became which field of the spec:
    `entries` for an explanation, `sources` for errors.
    """

    layer_type: str
    values: Mapping[str, Value]
    entries: list[Entry] = field(default_factory=list)
    sources: dict[str, Value] = field(default_factory=dict)

    def spec(self, precision: str) -> RopeSpec:
        """Return the spec."""
        self._read("rope_type")
        theta = self._read("rope_theta", number, name="theta")
        head = self._read("head_dim", partial(integer, low=2, high=MAX_HEAD_DIM))
        rotated = {
            key: self._read(key, partial(integer, low=1))
            for key in ("rotary_dim", "rotary_start")
            if key in self.values
        }
        scaling = self._scaling()
        layouts = {key: self._read(key) for key in ("layout", "layout_out") if key in self.values}
        return RopeSpec(
            head_dim=head,
            theta=theta,
            scaling=self._clipped(scaling),
            precision=precision,
            axes=self._axes(rotated.get("rotary_dim", head) // 2),
            extra_softmax_factor=self._softmax_factor(scaling),
            **layouts,
            **rotated,
        )

    @contextmanager
    def config_keys_in_errors(self) -> Iterator[None]:
        """Make errors about a field of the spec name the config key that gave its value."""
        try:
            yield
        except RopeError as error:
            # the field may be one entry of a list, such as sections[1]
            name, bracket, index = error.field.partition("[")
            value = self.sources.get("mrope_section" if name in ("sections", "axes") else name)
            if value is None:
                raise
            raise RopeError(
                value.key + bracket + index, f"{error.rule} ({value})", error.value
            ) from None

    def _read(
        self, key: str, check: Callable[[str, Any], Any] | None = None, name: str | None = None
    ) -> Any:
        """Check the value of a key, record it as the field `name` of the spec, and return it."""
        value, name = self.values[key], name or key
        self.sources[name] = value  # before the check, so that its error can name the config key
        checked = value.value if check is None else check(name, value.value)
        self._record(name, checked, value)
        return checked

    def _record(self, name: str, value: Any, source: Value) -> None:
        self.entries.append(Entry(self.layer_type, name, value, str(source)))

    def _scaling(self) -> Scaling:
        """Return the scaling of the rope_type, from its own keys; "dynamic" with `alpha` is NTK
        with a fixed factor.
        """
        if "alpha" in self.values:
            return Ntk(self._read("alpha", number, name="factor"))
        rope_type = self.values["rope_type"].value
        for key in MSCALE_KEYS:
            if key in self.values:
                self._read(key, number)
        fields: dict[str, Any] = {}
        for name, setting in settings_of(SCALINGS[rope_type]).items():
            key = setting.key or name
            if key in self.values:
                fields[name] = self._read(key, setting.check, name=name)
            elif setting.required:
                raise RopeError(key, f"must be given for rope_type {rope_type!r}", None)
        return SCALINGS[rope_type](**fields)

    def _clipped(self, scaling: Scaling) -> Scaling:
        """Return `scaling` with its slowest pairs clipped, if the config has one of CoPE's flags."""
        for key, soft in CLIP_KEYS.items():
            if key in self.values:
                self._record("soft", soft, self.values[key])
                return Clipped(scaling, CLIPPED_PAIRS, soft)
        return scaling

    def _axes(self, pairs: int) -> axes.AxisMap | None:
        """Return the axis of each pair for multimodal positions, or None if there are no sections."""
        if "mrope_section" not in self.values:
            return None
        sections, order = self._read("mrope_section"), self._read("axis_order")
        is_read = order != "ignored"
        axis_map = axes.AXIS_ORDERS[order if is_read else "chunked"](list(sections))
        if axis_map.pairs != pairs:
            raise RopeError("sections", f"must add up to the {pairs} pairs that rotate", sections)
        return axis_map if is_read else None

    def _softmax_factor(self, scaling: Scaling) -> float:
        """Return mscale_all_dim's magnitude squared, a factor on the softmax scale of models with
        latent attention; else 1.
        """
        is_yarn = isinstance(scaling, Yarn)
        if not is_yarn or not scaling.mscale_all_dim or LATENT_KEY not in self.values:
            return 1.0
        extra = float(mscale(scaling.factor, scaling.mscale_all_dim)) ** 2
        self._record("extra_softmax_factor", extra, self.sources["mscale_all_dim"])
        return extra
