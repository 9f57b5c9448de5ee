"""Run llama.cpp: convert the small model of a config with its own converter, decode one token, read
every ROPE node.

    LLAMA_CPP=folder-of-the-converter WEIGHTS=folder-of-make_weights python run_llama_cpp.py
    rows.json results.json

Before a ROPE node is computed its input is overwritten with unit vectors and its position with 1,
so that what comes out are the cos and sin of one step, times the magnitude.

A row is a config with its `length` in tokens, `max_model_len` (the length that the engine is
started for; None: its own choice) and `axes` (position axes of a token: 1, or 3 for M-RoPE).
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# ruff: noqa: E402

from __future__ import annotations

import ctypes
import json
import logging
import os
import re
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llama_library as llama
import numpy as np
import probe
from checkpoints import folder_name

sys.path[:0] = [os.environ["LLAMA_CPP"], os.environ["LLAMA_CPP"] + "/gguf-py"]
import gguf
import torch
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

logging.disable(logging.CRITICAL)
LIBRARY = llama.load()
#: error messages of llama.cpp, of the current row alone
MESSAGES: list[str] = []
#: what a converter keeps in its class from one checkpoint to the next
LEFT_IN_CLASS = ("_alpha_n", "_alpha_p", "_beta", "_eps")
#: modes of a ROPE node, as bits: NEOX and MROPE have the half layout; with MROPE the pairs of each
#: axis form a section, with IMROPE, which has the bit of MROPE too, the pairs of the axes alternate
NEOX, MROPE, IMROPE = 2, 8, 40


@llama.LogCallback
def _keep_error(level: int, text: bytes, _: Any) -> None:
    """Keep an error message of llama.cpp, to be shown if a call fails."""
    if level >= 4:  # GGML_LOG_LEVEL_ERROR
        MESSAGES.append(text.decode(errors="replace").strip())


class Rotations:
    """The eval callback: overwrites the input of every ROPE node and keeps the first output of each
    layer and axis.

    layers  layer -> position axis -> what was recorded; the layer is None if a node does not name
            one
    """

    def __init__(self) -> None:
        self.axis = 0
        self.layers: dict[int | None, dict[int, tuple[Any, ...]]] = {}
        self.callback = llama.EvalCallback(self._on_node)

    def _on_node(self, pointer: Any, ask: bool, _: Any) -> bool:
        """Handle one node of the graph: before a ROPE node runs (`ask`), set its input; after it,
        record the result.

        Only the first node of a layer is recorded, once for each position axis (`self.axis`) that
        is being measured. Before a node, the result True makes ggml call again after it; after a
        node, it makes ggml go on.
        """
        node = pointer.contents
        if LIBRARY.ggml_op_desc(pointer) == b"ROPE":
            layer = _layer_of(node)
            if ask:
                self._overwrite(node)
            elif self.axis not in self.layers.setdefault(layer, {}):
                self.layers[layer][self.axis] = self._read(node)
        return True

    def _overwrite(self, node: llama.Tensor) -> None:
        """Set the input of a ROPE node to pairs (1, 0), at position 1 on the current axis and 0 on
        the others.
        """
        source, positions = node.src[0].contents, node.src[1].contents
        first, second = _pair_members(node)
        # dimensions that do not rotate may have any value
        values = np.full(source.ne[0], 0.5, dtype=np.float32)
        values[first], values[second] = 1.0, 0.0
        vector = np.ctypeslib.as_array(
            ctypes.cast(source.data, ctypes.POINTER(ctypes.c_float)), (source.ne[0],)
        )
        vector[:] = values
        coordinates = np.ctypeslib.as_array(
            ctypes.cast(positions.data, ctypes.POINTER(ctypes.c_int32)), (positions.ne[0],)
        )
        coordinates[:] = 0
        coordinates[self.axis] = 1

    def _read(self, node: llama.Tensor) -> tuple[Any, ...]:
        """Return (angles [pairs] in radians, magnitudes [pairs], the node's mode, how many
        dimensions it rotates, the first of them), from the output of a node that has run.
        """
        out = np.ctypeslib.as_array(
            ctypes.cast(node.data, ctypes.POINTER(ctypes.c_float)), (node.ne[0],)
        ).astype(np.float64)
        first, second = _pair_members(node)
        angles, magnitudes = np.arctan2(out[second], out[first]), np.hypot(out[second], out[first])
        # where ggml keeps them: 1 the number of dimensions, 2 the mode, 15 the first dimension
        return angles, magnitudes, *(node.op_params[index] for index in (2, 1, 15))


def _layer_of(node: llama.Tensor) -> int | None:
    """Return the layer that a node or one of its inputs names, such as 3 for "Qcur-3 (view)"; None
    if none of them does.
    """
    for _ in range(8):  # the node, then the input of each node before it
        named = re.search(r"-(\d+)", node.name.decode())
        if named:
            return int(named[1])
        if not node.src[0]:
            break
        node = node.src[0].contents
    return None


def _pair_members(node: llama.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the first and of the second members of the pairs that a ROPE node
    rotates.
    """
    # where ggml keeps the number of dimensions, the mode and the first dimension
    width, mode, start = (node.op_params[index] for index in (1, 2, 15))
    # both modes pair the first half of the dimensions with the second
    return probe.members("half" if mode & (NEOX | MROPE) else "interleaved", width, start)


def measure(row: dict[str, Any]) -> dict[str, Any]:
    """Return the ropes of the layers of one row, as `probe.distinct` lists them: its config is
    converted to a GGUF file, which llama.cpp runs.
    """
    weights = Path(os.environ["WEIGHTS"]) / folder_name(row["config"])
    if not weights.exists():
        raise ValueError("no weights: transformers cannot build this model")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in weights.glob("*.safetensors*"):
            (folder / file.name).symlink_to(file)
        (folder / "config.json").write_text(json.dumps(row["config"]), encoding="utf-8")
        # Gemma's converter counts the tokens here
        size = row["config"].get("text_config", row["config"])["vocab_size"]
        tokens = {
            "model": {"vocab": {str(index): index for index in range(size)}},
            "added_tokens": [],
        }
        (folder / "tokenizer.json").write_text(json.dumps(tokens), encoding="utf-8")
        target = folder / "model.gguf"
        _convert(folder, target)
        return _decode(target, row)


def _convert(folder: Path, target: Path) -> None:
    """Write the GGUF file of a checkpoint, without a tokenizer."""
    with torch.inference_mode():
        hparams = ModelBase.load_hparams(folder, False)  # False: not in Mistral's own format
        model_class = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
        # some converters hand the work to a class inside them
        for each in (model_class, *vars(model_class).values()):
            if isinstance(each, type) and issubclass(each, ModelBase):
                each.set_vocab = _no_vocabulary
        for name in LEFT_IN_CLASS:
            getattr(model_class, name, {}).clear()
        model_class.no_mtp = True  # a small model has no layers that predict further tokens
        model_class(folder, gguf.LlamaFileType.ALL_F32, target).write()


def _no_vocabulary(model: Any) -> None:
    """Write the GGUF keys of a model without a tokenizer."""
    model.gguf_writer.add_tokenizer_model("none")
    # the converter of this family may have written the size already
    key = f"{gguf.MODEL_ARCH_NAMES[model.model_arch]}.vocab_size"
    if not any(key in shard for shard in model.gguf_writer.kv_data):
        model.gguf_writer.add_vocab_size(model.hparams["vocab_size"])


def _decode(file: Path, row: dict[str, Any]) -> dict[str, Any]:
    """Return the rotations of all layers, recorded while llama.cpp decodes one token."""
    MESSAGES.clear()
    model = LIBRARY.llama_model_load_from_file(
        str(file).encode(), LIBRARY.llama_model_default_params()
    )
    if not model:
        raise ValueError("; ".join(MESSAGES)[:300] or "llama.cpp did not load the file")
    rotations, params = Rotations(), LIBRARY.llama_context_default_params()
    # only LongRoPE ("su" is its old name) depends on the context length, and a short context is
    # allocated faster
    reads_context = "longrope" in json.dumps(row["config"]) or '"su"' in json.dumps(row["config"])
    params.n_ctx = (row.get("max_model_len") or 0) if reads_context else 64  # 0: that of the model
    params.n_batch = params.n_ubatch = 32
    params.n_threads = params.n_threads_batch = 1
    params.cb_eval = rotations.callback
    context = LIBRARY.llama_init_from_model(model, params)
    try:
        if not context:
            raise ValueError("; ".join(MESSAGES)[:300] or "llama.cpp did not start")
        for axis in range(3 if row.get("axes") == 3 else 1):
            rotations.axis = axis
            # True: the cached keys and values too, not only which positions they have
            LIBRARY.llama_memory_clear(LIBRARY.llama_get_memory(context), True)
            # room for one token (not for embeddings: 0) of one sequence
            batch = LIBRARY.llama_batch_init(1, 0, 1)
            # one token of one sequence, whose logits are computed
            batch.n_tokens = batch.n_seq_id[0] = batch.logits[0] = 1
            batch.pos[0] = batch.seq_id[0][0] = 0  # position 0 of sequence 0
            batch.token[0] = 3  # any token
            if LIBRARY.llama_decode(context, batch):
                raise ValueError("; ".join(MESSAGES)[:300] or "llama_decode failed")
        context_length = LIBRARY.llama_n_ctx(context) if reads_context else None
    finally:
        if context:
            LIBRARY.llama_free(context)
        LIBRARY.llama_model_free(model)
    text = row["config"].get("text_config", row["config"])
    if None in rotations.layers:
        raise ValueError("a ROPE node of llama.cpp does not name its layer")
    ropes = [
        _rope(rotations.layers[index]) if index in rotations.layers else None
        for index in range(text.get("num_hidden_layers") or text["n_layers"])
    ]
    return probe.distinct(ropes, max_model_len_used=context_length)


def _rope(by_axis: dict[int, tuple[Any, ...]]) -> dict[str, Any]:
    """Return the rope of a layer as plain data, from what `Rotations` recorded for each position
    axis; the axis of a pair is the one that rotates it most.
    """
    angles = np.array([recorded[0] for recorded in by_axis.values()])  # [axes, pairs]
    _, magnitudes, mode, width, start = by_axis[0]  # the same on every axis
    axis = np.abs(angles).argmax(axis=0)
    # both modes pair the first half of the dimensions with the second
    layout = "half" if mode & (NEOX | MROPE) else "interleaved"
    radians = angles[axis, np.arange(len(axis))]
    return {
        "radians": [float(f"{value:.7g}") for value in radians],  # float32 has 7 digits
        "magnitude": round(float(np.median(magnitudes)), 6),
        "layout": layout,
        "layout_out": layout,
        "width": int(width),
        "start": int(start),
        "axis": axis.tolist(),
    }


if __name__ == "__main__":
    LIBRARY.llama_log_set(_keep_error, None)
    LIBRARY.llama_backend_init()
    probe.serve("llama.cpp", lambda: version("xllamacpp"), measure)
