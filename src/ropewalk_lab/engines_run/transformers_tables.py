"""Read the ropes of a model that runs inside another engine as transformers' own code."""

# pyright: reportMissingImports=false

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch


def layers_of(model: torch.nn.Module, length: int) -> list[dict[str, Any] | None]:
    """Return the rope of each layer of a model that is transformers' own code, from the cos and sin
    that its first rotary module gives a sequence of `length` tokens; None for a layer that does not
    rotate. A rope is the dict of `_table`.
    """
    modules = [
        module
        for name, module in model.named_modules()
        if type(module).__module__.startswith("transformers.")
        and type(module).__name__.endswith("RotaryEmbedding")
        and "vis" not in name  # not that of an image tower
    ]
    if not modules:
        raise ValueError("the model has no rotary module")
    config: Any = modules[0].config
    parameters = inspect.signature(modules[0].forward).parameters
    count = config.num_hidden_layers
    # despite its name, 1 for layers that rotate
    rotates = getattr(config, "no_rope_layers", None) or [1] * count
    types = config.layer_types if "layer_type" in parameters else [None] * count
    # what the module's forward takes besides the positions, for each layer type
    arguments = {each: {} if each is None else {"layer_type": each} for each in types}
    ropes = {
        layer_type: _table(modules[0], length, named) for layer_type, named in arguments.items()
    }
    # a table is no rope of the model if its own attention cannot apply it
    for named in arguments.values():
        _check_fits(model, modules[0], named)
    return [
        ropes[layer_type] if rotated else None
        for layer_type, rotated in zip(types, rotates, strict=True)
    ]


def _check_fits(model: torch.nn.Module, module: torch.nn.Module, named: dict[str, str]) -> None:
    """Rotate zeros with the family's own function, which raises an error if the table does not fit
    the head.

    module  transformers' rotary module; `named` are the arguments of its forward besides the
            positions
    """
    function = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
    if function is None:
        return
    config: Any = module.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    # the attention of some families passes only the part of the head that rotates
    sizes: Any = (each.rotary_ndims for each in model.modules() if hasattr(each, "rotary_ndims"))
    size = min(next(sizes, head_dim), head_dim)  # no more than a head has
    vectors = torch.zeros(1, 1, 2, int(size))
    function(vectors, vectors, *module(torch.zeros(1), torch.tensor([[0, 1]]), **named)[:2])


def _table(module: torch.nn.Module, length: int, named: dict[str, str]) -> dict[str, Any]:
    """Return the rope behind the cos and sin of transformers' rotary module for a sequence of
    `length` tokens.

    The angles at position 1 are the frequencies. Each pair has two equal entries: neighbours, or
    half of the row apart. The keys of the dict:

    radians             the angle of each pair, per token
    magnitude           the factor in cos and sin
    layout, layout_out  the layout of q and k before and after: None, not known
    width, start        how many dimensions of a head rotate, and the first of them
    axis                the axis of each pair
    """
    # the zeros give the module a dtype and a device; the position length - 1 makes a scaling that
    # depends on the length see `length` tokens
    cos, sin = module(torch.zeros(1), torch.tensor([[1, length - 1]]), **named)[:2]
    cos, sin = cos[0, 0].double(), sin[0, 0].double()
    pairs = cos.shape[-1] // 2
    # if both hold, as for a single pair, it does not matter which is chosen
    interleaved = bool(
        torch.equal(cos[0::2], cos[1::2]) and not torch.equal(cos[:pairs], cos[pairs:])
    )
    one_of_each_pair = slice(0, None, 2) if interleaved else slice(0, pairs)
    return {
        # float32 has 7 digits
        "radians": [
            float(f"{value:.7g}") for value in torch.atan2(sin, cos)[one_of_each_pair].tolist()
        ],
        "magnitude": round(float(torch.hypot(cos, sin).median()), 6),
        # not known: the attention may reorder q and k before it applies the table
        "layout": None,
        "layout_out": None,
        "width": 2 * pairs,
        "start": 0,
        "axis": [0] * pairs,
    }
