"""How exact a rotation is, far away and in every dtype; and that nothing but a token's own position
decides its bits.
"""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

import ropewalk as rw
from helpers import (
    DTYPES,
    HEAD_DIM,
    backend_or_skip,
    definition,
    rotate_qk,
    sample_positions,
    sample_spec,
    ulps,
)
from ropewalk import rotation

FAR = 10**7
B, H, S = 3, 3, 7
every_backend = pytest.mark.parametrize("backend", rw.kernels.BACKENDS)
every_scaling = pytest.mark.parametrize("name", rw.frequencies.SCALINGS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


@every_backend
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_half_precision_is_rounded_once_at_ten_million(dtype, layout, backend):
    spec = rw.RopeSpec(128, theta=500_000.0, layout=layout)
    x = torch.randn(1, H, 64, 128).to(dtype)
    run_by = backend_or_skip(backend, x, spec)
    positions = FAR - torch.arange(64) * 997
    exact = definition(x, spec, positions)
    found = rotation.rotate(x, spec, positions, backend=run_by)
    assert ulps(found, exact) <= 1.05
    # rounded once, almost every value is the nearest one of its dtype
    assert float((found == exact.to(dtype)).double().mean()) > 0.99


@every_backend
@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
def test_float32_results_at_ten_million_are_off_by_few_roundings(theta, backend):
    spec = rw.RopeSpec(128, theta=theta)
    x = torch.randn(1, H, 64, 128)
    run_by = backend_or_skip(backend, x, spec)
    positions = FAR - torch.arange(64) * 997
    error = (
        (
            rotation.rotate(x, spec, positions, backend=run_by).double()
            - definition(x, spec, positions)
        )
        .abs()
        .max()
    )
    assert float(error) <= 2.5 * 2.0**-24 * float(x.abs().max())


@every_backend
def test_float64_tensors_are_rotated_in_float64(backend):
    """float64 input is rotated in float64: right to 1e-14 near position 0, and far away to 1e-8, the
    error of the definition itself.
    """
    spec = rw.RopeSpec(128)
    x = torch.randn(1, H, 32, 128, dtype=torch.float64)
    run_by = backend_or_skip(backend, x, spec)
    for start, tolerance in ((0, 1e-14), (FAR, 2e-8)):
        positions = torch.arange(32) + start
        assert_close(
            rotation.rotate(x, spec, positions, backend=run_by),
            definition(x, spec, positions),
            rtol=0,
            atol=5 * tolerance,
        )


@every_backend
@pytest.mark.parametrize("shift", [10**6, 2**40])
def test_scores_of_unit_vectors_are_the_same_after_a_far_shift(shift, backend):
    spec = rw.RopeSpec(128, theta=500_000.0)
    q, k = (torch.nn.functional.normalize(torch.randn(1, H, 32, 128), dim=-1) for _ in range(2))
    run_by = backend_or_skip(backend, q, spec)

    def scores(by):
        q_rotated, k_rotated = rotate_qk(q, k, spec, torch.arange(32) + by, backend=run_by)
        return q_rotated.double() @ k_rotated.double().mT

    assert float((scores(0) - scores(shift)).abs().max()) <= 1e-6


@every_backend
@pytest.mark.parametrize("start", [2**24, 2**31 - 1, 2**40])
def test_neighbouring_tokens_differ_by_one_radian_at_any_position(start, backend):
    """The fastest pair rotates by one radian a step, wherever the step is."""
    spec = rw.RopeSpec(2)
    x = torch.tensor([[[[1.0, 0.0]] * 2]])
    run_by = backend_or_skip(backend, x, spec)
    a, b = rotation.rotate(x, spec, torch.tensor([start, start + 1]), backend=run_by)[0, 0].double()
    assert_close(torch.dot(a, b), torch.tensor(1.0, dtype=torch.float64).cos(), rtol=0, atol=1e-6)


@every_dtype
def test_output_has_the_dtype_of_its_input(dtype):
    rope = rw.Rope(sample_spec())
    q, k = torch.randn(1, H, S, HEAD_DIM), torch.randn(1, 1, S, HEAD_DIM).to(dtype)
    for rotated in (rope(q, k), rope(q, k, inplace=True), rope(q.clone().requires_grad_(), k)):
        assert [x.dtype for x in rotated] == [torch.float32, dtype]
    assert rope.rotate(k).dtype == rope.unrotate(k).dtype == dtype
    assert rope.rerotate(k, torch.arange(S), torch.arange(S)).dtype == dtype


def call(name, dtype, backend):
    """Return a function that rotates x [.., S, D] at positions [B, S]; its length is fixed, so that
    parts of a sequence have the frequencies of the whole.
    """
    spec = sample_spec(name)
    length = 40 if spec.needs_length else None
    run_by = backend_or_skip(backend, torch.empty(B, H, S, HEAD_DIM, dtype=dtype), spec)
    return lambda x, positions=None, **where: rotation.rotate(
        x, spec, positions, length=length, backend=run_by, **where
    )


@pytest.mark.sampled(by=["backend"])
@every_backend
@every_dtype
@every_scaling
def test_a_row_head_or_token_rotated_alone_has_the_same_bits_as_in_the_whole_call(
    name, dtype, backend
):
    rotate_it = call(name, dtype, backend)
    x = torch.randn(B, H, S, HEAD_DIM).to(dtype)
    positions = torch.randint(0, 60 if name == "xpos" else 2**33, (B, S))
    if name != "xpos":
        positions[1] %= 1000  # near positions in row 1, far ones in the others
    whole = rotate_it(x, positions)
    for row in range(B):
        assert torch.equal(rotate_it(x[row : row + 1], positions[row]), whole[row : row + 1])
    for head in range(H):
        assert torch.equal(rotate_it(x[:, head : head + 1], positions), whole[:, head : head + 1])
    for token in range(S):
        assert torch.equal(
            rotate_it(x[:, :, token : token + 1], positions[:, token : token + 1]),
            whole[:, :, token : token + 1],
        )


@pytest.mark.sampled(by=["backend"])
@every_backend
@every_dtype
@every_scaling
def test_a_sequence_rotated_in_pieces_has_the_same_bits_as_in_one_call(name, dtype, backend):
    """Pieces that are placed by `offset` or by `positions` give the bits of one call that counts
    from 0.
    """
    rotate_it = call(name, dtype, backend)
    x = torch.randn(1, H, 41, HEAD_DIM).to(dtype)
    whole = rotate_it(x)
    pieces = [(0, 17), (17, 18), (18, 40), (40, 41)]
    assert torch.equal(torch.cat([rotate_it(x[:, :, a:b], offset=a) for a, b in pieces], 2), whole)
    assert torch.equal(
        torch.cat([rotate_it(x[:, :, a:b], torch.arange(a, b)) for a, b in pieces], 2), whole
    )
    assert torch.equal(rotate_it(x, torch.arange(41)[None]), whole)


@pytest.mark.parametrize("name", ["dynamic", "longrope", "dynamic_yarn"])
def test_each_row_follows_its_own_length(name):
    """In a call with a long and a short row, each rotates as if it were alone."""
    rope = rw.Rope(sample_spec(name))
    x = torch.randn(3, H, S, HEAD_DIM, dtype=torch.float64)
    positions = torch.stack([torch.arange(S), torch.arange(S) + 50, torch.arange(S) + 2])
    whole = rope(x, positions=positions)
    for row, last in enumerate((S - 1, S + 49, S + 1)):
        alone = rope(x[row : row + 1], positions=positions[row])
        assert torch.equal(whole[row : row + 1], alone)
        assert torch.equal(rope(x[row : row + 1], positions=positions[row], length=last + 1), alone)
        exact = definition(x[row : row + 1], rope.spec, positions[row], last + 1)
        assert_close(alone, exact, rtol=0, atol=1e-12)
    assert torch.equal(rope(x, positions=positions, length=torch.tensor([S, S + 50, S + 2])), whole)
    assert not torch.equal(rope(x, positions=positions, length=S), whole)


@pytest.mark.parametrize("name", ["dynamic", "longrope", "dynamic_yarn"])
@pytest.mark.parametrize("axis", ["chunked", "axial"])
def test_each_row_follows_its_own_length_on_every_axis(name, axis):
    spec = sample_spec(name, axis)
    x = torch.randn(2, H, S, spec.head_dim, dtype=torch.float64)
    positions = sample_positions(spec, 2, S, high=7)
    positions[:, 1] += 50
    last = positions.amax(dim=(0, 2)) + 1
    exact = definition(x, spec, positions, last)
    assert_close(rotation.rotate(x, spec, positions), exact, rtol=0, atol=1e-12)
