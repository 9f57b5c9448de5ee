"""Read a checkpoint's config: each layer type's spec, its trained length and its served length.

The trained length is that of the texts seen in training, the served length that of the longest text
to serve, both in tokens. `Sourced` is a length with a text that says where it came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.analysis.exactness import COS_SIN_METHODS
from ropewalk.analysis.facts import Facts
from ropewalk.config import file as config_file
from ropewalk.config.hf import Explanation, read_specs
from ropewalk.config.values import find, served_length
from ropewalk.errors import RopeError, integer
from ropewalk.frequencies.scaling import SERVED_LENGTH_KEY
from ropewalk.gguf import GgufFile, GgufSource, is_gguf, read_ropes
from ropewalk.gguf.write import sizes_of
from ropewalk.spec import RopeSpec

#: layer type -> config keys of its attention window
WINDOW_KEYS = {
    "sliding_attention": ("sliding_window", "local_attention"),
    "chunked_attention": ("attention_chunk_size",),
}
#: the source of a length that the caller gave
GIVEN = "given"
#: tokens; the longest length that is accepted
MAX_LENGTH = 1 << 40

#: a length and where it came from
Sourced = tuple[int, str]


@dataclass(frozen=True)
class Checkpoint:
    """The values of a config, where each came from, and the facts of every layer type."""

    explanation: Explanation
    #: layer type -> its facts; None if it is not rotated
    layers: dict[str, Facts | None]
    #: layer type that is rotated -> where its trained and its served length came from
    sources: dict[str, tuple[str, str]]


def read_checkpoint(
    config: Any, trained: int | None = None, served: int | None = None
) -> Checkpoint:
    """Return the facts of a config: a dict, a transformers config, or the path of a config.json,
    its folder or a GGUF file.

    trained  tokens seen in training; None: the scaling's original length, else the config's longest
             sequence
    served   tokens to serve; None: the longer of the config's longest sequence and the scaling's
             original length times its factor, or `trained` if there is neither
    """
    specs, explanation, text_config = _read(config)
    length = served_length(text_config)
    # the config's longest sequence, and the config key that gives it
    longest = (
        None
        if length is None
        else (integer(length.key, length.value, low=1, high=MAX_LENGTH), length.key)
    )
    layers: dict[str, Facts | None] = {}
    sources: dict[str, tuple[str, str]] = {}
    for layer_type, spec in specs.items():
        layers[layer_type] = None
        if spec is not None:
            (trained_tokens, trained_source), (served_tokens, served_source) = _lengths(
                spec, longest, trained, served
            )
            window = _window(text_config, layer_type)
            layers[layer_type] = Facts(
                spec,
                trained_tokens,
                served_tokens,
                window,
                methods=tuple(COS_SIN_METHODS),
                trained_given=trained is not None,
            )
            sources[layer_type] = trained_source, served_source
    return Checkpoint(explanation, layers, sources)


def _read(config: Any) -> tuple[dict[str, RopeSpec | None], Explanation, Mapping[str, Any]]:
    """Return the spec of each layer type, where its values came from, and the part of the config
    that has the lengths.
    """
    if is_gguf(config) or isinstance(config, GgufSource):
        file = config if isinstance(config, GgufSource) else GgufFile(config)
        specs, explanation = read_ropes(file)
        return specs, explanation, sizes_of(file)  # under the names of a config's keys
    loaded = config_file.load(config)
    specs, explanation = read_specs(loaded)
    return specs, explanation, config_file.text_part(loaded)


def _window(config: Mapping[str, Any], layer_type: str) -> int | None:
    """Return the attention window of a layer type in tokens; None if its queries attend to all
    earlier keys, or the config does not give the window.
    """
    window = find(config, *WINDOW_KEYS.get(layer_type, ()))
    return None if window is None else integer(window.key, window.value, low=1, high=MAX_LENGTH)


def _lengths(
    spec: RopeSpec, longest: Sourced | None, trained: int | None, served: int | None
) -> tuple[Sourced, Sourced]:
    """Return the trained and the served length, each as (tokens, where the number came from); raise
    an error if neither the config nor the caller gives the trained one.

    longest          the longest sequence that the config names, in the same form
    trained, served  the caller's values in tokens, which take precedence
    """
    # some scalings change the frequencies of another one, which has the original length and factor
    scaling = spec.scaling.innermost
    original, factor = getattr(scaling, "original_length", None), getattr(scaling, "factor", 1.0)
    if trained is not None:
        trained_length = (trained, GIVEN)
    elif original is not None:
        trained_length = (original, "the scaling's original length")
    elif longest is not None:
        trained_length = longest
    else:
        raise RopeError(
            SERVED_LENGTH_KEY,
            "must be in the config; or give the trained length (CLI: --trained)",
            None,
        )
    if served is not None:
        return trained_length, (served, GIVEN)
    candidates = [] if longest is None else [longest]
    if original is not None:
        candidates.append((int(original * factor), "original length times factor"))
    # the longer one, with its source
    return trained_length, max(candidates, default=trained_length)
