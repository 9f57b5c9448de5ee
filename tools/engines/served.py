"""Serve small random models with vLLM and its plug-in, and compare the log-probabilities of a prompt
with those of ropewalk's Decoder.

    python tools/engines/served.py results/served.jsonl

It runs in an environment of vLLM that has ropewalk and plugins/vllm, with ROPEWALK_VLLM=1. The
ropes are scalings that only ropewalk has, and some that vLLM has too.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import torch

import ropewalk as rw
from ropewalk import frequencies
from ropewalk.models import Decoder, DecoderConfig

BASE = DecoderConfig(
    256, 128, 256, num_layers=2, num_heads=4, num_kv_heads=2, length=2048, tie_embeddings=False
)
PROMPT = [7 * i % 251 + 1 for i in range(1500)]
YARN = frequencies.Yarn(original_length=512, factor=4.0)
#: one token more than the prompt: the length that length-dependent scalings are computed for
LONGEST = len(PROMPT) + 1
DYNAMIC = frequencies.DynamicYarn(original_length=512)
PARTS = frequencies.NtkByParts(factor=4.0, original_length=512)
#: name: changes of BASE, scaling, and the config keys that stand for this scaling beside an unscaled
#: rope; {}: rope_parameters gets the scaling
CASES: dict[str, tuple[dict[str, Any], frequencies.Scaling, dict[str, Any]]] = {
    "llama, unscaled": ({}, frequencies.Default(), {}),
    "llama, clipped": ({}, frequencies.Clipped(pairs=6), {}),
    "llama, clipped yarn": ({}, frequencies.Clipped(YARN, pairs=6), {}),
    "llama, use_cope": ({}, frequencies.Clipped(), {"use_cope": True}),
    "llama, ntk_by_parts": ({}, PARTS, {}),
    "qwen3, ntk_by_parts": ({"qk_norm": True}, PARTS, {}),
    "qwen3, clipped": ({"qk_norm": True}, frequencies.Clipped(pairs=6), {}),
    "llama, linear_frequencies": ({}, frequencies.LinearFrequencies(), {}),
    "llama, dynamic_yarn": ({}, DYNAMIC, {}),
}


def model_of(
    changes: dict[str, Any], scaling: frequencies.Scaling, precision: str = "exact"
) -> Decoder:
    """Return a random float32 Decoder whose attention is not flat."""
    config = BASE.with_(**changes)
    if scaling.needs_length:  # the engine has one table for all sequences
        found = scaling.frequencies(config.head_dim or 0, 10_000.0, LONGEST)
        scaling = frequencies.Given(found.radians, found.magnitude)
    spec = rw.RopeSpec(config.head_dim or 0, 10_000.0, scaling, precision=precision)
    torch.manual_seed(0)
    model = Decoder(config.with_(encoding=spec)).eval()
    for name, value in model.named_parameters():
        torch.nn.init.normal_(value, mean=float("norm" in name), std=0.15)
    return model


def unscaled(model: Decoder) -> Decoder:
    """Return the same weights with a rope without scaling."""
    spec = rw.RopeSpec(model.config.head_dim or 0, 10_000.0)
    plain = Decoder(model.config.with_(encoding=spec)).eval()
    plain.load_state_dict(model.state_dict())
    return plain


def write_folder(
    model: Decoder, scaling: frequencies.Scaling, keys: dict[str, Any], folder: Path
) -> None:
    """Write the model with the keys of its rope: `rw.save` writes those that transformers reads, so
    the scaling is added to the config of an unscaled model.
    """
    rw.save(unscaled(model), folder)
    path = folder / "config.json"
    written = json.loads(path.read_text()) | keys
    if not keys:
        written["rope_parameters"] |= rope_parameters(scaling)
    path.write_text(json.dumps(written))


def rope_parameters(scaling: frequencies.Scaling) -> dict[str, Any]:
    """Return the config keys of a scaling."""
    given = {key: value for key, value in scaling.as_dict().items() if value is not None}
    if "inner" in given:
        given["inner"] = rope_parameters(given["inner"])
    if "original_length" in given:
        given["original_max_position_embeddings"] = given.pop("original_length")
    return given


def served(folder: Path) -> torch.Tensor:
    """Return the log-probability of each token of the prompt but the first, as vLLM computes it."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=LONGEST,
        # by default vLLM reserves nearly all memory for keys and values, and a model keeps its part
        gpu_memory_utilization=0.1,
        kv_cache_memory_bytes=1 << 26,
        seed=0,
    )
    asked = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    (answer,) = engine.generate([{"prompt_token_ids": PROMPT}], asked, use_tqdm=False)
    found = [
        each[token].logprob
        for token, each in zip(PROMPT[1:], answer.prompt_logprobs[1:], strict=True)
    ]
    return torch.tensor(found)


def prompt_logprobs(model: Decoder) -> torch.Tensor:
    """Return the log-probability of each token of the prompt but the first."""
    found = model(torch.tensor([PROMPT]))[0, :-1].log_softmax(-1)
    return found.gather(-1, torch.tensor(PROMPT[1:])[:, None])[:, 0]


@torch.no_grad()
def main() -> None:
    """Serve each case and append a row with its largest difference."""
    import vllm

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    wanted = sys.argv[2:] or CASES
    for name in wanted:
        changes, scaling, keys = CASES[name]
        # models whose config has such keys have transformers' float32 frequencies
        model = model_of(changes, scaling, "hf_frequencies" if keys else "exact")
        with tempfile.TemporaryDirectory() as folder:
            write_folder(model, scaling, keys, Path(folder) / "model")
            theirs = served(Path(folder) / "model")
        ours, without = prompt_logprobs(model), prompt_logprobs(unscaled(model))
        row = {
            "engine": "vLLM",
            "version": vllm.__version__,
            "case": name,
            "tokens": len(PROMPT),
            "largest_difference": float((ours - theirs).abs().max()),
            "without_scaling": float((ours - without).abs().max()),
            "date": date.today().strftime("%Y-%m"),
            "machine": f"{platform.machine()}, CPU, float32",
        }
        with Path(sys.argv[1]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{name}: {row['largest_difference']:.1e}", flush=True)


if __name__ == "__main__":
    main()
