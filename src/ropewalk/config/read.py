"""Read the RopeSpec of one layer type from its values in normal form.

The normal form, which normal.py makes, is {standard key: value with its source, a `Value`}. A
setting is a field of a scaling that a config can give; its `key` is the config key, or None if that
is the name of the field.
"""

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
    """Return the spec of one layer type, and where each of its values came from.

    layer_type  its name, which the entries of the explanation carry
    values      its values in normal form, by standard key
    precision   that of the spec, see RopeSpec
    """
    reader = _ValueReader(layer_type, values)
    with reader.config_keys_in_errors():
        spec = reader.spec(precision)
    return spec, tuple(reader.entries)


@dataclass
class _ValueReader:
    """The values of one layer type, and the record of which became which field of the spec:
    `entries` for an explanation, `sources` for errors.
    """

    layer_type: str
    values: Mapping[str, Value]
    entries: list[Entry] = field(default_factory=list)
    sources: dict[str, Value] = field(default_factory=dict)

    def spec(self, precision: str) -> RopeSpec:
        """Return the spec that the values describe, with the given precision, which no config has.

        Each value is checked when it is taken, so that its error names the config key; RopeSpec and
        the scaling then check the values together.
        """
        self._take("rope_type")  # for the entries alone: `_scaling` reads the value itself
        theta = self._take("rope_theta", number, name="theta")
        head = self._take("head_dim", partial(integer, low=2, high=MAX_HEAD_DIM))
        rotated = {
            key: self._take(key, partial(integer, low=1))
            for key in ("rotary_dim", "rotary_start")
            if key in self.values
        }
        scaling = self._scaling()
        layouts = {key: self._take(key) for key in ("layout", "layout_out") if key in self.values}
        return RopeSpec(
            head_dim=head,
            theta=theta,
            scaling=self._clipped(scaling),
            precision=precision,
            axes=self._axis_map(rotated.get("rotary_dim", head) // 2),
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
            # errors of `ropewalk.axes` name "sections", and those of RopeSpec "axes"; both come
            # from mrope_section
            value = self.sources.get("mrope_section" if name in ("sections", "axes") else name)
            if value is None:
                raise
            raise RopeError(
                value.key + bracket + index, f"{error.rule} ({value})", error.value
            ) from None

    def _take(
        self, key: str, check: Callable[[str, Any], Any] | None = None, name: str | None = None
    ) -> Any:
        """Check the value of a key, record it as the field `name` of the spec (by default `key`),
        and return what `check(name, value)` returns; without a check, the value itself.
        """
        value, name = self.values[key], name or key
        self.sources[name] = value  # before the check, so that its error can name the config key
        checked = value.value if check is None else check(name, value.value)
        self._record(name, checked, value)
        return checked

    def _record(self, name: str, value: Any, source: Value) -> None:
        """Add the field `name` of the spec, its value and its source to the entries."""
        self.entries.append(Entry(self.layer_type, name, value, str(source)))

    def _scaling(self) -> Scaling:
        """Return the scaling of the rope_type, from its own keys; "dynamic" with `alpha` is NTK
        with a fixed factor. Raise an error if a required key is missing.
        """
        if "alpha" in self.values:
            return Ntk(self._take("alpha", number, name="factor"))
        rope_type = self.values["rope_type"].value
        for key in MSCALE_KEYS:
            if key in self.values:
                self._take(key, number)  # recorded only: the magnitude is in `attention_factor`
        fields: dict[str, Any] = {}
        for name, setting in settings_of(SCALINGS[rope_type]).items():
            key = setting.key or name
            if key in self.values:
                fields[name] = self._take(key, setting.check, name=name)
            elif setting.required:
                raise RopeError(key, f"must be given for rope_type {rope_type!r}", None)
        return SCALINGS[rope_type](**fields)

    def _clipped(self, scaling: Scaling) -> Scaling:
        """Return `scaling` with its slowest pairs clipped, if one of CoPE's flags is true."""
        for key, soft in CLIP_KEYS.items():
            if key in self.values:
                self._record("soft", soft, self.values[key])
                return Clipped(scaling, CLIPPED_PAIRS, soft)
        return scaling

    def _axis_map(self, pairs: int) -> axes.AxisMap | None:
        """Return which axis gives each of the `pairs` pairs its position; None if the values have
        no `mrope_section`, or the model ignores it. Raise an error if the sections do not add up to
        `pairs`.
        """
        if "mrope_section" not in self.values:
            return None
        sections, order = self._take("mrope_section"), self._take("axis_order")
        # "ignored": the sections must add up, but the model has one axis
        is_read = order != "ignored"
        axis_map = axes.AXIS_ORDERS[order if is_read else "chunked"](list(sections))
        if axis_map.pairs != pairs:
            raise RopeError("sections", f"must add up to the {pairs} pairs that rotate", sections)
        return axis_map if is_read else None

    def _softmax_factor(self, scaling: Scaling) -> float:
        """Return the square of the magnitude that YaRN's `mscale_all_dim` gives, a factor on the
        softmax scale of models with latent attention; 1 for other models.
        """
        is_yarn = isinstance(scaling, Yarn)
        if not is_yarn or not scaling.mscale_all_dim or LATENT_KEY not in self.values:
            return 1.0
        extra = float(mscale(scaling.factor, scaling.mscale_all_dim)) ** 2
        self._record("extra_softmax_factor", extra, self.sources["mscale_all_dim"])
        return extra
