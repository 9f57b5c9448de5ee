"""Decoder: a language model as in Llama, Qwen, Mistral or MiniMind, with any encoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.attention import KVCache
from ropewalk.attention.softmax import as_encoding
from ropewalk.checks import check_tokens
from ropewalk.encodings import Encoding, Sizes
from ropewalk.models import generation, invariant
from ropewalk.models.decoder_attention import PackedAttention, PackedLinearAttention, next_positions
from ropewalk.models.decoder_config import DecoderConfig
from ropewalk.models.decoder_loss import IGNORED, check_targets, token_loss
from ropewalk.models.experts import Experts, GatedNetwork, MixtureOfExperts, Routes, balance_loss
from ropewalk.models.layer_caches import Caches, RunningState, check_caches, empty_caches


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then x + network(norm(x))."""

    def __init__(self, config: DecoderConfig, index: int) -> None:
        """Create layer `index` of the model, counted from 0."""
        super().__init__()
        attention = PackedLinearAttention if config.attention == "linear" else PackedAttention
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        # the config has set layer_types
        self.self_attn = attention(config, config.layer_types[index])  # type: ignore[index]
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.mlp = MixtureOfExperts(config) if config.has_experts(index) else GatedNetwork(config)
        self.dropout = config.dropout

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        padding: Tensor | None = None,
        documents: Tensor | None = None,
        cache: KVCache | RunningState | None = None,
    ) -> tuple[Tensor, Routes | None]:
        """Return the new x [B, S, hidden], and the routes (which experts each token uses) of a
        mixture of experts, or None without one. `padding` is True for real tokens; it and the other
        arguments are as in `Decoder.forward`, with the cache of this layer.
        """
        normed = self.input_layernorm(x)
        attended = self.self_attn.attend(normed, positions, padding, documents, cache)  # type: ignore[arg-type]
        x = x + self._dropout(attended)
        out, routes = self.mlp(self.post_attention_layernorm(x))
        return x + self._dropout(out), routes

    def _dropout(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout) if self.training and self.dropout else x


class Decoder(nn.Module):
    """A decoder-only language model; see `DecoderConfig` for its options and `rw.load` for trained
    weights.

    invariant  whether the bits of a row's logits depend on the row alone: not on the other rows,
               how the prompt is divided into chunks, or what a cache holds already. The attribute
               may be set later; `models.invariant.why_not` says which models cannot. On a CPU every
               token is then computed alone, which is slow
    """

    def __init__(self, config: DecoderConfig, *, invariant: bool = False) -> None:
        """Create the model with random weights. `invariant`: the bits of a row's logits depend on
        that row alone.
        """
        super().__init__()
        self.config, self.invariant = config, invariant
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        # the config sets head_dim; `or 0` only satisfies the type checker
        sizes = Sizes(config.num_heads, config.head_dim or 0, config.hidden_size, config.length)
        # an encoding that is added to the embeddings; all others are in the layers
        self.encoding = as_encoding(config.input_encoding, sizes) if config.input_encoding else None
        self.layers = nn.ModuleList(
            DecoderLayer(config, index) for index in range(config.num_layers)
        )
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.lm_head = (
            None
            if config.tie_embeddings
            else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights: normal with standard deviation `init_std`; biases 0, norms 1."""
        std = self.config.init_std
        # encodings initialise their own parameters
        encoding_modules = {
            part
            for module in self.modules()
            if isinstance(module, Encoding)
            for part in module.modules()
        }
        for module in (module for module in self.modules() if module not in encoding_modules):
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
            if isinstance(module, nn.RMSNorm):
                module.reset_parameters()
            if isinstance(module, Experts):
                nn.init.normal_(module.gate_up_proj, std=std)
                nn.init.normal_(module.down_proj, std=std)

    @property
    def head_weight(self) -> Tensor:
        """The output matrix [vocab, hidden]; the embeddings if they are tied."""
        return self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    def forward(
        self,
        tokens: Integer[Tensor, "B S"],
        positions: Integer[Tensor, "..."] | None = None,
        padding: Bool[Tensor, "B S"] | None = None,
        documents: Integer[Tensor, "B S"] | None = None,
        caches: Caches | None = None,
    ) -> Float[Tensor, "B S V"]:
        """Return the logits of the next token after each of `tokens`.

        positions  integer [S], [B, S] or [axes, B, S]; default: 0, 1, 2, ... over the real tokens
                   of each row, after the cached ones, or of each document
        padding    True for real tokens
        documents  the document index of each token in packed rows; tokens attend only within their
                   document
        caches     from `caches()`; `tokens` continue the cached ones and are added to them
        """
        return self.logits(self.features(tokens, positions, padding, documents, caches))

    def logits(self, features: Float[Tensor, "... H"]) -> Float[Tensor, "... V"]:
        """Return the logits of what `features` returns."""
        if self.invariant:
            return invariant.logits(self, features)
        return F.linear(features, self.head_weight)

    def features(
        self,
        tokens: Integer[Tensor, "B S"],
        positions: Integer[Tensor, "..."] | None = None,
        padding: Bool[Tensor, "B S"] | None = None,
        documents: Integer[Tensor, "B S"] | None = None,
        caches: Caches | None = None,
    ) -> Float[Tensor, "B S H"]:
        """Return the normed output of the last layer, from which the logits are computed; arguments
        as in `forward`.
        """
        return self._run(tokens, positions, padding, documents, caches)[0]

    def loss(
        self,
        tokens: Integer[Tensor, "B S"],
        targets: Integer[Tensor, "B S"] | None = None,
        positions: Integer[Tensor, "..."] | None = None,
        padding: Bool[Tensor, "B S"] | None = None,
        documents: Integer[Tensor, "B S"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return the mean cross entropy of `targets` plus `router_aux_coef` times the experts'
        balance loss, without materialising all logits.

        targets[b, s] is the token that should follow tokens[b, s], or -100 to ignore it. None: the
        next token of the row. Then a padding token, the token before one, and the last token of a
        row or document are ignored. `padding` is True for real tokens; it and the other arguments
        are as in `forward`.
        """
        if targets is not None:
            check_targets(targets, tokens, self.config.vocab_size)
        x, routes = self._run(tokens, positions, padding, documents, caches=None)
        targets = next_tokens(tokens, padding, documents) if targets is None else targets
        loss = token_loss(x.flatten(0, 1), self.head_weight, targets.flatten())
        if routes and self.config.router_aux_coef:
            loss = loss + self.config.router_aux_coef * balance_loss(routes, padding)
        return loss

    def caches(self, kind: str = "growing", capacity: int | None = None, sinks: int = 0) -> Caches:
        """Return an empty KVCache(kind, capacity, sinks) for each layer, or with linear attention
        an empty RunningState.
        """
        return empty_caches(len(self.layers), self.config.attention, kind, capacity, sinks)

    def generate(
        self, tokens: Integer[Tensor, "B S"], max_new_tokens: int, **options: Any
    ) -> Integer[Tensor, "B T"]:
        """Return the prompt with the generated tokens; `options` as in `generation.generate`."""
        return generation.generate(self, tokens, max_new_tokens, **options)

    def stream(
        self, tokens: Integer[Tensor, "B S"], max_new_tokens: int, **options: Any
    ) -> Iterator[Tensor]:
        """Yield the new tokens [B] of each step; `options` as in `generation.steps`."""
        return generation.steps(self, tokens, max_new_tokens, **options)

    def _run(
        self,
        tokens: Tensor,
        positions: Tensor | None,
        padding: Tensor | None,
        documents: Tensor | None,
        caches: Sequence | None,
    ) -> tuple[Tensor, list[Routes]]:
        """Return the normed output of the last layer, and the routes of the layers with experts;
        arguments as in `forward`.
        """
        check_tokens(tokens)
        layer_caches = check_caches(caches, len(self.layers))
        if positions is None:  # the first layer computes the default ones, which all layers use
            positions = next_positions(caches, padding, documents, tokens, self.layers[0].self_attn)  # type: ignore[arg-type]
        x = self.embed_tokens(tokens)
        if self.encoding is not None:
            x = self.encoding.embed(x, positions)
        if self.invariant:
            invariant.check(self, padding, documents, caches)
            for layer, cache in zip(self.layers, layer_caches, strict=True):
                x = invariant.run_layer(layer, x, positions, padding, cache)
            # no routes: `check` refuses a model with experts
            return invariant.final_norm(self, x), []
        all_routes: list[Routes] = []
        for layer, cache in zip(self.layers, layer_caches, strict=True):
            x, routes = layer(x, positions, padding, documents, cache)
            if routes is not None:
                all_routes.append(routes)
        return self.norm(x), all_routes


def next_tokens(tokens: Tensor, padding: Tensor | None, documents: Tensor | None) -> Tensor:
    """Return the token after each token, [B, S]; -100 for padding, and where the next place of the
    row has no real token of the same document.
    """
    targets = torch.full_like(tokens, IGNORED, dtype=torch.int64)
    targets[:, :-1] = tokens[:, 1:]
    if padding is not None:
        targets[:, :-1].masked_fill_(~(padding[:, 1:] & padding[:, :-1]), IGNORED)
    if documents is not None:
        targets[:, :-1].masked_fill_(documents[:, 1:] != documents[:, :-1], IGNORED)
    return targets
