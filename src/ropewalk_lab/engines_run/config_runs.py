"""Run an installed engine with one config, and read what it computes for each layer type.

Words of this module:
  engine   a name of SCRIPTS, such as "vllm"
  row      what a runner, the script of an engine, is asked for: name, config, length,
           max_model_len (the length that the engine is started for, or None) and axes (position
           axes of a token: 1, or 3 for M-RoPE)
  result   its answer to a row: "ropes" has each different rope once, "layers" for each layer the
           index of its rope or None; or an "error"
  control  the result for the same model without a rope
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.engines.audit import EngineRun
from ropewalk.engines.difference import Rotation
from ropewalk.errors import RopeError
from ropewalk_lab.engines_run import installed
from ropewalk_lab.engines_run.measured import LayerRope, layer_of_type, specs_of
from ropewalk_lab.engines_run.small import small_config

#: config keys of the rope, which are left out to build the same model without one
ROPE_KEYS = ("rope_scaling", "rope_parameters", "rope_theta", "partial_rotary_factor", "rotary_pct")


def run(
    engine: str, config: Mapping[str, Any], lengths: Sequence[int], max_model_len: int | None
) -> list[EngineRun]:
    """Return what an installed engine computes from a config at these lengths, for each length and
    layer type.

    The engine builds a small model with the config's rope for each length, and one without the
    rope. If it fails with the rope and without, its error is not about the rope, and a RopeError is
    raised.

    max_model_len  the length that the engine is started for; None: the engine's choice
    """
    small = small_config(config)
    specs = specs_of(small)
    # a config that ropewalk refuses is run too, as a model with layers of one type
    types = ["full_attention"] if isinstance(specs, RopeError) else list(specs)
    axes = 1
    if not isinstance(specs, RopeError):
        axes = max((spec.num_axes for spec in specs.values() if spec is not None), default=1)
    rows = [
        {
            "name": "config",
            "config": small,
            "length": length,
            "max_model_len": max_model_len,
            "axes": axes,
        }
        for length in lengths
    ]
    ropeless = {key: value for key, value in small.items() if key not in ROPE_KEYS}
    rows.append({**rows[0], "name": "without a rope", "config": ropeless, "max_model_len": None})
    output = installed.run(engine, rows)
    *results, control = output["results"]
    today = datetime.date.today().isoformat()
    found = []
    for result in results:
        if "error" in result and "error" in control:
            raise RopeError(
                "config",
                "must give a small model that the engine builds; it fails without a rope too "
                f"({result['error'][:120]})",
                engine,
            )
        for layer_type, layer in layer_of_type(small, types).items():
            about = (engine, output["version"], today, layer_type, result["length"])
            found.append(EngineRun(*about, _rotation(result, layer)))
    return found


def _rotation(result: Mapping[str, Any], layer: int) -> Rotation | str | None:
    """Return the rotation of a layer in the result of a runner, None if the layer does not rotate
    or does not exist, or the first line of the error, cut after 160 characters.
    """
    if "error" in result:
        return str(result["error"]).split("\n")[0][:160]
    index = result["layers"][layer] if layer < len(result["layers"]) else None
    if index is None:
        return None
    rope = LayerRope.read(result["ropes"][index])
    return Rotation(rope.radians, rope.magnitude, rope.axis)
