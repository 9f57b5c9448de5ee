"""DecoderConfig: everything that defines a Decoder, frozen and checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ropewalk.encodings import ENCODINGS
from ropewalk.errors import RopeError, choice, flag, integer, number
from ropewalk.models.activations import ACTIVATIONS
from ropewalk.spec import RopeSpec

LAYER_TYPES = ("full", "sliding", "nope")
ATTENTIONS = ("softmax", "linear")
#: sizes come from files too; a matrix of these sides is refused before anything is allocated
MOST = 1 << 22
MOST_LAYERS = 4096
MOST_EXPERTS = 4096


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes and choices of a decoder-only language model as Llama, Qwen, Mistral and MiniMind are built.

    encoding      a name from ENCODINGS, a RopeSpec, or one of them (None: no position) for each layer type in use
    layer_types   "full", "sliding" (sees `window` tokens) or "nope" (no position) for each layer; None: all sliding
                  where there is a window, else all full
    attention     "softmax", or "linear" in time and memory linear in the length
    qk_norm       an RMS norm on every head of q and k before they turn
    dropout       of both block outputs and, unless `attention_dropout` says otherwise, of the attention weights
    length        the longest sequence trained on
    num_experts   0: one feed-forward network a layer; else a mixture in all layers but `dense_layers`, each token going
                  to `experts_per_token` of them with their softmax weights, summing to one again if `norm_topk`
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

    def __post_init__(self) -> None:
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731 - the dataclass is frozen
        for name in ("vocab_size", "hidden_size", "intermediate_size"):
            put(name, integer(name, getattr(self, name), low=1, high=MOST))
        integer("num_layers", self.num_layers, low=1, high=MOST_LAYERS)
        integer("num_heads", self.num_heads, low=1, high=1 << 16)
        put("num_kv_heads", self.num_heads if self.num_kv_heads is None else integer("num_kv_heads", self.num_kv_heads, low=1))
        if self.num_heads % self.num_kv_heads:  # type: ignore[operator]  # set above
            raise RopeError("num_kv_heads", f"must divide num_heads = {self.num_heads}", self.num_kv_heads)
        if self.head_dim is None and self.hidden_size % self.num_heads:
            raise RopeError("head_dim", f"must be given: {self.num_heads} heads do not divide hidden_size", self.hidden_size)
        put("head_dim", integer("head_dim", self.head_dim or self.hidden_size // self.num_heads, low=1, high=65536))
        for name in ("qk_norm", "qkv_bias", "o_bias", "mlp_bias", "tie_embeddings", "norm_topk"):
            flag(name, getattr(self, name))
        choice("attention", self.attention, ATTENTIONS)
        choice("activation", self.activation, ACTIVATIONS)
        number("norm_eps", self.norm_eps, above=0)
        number("dropout", self.dropout, low=0, high=1)
        put("attention_dropout", self.dropout if self.attention_dropout is None else self.attention_dropout)
        number("attention_dropout", self.attention_dropout, low=0, high=1)
        number("init_std", self.init_std, low=0)
        integer("length", self.length, low=1)
        self._check_layers(put)
        self._check_experts(put)
        self._check_encoding(put)

    def _check_layers(self, put: Any) -> None:
        if self.window is not None:
            integer("window", self.window, low=1)
        kinds = self.layer_types
        kinds = ("full" if self.window is None else "sliding",) * self.num_layers if kinds is None else tuple(kinds)
        for kind in kinds:
            choice("layer_types", kind, LAYER_TYPES)
        if len(kinds) != self.num_layers:
            raise RopeError(
                "layer_types", f"must name one of {', '.join(LAYER_TYPES)} for each of {self.num_layers} layers", kinds
            )
        if "sliding" in kinds and self.window is None:
            raise RopeError("window", "must be given where a layer is sliding", None)
        if self.window is not None and "sliding" not in kinds:
            raise RopeError("window", "would limit no layer; give layer_types with 'sliding' ones, or None for all", self.window)
        if self.attention == "linear" and "sliding" in kinds:
            raise RopeError("window", "must be None with linear attention, whose sums cannot forget", self.window)
        put("layer_types", kinds)

    def _check_experts(self, put: Any) -> None:
        integer("num_experts", self.num_experts, low=0, high=MOST_EXPERTS)
        size = self.intermediate_size if self.moe_intermediate_size is None else self.moe_intermediate_size
        put("moe_intermediate_size", integer("moe_intermediate_size", size, low=1, high=MOST))
        if self.num_experts:
            integer("experts_per_token", self.experts_per_token, low=1, high=self.num_experts)
        number("router_aux_coef", self.router_aux_coef, low=0)
        put("dense_layers", tuple(integer("dense_layers", i, low=0, high=self.num_layers - 1) for i in self.dense_layers))

    def _check_encoding(self, put: Any) -> None:
        if isinstance(self.encoding, Mapping):
            put("encoding", dict(self.encoding))
            for kind in self.encoding:
                choice("encoding", kind, LAYER_TYPES)
        for kind in dict.fromkeys(self.layer_types):  # type: ignore[arg-type]  # set above
            found = self.layer_encoding(kind)
            if isinstance(found, RopeSpec):
                if found.head_dim != self.head_dim:
                    raise RopeError("encoding", f"must turn heads of head_dim = {self.head_dim}", found.head_dim)
                continue
            choice("encoding", found, ENCODINGS)
            if isinstance(self.encoding, Mapping) and ENCODINGS[found].door == "input":
                raise RopeError("encoding", f"{found!r} enters once, at the embeddings; give it alone, not by layer type", found)
            if self.attention == "linear" and not ENCODINGS[found].linear:
                raise RopeError("encoding", "must work without the n x n scores for linear attention", found)

    def layer_encoding(self, kind: str) -> str | RopeSpec:
        """The encoding of layers of that type: a name or a spec."""
        if kind == "nope":
            return "none"
        if not isinstance(self.encoding, Mapping):
            return self.encoding
        if kind not in self.encoding:
            raise RopeError("encoding", f"must say what {kind!r} layers have (None: no position)", sorted(self.encoding))
        return self.encoding[kind] or "none"

    @property
    def input_encoding(self) -> str | None:
        """The encoding that is added to the embeddings, where it is of that kind."""
        name = self.encoding
        return name if isinstance(name, str) and ENCODINGS[name].door == "input" else None

    def has_experts(self, layer: int) -> bool:
        """Whether this layer's feed-forward network is a mixture."""
        return self.num_experts > 0 and layer not in self.dense_layers

    def with_(self, **changes: Any) -> DecoderConfig:
        """The same config with some fields changed."""
        return replace(self, **changes)
