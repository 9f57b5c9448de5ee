"""The normal form of a config: for each layer type, {standard key: value with its source}.

All that differs between spellings and families ends here: other names of a key, keys inside and
outside a rope object, defaults of the family's code. What reads the normal form sees no config.

Words of this module:
  Value         a value of a config with its key and the place where it was found, its source
  layer type    a name such as "full_attention"; layers of one type have the same rope
  family        what the code of a `model_type` fixes beside its config, a row of families.toml
  outside       the config's own keys, those outside a rope object, by own and by standard name
  rope          the values of the layer type's rope, by standard key: those of its rope object, and
                a theta that a config key or the family gives to this layer type alone
  given         a key is given if it is there and not null; `_given(key)` is its Value outside the
                rope, with key and place, and `_given_value(key)` the bare value
  default       what the code of the family uses for a key that is not given
  from code     what follows from the code of the family and has no config key, such as the layout
  first given   the value from the first of two places that gives a key; a warning says if the two
                differ, unless one is the rope of a single layer type
  setting       a field of a scaling that a config can give: its `key` is the config key, or None if
                that is the name of the field
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ropewalk.config import keys
from ropewalk.config.families import Family
from ropewalk.config.layers import RopeValues
from ropewalk.config.values import Value
from ropewalk.errors import RopeError
from ropewalk.frequencies import SCALINGS, Dynamic, LongRope
from ropewalk.frequencies.scaling import SERVED_LENGTH_KEY, TRAINED_LENGTH_KEY, settings_of

THETA_KEY, FRACTION_KEY = keys.THETA_KEYS[0], keys.FRACTION_KEYS[0]
#: values that the code of every known family reads under one name only
ONE_NAME = (THETA_KEY, FRACTION_KEY)
#: {standard name: all names of the value}
NAMES = {
    names[0]: names
    for names in (
        keys.LENGTH_KEYS,
        keys.THETA_KEYS,
        keys.FRACTION_KEYS,
        keys.HEAD_DIM_KEYS,
        keys.HIDDEN_SIZE_KEYS,
        keys.HEAD_COUNT_KEYS,
    )
}
#: keys of a rope object that HunYuan's checkpoints have beside `alpha` and their code does not read
UNREAD_WITH_ALPHA = {"factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}
#: values of one layer type by standard key
Values = dict[str, Value]


@dataclass
class Normal:
    """The normal form of a config.

    layers    {layer type: its values, or None if it is not rotated}. Every rotated type has
              rope_type, rope_theta, head_dim and layout. It has axis_order if it has mrope_section,
              rotary_dim if only a part of head_dim rotates, and rotary_start if that part is the
              end of the head
    outside   the config's own values, with standard names added
    warnings  keys that are ignored, values that differ from others, and what was assumed about the
              code of an unknown model_type
    """

    layers: dict[str, Values | None] = field(default_factory=dict)
    outside: Values = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def normal_form(
    config: Mapping[str, Any], ropes: Mapping[str, RopeValues], family: Family
) -> Normal:
    """Return the normal form of a config.

    config  its text part, which `checked_rope_objects` has checked
    ropes   {layer type: the values of its rope, or None}, as `layer_ropes` returns it
    family  the facts of its model_type
    """
    normal = Normal()
    model = config.get("model_type") or "this model"
    normal.outside = _standard_names(config, family, model, normal.warnings)
    for layer_type, rope in ropes.items():
        if rope is None:
            normal.layers[layer_type] = None
            continue
        layer = _NormalLayer(normal.outside, rope, family, model, layer_type, normal.warnings)
        normal.layers[layer_type] = layer.normal_values()
    if config.get("model_type") is not None and not family.known:
        normal.warnings.insert(0, _unknown_warning(model, normal.layers))
    return normal


def _standard_names(
    config: Mapping[str, Any], family: Family, model: str, warnings: list[str]
) -> Values:
    """Return every value of a config by its own key and, where that is another name of a value in
    NAMES, also by the standard name.

    Where the code of `family` reads only one name of a key, a value under another name is ignored;
    `warnings` then gets a message, in which `model` names the model.
    """
    own = {key: Value(value, key) for key, value in config.items()}
    standard: Values = {}
    for name, names in NAMES.items():
        # the single name that the code reads: the family's own, or the standard one of a value in
        # ONE_NAME; None: it reads every name
        only = family.renamed.get(name, name if name in ONE_NAME and family.known else None)
        read = names if only is None else (only,)
        given = next((own[key] for key in read if config.get(key) is not None), None)
        for key in names:
            value = config.get(key)
            if key in read or value is None or (given is not None and given.value == value):
                continue
            warnings.append(f"{own[key]} = {value!r} is ignored: {model} reads {only}")
        if given is not None:
            standard[name] = given
        elif name in own and name not in read:
            # the code reads another name, so this value must not pass as the standard one
            del own[name]
    return {**own, **standard}


def _unknown_warning(model: str, layers: Mapping[str, Values | None]) -> str:
    """Return the warning about a model_type without a row in families.toml: what was assumed about
    its code.
    """
    rotated = [values for values in layers.values() if values is not None]
    assumed = []
    # a value is derived if no config key gives it
    if any(values["layout"].derived for values in rotated):
        assumed.append("pairs (i, i + d/2), the layout half")
    if any("rotary_dim" not in values for values in rotated):
        assumed.append("the whole head rotates")
    if len(rotated) == len(layers):
        assumed.append("every layer rotates")
    for key in ("rope_theta", "head_dim"):
        if any(values[key].where.startswith("default of") for values in rotated):
            assumed.append(f"{key} = {rotated[0][key].value!r}")
    return (
        f"model_type: {model!r} is not known, so its config keys are read as most models read "
        f"them; assumed: {'; '.join(assumed) or 'nothing else'}. Compare that with the model's "
        "code; ropewalk.config.add_families adds a family"
    )


@dataclass
class _NormalLayer:
    """One layer type while its normal values are made.

    outside     the config's own values, of `_standard_names`
    rope        the values of the rope of this layer type, as `layer_ropes` returns them
    family      the facts of the model_type
    model       the `model_type` as messages name it
    layer_type  the name of this layer type
    warnings    the list that gets messages; all layer types share it
    rope_type   the standard `rope_type`, once `normal_values` has read it
    """

    outside: Mapping[str, Value]
    rope: dict[str, Value]
    family: Family
    model: str
    layer_type: str
    warnings: list[str]
    rope_type: str = ""

    def normal_values(self) -> Values:
        """Return the values of this layer type by standard key."""
        rope_type = self._rope_type()
        self.rope_type = rope_type.value  # first: the methods below read it
        theta = self._first_given(self.rope.get(THETA_KEY), self._given(THETA_KEY))
        head = self._head_dim()
        values = {
            "rope_type": rope_type,
            THETA_KEY: theta or self._default(THETA_KEY),
            "head_dim": head,
            **self._rotated_slice(head.value),
            **self._scaling_values(),
            **self._layout(),
            **self._sections_and_order(),
        }
        # the first flag of CoPE that is true
        clip = next((key for key in keys.CLIP_KEYS if self._given_value(key)), None)
        if clip is not None:
            values[clip] = self.outside[clip]
        if self._given(keys.LATENT_KEY) is not None:
            values[keys.LATENT_KEY] = self.outside[keys.LATENT_KEY]
        return values

    def _given(self, key: str) -> Value | None:
        """Return the value of a key outside the rope; None if it is absent or null."""
        value = self.outside.get(key)
        return None if value is None or value.value is None else value

    def _given_value(self, key: str) -> Any:
        """Return the plain value of a key outside the rope; None if it is absent or null."""
        given = self._given(key)
        return None if given is None else given.value

    def _default(self, key: str, value: Any = None) -> Value:
        """Return `value`, or by default what the family's code uses, as the Value of a key that the
        config does not have.
        """
        if value is None:
            value = self.family.default(key, *self._conditions())
        where = f"default of {self.model}" if self.family.known else "default of transformers"
        return Value(value, key, where, derived=True)

    def _has_default(self, key: str) -> bool:
        """Return whether the family's code has a default for a key."""
        return self.family.default(key, *self._conditions()) is not None

    def _conditions(self) -> list[str]:
        """Return those conditions of `Family.defaults_if` that this layer type meets."""
        conditions = [self.rope_type] if self.rope_type == "default" else [self.rope_type, "scaled"]
        if all(self._given_value(key) is None for key in ("rope_parameters", "rope_scaling")):
            conditions.append("no_rope_object")
        return conditions

    def _from_code(self, value: Any, key: str) -> Value:
        """Return a value that no config key gives, and that follows from the model's code."""
        where = f"code of {self.model}" if self.family.known else "assumed: no config key gives it"
        return Value(value, key, where, derived=True)

    def _first_given(self, first: Value | None, second: Value | None) -> Value | None:
        """Return `first` if it is given, else `second`; warn if they differ and one of them is in a
        rope object for all layer types.

        A rope object of a single layer type may differ from the config's own key, which is then for
        the other layer types.
        """
        if first is None or second is None:
            return first or second
        for_all_types = {"rope_parameters", "rope_scaling"}
        if first.value != second.value and for_all_types & {first.where, second.where}:
            self.warnings.append(
                f"{first} is {first.value!r}, {second} is {second.value!r}; the former is used"
            )
        return first

    def _rope_type(self) -> Value:
        """Return the value of `rope_type`, or of its old key `type`, with old names replaced;
        "default" if there is neither. Raise an error for an unknown name, for two names that
        contradict each other, and for keys of a scaling without a name.
        """
        given = [self.rope[key] for key in ("rope_type", "type") if key in self.rope]
        known = keys.rope_types()
        names = []
        for value in given:
            name = value.value
            if not isinstance(name, str) or (
                name not in known and name not in keys.ROPE_TYPE_ALIASES
            ):
                rule = f"must be one of {', '.join((*known, *keys.ROPE_TYPE_ALIASES))}"
                raise RopeError(value.key, rule, name)
            if name == "mrope" and self.family.known and self.family.axis_order is None:
                rule = f"must not be mrope: {self.model} has one position for each token; remove it"
                raise RopeError(value.key, rule, name)
            # a family may mean another scaling than most by a name
            names.append({**keys.ROPE_TYPE_ALIASES, **self.family.renamed}.get(name, name))
        if len(set(names)) > 1:
            raise RopeError(
                "rope_type",
                f"contradicts type = {given[1].value!r}; remove one of the two",
                given[0].value,
            )
        if names:
            return replace(given[0], value=names[0])
        scaling_keys = self.rope.keys() - keys.COMMON_KEYS - keys.AXIS_KEYS - keys.OTHER_KEYS
        if scaling_keys:
            raise RopeError(
                "rope_type", f"must be given with {', '.join(sorted(scaling_keys))}", None
            )
        return self._default("rope_type", "default")

    def _head_dim(self) -> Value:
        """Return head_dim and where it comes from: a config key, the default of the family, or
        hidden size / heads; raise an error if the heads do not divide the hidden size.
        """
        # with latent attention a spec describes the part of the head that rotates, whose width
        # `qk_rope_head_dim` gives; where that is not split off but is the end of the head (at_end),
        # head_dim is the whole head
        split_off = None if self.family.at_end else self._given(keys.LATENT_KEY)
        given = split_off or self._layer_type_head_dim() or self._given("head_dim")
        if given is not None:
            return given
        # a head_dim of null switches the family's default off: it means hidden size / heads
        if self._has_default("head_dim") and "head_dim" not in self.outside:
            return self._default("head_dim")
        size, heads = (
            self._required(names[0]) for names in (keys.HIDDEN_SIZE_KEYS, keys.HEAD_COUNT_KEYS)
        )
        if size.value % heads.value:
            raise RopeError(
                size.key,
                f"must be a multiple of {heads.key} = {heads.value} if head_dim is not given",
                size.value,
            )
        # head_parts is 1, but 2 for a family whose heads are twice as wide as hidden size / heads
        width = self.family.head_parts * size.value // heads.value
        return Value(width, size.key, f"{size.key} / {heads.key}", derived=True)

    def _required(self, name: str) -> Value:
        """Return the value of a key from which head_dim is computed, by its standard name; raise a
        RopeError if it is not given.
        """
        given = self._given(name)
        if given is None:
            rule = (
                "must be given if head_dim is not; where a config.json leaves it to the default of "
                "its class, add it, or in Python pass transformers' config object"
            )
            raise RopeError(name, rule, None)
        return given

    def _layer_type_head_dim(self) -> Value | None:
        """Return the head_dim that a config gives for this layer type alone (Gemma 4); None if it
        gives none.
        """
        overrides, declared = (
            self._given_value("per_layer_config"),
            self._given_value("layer_types") or (),
        )
        if isinstance(overrides, Mapping):
            for index, name in enumerate(declared):
                # a config.json has the layer's index as a text, a Python config may have the number
                override = overrides.get(str(index), overrides.get(index))
                if (
                    name == self.layer_type
                    and isinstance(override, Mapping)
                    and override.get("head_dim") is not None
                ):
                    return Value(override["head_dim"], "head_dim", f"per_layer_config.{index}")
        # `global_head_dim` is that of layers with full attention, in families that have a default
        # for it; beside `per_layer_config` it is neither read nor assumed
        key = "global_head_dim"
        if (
            self.layer_type != "full_attention"
            or not self._has_default(key)
            or overrides is not None
        ):
            return None
        return self._given(key) or self._default(key)

    def _rotated_slice(self, head: int) -> Values:
        """Return `rotary_dim` and `rotary_start` if only a part of the head rotates, else {}.

        The width is the first of these that is there: `rotary_dim`, where the family reads it; the
        width of a latent head's slice; the config's fraction of the head; the family's own width;
        the family's fraction. An unscaled rope rotates whole heads in families that read the
        fraction only of scaled ones.
        """
        family = self.family
        latent = self._given(keys.LATENT_KEY)
        if latent is not None and not family.at_end:
            return {}  # the spec describes only the part of a latent head that rotates
        fraction, width, unread_width = self._fraction(), self._given("rotary_dim"), None
        if "rotary_dim" not in family.reads:
            width, unread_width = None, width
        width = width or latent
        if (
            width is None
            and fraction is None
            and self._has_default("rotary_dim")
            and "rotary_dim" not in self.outside
        ):
            width = self._default("rotary_dim")
        if FRACTION_KEY in keys.keys_of(SCALINGS[self.rope_type]):
            return {}  # the scaling itself uses the fraction
        if self.rope_type == "default" and self.family.known and not family.unscaled_reads_fraction:
            for value in (fraction, unread_width):
                # the fraction 1 and the width of the head say what the code does anyway
                if value is not None and value.value not in (1, head):
                    self.warnings.append(
                        f"{value} = {value.value!r} is ignored: an unscaled {self.model} rotates "
                        "the whole head"
                    )
            return {}
        # the value that tells how many dimensions rotate
        source = width or fraction or self._default(FRACTION_KEY)
        rotated = source.value if width is not None else int(head * source.value)
        if width is not None and not 2 <= rotated <= head:
            raise RopeError(width.key, f"must be an integer from 2 to {head}", rotated)
        if width is not None and fraction is not None and int(head * fraction.value) != rotated:
            rule = (
                f"contradicts {fraction}, which gives {int(head * fraction.value)} of {head} "
                "dimensions"
            )
            raise RopeError(width.key, rule, rotated)
        if unread_width is not None and unread_width.value != rotated:
            self.warnings.append(
                f"{unread_width} = {unread_width.value!r} is ignored: {self.model} rotates "
                f"{rotated} of {head} dimensions"
            )
        if rotated == head:
            return {}
        start = {"rotary_start": self._from_code(head - rotated, "at_end")} if family.at_end else {}
        return {"rotary_dim": replace(source, value=rotated), **start}

    def _fraction(self) -> Value | None:
        """Return the fraction of the head that rotates, from the rope or the config; None if
        neither has it.
        """
        return self._first_given(self.rope.get(FRACTION_KEY), self._given(FRACTION_KEY))

    def _layout(self) -> Values:
        """Return the pair layout of input and output: from `rope_interleave`, if the family's code
        reads it or is not known, otherwise from the family.
        """
        family, source = self.family, self._given("rope_interleave")
        if source is None or ("rope_interleave" not in family.reads and self.family.known):
            layouts = family.layout, family.layout_out
            source = self._from_code(None, "layout")  # its value is replaced below
        else:
            # code that reads the key returns interleaved pairs in the half layout
            layouts = ("interleaved", "half") if source.value else ("half", None)
        values = {"layout": replace(source, value=layouts[0])}
        if layouts[1] is not None:
            values["layout_out"] = replace(source, value=layouts[1])
        return values

    def _sections_and_order(self) -> Values:
        """Return `mrope_section`, the number of pairs of each axis, and `axis_order`, their order
        along the pairs, for multimodal positions; {} if there are no sections. Raise an error if
        the family rotates the two members of a pair by different axes.
        """
        own_order = self.family.axis_order
        first, second = (self.rope.get(key) for key in keys.SECTION_KEYS)
        sections = self._first_given(first, second)
        if sections is None and self._has_default("mrope_section"):
            sections = self._default("mrope_section")
        if sections is None:
            return {}
        if own_order == "within_pairs":
            rule = (
                f"must be absent: with it {self.model} rotates the two members of a pair by "
                "different axes, which no spec describes; for text alone, whose axes are all "
                f"equal, remove it ({sections})"
            )
            raise RopeError(sections.key, rule, sections.value)
        given = self.rope.get("mrope_interleaved") or self.rope.get("interleaved")
        order = "interleaved" if given is not None and given.value else "chunked"
        if own_order is not None:
            if given is not None and own_order != order:
                self.warnings.append(
                    f"{given} = {given.value!r} is ignored: {self.model} is always {own_order}"
                )
            source = self._from_code(own_order, "axis_order")
        else:
            assumed = Value(order, "axis_order", "assumed: no mrope_interleaved", derived=True)
            source = assumed if given is None else replace(given, value=order)
        sizes = self._sizes(sections, source.value)
        if own_order is None and self.family.known:
            self.warnings.append(
                f"{sections} = {sections.value!r} is ignored: {self.model} has one position for each "
                "token"
            )
            source = self._from_code("ignored", "axis_order")  # the spec gets one axis
        return {"mrope_section": replace(sections, value=sizes), "axis_order": source}

    def _sizes(self, sections: Value, order: str) -> Sequence[int]:
        """Return the number of pairs that each axis has in the model's code, whose order of axes is
        `order`; warn if `sections` says otherwise.

        Interleaved, height has at most the pairs 1, 4, 7, ... and width 2, 5, 8, ...; the code
        gives all others to time, whatever its section says.
        """
        # HunYuan's sections were written as floats; a list stays a list and a tuple a tuple
        sizes = type(sections.value)(int(count) for count in sections.value)
        if order != "interleaved" or len(sizes) != 3:
            return sizes
        pairs, (_, height, width) = sum(sizes), sizes
        height, width = min(height, (pairs + 1) // 3), min(width, pairs // 3)
        if sizes[1:] == type(sizes)((height, width)):
            return sizes
        used = type(sizes)((pairs - height - width, height, width))
        self.warnings.append(
            f"{sections} = {sizes!r} is read as {used!r}: interleaved, height and width have at "
            "most every third pair"
        )
        return used

    def _scaling_values(self) -> Values:
        """Return the values of the scaling by config key, and warn about keys of the rope that it
        does not read.
        """
        scaling = SCALINGS[self.rope_type]
        # the keys of the rope that have an effect
        read = {*keys.COMMON_KEYS, *keys.AXIS_KEYS}
        reads_alpha = "alpha" in self.family.reads or not self.family.known
        values: Values = {}
        if scaling is Dynamic and "alpha" in self.rope and reads_alpha:
            values = {"alpha": self.rope["alpha"]}
            read |= {"alpha", *UNREAD_WITH_ALPHA}
        else:
            for name, setting in settings_of(scaling).items():
                value = self._setting(setting.key or name, setting.default)
                if value is not None:
                    values[setting.key or name] = value
            # in a second loop, because the ratio needs the trained length that the first one read
            for name, setting in settings_of(scaling).items():
                key = setting.key or name
                if setting.from_lengths and key not in values:
                    values |= self._ratio_of_lengths(key, values)
        if scaling is LongRope and "short_mscale" in self.family.reads:
            values |= self._equal_mscales()
        if TRAINED_LENGTH_KEY in keys.keys_of(scaling):
            read.add(TRAINED_LENGTH_KEY)
        if keys.TEMPERATURE_KEY in self.rope and keys.TEMPERATURE_KEY in self.family.reads:
            # the temperature reads all of these but the served length, which such ropes have, too
            read |= {*keys.OTHER_KEYS, TRAINED_LENGTH_KEY}
        read |= {value.key for value in values.values()}
        unread = sorted(self.rope.keys() - read)
        if unread:
            self.warnings.append(
                f"{', '.join(unread)}: not read by rope_type {self.rope_type!r} of {self.model}"
            )
        return values

    def _setting(self, key: str, default: Any) -> Value | None:
        """Return the value of one key of the scaling; for the trained length, the rotated fraction
        and `attention_factor` also the default in the code of the family; None if there is none.
        `default`, that of the scaling's own field, is used only for the rotated fraction; for
        other keys the scaling itself has it.

        The trained length is the first of these that is there: that of the config itself (unless
        each layer type has a rope), the family's default, that of the rope object, the served
        length.

        The served length, `max_position_embeddings`, has no effect on a scaling that has `factor`
        and a trained length: its formula uses those two alone, in transformers as here. This method
        reads the served length in two cases: for a scaling whose own key it is ("dynamic", whose
        factor applies beyond this length), and as the trained length where that is not given.
        `_ratio_of_lengths` reads it in a third case, for a `factor` that is not given.
        """
        value = self.rope.get(key)
        if key == SERVED_LENGTH_KEY:
            return self._given(key)
        if key == TRAINED_LENGTH_KEY:
            # as in transformers, the key of the config itself comes before that of its only rope
            # object, and is not read if each layer type has a rope; Phi-3's config class has a
            # default for it
            outside = None if self._is_by_layer_type else self._given(key)
            if outside is None and self._has_default(key):
                outside = self._default(key)
            return self._first_given(outside, value) or self._given(SERVED_LENGTH_KEY)
        if key == FRACTION_KEY:
            return self._fraction() or self._default(key, default)
        if key == "attention_factor" and value is None and self._has_default(key):
            return self._default(key)
        return value

    @property
    def _is_by_layer_type(self) -> bool:
        """Whether transformers' class holds one rope for each layer type, because the config or the
        family does.
        """
        return bool(self.family.layer_thetas) or any(
            value.where.startswith("rope_parameters.") for value in self.rope.values()
        )

    def _ratio_of_lengths(self, key: str, values: Values) -> Values:
        """Return served length / trained length as the value of `key`; {} if the config gives only
        one of the two lengths.
        """
        served, trained = self._given(SERVED_LENGTH_KEY), values.get(TRAINED_LENGTH_KEY)
        # equal keys: the served length stands for the trained one, too
        if served is None or trained is None or served.key == trained.key:
            return {}
        ratio = served.value / trained.value
        return {key: Value(ratio, key, f"{served.key} / original_length", derived=True)}

    def _equal_mscales(self) -> Values:
        """Return PhiMoE's magnitude, `short_mscale`, which must equal `long_mscale`: under both
        keys, and as `attention_factor`, the standard key of a magnitude.
        """
        for key in keys.MSCALE_KEYS:
            if key not in self.rope:
                raise RopeError(key, f"must be given for rope_type {self.rope_type!r}", None)
        short, long = (self.rope[key] for key in keys.MSCALE_KEYS)
        if short.value != long.value:
            raise RopeError(
                long.key,
                f"must equal short_mscale = {short.value!r}: a spec has one magnitude",
                long.value,
            )
        return {short.key: short, long.key: long, "attention_factor": short}
