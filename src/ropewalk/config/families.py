"""Facts about model families that their code fixes and no config contains: the rows of
families.toml, by `model_type`.

A new family is a new row of that file, or, at run time, `add_families` with the text of one.

Words of this module:
  row     a [[family]] table of such a text: `model_types`, which share the facts, and the facts
  family  the facts of a row, as a `Family`
  check   a function (key, value) that returns the value as a `Family` holds it, or raises a
          RopeError about the key
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ropewalk.caches import cached
from ropewalk.errors import RopeError, choice, flag, integer, number

TABLE = Path(__file__).with_name("families.toml")
SIZES = Path(__file__).with_name("class_sizes.toml")
#: theta and rotated fraction of a family whose row gives no others
COMMON_DEFAULTS: dict[str, Any] = {"rope_theta": 10_000.0, "partial_rotary_factor": 1.0}
#: config keys that `reads` may list
READABLE = (
    "partial_rotary_factor",
    "rotary_dim",
    "rope_interleave",
    "alpha",
    "short_mscale",
    "long_mscale",
    "llama_4_scaling_beta",
)
#: rules by which some layers are not rotated, as `unrotated` names them; layers.py applies them
UNROTATED_RULES = (
    "full_attention",
    "full_attention_or_no_window",
    "no_rope_layers",
    "no_rope_layers_if_not_empty",
    "layer_rope_theta",
    "zero_layer_rope_theta",
    "null_rope_theta",
)
#: the orders of axes along the pairs that `axis_order` may name; "within_pairs": the two members of
#: a pair have different axes, which is no rotation
ORDERS = ("chunked", "interleaved", "ernie", "within_pairs")


@dataclass(frozen=True)
class LayerTheta:
    """The theta of one layer type, in a family whose layer types have different thetas.

    key      the config key of the theta outside `rope_parameters`; None: no key is read
    default  the theta if the config does not give it
    scaled   whether `rope_scaling` applies to this layer type
    """

    key: str | None
    default: float
    scaled: bool


@dataclass(frozen=True)
class FullLayers:
    """Which layers have full attention if a config has no `layer_types`: each `every`-th.

    key     the config key that gives another interval; None: no key does
    others  the type of the other layers
    first   they are the layers 0, every, 2 * every, ..., and not every - 1, 2 * every - 1, ...
    last    the last layer is one of them too
    """

    every: int
    key: str | None = None
    others: str = "sliding_attention"
    first: bool = False
    last: bool = False


@dataclass(frozen=True)
class Family:
    """Pair layout, defaults and rules of one family; a row gives only what differs from most code.

    layout              the pair layout of q and k
    layout_out          the pair layout of the result, if it is another
    latent              latent attention: the rotated part of a head has a width of its own,
                        `qk_rope_head_dim`
    head_parts          how many times hidden_size / heads a head is wide if no key says it
    at_end              the rotated slice is at the end of the head
    reads               config keys that this code reads and most code does not.
                        `partial_rotary_factor`: an unscaled rope reads it; scaled ropes always do.
                        `rope_interleave`: true for interleaved pairs with "half" output, false for
                        "half". `alpha`: "dynamic" with it is NTK with a fixed factor.
                        `short_mscale`, `long_mscale`: they are the magnitude of longrope.
                        `llama_4_scaling_beta`: it scales the queries
    renamed             config keys, {standard name: name here}: outside a rope object, this code
                        reads no other name of it. And {rope_type in a config: the standard one that
                        this code takes it for}
    defaults            {config key: value if it is absent}. `head_dim` has the default
                        hidden_size / num_attention_heads if a row gives no other;
                        `global_head_dim` is the head_dim of full-attention layers; a default of
                        `original_max_position_embeddings` comes before the key inside a rope
    defaults_if         {condition: {config key: value}}, which come before `defaults`. Conditions:
                        "scaled" (any rope_type but default), "no_rope_object", or a rope_type
    layer_thetas        {layer type: its theta} if layer types have different thetas
    full_layers         which layers have full attention if the config has no `layer_types`; given
                        if the other layers have another rope or none
    axis_order          the order of `mrope_section` along the pairs; None: `mrope_interleaved`
                        gives it
    unrotated           the rule by which some layers are not rotated, one of UNROTATED_RULES
    rope_required       without a rope object the model's code falls back to a scaled rope, so the
                        config must have one
    rotates_if          {config key: values with which the model rotates}
    rotates_if_absent   the model also rotates if the keys of `rotates_if` are absent or null
    only_default        the model's code raises an error for every rope_type but default
    refused             why no spec can describe this family
    known               False for the family of a model_type without a row
    """

    layout: str = "half"
    layout_out: str | None = None
    latent: bool = False
    head_parts: int = 1
    at_end: bool = False
    reads: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    defaults_if: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    layer_thetas: Mapping[str, LayerTheta] = field(default_factory=dict)
    full_layers: FullLayers | None = None
    axis_order: str | None = None
    unrotated: str | None = None
    rope_required: bool = False
    rotates_if: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    rotates_if_absent: bool = False
    only_default: bool = False
    refused: str | None = None
    known: bool = True

    def default(self, key: str, *conditions: str) -> Any:
        """Return the value that the family's code gives to an absent config key; None if it gives
        none. It is the value of the first of these that has the key: `defaults_if` under each of
        `conditions` in turn, `defaults`, and COMMON_DEFAULTS.
        """
        for condition in conditions:
            if key in self.defaults_if.get(condition, {}):
                return self.defaults_if[condition][key]
        return self.defaults.get(key, COMMON_DEFAULTS.get(key))

    @property
    def unscaled_reads_fraction(self) -> bool:
        """Whether an unscaled rope reads `partial_rotary_factor`."""
        return "partial_rotary_factor" in self.reads

    @property
    def partial(self) -> float:
        """The fraction of the head that an unscaled rope rotates if the config gives none."""
        return self.default("partial_rotary_factor")

    @property
    def sections(self) -> tuple[int, ...] | None:
        """The `mrope_section` of a config that gives none."""
        return self.default("mrope_section")


#: the family of each known `model_type`, once families.toml was read
_KNOWN: dict[str, Family] = {}


def families() -> dict[str, Family]:
    """Return the family of each known `model_type`: those of families.toml, read at first use, and
    added ones.
    """
    if not _KNOWN:
        _KNOWN.update(_shipped()[0])
    return _KNOWN


def family_of(model_type: object) -> Family:
    """Return the family of a `model_type`; for one without a row, the family that reads the
    standard config keys and has the usual defaults.
    """
    return families().get(str(model_type)) or _shipped()[1]


def add_families(text: str) -> tuple[str, ...]:
    """Add the [[family]] rows of a TOML text for the rest of this process, and return their model
    types.

    The keys are those of families.toml. A wrong row raises a RopeError and adds nothing.
    """
    rows = parse_rows(text)
    known = families()
    for name in rows:
        if name in known:
            rule = "must name only model types without a row; this one has one already"
            raise RopeError("model_types", rule, name)
    known.update(rows)
    return tuple(rows)


@cached("sizes of classes", entries=1)
def class_sizes() -> dict[str, dict[str, int]]:
    """Return {model_type: the sizes by config key that its class in transformers has by default}."""
    names = ("hidden_size", "num_attention_heads", "num_hidden_layers")
    rows = tomllib.loads(SIZES.read_text(encoding="utf-8"))
    return {name: dict(zip(names, sizes, strict=True)) for name, sizes in rows.items()}


@cached("rows of families", entries=1)
def _shipped() -> tuple[dict[str, Family], Family]:
    """Return the families of families.toml, and the one of an unknown model_type."""
    document = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return _by_model_type(document["family"]), replace(_family(document["unknown"]), known=False)


def parse_rows(text: str) -> dict[str, Family]:
    """Return {model_type: family} of the [[family]] rows in a TOML text; refuse unknown keys and
    wrong values by name.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RopeError("families", f"must be TOML ({error})", text[:40]) from None
    rows = document.pop("family", None)
    if document or not isinstance(rows, list) or not rows:
        raise RopeError("families", "must hold [[family]] tables and nothing else", text[:40])
    return _by_model_type(rows)


def _by_model_type(rows: list[dict[str, Any]]) -> dict[str, Family]:
    """Return {model_type: family} of the rows; refuse a model_type that is in two rows."""
    known: dict[str, Family] = {}
    for row in rows:
        names = row.get("model_types")
        if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
            raise RopeError("model_types", "must list the model_type names of the row", names)
        family = _family({key: value for key, value in row.items() if key != "model_types"})
        for name in names:
            if name in known:
                raise RopeError("model_types", "must not name a model_type of another row", name)
            known[name] = family
    return known


def _family(row: Mapping[str, Any]) -> Family:
    """Return the family that a row describes; refuse unknown keys and wrong values.

    The row must not hold `model_types`: the caller takes it out.
    """
    for key, value in row.items():
        if key not in _CHECKS:
            nearest = difflib.get_close_matches(key, _CHECKS, n=1)
            hint = f"; did you mean {nearest[0]}?" if nearest else f": {', '.join(_CHECKS)}"
            raise RopeError(key, f"must be a key of a family{hint}", value)
    return Family(**{key: _CHECKS[key](key, value) for key, value in row.items()})


def _table(key: str, value: object) -> dict[str, Any]:
    """Return a TOML table that is not empty; raise a RopeError about `key` for any other value."""
    if not isinstance(value, dict) or not value:
        raise RopeError(key, "must be a table with at least one key", value)
    return value


def _defaults(key: str, value: object) -> dict[str, Any]:
    """Return {config key: its default} of a table, each checked by _DEFAULT_CHECKS."""
    checked: dict[str, Any] = {}
    for name, each in _table(key, value).items():
        check = _DEFAULT_CHECKS.get(name)
        if check is None:
            raise RopeError(f"{key}.{name}", f"must be one of {', '.join(_DEFAULT_CHECKS)}", each)
        checked[name] = check(f"{key}.{name}", each)
    return checked


def _width(key: str, value: object) -> int:
    """Return a number of dimensions or tokens: an integer of at least 1."""
    return integer(key, value, low=1)


def _positive(key: str, value: object) -> float:
    """Return a number above 0."""
    return number(key, value, above=0)


def _names(known: tuple[str, ...]) -> Any:
    """Return a check: (key, value) -> the entries of a list, all of which must be in `known`."""

    def check(key: str, value: object) -> tuple[str, ...]:
        """Return the names of a list, each of them in `known`."""
        if not isinstance(value, list):
            raise RopeError(key, f"must be a list of {', '.join(known)}", value)
        return tuple(choice(key, name, known) for name in value)

    return check


def _name_of(known: tuple[str, ...]) -> Any:
    """Return a check: (key, value) -> the value, a name that must be in `known`."""
    return lambda key, value: choice(key, value, known)


def _sections(key: str, value: object) -> tuple[int, ...]:
    """Return the number of pairs of each axis; raise an error if the value is no such list."""
    if not isinstance(value, list) or not value:
        raise RopeError(key, "must list the number of pairs of each axis", value)
    return tuple(integer(key, count, low=0) for count in value)


def _text(key: str, value: object) -> str:
    """Return a text that is not empty; raise a RopeError about `key` for any other value."""
    if not isinstance(value, str) or not value:
        raise RopeError(key, "must be a text that is not empty", value)
    return value


def _texts(key: str, value: object) -> dict[str, str]:
    """Return {name: text} of a table of texts."""
    return {name: _text(f"{key}.{name}", each) for name, each in _table(key, value).items()}


def _values(key: str, value: object) -> dict[str, tuple[object, ...]]:
    """Return {config key: the values that the row lists} of a table of lists; raise an error if an
    entry is no list, or an empty one.
    """
    checked = _table(key, value)
    for name, each in checked.items():
        if not isinstance(each, list) or not each:
            raise RopeError(f"{key}.{name}", "must be a list of at least one value", each)
    return {name: tuple(each) for name, each in checked.items()}


def _theta_of_layer_type(key: str, value: object) -> dict[str, LayerTheta]:
    """Return {layer type: its LayerTheta} of the table `layer_thetas` of a row; refuse a layer type
    without `default` or `scaled`, or with another key.
    """
    checked: dict[str, LayerTheta] = {}
    for name, each in _table(key, value).items():
        where = f"{key}.{name}"
        if not isinstance(each, dict) or not {"default", "scaled"} <= each.keys() <= {
            "key",
            "default",
            "scaled",
        }:
            raise RopeError(where, "must have default and scaled, and may have key", each)
        theta_key = _text(f"{where}.key", each["key"]) if "key" in each else None
        checked[name] = LayerTheta(
            theta_key,
            _positive(f"{where}.default", each["default"]),
            flag(f"{where}.scaled", each["scaled"]),
        )
    return checked


def _full_layers(key: str, value: object) -> FullLayers:
    """Return the FullLayers of the table `full_layers` of a row; refuse one without `every`, or with
    another key.
    """
    row = _table(key, value)
    checks = {"every": _width, "key": _text, "others": _text, "first": flag, "last": flag}
    if "every" not in row or not row.keys() <= checks.keys():
        raise RopeError(key, "must have every, and may have key, others, first and last", row)
    return FullLayers(**{name: checks[name](f"{key}.{name}", each) for name, each in row.items()})


#: the config keys that `defaults` may have, and how each default is checked
_DEFAULT_CHECKS = {
    "rope_theta": _positive,
    "head_dim": _width,
    "global_head_dim": _width,
    "partial_rotary_factor": _positive,
    "rotary_dim": _width,
    "mrope_section": _sections,
    "original_max_position_embeddings": _width,
    "attention_factor": _positive,
}
_LAYOUTS = _name_of(("half", "interleaved"))
#: the keys that a row may have beside `model_types`, and how the value of each is checked
_CHECKS = {
    "layout": _LAYOUTS,
    "layout_out": _LAYOUTS,
    "reads": _names(READABLE),
    "renamed": _texts,
    "defaults": _defaults,
    "defaults_if": lambda key, value: {
        name: _defaults(f"{key}.{name}", each) for name, each in _table(key, value).items()
    },
    "layer_thetas": _theta_of_layer_type,
    "full_layers": _full_layers,
    "axis_order": _name_of(ORDERS),
    "unrotated": _name_of(UNROTATED_RULES),
    "rotates_if": _values,
    "refused": _text,
    "head_parts": lambda field, value: integer(field, value, low=1, high=8),
    **dict.fromkeys(
        ("latent", "at_end", "rope_required", "rotates_if_absent", "only_default"), flag
    ),
}


def __getattr__(name: str) -> Any:
    """Return `families()` as the attribute FAMILIES; an import of the module alone reads no file."""
    if name == "FAMILIES":
        return families()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
