"""The definition of the rotation in equivalent forms: half and interleaved pairs, complex numbers,
a matrix, and NumPy.

The two layouts differ only by a permutation of the dimensions. cos and sin have one entry per pair,
so one table serves both layouts.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import RopeError, choice, number
from ropewalk.spec import LAYOUTS


def split_pairs(x: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    """Return views [..., P] of the first and second members of the pairs of x [..., 2P].

    half         a0 a1 a2 b0 b1 b2
    interleaved  a0 b0 a1 b1 a2 b2
    """
    if layout == "half":
        half = x.shape[-1] // 2
        return x[..., :half], x[..., half:]
    return x[..., 0::2], x[..., 1::2]


def join_pairs(a: Tensor, b: Tensor, layout: str) -> Tensor:
    """Return x [..., 2P] made of the first and second members of pairs [..., P]: the inverse of
    `split_pairs`.
    """
    if layout == "interleaved":
        return torch.stack((a, b), dim=-1).reshape(*a.shape[:-1], 2 * a.shape[-1])
    return torch.cat((a, b), dim=-1)


def rotate(
    x: Tensor, cos: Tensor, sin: Tensor, layout: str, layout_out: str | None = None
) -> Tensor:
    """Return x [..., 2P] with every pair rotated by the angle whose cos and sin are in [..., P]:
    the two equations of RoPE.

    Arithmetic is in the dtype of cos and sin; the result is rounded once, to x's dtype, and has the
    layout `layout_out`, or `layout` if that is None.
    """
    a, b = (member.to(cos.dtype) for member in split_pairs(x, layout))
    return join_pairs(a * cos - b * sin, a * sin + b * cos, layout_out or layout).to(x.dtype)


def rotate_complex(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """Return x rotated as a product of complex numbers, (a + ib) e^{i angle}."""
    a, b = (member.to(cos.dtype) for member in split_pairs(x, layout))
    rotated = torch.complex(a, b) * torch.complex(cos, sin)
    return join_pairs(rotated.real, rotated.imag, layout).to(x.dtype)


def rotation_matrix(cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """Return the dense matrix R [..., 2P, 2P] with R x = rotate(x); for explanation, it is slow."""
    pairs = cos.shape[-1]
    # the dims of the first and of the second members of the pairs
    first, second = split_pairs(torch.arange(2 * pairs), layout)
    matrix = cos.new_zeros(*cos.shape[:-1], 2 * pairs, 2 * pairs)
    matrix[..., first, first] = cos
    matrix[..., second, second] = cos
    matrix[..., first, second] = -sin
    matrix[..., second, first] = sin
    return matrix


def rotate_vector(
    x: np.ndarray, position: int, theta: float = 10_000.0, layout: str = "interleaved"
) -> np.ndarray:
    """Return vectors [..., 2P] rotated at one position, float64, in NumPy: f(x, m) = x e^{i m
    theta_i} on each pair, with theta_i = theta^(-i / P).
    """
    x = np.asarray(x)
    if not x.ndim or x.shape[-1] % 2 or not x.shape[-1] or x.dtype.kind not in "iuf":
        got = [list(x.shape), str(x.dtype)]
        raise RopeError("x", "must be real numbers [..., d] with an even d of at least 2", got)
    choice("layout", layout, LAYOUTS)
    number("position", position)
    number("theta", theta, above=0)
    pairs = x.shape[-1] // 2
    angle = position * theta ** (-np.arange(pairs) / pairs)
    first = np.arange(pairs) if layout == "half" else 2 * np.arange(pairs)
    second = first + (pairs if layout == "half" else 1)
    y = np.empty(x.shape)
    y[..., first] = x[..., first] * np.cos(angle) - x[..., second] * np.sin(angle)
    y[..., second] = x[..., first] * np.sin(angle) + x[..., second] * np.cos(angle)
    return y
