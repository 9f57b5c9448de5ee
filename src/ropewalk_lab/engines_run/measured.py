"""Compare the ropes that were read back from an engine with the spec of the config.

Words of this module:
  runner  the script that runs an engine and writes what it computes
  row     a config with the length to serve, for which the runner is asked
  rope    the frequencies, axes, magnitude and layout of a layer; `ours` follows from the spec,
          `theirs` was read back from the engine
  type    a layer type as `from_hf` names it, such as "full_attention"; layers of one type have one
          rope
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropewalk.config import file as config_file
from ropewalk.config.families import family_of
from ropewalk.config.hf import read_specs
from ropewalk.config.layers import types_by_pattern
from ropewalk.engines.reading import frequencies_of
from ropewalk.errors import RopeError
from ropewalk.spec import RopeSpec
from ropewalk_lab.engines_run.installed import TITLES

#: a runner's name for its engine -> ours, where they differ
KEYS = {"transformers": "hf"}
#: the key under which `from_hf` has the layers that are not rotated, if others of their type are
NO_ROPE = "no_rope"
#: families whose config may leave out the layer types: every n-th layer has full attention, by this
#: key or this number
PERIODS = {
    "gemma3_text": ("sliding_window_pattern", 6),
    "gemma3n_text": ("sliding_window_pattern", 5),
    "gemma4_text": ("sliding_window_pattern", 6),
    "olmo3": ("sliding_window_pattern", 4),
    "recurrent_gemma": ("attention_period", 3),
    "qwen3_next": ("full_attention_interval", 4),
    "qwen3_5_text": ("full_attention_interval", 4),
    "qwen3_5_moe_text": ("full_attention_interval", 4),
}
#: {family: {layer type as `from_hf` names it: the types of `layer_types` that are of it}}
LAYER_NAMES = {
    "deepseek_v4": {
        "main": ("sliding_attention",),
        "compress": ("compressed_sparse_attention", "heavily_compressed_attention"),
    }
}
#: families whose layer types follow the pattern that the table of families has
BY_PATTERN = (
    "bailing_hybrid",
    "embedding_gemma2_text",
    "granite_swa",
    "granitemoe_swa",
    "kolibri1",
)
#: {entry of `compress_ratios`: the layer type that it stands for}
COMPRESSED = {
    0: "sliding_attention",
    4: "compressed_sparse_attention",
    128: "heavily_compressed_attention",
}
#: for configs without `layer_types`: {family: {layer type: its first layer}}; other types have no
#: layer
FIRST_LAYERS = {
    "flint": {"full_attention": 0, "sliding_attention": 2},
    "laguna": {"full_attention": 0},
    "zaya": {"hybrid": 0},
}
#: families in which, without `layer_types`, the first layer has full attention and the second not
FULL_FIRST = ("modernbert", "modernbert-decoder")
#: relative difference of two frequencies, or of two magnitudes, that is rounding in float32
SAME_RADIANS = 2e-5
SAME_MAGNITUDE = 2e-5
#: radians per step below which a frequency counts as 0: llama.cpp divides the frequencies of pairs
#: that it does not rotate by 1e30
ZERO_FREQUENCY = 1e-20
#: what the difference of two equal float32 numbers near 1 may be instead of 0, in radians per step
ROUNDED_ZERO = 1e-9


@dataclass(frozen=True)
class ServedConfig:
    """A config, the length of its longest sequence, and the length an engine is started for (None:
    the engine's choice).

    axes  how many position axes a token has: 1, or 3 for M-RoPE
    """

    name: str
    config: dict[str, Any]
    length: int
    max_model_len: int | None = None
    axes: int = 1

    @property
    def id(self) -> str:
        """The name, the length and, if it is given, the length an engine is started for."""
        started = "" if self.max_model_len is None else f", started for {self.max_model_len}"
        return f"{self.name} at {self.length}{started}"


@dataclass(frozen=True)
class LayerRope:
    """The rope of one layer: for each pair its frequency, in radians per step, and its axis; the
    magnitude, and the layout of the pairs (None: not known).

    Pairs at the start and the end with frequency 0 are left out, so that a partial rope and one
    with frequencies 0 for its other pairs are equal.
    """

    radians: tuple[float, ...]
    magnitude: float
    axis: tuple[int, ...]
    layout: str | None = None

    @classmethod
    def of(cls, radians: Any, magnitude: float, axis: Any, layout: str | None) -> LayerRope:
        """Return a rope without the pairs at its start and its end that have frequency 0: the
        part of a head that rotates may be its end.
        """
        rotate = [index for index, value in enumerate(radians) if abs(value) > ZERO_FREQUENCY]
        part = slice(rotate[0], rotate[-1] + 1) if rotate else slice(0)
        return cls(tuple(radians[part]), magnitude, tuple(axis[part]), layout)

    @classmethod
    def read(cls, rope: Mapping[str, Any]) -> LayerRope:
        """Return the rope that a runner read back."""
        return cls.of(rope["radians"], rope["magnitude"], rope["axis"], rope["layout"])

    @classmethod
    def of_spec(cls, spec: RopeSpec, length: int) -> LayerRope:
        """Return the rope that a spec gives sequences of `length` tokens."""
        return cls.of(*frequencies_of(spec, length), spec.axis_of_pair, spec.layout)


def first_difference(ours: LayerRope, theirs: LayerRope) -> int | None:
    """Return the index of the first pair that only one of two ropes has, or that has another axis
    or a frequency that differs by more than rounding; None if there is none.
    """
    for pair in range(max(len(ours.radians), len(theirs.radians))):
        if pair >= len(ours.radians) or pair >= len(theirs.radians):
            return pair
        first, second = ours.radians[pair], theirs.radians[pair]
        rounding = SAME_RADIANS * abs(first) if first else ROUNDED_ZERO
        if abs(first - second) > rounding or ours.axis[pair] != theirs.axis[pair]:
            return pair
    return None


def verdict(ours: LayerRope | None, theirs: LayerRope | None) -> str:
    """Return "same", or what differs: "pairs" (a frequency or an axis), "magnitude", both joined by
    " and ", or "rotated".

    "rotated": only one of the two rotates. Layouts are not compared.
    """
    if ours is None or theirs is None:
        return "same" if ours is theirs else "rotated"
    different = [] if first_difference(ours, theirs) is None else ["pairs"]
    if abs(ours.magnitude - theirs.magnitude) > SAME_MAGNITUDE * ours.magnitude:
        different.append("magnitude")
    return " and ".join(different) or "same"


def specs_of(config: Mapping[str, Any]) -> dict[str, RopeSpec | None] | RopeError:
    """Return the spec of each layer type of a config, with exact frequencies, None for a type that
    is not rotated; or the error that says why there is none.
    """
    text = config_file.text_part(config_file.load(dict(config)))
    try:
        return read_specs(text, "exact")[0]
    except RopeError as error:
        return error


def layer_of_type(config: Mapping[str, Any], layer_types: list[str]) -> dict[str, int]:
    """Return {layer type: index of its first layer} for `layer_types`, names as `from_hf` gives
    them, without a type that no layer has.
    """
    text = config_file.text_part(config_file.load(dict(config)))
    declared = text.get("layer_types")
    rotates = text.get("no_rope_layers")  # despite its name, 1 for layers that rotate
    attending = text.get("attn_layer_indices")  # the others are Mamba layers
    if attending is None and isinstance(kinds := text.get("layers_block_type"), list):
        attending = [index for index, kind in enumerate(kinds) if kind in ("attention", "hybrid")]
    if isinstance(indices := text.get("full_attn_idxs"), list):  # the others are convolutions
        attending = sorted(indices)
    first_layers = {}
    if not declared and isinstance(ratios := text.get("compress_ratios"), list):
        declared = [COMPRESSED.get(ratio, "") for ratio in ratios]
    if not declared and isinstance(kinds := text.get("hybrid_layer_pattern"), list):  # of MiMo
        declared = ["sliding_attention" if kind == 1 else "full_attention" for kind in kinds]
    if not declared and (firsts := FIRST_LAYERS.get(str(text.get("model_type")))):
        # the last layer has no window
        last = (text.get("num_hidden_layers") or 10**6) - 1
        return {
            name: firsts[name]
            for name in layer_types
            if name in firsts and (name != "sliding_attention" or firsts[name] < last)
        }
    if not declared and str(text.get("model_type")) in BY_PATTERN:
        full = family_of(text["model_type"]).full_layers
        count = text.get("num_hidden_layers")
        declared = types_by_pattern(text, full, count) if full and isinstance(count, int) else None
    if names := LAYER_NAMES.get(str(text.get("model_type"))):
        if not declared:  # which layers the others are follows from further keys
            return {name: 0 for name in layer_types if name == "main"}
        firsts = {
            name: [index for index, kind in enumerate(declared) if kind in names.get(name, ())]
            for name in layer_types
        }
        return {name: indices[0] for name, indices in firsts.items() if indices}
    for name in layer_types:
        # the config lists the types of its layers, and this one is not among them; a list with none
        # of the wanted names uses other names, and says nothing
        if declared and name != NO_ROPE and name not in declared and set(declared) & {*layer_types}:
            continue
        if name == NO_ROPE:
            # the first layer that is not rotated; without no_rope_layers every fourth is not, from
            # index 3 on
            first_layers[name] = next(
                (index for index, is_rotated in enumerate(rotates or []) if not is_rotated), 3
            )
        else:
            # without such a list, the first layer that has attention, or that is rotated
            first = attending[0] if attending and not declared else 0
            if rotates and not declared:
                first = next((index for index, is_rotated in enumerate(rotates) if is_rotated), 0)
            first_layers[name] = declared.index(name) if declared and name in declared else first
    if not declared and text.get("model_type") in FULL_FIRST and "sliding_attention" in layer_types:
        first_layers["sliding_attention"] = 1
    if not declared and text.get("model_type") in PERIODS and "full_attention" in first_layers:
        key, default = PERIODS[text["model_type"]]
        period = text.get(key) or default
        layers = text.get("num_hidden_layers") or period
        if not isinstance(period, int) or not isinstance(layers, int):
            return first_layers  # no engine takes such a config
        if period <= layers:
            first_layers["full_attention"] = period - 1
        else:
            del first_layers["full_attention"]
    return first_layers


def cells(
    output: Mapping[str, Any],
    by_id: Mapping[str, ServedConfig],
    types: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[tuple[ServedConfig, str, dict[str, Any] | str | None]]:
    """Yield (row, layer type, what a runner found for the first layer of that type): its rope, None
    if the layer does not rotate or does not exist, or the first line of the runner's error, cut
    after 160 characters.

    output  what a runner wrote. A result lists each different rope once in "ropes"; its "layers"
            has an entry for each layer, the index of its rope in that list, or None
    by_id   the rows by their id; results of other rows are left out
    types   {id: the layer types of its row}; None: those of `from_hf`, and full_attention for a row
            that it refuses and for one without any
    """
    for result in output["results"]:
        # the id does not depend on the config
        row = by_id.get(
            ServedConfig(result["name"], {}, result["length"], result["max_model_len"]).id
        )
        if row is None:
            continue
        if types is None:
            specs = specs_of(row.config)
            names = [] if isinstance(specs, RopeError) else list(specs)
        else:
            names = list(types[row.id])
        for layer_type, layer in layer_of_type(row.config, names or ["full_attention"]).items():
            if "error" in result:
                yield row, layer_type, result["error"].split("\n")[0][:160]
            else:
                index = result["layers"][layer] if layer < len(result["layers"]) else None
                yield row, layer_type, None if index is None else result["ropes"][index]


def verdict_rows(
    output: Mapping[str, Any], by_id: Mapping[str, ServedConfig], date: str
) -> Iterator[dict[str, Any]]:
    """Yield a dict for each row in the runner's `output` and each layer type: what the engine did,
    compared with the spec of `from_hf`.

    by_id  the rows by their id; results of other rows are left out
    date   of the run, which the dicts repeat
    """
    runner_name: str = output["engine"]
    engine = TITLES[KEYS.get(runner_name, runner_name)]
    for row, layer_type, rope in cells(output, by_id):
        about = {
            "engine": engine,
            "version": output["version"],
            "date": date,
            "config": row.name,
            "length": row.length,
            "max_model_len": row.max_model_len,
            "layer_type": layer_type,
        }
        specs = specs_of(row.config)
        if isinstance(rope, str):
            yield {**about, "verdict": "error", "error": rope}
        elif isinstance(specs, RopeError):
            yield {**about, "verdict": "no spec", "error": str(specs)[:160]}
        else:
            spec = specs[layer_type]
            ours = None if spec is None else LayerRope.of_spec(spec, row.length)
            theirs = None if rope is None else LayerRope.read(rope)
            yield {
                **about,
                "verdict": verdict(ours, theirs),
                "first_pair": None
                if ours is None or theirs is None
                else first_difference(ours, theirs),
                "magnitude": None if theirs is None else theirs.magnitude,
                "spec_magnitude": None if ours is None else round(ours.magnitude, 6),
                "layout": None if theirs is None else theirs.layout,
            }
