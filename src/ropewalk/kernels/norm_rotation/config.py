"""How the fused kernel divides its work, and which calls it supports. Importing this does not
import Triton.

CONFIGS holds (most tokens, configuration), measured with heads of 128 dims. `cached` keeps the
results of a function's latest `entries` calls, under the name by which the list of all caches shows
them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ropewalk.caches import cached
from ropewalk.errors import RopeError, choice, integer
from ropewalk.kernels.norm_rotation.definition import NormRotationCall
from ropewalk.kernels.request import COMPUTED_IN_FLOAT32
from ropewalk.kernels.support import has_fp8, power_of_two, why_no_triton
from ropewalk.spec import spec_of
from ropewalk.table import tables


@dataclass(frozen=True)
class NormRotationConfig:
    """One program processes `heads` heads of q, k or v, of `tokens` tokens, with `warps` warps.

    pdl          start before the previous kernel ends, if the GPU supports it
    load, store  cache hints of the loads and of the stores; "evict_first" and ".cs" say that data
                 is not needed again soon, "" is no hint
    """

    tokens: int = 1
    heads: int = 8
    warps: int = 1
    pdl: bool = False
    load: str = ""
    store: str = ""

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("tokens", "heads", "warps"):
            value = integer(name, getattr(self, name), low=1, high=1024)
            if value & (value - 1):
                raise RopeError(name, "must be a power of two", value)
        choice("load", self.load, ("", "evict_first", "evict_last"))
        choice("store", self.store, ("", ".cs", ".cg", ".wb", ".wt"))


#: (largest number of tokens, configuration for head_dim 128); the first that fits is used.
#: Few tokens are limited by latency, many by bandwidth
CONFIGS: tuple[tuple[float, NormRotationConfig], ...] = (
    (128, NormRotationConfig(heads=16, warps=4, pdl=True, load="evict_first", store=".cs")),
    (2048, NormRotationConfig(heads=16, warps=2, pdl=True, load="evict_first", store=".cs")),
    (
        float("inf"),
        NormRotationConfig(tokens=2, heads=16, warps=4, pdl=True, load="evict_first", store=".cs"),
    ),
)

#: the head_dim of CONFIGS, and the fewest dims per warp: with fewer, the loads of a warp are narrow
HEAD_DIM, MIN_DIMS_PER_WARP = 128, 256


@cached("fused configurations", entries=256)
def pick_config(tokens: int, heads: int, head_dim: int) -> NormRotationConfig:
    """Return the configuration for `tokens` tokens with up to `heads` heads of q or of k: a row of
    CONFIGS, with fewer heads where they are wider, more where they are narrower, and fewer warps
    where the heads of a program have few dims together.
    """
    config = next(config for most, config in CONFIGS if tokens <= most)
    width = power_of_two(head_dim)
    block_heads = min(power_of_two(heads), max(1, config.heads * HEAD_DIM // width))
    warps = config.warps
    while warps > 1 and block_heads * width < MIN_DIMS_PER_WARP * warps:
        warps //= 2
    return replace(config, heads=block_heads, warps=warps)


def why_not_kernel(call: NormRotationCall) -> str | None:
    """Return why the Triton kernel does not support a call, or None if it does."""
    cache = call.cache
    if reason := why_no_triton(call.q) or why_not_spec(call.spec.fingerprint, call.q.device):
        return reason
    for t in (call.q, call.k, call.v, call.q_out, call.k_out, *call.weights):
        if t is not None and t.dtype not in COMPUTED_IN_FLOAT32:
            return (
                "the kernel computes in float32, so it takes float16, bfloat16 and float32, not "
                f"{t.dtype}"
            )
        if t is not None and t.stride(-1) != 1:
            return "the last dimension is not contiguous"
    if cache is not None and cache.k.dtype not in COMPUTED_IN_FLOAT32 and not cache.quantised:
        return f"the kernel does not write a cache of {cache.k.dtype}"
    if cache is not None and cache.quantised and not has_fp8(call.q.device):
        return "a float8 cache needs compute capability 8.9"
    return None


@cached("specs the fused kernel refuses", entries=256)
def why_not_spec(fingerprint: str, device: torch.device) -> str | None:
    """Return why kernels that compute exact angles cannot use the spec with this fingerprint, or
    None if they can.
    """
    spec = spec_of(fingerprint)
    if spec.needs_length:
        return (
            f"the frequencies of {type(spec.scaling).__name__} depend on the length of each "
            "sequence"
        )
    if spec.precision == "hf":
        return 'precision "hf" rounds angles to float32, but the kernel computes exact angles'
    if spec.fractional:
        return "the kernel takes integer positions, but this spec has fractional positions"
    if tables(spec, device).frequencies.growth is not None:
        return f"the magnitude of {type(spec.scaling).__name__} grows with the position"
    return None
