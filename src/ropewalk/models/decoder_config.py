"""DecoderConfig: everything that defines a Decoder, checked when it is created."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ropewalk.attention.remap import Remapping
from ropewalk.encodings import ENCODINGS
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError, choice, flag, integer, number
from ropewalk.models.activations import ACTIVATIONS
from ropewalk.spec import RopeSpec
from ropewalk.temperatures import Temperature

LAYER_TYPES = ("full", "sliding", "nope", "nope_sliding")
#: layer types that attend to the latest tokens only
WINDOWED = ("sliding", "nope_sliding")
ATTENTIONS = ("softmax", "linear")
#: bounds on sizes, which may come from untrusted files, so that nothing larger is ever allocated
MAX_SIZE = 1 << 22
MAX_LAYERS = 4096
MAX_EXPERTS = 4096


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes and options of a decoder-only language model as in Llama, Qwen, Mistral and MiniMind.

    encoding      a name from ENCODINGS, a RopeSpec, or a dict of them by layer type (None: no
                  encoding)
    layer_types   "full", "sliding" (attends to `window` tokens), "nope" (no encoding) or
                  "nope_sliding" (both) for each layer; None: all sliding if there is a window, else
                  all full
    attention     "softmax", or "linear" with time and memory linear in the length
    qk_norm       RMS norm of each head of q and k before rotation
    dropout       of the outputs of attention and of the feed-forward network and, unless
                  `attention_dropout` is given, of the attention weights
    length        the longest sequence trained on
    temperature   a factor on queries by their position, for all layers or by layer type (None: no
                  factor)
    remapping     other distances for RoPE in long contexts, such as SelfExtend; no transformers
                  config describes it, so a model with one cannot be saved
    num_experts   0: one feed-forward network per layer; else a mixture of experts in all layers but
                  `dense_layers`. Each token uses `experts_per_token` of them, weighted by the
                  router's softmax over all experts, renormalised if `norm_topk`
    moe_intermediate_size  the inner width of one expert; None: `intermediate_size`
    router_aux_coef  the factor of the experts' balance loss in `Decoder.loss`
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    encoding: str | RopeSpec | Mapping[str, str | RopeSpec | None] = "rope"
    layer_types: tuple[str, ...] | None = None
    window: int | None = None
    attention: str = "softmax"
    qk_norm: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    norm_eps: float = 1e-6
    tie_embeddings: bool = True
    activation: str = "silu"
    dropout: float = 0.0
    attention_dropout: float | None = None
    length: int = 2048
    num_experts: int = 0
    experts_per_token: int = 1
    moe_intermediate_size: int | None = None
    norm_topk: bool = True
    router_aux_coef: float = 0.0
    dense_layers: tuple[int, ...] = ()
    init_std: float = 0.02
    temperature: Temperature | Mapping[str, Temperature | None] | None = None
    remapping: Remapping | None = None

    def __post_init__(self) -> None:
        """Check the fields and set the defaults that depend on other fields. The layers check a
        temperature and a remapping.
        """
        set_field = partial(object.__setattr__, self)  # the dataclass is frozen
        for name in ("vocab_size", "hidden_size", "intermediate_size"):
            set_field(name, integer(name, getattr(self, name), low=1, high=MAX_SIZE))
        integer("num_layers", self.num_layers, low=1, high=MAX_LAYERS)
        integer("num_heads", self.num_heads, low=1, high=1 << 16)
        kv_heads = self.num_heads if self.num_kv_heads is None else self.num_kv_heads
        set_field("num_kv_heads", integer("num_kv_heads", kv_heads, low=1))
        if self.num_heads % self.num_kv_heads:  # type: ignore[operator]  # set above
            raise RopeError(
                "num_kv_heads", f"must divide num_heads = {self.num_heads}", self.num_kv_heads
            )
        if self.head_dim is None and self.hidden_size % self.num_heads:
            rule = (
                f"must be given, because num_heads = {self.num_heads} does not divide hidden_size "
                f"= {self.hidden_size}"
            )
            raise RopeError("head_dim", rule, None)
        head_dim = self.hidden_size // self.num_heads if self.head_dim is None else self.head_dim
        set_field("head_dim", integer("head_dim", head_dim, low=1, high=65536))
        for name in ("qk_norm", "qkv_bias", "o_bias", "mlp_bias", "tie_embeddings", "norm_topk"):
            flag(name, getattr(self, name))
        choice("attention", self.attention, ATTENTIONS)
        choice("activation", self.activation, ACTIVATIONS)
        number("norm_eps", self.norm_eps, above=0)
        number("dropout", self.dropout, low=0, high=1)
        set_field(
            "attention_dropout",
            self.dropout if self.attention_dropout is None else self.attention_dropout,
        )
        number("attention_dropout", self.attention_dropout, low=0, high=1)
        number("init_std", self.init_std, low=0)
        integer("length", self.length, low=1)
        self._check_layers(set_field)
        self._check_experts(set_field)
        self._check_encoding(set_field)
        if self.attention == "linear" and (
            self.temperature is not None or self.remapping is not None
        ):
            raise RopeError(
                "attention",
                "must be 'softmax' to have a temperature or a remapping",
                self.attention,
            )
        if isinstance(self.temperature, Mapping):
            set_field("temperature", dict(self.temperature))
            for layer_type in self.temperature:
                choice("temperature", layer_type, LAYER_TYPES)

    def _check_layers(self, set_field: Callable[[str, Any], None]) -> None:
        """Check the window and the layer types, and set `layer_types` to one entry per layer.

        set_field  (name, value) -> None: sets a field, though the dataclass is frozen
        """
        if self.window is not None:
            integer("window", self.window, low=1)
        types = self.layer_types
        types = (
            ("full" if self.window is None else "sliding",) * self.num_layers
            if types is None
            else tuple(types)
        )
        for layer_type in types:
            choice("layer_types", layer_type, LAYER_TYPES)
        if len(types) != self.num_layers:
            raise RopeError(
                "layer_types",
                f"must have one entry for each of the {self.num_layers} layers",
                types,
            )
        windowed = any(layer_type in WINDOWED for layer_type in types)
        if windowed and self.window is None:
            raise RopeError("window", "must be given if a layer is sliding", None)
        if self.window is not None and not windowed:
            raise RopeError(
                "window",
                "must be None if no layer is sliding; layer_types=None makes all sliding",
                self.window,
            )
        if self.attention == "linear" and windowed:
            raise RopeError(
                "window",
                "must be None for linear attention, which cannot drop old tokens",
                self.window,
            )
        set_field("layer_types", types)

    def _check_experts(self, set_field: Callable[[str, Any], None]) -> None:
        """Check the numbers of experts and set the defaults that depend on other fields, by
        `set_field(name, value)`.
        """
        integer("num_experts", self.num_experts, low=0, high=MAX_EXPERTS)
        size = (
            self.intermediate_size
            if self.moe_intermediate_size is None
            else self.moe_intermediate_size
        )
        set_field(
            "moe_intermediate_size", integer("moe_intermediate_size", size, low=1, high=MAX_SIZE)
        )
        if self.num_experts:
            integer("experts_per_token", self.experts_per_token, low=1, high=self.num_experts)
        number("router_aux_coef", self.router_aux_coef, low=0)
        dense = {
            integer("dense_layers", index, low=0, high=self.num_layers - 1)
            for index in self.dense_layers
        }
        set_field("dense_layers", tuple(sorted(dense)))

    def _check_encoding(self, set_field: Callable[[str, Any], None]) -> None:
        """Check the encoding of every layer type; a mapping is set to a dict of its own, by
        `set_field(name, value)`.
        """
        if isinstance(self.encoding, Mapping):
            set_field("encoding", dict(self.encoding))
            for layer_type in self.encoding:
                choice("encoding", layer_type, LAYER_TYPES)
        elif not isinstance(self.encoding, RopeSpec):  # also if no layer uses it
            choice("encoding", self.encoding, ENCODINGS)
        for layer_type in dict.fromkeys(self.layer_types):  # type: ignore[arg-type]  # set above
            encoding = self.layer_encoding(layer_type)
            if isinstance(encoding, RopeSpec):
                if encoding.head_dim != self.head_dim:
                    raise RopeError(
                        "encoding", f"must have head_dim = {self.head_dim}", encoding.head_dim
                    )
                continue
            choice("encoding", encoding, ENCODINGS)
            if isinstance(self.encoding, Mapping) and ENCODINGS[encoding].entry == "input":
                rule = (
                    "must not be set per layer type if it is added to the embeddings; use it for "
                    "the whole model"
                )
                raise RopeError("encoding", rule, encoding)
            if self.attention == "linear" and not ENCODINGS[encoding].linear:
                raise RopeError(
                    "encoding",
                    "must be one that linear attention can compute, such as 'rope'",
                    encoding,
                )

    def layer_encoding(self, layer_type: str) -> str | RopeSpec:
        """Return the encoding of layers of that type: a name or a spec."""
        if layer_type.startswith("nope"):
            return "none"
        if not isinstance(self.encoding, Mapping):
            return self.encoding
        if layer_type not in self.encoding:
            raise RopeError(
                "encoding",
                f"must have an entry for {layer_type!r} layers (None: no encoding)",
                list(self.encoding),
            )
        return self.encoding[layer_type] or "none"

    def layer_temperature(self, layer_type: str) -> Temperature | None:
        """Return the temperature of layers of that type."""
        return (
            self.temperature.get(layer_type)
            if isinstance(self.temperature, Mapping)
            else self.temperature
        )

    def layer_remapping(self, layer_type: str) -> Remapping | None:
        """Return the remapping of layers of that type; layers that are not rotated have none."""
        encoding = self.layer_encoding(layer_type)
        is_rotary = isinstance(encoding, RopeSpec) or issubclass(ENCODINGS[encoding], Rotary)
        return self.remapping if is_rotary else None

    @property
    def input_encoding(self) -> str | None:
        """The encoding's name if it is added to the embeddings, else None."""
        name = self.encoding
        return name if isinstance(name, str) and ENCODINGS[name].entry == "input" else None

    def has_experts(self, layer: int) -> bool:
        """Return whether this layer's feed-forward network is a mixture of experts."""
        return self.num_experts > 0 and layer not in self.dense_layers

    def with_(self, **changes: Any) -> DecoderConfig:
        """Return a copy with some fields changed."""
        return replace(self, **changes)
