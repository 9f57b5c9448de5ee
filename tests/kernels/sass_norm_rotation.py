"""Compile the fused kernels for sm_90 without a GPU and print, as JSON, what the machine code
holds.

`test_norm_rotation.py` starts this file in a process of its own: there Triton is sure to compile, not to
interpret.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import ropewalk as rw
from ropewalk.kernels.norm_rotation import kernel, launch
from ropewalk.kernels.norm_rotation.config import NormRotationConfig, pick_config
from ropewalk.kernels.norm_rotation.definition import FP8, KVSlots, NormRotationCall, QKNorm

TYPES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.int64: "i64", FP8: "fp8e4nv"}
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z0-9_.]+)", re.MULTILINE)


def call_of(
    tokens, q_heads, k_heads, head_dim=128, *, cache=torch.bfloat16, **spec
) -> NormRotationCall:
    """Return a bf16 decode or prefill call with norm; its tensors are empty, with the sizes and
    strides of a model's.
    """
    qkv = torch.empty(tokens, q_heads + 2 * k_heads, head_dim, dtype=torch.bfloat16)
    q, k, v = qkv.split([q_heads, k_heads, k_heads], dim=1)
    norm = QKNorm(*(torch.empty(head_dim, dtype=torch.bfloat16) for _ in "qk"))
    store = (
        None
        if cache is None
        else KVSlots(*(torch.empty(64, k_heads, head_dim).to(cache) for _ in "kv"))
    )
    integers = torch.zeros(tokens, dtype=torch.int64)
    q_out, k_out = torch.empty_like(q), torch.empty_like(k) if cache is None else None
    return NormRotationCall(
        q,
        k,
        v,
        rw.RopeSpec(head_dim, **spec),
        integers,
        None,
        norm,
        store,
        None if cache is None else integers,
        q_out,
        k_out,
    )


def assembled(kernel, values: dict, warps: int, loose: tuple[str, ...], pdl: bool = False) -> dict:
    """Return the instruction counts of `kernel` for these arguments, specialised as Triton's launch
    would.
    """
    signature, constants, attributes = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        name, value = parameter.name, values[parameter.name]
        fixed = (
            parameter.is_constexpr
            or value is None
            or (type(value) is int and value == 1 and name not in loose)
        )
        if fixed:
            signature[name], constants[(index,)] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name], attributes[(index,)] = (
                "*" + TYPES[value.dtype],
                [["tt.divisibility", 16]],
            )
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32"
            if value % 16 == 0 and name not in loose:
                attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    options = {"num_warps": warps, "launch_pdl": pdl}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        listing, usage = (
            subprocess.run(
                [TOOLS / "cuobjdump", flag, file.name], capture_output=True, text=True, check=True
            ).stdout
            for flag in ("-sass", "-res-usage")
        )
    counts = {
        name: int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK", "SHARED")
    }
    return {**Counter(INSTRUCTION.findall(listing)), **counts}


def forward(call: NormRotationCall, config: NormRotationConfig | None = None) -> dict:
    """Return the instruction counts of the forward kernel for a call."""
    config = config or pick_config(call.q.shape[0], call.q.shape[1], call.q.shape[2])
    names = kernel.forward.arg_names
    values = launch.forward_values(call, config) | {
        "tokens": call.q.shape[0],
        "PDL": config.pdl,
        "QUICK": True,
    }
    values |= dict(zip(names, launch.changing_tensors(call), strict=False))
    return assembled(kernel.forward, values, config.warps, ("tokens", "num_slots"), config.pdl)


def backward(call: NormRotationCall) -> dict:
    """Return the instruction counts of the backward kernel for a call."""
    q, k = call.q, call.k
    groups, warps = launch.backward_blocks(call)
    values = launch.backward_values(call, q, k, q, k, groups) | {
        "WEIGHT_GRAD": True,
        "tokens": q.shape[0],
    }
    given = (q, k, q, k, q, k, *call.weights, torch.empty(1, 2, q.shape[-1]), call.positions)
    values |= dict(zip(kernel.backward.arg_names, given, strict=False))
    return assembled(kernel.backward, values, warps, ("tokens",))


if __name__ == "__main__":
    found = {
        "decode 64": forward(call_of(64, 32, 8)),
        "decode 256": forward(call_of(256, 64, 8)),
        "prefill": forward(call_of(8192, 32, 8)),
        "prefill, float8 cache": forward(call_of(8192, 32, 8, cache=FP8)),
        "prefill, interleaved": forward(call_of(8192, 32, 8, layout="interleaved")),
        "training": forward(call_of(8192, 32, 8, cache=None)),
        "prefill, many heads": forward(call_of(8192, 128, 8)),
        "prefill, few heads": forward(call_of(8192, 4, 1)),
        "backward": backward(call_of(8192, 32, 8, cache=None)),
        "backward, wide heads": backward(call_of(8192, 64, 8, 256, rotary_dim=64, cache=None)),
    }
    print(json.dumps(found))
