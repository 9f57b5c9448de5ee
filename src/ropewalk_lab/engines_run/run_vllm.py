"""Run vLLM: build the small model of a config on the CPU and rotate unit vectors with the rotary
module of every layer.

    python run_vllm.py rows.json results.json

Models that vLLM has no code of its own for run in it as transformers' code; their tables are read
from transformers' module.

A row is a config with its `length` in tokens, `max_model_len` (the length that the engine is
started for; None: its own choice) and `axes` (position axes of a token: 1, or 3 for M-RoPE).
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# ruff: noqa: E402

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.update(
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_USE_V1="1",
    HF_HUB_OFFLINE="1",
    VLLM_TARGET_DEVICE="cpu",
    VLLM_NO_USAGE_STATS="1",
    GLOO_SOCKET_IFNAME="lo",
    MASTER_ADDR="127.0.0.1",
)
import probe
import rotary_modules
import stubs

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
from vllm.transformers_utils.config import uses_mrope
from vllm.utils.torch_utils import set_default_torch_dtype


def prepare() -> None:
    """Initialise torch.distributed with one rank, and replace two functions of vLLM by simpler ones
    that work on any CPU.

    Linear layers use torch's product, and model classes are inspected in this process instead of in
    a helper process each.
    """
    UnquantizedLinearMethod.apply = lambda self, layer, x, bias=None: functional.linear(
        x, layer.weight, bias
    )
    registry._LazyRegisteredModel.inspect_model_cls = lambda self: _ModelInfo.from_model_cls(
        self.load_model_cls()
    )
    with set_current_vllm_config(VllmConfig()):
        meeting = f"file://{tempfile.mkdtemp()}/ranks"  # a port may be in use
        # one process: world size 1, rank 0, and local rank 0 after the meeting point
        init_distributed_environment(1, 0, meeting, 0, backend="gloo")
        initialize_model_parallel(1, 1)


def measure(row: dict[str, Any]) -> dict[str, Any]:
    """Return the ropes of the layers of one row, a config with its length, in the model that vLLM
    builds from it.
    """
    rotary_embedding._ROPE_DICT.clear()  # vLLM caches rotary modules between models
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(row["config"]), encoding="utf-8")
        arguments = EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            dtype="float32",
            enforce_eager=True,
            max_model_len=row.get("max_model_len"),
            enable_prefix_caching=False,
        )
        config = arguments.create_engine_config()
        with set_current_vllm_config(config), set_default_torch_dtype(torch.float32):
            model = initialize_model(config)
            package = "vllm.model_executor.layers.rotary_embedding"
            has_axes = row.get("axes") == 3 and uses_mrope(config.model_config.hf_config)
            axes = 3 if has_axes else 1
            layers = rotary_modules.layers_of(
                model, package, row["length"], axes, _reached_attention
            )
    return probe.distinct(
        layers,
        max_model_len_used=config.model_config.max_model_len,
        model_class=type(model).__name__,
    )


def _reached_attention(error: Exception) -> bool:
    """Return whether vLLM's attention raised this error, so that the layer has reached its
    attention. It raises one of two errors, because no forward context is set here.
    """
    return str(error).startswith("Forward context is not set") or "no_compile" in str(error)


if __name__ == "__main__":
    prepare()
    probe.serve("vllm", lambda: vllm.__version__, measure)
