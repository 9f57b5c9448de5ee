"""The last value accepted and the first refused, what an omitted argument means, and in-place calls
that are traced.
"""

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import ropewalk as rw
from door import assert_refused
from ropewalk import axes, positions
from ropewalk import frequencies as fq
from ropewalk.caches import _CACHES, Cache
from ropewalk.rotation import rotate_by_phase
from ropewalk.spec import spec_of
from ropewalk.tracing import is_traced

PAIRS, SEQ = 4, 5
SPEC = rw.RopeSpec(2 * PAIRS)
MOST = 2**31


def at_offset(offset):
    return rw.Rope(SPEC)(torch.zeros(1, 1, 2, 2 * PAIRS), offset=offset)


#: field -> calls with a value just outside its bounds; tensors on the device "meta" take no memory
OUTSIDE = {
    "alpha": [
        lambda: fq.Learned(alpha=(50.5,) * PAIRS),
        lambda: fq.Learned(alpha=(-50.5,) * PAIRS),
        lambda: rw.RopeSpec(2 * PAIRS, scaling=fq.Learned(alpha=(0.1,) * 3)),
    ],
    "pairs": [
        lambda: fq.Clipped(pairs=-1),
        lambda: axes.HeadAxes((0, 1), 0, 2),
        lambda: axes.HeadAxes((0, 1), 32769, 2),
        lambda: fq.geometric(1, 0.1, 1.0),
    ],
    "zeros": [
        lambda: fq.geometric(5, 0.1, 1.0, zeros=-1),
        lambda: fq.geometric(5, 0.1, 1.0, zeros=4),
    ],
    "seq": [
        lambda: positions.consecutive(MOST + 1, device="meta"),
        lambda: positions.consecutive(-1),
    ],
    "height": [
        lambda: positions.patch_centres(MOST + 1, 1, device="meta"),
        lambda: positions.patch_centres(0, 1),
    ],
    "width": [lambda: positions.patch_centres(1, MOST + 1, device="meta")],
    "jitter": [lambda: positions.augmented(torch.zeros(2, 1, 1), jitter=0.9)],
    "rescale": [lambda: positions.augmented(torch.zeros(2, 1, 1), rescale=0.9)],
    "offset": [lambda: at_offset(2**62), lambda: at_offset(-(2**62))],
    "length": [lambda: rw.Rope(SPEC).table_bytes(0)],
}


@pytest.mark.parametrize("field", OUTSIDE)
def test_the_first_value_out_of_bounds_is_refused_by_field(field):
    for call in OUTSIDE[field]:
        with pytest.raises(rw.RopeError) as error:
            call()
        assert error.value.field.split("[")[0] == field


def test_the_last_values_within_bounds_are_accepted():
    rw.RopeSpec(2 * PAIRS, scaling=fq.Learned(alpha=(50.0, -50.0, 0.0, 0.0)))
    assert fq.Clipped(pairs=0) != fq.Clipped()
    assert axes.HeadAxes((0, 1), 1, 2).pairs == 1
    assert positions.consecutive(MOST, device="meta").shape == (MOST,)
    assert_close(positions.augmented(torch.ones(2, 1, 1), jitter=1, rescale=1), torch.ones(2, 1, 1))
    assert rw.Rope(SPEC).table_bytes(1) == rw.Rope(SPEC).table_bytes(2)


@pytest.mark.parametrize("offset", [2**62 - SEQ - 1, 2**61 + 3, -(2**62) + 1])
def test_the_largest_offsets_rotate_as_the_same_positions_do(offset):
    x = torch.randn(1, 2, SEQ, 2 * PAIRS)
    assert_close(
        rw.Rope(SPEC)(x, offset=offset), rw.Rope(SPEC)(x, positions=offset + torch.arange(SEQ))
    )


@pytest.mark.parametrize("zeros", [0, 2])
def test_geometric_frequencies_have_equal_ratios_after_the_zeros(zeros):
    found = fq.geometric(5, 0.5, 8.0, zeros=zeros).radians
    assert found[:zeros] == (0.0,) * zeros
    assert len(found) == 5
    steps = 4 - zeros
    assert found[zeros:] == pytest.approx([0.5 * 16 ** (i / steps) for i in range(steps + 1)])


def test_tokens_are_the_axis_before_the_last_unless_said_otherwise():
    """In x [B, S, D] as well as in [B, H, S, D]. `forward` counts positions from 0, so the first
    token stays as it is.
    """
    phase = torch.randn(SEQ, PAIRS, dtype=torch.float64)
    for shape in ((3, SEQ, 2 * PAIRS), (2, 3, SEQ, 2 * PAIRS)):
        x = torch.randn(shape, dtype=torch.float64)
        z = torch.complex(x[..., :PAIRS], x[..., PAIRS:]) * torch.polar(
            torch.ones_like(phase), phase
        )
        assert_close(rotate_by_phase(x, phase), torch.cat((z.real, z.imag), dim=-1))
        assert_close(rw.Rope(SPEC).forward(x)[..., 0, :], x[..., 0, :])


def test_a_rope_with_trained_frequencies_keeps_no_tables():
    assert rw.Rope(rw.RopeSpec(8, scaling=fq.Learnable())).table_bytes(100) == 0


def test_a_live_spec_is_found_by_its_fingerprint():
    spec = rw.RopeSpec(8, theta=12_345.0)
    assert spec_of(spec.fingerprint) is spec


def test_per_head_says_whether_heads_have_frequencies_of_their_own():
    assert rw.RopeSpec(8, axes=axes.HeadAxes((0, 1), 4, 2)).per_head is True
    assert SPEC.per_head is False


def test_an_emptied_cache_holds_no_bytes():
    cache = Cache("of this test", entries=3, bytes=100)
    try:
        cache.keep("a", 1, 60)
        assert cache.info().bytes == 60
        cache.clear()
        assert cache.info().bytes == 0
    finally:
        del _CACHES["of this test"]


class _Other(torch.Tensor):
    """A subclass of Tensor: its code may observe every operation."""


def test_a_call_with_one_tensor_subclass_counts_as_traced():
    plain, other = torch.ones(2), torch.ones(2).as_subclass(_Other)
    assert is_traced((plain, other))
    assert is_traced((other, plain))
    assert not is_traced((plain, torch.nn.Parameter(plain)))


class _Watched(TorchDispatchMode):
    """A mode that records the names of the operators that run under it."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.name())
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("needs_grad", [False, True])
def test_a_traced_call_in_place_changes_its_tensors(needs_grad):
    """Without gradients, an operator writes into q and k; with gradients, an operator returns the
    result, which is copied into them.
    """
    q, k = torch.randn(2, 1, 2, SEQ, 2 * PAIRS, dtype=torch.float64)
    expected = [rw.Rope(SPEC, backend="reference").rotate(x) for x in (q, k)]
    mine = [x.clone().requires_grad_(needs_grad) * 1 for x in (q, k)]
    with _Watched() as watched:
        found = rw.Rope(SPEC)(*mine, inplace=True)
    assert any(name.startswith("ropewalk::rotate") for name in watched.seen)
    for given, returned, right in zip(mine, found, expected, strict=True):
        assert given is returned
        assert_close(given.detach(), right)


def test_a_named_backend_that_needs_a_last_stride_of_1_is_refused_for_other_strides():
    x = torch.randn(1, 1, 2 * PAIRS, SEQ).transpose(-1, -2)
    assert_close(rw.Rope(SPEC)(x), rw.Rope(SPEC)(x.contiguous()))
    reason = rw.kernels.available("cpu")["cpu"]
    if reason is not None:
        pytest.skip(reason)
    assert_refused("backend", lambda: rw.Rope(SPEC, backend="cpu")(x))
