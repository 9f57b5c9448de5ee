"""A model on this machine reads a text: its attention, its losses, the probability of a pass key in
the text, and what it writes next.

A model is loaded once and kept; so are the latest readings. One reading has at most MAX_TOKENS
tokens.

Words of this module:
  reading   how a model read one text, once
  pass key  five digits that a text states once (the statement) and asks for at its end (the
            question, which the digits follow)
  map       the attention of one head, with blocks of tokens as rows (queries) and columns (keys)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.caches import Cache
from ropewalk.errors import RopeError, choice, integer
from ropewalk_lab.downloads import find_fetched
from ropewalk_lab.fit.methods import REMAPPINGS, extended, methods
from ropewalk_lab.fit.open_model import Codec, trained_length
from ropewalk_lab.fit.passkeys import PassKey, make_passkey, plant_passkey
from ropewalk_lab.studies.real import TINY, open_real, real_text

#: bytes of weights on disk; a larger model would not fit into the memory of a laptop in float32
MAX_BYTES = 4 << 30
#: rows and columns of an attention map
CELLS = 48
#: tokens of the longest text, characters of one that is typed, and tokens that a model writes
MAX_TOKENS = 1024
MAX_TEXT = 1 << 16
WRITTEN = 24
#: texts to read: filler sentences, Python's documentation, or one that is typed
TEXTS = ("filler", "python", "own")
FILLER, PYTHON, OWN = TEXTS

#: called with how many layers and written tokens are done, and how many there are in all
Report = Callable[[int, int], None]
_MODELS = Cache("model of the page", entries=1)
_READINGS = Cache("readings of the page", entries=16)
# a method changes the model while it reads, so one visitor waits for the other
_LOCK = threading.Lock()


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model, its tokenizer in both directions, its trained length, and the numbers of its
    layers and heads.

    source  its path or name, and the times of its files
    heads   the number of heads of the layer with the fewest
    """

    source: tuple[str, tuple[int, ...]]
    model: Any
    encode: Codec
    trained: int
    layers: int
    heads: int


@dataclass(frozen=True)
class ReadingRequest:
    """What is to be read, and with which method of `fit`, for `factor` times the trained length.

    text    one of TEXTS; `typed` is the text if it is OWN
    tokens  the most tokens of the text with its pass key, which is stated after the share `depth`
            of the text
    gap     positions that are skipped between the statement and the question, so that they are as
            far apart as in a longer text
    """

    method: str = "none"
    factor: float = 1.0
    text: str = FILLER
    typed: str = ""
    tokens: int = 256
    depth: float = 0.25
    gap: int = 0


@dataclass(frozen=True)
class Reading:
    """How a model read a text: positions [S]; losses [S - 1] of the tokens after the first;
    attention maps [layers, heads, cells, cells], see `pooled`.

    answer   the number of tokens of the pass key at the end
    stated   where the statement ends, as an index of a column of the maps
    asked    where the question begins, as an index of a row of the maps
    written  what the model writes after the question
    """

    positions: np.ndarray
    losses: np.ndarray
    maps: np.ndarray
    answer: int
    stated: int
    asked: int
    written: str

    @property
    def probability(self) -> float:
        """The probability of the whole pass key, each token after the right ones before it."""
        return float(np.exp(-self.losses[-self.answer :].sum(dtype=np.float64)))


def offered_methods() -> tuple[str, ...]:
    """Return the methods of `fit` without those that compute attention otherwise (the remappings),
    and without longrope, whose factors would have to be searched.
    """
    return tuple(name for name in methods() if name not in REMAPPINGS)


def load(name: str) -> LoadedModel:
    """Return a model by its path or its name in `ropewalk lab fetch`; it stays in memory until
    another one is loaded.
    """
    with _LOCK:
        source = (name, _file_times(name))
        model = _MODELS.newest(source)
        if model is None:
            _MODELS.clear()  # two models at a time might not fit into memory
            model = _MODELS.keep(source, _open(source))
        return model


def _file_times(name: str) -> tuple[int, ...]:
    """Return when each weight file of a model was written, in ns; raise an error if there is no
    such path, or if its weight files have more than MAX_BYTES.
    """
    if name == TINY:  # a random model, which has no files
        return ()
    path = find_fetched(name)
    if not path.exists():
        raise RopeError(
            "model", "must be a .gguf file or a Hugging Face folder on this machine", name
        )
    files = (
        [path]
        if path.is_file()
        else [file for file in path.rglob("*") if file.suffix in (".gguf", ".safetensors")]
    )
    size = sum(file.stat().st_size for file in files)
    if size > MAX_BYTES:
        raise RopeError(
            "model",
            f"must have at most {MAX_BYTES:,} bytes of weights on this page",
            f"{size:,} bytes",
        )
    return tuple(file.stat().st_mtime_ns for file in files)


def _open(source: tuple[str, tuple[int, ...]]) -> LoadedModel:
    """Load the model of `source` = (its name, the times of its files) so that its attention also
    returns the weights.
    """
    model, encode = open_real(source[0], torch.device("cpu"))
    assert isinstance(encode, Codec)
    layers = _layers(model)
    # the other implementations do not return their weights
    model.set_attn_implementation("eager")  # type: ignore[operator]
    # layers may have different numbers of heads; the view offers those that all have. A pass over
    # any two tokens tells them
    head_counts: list[int] = []
    with (
        _attention_hooks(layers, lambda _, weights: head_counts.append(weights.shape[1])),
        torch.no_grad(),
    ):
        model(torch.zeros(1, 2, dtype=torch.long))
    return LoadedModel(source, model, encode, trained_length(model), len(layers), min(head_counts))


def _layers(model: nn.Module) -> list[Any]:
    """Return the decoder layers of a model; raise an error if they have no self_attn."""
    get_decoder = getattr(model, "get_decoder", None)
    layers = list(getattr(get_decoder(), "layers", [])) if callable(get_decoder) else []
    if not layers or not all(hasattr(layer, "self_attn") for layer in layers):
        rule = "must have layers with self_attn, as Llama, Mistral, Qwen and Gemma have"
        raise RopeError("model", rule, type(model).__name__)
    return layers


@contextmanager
def _attention_hooks(
    layers: list[Any], on_weights: Callable[[int, Tensor], None]
) -> Iterator[None]:
    """Context manager: call on_weights(index of the layer, its attention weights [1, H, S, S])
    after each layer's attention.
    """

    def hook(index: int, module: nn.Module, args: Any, output: Any) -> None:
        """Pass the attention weights of layer number `index` on to `on_weights`."""
        weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        if weights is None:
            raise RopeError(
                "model", "must return the weights of its attention", type(module).__name__
            )
        on_weights(index, weights)

    with ExitStack() as stack:
        for index, layer in enumerate(layers):
            stack.enter_context(layer.self_attn.register_forward_hook(partial(hook, index)))
        yield


def read(
    model: LoadedModel, request: ReadingRequest, report: Report = lambda done, total: None
) -> Reading:
    """Return the reading of a request by a model; the latest readings are cached. A new reading
    calls `report` after every layer and every token that the model writes.
    """
    choice("method", request.method, offered_methods())
    with _LOCK:
        cached = _READINGS.newest((model.source, request))
        if cached is not None:
            return cached
        return _READINGS.keep((model.source, request), _read(model, request, report))


def text_of(model: LoadedModel, request: ReadingRequest) -> PassKey:
    """Return the text of a request as tokens, with the pass key in it and the question at its end."""
    tokens = integer("tokens", request.tokens, low=1, high=MAX_TOKENS)
    if request.text == FILLER:
        return make_passkey(model.encode, tokens, request.depth)
    choice("text", request.text, TEXTS)
    # a token has fewer than 8 characters on average
    text = request.typed if request.text == OWN else real_text(PYTHON, count=8 * MAX_TOKENS)
    return plant_passkey(model.encode, text, tokens, request.depth)


def positions_of(text: PassKey, gap: int) -> Tensor:
    """Return the positions [S] of the tokens of a text: 0, 1, ..., with `gap` skipped in the middle
    between statement and question.
    """
    positions = torch.arange(len(text.tokens))
    # float32, in which models compute angles, has every integer up to 2^24
    positions[(text.stated + text.asked) // 2 :] += integer("gap", gap, low=0, high=1 << 24)
    return positions


@torch.no_grad()
def _read(model: LoadedModel, request: ReadingRequest, report: Report) -> Reading:
    """Return the reading of a request by the model, extended by the request's method; call `report`
    with (done, all), in layers and written tokens, after every layer and every written token.
    """
    text = text_of(model, request)
    tokens, positions = text.tokens[None], positions_of(text, request.gap)
    maps: dict[int, np.ndarray] = {}  # by layer

    def keep_map(layer: int, weights: Tensor) -> None:
        """Store the pooled attention weights of a layer, and report it."""
        # layers may have different numbers of heads; keep the first `model.heads`, the smallest of
        # these numbers
        maps[layer] = pooled(weights[0, : model.heads], CELLS)
        report(len(maps), model.layers + WRITTEN)

    method = methods()[request.method]
    with extended(model.model, method, request.factor, model.trained):
        with _attention_hooks(_layers(model.model), keep_map):
            # without a mask, transformers would take a gap in the positions for the border of two
            # packed texts
            output = model.model(
                tokens,
                attention_mask=torch.ones_like(tokens),
                position_ids=positions[None],
                use_cache=False,
            )
        done = lambda count: report(model.layers + count, model.layers + WRITTEN)  # noqa: E731 - one line
        written = _write(model, text.tokens[: -text.answer], positions[: -text.answer], done)
    losses = F.cross_entropy(output.logits[0, :-1].float(), tokens[0, 1:], reduction="none")
    stacked = np.stack([maps[layer] for layer in range(model.layers)])
    # the row or column of the maps that a token is pooled into; here the last token of the
    # statement and the first of the question
    block = lambda place: place * stacked.shape[-1] // len(text.tokens)  # noqa: E731 - one line
    places = block(max(text.stated - 1, 0)), block(text.asked)
    return Reading(positions.numpy(), losses.numpy(), stacked, text.answer, *places, written)


def _write(
    model: LoadedModel, tokens: Tensor, positions: Tensor, done: Callable[[int], None]
) -> str:
    """Return the WRITTEN tokens that the model adds greedily to tokens [S] at positions [S], as
    text; call `done` after each with how many there are.
    """
    last, written, cache = int(positions[-1]), [], None
    step, places = tokens[None], positions[None]
    for count in range(WRITTEN):
        output = model.model(
            step,
            attention_mask=torch.ones(1, len(tokens) + count, dtype=torch.long),
            position_ids=places,
            past_key_values=cache,
            use_cache=True,
        )
        cache = output.past_key_values  # so that each step reads only the token written last
        written.append(int(output.logits[0, -1].argmax()))
        step, places = torch.tensor([[written[-1]]]), torch.tensor([[last + 1 + count]])
        done(count + 1)
    return model.encode.decode(written)


def telling_head(*readings: Reading) -> tuple[int, int]:
    """Return (layer, head) whose queries of the question attend most to the statement of the pass
    key, in any of the readings: the largest sum of the weights on the last two blocks of the
    statement, as the mean over the queries.
    """
    best = None
    for reading in readings:
        keys = slice(max(reading.stated - 1, 0), reading.stated + 1)
        seen = reading.maps[:, :, reading.asked :, keys].sum(-1).mean(-1)
        place = np.unravel_index(int(seen.argmax()), seen.shape)
        if best is None or seen[place] > best[0]:
            best = seen[place], (int(place[0]), int(place[1]))
    assert best is not None
    return best[1]


def pooled(weights: Tensor, cells: int) -> np.ndarray:
    """Return attention [H, S queries, S keys] as [H, cells, cells]: the mean over a block of
    queries, the sum over a block of keys.

    So the sum of every row stays 1. With fewer than `cells` tokens, each token is a block.
    """
    tokens = weights.shape[-1]
    block = torch.arange(tokens) * min(cells, tokens) // tokens  # the block of each token [S]
    sum_over_blocks = F.one_hot(block).float()  # [S, cells]; a product with it adds up each block
    mean_over_blocks = (sum_over_blocks / sum_over_blocks.sum(0)).T
    return (mean_over_blocks @ weights.float() @ sum_over_blocks).numpy()
