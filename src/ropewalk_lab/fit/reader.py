"""Losses and predictions of a causal language model on long texts, without the logits of all tokens
in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.errors import RopeError
from ropewalk.interop.patch import patched
from ropewalk.models.decoder import Decoder
from ropewalk_lab.evaluation import modes_kept
from ropewalk_lab.fit.cpu import faster_on_cpu

#: float32 logits in memory at a time: 256 MB
MAX_LOGITS = 1 << 26


class Reader:
    """A causal language model of transformers, or a `Decoder`, as functions of tokens.

    `hidden` gives the last hidden states [B, S, width] of tokens [B, S], and `head` their logits.
    The logits must be one linear function of the hidden state; `__init__` checks this on five
    tokens.

    kernels, attention  whose kernels rotate, and whose compute attention: "ropewalk", or "the
                        model's own"
    """

    def __init__(
        self, model: Any, kernels: str = "the model's own", attention: str = "the model's own"
    ) -> None:
        """Find the parts of the model; `kernels` and `attention` are whose code rotates and computes
        attention, for the report.
        """
        if isinstance(model, Decoder):
            self.hidden: Callable[[Tensor], Tensor] = model.features
            self.head: Callable[[Tensor], Tensor] = lambda x: F.linear(x, model.head_weight)
            #: the number of tokens of the vocabulary
            self.vocab_size = model.head_weight.shape[0]
        elif (head := _head(model)) is not None:
            decoder, self.head = model.get_decoder(), head
            self.vocab_size = head.weight.shape[0]
            self.hidden = lambda tokens: (
                decoder(input_ids=tokens, use_cache=False).last_hidden_state
            )
        else:
            rule = "must be a causal language model of transformers or a Decoder"
            raise RopeError("model", rule, type(model).__name__)
        self.model, self.kernels, self.attention = model, kernels, attention
        self.device = next(model.parameters()).device
        self._check_head()

    @torch.no_grad()
    def _check_head(self) -> None:
        """Raise an error if the logits of the model are not finite, or not close to those that
        `head` gives for the last hidden state.
        """
        tokens = torch.arange(5, device=self.device)[None] % self.vocab_size
        logits = self.model(tokens)
        logits = getattr(logits, "logits", logits)  # transformers returns an object that holds them
        if not bool(torch.isfinite(logits).all()):
            rule = "must have finite logits; its weights or its dtype give NaN or infinity"
            raise RopeError("model", rule, type(self.model).__name__)
        mine = self.head(self.hidden(tokens))
        # within 1 %: the rounding of bfloat16 is smaller, what models do to logits is larger
        if not torch.allclose(
            mine.float(), logits.float(), rtol=1e-2, atol=1e-2 * float(logits.float().abs().max())
        ):
            rule = (
                "must compute its logits by one matrix product with the last hidden state; this "
                "model changes the result of that product"
            )
            raise RopeError("model", rule, type(self.model).__name__)

    @torch.no_grad()
    def losses(self, tokens: Tensor, first: int = 1) -> Tensor:
        """Return the loss in nats of every token of each row [B, S] from token `first` on, which is
        at least 1, float32 [B, S - first] on the CPU.
        """
        tokens = tokens.to(self.device)
        # the hidden state of a token predicts the next one
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
        """Return whether greedy decoding gives the last `answer` tokens of each row [B, S] after
        those before them, bool [B]. One forward pass tells this, because greedy decoding reads the
        right tokens up to its first mistake.
        """
        tokens = tokens.to(self.device)
        logits = self.head(self.hidden(tokens[:, :-1])[:, -answer:])
        return (logits.argmax(-1) == tokens[:, -answer:]).all(1).cpu()


def _head(model: Any) -> Any:
    """Return the module of a transformers model that gives the logits; None if it has no such
    module, or no decoder before it.
    """
    has_both = all(
        callable(getattr(model, name, None)) for name in ("get_decoder", "get_output_embeddings")
    )
    return model.get_output_embeddings() if has_both else None


def _parts(length: int, size: int) -> Iterator[slice]:
    """Return slices of `size`, at least 1, that together cover 0 to `length`."""
    size = max(1, size)
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


@contextmanager
def reading(model: nn.Module) -> Iterator[Reader]:
    """Context manager: a model in evaluation mode on the fastest kernels that it can run; yields
    its reader. Afterwards the model is as before.
    """
    with ExitStack() as stack:
        stack.enter_context(modes_kept(model))
        model.eval()
        kernels = "ropewalk"
        if not isinstance(model, Decoder):  # a Decoder has our kernels already
            try:
                stack.enter_context(patched(model))
            except RopeError:  # a model that cannot be patched is measured as it is
                kernels = "the model's own"
        attention = stack.enter_context(faster_on_cpu(model))
        yield Reader(model, kernels, attention)
