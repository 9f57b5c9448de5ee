"""Run ONNX Runtime: its RotaryEmbedding operator with the tables of the spec of a config, as
`ropewalk.interop.onnx` exports it.

    python run_onnxruntime.py rows.json results.json

ONNX Runtime reads no Hugging Face config; what a graph has is what the export wrote. So this runner
alone uses ropewalk.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import probe
import torch
from onnx import TensorProto, helper

from ropewalk import Rope, RopeSpec
from ropewalk.errors import RopeError
from ropewalk_lab.engines_run.measured import layer_of_type, specs_of

#: the first opset of ONNX with RotaryEmbedding
OPSET = 23


def measure(row: dict[str, Any]) -> dict[str, Any]:
    """Return the ropes that ONNX Runtime's operator computes for the config of a row, one for each
    layer type: {"ropes": the distinct ones, "layers": for each layer the index of its rope}. The
    index is None for a layer that is not the first of its type, or does not rotate.
    """
    specs = specs_of(row["config"])
    if isinstance(specs, RopeError):
        raise specs
    first_layers = layer_of_type(row["config"], list(specs))
    # the first layer of each type is enough; the entries of the others stay None
    layers: list[dict[str, Any] | None] = [None] * (max(first_layers.values()) + 1)
    for layer_type, index in first_layers.items():
        layers[index] = _rope(specs[layer_type])
    return probe.distinct(layers)


def _rope(spec: RopeSpec | None) -> dict[str, Any] | None:
    """Return what `rope_of_matrices` reads from the rotation that the operator computes with the
    tables of a spec; None if there is no spec. A spec that the operator cannot have is a
    ValueError.
    """
    if spec is None:
        return None
    if spec.needs_length:
        raise ValueError(
            "a graph has fixed frequencies; those of this scaling depend on the length"
        )
    if spec.rotary_start != 0:
        raise ValueError("the operator rotates the first dimensions of a head alone")
    axes = spec.num_axes
    steps = torch.eye(axes, dtype=torch.long)[:, None]  # [axes, 1, steps]: one step on each axis
    tables = Rope(spec).cos_sin(steps if axes > 1 else steps[0], torch.float32)
    cos, sin = (table.numpy().reshape(1, axes, -1) for table in tables)
    # the unit vectors of a head as [1, heads, tokens, size], the same for each token
    units = np.repeat(np.eye(spec.head_dim, dtype=np.float32)[None, :, None], axes, axis=2)
    rotated = _session(spec).run(None, {"x": units, "cos": cos, "sin": sin})[0]
    return probe.rope_of_matrices([rotated[0, :, step].T for step in range(axes)])


def _session(spec: RopeSpec) -> onnxruntime.InferenceSession:
    """Return a session with the one operator, as the export writes it for this spec."""
    ranks = {"x": 4, "cos": 3, "sin": 3, "y": 4}
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank)
        for name, rank in ranks.items()
    ]
    # 0 means the whole head
    rotary_dim = 0 if spec.rotated_dims == spec.head_dim else spec.rotated_dims
    node = helper.make_node(
        "RotaryEmbedding",
        ["x", "cos", "sin"],
        ["y"],
        interleaved=int(spec.layout == "interleaved"),
        rotary_embedding_dim=rotary_dim,
    )
    graph = helper.make_graph([node], "rope", tensors[:3], tensors[3:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.checker.check_model(model)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


if __name__ == "__main__":
    probe.serve("onnxruntime", lambda: onnxruntime.__version__, measure)
