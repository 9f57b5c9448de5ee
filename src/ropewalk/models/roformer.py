"""RoFormer: a BERT-shaped encoder (or decoder) whose positions are rotations; BERT itself where the encoding is learned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ropewalk.attention import Attention, KVCache, LinearAttention
from ropewalk.attention.linear import still_rope
from ropewalk.attention.softmax import as_encoding
from ropewalk.checks import INTEGERS
from ropewalk.encodings import Encoding
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError
from ropewalk.models import generation
from ropewalk.models.activations import ACTIVATIONS
from ropewalk.models.decoder_attention import RunningState
from ropewalk.models.roformer_config import RoFormerConfig
from ropewalk.models.roformer_heads import HEADS, LanguageModel, make_norm, refuse_packed


def model_encoding(config: RoFormerConfig) -> Encoding:
    """A new encoding for one layer, or for the embeddings; by name, rotary ones pair neighbours as RoFormer does."""
    encoding = as_encoding(config.encoding, config.sizes)
    if isinstance(encoding, Rotary) and isinstance(config.encoding, str):
        return type(encoding)(config.sizes, encoding.rope.spec.with_(layout="interleaved"))
    return encoding


class SelfAttention(Attention):
    """Softmax attention that may turn its values too; the query undoes nothing, so a layer hears absolute positions."""

    def __init__(self, config: RoFormerConfig, encoding: Encoding) -> None:
        super().__init__(
            config.hidden_size, config.num_heads, encoding=encoding, causal=config.causal,
            dropout=config.attention_dropout, bias=config.bias, length=config.length,
        )  # fmt: skip
        self.rotary_value = config.rotary_value

    def _placed(self, q, k, v, positions, padding, cache):
        v = self.encoding.turn(v, positions, key=True) if self.rotary_value else v
        return super()._placed(q, k, v, positions, padding, cache)


class LinearSelfAttention(LinearAttention):
    """Linear attention under the encoding of a config."""

    token_positions = Attention.token_positions

    def __init__(self, config: RoFormerConfig, encoding: Encoding) -> None:
        rope = encoding.rope if isinstance(encoding, Rotary) else still_rope(config.head_dim)
        super().__init__(config.hidden_size, config.num_heads, spec=rope.spec, causal=config.causal, bias=config.bias)


class Embeddings(nn.Module):
    """Words and token types (and positions, where the encoding enters here), normed and brought to the hidden size."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__()
        size: int = config.embedding_size  # type: ignore[assignment]  # resolved by the config
        self.words = nn.Embedding(config.vocab_size, size, padding_idx=config.pad_token)
        self.types = nn.Embedding(config.type_vocab_size, size)
        self.encoding = model_encoding(config) if config.encoding_class.door == "input" else nn.Identity()
        self.norm = make_norm(config, size)
        self.dropout = nn.Dropout(config.dropout)
        self.project = nn.Linear(size, config.hidden_size) if size != config.hidden_size else nn.Identity()

    def forward(self, tokens: Tensor, types: Tensor | None, positions: Tensor) -> Tensor:
        x = self.words(tokens) + (self.types.weight[0] if types is None else self.types(types))
        x = self.encoding.embed(x, positions) if isinstance(self.encoding, Encoding) else x
        return self.project(self.dropout(self.norm(x)))


class Layer(nn.Module):
    """Attention and two dense layers; each is added to what came in, and normed after."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__()
        inside = config if config.encoding_class.door != "input" else config.with_(encoding="none")
        kind = SelfAttention if config.attention == "softmax" else LinearSelfAttention
        self.attention = kind(config, model_encoding(inside))
        self.attention_norm = make_norm(config, config.hidden_size)
        self.up = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.bias)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.bias)
        self.down_norm = make_norm(config, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.activation = ACTIVATIONS[config.activation]

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        padding: Tensor | None,
        documents: Tensor | None,
        cache: KVCache | RunningState | None,
    ) -> Tensor:
        x = self.attention_norm(x + self.dropout(self._attend(x, positions, padding, documents, cache)))
        return self.down_norm(x + self.dropout(self.down(self.activation(self.up(x)))))

    def _attend(self, x, positions, padding, documents, cache) -> Tensor:
        if isinstance(self.attention, Attention):
            return self.attention(x, positions, padding=padding, documents=documents, cache=cache).out
        state = None if cache is None else cache.state
        out, state = self.attention(x, positions, padding=padding, documents=documents, state=state)
        if cache is not None:
            cache.state = state
        return out


class RoFormer(nn.Module):
    """An encoder after `config`, with the head it names; any length, since nothing but the positions is rotated.

    Without a head `model(tokens)` gives hidden states [B, S, hidden]; with one, what the head answers (see HEADS).
    `gradient_checkpointing = True` keeps one tensor a layer in training and computes the rest again.
    """

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.head = HEADS[config.head](config)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights as before training: normal for v1; truncated and smaller with the depth for v2. Biases are 0."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                self._reset(module)
            elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
                module.reset_parameters()

    def _reset(self, module: nn.Linear | nn.Embedding) -> None:
        if self.config.norm == "layer_norm":
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        else:
            # 1.1368: a normal cut at two deviations is this much narrower than it says
            std = 1.13684723 / math.sqrt(self.config.hidden_size * self.config.num_layers)
            nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
        with torch.no_grad():
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
            elif isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx].zero_()

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        *,
        types: Tensor | None = None,
        padding: Tensor | None = None,
        documents: Tensor | None = None,
        caches: Sequence[KVCache | RunningState] | None = None,
    ) -> Tensor:
        """Read integer tokens [B, S] ([B, choices, S] for multiple choice) and answer through the head.

        positions  integer [S] or [B, S] ([axes, B, S] where the encoding has axes); by default each row counts its real tokens
        types      which sentence of a pair each token belongs to; by default all 0
        padding    boolean, True for real tokens, on either side
        documents  the number of the packed document of each token
        caches     `model.caches()`, to go on from what they hold
        """
        if self.config.head == "multiple_choice":
            flat = [None if t is None else t.flatten(0, 1) for t in (tokens, types, padding)]
            return self._answer(flat[0], positions, flat[1], flat[2], documents, caches).unflatten(0, tokens.shape[:2])  # type: ignore[arg-type]
        return self._answer(tokens, positions, types, padding, documents, caches)

    def _answer(self, tokens: Tensor, positions, types, padding, documents, caches) -> Tensor:
        refuse_packed(self.head, documents)
        hidden = self.hidden(tokens, positions, types=types, padding=padding, documents=documents, caches=caches)
        return self.head(hidden, padding, self.embeddings.words.weight)

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        *,
        types: Tensor | None = None,
        padding: Tensor | None = None,
        documents: Tensor | None = None,
        caches: Sequence[KVCache | RunningState] | None = None,
    ) -> Tensor:
        """The hidden states [B, S, hidden] that a head would get."""
        self._check(tokens, types, padding, caches)
        positions = self._positions(tokens, positions, padding, documents, caches)
        x = self.embeddings(tokens, types, positions)
        for layer, cache in zip(self.layers, caches or [None] * len(self.layers), strict=True):
            if self.gradient_checkpointing and self.training and cache is None:
                x = checkpoint(layer, x, positions, padding, documents, None, use_reentrant=False)
            else:
                x = layer(x, positions, padding, documents, cache)
        return x  # type: ignore[return-value]  # a checkpoint gives what its layer gives

    def caches(self, kind: str = "growing", capacity: int | None = None, sinks: int = 0) -> list[KVCache] | list[RunningState]:
        """An empty cache for each layer; linear attention has states of one size instead."""
        if not self.config.causal:
            raise RopeError("causal", "must be true to go on from a cache: here every token sees the later ones", False)
        if self.config.attention == "linear":
            return [RunningState() for _ in self.layers]
        return [KVCache(kind, capacity, sinks) for _ in self.layers]

    def generate(self, tokens: Tensor, max_new_tokens: int, **options: Any) -> Tensor:
        """The prompt [B, S], padded on the left where rows differ, and what follows it; `options` as in `generation.steps`."""
        return generation.generate(_Scores(self), tokens, max_new_tokens, **options)

    def with_head(self, head: str, **changes) -> RoFormer:
        """A model with another head, newly made, on these very embeddings and layers: they are shared, not copied."""
        other = RoFormer.__new__(RoFormer)
        nn.Module.__init__(other)
        other.config = self.config.with_(head=head, **changes)
        other.gradient_checkpointing = self.gradient_checkpointing
        other.embeddings, other.layers = self.embeddings, self.layers
        other.head = HEADS[head](other.config).to(self.embeddings.words.weight)
        for module in other.head.modules():
            if isinstance(module, nn.Linear):
                other._reset(module)
        return other.train(self.training)

    def _positions(self, tokens, positions, padding, documents, caches) -> Tensor:
        """Counted once for all layers: the embeddings may need them too."""
        counted = self.layers[0].attention.token_positions(positions, padding, documents, None, *tokens.shape, tokens.device)  # type: ignore[operator]
        before = caches[0].next_positions if caches and positions is None else 0
        return counted + (before.unsqueeze(-1) if isinstance(before, Tensor) else before)

    def _check(self, tokens, types, padding, caches) -> None:
        if not isinstance(tokens, Tensor) or tokens.dtype not in INTEGERS or tokens.ndim != 2:
            rule = "must be integers [batch, tokens]" + (" or [batch, choices, tokens]" if self.head.pools else "")
            raise RopeError("tokens", rule, list(tokens.shape) if isinstance(tokens, Tensor) else type(tokens))
        for name, each in (("types", types), ("padding", padding)):
            if each is not None and each.shape != tokens.shape:
                raise RopeError(name, f"must have the shape of the tokens, {list(tokens.shape)}", list(each.shape))
        if caches is not None and len(caches) != len(self.layers):
            raise RopeError("caches", f"must be one for each of the {len(self.layers)} layers", len(caches))


class _Scores:
    """A RoFormer as generation knows a model: logits are features times one matrix, so a bias is one more column of it."""

    def __init__(self, model: RoFormer) -> None:
        if not isinstance(model.head, LanguageModel) or not model.config.causal:
            raise RopeError("head", "must be 'causal_lm' on a causal model to generate", model.config.head)
        self.model, self.head, self.caches = model, model.head, model.caches
        with torch.no_grad():
            self.head_weight = self.head.matrix(model.embeddings.words.weight)

    def features(self, tokens: Tensor, **call: Any) -> Tensor:
        return self.head.features(self.model.hidden(tokens, **call))
