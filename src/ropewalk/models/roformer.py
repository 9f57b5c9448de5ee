"""RoFormer: a BERT-shaped encoder (or decoder) with rotary or any other encoding; with learned
position embeddings it is BERT.

RoFormer v1 has layer norms and biases, v2 has norms without weights and no biases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ropewalk.attention import Attention, KVCache, LinearAttention
from ropewalk.attention.linear import identity_rope
from ropewalk.attention.softmax import as_encoding
from ropewalk.checks import check_tokens
from ropewalk.encodings import Encoding
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError
from ropewalk.models import generation
from ropewalk.models.activations import ACTIVATIONS
from ropewalk.models.layer_caches import Caches, RunningState, check_caches, empty_caches
from ropewalk.models.roformer_config import FIELDS_OF_HEADS, RoFormerConfig
from ropewalk.models.roformer_heads import HEADS, LanguageModel, make_norm


def model_encoding(config: RoFormerConfig) -> Encoding:
    """Create the encoding of one layer or of the embeddings; a rotary encoding given by name gets
    the interleaved layout (dims 2i and 2i + 1 rotate together), which RoFormer was trained with.
    """
    encoding = as_encoding(config.encoding, config.sizes)
    if isinstance(encoding, Rotary) and isinstance(config.encoding, str):
        return type(encoding)(config.sizes, encoding.rope.spec.with_(layout="interleaved"))
    return encoding


class SelfAttention(Attention):
    """Softmax attention that also rotates v if `rotary_value`; its output then depends on absolute
    positions.
    """

    def __init__(self, config: RoFormerConfig, encoding: Encoding) -> None:
        """Create the attention of one layer; `encoding` is this layer's own."""
        super().__init__(
            config.hidden_size,
            config.num_heads,
            encoding=encoding,
            causal=config.causal,
            dropout=config.attention_dropout,
            bias=config.bias,
            length=config.length,
        )
        self.rotary_value = config.rotary_value

    def attend(self, x, positions, padding, documents, cache: KVCache | None) -> Tensor:
        """Return the attention output [B, S, hidden] for x [B, S, hidden], which also attends to
        the cached tokens and is added to them; other arguments as in `RoFormer.forward`.
        """
        return self(x, positions, padding=padding, documents=documents, cache=cache).out

    def _rotated_values(self, v: Tensor, positions: Tensor) -> Tensor:
        """Return v rotated like a key if `rotary_value`; a cache holds it unrotated, so that its
        tokens can get other positions.
        """
        return self.encoding.rotate(v, positions, key=True) if self.rotary_value else v


class LinearSelfAttention(LinearAttention):
    """Linear attention that rotates q and k if the config's encoding is rotary."""

    # borrowed: this class does not inherit from Attention
    token_positions = Attention.token_positions

    def __init__(self, config: RoFormerConfig, encoding: Encoding) -> None:
        # any other encoding acts on the embeddings or not at all, since the config refuses the rest;
        # linear attention needs a spec, and the identity rotates by angles of 0
        rope = encoding.rope if isinstance(encoding, Rotary) else identity_rope(config.head_dim)
        super().__init__(
            config.hidden_size,
            config.num_heads,
            spec=rope.spec,
            causal=config.causal,
            bias=config.bias,
        )

    def attend(self, x, positions, padding, documents, cache: RunningState | None) -> Tensor:
        """Return the attention output [B, S, hidden] for x [B, S, hidden]; the cache holds sums
        over all earlier tokens and is updated. Other arguments as in `RoFormer.forward`.
        """
        state = None if cache is None else cache.state
        out, state = self(x, positions, padding=padding, documents=documents, state=state)
        if cache is not None:
            cache.state = state
        return out


class Embeddings(nn.Module):
    """Word and token type embeddings (plus positions, if the encoding is added here), normed and
    projected to the hidden size.
    """

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__()
        size: int = config.embedding_size  # type: ignore[assignment]  # resolved by the config
        self.words = nn.Embedding(config.vocab_size, size, padding_idx=config.pad_token)
        self.types = nn.Embedding(config.type_vocab_size, size)
        # an encoding that is added here; all others are in the layers
        self.encoding = (
            model_encoding(config) if config.encoding_class.entry == "input" else nn.Identity()
        )
        self.norm = make_norm(config, size)
        self.dropout = nn.Dropout(config.dropout)
        self.project = (
            nn.Linear(size, config.hidden_size) if size != config.hidden_size else nn.Identity()
        )

    def forward(self, tokens: Tensor, types: Tensor | None, positions: Tensor) -> Tensor:
        """Return the embeddings [B, S, hidden] of tokens [B, S]; `types` None means that all tokens
        have type 0. Only an encoding that is added here reads the positions.
        """
        x = self.words(tokens) + (self.types.weight[0] if types is None else self.types(types))
        x = self.encoding.embed(x, positions) if isinstance(self.encoding, Encoding) else x
        return self.project(self.dropout(self.norm(x)))


class Layer(nn.Module):
    """Attention and a feed-forward network, each followed by a residual connection and a norm."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__()
        # an encoding that is added to the embeddings does not act in the layers
        layer_config = (
            config.with_(encoding="none") if config.encoding_class.entry == "input" else config
        )
        attention = SelfAttention if config.attention == "softmax" else LinearSelfAttention
        self.attention = attention(config, model_encoding(layer_config))
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
        """Return the output of one layer for x [B, S, hidden]: attention, then the network, each
        followed by residual and norm. Other arguments as in `RoFormer.forward`.
        """
        # RoFormer.caches makes caches of the kind that this attention takes
        attended = self.attention.attend(x, positions, padding, documents, cache)  # type: ignore[arg-type]
        x = self.attention_norm(x + self.dropout(attended))
        return self.down_norm(x + self.dropout(self.down(self.activation(self.up(x)))))


class RoFormer(nn.Module):
    """An encoder, or with `config.causal` a decoder, with the head that `config` names; with a
    rotary encoding it accepts any length.

    Without a head `model(tokens)` returns hidden states [B, S, hidden]; with one, the head's output
    (see HEADS). `gradient_checkpointing = True` saves one tensor per layer in training and
    recomputes the rest.
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
        """Initialise the weights: normal for v1; truncated normal, narrower in deeper models, for
        v2. Biases and the embedding of the padding token are 0.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                self._reset(module)
            elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
                module.reset_parameters()

    def _reset(self, module: nn.Linear | nn.Embedding) -> None:
        """Set the initial weights of a linear layer or an embedding."""
        if self.config.norm == "layer_norm":
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        else:
            # truncation at two standard deviations divides the standard deviation by this factor
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
        """Return the head's output for integer tokens [B, S] ([B, choices, S] for multiple choice).

        positions  integer [S] or [B, S] or [axes, B, S]; default: 0, 1, 2, ... over the real tokens
                   of each row, after the cached ones, or of each document. For multiple choice each
                   choice is a row: B * choices instead of B
        types      which sentence of a pair each token belongs to; by default all 0
        padding    boolean, True for real tokens; rows may be padded on either side
        documents  the document index of each token in packed rows; tokens attend only within their
                   document
        caches     from `model.caches()`; `tokens` continue the cached ones
        """
        if self.head.pools and documents is not None:
            rule = (
                f"must be None for the head {self.config.head!r}, which has one output per row; "
                "give each document its own row"
            )
            raise RopeError("documents", rule, list(documents.shape))
        choices = None
        if self.config.head == "multiple_choice":
            check_tokens(tokens, ("batch", "choices", "tokens"))
            choices, tokens = tokens.shape[:2], tokens.flatten(0, 1)  # each choice becomes a row
            types, padding = (t if t is None else t.flatten(0, 1) for t in (types, padding))
        hidden = self.hidden(
            tokens, positions, types=types, padding=padding, documents=documents, caches=caches
        )
        out = self.head(hidden, padding, self.embeddings.words.weight)
        return out if choices is None else out.unflatten(0, choices)

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
        """Return the hidden states [B, S, hidden] that the head receives; arguments as in
        `forward`.
        """
        self._check(tokens, types, padding)
        positions = self._positions(tokens, positions, padding, documents, caches)
        x = self.embeddings(tokens, types, positions)
        for layer, cache in zip(self.layers, check_caches(caches, len(self.layers)), strict=True):
            if self.gradient_checkpointing and self.training and cache is None:
                x = checkpoint(layer, x, positions, padding, documents, None, use_reentrant=False)
            else:
                x = layer(x, positions, padding, documents, cache)
        return x  # type: ignore[return-value]  # checkpoint returns the output of its layer

    def caches(self, kind: str = "growing", capacity: int | None = None, sinks: int = 0) -> Caches:
        """Return an empty KVCache(kind, capacity, sinks) for each layer, or with linear attention
        an empty RunningState, which uses none of these arguments.
        """
        if not self.config.causal:
            raise RopeError(
                "causal",
                "must be true to use a cache, because cached tokens cannot attend to later ones",
                False,
            )
        return empty_caches(len(self.layers), self.config.attention, kind, capacity, sinks)

    def generate(self, tokens: Tensor, max_new_tokens: int, **options: Any) -> Tensor:
        """Return the prompt [B, S] with the generated tokens; `options` as in
        `generation.generate`.
        """
        return generation.generate(_GenerationModel(self), tokens, max_new_tokens, **options)

    def with_head(self, head: str, **changes) -> RoFormer:
        """Return a model with a new head on the embeddings and layers of this model, which the two
        share: they are not copied.

        `changes` are fields of the config that only heads use, such as num_labels; `migrate` makes
        a model with other layers.
        """
        allowed, fields = (*FIELDS_OF_HEADS, "tie_embeddings"), vars(self.config)
        # any field may be given with the value that it has
        wrong = sorted(
            name
            for name, value in changes.items()
            if name not in allowed and (name, value) not in fields.items()
        )
        if wrong:
            rule = (
                f"must be fields that only heads use ({', '.join(allowed)}), because the layers "
                "are shared; see `migrate`"
            )
            raise RopeError("changes", rule, wrong)
        # without RoFormer.__init__, which would create new layers
        other = RoFormer.__new__(RoFormer)
        nn.Module.__init__(other)
        other.config = self.config.with_(head=head, **changes)
        other.gradient_checkpointing = self.gradient_checkpointing
        other.embeddings, other.layers = self.embeddings, self.layers
        # with the dtype and on the device of the other weights, which are not initialised again
        other.head = HEADS[head](other.config).to(self.embeddings.words.weight)
        for module in other.head.modules():
            if isinstance(module, nn.Linear):
                other._reset(module)
        return other.train(self.training)

    def _positions(self, tokens, positions, padding, documents, caches) -> Tensor:
        """Return the given positions, or the default positions [B, S] if None; embeddings and
        layers use the same. Arguments as in `forward`.
        """
        cache = caches[0] if caches else None  # all caches hold the same tokens
        attention: Any = self.layers[0].attention
        return attention.token_positions(
            positions, padding, documents, cache, *tokens.shape, tokens.device
        )

    def _check(self, tokens, types, padding) -> None:
        """Raise an error if tokens have a wrong dtype or shape, or types or padding another shape
        than the tokens.
        """
        check_tokens(tokens)
        for name, tensor in (("types", types), ("padding", padding)):
            if tensor is not None and tensor.shape != tokens.shape:
                raise RopeError(
                    name,
                    f"must have the shape of the tokens, {list(tokens.shape)}",
                    list(tensor.shape),
                )


class _GenerationModel:
    """A RoFormer with the interface of `generation.GeneratingModel`; the bias of the logits becomes
    a column of `head_weight`.
    """

    def __init__(self, model: RoFormer) -> None:
        """Refer to the model's head and caches, and compute the output matrix once."""
        if not isinstance(model.head, LanguageModel) or not model.config.causal:
            raise RopeError(
                "head",
                "must be 'causal_lm' on a model with causal=True to generate",
                model.config.head,
            )
        self.model, self.head, self.caches = model, model.head, model.caches
        with torch.no_grad():
            self.head_weight = self.head.matrix(model.embeddings.words.weight)

    def features(self, tokens: Tensor, **call: Any) -> Tensor:
        """Return the input of `logits` for each token, with a last column of ones if there is a
        bias; `call` holds arguments of `RoFormer.hidden`.
        """
        return self.head.features(self.model.hidden(tokens, **call))

    def logits(self, features: Tensor) -> Tensor:
        return F.linear(features, self.head_weight)
