"""The rotary functions of Meta's Llama code on our kernels: complex tables, neighbouring pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.errors import RopeError, integer
from ropewalk.frequencies import Default, Llama3
from ropewalk.rope import Rope
from ropewalk.rotation import rotate_by
from ropewalk.spec import RopeSpec

__all__ = ["apply_rotary_emb", "precompute_freqs_cis", "reshape_for_broadcast"]
#: what `use_scaled` means in Llama 3.1
LLAMA_31 = Llama3(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192)


def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0, use_scaled: bool = False) -> Tensor:
    """e^{i angle}, complex64 [end, dim / 2]: right to the last bit of float32 at every position."""
    spec = RopeSpec(dim, theta, LLAMA_31 if use_scaled else Default(), "interleaved", precision="hf_frequencies")
    return torch.complex(*Rope(spec).cos_sin(torch.arange(integer("end", end, low=1), device="cpu")))


def reshape_for_broadcast(freqs_cis: Tensor, x: Tensor) -> Tensor:
    """A table [S, P] as a view [1, S, 1, P] that broadcasts against x [B, S, H, P]."""
    if x.ndim < 2 or freqs_cis.shape != (x.shape[1], x.shape[-1]):
        raise RopeError(
            "freqs_cis", "must be [tokens, pairs] of x [B, tokens, ..., pairs]", [list(freqs_cis.shape), list(x.shape)]
        )
    return freqs_cis.view(*(size if axis in (1, x.ndim - 1) else 1 for axis, size in enumerate(x.shape)))


def apply_rotary_emb(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    """q and k [B, S, H, D] turned by a complex table [S, D / 2], or [B, S, D / 2] for positions of each row's own."""
    if not freqs_cis.is_complex():
        raise RopeError("freqs_cis", "must be complex: casting a module casts it to real numbers", freqs_cis.dtype)
    cos, sin = freqs_cis.real, freqs_cis.imag
    if 2 * cos.shape[-1] != xq.shape[-1]:
        raise RopeError("freqs_cis", f"must have {xq.shape[-1] // 2} pairs", list(freqs_cis.shape))
    q, k = (rotate_by(x, cos, sin, layout="interleaved", seq_dim=-3) for x in (xq, xk))
    return q, k
