"""Run mlx-lm: build the small model of a config and rotate unit vectors with the rope of every
attention layer.

    python run_mlx_lm.py rows.json results.json

A row is a config with its length; a rope, as plain data, has the frequencies, the axis of each pair,
the magnitude and the layout.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import mlx.core as mx
import numpy as np
import probe
from mlx import nn
from mlx_lm.utils import _get_classes

#: attributes under which attention modules keep their rope
NAMES = ("rope", "rotary_emb", "rope_emb")
#: what identifies the last rope that was called with whole sequences -> its matrix; one entry
_WHOLE: dict[Any, np.ndarray] = {}


def measure(row: dict[str, Any]) -> dict[str, Any]:
    """Return the ropes of the layers of one row, a config with its length, in the model that mlx-lm
    builds from it.
    """
    config = row["config"]
    model_class, arguments_class = _get_classes(config)
    model = model_class(arguments_class.from_dict(config))
    ropes: list[dict[str, Any] | None] = []
    for layer in model.layers:
        rope, size = _rope_of(layer, config)
        ropes.append(
            None if rope is None else probe.rope_of_matrices([_matrix(rope, size, row["length"])])
        )
    return probe.distinct(ropes)


def _rope_of(layer: nn.Module, config: dict[str, Any]) -> tuple[Any, int]:
    """Return (the rope of a layer, the size of the vectors that it takes); the rope is None if the
    layer has none or does not use it.
    """
    for _, module in layer.named_modules():
        for name in NAMES:
            rope = getattr(module, name, None)
            if rope is not None and callable(rope):
                # Cohere 2 rotates only in layers with a sliding window
                unused = (
                    getattr(module, "use_sliding_window", True) is False
                    and config["model_type"] == "cohere2"
                )
                used = not unused and getattr(module, "use_rope", True)
                # latent attention rotates only vectors of this size
                size = config.get("text_config", config).get("qk_rope_head_dim")
                return (rope if used else None), size or _head_dim(module)
    return None, 0


def _head_dim(module: nn.Module) -> int:
    """Return the head size of an attention module: its attribute, or the output size of its key
    projection or the input size of its output projection, divided by the number of heads.
    """
    if isinstance(getattr(module, "head_dim", None), int):
        return module.head_dim
    if hasattr(module, "k_proj") and hasattr(module, "n_kv_heads"):  # values may have another size
        return module.k_proj.weight.shape[0] // module.n_kv_heads
    heads = next(
        getattr(module, name)
        for name in ("n_heads", "num_heads", "num_attention_heads", "heads")
        if hasattr(module, name)
    )
    projection = next(
        getattr(module, name)
        for name in ("o_proj", "dense", "wo", "out_proj")
        if hasattr(module, name)
    )
    return projection.weight.shape[-1] // heads


def _matrix(rope: Any, size: int, length: int) -> np.ndarray:
    """Return the matrix whose column i is the unit vector e_i of `size` dimensions, rotated by one
    step.

    A rope whose base depends on the length of its input gets a whole sequence of `length` tokens,
    of which token 1 is read.
    """
    # these are the "Dynamic" ropes that keep a trained length; one with a fixed alpha does not
    # depend on the length
    if "Dynamic" not in type(rope).__name__ or not hasattr(rope, "max_position_embeddings"):
        # [batch, heads, tokens, size]
        return np.array(rope(mx.eye(size)[None, :, None, :], offset=1)[0, :, 0]).T
    # a call takes seconds for a long sequence, and a model may have 64 layers that are alike
    arrays = {name: np.array(value).tolist() for name, value in rope.items()}  # a module is a dict
    key = (type(rope), size, length, repr((sorted(vars(rope).items()), sorted(arrays.items()))))
    if key not in _WHOLE:
        _WHOLE.clear()
        _WHOLE[key] = _of_whole_sequences(rope, size, length)
    return _WHOLE[key]


def _of_whole_sequences(rope: Any, size: int, length: int) -> np.ndarray:
    """Return the matrix whose column i is the unit vector e_i of `size` dimensions, rotated by one
    step: e_i is token 1 in a sequence of `length` tokens, the others are 0.
    """
    columns = []
    for index in range(size):
        tokens = mx.zeros((1, 1, length, size))  # [batch, heads, tokens, size]
        tokens[0, 0, 1, index] = 1.0
        columns.append(np.array(rope(tokens, offset=0)[0, 0, 1]))
    return np.stack(columns, axis=1)


if __name__ == "__main__":
    probe.serve("mlx-lm", lambda: version("mlx-lm"), measure)
