"""Rotation by learned frequencies and by tables that need gradients: in place, and by the backend
of the module.
"""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

import ropewalk as rw
from ropewalk import axes, frequencies, rotation

SPECS = {
    "learnable": rw.RopeSpec(8, scaling=frequencies.Learnable()),
    "mixed": rw.RopeSpec(8, axes=axes.MixedAxes(num_heads=2, pairs=4)),
}


@pytest.mark.parametrize("name", SPECS)
def test_learned_frequencies_have_gradients_in_place(name):
    rope, positions = (
        rw.Rope(SPECS[name]),
        torch.rand(2, 1, 3) if name == "mixed" else torch.arange(3),
    )
    x = torch.randn(1, 2, 3, 8, requires_grad=True)

    def gradients(inplace):
        rotated = rope(2 * x, positions=positions, inplace=inplace)
        return torch.autograd.grad(rotated.pow(3).sum(), (x, *rope.parameters()))

    assert_close(gradients(inplace=True), gradients(inplace=False))


def test_a_tensor_without_gradient_is_rotated_in_place_by_learned_frequencies():
    rope, x = rw.Rope(SPECS["learnable"]), torch.randn(1, 1, 3, 8)
    expected = rope(x.clone())
    found = rope(x, inplace=True)
    assert found is x
    assert_close(found, expected)
    (ours,) = torch.autograd.grad(found.pow(3).sum(), rope.log_scale)
    assert_close(ours, torch.autograd.grad(expected.pow(3).sum(), rope.log_scale)[0])


def test_tables_have_gradients_in_place():
    angles, x = (
        torch.randn(3, 4, dtype=torch.float64, requires_grad=True),
        torch.randn(1, 1, 3, 8, dtype=torch.float64),
    )
    function = lambda angles, inplace: rotation.rotate_by(
        x.clone(), angles.cos(), angles.sin(), layout="half", inplace=inplace
    )
    assert torch.autograd.gradcheck(lambda angles: function(angles, True), angles)
    assert_close(function(angles, True), function(angles, False))


@pytest.mark.parametrize("call", ["forward", "rotate", "unrotate"])
def test_learned_frequencies_use_the_backend_of_the_module(call):
    rope, x = rw.Rope(SPECS["learnable"], backend="triton"), torch.randn(1, 1, 3, 8)
    with torch.no_grad(), pytest.raises(rw.RopeError, match="triton"):
        getattr(rope, call)(x)


FAR = 2**24 + 1  # the first integer that float32 does not have


@pytest.mark.parametrize("position", [FAR, 2**30 + 7, 2**40 + 1])
def test_learned_frequencies_tell_positions_apart_that_float32_does_not(position):
    """cos and sin of position * theta^(-i/4), with 50 digits."""
    from mpmath import mp, mpf

    rope = rw.Rope(SPECS["learnable"])
    x = torch.zeros(1, 1, 1, 8, dtype=torch.float64)
    x[..., :4] = 1.0  # (1, 0) of every pair of the half layout
    found = rope(x, positions=torch.tensor([position])).detach()[0, 0, 0]
    with mp.workdps(50):
        angles = [mpf(position) * mpf(10_000) ** (mpf(-i) / 4) for i in range(4)]
        expected = [float(mp.cos(a)) for a in angles] + [float(mp.sin(a)) for a in angles]
    # the error of a float64 angle grows with the angle
    atol = 4 * position * 2**-53
    assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=atol)
    near = rope(x, positions=torch.tensor([position - 1])).detach()[0, 0, 0]
    assert float((found - near)[0].abs()) > 1e-3


def test_mixed_frequencies_tell_positions_apart_that_float32_does_not():
    rope = rw.Rope(SPECS["mixed"])
    with torch.no_grad():
        rope.mixed.fill_(1.0)
    x = torch.ones(1, 2, 1, 8, dtype=torch.float64)
    at = lambda row: rope(x, positions=torch.tensor([[[row]], [[0]]]).double()).detach()
    assert float((at(FAR) - at(FAR - 1)).abs().max()) > 0.1
