"""Samples of every registry, and the definition of a rotation in NumPy complex numbers, written
apart from the package.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import ropewalk as rw
from ropewalk import axes, frequencies
from ropewalk.kernels import BACKENDS
from ropewalk.kernels.request import Request
from tensor_forms import tensors

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: largest allowed error of a rotation of numbers of size 1, by dtype: one rounding of the result,
#: and the float32 or float64 arithmetic before it
TOLERANCE = {
    torch.float16: 2.0**-10,
    torch.bfloat16: 2.0**-7,
    torch.float32: 2.0**-21,
    torch.float64: 1e-12,
}

#: ten rotated dimensions, with two unrotated ones before and two after them, so that a wrong slice
#: is seen
HEAD_DIM, ROTARY_DIM, ROTARY_START = 14, 10, 2

#: every kind of axis map over five pairs; `axial` has six, because scalings with a factor for each
#: pair need axes with equally many pairs
AXES = {
    "one": None,
    "chunked": axes.chunked([2, 1, 2]),
    "interleaved": axes.interleaved([2, 2, 1]),
    "ernie": axes.ernie([2, 2, 1]),
    "round_robin": axes.round_robin([3, 2]),
    "axial": axes.axial(3, 3),
}


def sample_scaling(name: str, pairs: int = ROTARY_DIM // 2) -> frequencies.Scaling:
    """Return a scaling whose every parameter matters: short trained lengths, factors that differ
    from 1.
    """
    spread = tuple(1.0 + 0.5 * i for i in range(pairs))
    samples = {
        "default": lambda: frequencies.Default(),
        "linear": lambda: frequencies.Linear(factor=2.5),
        "ntk": lambda: frequencies.Ntk(factor=3.0),
        "ntk_by_parts": lambda: frequencies.NtkByParts(factor=4.0, original_length=64),
        "dynamic": lambda: frequencies.Dynamic(factor=2.0, original_length=8),
        "yarn": lambda: frequencies.Yarn(factor=4.0, original_length=64, beta_fast=8.0),
        "dynamic_yarn": lambda: frequencies.DynamicYarn(
            original_length=8, beta_fast=4.0, beta_slow=0.1
        ),
        "longrope": lambda: frequencies.LongRope(
            short_factor=spread,
            long_factor=tuple(3.0 * f for f in spread),
            original_length=8,
            factor=4.0,
        ),
        "llama3": lambda: frequencies.Llama3(factor=8.0, original_length=64),
        "proportional": lambda: frequencies.Proportional(factor=2.0, fraction=0.7),
        "linear_frequencies": lambda: frequencies.LinearFrequencies(),
        "riflex": lambda: frequencies.Riflex(frames=40, repeat=30),
        "xpos": lambda: frequencies.XPos(scale_base=64.0, center=3),
        "given": lambda: frequencies.Given(
            radians=tuple((-0.4) ** i for i in range(pairs)), magnitude=1.5
        ),
        "learnable": lambda: frequencies.Learnable(start=frequencies.Linear(factor=2.0)),
        "clipped": lambda: frequencies.Clipped(
            frequencies.Yarn(factor=4.0, original_length=64, beta_fast=8.0), pairs=3
        ),
        "learned": lambda: frequencies.Learned(
            frequencies.Linear(factor=2.0), alpha=tuple(0.3 - 0.2 * i for i in range(pairs))
        ),
    }
    return samples[name]()


def sample_spec(name: str = "default", axis: str = "one", **changes) -> rw.RopeSpec:
    """Return a spec of one scaling over one axis map, with unrotated dimensions on both sides."""
    axis_map = AXES[axis]
    pairs = ROTARY_DIM // 2 if axis_map is None else axis_map.pairs
    ladder = pairs if axis_map is None else len(axis_map.ladders()[0][0])
    fields = {
        "head_dim": 2 * pairs + 4,
        "rotary_dim": 2 * pairs,
        "rotary_start": ROTARY_START,
        "axes": axis_map,
    }
    return rw.RopeSpec(**{**fields, "scaling": sample_scaling(name, ladder), **changes})


def x_of(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return random activations, [2, 3, 7, D] unless a shape is given."""
    return torch.randn(shape or (2, 3, 7, HEAD_DIM)).to(dtype)


def sample_positions(spec: rw.RopeSpec, batch: int, seq: int, high: int = 1000) -> Tensor:
    """Return random positions of the spec's own shape: [B, S] or [axes, B, S]."""
    shape = (batch, seq) if spec.num_axes == 1 else (spec.num_axes, batch, seq)
    return torch.randint(0, high, shape)


def members(spec: rw.RopeSpec, layout: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the second dimension of every pair."""
    pair = np.arange(spec.pairs)
    first, second = (pair, pair + spec.pairs) if layout == "half" else (2 * pair, 2 * pair + 1)
    return spec.rotary_start + first, spec.rotary_start + second


def rotate_qk(
    q: Tensor, k: Tensor, spec: rw.RopeSpec, positions: Tensor | None = None, *, backend=None, **how
):
    """Return q and k rotated in one call by a named backend."""
    return rw.Rope(spec, backend=backend)(q, k, positions, **how)


def factors(spec: rw.RopeSpec, positions: Tensor, length=None, key: bool = False) -> np.ndarray:
    """Return the complex number [..., S, pairs] that multiplies each pair: A e^{i F p}, where F p is
    summed over the axes.

    float64 angles: right to 1e-9 up to position 10^7. Frequencies come from the spec; their
    formulas have tests of their own.
    """
    found = tensors(spec, length)
    radians = found.radians.numpy()
    points = positions.double().numpy()
    if spec.axes is None:
        angle = points[..., None] * (radians[:, None, :] if radians.ndim == 2 else radians)
        nearest = points[..., None]
    else:
        # [pairs, axes] or [B, 1, pairs, axes]
        per_row = radians if radians.ndim == 2 else radians[:, None]
        angle = (np.moveaxis(points, 0, -1)[..., None, :] * per_row).sum(-1)
        nearest = np.moveaxis(points[list(spec.axis_of_pair)], 0, -1)
    size = np.asarray(found.magnitude, dtype=np.float64)
    size = size[:, None, None] if size.ndim else size
    size = {"qk": size, "q": np.ones(()) if key else size**2, "scale": np.ones(())}[
        spec.magnitude_on
    ]
    if found.growth is not None:
        size = size * np.exp((nearest - found.center) * found.growth.numpy() * (-1 if key else 1))
    return size * np.exp(1j * angle)


def definition(
    x: Tensor, spec: rw.RopeSpec, positions: Tensor, length=None, key: bool = False
) -> Tensor:
    """Return x [B, H, S, D] rotated in complex float64."""
    z = factors(spec, positions, length, key)
    z = z[:, None] if z.ndim == 3 else z
    wide = x.detach().double().numpy()
    out = wide.copy()
    first, second = members(spec, spec.layout)
    rotated = (wide[..., first] + 1j * wide[..., second]) * z
    first, second = members(spec, spec.output_layout)
    out[..., first], out[..., second] = rotated.real, rotated.imag
    return torch.from_numpy(out)


def backend_or_skip(name: str, x: Tensor, spec: rw.RopeSpec, seq_dim: int = -2) -> str:
    """Return the backend's name, or skip the test with the reason why the backend does not support
    this tensor.
    """
    if reason := BACKENDS[name].why_not(x, Request(spec, seq_dim)):
        pytest.skip(f"backend {name}: {reason}")
    return name


def widest(backend: str, spec: rw.RopeSpec) -> tuple[torch.dtype, float]:
    """Return the widest dtype that a backend supports and its error on numbers of size 1; skip if
    it supports none.
    """
    if not BACKENDS[backend].why_not(
        torch.empty(1, 1, 1, spec.head_dim, dtype=torch.float64), Request(spec, -2)
    ):
        return torch.float64, 1e-12
    backend_or_skip(backend, torch.empty(1, 1, 1, spec.head_dim), spec)
    return torch.float32, 1e-5


def ulps(found: Tensor, exact: Tensor) -> float:
    """Return the largest distance of `found` from `exact`, in units in the last place that the exact
    value has in `found`'s dtype.
    """
    info = torch.finfo(found.dtype)
    unit = torch.exp2(torch.floor(torch.log2(exact.abs().clamp(min=info.tiny)))) * info.eps
    return float(((found.double() - exact).abs() / unit).max())


def exactly(found: Tensor, exact: Tensor, tolerance: float = 3e-6) -> None:
    """Check that values equal float64 values within an absolute tolerance."""
    assert_close(found.double(), exact, rtol=0, atol=tolerance)
