"""Losses and predictions of a causal language model on long texts, without the logits of all tokens
in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.config import file as config_file
from ropewalk.config.values import find, served_length
from ropewalk.errors import RopeError, integer
from ropewalk.frequencies.scaling import TRAINED_LENGTH_KEY
from ropewalk.models.decoder import Decoder

#: float32 logits in memory at a time: 256 MB
MAX_LOGITS = 1 << 26


class Reader:
    """A causal language model of transformers, or a `Decoder`, as functions of tokens.

    The logits must be one linear function of the last hidden state, which a few tokens check.
    """

    def __init__(self, model: Any) -> None:
        if isinstance(model, Decoder):
            self.hidden: Callable[[Tensor], Tensor] = model.features
            self.head: Callable[[Tensor], Tensor] = lambda x: F.linear(x, model.head_weight)
        elif (
            isinstance(model, nn.Module)
            and callable(getattr(model, "get_decoder", None))
            and _head(model) is not None
        ):
            decoder, self.head = model.get_decoder(), _head(model)  # type: ignore[assignment]
            self.hidden = lambda tokens: (
                decoder(input_ids=tokens, use_cache=False).last_hidden_state
            )
        else:
            rule = "must be a causal language model of transformers or a Decoder"
            raise RopeError("model", rule, type(model).__name__)
        self.model = model
        self.device = next(model.parameters()).device
        self._check_head()

    @torch.no_grad()
    def _check_head(self) -> None:
        """Raise an error if the logits of the model are not those of its head on the last hidden
        state.
        """
        tokens = torch.arange(5, device=self.device)[None] % self.vocab_size
        logits = self.model(tokens)
        logits = getattr(logits, "logits", logits)
        mine = self.head(self.hidden(tokens))
        if not torch.allclose(
            mine.float(), logits.float(), rtol=1e-2, atol=1e-2 * float(logits.float().abs().max())
        ):
            rule = (
                "must compute its logits by one matrix product with the last hidden state; this "
                "model changes them after it"
            )
            raise RopeError("model", rule, type(self.model).__name__)

    @property
    def vocab_size(self) -> int:
        """The number of tokens of the vocabulary."""
        return (
            self.model.head_weight.shape[0]
            if isinstance(self.model, Decoder)
            else _head(self.model).weight.shape[0]
        )  # type: ignore[union-attr, return-value]

    @torch.no_grad()
    def losses(self, tokens: Tensor, first: int = 1) -> Tensor:
        """Return the loss of every token of each row from token `first` on, float32 [B, S - first]
        on the CPU.
        """
        tokens = tokens.to(self.device)
        hidden, targets = self.hidden(tokens)[:, first - 1 : -1], tokens[:, first:]
        found = torch.empty(targets.shape, device=self.device)
        for part in _parts(targets.shape[1], MAX_LOGITS // (self.vocab_size * tokens.shape[0])):
            logits = self.head(hidden[:, part]).float().flatten(0, 1)
            # rows of logits, because cross entropy of [B, vocabulary, S] is many times slower on a
            # GPU
            losses = F.cross_entropy(logits, targets[:, part].flatten(), reduction="none")
            found[:, part] = losses.unflatten(0, (len(tokens), -1))
        return found.cpu()

    @torch.no_grad()
    def says(self, tokens: Tensor, answer: int) -> Tensor:
        """Return whether greedy decoding gives the last `answer` tokens of each row after those
        before them, bool [B].
        """
        tokens = tokens.to(self.device)
        logits = self.head(self.hidden(tokens[:, :-1])[:, -answer:])
        return (logits.argmax(-1) == tokens[:, -answer:]).all(1).cpu()


def _head(model: nn.Module) -> nn.Module | None:
    find_head = getattr(model, "get_output_embeddings", None)
    # a module in every release
    return find_head() if callable(find_head) else None  # type: ignore[return-value]


def _parts(length: int, size: int) -> Iterator[slice]:
    size = max(1, size)
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def trained_length(model: Any) -> int:
    """Return the length that a model's config says it was trained with."""
    config = getattr(model, "config", model)
    if isinstance(model, Decoder):
        return config.length
    text = config_file.load(config_file.text_owner(config))
    length = find(text, TRAINED_LENGTH_KEY) or served_length(text)
    if length is None:
        raise RopeError("trained", "must be given: the config has no max_position_embeddings", None)
    return integer("trained", length.value, low=1)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Context manager: evaluation mode; afterwards every module has its own mode again."""
    was_training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train(was_training[0][1])  # a module may do more in `train` than set its mode
        for module, mode in was_training:
            module.training = mode
