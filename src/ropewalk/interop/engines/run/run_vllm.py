"""Run vLLM: build the small model of a config on the CPU and rotate unit vectors with the rotary module of every layer.

    python run_vllm.py rows.json results.json

Models that vLLM has no code of its own for run in it as transformers' code; their tables are read from transformers' module.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# ruff: noqa: E402

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

os.environ.update(
    VLLM_LOGGING_LEVEL="ERROR", VLLM_USE_V1="1", HF_HUB_OFFLINE="1", VLLM_TARGET_DEVICE="cpu", VLLM_NO_USAGE_STATS="1",
    GLOO_SOCKET_IFNAME="lo", MASTER_ADDR="127.0.0.1",
)  # fmt: skip
import probe
import stubs
import transformers_tables

stubs.install("torchvision", "torchaudio", "torchcodec")
import torch
import vllm
from torch.nn import functional
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import registry
from vllm.model_executor.models.registry import _ModelInfo
from vllm.utils.torch_utils import set_default_torch_dtype

LAYER = re.compile(r"(?:layers|h|blocks)\.(\d+)\.")


class Rotated(Exception):  # a signal, not an error
    """The rotary module of a layer was called."""


def prepare() -> None:
    """Initialise torch.distributed with one rank, and replace two functions of vLLM by simpler ones that work on any CPU.

    Linear layers use torch's product, and model classes are inspected in this process instead of in a helper process each.
    """
    UnquantizedLinearMethod.apply = lambda self, layer, x, bias=None: functional.linear(x, layer.weight, bias)
    registry._LazyRegisteredModel.inspect_model_cls = lambda self: _ModelInfo.from_model_cls(self.load_model_cls())
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, "tcp://127.0.0.1:29511", 0, backend="gloo")
        initialize_model_parallel(1, 1)


def measure(row: dict[str, Any]) -> dict[str, Any]:
    """Return the ropes of the layers of one row, a config with its length, in the model that vLLM builds from it."""
    rotary_embedding._ROPE_DICT.clear()  # vLLM caches rotary modules between models
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(row["config"]), encoding="utf-8")
        arguments = EngineArgs(
            model=folder, skip_tokenizer_init=True, load_format="dummy", dtype="float32", enforce_eager=True,
            max_model_len=row.get("max_model_len"), enable_prefix_caching=False,
        )  # fmt: skip
        config = arguments.create_engine_config()
        with set_current_vllm_config(config), set_default_torch_dtype(torch.float32):
            model = initialize_model(config)
            layers = _layers(model, row["length"], 3 if row.get("axes") == 3 else 1)
    return probe.distinct(layers, max_model_len_used=config.model_config.max_model_len, model_class=type(model).__name__)


def _layers(model: torch.nn.Module, length: int, axes: int) -> list[dict[str, Any] | None]:
    """Return the rotation of each layer, measured with vLLM's rotary modules; None where a layer does not use its own."""
    ropes: dict[int, dict[str, Any] | None] = {}  # by layer
    layers = set()
    for name, module in model.named_modules(remove_duplicate=False):
        number = LAYER.search(name + ".")
        if number is None or "vis" in name:  # an image tower
            continue
        layers.add(int(number[1]))
        if _is_rope(module):
            owner = model.get_submodule(name.rpartition(".")[0])
            used = _uses(owner, module, axes)
            ropes[int(number[1])] = probe.read_back(_matrices(module, axes)) if used else None
    if not ropes:  # transformers' own code, run by vLLM
        return transformers_tables.layers_of(model, length)
    return [ropes.get(layer) for layer in range(max(layers) + 1)]


def _is_rope(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("vllm.model_executor.layers.rotary_embedding") and hasattr(module, "rotary_dim")


def _uses(owner: torch.nn.Module, rope: torch.nn.Module, axes: int) -> bool:
    """Return whether an attention module calls its rope: run it with zeros until it calls the rope or attends.

    If it fails before either, it is taken to call its rope.
    """

    def stop(*_: Any, **__: Any) -> None:
        raise Rotated

    rope.forward = stop
    positions = torch.zeros((3, 2) if axes == 3 else (2,), dtype=torch.long)
    weights = (value for name, value in owner.named_parameters() if name.endswith("weight") and value.ndim == 2)
    width = next((weight.shape[1] for weight in weights), 1)
    try:
        owner(positions=positions, hidden_states=torch.zeros(2, width))
    except Rotated:
        return True
    except Exception as error:
        # vLLM's attention needs a forward context, which is not set here: these two errors mean that it was reached
        attended = str(error).startswith("Forward context is not set") or "no_compile" in str(error)
        return not attended
    finally:
        del rope.forward
    return False


def _matrices(rope: torch.nn.Module, axes: int) -> list[Any]:
    """Return what one step on each axis makes of the unit vectors, in columns."""
    size = int(rope.head_size)  # type: ignore[arg-type]  # an attribute of every rope here
    # each unit vector is a head; the rope of latent attention takes heads on an axis of their own
    units = torch.eye(size)[None] if "Deepseek" in type(rope).__name__ else torch.eye(size).reshape(1, size * size)
    call = getattr(rope, "forward_native", rope.forward)
    result = []
    for axis in range(axes):
        positions = torch.ones(1, dtype=torch.long)
        if axes == 3:
            positions = torch.eye(3, dtype=torch.long)[:, axis : axis + 1]
        rotated, _ = call(positions, units.clone(), units.clone())
        result.append(rotated.reshape(size, size).T.numpy())
    return result


if __name__ == "__main__":
    prepare()
    probe.serve("vllm", lambda: vllm.__version__, measure)
