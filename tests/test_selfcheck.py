"""The self-check: its oracle agrees with mpmath, this machine is within its bounds, and a broken kernel
is beyond them.
"""

from decimal import Decimal

import mpmath
import numpy as np
import pytest
import torch

from ropewalk import Rope, RopeSpec
from ropewalk.kernels import BACKENDS, Backend
from ropewalk.kernels.request import Request
from ropewalk.kernels.rotation import eager
from ropewalk.spec import PRECISIONS
from ropewalk_lab import selfcheck


def test_the_frequencies_of_the_definition_are_powers_of_theta():
    with mpmath.workdps(50):
        expected = [mpmath.power(500_000, -mpmath.mpf(2 * i) / 10) for i in range(5)]
        for ours, theirs in zip(selfcheck.definition(5, 500_000.0), expected, strict=True):
            assert abs(mpmath.mpf(str(ours)) / theirs - 1) < mpmath.mpf(10) ** -45


@pytest.mark.parametrize("position", [0, 1, 131_071, 10_000_019, 2**40 + 3])
def test_true_angles_are_those_of_mpmath(position):
    radians = [0.865964323360065, 1e-4, 1.0]
    angles = selfcheck.true_angles([Decimal(r) for r in radians], [position])
    with mpmath.workdps(60):
        expected = [
            (
                float(mpmath.cos(position * mpmath.mpf(r))),
                float(mpmath.sin(position * mpmath.mpf(r))),
            )
            for r in radians
        ]
    np.testing.assert_allclose(
        np.stack([np.cos(angles[0]), np.sin(angles[0])], -1), expected, rtol=0, atol=3e-15
    )


@pytest.mark.parametrize("policy", PRECISIONS)
@pytest.mark.parametrize("position", selfcheck.POSITIONS)
def test_the_error_of_every_precision_is_within_its_bound(policy, position):
    row = selfcheck.precision(policy, position, width=4)
    assert row.ok, row


def test_no_precision_is_within_the_bound_of_a_more_exact_one():
    errors = {policy: selfcheck.precision(policy, 131_072, width=16) for policy in PRECISIONS}
    assert (
        errors["exact"].error < 1e-7 < 1e-3 < errors["hf_frequencies"].error <= errors["hf"].error
    )
    for policy in ("hf_frequencies", "hf"):
        as_exact = selfcheck.Precision(
            "exact", 131_072, errors[policy].error, errors[policy].own_error
        )
        assert not as_exact.ok
    assert not selfcheck.Precision(
        "hf_frequencies", 131_072, errors["hf_frequencies"].error, errors["hf"].own_error
    ).ok


def test_every_law_holds_on_this_machine():
    assert {law.name: law.error for law in selfcheck.laws() if not law.ok} == {}


def test_words_in_another_order_differ_only_with_positions():
    """Attention written out in NumPy is the reference: without positions no word's output changes,
    with RoPE it does.
    """
    assert selfcheck.order_difference(None) < 1e-14
    words = torch.randn(
        3, 128, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    ).numpy()
    angles = np.outer(np.arange(3), 10_000.0 ** (-np.arange(64) / 64))

    def attended(x):
        pairs = (x[:, :64] + 1j * x[:, 64:]) * np.exp(1j * angles)
        weights = np.exp(np.real(pairs @ pairs.conj().T) / np.sqrt(128))
        return weights / weights.sum(-1, keepdims=True) @ x

    expected = np.abs(attended(words) - attended(words[::-1])[::-1]).max()
    assert expected > 1e-4
    assert selfcheck.order_difference(Rope(RopeSpec(128))) == pytest.approx(expected, rel=1e-6)


def test_a_law_beyond_its_bound_fails_the_report():
    good, bad = selfcheck.Law("good", 1e-9, 1e-6), selfcheck.Law("bad", 2e-6, 1e-6)
    assert selfcheck.gather([good]).ok
    assert not selfcheck.gather([good, bad]).ok
    assert not selfcheck.gather([selfcheck.Law("not a number", float("nan"), 1e-6)]).ok


@pytest.mark.parametrize("dtype", selfcheck.DTYPES)
@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_is_within_its_bound_or_says_why_not(name, dtype):
    row = selfcheck.backend_speed(name, dtype, tokens=5, seconds=0)
    assert row.reason or (
        row.ok and row.bound is not None and row.milliseconds is not None and row.milliseconds > 0
    ), row


def broken(change):
    """Return a backend that runs the eager kernel for changed requests, so that its results are wrong."""

    def run(xs, outs, request: Request):
        eager.run(xs, outs, change(request))

    return Backend(eager.why_not, run)


MISTAKES = {
    "rotates backwards": lambda request: Request(
        request.spec, request.seq_dim, request.positions, sign=-1
    ),
    "pairs of the other layout": lambda request: Request(
        request.spec.with_(layout=other(request.spec.layout), layout_out=None),
        -2,
        request.positions,
    ),
    "one position late": lambda request: Request(
        request.spec, request.seq_dim, request.positions + 1
    ),
    "float32 angles": lambda request: Request(
        request.spec.with_(precision="hf"), request.seq_dim, request.positions
    ),
    "a magnitude of its own": lambda request: Request(
        RopeSpec(128, scaling=stretched(), layout=request.spec.layout), -2, request.positions
    ),
}


def other(layout):
    return "half" if layout == "interleaved" else "interleaved"


def stretched():
    from ropewalk.frequencies import Yarn

    return Yarn(factor=1.1, original_length=1 << 30)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_broken_kernel_is_caught(monkeypatch, mistake):
    # timed calls have no positions and stay right; the calls that measure the error have positions
    change = lambda request: request if request.positions is None else MISTAKES[mistake](request)
    monkeypatch.setitem(BACKENDS, "broken", broken(change))
    row = selfcheck.backend_speed("broken", "bfloat16", tokens=2, seconds=0)
    assert not row.ok, row


def test_plain_torch_rotate_half_is_right_near_zero_and_lost_far_away():
    x = torch.randn(1, 2, 3, selfcheck.HEAD_DIM)
    positions = torch.tensor([0, 1, 2])
    rotated = selfcheck._hf_style(x, positions)
    angles = positions[:, None].double() * 10_000.0 ** (-torch.arange(64).double() / 64)
    a, b = x.double().chunk(2, dim=-1)
    expected = torch.cat(
        [a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1
    )
    torch.testing.assert_close(rotated.double(), expected, rtol=0, atol=2e-6)
    assert selfcheck.hf_style_speed("float32", tokens=3, seconds=0).error > 0.1


def test_steps_cover_every_policy_law_dtype_and_backend():
    names = [name for name, _ in selfcheck.steps(tokens=3)]
    wanted = [f"precision {p}" for p in PRECISIONS] + ["laws"]
    wanted += [
        f"{name} {dtype}"
        for dtype in selfcheck.DTYPES
        for name in ("copy", "rotate_half", *BACKENDS)
    ]
    assert sorted(names) == sorted(wanted)


def test_each_step_measures_what_its_name_says():
    by_name = dict(selfcheck.steps(tokens=2))
    assert {row.policy for row in by_name["precision hf"]()} == {"hf"}
    (row,) = by_name["eager float32"]()
    assert (row.name, row.dtype) == ("eager", "float32")


def test_clock_returns_a_median_of_at_least_three_calls():
    calls = []
    assert selfcheck.clock(lambda: calls.append(1), seconds=0) >= 0
    assert len(calls) == 4  # three, after one to warm up
