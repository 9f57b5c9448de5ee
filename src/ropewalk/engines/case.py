"""What an engine is asked about: one layer type of a config, and how it is served.

Words of this module:
  rope         an object of a config with the settings of a rotation. `rope_scaling`, or v4, is where
               transformers 4 has it; `rope_parameters`, or v5, where transformers 5 has it, which
               may be one rope, or an object with one for each layer type
  text model   the part of a multimodal config that is about text, or else the whole config
  case         a `ServedLayer`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ropewalk.axes import AxisMap
from ropewalk.config import keys
from ropewalk.config.families import family_of
from ropewalk.config.layers import types_by_pattern
from ropewalk.spec import RopeSpec

#: the keys under which rules find the model_type and the architectures of the whole config that a
#: text model is a part of
OUTER_TYPE = "model_type_outside"
OUTER_ARCHITECTURES = "architectures_outside"
#: the key under which `audit` puts the rest of a config whose text_config has the config's own
#: model_type: the class of a text model may read either
OUTER_CONFIG = "config_outside"
#: the config key of the trained length
TRAINED = "original_max_position_embeddings"
#: the config keys of the served length, and of the fraction of the head that rotates
LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "n_ctx",
    "model_max_length",
)
FRACTION_KEYS = ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction")


def _object(value: Any) -> Mapping[str, Any]:
    """Return a value if it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def declared_types(config: Mapping[str, Any]) -> list[str]:
    """Return the names in `layer_types`; [] if it is absent or no list."""
    given = config.get("layer_types")
    return [name for name in given if isinstance(name, str)] if isinstance(given, list) else []


def is_whole(config: Mapping[str, Any]) -> bool:
    """Return whether these are the keys of a published config, not those of its rope and its sizes
    alone: it names its class, is part of another one, or has a vocabulary and a norm.
    """
    has_norm = any("norm_eps" in key for key in config)
    return bool({"architectures", OUTER_TYPE} & config.keys()) or (
        "vocab_size" in config and has_norm
    )


def layer_types_of(config: Mapping[str, Any]) -> list[str]:
    """Return the type of each layer: `layer_types`, or those that the family's rule gives; [] if
    neither says it.
    """
    declared = declared_types(config)
    rule, count = family_of(config.get("model_type")).full_layers, config.get("num_hidden_layers")
    if declared or rule is None or not isinstance(count, int):
        return declared
    return types_by_pattern(config, rule, count) or []


def ropes_by_layer_type(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return {layer type: its rope object} if `rope_parameters` has one for each, else {}. A null
    under a declared layer type counts as an empty object.
    """
    # an object is the rope of a layer type, unless its key is one that a rope itself may have
    v5 = _object(config.get("rope_parameters"))
    declared = declared_types(config)
    return {
        name: _object(value)
        for name, value in v5.items()
        if (isinstance(value, Mapping) and name not in keys.inner_keys())
        or (value is None and name in declared)
    }


@dataclass(frozen=True)
class ServedLayer:
    """One layer type of a config and how it is served.

    spec            the spec that the config describes
    config          the keys of the text model
    layer_type      the name of this layer type
    max_model_len   the longest sequence that the engine is started for
    length          tokens of the longest sequence of the batch
    limit_is_given  whether the caller gave `max_model_len`; else every engine has a default of its
                    own
    rope            the keys of this layer type's rope that are not null
    """

    spec: RopeSpec
    config: Mapping[str, Any]
    layer_type: str
    max_model_len: int
    length: int
    limit_is_given: bool = False
    rope: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rope", self._rope())

    def _rope(self) -> dict[str, Any]:
        """Return the keys of the rope that are not null; {} if the config has one rope for all
        layer types, but the model does not apply its scaling to this layer type.
        """
        rope = {key: value for key, value in self.rope_with_nulls.items() if value is not None}
        if self.rope_with_nulls.get("truncate", True) is None:
            rope["truncate"] = False  # as transformers reads a null
        is_scaled = self.spec.scaling.name != "default"
        # a type of mrope has several axes and no scaling
        names_scaling = _name(rope) not in ("default", "mrope")
        return rope if self.by_layer_type or is_scaled or not names_scaling else {}

    @property
    def model_type(self) -> str | None:
        return self.config.get("model_type")

    @property
    def theta(self) -> float:
        return self.spec.theta

    @property
    def head_dim(self) -> int:
        return self.spec.head_dim

    @property
    def rope_with_nulls(self) -> Mapping[str, Any]:
        """The rope object as the config writes it, with the keys that are null; {} if other layer
        types have a rope and this one has none.
        """
        by_type = ropes_by_layer_type(self.config)
        if by_type:
            return by_type.get(self.layer_type, {})
        v4, v5 = (_object(self.config.get(key)) for key in ("rope_scaling", "rope_parameters"))
        return {**v4, **v5}  # a key that both have counts as in v5

    @property
    def by_layer_type(self) -> bool:
        """Whether `rope_parameters` has a rope for this layer type."""
        return self.layer_type in ropes_by_layer_type(self.config)

    @property
    def ropes(self) -> list[Mapping[str, Any]]:
        """The rope of every layer type if the config has one for each, else its only one."""
        return list(ropes_by_layer_type(self.config).values()) or [self.rope]

    @property
    def rope_type(self) -> str:
        """The name of the scaling as the config writes it."""
        return _name(self.rope)

    @property
    def latent(self) -> bool:
        """Whether attention is latent, with a separate rotated part (DeepSeek)."""
        return self.config.get("qk_rope_head_dim") is not None

    @property
    def mrope(self) -> bool:
        """Whether the pairs rotate by several axes, such as time, height and width (M-RoPE)."""
        return isinstance(self.spec.axes, AxisMap)

    @property
    def interleaved_axes(self) -> bool:
        """Whether pairs 0, 1 and 2 rotate by axes 0, 1 and 2, as in interleaved M-RoPE."""
        return self.mrope and self.spec.axis_of_pair[:3] == (0, 1, 2)

    @property
    def sections(self) -> list[int]:
        """How many pairs rotate by each axis, in the order of the axes."""
        counts = Counter(self.spec.axis_of_pair)
        return [counts[axis] for axis in sorted(counts)]

    @property
    def max_position(self) -> int | None:
        """The config's served length, or None."""
        lengths = (self.config.get(key) for key in LENGTH_KEYS)
        return next((length for length in lengths if length is not None), None)

    @property
    def derived_head_dim(self) -> int:
        """hidden_size / num_attention_heads, rounded down, which some engines use whatever head_dim
        is; head_dim if either is missing.
        """
        hidden, heads = self.config.get("hidden_size"), self.config.get("num_attention_heads")
        return hidden // heads if hidden and heads else self.spec.head_dim

    def value(self, path: str) -> Any:
        """Return the value of a key, None if it is absent or null.

        path  "rope.KEY" of the rope, "config.KEY" of the text model, "either.KEY" of the rope or
              else of the text model, "v4.KEY" of `rope_scaling`, "v5.KEY" of `rope_parameters`,
              "attn.KEY" of `attn_config`, "full.KEY" and "sliding.KEY" of the rope of these
              layers; "layer.KEY" of a list with an entry for each layer; "fraction", the fraction
              of the head that rotates, by the rope's partial_rotary_factor, or else by any of
              FRACTION_KEYS in the text model; or a property of the case, such as "rope_type"
        """
        place, _, key = path.partition(".")
        if place == "either":
            inside = self.rope.get(key)
            return self.config.get(key) if inside is None else inside
        if place == "fraction":
            inside = self.rope.get(FRACTION_KEYS[0])
            values = (inside, *(self.config.get(key) for key in FRACTION_KEYS))
            return next((value for value in values if value is not None), None)
        if not key:
            return getattr(self, path)
        if place == "layer":
            return self._of_layers(key)
        objects = {
            "rope": self.rope,
            "config": self.config,
            "v4": _object(self.config.get("rope_scaling")),
            "v5": _object(self.config.get("rope_parameters")),
            "attn": _object(self.config.get("attn_config")),
            "full": _object(_object(self.config.get("rope_parameters")).get("full_attention")),
            "sliding": _object(
                _object(self.config.get("rope_parameters")).get("sliding_attention")
            ),
        }
        return objects[place].get(key)

    def _of_layers(self, key: str) -> Any:
        """Return the entry of the first layer of this type in a list of the config that has one for
        each layer; the first entry if the config declares no layer of this type; None if it has no
        such list, or one that is too short.
        """
        entries, types = self.config.get(key), declared_types(self.config)
        index = types.index(self.layer_type) if self.layer_type in types else 0
        return entries[index] if isinstance(entries, list) and index < len(entries) else None


def _name(rope: Mapping[str, Any]) -> str:
    """Return the name of a rope's scaling, by either key; "default" if it has none."""
    return str(rope.get("rope_type") or rope.get("type") or "default")
