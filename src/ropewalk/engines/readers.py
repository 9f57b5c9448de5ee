"""Every engine by name, with the function that reads a config as it does."""

from __future__ import annotations

from ropewalk.engines import read_sglang, read_vllm
from ropewalk.engines.read_llama_cpp import read_llama_cpp
from ropewalk.engines.read_mlx import read_mlx
from ropewalk.engines.read_transformers import read_hf
from ropewalk.engines.readings import Case, Engine, EngineRule, Reading

__all__ = ["ENGINES", "REFERENCE", "TITLES", "Case", "Engine", "EngineRule", "Reading"]

#: every engine by name, the reference first. A new entry is picked up by audit, its command and its
#: tests.
ENGINES: dict[str, Engine] = {
    "hf": Engine("transformers", "5.22.2", read_hf),
    "vllm": Engine("vLLM", "0.32.0", read_vllm.read_vllm, length_factor=read_vllm.length_factor),
    "sglang": Engine(
        "SGLang", "0.5.23", read_sglang.read_sglang, length_factor=read_sglang.length_factor
    ),
    "mlx-lm": Engine("mlx-lm", "0.32.2", read_mlx),
    "llama.cpp": Engine("llama.cpp", "2026.10", read_llama_cpp),
}
REFERENCE = "hf"
#: every engine that is run, by name. ONNX Runtime reads no config, so there is nothing to audit: it
#: computes what was exported
TITLES: dict[str, str] = {
    **{name: engine.title for name, engine in ENGINES.items()},
    "onnxruntime": "ONNX Runtime",
}
