"""What a model on this machine makes of one text: its attention, its losses and the probability of a pass key in the text.

A model is loaded once and kept; so are the latest readings. One reading has at most MAX_TOKENS tokens.
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
from ropewalk.explorer.controls import MAX_TOKENS, TEXTS, offered_methods
from ropewalk.interop.fit.methods import extended, methods
from ropewalk.interop.fit.passkeys import Encode, PassKey, make_passkey, plant_passkey
from ropewalk.interop.fit.reader import trained_length
from ropewalk.lab.downloads import find_fetched
from ropewalk.lab.studies.real import TINY, open_real, real_text

#: bytes of weights on disk; a larger model would not fit into the memory of a laptop in float32
MAX_BYTES = 4 << 30
#: rows and columns of an attention map
CELLS = 48
FILLER, PYTHON, OWN = TEXTS

#: called with the number of layers that are done and the number of all
Report = Callable[[int, int], None]
_MODELS = Cache("model of the explorer", entries=1)
_READINGS = Cache("readings of the explorer", entries=16)
# a method changes the model while it reads, so one visitor waits for the other
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Model:
    """A loaded model, its function from text to tokens, its trained length, and the number of its layers and heads.

    source  its path or name, and the times of its files
    """

    source: tuple[str, tuple[int, ...]]
    model: Any
    encode: Encode
    trained: int
    layers: int
    heads: int


@dataclass(frozen=True)
class Request:
    """What is to be read, and how.

    text    one of TEXTS; `typed` is the text if it is OWN
    tokens  the length of the text with its pass key, which is stated after the share `depth` of the text
    gap     positions that are skipped between the statement and the question: the same distance as in a longer text
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
    """positions [S]; losses [S - 1] of the tokens after the first; maps [layers, heads, cells, cells], see `pooled`.

    answer  the number of tokens of the pass key at the end
    """

    positions: np.ndarray
    losses: np.ndarray
    maps: np.ndarray
    answer: int

    @property
    def probability(self) -> float:
        """The probability of the whole pass key, each token after the right ones before it."""
        return float(np.exp(-self.losses[-self.answer :].sum(dtype=np.float64)))


def load(name: str) -> Model:
    """Return a model by its path or its name in `ropewalk lab fetch`; it stays loaded until another one is."""
    with _LOCK:
        source = (name, _stamp(name))
        known = _MODELS.newest(source)
        if known is None:
            _MODELS.clear()  # two models at a time might not fit into memory
            known = _MODELS.keep(source, _open(source))
        return known


def _stamp(name: str) -> tuple[int, ...]:
    """Return the times at which the files of a model were written; raise an error if they are too large."""
    if name == TINY:
        return ()
    path = find_fetched(name)
    if not path.exists():
        raise RopeError("model", "must be a .gguf file or a Hugging Face folder on this machine", name)
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.suffix in (".gguf", ".safetensors")]
    size = sum(each.stat().st_size for each in files)
    if size > MAX_BYTES:
        raise RopeError("model", f"must have at most {MAX_BYTES:,} bytes of weights on this page", f"{size:,} bytes")
    return tuple(each.stat().st_mtime_ns for each in files)


def _open(source: tuple[str, tuple[int, ...]]) -> Model:
    """Return the opened model, with the attention implementation that returns its weights."""
    model, encode = open_real(source[0], torch.device("cpu"))
    layers = _layers(model)
    # the other implementations do not return their weights
    model.set_attn_implementation("eager")  # type: ignore[operator]
    # layers may have different numbers of heads; the view offers those that all have
    found: list[int] = []
    with _watched(layers, lambda _, weights: found.append(weights.shape[1])), torch.no_grad():
        model(torch.zeros(1, 2, dtype=torch.long))
    return Model(source, model, encode, trained_length(model), len(layers), min(found))


def _layers(model: nn.Module) -> list[Any]:
    """Return the decoder layers of a model; raise an error if they have no self_attn."""
    find = getattr(model, "get_decoder", None)
    layers = list(getattr(find(), "layers", [])) if callable(find) else []
    if not layers or not all(hasattr(layer, "self_attn") for layer in layers):
        rule = "must have layers with self_attn, as Llama, Mistral, Qwen and Gemma have"
        raise RopeError("model", rule, type(model).__name__)
    return layers


@contextmanager
def _watched(layers: list[Any], see: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Context manager: `see` gets the number and the attention weights [1, H, S, S] of each layer as soon as it is done."""

    def hook(place: int, module: nn.Module, args: Any, output: Any) -> None:
        """Pass the attention weights of a layer on to `see`."""
        weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        if weights is None:
            raise RopeError("model", "must return the weights of its attention", type(module).__name__)
        see(place, weights)

    with ExitStack() as stack:
        for place, layer in enumerate(layers):
            stack.enter_context(layer.self_attn.register_forward_hook(partial(hook, place)))
        yield


def read(model: Model, request: Request, report: Report = lambda done, total: None) -> Reading:
    """Return what the model makes of a request; the latest answers are remembered."""
    choice("method", request.method, offered_methods())
    with _LOCK:
        known = _READINGS.newest((model.source, request))
        return known or _READINGS.keep((model.source, request), _read(model, request, report))


def text_of(model: Model, request: Request) -> PassKey:
    """Return the tokens of a request: the text with the pass key in it, and the question at its end."""
    tokens = integer("tokens", request.tokens, low=1, high=MAX_TOKENS)
    if request.text == FILLER:
        return make_passkey(model.encode, tokens, request.depth)
    text = request.typed if request.text == OWN else real_text(PYTHON, count=8 * MAX_TOKENS)
    return plant_passkey(model.encode, text, tokens, request.depth)


def positions_of(key: PassKey, gap: int) -> Tensor:
    """Return the positions of a pass key's tokens: `gap` is skipped in the middle between statement and question."""
    positions = torch.arange(len(key.tokens))
    positions[(key.stated + key.asked) // 2 :] += integer("gap", gap, low=0, high=1 << 24)
    return positions


@torch.no_grad()
def _read(model: Model, request: Request, report: Report) -> Reading:
    """Return what the model reads of the text: losses, attention maps and the probability of the answer."""
    key = text_of(model, request)
    tokens, positions = key.tokens[None], positions_of(key, request.gap)
    maps: dict[int, np.ndarray] = {}

    def see(place: int, weights: Tensor) -> None:
        maps[place] = pooled(weights[0, : model.heads], CELLS)
        report(len(maps), model.layers)

    method = methods()[request.method]
    with extended(model.model, method, request.factor, model.trained), _watched(_layers(model.model), see):
        # with a mask, transformers does not take a gap of positions for the border of two texts
        output = model.model(tokens, attention_mask=torch.ones_like(tokens), position_ids=positions[None], use_cache=False)
    losses = F.cross_entropy(output.logits[0, :-1].float(), tokens[0, 1:], reduction="none")
    stacked = np.stack([maps[place] for place in range(model.layers)])
    return Reading(positions.numpy(), losses.numpy(), stacked, key.answer)


def pooled(weights: Tensor, cells: int) -> np.ndarray:
    """Return attention [H, S, S] as [H, cells, cells]: the mean over a block of queries, the sum over a block of keys.

    So every row has the sum 1, as before.
    """
    # the block of each token, and sums and means over blocks as products with one-hot matrices
    block = torch.arange(weights.shape[-1]) * min(cells, weights.shape[-1]) // weights.shape[-1]
    keys = F.one_hot(block).float()
    queries = (keys / keys.sum(0)).T
    return (queries @ weights.float() @ keys).numpy()
