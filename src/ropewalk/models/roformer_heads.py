"""Heads of a RoFormer: each maps hidden states [B, S, hidden] to its output.

`padding` [B, S] is True for real tokens; None: all are real. `words` are the word embeddings
[vocab, embedding]; only a language model uses them, as its output matrix if they are tied. RoFormer
v1 has layer norms and biases, v2 has norms without weights and no biases.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.models.activations import ACTIVATIONS
from ropewalk.models.roformer_config import RoFormerConfig


class WeightlessNorm(nn.Module):
    """x / rms(x), the norm of RoFormer v2, which has no parameters."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], eps=self.eps)


def make_norm(config: RoFormerConfig, size: int) -> nn.Module:
    """Create the norm of this config for vectors of `size`."""
    return (
        nn.LayerNorm(size, eps=config.norm_eps)
        if config.norm == "layer_norm"
        else WeightlessNorm(config.norm_eps)
    )


def first_token(hidden: Tensor, padding: Tensor | None) -> Tensor:
    """Return the hidden state of each row's first real token, [B, hidden], or of its first token if
    all are padding; `padding` is True for real tokens.
    """
    if padding is None:
        return hidden[:, 0]
    # argmax returns the first of equals
    return _select(hidden, padding.long().argmax(dim=-1))


def last_token(hidden: Tensor, padding: Tensor | None) -> Tensor:
    """Return the hidden state of each row's last real token, [B, hidden], or of its last token if
    all are padding; `padding` is as in `first_token`.
    """
    if padding is None:
        return hidden[:, -1]
    tokens_after = padding.long().flip(-1).argmax(dim=-1)  # padding after the last real token
    return _select(hidden, hidden.shape[1] - 1 - tokens_after)


def mean_token(hidden: Tensor, padding: Tensor | None) -> Tensor:
    """Return the mean hidden state of each row's real tokens, [B, hidden]; 0 for a row of padding
    alone. `padding` is as in `first_token`.
    """
    if padding is None:
        return hidden.mean(dim=1)
    real = padding.unsqueeze(-1)
    return (hidden * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)


def _select(hidden: Tensor, index: Tensor) -> Tensor:
    """Return the hidden state at token index[b] of each row b, [B, hidden]."""
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), index]


_SUMMARIES = {"first": first_token, "last": last_token, "mean": mean_token}


class Head(nn.Module):
    """Base class of all heads; on its own it returns the hidden states.

    forward takes hidden [B, S, hidden], padding [B, S] or None (True = real), and the word
    embeddings [vocab, embedding].
    """

    #: one output per row, so a row must not hold several documents
    pools: ClassVar[bool] = False

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, hidden: Tensor, padding: Tensor | None, words: Tensor) -> Tensor:
        return hidden


class LanguageModel(Head):
    """Logits over the vocabulary for every token, [B, S, vocab]; for masked and causal models.

    v1 has a dense layer and a norm before the output matrix, and a bias after it; v2 has only the
    matrix.
    """

    def __init__(self, config: RoFormerConfig) -> None:
        """Create the layers after the hidden states: those of v1 if the config has norm =
        "layer_norm", else those of v2.
        """
        super().__init__(config)
        size: int = config.embedding_size  # type: ignore[assignment]  # resolved by the config
        self.first_version = config.norm == "layer_norm"
        if self.first_version:
            self.transform = nn.Linear(config.hidden_size, size)
            self.norm = nn.LayerNorm(size, eps=config.norm_eps)
            self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        if not config.tie_embeddings:
            self.decoder = nn.Linear(size, config.vocab_size, bias=False)

    def forward(self, hidden: Tensor, padding: Tensor | None, words: Tensor) -> Tensor:
        weight = words if self.config.tie_embeddings else self.decoder.weight
        return F.linear(self._projected(hidden), weight, self.bias if self.first_version else None)

    def features(self, hidden: Tensor) -> Tensor:
        """Return the input of the output `matrix`; v1 has a column of ones, for its bias."""
        x = self._projected(hidden)
        return torch.cat((x, torch.ones_like(x[..., :1])), dim=-1) if self.first_version else x

    def matrix(self, words: Tensor) -> Tensor:
        """Return the output matrix [vocab, embedding], with the bias as one more column if there is
        one.
        """
        weight = words if self.config.tie_embeddings else self.decoder.weight
        return (
            torch.cat((weight, self.bias.unsqueeze(-1)), dim=-1) if self.first_version else weight
        )

    def _projected(self, hidden: Tensor) -> Tensor:
        """Return the input of the output matrix: the hidden states, in v1 after a dense layer, the
        activation and a norm.
        """
        return (
            self.norm(ACTIVATIONS[self.config.activation](self.transform(hidden)))
            if self.first_version
            else hidden
        )


class Classification(Head):
    """Logits of the labels of a sentence (or of a pair, marked by token types) from its first
    token, [B, labels].
    """

    pools: ClassVar[bool] = True

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.num_labels)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor, padding: Tensor | None, words: Tensor) -> Tensor:
        """Return the logits of the labels, [B, labels], from the hidden state of each row's first
        real token. With the head_dropout "roformer" there is dropout before the dense layer too, as
        in transformers' RoFormer; a BERT has none there.
        """
        activation = ACTIVATIONS[self.config.classifier_activation or self.config.activation]
        x = first_token(hidden, padding)
        x = self.dropout(x) if self.config.head_dropout == "roformer" else x
        return self.out(self.dropout(activation(self.dense(x))))


class TokenClassification(Head):
    """Logits of the labels of every token, [B, S, labels]."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        self.dropout = nn.Dropout(config.dropout)
        self.out = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, hidden: Tensor, padding: Tensor | None, words: Tensor) -> Tensor:
        return self.out(self.dropout(hidden))


class MultipleChoice(Head):
    """One logit per row, [B]; the model passes every choice as a row and returns [B, choices]."""

    pools: ClassVar[bool] = True

    def __init__(self, config: RoFormerConfig) -> None:
        """Create the layers; those that the config leaves out are identities. Only a BERT has
        dropout in this head.
        """
        super().__init__(config)
        self.summary = (
            nn.Linear(config.hidden_size, config.hidden_size)
            if config.summary_projection
            else nn.Identity()
        )
        self.out = nn.Linear(config.hidden_size, 1)
        self.dropout = (
            nn.Dropout(config.dropout) if config.head_dropout == "bert" else nn.Identity()
        )

    def forward(self, hidden: Tensor, padding: Tensor | None, words: Tensor) -> Tensor:
        activation = ACTIVATIONS[self.config.summary_activation or "linear"]
        summary = activation(self.summary(_SUMMARIES[self.config.summary](hidden, padding)))
        return self.out(self.dropout(summary)).squeeze(-1)


class QuestionAnswering(Head):
    """Logits of every token as the start and as the end of the answer, [B, S, 2]."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        self.out = nn.Linear(config.hidden_size, 2)

    def forward(self, hidden: Tensor, padding: Tensor | None, words: Tensor) -> Tensor:
        return self.out(hidden)


class Similarity(Head):
    """A unit vector for each sentence, [B, hidden]; the dot product of two is their similarity
    (roformer-sim).
    """

    pools: ClassVar[bool] = True

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, padding: Tensor | None, words: Tensor) -> Tensor:
        pooled = ACTIVATIONS[self.config.pooler_activation](
            self.pooler(first_token(hidden, padding))
        )
        return F.normalize(pooled, dim=-1)


#: heads by name, the same as in RoFormerConfig.head
HEADS: dict[str, type[Head]] = {
    "none": Head,
    "masked_lm": LanguageModel,
    "causal_lm": LanguageModel,
    "classification": Classification,
    "token_classification": TokenClassification,
    "multiple_choice": MultipleChoice,
    "question_answering": QuestionAnswering,
    "similarity": Similarity,
}
