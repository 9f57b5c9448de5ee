"""The corrected config in the forms that engines take: flags to paste, Python, and a patch.

`specs` are {layer type: its spec, which defines its rope, or None if it does not rotate}; None: the
config cannot be read.
"""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Mapping
from typing import Any

from ropewalk.config.keys import FRACTION_KEYS, THETA_KEYS
from ropewalk.diagnosis.case import Specs
from ropewalk.frequencies import Default, Linear, Yarn
from ropewalk.frequencies.formulas import mscale

#: the config keys of a rope object, the one of transformers 5 first
ROPE_OBJECTS = ("rope_parameters", "rope_scaling")
#: engines that are given keys of a config
TAKE_KEYS = ("vllm", "sglang", "mlx-lm")
TRANSFORMERS = """\
import json
from transformers import AutoConfig, AutoModelForCausalLM
config = json.load(open("FOLDER/config.json"))
config.update(json.loads({text!r}))
model = AutoModelForCausalLM.from_pretrained("FOLDER", config=AutoConfig.for_model(**config))"""
MLX_LM = """\
import json
from mlx_lm import load
model, tokenizer = load("FOLDER", model_config=json.loads({text!r}))"""


def same(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON: 8192 and 8192.0 are not, other orders of keys
    are.
    """
    return _json(one) == _json(other)


def _json(value: Any) -> str:
    """Return a value as JSON with sorted keys; what JSON has no form for, as text."""
    return json.dumps(value, sort_keys=True, default=str)


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return {key: new value} of the keys in which two configs differ; None for removed keys."""
    changed = {k: value for k, value in new.items() if k not in old or not same(old[k], value)}
    return changed | {key: None for key in old if key not in new}


def flags(
    old: Mapping[str, Any], new: Mapping[str, Any], specs: Specs | None, length: int | None
) -> dict[str, str]:
    """Return {engine: what to paste} that turns the config `old` into `new`; {} if they are equal.

    `length` is the longest sequence; `specs` are those of `new`.
    """
    changed = changes(old, new)
    if not changed:
        return {}
    # `whole` is for vLLM, which sets the keys on a config that transformers has read already: a new
    # rope object replaces the one with theta, so it must have theta inside
    text, whole = json.dumps(changed), json.dumps(_with_whole_rope(changed, new, specs))
    long = "" if length is None else f" --max-model-len {length}"
    context = "" if length is None else f" --context-length {length}"
    return {
        "vllm": f"--hf-overrides {shlex.quote(whole)}{long}",
        "sglang": f"--json-model-override-args {shlex.quote(text)}{context}",
        "llama.cpp": llama_cpp(specs, length),
        "transformers": TRANSFORMERS.format(text=text),
        "mlx-lm": MLX_LM.format(text=text),
    }


def _with_whole_rope(
    changed: Mapping[str, Any], new: Mapping[str, Any], specs: Specs | None
) -> dict[str, Any]:
    """Return the changed keys, and if one of them is about the rope, the whole rope object of `new`
    with theta and the rotated fraction inside, unless it has a rope for each layer type. `specs`
    are those of `new`.

    vLLM sets each key on the config that transformers has read already: a new rope object replaces
    the one with theta, and theta beside it is not read any more.
    """
    result = dict(changed)
    for key, value in changed.items():
        if key.endswith("_config") and isinstance(value, Mapping):  # the text part of a model
            result[key] = _with_whole_rope(value, value, specs)
    rotated = [spec for spec in (specs or {}).values() if spec is not None]
    if not (changed.keys() & {*ROPE_OBJECTS, *THETA_KEYS, *FRACTION_KEYS}) or not rotated:
        return result
    name = next((key for key in ROPE_OBJECTS if new.get(key)), "rope_scaling")
    rope = dict(new.get(name) or {})
    if any(isinstance(value, Mapping) for value in rope.values()):  # one for each layer type
        return result
    # an object that names its scaling only by the older key `type` keeps that
    if "type" not in rope:
        rope.setdefault("rope_type", "default")
    if len({spec.theta for spec in rotated}) == 1:
        rope.setdefault(THETA_KEYS[0], rotated[0].theta)
    # a fraction can say one width for all ropes, of a rotated part at the start of the head; a
    # rotary_dim of None is the whole head, which needs none
    dims = {(spec.rotary_dim, spec.head_dim, spec.rotary_start) for spec in rotated}
    rotary_dim, head_dim, start = dims.pop()
    if not dims and rotary_dim is not None and start == 0:
        rope.setdefault(FRACTION_KEYS[0], rotary_dim / head_dim)
    return result | {name: rope}


def llama_cpp(specs: Specs | None, length: int | None) -> str:
    """Return the flags of llama.cpp for a rope that flags can say; otherwise what to do instead."""
    rotated = [spec for spec in (specs or {}).values() if spec is not None]
    instead = "convert the corrected folder again: no flag of llama.cpp says this rope"
    # flags say one rope for all layers
    if not rotated or any(spec != rotated[0] for spec in rotated):
        return instead
    spec, scaling = rotated[0], rotated[0].scaling
    parts = [f"--rope-freq-base {spec.theta:.17g}"]
    # llama.cpp always rounds the ends of YaRN's ramp to whole pairs, as `truncate` does
    if isinstance(scaling, Yarn) and scaling.truncate:
        parts = [
            "--rope-scaling yarn",
            f"--rope-scale {scaling.factor:g}",
            f"--yarn-orig-ctx {scaling.original_length}",
            *parts,
        ]
        if (scaling.beta_fast, scaling.beta_slow) != (32.0, 1.0):  # the defaults
            parts += [
                f"--yarn-beta-fast {scaling.beta_fast:g}",
                f"--yarn-beta-slow {scaling.beta_slow:g}",
            ]
        usual = float(mscale(scaling.factor))  # llama.cpp multiplies the flag by it
        if abs(spec.magnitude() / usual - 1) > 1e-6:
            parts.append(f"--yarn-attn-factor {spec.magnitude() / usual:.9g}")
    elif isinstance(scaling, Linear):
        parts = ["--rope-scaling linear", f"--rope-scale {scaling.factor:g}", *parts]
    elif isinstance(scaling, Default):
        parts = ["--rope-scaling none", *parts]
    else:
        return instead
    return " ".join([*parts, *([] if length is None else [f"--ctx-size {length}"])])


def patch(old: Mapping[str, Any], new: Mapping[str, Any], text: str | None, name: str) -> str:
    """Return the unified diff from one config to another; "" if they are equal.

    text  the text of the file of the config `old`; None: that config as JSON with an indent of 2
    name  the file name in the head of the diff
    """
    if same(old, new):
        return ""
    before, after = _lines(old, 2), _lines(new, 2)
    if text is not None:
        # a file as json.dumps writes it with an indent of 4 keeps that; any other gets one of 2. No
        # line end is added to the last line
        if text.rstrip() == _lines(old, 4).rstrip():
            after = _lines(new, 4)
        before, after = text, after if text.endswith("\n") else after.rstrip()
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _lines(config: Mapping[str, Any], indent: int) -> str:
    """Return a config as the text of a file."""
    return json.dumps(config, indent=indent, default=str) + "\n"
