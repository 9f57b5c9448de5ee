"""How the fused kernel divides its work, and whether it can run at all. Needs no Triton."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec

import torch

from ropewalk.errors import RopeError, choice, integer
from ropewalk.kernels.fused_definition import Call
from ropewalk.table import tables

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class Config:
    """One program takes `tokens` tokens of one of `groups` groups of heads, with `warps` warps.

    angles  "phase": exact at any position, no memory. "table": kept rows of cos and sin. "levels": two small tables and
            one angle addition. Beyond their reach both use the phase; both take one token a program
    pdl     start while the kernel before is still running, where the GPU can
    load, store  hints for data that is not needed again soon: "evict_first" and ".cs"
    """

    tokens: int = 1
    groups: int = 1
    warps: int = 4
    angles: str = "phase"
    pdl: bool = False
    load: str = ""
    store: str = ""

    def __post_init__(self) -> None:
        for name in ("tokens", "groups", "warps"):
            value = integer(name, getattr(self, name), low=1, high=1024)
            if value & (value - 1):
                raise RopeError(name, "must be a power of two", value)
        choice("angles", self.angles, ("phase", "table", "levels"))
        choice("load", self.load, ("", "evict_first", "evict_last"))
        choice("store", self.store, ("", ".cs", ".cg", ".wb", ".wt"))
        if self.angles != "phase" and self.tokens > 1:
            raise RopeError("tokens", "must be 1 where angles are read from a table", self.tokens)


#: (most tokens, configuration); the first that fits. At decode a warp owns whole heads and latency rules; at prefill bytes do
CONFIGS: tuple[tuple[float, Config], ...] = (
    (128, Config(groups=8, warps=1, angles="table", pdl=True)),
    (512, Config(groups=4, warps=2, angles="table", pdl=True)),
    (float("inf"), Config(groups=1, warps=4)),
)


def pick_config(tokens: int, num_axes: int = 1) -> Config:
    """The configuration for a call; tables know one axis only."""
    config = next(config for most, config in CONFIGS if tokens <= most)
    return config if num_axes == 1 else replace(config, angles="phase")


@lru_cache(maxsize=64)
def has_pdl(where: torch.device) -> bool:
    """Programmatic dependent launch: Hopper and later."""
    return where.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(where)[0] >= 9


@lru_cache(maxsize=64)
def _has_fp8(where: torch.device) -> bool:
    return where.type != "cuda" or torch.cuda.get_device_capability(where) >= (8, 9)


def why_not(call: Call) -> str | None:
    """Why the Triton kernel cannot take a call, or None if it can."""
    x, spec, cache = call.q, call.spec, call.cache
    if not x.is_cuda and os.environ.get("TRITON_INTERPRET", "0") != "1":
        return f"it takes CUDA tensors, these are on {x.device}"
    if not _installed():
        return "triton is not installed; pip install triton"
    if spec.needs_length:
        return f"the frequencies of {type(spec.scaling).__name__} follow the length of a sequence"
    if spec.precision == "hf":
        return 'precision "hf" rounds angles to float32, and its own are exact'
    if spec.fractional:
        return "its angles are those of integer positions"
    if tables(spec, x.device).frequencies.growth is not None:
        return f"{type(spec.scaling).__name__} grows with the position"
    given = [t for t in (call.q, call.k, call.v, call.q_out, call.k_out, *call.weights) if t is not None]
    if wide := {t.dtype for t in given}.difference(DTYPES):
        return f"it computes in float32, so it takes float16, bfloat16 and float32, not {wide.pop()}"
    if any(t.stride(-1) != 1 for t in given):
        return "the last dimension is not contiguous"
    if cache is not None and cache.k.dtype not in DTYPES and not cache.quantised:
        return f"it does not write a cache of {cache.k.dtype}"
    if cache is not None and cache.quantised and not _has_fp8(x.device):
        return "float8 needs compute capability 8.9"
    return None


@lru_cache(maxsize=1)
def _installed() -> bool:
    return find_spec("triton") is not None
