"""What stands on a RoFormer: each head turns hidden states [B, S, hidden] into its answer."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.errors import RopeError
from ropewalk.models.activations import ACTIVATIONS
from ropewalk.models.roformer_config import RoFormerConfig


class WeightlessNorm(nn.Module):
    """x / rms(x): the norm of RoFormer v2, which learns nothing."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], eps=self.eps)


def make_norm(config: RoFormerConfig, size: int) -> nn.Module:
    """The norm of this config for vectors of `size`."""
    return nn.LayerNorm(size, eps=config.norm_eps) if config.norm == "layer_norm" else WeightlessNorm(config.norm_eps)


def first_token(hidden: Tensor, padding: Tensor | None) -> Tensor:
    """The first real token of each row, [B, hidden]."""
    if padding is None:
        return hidden[:, 0]
    return _at(hidden, padding.long().argmax(dim=-1))


def last_token(hidden: Tensor, padding: Tensor | None) -> Tensor:
    """The last real token of each row, [B, hidden]."""
    if padding is None:
        return hidden[:, -1]
    return _at(hidden, hidden.shape[1] - 1 - padding.long().flip(-1).argmax(dim=-1))


def mean_token(hidden: Tensor, padding: Tensor | None) -> Tensor:
    """The mean over the real tokens of each row, [B, hidden]."""
    if padding is None:
        return hidden.mean(dim=1)
    real = padding.unsqueeze(-1)
    return (hidden * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)


def _at(hidden: Tensor, index: Tensor) -> Tensor:
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), index]


_SUMMARIES = {"first": first_token, "last": last_token, "mean": mean_token}


class Head(nn.Module):
    """No head: the hidden states themselves, and the interface of all others.

    forward takes hidden [B, S, hidden], padding [B, S] or None (True = real), and the word table [vocab, embedding].
    """

    #: one answer a row, so rows must not be packed
    pools: ClassVar[bool] = False

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, hidden: Tensor, padding: Tensor | None, words: Tensor) -> Tensor:
        return hidden


class LanguageModel(Head):
    """Scores of every word at every token, [B, S, vocab]; masked or causal is the encoder's business.

    v1 has a layer and a norm before the word table, and a bias after it; v2 only the table.
    """

    def __init__(self, config: RoFormerConfig) -> None:
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
        table = words if self.config.tie_embeddings else self.decoder.weight
        return F.linear(self._before_table(hidden), table, self.bias if self.first_version else None)

    def features(self, hidden: Tensor) -> Tensor:
        """What `matrix` turns into scores; where there is a bias, with a column of ones for it."""
        x = self._before_table(hidden)
        return torch.cat((x, torch.ones_like(x[..., :1])), dim=-1) if self.first_version else x

    def matrix(self, words: Tensor) -> Tensor:
        """The word table, with the bias as its last column where there is one."""
        table = words if self.config.tie_embeddings else self.decoder.weight
        return torch.cat((table, self.bias.unsqueeze(-1)), dim=-1) if self.first_version else table

    def _before_table(self, hidden: Tensor) -> Tensor:
        return self.norm(ACTIVATIONS[self.config.activation](self.transform(hidden))) if self.first_version else hidden


class Classification(Head):
    """Scores of the labels of a sentence, or of a pair told apart by token types, from the first token: [B, labels]."""

    pools: ClassVar[bool] = True

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.num_labels)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor, padding: Tensor | None, words: Tensor) -> Tensor:
        activation = ACTIVATIONS[self.config.classifier_activation or self.config.activation]
        return self.out(self.dropout(activation(self.dense(self.dropout(first_token(hidden, padding))))))


class TokenClassification(Head):
    """Scores of the labels of every token, [B, S, labels]."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        self.dropout = nn.Dropout(config.dropout)
        self.out = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, hidden: Tensor, padding: Tensor | None, words: Tensor) -> Tensor:
        return self.out(self.dropout(hidden))


class MultipleChoice(Head):
    """One score a row, [B]; the model asks it of every choice and answers [B, choices]."""

    pools: ClassVar[bool] = True

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        self.summary = nn.Linear(config.hidden_size, config.hidden_size) if config.summary_projection else nn.Identity()
        self.out = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden: Tensor, padding: Tensor | None, words: Tensor) -> Tensor:
        activation = ACTIVATIONS[self.config.summary_activation or "linear"]
        return self.out(activation(self.summary(_SUMMARIES[self.config.summary](hidden, padding)))).squeeze(-1)


class QuestionAnswering(Head):
    """Scores of every token as the start and as the end of the answer, [B, S, 2]."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        self.out = nn.Linear(config.hidden_size, 2)

    def forward(self, hidden: Tensor, padding: Tensor | None, words: Tensor) -> Tensor:
        return self.out(hidden)


class Similarity(Head):
    """A vector of length one for each sentence, [B, hidden]: the product of two is their similarity (roformer-sim)."""

    pools: ClassVar[bool] = True

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, padding: Tensor | None, words: Tensor) -> Tensor:
        pooled = ACTIVATIONS[self.config.pooler_activation](self.pooler(first_token(hidden, padding)))
        return F.normalize(pooled, dim=-1)


#: head by name; RoFormerConfig names the same ones
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


def refuse_packed(head: Head, documents: Tensor | None) -> None:
    """A head with one answer a row cannot answer for several documents in it."""
    if head.pools and documents is not None:
        rule = f"cannot be packed for {type(head).__name__}, which answers once a row: give each its own row"
        raise RopeError("documents", rule, list(documents.shape))
