"""Read the specs that the metadata of a GGUF file describe: what llama.cpp computes from the file.

Words of this module:
  name            the file's general.architecture, such as "llama", with which its keys begin
  source          where metadata and tensors are read from, a `GgufSource`: a file, or in memory
  facts           what the code of llama.cpp does for this architecture, a GgufArchitecture
  sliding layers  the layers with a sliding window; full layers are the others
  layer type      FULL or SLIDING, or NO_ROPE for layers that do not rotate beside others that do
  record          add a value of a spec and its origin, a key or a default, to an explanation
  magnitude       the factor on cos and sin
  sections        the number of pairs of each position axis
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from ropewalk import axes
from ropewalk.config.hf import Explanation
from ropewalk.config.layers import NO_ROPE
from ropewalk.config.values import Entry
from ropewalk.errors import RopeError, choice, integer, number
from ropewalk.frequencies import Default, Given, Linear, Llama3, LongRope, Ntk, Scaling, Yarn
from ropewalk.frequencies.formulas import mscale
from ropewalk.gguf.architectures import GgufArchitecture, architecture_of
from ropewalk.gguf.factors import divisors, llama3
from ropewalk.spec import MAX_HEAD_DIM, RopeSpec

SCALING_TYPES = ("none", "linear", "yarn", "longrope")
FREQS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
FULL, SLIDING = "full_attention", "sliding_attention"
#: the key of an array with true for each layer that rotates and false for each other layer
PATTERN = "attention.rope_pattern"
#: the most layers that a file may give; llama.cpp's own limit, LLAMA_MAX_LAYERS, is 512
MAX_LAYERS = 1 << 16
#: keys under {arch}.rope.scaling -> the fact of a GgufArchitecture without which llama.cpp ignores
#: them
CONDITIONAL = {
    "yarn_beta_fast": "has_betas",
    "yarn_beta_slow": "has_betas",
    "yarn_ext_factor": "has_yarn_factors",
    "yarn_attn_factor": "has_yarn_factors",
    "yarn_log_multiplier": "log_multiplier",
    "alpha": "has_alpha",
}


@runtime_checkable
class GgufSource(Protocol):
    """Where metadata and tensors are read from: a GgufFile, keys and tensors in memory, or a file
    with some of them replaced.

    metadata  {key: value}; `array` returns the entries of an array
    tensors   a mapping with the names of the tensors as keys; `floats` returns the numbers of one
    """

    metadata: dict[str, Any]
    tensors: Any

    @property
    def architecture(self) -> str:
        """The metadata's `general.architecture`, such as "llama"."""
        ...

    def array(self, key: str) -> list[Any]:
        """Return the entries of an array in the metadata."""
        ...

    def floats(self, name: str) -> Sequence[float]:
        """Return the numbers of a tensor with one dimension that is not quantised."""
        ...


def read_ropes(
    source: GgufSource, precision: str = "hf_frequencies"
) -> tuple[dict[str, RopeSpec | None], Explanation]:
    """Return {layer type: spec, or None if it does not rotate}, and where each value came from.

    `precision` is that of the specs, see RopeSpec: a file has no key for it.
    """
    name = source.architecture
    facts = architecture_of(name)
    full = _GgufLayer(source, name, facts, FULL)
    layers = [full]
    if has_sliding(source, name):
        layers.append(_GgufLayer(source, name, facts, SLIDING))
    specs: dict[str, RopeSpec | None] = {}
    for layer in layers:
        if facts.full_unrotated and layer is full and len(layers) > 1:
            specs[FULL] = None
            layer.record("rope", None, "this layer type is not rotated")
        else:
            specs[layer.layer_type] = layer.spec(precision)
    rotates, origin = _rotated(source, name)
    # `rotates` has an entry for each layer; an empty one has no false entry, so the specs of the
    # layer types stay as they are
    if not all(rotates):
        specs = {**specs, NO_ROPE: None} if any(rotates) else dict.fromkeys(specs)
        unrotated = [i for i, each in enumerate(rotates) if not each]
        # NO_ROPE has no _GgufLayer, so the full layers carry the entry
        full.record("rope", None, f"{origin} {unrotated}")
    entries = tuple(entry for layer in layers for entry in layer.entries)
    return specs, Explanation(name, entries, tuple(_unread_warnings(source, name, facts)))


def has_sliding(source: GgufSource, name: str) -> bool:
    """Return whether the file has layers with a sliding window, as llama.cpp understands it."""
    facts, metadata = architecture_of(name), source.metadata
    # llama.cpp knows some models with sliding layers by their number of layers alone
    if facts.sliding_block_count:
        return metadata.get(f"{name}.block_count") == facts.sliding_block_count
    key = f"{name}.attention.sliding_window"
    # sliding_theta is None for an architecture without such layers
    return bool(facts.sliding_theta and integer(key, metadata.get(key, 0), low=0))


def rotated_layers(source: GgufSource, name: str) -> list[bool]:
    """Return for each layer whether it rotates; empty if no rule names single layers, so that the
    layer type decides, or if the file does not give the number of layers.
    """
    return _rotated(source, name)[0]


def _rotated(source: GgufSource, name: str) -> tuple[list[bool], str]:
    """Return for each layer whether it rotates, and what an explanation says before the indices of
    the layers that do not; ([], "") where `rotated_layers` returns [].
    """
    facts, metadata = architecture_of(name), source.metadata
    key, switch = f"{name}.{PATTERN}", f"{name}.rope.scaling.finetuned"
    layers = metadata.get(f"{name}.block_count")
    if facts.has_pattern and key in metadata:
        pattern = source.array(key)
        layers = len(pattern) if layers is None else layers
        if len(pattern) != layers or not all(isinstance(each, bool) for each in pattern):
            raise RopeError(key, f"must be true or false for each of the {layers} layers", pattern)
        return pattern, f"{key}: false for layers"
    if facts.has_switch and metadata.get(switch) is False:
        count = integer(f"{name}.block_count", layers, low=1, high=MAX_LAYERS)
        return [False] * count, f"{switch}: no rotation in layers"
    # the rule `unrotated_every` does not apply to a file that states a window of 0, which is none
    all_rotate = metadata.get(f"{name}.attention.sliding_window") == 0
    # with `full_unrotated` the layer type decides
    by_type = facts.full_unrotated and has_sliding(source, name)
    if facts.unrotated_every and layers is not None and not all_rotate and not by_type:
        count = integer(f"{name}.block_count", layers, low=0, high=MAX_LAYERS)
        every = facts.unrotated_every
        rotates = [(i + 1) % every != 0 for i in range(count)]
        return rotates, f"code of llama.cpp for {name}: no rotation in layers"
    return [], ""


def _unread_warnings(source: GgufSource, name: str, facts: GgufArchitecture) -> list[str]:
    """Return a warning for each key or tensor of the rope that llama.cpp does not read for this
    architecture.
    """
    # {key: a value that is true if llama.cpp reads the key}
    keys = {f"{name}.rope.scaling.{key}": getattr(facts, fact) for key, fact in CONDITIONAL.items()}
    keys[f"{name}.rope.dimension_sections"] = facts.axis_order
    keys[f"{name}.{PATTERN}"] = facts.has_pattern
    keys[f"{name}.rope.freq_base_swa"] = facts.sliding_theta in ("key", "own")
    unread = [key for key, is_read in keys.items() if key in source.metadata and not is_read]
    tensors = {FREQS: facts.has_freqs, LONG: facts.has_long_factors, SHORT: facts.has_long_factors}
    unread += [
        tensor for tensor, is_read in tensors.items() if tensor in source.tensors and not is_read
    ]
    return [f"{key}: llama.cpp does not read it for {name}" for key in unread]


@dataclass
class _GgufLayer:
    """The rope of one layer type while it is read.

    source      the file
    name        its general.architecture, with which its keys begin
    facts       what llama.cpp's code does for this architecture
    layer_type  FULL or SLIDING
    entries     the values of the spec so far, with their sources
    """

    source: GgufSource
    name: str
    facts: GgufArchitecture
    layer_type: str
    entries: list[Entry] = field(default_factory=list)

    def record(self, name: str, value: Any, origin: str) -> None:
        """Record where a value of the spec came from."""
        self.entries.append(Entry(self.layer_type, name, value, origin))

    def spec(self, precision: str) -> RopeSpec:
        """Return the spec of this layer type."""
        theta = self._theta()
        head_dim, rotary_dim = self._dimensions()
        scaling = self._scaling(theta, rotary_dim)
        self.record(
            "rope_type",
            scaling.name,
            self._key("rope.scaling.type") if self._has("rope.scaling.type") else "default",
        )
        for key, value in scaling.as_dict().items():
            # rope_type is recorded above; radians are many numbers that no single key gives
            if key not in ("rope_type", "radians") and value is not None:
                self.record(key, value, self._origin(scaling, key))
        self.record("layout", self.facts.layout, f"code of llama.cpp for {self.name}")
        return RopeSpec(
            head_dim=head_dim,
            theta=theta,
            scaling=scaling,
            layout=self.facts.layout,
            precision=precision,
            rotary_dim=rotary_dim,
            axes=self._axes(rotary_dim // 2),
            extra_softmax_factor=self._softmax_factor(),
        )

    def number(self, key: str, default: float, **bounds: float) -> float:
        """Return a number of the file, the value of `key` with the architecture before it;
        `default` if the file does not give it. `number` of errors.py checks it, with `bounds`.
        """
        value = self.source.metadata.get(self._key(key))
        return default if value is None else number(self._key(key), value, **bounds)

    def integer(self, key: str, default: int | None = None, low: int = 0) -> int:
        """Return an integer of the file, the value of `key` with the architecture before it;
        without a default it must be given. `integer` of errors.py checks it.
        """
        value = self.source.metadata.get(self._key(key))
        if value is None and default is not None:
            return default
        return integer(self._key(key), value, low=low)

    def _key(self, key: str) -> str:
        """Return the metadata key of this architecture, such as llama.rope.freq_base."""
        return f"{self.name}.{key}"

    def _has(self, key: str) -> bool:
        """Return whether the metadata has this architecture's key."""
        return self._key(key) in self.source.metadata

    def _record_key(self, name: str, key: str, value: Any) -> Any:
        """Return `value`, and record it as the field `name` of the spec, given by this key or by
        llama.cpp's default.
        """
        self.record(name, value, self._key(key) if self._has(key) else "default of llama.cpp")
        return value

    def _origin(self, scaling: Scaling, field: str) -> str:
        """Return the metadata key or the tensor that a field of the scaling comes from, or "default
        of llama.cpp".
        """
        tensors = {"short_factor": SHORT, "long_factor": LONG}
        # a Llama3 is always read from rope_freqs
        if isinstance(scaling, Llama3) or field in tensors:
            return tensors.get(field, FREQS)
        # the keys that may give a field; the first that llama.cpp reads from the file gives it. The
        # factor of LongRoPE is the quotient of two lengths
        factor = {Ntk: ("rope.scaling.alpha",), LongRope: ("context_length",)}
        keys = {
            "factor": factor.get(type(scaling), ("rope.scaling.factor", "rope.scale_linear")),
            "original_length": ("rope.scaling.original_context_length", "context_length"),
            "attention_factor": ("rope.scaling.attn_factor", "rope.scaling.yarn_log_multiplier"),
            "magnitude": ("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"),
            "beta_fast": ("rope.scaling.yarn_beta_fast",),
            "beta_slow": ("rope.scaling.yarn_beta_slow",),
        }
        return next(
            (self._key(key) for key in keys.get(field, ()) if self._is_read(key)),
            "default of llama.cpp",
        )

    def _is_read(self, key: str) -> bool:
        """Return whether the file has a key that may give a field of the scaling, and llama.cpp
        reads it for this architecture.
        """
        fact = CONDITIONAL.get(key.removeprefix("rope.scaling."))
        return self._has(key) and (fact is None or bool(getattr(self.facts, fact)))

    def _theta(self) -> float:
        """Return the theta of this layer type, and record which key gives it.

        For sliding layers the fact `sliding_theta` decides: "full": they have that of full layers;
        "key": rope.freq_base_swa, else that of full layers; "own": rope.freq_base_swa, else 10,000.
        """
        theta = self.number("rope.freq_base", 10_000.0, above=0)
        if self.layer_type == FULL or self.facts.sliding_theta == "full":
            return self._record_key("theta", "rope.freq_base", theta)
        default = 10_000.0 if self.facts.sliding_theta == "own" else theta
        if not self._has("rope.freq_base_swa") and default == theta:
            # the sliding layers have the theta of the full ones, so the same key gives both
            return self._record_key("theta", "rope.freq_base", theta)
        sliding = self.number("rope.freq_base_swa", default, above=0)
        return self._record_key("theta", "rope.freq_base_swa", sliding)

    def _dimensions(self) -> tuple[int, int]:
        """Return head_dim and rotary_dim, and record which keys give them."""
        # of latent attention the spec describes only the part of the head that rotates
        of_part = self.facts.latent and self._has("rope.dimension_count")
        head_key = "rope.dimension_count" if of_part else "attention.key_length"
        if self._has(head_key):
            head, origin = self.integer(head_key, low=2), self._key(head_key)
        else:
            width, heads = (
                self.integer("embedding_length", low=1),
                self.integer("attention.head_count", low=1),
            )
            if width % heads:
                rule = (
                    f"must be a multiple of {self._key('attention.head_count')} = {heads} without "
                    "attention.key_length"
                )
                raise RopeError(self._key("embedding_length"), rule, width)
            head, origin = width // heads, f"{self.name}.embedding_length / attention.head_count"
        rotated, rotated_origin = self._size("rope.dimension_count", head, origin)
        if self.layer_type == SLIDING:
            head, origin = self._size("attention.key_length_swa", head, origin)
            # by default as many as in full layers, but no more than the head has
            rotated, rotated_origin = self._size(
                "rope.dimension_count_swa", min(rotated, head), rotated_origin
            )
        elif self.facts.full_rotary_share != 1:
            # the code rotates only this share of the dimensions in full layers
            rotated = int(rotated * self.facts.full_rotary_share)
        if head > MAX_HEAD_DIM or rotated > head or rotated % 2:
            rule = (
                f"must be even and at most the head's {head} dimensions, which are at most "
                f"{MAX_HEAD_DIM}"
            )
            raise RopeError(rotated_origin, rule, rotated)
        self.record("head_dim", head, origin)
        if rotated != head:
            self.record("rotary_dim", rotated, rotated_origin)
        return head, rotated

    def _size(self, key: str, default: int, origin: str) -> tuple[int, str]:
        """Return the number of dimensions that a key gives, and the key; `default` and `origin` if
        the file does not have it.
        """
        return (self.integer(key, low=2), self._key(key)) if self._has(key) else (default, origin)

    def _scaling(self, theta: float, dim: int) -> Scaling:
        """Return the scaling of `dim` rotated dimensions, from the keys and from the tensors with a
        divisor for each pair.
        """
        # "full": sliding layers have the scaling of full ones; "magnitude": no scaling, but the
        # factor on the magnitude; "none": neither
        sliding_scaling = self.facts.sliding_scaling if self.layer_type == SLIDING else "full"
        if sliding_scaling == "none":
            return Default()
        if sliding_scaling == "magnitude":
            return self._with_magnitude(Default(), self._attention_factor(), theta, dim)
        scaling, magnitude = self._scaling_of_keys()
        source, facts = self.source, self.facts
        scaling_type = self._type()
        # if llama.cpp reads rope_freqs as well, the long factors need the type "longrope"
        if (
            facts.has_long_factors
            and LONG in source.tensors
            and (scaling_type == "longrope" or not facts.has_freqs)
        ):
            return self._longrope(scaling, magnitude, dim // 2)
        if facts.has_freqs and FREQS in source.tensors and scaling_type != "longrope":
            values = divisors(FREQS, source.floats(FREQS), dim // 2)
            if any(value != 1 for value in values):
                # a Llama3 has no other scaling under it and no magnitude
                plain = isinstance(scaling, Default) and magnitude == 1
                radians = scaling.frequencies(dim, theta).radians
                divided = tuple(x / y for x, y in zip(radians, values, strict=True))
                return (llama3(values, theta) if plain else None) or Given(divided, magnitude)
        return self._with_magnitude(scaling, magnitude, theta, dim)

    def _with_magnitude(
        self, scaling: Scaling, magnitude: float, theta: float, dim: int
    ) -> Scaling:
        """Return a scaling with the frequencies of `scaling` and this magnitude."""
        frequencies = scaling.frequencies(dim, theta)
        # a magnitude that follows from the scaling is not stated again, as in configs
        if math.isclose(float(frequencies.magnitude), magnitude, rel_tol=1e-6):
            return scaling
        if isinstance(scaling, Yarn):
            return replace(scaling, attention_factor=magnitude)
        return Given(frequencies.radians, magnitude)

    def _attention_factor(self) -> float:
        """Return the factor that the file gives for the magnitude; 1 if it gives none."""
        return self.number("rope.scaling.attn_factor", 1.0, above=0)

    def _type(self) -> str:
        """Return the scaling type of the file, by default "linear" as in llama.cpp."""
        key = self._key("rope.scaling.type")
        return choice(key, self.source.metadata.get(key, "linear"), SCALING_TYPES)

    def _factor(self) -> float:
        """Return the number that frequencies are divided by; 1 if the scaling type is "none", or if
        the file gives no factor or the factor 0.
        """
        # rope.scale_linear is the old name of the key
        factor = self.number(
            "rope.scaling.factor", self.number("rope.scale_linear", 0.0, low=0), low=0
        )
        return 1.0 if factor == 0 or self._type() == "none" else factor

    def _extrapolation(self) -> float:
        """Return llama.cpp's weight of YaRN: with 1 the frequencies are YaRN's, with 0 all are
        divided by the factor; a file may give another number.
        """
        default = 1.0 if self._type() == "yarn" else 0.0
        # a negative number stands for one that is not given, as in llama.cpp
        given = (
            self.number("rope.scaling.yarn_ext_factor", -1.0)
            if self.facts.has_yarn_factors
            else -1.0
        )
        return given if given >= 0 else default

    def _mscale_all_dim(self) -> float:
        """Return YaRN's mscale_all_dim: the file's yarn_log_multiplier times the architecture's
        factor on it; 0 if the file has none.
        """
        return self.facts.log_multiplier * self.number(
            "rope.scaling.yarn_log_multiplier", 0.0, low=0
        )

    def _scaling_of_keys(self) -> tuple[Scaling, float]:
        """Return the scaling that the keys describe, and its magnitude: YaRN if the weight
        `extrapolation` is 1; linear, NTK or none if it is 0.
        """
        factor, extrapolation = self._factor(), self._extrapolation()
        magnitude = self._attention_factor()
        alpha = self.number("rope.scaling.alpha", 0.0, low=0) if self.facts.has_alpha else 0.0
        # alpha makes theta larger, beside whatever the factor does
        if alpha and factor != 1:
            raise RopeError(
                self._key("rope.scaling.factor"), "must be 1 beside rope.scaling.alpha", factor
            )
        if extrapolation == 0:  # without YaRN, whose own magnitude replaces yarn_attn_factor
            magnitude *= (
                self.number("rope.scaling.yarn_attn_factor", 1.0, above=0)
                if self.facts.has_yarn_factors
                else 1.0
            )
            if alpha:
                return Ntk(alpha), magnitude
            return (Linear(factor) if factor != 1 else Default()), magnitude
        if extrapolation != 1:
            raise RopeError(
                self._key("rope.scaling.yarn_ext_factor"), "must be 0 or 1", extrapolation
            )
        length = self.integer(
            "rope.scaling.original_context_length", self.integer("context_length", 0), low=1
        )
        betas: dict[str, Any] = {"beta_fast": self.facts.beta_fast}
        if self.facts.has_betas:
            betas["beta_fast"] = self.number(
                "rope.scaling.yarn_beta_fast", self.facts.beta_fast, above=0
            )
            betas["beta_slow"] = self.number("rope.scaling.yarn_beta_slow", 1.0, above=0)
        mscale_all_dim = self._mscale_all_dim()
        if mscale_all_dim and self.facts.latent and self.name != "deepseek32":
            # for latent attention, except in deepseek32, llama.cpp takes mscale to be
            # mscale_all_dim, so the quotient of the two magnitudes is 1
            yarn_magnitude = 1.0
        else:
            yarn_magnitude = mscale(factor) / mscale(factor, mscale_all_dim)
        # checked again, because `length` is 0 if the file gives neither length
        original = integer(self._key("rope.scaling.original_context_length"), length, low=1)
        return Yarn(original, factor=factor, **betas), magnitude * yarn_magnitude

    def _longrope(self, scaling: Scaling, magnitude: float, pairs: int) -> LongRope:
        """Return the LongRoPE scaling, whose factors are tensors of the file, one for each of the
        `pairs`; `scaling` and `magnitude` are what `_scaling_of_keys` returned.
        """
        if not isinstance(scaling, Default | Linear):
            rule = f"must be none, linear or longrope beside {LONG}"
            raise RopeError(self._key("rope.scaling.type"), rule, self._type())
        if SHORT not in self.source.tensors:
            raise RopeError(SHORT, f"must be in the file, because {LONG} is", None)
        # llama.cpp divides frequencies by the factors and by that of the linear scaling; Default
        # has no factor
        linear_factor = getattr(scaling, "factor", 1.0)
        short, long = (
            tuple(x * linear_factor for x in divisors(name, self.source.floats(name), pairs))
            for name in (SHORT, LONG)
        )
        served = self.integer("context_length", low=1)
        trained = self.integer("rope.scaling.original_context_length", served, low=1)
        lengths = {"original_length": trained, "factor": served / trained}
        return LongRope(short, long, **lengths, attention_factor=magnitude)

    def _axes(self, pairs: int) -> axes.AxisMap | None:
        """Return the axis of each pair, or None if the file has no sections."""
        key = self._key("rope.dimension_sections")
        if self.facts.axis_order is None or key not in self.source.metadata:
            return None
        given = self.source.array(key)
        sections = [integer(key, count, low=0, high=MAX_HEAD_DIM) for count in given]
        while sections and sections[-1] == 0:  # files have four sections, also for three axes
            sections.pop()
        if sum(sections) != pairs:
            raise RopeError(key, f"must add up to the {pairs} pairs that rotate", given)
        self.record("mrope_section", sections, key)
        make_axis_map: Callable[[list[int]], axes.AxisMap] = axes.AXIS_ORDERS[self.facts.axis_order]
        return make_axis_map(sections)

    def _softmax_factor(self) -> float:
        """Return the factor that latent attention applies to its softmax scale; 1 for other
        attention, and in files that have no YaRN or no yarn_log_multiplier.
        """
        mscale_all_dim = self._mscale_all_dim()
        # an extrapolation of 0 means that the rope is not YaRN
        if not self.facts.latent or not mscale_all_dim or self._extrapolation() == 0:
            return 1.0
        extra = mscale(self._factor(), mscale_all_dim) ** 2
        self.record("extra_softmax_factor", extra, self._key("rope.scaling.yarn_log_multiplier"))
        return extra
