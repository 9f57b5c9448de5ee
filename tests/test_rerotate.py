"""rerotate: keys rotated at some positions become keys rotated at others, as if rebuilt from scratch."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

import ropewalk as rw
from door import assert_refused
from helpers import (
    DTYPES,
    HEAD_DIM,
    backend_or_skip,
    definition,
    sample_positions,
    sample_spec,
    ulps,
)
from ropewalk import frequencies, rotation
from tensor_forms import tensors

B, H, S = 2, 3, 7
every_backend = pytest.mark.parametrize("backend", rw.kernels.BACKENDS)


def rebuilt(k, spec, positions, length=None):
    """Return keys rotated by the definition, in float64."""
    return definition(k, spec, positions, length, key=True)


@pytest.mark.sampled(by=["backend"])
@every_backend
@pytest.mark.parametrize("name", rw.frequencies.SCALINGS)
@pytest.mark.parametrize("axis", ["one", "chunked", "axial"])
def test_shifted_keys_equal_rebuilt_ones(name, axis, backend):
    spec = sample_spec(name, axis)
    k = torch.randn(B, H, S, spec.head_dim, dtype=torch.float64)
    run_by = backend_or_skip(backend, k, spec)
    before, after = (sample_positions(spec, B, S, high=60) for _ in range(2))
    length = 20 if spec.needs_length else None
    found = rotation.rerotate(
        rebuilt(k, spec, before, length),
        spec,
        before,
        after,
        from_length=length,
        to_length=length,
        backend=run_by,
    )
    assert_close(found, rebuilt(k, spec, after, length), rtol=0, atol=1e-11)


CHANGES = {
    "base": {"theta": 500_000.0},
    "scaling": {"scaling": frequencies.Linear(factor=4.0)},
    "layout": {"layout": "interleaved"},
    "layout out": {"layout": "half", "layout_out": "interleaved"},
    "fewer dims": {"rotary_dim": 6},
    "other dims": {"rotary_start": 4},
    "all dims": {"rotary_start": 0, "rotary_dim": HEAD_DIM},
    "precision": {"precision": "hf_frequencies"},
}


@every_backend
@pytest.mark.parametrize("change", CHANGES)
def test_keys_moved_to_another_spec_equal_rebuilt_ones(change, backend):
    spec = sample_spec()
    to = spec.with_(**CHANGES[change])
    k = torch.randn(B, H, S, HEAD_DIM, dtype=torch.float64)
    run_by = backend_or_skip(backend, k, spec)
    before, after = (sample_positions(spec, B, S) for _ in range(2))
    found = rotation.rerotate(rebuilt(k, spec, before), spec, before, after, to=to, backend=run_by)
    if change == "layout":
        # the expected keys have the same pairs in the places of the other layout
        first, second = k[..., 2:7].clone(), k[..., 7:12].clone()
        k = k.clone()
        k[..., 2:12:2], k[..., 3:12:2] = first, second
    assert_close(found, rebuilt(k, to, after), rtol=0, atol=1e-11)


@every_backend
def test_rerotated_keys_keep_their_magnitude_unless_match_magnitude_is_given(backend):
    """Keys with YaRN's magnitude, rerotated to another factor of YaRN, keep the magnitude of the old
    factor by default and get that of the new one with match_magnitude.
    """
    spec, to = (
        sample_spec("yarn"),
        sample_spec("yarn").with_(scaling=frequencies.Yarn(factor=16.0, original_length=64)),
    )
    old, new = (float(tensors(s).magnitude) for s in (spec, to))
    assert abs(old - new) > 0.1
    k = torch.randn(B, H, S, HEAD_DIM, dtype=torch.float64)
    run_by = backend_or_skip(backend, k, spec)
    before, after = (sample_positions(spec, B, S) for _ in range(2))
    rotated = rebuilt(k, spec, before)
    matched = rotation.rerotate(
        rotated, spec, before, after, to=to, match_magnitude=True, backend=run_by
    )
    assert_close(matched, rebuilt(k, to, after), rtol=0, atol=1e-11)
    kept = rotation.rerotate(rotated, spec, before, after, to=to, backend=run_by)
    assert_close(
        kept[..., 2:12], rebuilt(k, to, after)[..., 2:12] * (old / new), rtol=0, atol=1e-11
    )
    assert torch.equal(kept[..., :2], k[..., :2])


def test_match_magnitude_works_if_the_rotated_slices_differ():
    spec = sample_spec("yarn")
    to = spec.with_(rotary_dim=6)
    k = torch.randn(B, H, S, HEAD_DIM, dtype=torch.float64)
    before, after = (sample_positions(spec, B, S) for _ in range(2))
    rotated = rebuilt(k, spec, before)
    matched = rotation.rerotate(rotated, spec, before, after, to=to, match_magnitude=True)
    assert_close(matched, rebuilt(k, to, after), rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["dynamic", "dynamic_yarn", "longrope"])
def test_keys_follow_a_grown_length(name):
    """Keys cached with the frequencies of one length are rerotated to those of a longer one, as
    decoding past the trained length needs.
    """
    spec = sample_spec(name)
    k, positions = torch.randn(B, H, S, HEAD_DIM, dtype=torch.float64), torch.arange(S)
    found = rotation.rerotate(
        rebuilt(k, spec, positions, 7),
        spec,
        positions,
        positions,
        from_length=7,
        to_length=30,
        match_magnitude=True,
    )
    assert_close(found, rebuilt(k, spec, positions, 30), rtol=0, atol=1e-11)
    rows = rotation.rerotate(
        rebuilt(k, spec, positions, 7),
        spec,
        positions,
        positions,
        from_length=7,
        to_length=torch.tensor([30, 90]),
        match_magnitude=True,
    )
    assert_close(rows[1:], rebuilt(k, spec, positions, 90)[1:], rtol=0, atol=1e-11)


@every_backend
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("change", ["base", "fewer dims"])
def test_rerotated_keys_are_rounded_once(dtype, change, backend):
    """bf16 keys moved by millions are within 2 ulp of rebuilt ones: one rounding for the cache, one
    for the move.
    """
    spec = sample_spec()
    to = spec.with_(**CHANGES[change])
    k = torch.randn(B, H, S, HEAD_DIM).to(dtype)
    run_by = backend_or_skip(backend, k, spec)
    before, after = (torch.randint(0, 10**7, (B, S)) for _ in range(2))
    cached = rotation.rotate(k, spec, before, backend=run_by)
    found = rotation.rerotate(cached, spec, before, after, to=to, backend=run_by)
    assert found.dtype == dtype
    # the cached keys, which are rounded once already, moved by the definition
    exact = rebuilt(rotated_backwards(cached, spec, before), to, after)
    if dtype in (torch.float16, torch.bfloat16):
        assert ulps(found, exact) <= 2
    else:
        assert_close(found.double(), exact, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-7)


def rotated_backwards(k, spec, positions):
    """Return k rotated by the definition at minus its positions."""
    return definition(k, spec, -positions, key=True)


def test_rerotation_in_place_has_the_same_bits_and_gradients_are_right():
    spec, to = sample_spec(), sample_spec(theta=500.0)
    before, after = torch.arange(S), torch.arange(S) + 100
    for target in (to, to.with_(rotary_dim=6)):
        k = torch.randn(B, H, S, HEAD_DIM)
        expected = rotation.rerotate(k, spec, before, after, to=target)
        own = k.clone()
        assert rotation.rerotate(own, spec, before, after, to=target, inplace=True) is own
        assert torch.equal(own, expected)
        x = torch.randn(1, 1, 2, HEAD_DIM, dtype=torch.float64, requires_grad=True)
        move = lambda y, target=target: rotation.rerotate(y, spec, before[:2], after[:2], to=target)
        assert torch.autograd.gradcheck(move, x, atol=1e-9)
        assert_refused(
            "inplace",
            lambda target=target: rotation.rerotate(
                torch.randn(1, 1, S, HEAD_DIM).expand(1, H, -1, -1),
                spec,
                before,
                after,
                to=target,
                inplace=True,
            ),
        )


@pytest.mark.parametrize("change", ["layout", "layout out"])
def test_rerotation_to_another_layout_and_another_slice_is_refused(change):
    """Which pair moves where is defined only if both specs rotate the same dimensions."""
    spec, k, positions = sample_spec(), torch.randn(B, H, S, HEAD_DIM), torch.arange(S)
    other = spec.with_(**CHANGES[change], **CHANGES["fewer dims"])
    assert_refused("to", lambda: rotation.rerotate(k, spec, positions, positions, to=other))
    assert_refused("to", lambda: rotation.rerotate(k, other, positions, positions, to=spec))


def test_rope_rerotates_with_its_own_settings_and_refuses_learned_frequencies():
    rope, other = (
        rw.Rope(sample_spec()),
        rw.Rope(sample_spec(theta=500.0, layout_out="interleaved")),
    )
    k = torch.randn(B, H, S, HEAD_DIM, dtype=torch.float64)
    before, after = torch.arange(S), torch.arange(S) + 100
    found = rope.rerotate(rope.rotate(k, before, key=True), before, after, to=other)
    assert_close(found, rebuilt(k, other.spec, after), rtol=0, atol=1e-11)
    moved = rope.rerotate(rope.rotate(k, before), before, after)
    assert_close(moved, rebuilt(k, rope.spec, after), rtol=0, atol=1e-11)
    learned = rw.Rope(sample_spec("learnable"))
    assert_refused("rerotate", lambda: learned.rerotate(k, before, after))
    error = assert_refused("rerotate", lambda: rope.rerotate(k, before, after, to=learned))
    assert error.value == learned.spec.scaling
    # the module has its own backend and tables, so the call accepts neither
    for name in ("backend", "tables"):
        with pytest.raises(TypeError, match=name):
            rope.rerotate(k, before, after, **{name: "eager"})
