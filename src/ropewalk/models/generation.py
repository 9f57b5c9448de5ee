"""Generation: one token after another, greedily or by sampling, with or without a cache."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, SupportsIndex

import torch
from torch import Tensor

from ropewalk.checks import check_tokens
from ropewalk.errors import RopeError, choice, integer, number
from ropewalk.kernels.support import why_no_triton

#: "none" runs the whole sequence again for every token
CACHES = ("growing", "static", "sliding", "none")
#: the smallest number by which logits are divided, so that they do not overflow
LEAST = 1e-6


class GeneratingModel(Protocol):
    """The interface of a model that can generate.

    head_weight  the output matrix [vocabulary, width]
    features     tokens [B, S] -> [B, S, width]; also takes `padding` and `caches`
    logits       features [..., width] -> logits [..., vocabulary]
    caches       (kind, capacity, sinks) -> an empty cache for each layer
    """

    @property
    def head_weight(self) -> Tensor: ...

    def features(self, tokens: Tensor, *args: Any, **kwargs: Any) -> Tensor: ...

    def logits(self, features: Tensor) -> Tensor: ...

    def caches(self, kind: str = ..., capacity: int | None = ..., sinks: int = ...) -> Any: ...


@dataclass(frozen=True)
class Sampling:
    """How to pick a token from logits; temperature 0 picks the most likely one.

    top_k keeps the k most likely tokens and those as likely as the last of them, top_p the fewest
    whose probabilities sum to at least top_p. repetition_penalty divides the positive logits of
    tokens that occurred before, and multiplies the negative ones: above 1 it makes these tokens
    less likely.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        """Check every field."""
        if 0 < number("temperature", self.temperature, low=0) < LEAST:
            rule = f"must be 0, which picks the most likely token, or at least {LEAST:g}"
            raise RopeError("temperature", rule, self.temperature)
        number("repetition_penalty", self.repetition_penalty, low=LEAST, high=1 / LEAST)
        if self.top_k is not None:
            integer("top_k", self.top_k, low=1)
        if self.top_p is not None:
            number("top_p", self.top_p, above=0, high=1)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is picked, whatever occurred before."""
        return self.temperature == 0 and self.repetition_penalty == 1

    def pick(
        self, logits: Tensor, seen: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        """Return one token for each row of logits [B, V]; `seen` [B, V] is True for tokens that
        occurred before.
        """
        if self.greedy:
            return logits.argmax(dim=-1)
        logits = logits.float()
        if self.repetition_penalty != 1 and seen is not None:
            penalised = torch.where(
                logits > 0, logits / self.repetition_penalty, logits * self.repetition_penalty
            )
            logits = torch.where(seen, penalised, logits)
        if self.temperature == 0:
            return logits.argmax(dim=-1)
        probabilities = self._filtered(logits / self.temperature).softmax(dim=-1)
        return torch.multinomial(probabilities, 1, generator=generator).squeeze(-1)

    def _filtered(self, logits: Tensor) -> Tensor:
        """Return the logits with -inf for tokens that top_k and top_p exclude."""
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            threshold = logits.topk(self.top_k, dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < threshold, float("-inf"))
        if self.top_p is not None and self.top_p < 1:
            sorted_logits, order = logits.sort(dim=-1, descending=True)
            probabilities = sorted_logits.softmax(dim=-1)
            # a token is excluded if the tokens before it already reach top_p
            excluded = probabilities.cumsum(dim=-1) - probabilities >= self.top_p
            excluded[..., 0] = False  # the most likely token stays, however small top_p is
            logits = logits.masked_fill(
                torch.empty_like(excluded).scatter_(-1, order, excluded), float("-inf")
            )
        return logits


def generate(
    model: GeneratingModel,
    tokens: Tensor,
    max_new_tokens: int,
    *,
    stream: Callable[[Tensor], None] | None = None,
    **options: Any,
) -> Tensor:
    """Return tokens [B, S] with the generated ones, [B, S + new]; `options` as in `steps`.

    stream  called with the new tokens [B] of every step; to iterate over them instead, call `steps`
    """
    if stream is not None and not callable(stream):
        raise RopeError("stream", "must be a function of the new tokens [B], or None", stream)
    generated = []
    # the stack holds the CUDA graph of the steps, in whose memory the tokens are until
    # `torch.stack` copies them
    with ExitStack() as contexts:
        for new_tokens in steps(model, tokens, max_new_tokens, **options, contexts=contexts):
            generated.append(new_tokens)
            if stream is not None:
                stream(new_tokens.clone())
        return (
            torch.cat((tokens, torch.stack(generated, dim=1).to(tokens.dtype)), dim=1)
            if generated
            else tokens
        )


def steps(
    model: GeneratingModel,
    tokens: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    padding: Tensor | None = None,
    stop: SupportsIndex | Iterable[SupportsIndex] | None = None,
    pad: SupportsIndex | None = None,
    cache: Any = "growing",
    capacity: int | None = None,
    sinks: int = 0,
    seed: int | None = None,
    graph: bool | None = None,
    invariant: bool = False,
    contexts: ExitStack | None = None,
) -> Iterator[Tensor]:
    """Yield the tokens [B] that follow tokens [B, S], step by step, until all rows have stopped, at
    most `max_new_tokens` times.

    temperature ... repetition_penalty  as in Sampling
    padding   boolean [B, S], True for real tokens; rows must be padded on the left
    stop      one or several tokens that end a row; after it the row is filled with the token `pad`
              (default: the first stop token). The model reads `pad` like any token, so it must be
              in the vocabulary
    cache     "growing", "static" (`capacity` tokens, by default prompt and new tokens), "sliding"
              (the first `sinks` real tokens of each row and the latest, `capacity` in all), "none",
              or the caches of an earlier call to continue from
    seed      of the sampling; None: torch's global generator
    graph     whether the steps after the prompt run as one CUDA graph, with a growing or static
              cache; None: if they can
    invariant  True: as if the Decoder were `invariant` (see there), so that a row's tokens do not
               depend on the other rows
    contexts  holds the CUDA graph of the steps until the caller closes it; then a later generation
              may overwrite the yielded tokens. None: every yielded tensor is a copy, and the
              iterator lets go of the graph itself
    """
    sampling = Sampling(temperature, top_k, top_p, repetition_penalty)
    if invariant:
        if not hasattr(model, "invariant"):
            raise RopeError("invariant", "needs a Decoder", type(model).__name__)
        model = copy.copy(model)  # with the same weights
        model.invariant = True  # type: ignore[attr-defined]
    vocabulary = model.head_weight.shape[0]
    _check_prompt(tokens, padding, vocabulary)
    integer("max_new_tokens", max_new_tokens, low=0)
    stops = None if stop is None else _stop_tokens(stop, vocabulary)
    filler = (
        (stops[0] if stops else 0)
        if pad is None
        else integer("pad", pad, low=0, high=vocabulary - 1)
    )
    generator = (
        None
        if seed is None
        else torch.Generator(tokens.device).manual_seed(integer("seed", seed, low=0))
    )
    for name, value in (("capacity", capacity), ("sinks", sinks or None)):
        if value is not None and (not isinstance(cache, str) or cache == "none"):
            raise RopeError(
                name,
                "must be left out with cache='none' or given caches, which do not use it",
                value,
            )
    caches = _caches_of(model, cache, tokens.shape[1] + max_new_tokens, capacity, sinks)
    open_step = _graph_opener(model, tokens, cache, max_new_tokens, capacity, graph)

    @torch.no_grad()
    def run(inputs: Tensor, padding: Tensor | None, contexts: ExitStack) -> Iterator[Tensor]:
        """Yield the next token of each row until all rows have ended; `contexts` closes the decode
        step at the end.
        """
        seen = _tokens_seen(inputs, padding, vocabulary) if repetition_penalty != 1 else None
        done = torch.zeros(inputs.shape[0], dtype=torch.bool, device=inputs.device)
        if not max_new_tokens:
            return
        ends = None if stops is None else torch.tensor(stops, device=inputs.device)
        logits = _last_logits(model, inputs, padding, caches)
        step: Any = None  # the decode step as a CUDA graph, once the prompt has run
        for index in range(max_new_tokens):
            # a decode step also picks the most likely token itself
            picked = step.token if step is not None and sampling.greedy else None
            new = sampling.pick(logits, seen, generator) if picked is None else picked
            if ends is not None:
                new = torch.where(done, filler, new)
                done = done | torch.isin(new, ends)
            yield new
            if index + 1 == max_new_tokens:
                return
            all_done = None if ends is None else _copy_to_host(done.all())
            if seen is not None:
                seen = seen.scatter(1, new.unsqueeze(-1), True)
            if index == 0 and open_step is not None:
                step = contexts.enter_context(open_step())
                step.start(caches)
            if step is not None:
                # the step starts before the host waits for `all_done`, so that the GPU does not
                # wait for the host; without a token it continues with step.token
                logits = step(None if picked is not None and ends is None else new)
            if all_done is not None and all_done():
                return
            if step is not None:
                continue
            # the next input: the new token alone if a cache holds the others, else the whole
            # sequence
            if caches is not None:
                inputs, padding = new.unsqueeze(-1), None
            else:
                inputs = torch.cat((inputs, new.unsqueeze(-1).to(inputs.dtype)), dim=1)
                padding = (
                    None
                    if padding is None
                    else torch.cat((padding, torch.ones_like(padding[:, :1])), dim=1)
                )
            logits = _last_logits(model, inputs, padding, caches)

    def run_and_close() -> Iterator[Tensor]:
        with ExitStack() as own_contexts:
            for new in run(tokens, padding, own_contexts):
                yield new.clone()

    # an inner generator, because the checks above must run at the call and not at the first `next`
    return run_and_close() if contexts is None else run(tokens, padding, contexts)


def _caches_of(
    model: GeneratingModel, cache: Any, tokens: int, capacity: int | None, sinks: int
) -> Any:
    """Return new caches of the kind `cache`, or the given caches if it holds some; None for no
    cache. A static one holds `tokens` tokens if its capacity is not given. Other arguments as in
    `steps`.
    """
    if cache is None or cache == "none":
        return None
    if not isinstance(cache, str):
        if not isinstance(cache, list | tuple):
            rule = f"must be one of {', '.join(CACHES)}, or a list of caches, one for each layer"
            raise RopeError("cache", rule, cache)
        return cache
    if choice("cache", cache, CACHES) == "static" and capacity is None:
        capacity = tokens
    return model.caches(cache, capacity, sinks)


def _last_logits(
    model: GeneratingModel, tokens: Tensor, padding: Tensor | None, caches: Any
) -> Tensor:
    """Return the logits [B, V] after the last of tokens [B, S], which are added to the caches."""
    return model.logits(model.features(tokens, padding=padding, caches=caches)[:, -1])


def _graph_opener(
    model: GeneratingModel,
    tokens: Tensor,
    cache: Any,
    new: int,
    capacity: int | None,
    graph: bool | None,
) -> Callable[[], AbstractContextManager[Any]] | None:
    """Return a function that opens the decode step as a CUDA graph, with room for at least the
    prompt `tokens` [B, S] and `new` tokens, or for the static cache's `capacity`; None: decode
    without a graph.

    cache     the kind of cache, or given caches
    capacity  how many tokens a static cache holds; None: prompt and new tokens
    graph     True: raise an error if the steps cannot be captured; None: capture them if possible;
              False: never. If the static cache is too small, also True gives None
    """
    if graph is False or (graph is None and not tokens.is_cuda):
        return None
    if cache == "static" and capacity is not None and tokens.shape[1] + new > capacity:
        return None  # the cache itself raises the error when it is full
    reason = why_not_graph(model, tokens, cache)
    if reason is None:
        # imported here, because it needs Triton, which why_not_graph has looked for
        from ropewalk.models.decode_step import captured_step

        room = capacity if cache == "static" and capacity is not None else tokens.shape[1] + new
        return partial(captured_step, model, tokens.shape[0], room)
    if graph:
        raise RopeError("graph", f"the steps cannot be captured: {reason}; pass graph=None", graph)
    return None


def why_not_graph(model: GeneratingModel, tokens: Tensor, cache: Any = "growing") -> str | None:
    """Return why the steps after `tokens` [B, S] cannot run as one CUDA graph, or None if they can."""
    if not isinstance(cache, str) or cache not in ("growing", "static"):
        return "a graph needs a growing or static cache of its own"
    if reason := why_no_triton(tokens):
        return reason
    from ropewalk.models import decode_step  # needs Triton

    return decode_step.why_not(model, tokens)


def _copy_to_host(flag: Tensor) -> Callable[[], bool]:
    """Start copying a flag to the CPU; return a function that waits for it and returns it."""
    if not flag.is_cuda:
        return lambda: bool(flag)
    on_host = torch.empty((), dtype=torch.bool, pin_memory=True)
    on_host.copy_(flag, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()

    def wait() -> bool:
        """Wait for the copy and return the flag."""
        copied.synchronize()
        return bool(on_host)

    return wait


def _check_prompt(tokens: Tensor, padding: Tensor | None, vocabulary: int) -> None:
    """Raise an error if the prompt is not [batch, tokens] of the vocabulary, or is padded on the
    right.
    """
    check_tokens(tokens)
    if not tokens.numel():
        raise RopeError(
            "tokens", "must be [batch, tokens] with at least one token", list(tokens.shape)
        )
    least, most = int(tokens.min()), int(tokens.max())
    if least < 0 or most >= vocabulary:
        raise RopeError(
            "tokens",
            f"must be from 0 to {vocabulary - 1}, the last token of the vocabulary",
            [least, most],
        )
    if padding is None:
        return
    rule = f"must be boolean {list(tokens.shape)}, True for real tokens"
    if not isinstance(padding, Tensor):
        raise RopeError("padding", rule, padding)
    if padding.dtype != torch.bool or padding.shape != tokens.shape:
        raise RopeError("padding", rule, [padding.dtype, list(padding.shape)])
    # no padding may follow a real token, and the last token of each row must be real
    if not bool((padding[:, 1:] >= padding[:, :-1]).all() & padding[:, -1].all()):
        raise RopeError(
            "padding",
            "must be on the left only, because new tokens follow the last token of each row",
            "padding after a token",
        )


def _stop_tokens(stop: Any, vocabulary: int) -> list[int]:
    """Return `stop` as a list of tokens; it may be an integer of any library, or any collection of
    them. Raise an error if it is empty or has a token that is not in the vocabulary.
    """
    # a tensor or an array, also one with a single number and no axes
    stop = stop.tolist() if hasattr(stop, "tolist") else stop
    stops = list(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else [stop]
    if not stops:
        raise RopeError("stop", "must contain at least one token, or be None", stops)
    return [integer("stop", token, low=0, high=vocabulary - 1) for token in stops]


def _tokens_seen(tokens: Tensor, padding: Tensor | None, vocabulary: int) -> Tensor:
    """Return [B, V], True for the tokens that occur in each row; padding does not count."""
    real = torch.ones_like(tokens, dtype=torch.int64) if padding is None else padding.long()
    counts = torch.zeros(tokens.shape[0], vocabulary, dtype=torch.int64, device=tokens.device)
    return counts.scatter_add(1, tokens.long(), real) > 0
