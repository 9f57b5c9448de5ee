"""Exact tables for the rotary modules of vLLM and SGLang, for their plug-ins.

Both engines have a module that computes frequencies in `_compute_inv_freq` and a table [positions,
2 x pairs] of cos and sin, times the magnitude, from them. Their angles are float32 products.
`with_exact_angles` gives such a module exact angles; the frequencies stay the engine's own.
`own_rope` reads a rope whose scaling only ropewalk has, and makes the whole table.

The served length is the longest sequence that a config says the model is used with; the rope of a
config is the object `rope_parameters`. Its scaling changes its frequencies for longer texts, and
may multiply q and k by a magnitude. CoPE's flags are two keys of a config that clip its rope.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ropewalk.config.hf import from_hf
from ropewalk.config.keys import CLIP_KEYS, CLIPPED_PAIRS, keys_of
from ropewalk.errors import RopeError
from ropewalk.frequencies import SCALINGS, Given, Scaling
from ropewalk.frequencies.scaling import TRAINED_LENGTH_KEY
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec

#: how many of our table's first rows are compared with the engine's own, and how far these may
#: differ: float32 angles are that exact at these positions
NEAR, TOLERANCE = 64, 1e-4
#: rope_types that only ropewalk has; not "ntk": vLLM has another formula of that name
OWN_TYPES = tuple(name for name in SCALINGS if not SCALINGS[name].in_configs and name != "ntk")
#: keys of a rope that are not fields of its scaling
OTHER_KEYS = ("rope_type", "type", "rope_theta", "rope_dim", "partial_rotary_factor")


@dataclass(frozen=True)
class OwnRope:
    """A rope that an engine cannot compute itself.

    rows    how many rows its table needs, one for each position: as many as the tokens of the
            longest sequence that the engine may accept
    length  the length that a length-dependent scaling is computed for, in every sequence: a table
            cannot follow the length of each one
    """

    spec: RopeSpec
    rows: int
    length: int

    def __str__(self) -> str:
        text = f"rope_type {self.spec.scaling.name}, {self.rows} rows"
        if self.spec.needs_length:
            text += f"; every sequence is rotated as one of {self.length} tokens"
        return text

    def table(self, rows: int | None = None) -> Tensor:
        """Return the float32 table [rows, 2 x pairs] of cos and sin, times the magnitude; `rows`
        None: as many as the field says.
        """
        positions = torch.arange(self.rows if rows is None else rows)
        length = self.length if self.spec.needs_length else None
        return torch.cat(Rope(self.spec).cos_sin(positions, torch.float32, length=length), dim=-1)


def own_rope(
    rope: Mapping[str, Any] | None,
    rotary_dim: int,
    max_position: int,
    *,
    theta: float | None = None,
    length: int | None = None,
    flags: Any = None,
) -> OwnRope | None:
    """Return the rope that a config's `rope_parameters` describe if only ropewalk has its scaling;
    None if the engine has to compute it itself.

    rotary_dim    how many dimensions of a head rotate; the spec of the result describes these alone
    max_position  the served length of the config
    theta         None: rope_theta of `rope`, or 10,000
    length        of the longest sequence, for length-dependent scalings; None: max_position
    flags         the config, of which CoPE's use_cope and use_hardclip are read

    A RopeError names a scaling that no table of cos and sin can hold.
    """
    rope = dict(rope or {})
    theta = float(rope.get("rope_theta", 10_000.0) if theta is None else theta)
    precision = "exact"
    # a rope that names the clipping itself needs no flag
    for key, soft in CLIP_KEYS.items():
        if getattr(flags, key, False) is True and rope.get("rope_type") != "clipped":
            rope = {"rope_type": "clipped", "inner": rope, "pairs": CLIPPED_PAIRS, "soft": soft}
            # the models that read the flags have transformers' float32 frequencies
            precision = "hf_frequencies"
    if rope.get("rope_type", rope.get("type")) not in OWN_TYPES:
        return None
    scaling = _scaling(rope, rotary_dim, max_position)
    if scaling.learned or scaling.name == "xpos":
        raise RopeError(
            "rope_type", "must be one that a table of cos and sin can hold", scaling.name
        )
    # the engines take `factor` times max_position_embeddings for the longest sequence
    factor = max(1.0, float(getattr(scaling.innermost, "factor", 1.0)))
    rows = math.ceil(max_position * factor)
    spec = RopeSpec(rotary_dim, theta, scaling, precision=precision)
    return OwnRope(spec, rows, length or max_position)


def _scaling(rope: Mapping[str, Any], rotary_dim: int, max_position: int) -> Scaling:
    """Return the scaling of a rope: as `from_hf` reads it, or, if only ropewalk has it, made from
    the keys of the rope, which are its fields. `rotary_dim` and `max_position` are those of
    `own_rope`.
    """
    name = rope.get("rope_type", rope.get("type", "default"))
    if "mrope_section" in rope:
        rule = "must not be given with a scaling that only ropewalk has, or with " + " or ".join(
            CLIP_KEYS
        )
        raise RopeError("mrope_section", rule, rope["mrope_section"])
    if name not in OWN_TYPES:  # the inner scaling of one of ours: read it in a small config
        sizes = {"head_dim": rotary_dim, "hidden_size": rotary_dim, "num_attention_heads": 1}
        config = {"model_type": "llama", **sizes, "max_position_embeddings": max_position}
        # only the scaling of this config is used, and it is the same with any theta
        scaled = {"rope_theta": 10_000.0, **rope}
        # head_dim is the rotated part already
        scaled.pop("partial_rotary_factor", None)
        spec = from_hf(config | {"rope_parameters": scaled})
        assert isinstance(spec, RopeSpec)
        return spec.scaling
    kind = SCALINGS[name]
    # {config key: field}; a rope may have the names of the fields, too
    names = {TRAINED_LENGTH_KEY: "original_length", **keys_of(kind)}
    given = {names.get(key, key): value for key, value in rope.items() if key not in OTHER_KEYS}
    if unknown := sorted(given.keys() - {field.name for field in fields(kind)}):
        known = ", ".join(field.name for field in fields(kind))
        raise RopeError(f"rope_parameters of {name}", f"must have no keys but {known}", unknown)
    if "inner" in given:
        given["inner"] = _scaling(given["inner"], rotary_dim, max_position)
    return kind(**given)


def with_exact_angles(module: Any, compute: Callable[[], Tensor]) -> Tensor:
    """Return the table [positions, 2 x pairs] of cos and sin that `compute` makes, with exact
    angles instead of the engine's.

    A table whose rows are not the positions 0, 1, 2, ... of one rope, and a result that is no
    tensor (the several tables of dual chunk attention), are returned as they are.
    """
    recorded: list[Tensor] = []
    original = module._compute_inv_freq
    # None: only the class has this method
    instance_attribute = vars(module).get("_compute_inv_freq")

    def compute_and_record(*args: Any, **named: Any) -> Tensor:
        """Return the frequencies that the module computes, and keep them in `recorded`."""
        recorded.append(original(*args, **named))
        return recorded[-1]

    module._compute_inv_freq = compute_and_record
    try:
        table = compute()
    finally:
        del module._compute_inv_freq
        if instance_attribute is not None:
            module._compute_inv_freq = instance_attribute
    # linear scaling divides the positions by a factor; with several factors, the table holds a part
    # for each
    factors = getattr(module, "scaling_factors", [1.0])
    if not isinstance(table, Tensor) or len(recorded) != 1 or len(factors) != 1:
        return table
    return exact_table(table, recorded[0].double() / factors[0])


def exact_table(table: Tensor, inv_freq: Tensor) -> Tensor:
    """Return the float32 table [positions, 2 x pairs] of cos and sin with exact angles position x
    `inv_freq` (radians).

    The magnitude is the first entry of `table`, which is magnitude x cos 0. `table` itself is
    returned if it has another form, or if its first 64 rows (NEAR) differ from the exact ones by
    1e-4 or more (TOLERANCE): then it holds something else.
    """
    pairs = inv_freq.numel()
    # with one row, for position 0, there would be no angle to compare
    if (
        table.ndim != 2
        or table.shape[1] != 2 * pairs
        or table.dtype != torch.float32
        or len(table) < 2
    ):
        return table
    magnitude = float(table[0, 0])
    if magnitude <= 0:  # this entry is not magnitude x cos 0
        return table
    scaling = Given(tuple(inv_freq.double().flatten().tolist()), magnitude=magnitude)
    rope = Rope(RopeSpec(2 * pairs, scaling=scaling))
    exact = torch.cat(rope.cos_sin(torch.arange(len(table)), torch.float32), dim=-1).to(table)
    return exact if float((exact[:NEAR] - table[:NEAR]).abs().max()) < TOLERANCE else table
