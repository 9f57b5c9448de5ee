"""A checkpoint's config as facts: each layer type's spec with the length it was trained on and the length it serves."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.analysis.advice import Facts
from ropewalk.analysis.exactness import WAYS
from ropewalk.errors import RopeError, integer
from ropewalk.interop.config import file as config_file
from ropewalk.interop.config.hf import Explanation, explain, from_hf
from ropewalk.interop.config.values import find
from ropewalk.spec import RopeSpec

#: where configs keep the longest text they serve
LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length", "n_ctx")
#: layer types whose queries see no further than a window, and where configs keep its size
WINDOW_KEYS = {"sliding_attention": ("sliding_window", "local_attention"), "chunked_attention": ("attention_chunk_size",)}
GIVEN = "given"


@dataclass(frozen=True)
class Checkpoint:
    """What a config says, where each value came from, and the facts of every layer type; None stands still."""

    explanation: Explanation
    layers: dict[str, Facts | None]
    #: layer type -> where its trained and its served length came from
    sources: dict[str, tuple[str, str]]


def read_checkpoint(config: Any, trained: int | None = None, served: int | None = None) -> Checkpoint:
    """The facts of a config: a dict, a transformers config, or the path of a config.json or of its folder.

    trained  tokens seen in training; by default the scaling's original length, else the config's maximum
    served   tokens to serve; by default the longest that the config's maximum or its scaling reaches
    """
    loaded = config_file.load(config)
    text = config_file.text_part(loaded)
    most = _size(text, LENGTH_KEYS)
    with warnings.catch_warnings():
        # told by the explanation, which the caller shows
        warnings.simplefilter("ignore")
        specs = from_hf(loaded, per_layer=True)
    layers: dict[str, Facts | None] = {}
    sources: dict[str, tuple[str, str]] = {}
    for name, spec in specs.items():  # type: ignore[union-attr]  # a dict, because per_layer
        layers[name] = None
        if spec is not None:
            (learned, learned_from), (serves, serves_from) = _lengths(spec, most, trained, served)
            window = _size(text, WINDOW_KEYS.get(name, ()))
            layers[name] = Facts(spec, learned, serves, window and window[0], tuple(WAYS))
            sources[name] = learned_from, serves_from
    return Checkpoint(explain(loaded), layers, sources)


def _size(config: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[int, str] | None:
    """The first of `keys` that is given, checked, and its name."""
    found = find(config, *keys)
    return None if found is None else (integer(found.key, found.value, low=1, high=1 << 40), found.key)


def _lengths(
    spec: RopeSpec, most: tuple[int, str] | None, trained: int | None, served: int | None
) -> tuple[tuple[int, str], tuple[int, str]]:
    """The trained and the served length, each with where it came from."""
    original, factor = getattr(spec.scaling, "original_length", None), getattr(spec.scaling, "factor", 1.0)
    known = [(trained, GIVEN), (original, "the scaling's original length"), most or (None, "")]
    learned = next(((length, source) for length, source in known if length is not None), None)
    if learned is None:
        raise RopeError("max_position_embeddings", "must be in the config; or give the length that was trained on", None)
    if served is not None:
        return learned, (served, GIVEN)
    reached = [] if original is None else [(int(original * factor), "original length times factor")]
    return learned, max([*reached, *([most] if most else []), *([] if reached or most else [learned])])
