"""Drop-in for the rotary functions of Meta's Llama code: complex tables, interleaved pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.errors import RopeError, integer
from ropewalk.frequencies import Default, Llama3
from ropewalk.rope import Rope
from ropewalk.rotation import rotate_by
from ropewalk.spec import RopeSpec

__all__ = ["apply_rotary_emb", "precompute_freqs_cis", "reshape_for_broadcast"]
#: the scaling of Llama 3.1, for `use_scaled`
LLAMA_31 = Llama3(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192)


def precompute_freqs_cis(
    dim: int, end: int, theta: float = 10000.0, use_scaled: bool = False
) -> Tensor:
    """Return e^{i angle}, complex64 [end, dim / 2], of positions 0 ... end - 1. Frequencies are
    float32, as Meta's; angles are exact, and cos and sin are rounded to float32 once. `use_scaled`:
    with the scaling of Llama 3.1.
    """
    spec = RopeSpec(
        dim, theta, LLAMA_31 if use_scaled else Default(), "interleaved", precision="hf_frequencies"
    )
    return torch.complex(
        *Rope(spec).cos_sin(torch.arange(integer("end", end, low=1), device="cpu"))
    )


def reshape_for_broadcast(freqs_cis: Tensor, x: Tensor) -> Tensor:
    """Return the table [S, P] as a view [1, S, 1, P] that broadcasts against x [B, S, H, P]."""
    if x.ndim < 2 or freqs_cis.shape != (x.shape[1], x.shape[-1]):
        rule = "must be [tokens, pairs] for x [B, tokens, ..., pairs]"
        raise RopeError("freqs_cis", rule, [list(freqs_cis.shape), list(x.shape)])
    return freqs_cis.view(
        *(size if axis in (1, x.ndim - 1) else 1 for axis, size in enumerate(x.shape))
    )


def apply_rotary_emb(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate q and k [B, S, H, D] by a complex table [S, D / 2], or [B, S, D / 2] if positions
    differ by row.
    """
    if not freqs_cis.is_complex():
        raise RopeError(
            "freqs_cis",
            "must be complex; a cast to a real dtype drops the imaginary part",
            freqs_cis.dtype,
        )
    cos, sin = freqs_cis.real, freqs_cis.imag
    for x in (xq, xk):
        if 2 * cos.shape[-1] != x.shape[-1]:
            raise RopeError(
                "freqs_cis", f"must have {x.shape[-1] // 2} pairs", list(freqs_cis.shape)
            )
    q, k = (rotate_by(x, cos, sin, layout="interleaved", seq_dim=-3) for x in (xq, xk))
    return q, k
