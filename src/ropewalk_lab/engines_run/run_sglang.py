"""Run SGLang's model code: build the small model of a config on the CPU and rotate unit vectors in
every layer.

    python run_sglang.py rows.json results.json

Its server is not started. Its model classes and rotary modules are built here as its loader builds
them; packages that only its kernels need are replaced by empty modules, and nothing attends.

A row is a config with its `length` in tokens, `max_model_len` (the length that the engine is
started for; None: its own choice) and `axes` (position axes of a token: 1, or 3 for M-RoPE).
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# ruff: noqa: E402

from __future__ import annotations

import json
import os
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.update(
    SGLANG_USE_CPU_ENGINE="1", HF_HUB_OFFLINE="1", GLOO_SOCKET_IFNAME="lo", MASTER_ADDR="127.0.0.1"
)
warnings.simplefilter("ignore")
import probe
import rotary_modules
import stubs

stubs.install(
    "torchvision",
    "torchaudio",
    "torchcodec",
    "decord",
    "sgl_kernel",
    "flashinfer",
    "xgrammar",
    "soundfile",
    "av",
    "pybase64",
    "setproctitle",
    "uvloop",
    "hf_transfer",
    "interegular",
    "llguidance",
    "outlines",
    "litellm",
    "zmq",
    "py_spy",
    "gguf",
)
import torch

# Qwen 3.5's module reads these attributes, kernels for CPUs, when it is imported; a rotary module
# needs none of them
for name in (
    "fused_sigmoid_mul_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
):
    setattr(torch.ops.sgl_kernel, name, stubs.make(name))
from sglang.srt import runtime_context
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed import parallel_state
from sglang.srt.layers import dp_attention
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.layers.rotary_embedding import factory
from sglang.srt.model_loader.loader import _initialize_model
from sglang.srt.models import deepseek_v2
from sglang.srt.server_args import ServerArgs

# on a CPU DeepSeek's model asks for another factory, which has YaRN alone; on GPUs it is this one
deepseek_v2.get_rope_wrapper = lambda *args, device=None, **named: factory.get_rope(*args, **named)


ATTENDS = "attends"


def _attend(*_: Any, **__: Any) -> None:
    """Raise an error in place of attention."""
    raise RuntimeError(ATTENDS)


RadixAttention.forward = _attend


def measure(row: dict[str, Any]) -> dict[str, Any]:
    """Return the ropes of the layers of one row, a config with its length, in the model that SGLang
    builds from it.
    """
    factory._ROPE_DICT.clear()  # SGLang caches rotary modules between models
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(row["config"]), encoding="utf-8")
        arguments = ServerArgs(
            model_path=folder,
            device="cpu",
            skip_tokenizer_init=True,
            load_format="dummy",
            dtype="float32",
            context_length=row.get("max_model_len"),
            attention_backend=_backend(row["config"]),
            disable_cuda_graph=True,
            disable_radix_cache=True,  # models with a recurrent state need a GPU for it
        )
        _prepare(arguments)
        config = ModelConfig.from_server_args(arguments)
        text = config.hf_text_config
        for key in (
            "linear_num_key_heads",
            "linear_num_value_heads",
        ):  # as its loader for CPUs does
            if hasattr(text, key):
                setattr(text, f"{key}_cpu", getattr(text, key))
        torch.set_default_dtype(torch.float32)
        model = _initialize_model(config, LoadConfig(load_format="dummy"))
        layers = rotary_modules.layers_of(
            model,
            "sglang.srt.layers.rotary_embedding",
            row["length"],
            3 if row.get("axes") == 3 and config.model_is_mrope else 1,
            # a layer that runs its attention without having called its rope does not rotate
            reached_attention=lambda error: str(error) == ATTENDS,
            forward_batch=None,  # an argument of SGLang's attention modules
        )
    return probe.distinct(
        layers, max_model_len_used=config.context_len, model_class=type(model).__name__
    )


def _backend(config: dict[str, Any]) -> str:
    """Return the attention backend to name: some models refuse the one for CPUs; none is ever
    called.
    """
    return (
        "triton"
        if config["model_type"] in ("gpt_oss", "exaone4", "exaone_moe", "gemma4_text")
        else "torch_native"
    )


def _prepare(arguments: ServerArgs) -> None:
    """Publish `arguments` as SGLang's global ones; the first call also initialises
    torch.distributed with one rank.
    """
    runtime_context.publish(arguments, role="scheduler", ranks=runtime_context.SpawnRanks(0))
    if not torch.distributed.is_initialized():
        # a file, because a port may be in use
        meeting = f"file://{tempfile.mkdtemp()}/ranks"
        # one process: world size 1, rank 0, and local rank 0 after the meeting point
        parallel_state.init_distributed_environment(1, 0, meeting, 0, backend="gloo")
        parallel_state.initialize_model_parallel(backend="gloo")
    dp_attention.initialize_dp_attention(arguments)


if __name__ == "__main__":
    probe.serve("sglang", lambda: version("sglang"), measure)
