"""Run SGLang's model code: build the small model of a config on the CPU and rotate unit vectors in every layer.

    python run_sglang.py rows.json results.json

SGLang serves on GPUs alone. Its model classes and rotary modules are built here as its loader builds them; packages that only
its kernels need are replaced by empty modules, and nothing attends.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# ruff: noqa: E402

from __future__ import annotations

import json
import os
import re
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.update(SGLANG_USE_CPU_ENGINE="1", HF_HUB_OFFLINE="1", GLOO_SOCKET_IFNAME="lo", MASTER_ADDR="127.0.0.1")
warnings.simplefilter("ignore")
import probe
import stubs
import transformers_tables

stubs.install(
    "torchvision", "torchaudio", "torchcodec", "decord", "sgl_kernel", "flashinfer", "xgrammar", "soundfile", "av", "pybase64",
    "setproctitle", "uvloop", "hf_transfer", "interegular", "llguidance", "outlines", "litellm", "zmq", "py_spy", "gguf",
)  # fmt: skip
import torch
from sglang.srt import runtime_context
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed import parallel_state
from sglang.srt.layers import dp_attention
from sglang.srt.layers.rotary_embedding import factory
from sglang.srt.model_loader.loader import _initialize_model
from sglang.srt.models import deepseek_v2
from sglang.srt.server_args import ServerArgs

# on a CPU DeepSeek's model asks for another factory, which has YaRN alone; on GPUs it is this one
deepseek_v2.get_rope_wrapper = lambda *args, device=None, **named: factory.get_rope(*args, **named)
LAYER = re.compile(r"(?:layers|h|blocks)\.(\d+)\.")


class Rotated(Exception):  # a signal, not an error
    """The rotary module of a layer was called."""


def measure(row: dict[str, Any]) -> dict[str, Any]:
    """Return the ropes of the layers of one row, a config with its length, in the model that SGLang builds from it."""
    factory._ROPE_DICT.clear()  # SGLang caches rotary modules between models
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(row["config"]), encoding="utf-8")
        arguments = ServerArgs(
            model_path=folder, device="cpu", skip_tokenizer_init=True, load_format="dummy", dtype="float32",
            context_length=row.get("max_model_len"), attention_backend=_backend(row["config"]), disable_cuda_graph=True,
        )  # fmt: skip
        _prepare(arguments)
        config = ModelConfig.from_server_args(arguments)
        torch.set_default_dtype(torch.float32)
        model = _initialize_model(config, LoadConfig(load_format="dummy"))
        layers = _layers(model, row["length"], 3 if row.get("axes") == 3 else 1)
    return probe.distinct(layers, max_model_len_used=config.context_len, model_class=type(model).__name__)


def _backend(config: dict[str, Any]) -> str:
    """Return the attention backend to name: some models refuse the one for CPUs; none is ever called."""
    return "triton" if config["model_type"] in ("gpt_oss", "exaone4", "gemma4_text") else "torch_native"


def _prepare(arguments: ServerArgs) -> None:
    """Publish `arguments` as SGLang's global ones; the first call also initialises torch.distributed with one rank."""
    runtime_context.publish(arguments, role="scheduler", ranks=runtime_context.SpawnRanks(0))
    if not torch.distributed.is_initialized():
        parallel_state.init_distributed_environment(1, 0, "tcp://127.0.0.1:29512", 0, backend="gloo")
        parallel_state.initialize_model_parallel(backend="gloo")
    dp_attention.initialize_dp_attention(arguments)


def _layers(model: torch.nn.Module, length: int, axes: int) -> list[dict[str, Any] | None]:
    """Return the rotation of each layer, measured with SGLang's rotary modules; None where a layer does not use its own."""
    ropes: dict[int, dict[str, Any] | None] = {}  # by layer
    layers = set()
    for name, module in model.named_modules(remove_duplicate=False):
        number = LAYER.search(name + ".")
        if number is None or "vis" in name:  # an image tower
            continue
        layers.add(int(number[1]))
        if type(module).__module__.startswith("sglang.srt.layers.rotary_embedding") and hasattr(module, "rotary_dim"):
            owner = model.get_submodule(name.rpartition(".")[0])
            used = _uses(owner, module, axes)
            ropes[int(number[1])] = probe.read_back(_matrices(module, axes, length)) if used else None
    if not ropes:  # transformers' own code, run by SGLang
        return transformers_tables.layers_of(model, length)
    return [ropes.get(layer) for layer in range(max(layers) + 1)]


def _uses(owner: torch.nn.Module, rope: torch.nn.Module, axes: int) -> bool:
    """Return whether an attention module calls its rope: run it with zeros until it calls the rope or attends.

    If it fails before either, it is taken to call its rope.
    """
    attended = []

    def stop_at_rope(*_: Any, **__: Any) -> None:
        raise Rotated

    def stop_at_attention(*_: Any, **__: Any) -> None:
        attended.append(True)
        raise RuntimeError("attends")

    rope.forward = stop_at_rope
    for child in owner.modules():
        if type(child).__name__ == "RadixAttention":
            child.forward = stop_at_attention
    positions = torch.zeros((3, 2) if axes == 3 else (2,), dtype=torch.long)
    weights = (value for name, value in owner.named_parameters() if name.endswith("weight") and value.ndim == 2)
    width = next((weight.shape[1] for weight in weights), 1)
    try:
        owner(positions=positions, hidden_states=torch.zeros(2, width), forward_batch=None)
    except Rotated:
        return True
    except Exception:
        return not attended
    finally:
        del rope.forward
    return False


def _matrices(rope: torch.nn.Module, axes: int, length: int) -> list[Any]:
    """Return what one step on each axis makes of the unit vectors, in columns.

    A second token is at the end of the sequence, because LongRoPE looks at all positions of a batch.
    """
    size = int(rope.head_size)  # type: ignore[arg-type]  # an attribute of every rope here
    # each unit vector is a head; the rope of latent attention takes heads on an axis of their own
    units = torch.eye(size)[None] if "Deepseek" in type(rope).__name__ else torch.eye(size).reshape(1, size * size)
    units = units.repeat(2, *[1] * (units.ndim - 1))  # the same for both tokens
    call = getattr(rope, "forward_native", rope.forward)
    result = []
    for axis in range(axes):
        last = min(length, _table_length(rope)) - 1
        positions = torch.tensor([1, last])
        if axes == 3:
            positions = torch.stack([torch.eye(3, dtype=torch.long)[:, axis], torch.full((3,), last)], dim=1)
        rotated, _ = call(positions, units.clone(), units.clone())
        result.append(rotated[0].reshape(size, size).T.float().numpy())
    return result


def _table_length(rope: torch.nn.Module) -> int:
    """Return how many positions the table of a rope has; a rope without a table has no limit."""
    return max((table.shape[0] for name, table in rope.named_buffers() if "cache" in name), default=2**31)


if __name__ == "__main__":
    probe.serve("sglang", lambda: version("sglang"), measure)
