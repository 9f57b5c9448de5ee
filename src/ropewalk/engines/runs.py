"""What was run: the scalings of each family, and version and date of each engine. Written by
`make engines`.
"""

from __future__ import annotations

# fmt: off
#: model_type -> the scalings that every engine ran
FAMILIES: dict[str, tuple[str, ...]] = {
    "apertus": ("llama3",),
    "cohere": ("default", "linear", "llama3", "longrope", "yarn"),
    "cohere2": ("default", "llama3", "yarn"),
    "deepseek_v2": ("yarn",),
    "deepseek_v3": ("default", "linear", "llama3", "longrope", "yarn"),
    "ernie4_5": ("default", "linear"),
    "exaone4": ("default", "linear", "llama3", "longrope", "yarn"),
    "falcon": ("default", "linear"),
    "gemma": ("default", "linear"),
    "gemma2": ("default", "llama3", "yarn"),
    "gemma3_text": ("default", "linear"),
    "gemma4_text": ("default", "linear", "proportional", "yarn"),
    "glm": ("default",),
    "glm4": ("default", "linear"),
    "glm4_moe": ("default",),
    "gpt_neox": ("default", "linear"),
    "gpt_oss": ("default", "yarn"),
    "granite": ("default", "linear", "llama3", "yarn"),
    "hunyuan_v1_dense": ("ntk",),
    "llama": ("default", "dynamic", "linear", "llama3", "longrope", "yarn"),
    "minimax_m2": ("default",),
    "ministral3": ("linear", "llama3", "longrope", "yarn"),
    "mistral": ("default", "linear", "llama3", "yarn"),
    "mixtral": ("default",),
    "nemotron": ("default", "linear"),
    "olmo": ("default",),
    "olmo2": ("default", "linear", "llama3", "yarn"),
    "olmo3": ("default", "yarn"),
    "phi": ("default", "linear"),
    "phi3": ("default", "linear", "longrope"),
    "phimoe": ("longrope",),
    "qwen2": ("default", "linear", "yarn"),
    "qwen2_5_vl_text": ("default",),
    "qwen2_moe": ("default",),
    "qwen2_vl_text": ("default", "linear", "llama3", "longrope", "yarn"),
    "qwen3": ("default", "linear", "llama3", "yarn"),
    "qwen3_moe": ("yarn",),
    "qwen3_vl_text": ("default", "linear", "llama3", "longrope", "yarn"),
    "seed_oss": ("default", "linear"),
    "smollm3": ("default", "linear"),
    "stablelm": ("default", "linear"),
    "starcoder2": ("default", "linear"),
}
#: engine -> its version, and when it was run
RUNS: dict[str, tuple[str, str]] = {
    "hf": ("5.22.2", "2026-11"),
    "vllm": ("0.32.0", "2026-11"),
    "sglang": ("0.5.23", "2026-11"),
    "mlx-lm": ("0.32.2", "2026-11"),
    "llama.cpp": ("2026.10.11549", "2026-11"),
}
#: the oldest release that computes the same in every row, of those that were run
SINCE: dict[str, str] = {"hf": "5.19.0", "mlx-lm": "0.32.1"}
