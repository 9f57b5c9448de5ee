"""Specs of the transformers in image and video diffusion models, from the config.json that
diffusers writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.axes import axial
from ropewalk.config.values import Entry
from ropewalk.errors import RopeError, choice, integer, number
from ropewalk.spec import MAX_HEAD_DIM, PRECISIONS, RopeSpec

#: the config key that names the class of a model in diffusers
CLASS_KEY = "_class_name"
LAYER_TYPE = "full_attention"
#: the config key of the head's width, from which Wan computes the dims of its axes
WAN_KEY = "attention_head_dim"


@dataclass(frozen=True)
class Model:
    """How one class of diffusers rotates.

    dims      dimensions per axis if the config has no `dims_key`; if that is None, dims[0] is the
              default width of a head, from which they follow, as in Wan
    theta     if the config has no `theta_key`
    float64   whether its frequencies are computed in float64
    """

    dims: tuple[int, ...]
    theta: float = 1e4
    dims_key: str | None = "axes_dims_rope"
    theta_key: str | None = None
    float64: bool = True


MODELS: dict[str, Model] = {
    "FluxTransformer2DModel": Model((16, 56, 56)),
    "Flux2Transformer2DModel": Model((32, 32, 32, 32), 2000.0, theta_key="rope_theta"),
    "HunyuanVideoTransformer3DModel": Model(
        (16, 56, 56), 256.0, "rope_axes_dim", "rope_theta", float64=False
    ),
    "QwenImageTransformer2DModel": Model((16, 56, 56), float64=False),
    "WanTransformer3DModel": Model((128,), dims_key=None),
}


def read(config: Mapping[str, Any], precision: str) -> tuple[RopeSpec, tuple[Entry, ...]]:
    """Return the spec of a diffusers config, and where each of its values came from.

    A model whose code computes in float64 is always "exact".
    """
    choice("precision", precision, PRECISIONS)
    name = config[CLASS_KEY]
    if not isinstance(name, str) or name not in MODELS:
        raise RopeError(CLASS_KEY, f"must be one of {', '.join(MODELS)}", name)
    model, entries = MODELS[name], []

    def read_value(field: str, key: str | None, default: Any) -> Any:
        """Return the value of a config key, or the default, and append its source to `entries`."""
        given = None if key is None else config.get(key)
        source = f"the default of {name}" if given is None else str(key)
        entries.append(Entry(LAYER_TYPE, field, default if given is None else given, source))
        return default if given is None else given

    key = model.dims_key or WAN_KEY
    if model.dims_key is None:
        # Wan: height and width get a third of the head each, rounded down to an even number, and
        # time gets the rest
        head_dim = integer(
            key, read_value("head_dim", key, model.dims[0]), low=6, high=MAX_HEAD_DIM
        )
        third = 2 * (head_dim // 6)
        dims = (head_dim - 2 * third, third, third)
        entries.append(Entry(LAYER_TYPE, "dims of each axis", dims, f"the code of {name}"))
    else:
        dims = read_value("dims of each axis", key, model.dims)
        if not isinstance(dims, list | tuple) or len(dims) != len(model.dims):
            raise RopeError(
                key, f"must list {len(model.dims)} numbers, the dims of each axis", dims
            )
    if any(integer(key, dim, low=2, high=MAX_HEAD_DIM) % 2 for dim in dims):
        raise RopeError(key, "must be even: dimensions rotate in pairs", dims)
    pairs = [dim // 2 for dim in dims]
    theta = number(
        model.theta_key or "theta", read_value("theta", model.theta_key, model.theta), above=0
    )
    entries.append(Entry(LAYER_TYPE, "layout", "interleaved", f"the code of {name}"))
    spec = RopeSpec(
        2 * sum(pairs),
        theta,
        layout="interleaved",
        axes=axial(*pairs),
        precision="exact" if model.float64 else precision,
    )
    return spec, tuple(entries)
