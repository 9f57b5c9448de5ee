"""Specs of the transformers in image and video diffusion models, from the config.json that
diffusers writes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.axes import axial
from ropewalk.caches import cached
from ropewalk.config.values import Entry
from ropewalk.errors import RopeError, choice
from ropewalk.spec import MAX_HEAD_DIM, PRECISIONS, RopeSpec

TABLE = Path(__file__).with_name("diffusion.toml")
#: the config key that names the class of a model in diffusers
CLASS_KEY = "_class_name"
#: the layer type under which values are listed, as these configs have none
LAYER_TYPE = "full_attention"
#: the name under which the dimensions of each axis are listed
DIMS = "dims of each axis"
#: the config key of the head's width
HEAD_KEY = "attention_head_dim"


@dataclass(frozen=True)
class DiffusionModel:
    """How one class of diffusers rotates: a token has a position on each of several axes, such as
    time, height and width, and each axis rotates its own dimensions of a head.

    dims       how many dimensions each axis rotates if the config has no `dims_key`; with
               `from_head` one number: the width of a head if the config has no attention_head_dim
    theta      the theta if the config has no `theta_key`
    dims_key   the config key of the dimensions of each axis
    from_head  whether the dimensions of each axis are computed from the width of a head; `dims_key`
               is then not read
    theta_key  the config key of theta; None: no key is read
    float64    whether its code computes frequencies in float64
    """

    dims: tuple[int, ...]
    theta: float = 1e4
    dims_key: str = "axes_dims_rope"
    from_head: bool = False
    theta_key: str | None = None
    float64: bool = True


@cached("diffusion models", entries=1)
def models() -> dict[str, DiffusionModel]:
    """Return the rows of diffusion.toml by class name."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {
        name: DiffusionModel(**{**row, "dims": tuple(row["dims"])}) for name, row in rows.items()
    }


def read(config: Mapping[str, Any], precision: str) -> tuple[RopeSpec, tuple[Entry, ...]]:
    """Return the spec of a diffusers config, and where each of its values came from.

    The spec of a model whose code computes in float64 has the precision "exact", whatever
    `precision` is.
    """
    choice("precision", precision, PRECISIONS)
    name = config[CLASS_KEY]
    if not isinstance(name, str) or name not in models():
        raise RopeError(CLASS_KEY, f"must be one of {', '.join(models())}", name)
    model, entries = models()[name], []

    def read_value(field: str, key: str | None, default: Any) -> Any:
        """Return the value of a config key, or the default if `key` is None or the config does not
        have it; append it to `entries` under the name `field`, with its source.
        """
        given = None if key is None else config.get(key)
        source = f"the default of {name}" if given is None else str(key)
        entries.append(Entry(LAYER_TYPE, field, default if given is None else given, source))
        return default if given is None else given

    key = HEAD_KEY if model.from_head else model.dims_key
    if model.from_head:
        # height and width get a third of the head each, rounded down to an even number, and time
        # gets the rest
        head_dim = read_value("head_dim", key, model.dims[0])
        # below 6 there would be no pair of dimensions for each of the three axes
        if type(head_dim) is not int or not 6 <= head_dim <= MAX_HEAD_DIM:
            raise RopeError(key, f"must be an integer from 6 to {MAX_HEAD_DIM}", head_dim)
        third = 2 * (head_dim // 6)
        dims = (head_dim - 2 * third, third, third)
        entries.append(Entry(LAYER_TYPE, DIMS, dims, f"the code of {name}"))
    else:
        dims = read_value(DIMS, key, model.dims)
        if not isinstance(dims, list | tuple) or len(dims) != len(model.dims):
            raise RopeError(
                key, f"must list {len(model.dims)} numbers, the dimensions of each axis", dims
            )
    if any(type(dim) is not int or dim % 2 or not 2 <= dim <= MAX_HEAD_DIM for dim in dims):
        rule = f"must be even numbers from 2 to {MAX_HEAD_DIM}: dimensions rotate in pairs"
        raise RopeError(key, rule, dims)
    pairs = [dim // 2 for dim in dims]
    theta = read_value("theta", model.theta_key, model.theta)
    if isinstance(theta, bool) or not isinstance(theta, int | float) or not theta > 0:
        raise RopeError(model.theta_key or "theta", "must be a number > 0", theta)
    entries.append(Entry(LAYER_TYPE, "layout", "interleaved", f"the code of {name}"))
    spec = RopeSpec(
        2 * sum(pairs),
        float(theta),
        layout="interleaved",
        axes=axial(*pairs),
        precision="exact" if model.float64 else precision,
    )
    return spec, tuple(entries)
