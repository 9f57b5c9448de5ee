"""Generation: one token after another, greedily or by sampling, from any kind of cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ropewalk.errors import RopeError, choice, integer, number

#: "none" runs the whole sequence again for every token
CACHES = ("growing", "static", "sliding", "none")


@runtime_checkable
class Model(Protocol):
    """What generation needs of a model."""

    @property
    def head_weight(self) -> Tensor: ...

    def features(self, tokens: Tensor, *args: Any, **kwargs: Any) -> Tensor: ...

    def caches(self, kind: str = ..., capacity: int | None = ..., sinks: int = ...) -> Any: ...


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn from logits; temperature 0 takes the likeliest.

    top_k keeps the k likeliest, top_p the fewest that together have that probability. repetition_penalty > 1 divides the
    positive logits of tokens that were there already, and multiplies the negative ones.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        number("temperature", self.temperature, low=0)
        number("repetition_penalty", self.repetition_penalty, above=0)
        if self.top_k is not None:
            integer("top_k", self.top_k, low=1)
        if self.top_p is not None:
            number("top_p", self.top_p, above=0, high=1)

    def pick(self, logits: Tensor, seen: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """One token for each row of logits [B, V]; `seen` [B, V] is True for tokens that were there already."""
        logits = logits.float()
        if self.repetition_penalty != 1 and seen is not None:
            less = torch.where(logits > 0, logits / self.repetition_penalty, logits * self.repetition_penalty)
            logits = torch.where(seen, less, logits)
        if self.temperature == 0:
            return logits.argmax(dim=-1)
        kept = self._kept(logits / self.temperature)
        return torch.multinomial(kept.softmax(dim=-1), 1, generator=generator).squeeze(-1)

    def _kept(self, logits: Tensor) -> Tensor:
        """The logits with what top_k and top_p leave out at -inf."""
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k, dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < least, float("-inf"))
        if self.top_p is not None and self.top_p < 1:
            ordered, order = logits.sort(dim=-1, descending=True)
            shares = ordered.softmax(dim=-1)
            # a token stays while those before it fall short, so the likeliest always does
            cut = shares.cumsum(dim=-1) - shares >= self.top_p
            logits = logits.masked_fill(torch.empty_like(cut).scatter_(-1, order, cut), float("-inf"))
        return logits


def generate(
    model: Model, tokens: Tensor, max_new_tokens: int, *, stream: Callable[[Tensor], None] | None = None, **options: Any
) -> Tensor:
    """tokens [B, S] and what follows them, [B, S + new]; `options` as in `steps`.

    stream  called with the new tokens [B] of every step; `steps` is the same as an iterator
    """
    new = []
    for step in steps(model, tokens, max_new_tokens, **options):
        new.append(step)
        if stream is not None:
            stream(step)
    return torch.cat((tokens, torch.stack(new, dim=1).to(tokens.dtype)), dim=1) if new else tokens


def steps(
    model: Model,
    tokens: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    padding: Tensor | None = None,
    stop: int | Sequence[int] | None = None,
    pad: int | None = None,
    cache: Any = "growing",
    capacity: int | None = None,
    sinks: int = 0,
    seed: int | None = None,
) -> Iterator[Tensor]:
    """The tokens [B] that follow tokens [B, S], one step after another, until all rows have stopped.

    temperature ... repetition_penalty  as in Sampling
    padding   boolean [B, S], True for real tokens, which must stand at the end of each row
    stop      a token, or several, after which a row is done; it goes on as `pad` (by default the first of them)
    cache     "growing", "static" (of `capacity`, by default just enough), "sliding" (the first `sinks` and the latest
              tokens, `capacity` in all), "none", or the caches of a text that goes on
    seed      of the sampling; None: torch's own generator
    """
    sampling = Sampling(temperature, top_k, top_p, repetition_penalty)
    _check_prompt(tokens, padding)
    integer("max_new_tokens", max_new_tokens, low=0)
    stops = _stops(stop, tokens.device)
    generator = None if seed is None else torch.Generator(tokens.device).manual_seed(integer("seed", seed, low=0))
    caches = _caches(model, cache, capacity, sinks, tokens.shape[1] + max_new_tokens)
    return _steps(model, tokens, max_new_tokens, sampling, padding, stops, pad, caches, generator)


@torch.no_grad()
def _steps(
    model: Model,
    tokens: Tensor,
    max_new_tokens: int,
    sampling: Sampling,
    padding: Tensor | None,
    stops: Tensor | None,
    pad: int | None,
    caches: Any,
    generator: torch.Generator | None,
) -> Iterator[Tensor]:
    seen = _seen(tokens, padding, model.head_weight.shape[0]) if sampling.repetition_penalty != 1 else None
    done = torch.zeros(tokens.shape[0], dtype=torch.bool, device=tokens.device)
    fed = tokens
    for _ in range(max_new_tokens):
        last = model.features(fed, padding=padding, caches=caches)[:, -1]
        found = sampling.pick(last @ model.head_weight.transpose(0, 1), seen, generator)
        if stops is not None:
            found = torch.where(done, stops[0] if pad is None else pad, found)
            done = done | torch.isin(found, stops)
        yield found
        if stops is not None and bool(done.all()):
            return
        if seen is not None:
            seen = seen.scatter(1, found.unsqueeze(-1), True)
        if caches is not None:
            fed, padding = found.unsqueeze(-1), None
            continue
        fed = torch.cat((fed, found.unsqueeze(-1).to(fed.dtype)), dim=1)
        padding = None if padding is None else torch.cat((padding, torch.ones_like(padding[:, :1])), dim=1)


def _check_prompt(tokens: Tensor, padding: Tensor | None) -> None:
    if tokens.ndim != 2 or not tokens.shape[1]:
        raise RopeError("tokens", "must be [batch, tokens] with at least one token to follow", list(tokens.shape))
    if padding is None:
        return
    if padding.dtype != torch.bool or padding.shape != tokens.shape:
        raise RopeError("padding", f"must be boolean {list(tokens.shape)}, True for real tokens", list(padding.shape))
    rising = padding[:, 1:] >= padding[:, :-1]
    if not bool(rising.all() & padding[:, -1].all()):
        raise RopeError("padding", "must stand on the left: the next token follows the last one of each row", "a gap")


def _stops(stop: int | Sequence[int] | None, device: torch.device) -> Tensor | None:
    if stop is None:
        return None
    several = [stop] if isinstance(stop, int) else list(stop)
    if not several:
        raise RopeError("stop", "must name at least one token, or be None", several)
    return torch.tensor([integer("stop", each, low=0) for each in several], device=device)


def _caches(model: Model, cache: Any, capacity: int | None, sinks: int, needed: int) -> Any:
    if not isinstance(cache, str):
        return cache
    if choice("cache", cache, CACHES) == "none":
        return None
    if cache == "static" and capacity is None:
        capacity = needed
    return model.caches(cache, capacity, sinks)


def _seen(tokens: Tensor, padding: Tensor | None, vocabulary: int) -> Tensor:
    """[B, V], True for the tokens of each row that are real."""
    there = torch.ones_like(tokens, dtype=torch.int64) if padding is None else padding.long()
    return (
        torch.zeros(tokens.shape[0], vocabulary, dtype=torch.int64, device=tokens.device).scatter_add(1, tokens.long(), there) > 0
    )
