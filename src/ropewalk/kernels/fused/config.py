"""How the fused kernel divides its work, and whether it can run at all. Needs no Triton."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec

import torch

from ropewalk.errors import RopeError, choice, integer
from ropewalk.kernels.fused.definition import Call
from ropewalk.kernels.triton.tuning import power
from ropewalk.spec import spec_of
from ropewalk.table import tables

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class Config:
    """One program takes `heads` heads of q, of k or of v, of `tokens` tokens, with `warps` warps.

    pdl     start while the kernel before is still running, where the GPU can
    load, store  hints for data that is not needed again soon: "evict_first" and ".cs"
    """

    tokens: int = 1
    heads: int = 8
    warps: int = 1
    pdl: bool = False
    load: str = ""
    store: str = ""

    def __post_init__(self) -> None:
        for name in ("tokens", "heads", "warps"):
            value = integer(name, getattr(self, name), low=1, high=1024)
            if value & (value - 1):
                raise RopeError(name, "must be a power of two", value)
        choice("load", self.load, ("", "evict_first", "evict_last"))
        choice("store", self.store, ("", ".cs", ".cg", ".wb", ".wt"))


#: (most tokens, configuration for heads of 128); the first that fits. At decode latency rules, at prefill bytes do
CONFIGS: tuple[tuple[float, Config], ...] = (
    (128, Config(heads=16, warps=4, pdl=True, load="evict_first", store=".cs")),
    (2048, Config(heads=16, warps=2, pdl=True, load="evict_first", store=".cs")),
    (float("inf"), Config(tokens=2, heads=16, warps=4, pdl=True, load="evict_first", store=".cs")),
)


#: the head_dim that CONFIGS are for, and the dims a warp should hold at least: fewer make narrow loads
HEAD_DIM, FEW_DIMS = 128, 256


@lru_cache(maxsize=256)
def pick_config(tokens: int, heads: int, head_dim: int) -> Config:
    """The configuration for `tokens` tokens of at most `heads` heads, fitted to heads of other widths."""
    config = next(config for most, config in CONFIGS if tokens <= most)
    width = power(head_dim)
    held = min(power(heads), max(1, config.heads * HEAD_DIM // width))
    warps = config.warps
    while warps > 1 and held * width < FEW_DIMS * warps:
        warps //= 2
    return replace(config, heads=held, warps=warps)


@lru_cache(maxsize=64)
def has_pdl(where: torch.device) -> bool:
    """Programmatic dependent launch: Hopper and later."""
    return where.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(where)[0] >= 9


@lru_cache(maxsize=64)
def _has_fp8(where: torch.device) -> bool:
    return where.type != "cuda" or torch.cuda.get_device_capability(where) >= (8, 9)


def refusal(call: Call) -> str | None:
    """Why the Triton kernel cannot take a call, or None if it can."""
    x, spec, cache = call.q, call.spec, call.cache
    if not x.is_cuda and os.environ.get("TRITON_INTERPRET", "0") != "1":
        return f"it takes CUDA tensors, these are on {x.device}"
    if reason := _spec_refusal(spec.fingerprint, x.device):
        return reason
    given = [t for t in (call.q, call.k, call.v, call.q_out, call.k_out, *call.weights) if t is not None]
    for t in given:
        if t.dtype not in DTYPES:
            return f"it computes in float32, so it takes float16, bfloat16 and float32, not {t.dtype}"
        if t.stride(-1) != 1:
            return "the last dimension is not contiguous"
    if cache is not None and cache.k.dtype not in DTYPES and not cache.quantised:
        return f"it does not write a cache of {cache.k.dtype}"
    if cache is not None and cache.quantised and not _has_fp8(x.device):
        return "float8 needs compute capability 8.9"
    return None


@lru_cache(maxsize=256)
def _spec_refusal(key: str, where: torch.device) -> str | None:
    """What speaks against a spec, asked once."""
    spec = spec_of(key)
    if find_spec("triton") is None:
        return "triton is not installed; pip install triton"
    if spec.needs_length:
        return f"the frequencies of {type(spec.scaling).__name__} follow the length of a sequence"
    if spec.precision == "hf":
        return 'precision "hf" rounds angles to float32, and its own are exact'
    if spec.fractional:
        return "its angles are those of integer positions"
    if tables(spec, where).frequencies.growth is not None:
        return f"{type(spec.scaling).__name__} grows with the position"
    return None
