"""Read the RopeSpec of one layer type from the values of a config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from ropewalk import axes
from ropewalk.config import keys
from ropewalk.config.scalings import clipped, keys_of, read_scaling, rope_types
from ropewalk.config.values import Layer, Value, find, section_sizes
from ropewalk.errors import RopeError, choice, flag, integer, number
from ropewalk.frequencies import SCALINGS, Scaling, Yarn
from ropewalk.frequencies.formulas import mscale
from ropewalk.spec import MAX_HEAD_DIM, RopeSpec

#: older names of a `rope_type`
ALIASES = {"su": "longrope", "mrope": "default", "xdrope": "dynamic"}


def read_layer(layer: Layer, precision: str) -> RopeSpec:
    """Return the spec of one layer type; `layer` records where its values came from."""
    layer.rope_type = _rope_type(layer)
    with _config_keys_in_errors(layer):
        theta = layer.check_and_record("theta", layer.theta() or _default_theta(layer), number)
        head = layer.check_and_record(
            "head_dim", _head_dim(layer), partial(integer, low=2, high=MAX_HEAD_DIM)
        )
        rotary_fields = _rotated_slice(layer, head)
        scaling = read_scaling(layer)
        layout, layout_out = _layout(layer)
        return RopeSpec(
            head_dim=head,
            theta=theta,
            scaling=clipped(layer, scaling),
            layout=layout,
            layout_out=layout_out,
            precision=precision,
            axes=_axes(layer, rotary_fields.get("rotary_dim", head) // 2),
            extra_softmax_factor=_softmax_factor(layer, scaling),
            **rotary_fields,
        )


@contextmanager
def _config_keys_in_errors(layer: Layer) -> Iterator[None]:
    """Make errors about a field of the spec name the config key that gave its value."""
    try:
        yield
    except RopeError as error:
        name, bracket, index = error.field.partition(
            "["
        )  # the field may be one entry of a list, such as sections[1]
        value = layer.sources.get("mrope_section" if name in ("sections", "axes") else name)
        if value is None:
            raise
        raise RopeError(
            value.key + bracket + index, f"{error.rule} ({value})", error.value
        ) from None


def _rope_type(layer: Layer) -> str:
    """Return the value of `rope_type`, or of its old key `type`, with old names replaced; "default"
    if there is neither.
    """
    given = [layer.rope[key] for key in ("rope_type", "type") if key in layer.rope]
    names = []
    for value in given:
        name = choice(value.key, value.value, (*rope_types(), *ALIASES))
        names.append(
            "longrope"
            if name == "yarn" and layer.family.yarn_is_longrope
            else ALIASES.get(name, name)
        )
    if len(set(names)) > 1:
        raise RopeError(
            "rope_type",
            f"contradicts type = {given[1].value!r}; remove one of the two",
            given[0].value,
        )
    if not names:
        scaling_keys = sorted(
            layer.rope.keys() - keys.COMMON_KEYS - keys.AXIS_KEYS - keys.OTHER_KEYS
        )
        if scaling_keys:
            raise RopeError("rope_type", f"must be given with {', '.join(scaling_keys)}", None)
        given, names = [layer.default("default", "rope_type")], ["default"]
    return layer.check_and_record("rope_type", replace(given[0], value=names[0]))


def _default_theta(layer: Layer) -> Value:
    """Return the theta of the model's code; some have another one for a config without any rope
    object.
    """
    family = layer.family
    has_rope = any(layer.config.get(key) is not None for key in ("rope_parameters", "rope_scaling"))
    theta = (
        family.theta if has_rope or family.theta_without_rope is None else family.theta_without_rope
    )
    return layer.default(theta, "rope_theta")


def _head_dim(layer: Layer) -> Value:
    """Return head_dim and where it comes from: a config key, the default of the family, or hidden
    size / heads.
    """
    config, family = layer.config, layer.family
    # most models with latent attention split off the part that rotates; in others it is the end of
    # the head
    split_off = None if family.at_end else find(config, keys.LATENT_KEY)
    given = split_off or _layer_type_head_dim(layer) or find(config, *keys.HEAD_DIM_KEYS)
    if given is not None:
        return given
    if family.head_dim is not None and "head_dim" not in config:
        return layer.default(family.head_dim, "head_dim")
    size_key, hidden_size = _positive(config, keys.HIDDEN_SIZE_KEYS)
    heads_key, heads = _positive(config, keys.HEAD_COUNT_KEYS)
    if hidden_size % heads:
        raise RopeError(
            size_key,
            f"must be a multiple of {heads_key} = {heads} if head_dim is not given",
            hidden_size,
        )
    return Value(hidden_size // heads, size_key, f"{size_key} / {heads_key}", derived=True)


def _positive(config: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, int]:
    """Return (key, value) of the first of `names` in the config, which must be a positive integer."""
    given = find(config, *names)
    if given is None:
        rule = (
            "must be given if head_dim is not; where a config.json leaves it to its class, pass "
            "transformers' config object"
        )
        raise RopeError(names[0], rule, None)
    return given.key, integer(given.key, given.value, low=1)


def _layer_type_head_dim(layer: Layer) -> Value | None:
    """Return the head_dim that a config gives for this layer type alone (Gemma 4); None if it gives
    none.
    """
    config = layer.config
    overrides, declared = config.get("per_layer_config"), config.get("layer_types")
    if isinstance(overrides, Mapping) and isinstance(declared, list | tuple):
        for index, name in enumerate(declared):
            override = overrides.get(str(index), overrides.get(index))
            if (
                name == layer.layer_type
                and isinstance(override, Mapping)
                and override.get("head_dim") is not None
            ):
                return Value(override["head_dim"], "head_dim", f"per_layer_config.{index}")
    if (
        layer.layer_type != "full_attention"
        or layer.family.global_head_dim is None
        or overrides is not None
    ):
        return None
    return find(config, "global_head_dim") or layer.default(
        layer.family.global_head_dim, "global_head_dim"
    )


def _rotated_slice(layer: Layer, head: int) -> dict[str, Any]:
    """Return `rotary_dim` and `rotary_start` if only a part of the head rotates, else {}.

    A config gives a width in dimensions (`rotary_dim`) or a fraction of the head; each family reads
    one, both or neither.
    """
    config, family = layer.config, layer.family
    if not family.at_end and config.get(keys.LATENT_KEY) is not None:
        return {}  # the spec describes only the part of a latent head that rotates
    given_fraction = layer.fraction()
    width = (
        find(config, "rotary_dim", keys.LATENT_KEY)
        if family.reads_rotary_dim
        else find(config, keys.LATENT_KEY)
    )
    unread_width = None if family.reads_rotary_dim else find(config, "rotary_dim")
    if (
        width is None
        and given_fraction is None
        and family.rotary_dim is not None
        and "rotary_dim" not in config
    ):
        width = layer.default(family.rotary_dim, "rotary_dim")
    fraction = (
        None
        if given_fraction is None
        else number(given_fraction.key, given_fraction.value, above=0, high=1)
    )
    if keys.FRACTION_KEYS[0] in keys_of(SCALINGS[layer.rope_type]):
        return {}  # the scaling itself uses the fraction
    if layer.rope_type == "default" and layer.is_known and not family.reads_partial:
        for value in (given_fraction, unread_width):
            if value is not None and value.value not in (1, head):
                layer.warnings.append(
                    f"{value} = {value.value!r} is ignored: an unscaled {layer.model} rotates "
                    "the whole head"
                )
        return {}
    # the number of dimensions that rotate, and the value that it comes from
    if width is not None:
        rotated, source = integer(width.key, width.value, low=2, high=head), width
        if fraction is not None and int(head * fraction) != rotated:
            rule = (
                f"contradicts {given_fraction}, which gives {int(head * fraction)} of {head} "
                "dimensions"
            )
            raise RopeError(width.key, rule, rotated)
    else:
        default = family.default_fraction(layer.rope_type)
        source = given_fraction or layer.default(default, keys.FRACTION_KEYS[0])
        rotated = int(head * (default if fraction is None else fraction))
    if unread_width is not None and unread_width.value != rotated:
        unread = f"{unread_width} = {unread_width.value!r}"
        layer.warnings.append(
            f"{unread} is ignored: {layer.model} rotates {rotated} of {head} dimensions"
        )
    if rotated == head:
        return {}
    layer.check_and_record("rotary_dim", replace(source, value=rotated), partial(integer, low=1))
    return {"rotary_dim": rotated, "rotary_start": head - rotated if family.at_end else 0}


def _layout(layer: Layer) -> tuple[str, str | None]:
    """Return (layout, layout_out), from the key rope_interleave or from the code of the family."""
    family, interleave = layer.family, find(layer.config, "rope_interleave")
    if interleave is not None and (family.has_interleave_flag or not layer.is_known):
        layouts = (
            ("interleaved", "half") if flag(interleave.key, interleave.value) else ("half", None)
        )
        layer.record("layout", layouts[0], interleave)
    else:
        layouts = family.layout, family.layout_out
        layer.record(
            "layout",
            layouts[0],
            f"code of {layer.model}" if layer.is_known else "assumed: no config key gives it",
        )
    if layouts[1] is not None:
        layer.record("layout_out", layouts[1], layer.entries[-1].source)
    return layouts


def _axes(layer: Layer, pairs: int) -> axes.AxisMap | None:
    """Return the axis of each pair for multimodal positions, or None if the config has no sections."""
    family = layer.family
    sections = layer.first_given(layer.rope.get("mrope_section"), layer.rope.get("xdrope_section"))
    if sections is None and family.sections is not None:
        sections = layer.default(family.sections, "mrope_section")
    if sections is None:
        return None
    interleaved = layer.rope.get("mrope_interleaved") or layer.rope.get("interleaved")
    order = (
        "interleaved"
        if interleaved is not None and flag(interleaved.key, interleaved.value)
        else "chunked"
    )
    if interleaved is not None and family.axis_order not in (None, order):
        layer.warnings.append(
            f"{interleaved} = {interleaved.value!r} is ignored: {layer.model} is always "
            f"{family.axis_order}"
        )
    order = family.axis_order or order
    layer.check_and_record("mrope_section", sections)
    if family.splits_pairs:
        rule = (
            f"must be absent: with it {layer.model} rotates the two members of a pair by different "
            "axes"
        )
        hint = "which no spec describes; for text alone, whose axes are all equal, remove it"
        raise RopeError("sections", f"{rule}, {hint}", sections.value)
    source = (
        f"code of {layer.model}"
        if family.axis_order
        else interleaved or "assumed: no mrope_interleaved"
    )
    layer.record("axis_order", order, source)
    axis_map = axes.AXIS_ORDERS[order](section_sizes(sections.key, sections.value))
    if axis_map.pairs != pairs:
        raise RopeError("sections", f"must add up to the {pairs} pairs that rotate", sections.value)
    return axis_map


def _softmax_factor(layer: Layer, scaling: Scaling) -> float:
    """Return mscale_all_dim's magnitude squared, a factor on the softmax scale of models with
    latent attention; else 1.
    """
    if (
        not isinstance(scaling, Yarn)
        or not scaling.mscale_all_dim
        or layer.config.get(keys.LATENT_KEY) is None
    ):
        return 1.0
    extra = float(mscale(scaling.factor, scaling.mscale_all_dim)) ** 2
    layer.record("extra_softmax_factor", extra, layer.sources["mscale_all_dim"])
    return extra
