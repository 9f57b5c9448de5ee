"""What engines make of a config that was extended: which compute another rope, and which refuse to
start for the longer context.

The served length is the longest sequence that a config allows, its max_position_embeddings.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ropewalk.config import file as config_file
from ropewalk.config.hf import read_specs
from ropewalk.engines.audit import ENGINES, EngineFinding, audit, in_one_line
from ropewalk.engines.case import ServedLayer
from ropewalk.engines.operations import exceeds_served_length

#: {engine that refuses to start for more tokens than the config serves: the environment variable
#: that allows it}
LENGTH_LIMITED = {
    "vllm": "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    "sglang": "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",
}


def disagreements(
    config: Any, *, layer_types: Collection[str] | None = None, max_model_len: int | None = None
) -> tuple[str, ...]:
    """Return one line for each engine that does not compute the rope that transformers computes
    from a config: its rope differs, or it raises an error. The line is about the first layer type
    and length where this is so.

    layer_types    the layer types to look at; None: all
    max_model_len  the longest sequence that engines are started for
    """
    first: dict[str, EngineFinding] = {}
    for finding in audit(config, max_model_len=max_model_len).disagreements:
        if layer_types is None or finding.layer_type in layer_types:
            first.setdefault(finding.engine, finding)
    return tuple(in_one_line(finding) for finding in first.values())


def length_notes(config: Any, max_model_len: int) -> tuple[str, ...]:
    """Return what to know before vLLM and SGLang are started for `max_model_len` tokens: a line
    that names those that start, since they multiply the served length of the config by the factor
    of its scaling, and for each that refuses a line with the setting that allows it; () if the
    config serves that many, says no served length, or has no layer that rotates.
    """
    text = config_file.text_part(config_file.load(config))
    specs = {name: spec for name, spec in read_specs(text)[0].items() if spec is not None}
    if not specs:
        return ()
    scaled = [name for name, spec in specs.items() if spec.scaling.name != "default"]
    layer_type = (scaled or list(specs))[0]  # the first with a scaling, or else the first
    case = ServedLayer(
        specs[layer_type],
        text,
        layer_type,
        max_model_len=max_model_len,
        length=max_model_len,
        limit_is_given=True,
    )
    if case.max_position is None or case.max_position >= max_model_len:
        return ()
    limited = [
        name for name in LENGTH_LIMITED if exceeds_served_length(ENGINES[name], case, ENGINES)
    ]
    others = [ENGINES[name].title for name in LENGTH_LIMITED if name not in limited]
    verb = "multiply" if len(others) > 1 else "multiplies"
    multiplied = [f"{' and '.join(others)} {verb} max_position_embeddings by factor"]
    refusals = (
        f"{ENGINES[name].title} refuses to start for {max_model_len} tokens with this config: set "
        f"{LENGTH_LIMITED[name]}=1 to allow it"
        for name in limited
    )
    return (*(multiplied if others else []), *refusals)
