"""Laws of the native CPU kernel; those with the fixture `isa` run once for every instruction set
that this machine has.
"""

import gc
import itertools
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import torch

from ropewalk import table
from ropewalk.errors import RopeError
from ropewalk.frequencies import XPos, Yarn
from ropewalk.kernels import pick
from ropewalk.kernels.cpu import backend as cpu
from ropewalk.kernels.cpu import call, library
from ropewalk.kernels.request import Request, TableRequest
from ropewalk.spec import RopeSpec

MISSING = cpu.why_not(torch.zeros(1, 1, 1, 2), Request(RopeSpec(head_dim=2), -2))
pytestmark = pytest.mark.skipif(
    MISSING is not None, reason=f"the native kernel is not here: {MISSING}"
)

DTYPES = list(cpu.DTYPES)
LAYOUTS = list(call.LAYOUTS)
#: bits of the significand, the hidden one included
PRECISION = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


@pytest.fixture(params=list(library.isas()) or ["none"])
def isa(request):
    library.choose_isa(request.param)
    yield request.param
    library.choose_isa()


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def members(pairs, layout):
    """Return the dimensions of the first and of the second members of the pairs."""
    index = np.arange(pairs)
    return (index, index + pairs) if layout == "half" else (2 * index, 2 * index + 1)


def exact(x, positions, spec, sign=1):
    """x [B, H, S, D] rotated at positions [B, S] by the definition, in float64."""
    layout_in, layout_out = (spec.layout, spec.output_layout)[::sign]
    radians = spec.theta ** -(np.arange(spec.pairs) / spec.pairs)
    factor = np.exp(1j * sign * positions.double().numpy()[:, None, :, None] * radians)
    source, y = x.double().numpy(), x.double().numpy().copy()
    first, second = (spec.rotary_start + m for m in members(spec.pairs, layout_in))
    rotated = (source[..., first] + 1j * source[..., second]) * factor
    first, second = (spec.rotary_start + m for m in members(spec.pairs, layout_out))
    y[..., first], y[..., second] = rotated.real, rotated.imag
    return torch.from_numpy(y)


def assert_rounded_once(y, expected, largest):
    """Check that y is `expected`, computed in float32 and rounded once to y's dtype."""
    inside = 2.5 * 2.0**-24 * largest
    smallest = torch.finfo(y.dtype).smallest_normal
    unit = 2.0 ** (expected.abs().clamp(min=smallest).log2().floor() - PRECISION[y.dtype] + 1)
    allowed = inside if y.dtype == torch.float32 else 0.5 * unit + inside
    assert ((y.double() - expected).abs() <= allowed).all()


def rotated(x, request):
    out = torch.full_like(x, 7)
    cpu.run((x,), (out,), request)
    return out


def same_bits(x, y):
    return x.dtype == y.dtype and x.shape == y.shape and np.array_equal(bits(x), bits(y))


def bits(x):
    return x.contiguous().view(torch.int32 if x.element_size() == 4 else torch.int16).numpy()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("layout", "layout_out"), list(itertools.product(LAYOUTS, LAYOUTS)))
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_pair_rotates_by_its_angle_and_other_dims_stay(isa, dtype, layout, layout_out, sign):
    spec = RopeSpec(
        head_dim=61, rotary_dim=54, rotary_start=3, layout=layout, layout_out=layout_out
    )
    x, positions = torch.randn(2, 3, 7, 61).to(dtype), torch.randint(0, 100_000, (2, 7))
    y = rotated(x, Request(spec, -2, positions, sign=sign))
    assert_rounded_once(y, exact(x, positions, spec, sign), x.abs().max().double())
    assert same_bits(y[..., :3], x[..., :3])
    assert same_bits(y[..., 57:], x[..., 57:])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_number_of_pairs_rotates_in_place_or_not_and_writes_only_its_output(isa, dtype, layout):
    for pairs in range(1, 68):
        spec = RopeSpec(head_dim=2 * pairs, layout=layout)
        x, positions = torch.randn(1, 2, 2, 2 * pairs).to(dtype), torch.tensor([[5, 901]])
        room = torch.full((1, 2, 2, 2 * pairs + 40), 7.0, dtype=dtype)
        out = room[..., 20:-20]
        cpu.run((x,), (out,), Request(spec, -2, positions))
        assert_rounded_once(out, exact(x, positions, spec), x.abs().max().double())
        assert (room[..., :20] == 7).all()
        assert (room[..., -20:] == 7).all()
        cpu.run((x,), (x,), Request(spec, -2, positions))
        assert same_bits(x, out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairs", [5, 64])
def test_strides_and_batches_do_not_change_a_bit(isa, dtype, pairs):
    """[B, H, S, D] dense, from [B, S, H, D], from [S, B, H, D], from a fused qkv buffer, expanded,
    and a row alone.
    """
    head_dim = 2 * pairs
    spec = RopeSpec(head_dim=head_dim, layout="interleaved")
    x, positions = torch.randn(2, 3, 7, head_dim).to(dtype), torch.randint(0, 5000, (2, 7))
    dense = rotated(x, Request(spec, -2, positions))
    for order in itertools.permutations(range(3)):
        back = [order.index(axis) for axis in range(3)]
        view = x.permute(*order, 3).contiguous().permute(*back, 3)
        assert same_bits(rotated(view, Request(spec, -2, positions)), dense)
    qkv = torch.randn(2, 7, 9, head_dim).to(dtype)
    qkv[:, :, 3:6] = x.transpose(1, 2)
    assert same_bits(rotated(qkv[:, :, 3:6], Request(spec, -3, positions)).transpose(1, 2), dense)
    assert same_bits(rotated(x[1, 2], Request(spec, -2, positions[1])), dense[1, 2])
    one_head = x[:, :1].expand(2, 3, 7, head_dim)
    assert same_bits(rotated(one_head, Request(spec, -2, positions)), dense[:, :1].expand_as(x))


@pytest.mark.parametrize(("layout", "layout_out"), list(itertools.product(LAYOUTS, LAYOUTS)))
@pytest.mark.parametrize(
    ("dtype", "pairs"), [*((dtype, 64) for dtype in DTYPES), (torch.float32, 24)]
)
def test_results_of_16_mib_or_more_equal_those_computed_in_parts(
    isa, dtype, pairs, layout, layout_out
):
    """From 16 MiB on stores may go past the caches, but not into new memory, and not where y begins
    within a vector.
    """
    spec = RopeSpec(head_dim=2 * pairs, layout=layout, layout_out=layout_out)
    tokens = (17 << 20) // (2 * pairs * torch.empty((), dtype=dtype).element_size() * 2)
    x = torch.randn(tokens, 2 * pairs).to(dtype).expand(1, 2, tokens, 2 * pairs)
    parts = rotated(x[:, :1], Request(spec, -2)).expand_as(x)
    new = torch.empty(x.shape, dtype=dtype)
    cpu.run((x,), (new,), Request(spec, -2))
    assert torch.equal(new, parts)
    for shift in (0, 1):
        room = torch.full((x.numel() + 64,), 7.0, dtype=dtype)
        out = room[shift : shift + x.numel()].view(x.shape)
        cpu.run((x,), (out,), Request(spec, -2))
        assert torch.equal(out, parts)
        assert (room[:shift] == 7).all()
        assert (room[shift + x.numel() :] == 7).all()
    last = torch.arange(tokens - 3, tokens)[None]
    assert_rounded_once(out[:, :, -3:], exact(x[:, :, -3:], last, spec), x.abs().max().double())


def test_every_order_and_number_of_axes_gives_the_same_rotation():
    """Packed [T, H, D], [B, S, D], [S, B, H, D] and six axes give what [B, H, S, D] gives."""
    spec = RopeSpec(head_dim=10)
    x, positions = torch.randn(2, 3, 7, 10), torch.randint(0, 5000, (2, 7))
    dense = rotated(x, Request(spec, -2, positions))
    assert same_bits(
        rotated(x[0].transpose(0, 1), Request(spec, -3, positions[0])).transpose(0, 1), dense[0]
    )
    assert same_bits(rotated(x[:, 0], Request(spec, -2, positions)), dense[:, 0])
    assert same_bits(
        rotated(x.permute(2, 0, 1, 3), Request(spec, -4, positions)).permute(1, 2, 0, 3), dense
    )
    six = x.reshape(2, 3, 1, 7, 1, 10).expand(2, 3, 4, 7, 5, 10).contiguous()
    assert same_bits(
        rotated(six, Request(spec, -3, positions)), dense.reshape(2, 3, 1, 7, 1, 10).expand_as(six)
    )


def test_a_tensor_with_strides_beyond_32_bits_is_rotated():
    memory = torch.empty(2**31 + 64, dtype=torch.float16)  # only two pages of it are ever touched
    x = memory.as_strided((1, 2, 1, 10), (0, 2**31 + 16, 16, 1))
    x.copy_(torch.randn(1, 2, 1, 10))
    spec = RopeSpec(head_dim=10)
    expected = exact(x, torch.tensor([[9]]), spec)
    cpu.run((x,), (x,), Request(spec, -2, offset=9))
    assert_rounded_once(x, expected, expected.abs().max())


def positions_of(kind):
    """(positions as given, the same as [2, 7])."""
    if kind == "far":
        far = torch.randint(10**7 - 50, 10**7, (2, 7))
        return far, far
    near = torch.randint(0, 2**20, (2, 7))
    near[0, 0], near[1, 6] = 2**20 - 1, 0
    given = {
        "rows": near,
        "shared": near[0],
        "one row": near[:1],
        "int32": near.int(),
        "strided": near.t().contiguous().t(),
        "every other": near.repeat_interleave(2, dim=1)[:, ::2],
        "negative": -near,
    }[kind]
    return given, given.expand(2, 7).long()


@pytest.mark.parametrize(
    "kind", ["rows", "shared", "one row", "int32", "strided", "every other", "negative", "far"]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_positions_of_every_shape_stride_and_range_equal_the_definition(dtype, kind):
    spec, x = RopeSpec(head_dim=20), torch.randn(2, 3, 7, 20).to(dtype)
    given, full = positions_of(kind)
    assert_rounded_once(
        rotated(x, Request(spec, -2, given)), exact(x, full, spec), x.abs().max().double()
    )


@pytest.mark.parametrize("offset", [0, 37, 5000, 2**20 - 3, 10**7, -4])
@pytest.mark.parametrize("seq", [7, 300])
def test_without_positions_tokens_are_counted_from_the_offset(seq, offset):
    spec, x = RopeSpec(head_dim=20), torch.randn(1, 2, seq, 20)
    y = rotated(x, Request(spec, -2, offset=offset))
    assert_rounded_once(
        y, exact(x, torch.arange(offset, offset + seq)[None], spec), x.abs().max().double()
    )


# the magnitude of xPos grows without bound, so its positions stay small
@pytest.mark.parametrize(
    ("scaling", "reaches"),
    [(Yarn(factor=4.0, original_length=64), (2**20, 2**40)), (XPos(), (2000,))],
)
@pytest.mark.parametrize("power", [1, -1])
def test_cos_and_sin_made_by_the_library_have_the_bits_of_the_table(isa, scaling, reaches, power):
    """The unit pair (1, 0) is rotated to (cos, sin): bit for bit those of `table.cos_sin`, whether
    the library computes them or reads rows of them.
    """
    spec = RopeSpec(head_dim=22, scaling=scaling, layout="interleaved", magnitude_on="q")
    x = torch.tensor([1.0, 0.0]).repeat(11).expand(2, 1, 7, 22).contiguous()
    for key, reach in itertools.product((False, True), reaches):
        positions = torch.randint(0, reach, (2, 7))
        cos, sin = table.cos_sin(spec, positions, magnitude_power=power, key=key)
        y = rotated(x, Request(spec, -2, positions, magnitude_power=power, key=key))
        assert same_bits(y[:, 0, :, 0::2], cos)
        assert same_bits(y[:, 0, :, 1::2], sin)


def test_query_and_key_in_one_call_equal_two_calls():
    q, k = torch.randn(2, 6, 5, 24), torch.randn(2, 2, 5, 24)
    yarn = Yarn(factor=4.0, original_length=64)
    for scaling, magnitude_on in ((yarn, "q"), (yarn, "qk"), (XPos(), "qk")):
        spec = RopeSpec(head_dim=24, scaling=scaling, magnitude_on=magnitude_on)
        for keys in (k, k.bfloat16(), k.transpose(1, 2).contiguous().transpose(1, 2)):
            outs = torch.empty_like(q), torch.empty_like(keys)
            cpu.run((q, keys), outs, Request(spec, -2, offset=11))
            assert same_bits(outs[0], rotated(q, Request(spec, -2, offset=11)))
            assert same_bits(outs[1], rotated(keys, Request(spec, -2, offset=11, key=True)))


@pytest.mark.parametrize(("layout", "layout_out"), list(itertools.product(LAYOUTS, LAYOUTS)))
@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place_has_the_bits_of_out_of_place_and_changes_nothing_else(
    isa, dtype, layout, layout_out
):
    spec = RopeSpec(
        head_dim=50, rotary_dim=46, rotary_start=2, layout=layout, layout_out=layout_out
    )
    qkv = torch.randn(2, 7, 8, 50).to(dtype)
    before = qkv.clone()
    q, k = qkv[:, :, :4], qkv[:, :, 4:6]
    request = Request(spec, -3, torch.randint(0, 5000, (2, 7)))
    expected = rotated(q, request), rotated(k, request)
    cpu.run((q, k), (q, k), request)
    assert same_bits(q, expected[0])
    assert same_bits(k, expected[1])
    assert same_bits(qkv[:, :, 6:], before[:, :, 6:])


@pytest.mark.parametrize(
    "shape", [(7, 6), (2, 7, 6), (1, 7, 6), (2, 3, 7, 6), (1, 3, 7, 6), (2, 1, 7, 6)]
)
@pytest.mark.parametrize("seq_dim", [-2, -3])
def test_given_tables_broadcast_over_missing_batch_and_head_axes(shape, seq_dim):
    angle = torch.rand(*shape[:-2], shape[-1], shape[-2], dtype=torch.float64).transpose(-1, -2)
    x = torch.randn(2, 3, 7, 12)
    a, b = x.double().chunk(2, dim=-1)
    placed = angle.reshape(*(1,) * (4 - len(shape)), *shape) if len(shape) != 3 else angle[:, None]
    cos, sin = placed.cos(), placed.sin()
    expected = torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
    view = x if seq_dim == -2 else x.transpose(1, 2).contiguous()
    request = TableRequest(angle.cos(), angle.sin().contiguous(), seq_dim, "half", "half")
    assert cpu.why_not(view, request) is None
    y = rotated(view, request)
    assert_rounded_once(y if seq_dim == -2 else y.transpose(1, 2), expected, x.abs().max().double())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_16_bit_value_is_rounded_once_and_nan_stays_nan(isa, dtype, layout):
    values = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    angle = torch.tensor([[0.7, 2.0, 4.0]], dtype=torch.float64)
    cos, sin = angle.cos().float(), angle.sin().float()
    a, b = values[:, None].expand(-1, 3), values.flip(0).roll(77)[:, None].expand(-1, 3)
    pair = (a, b) if layout == "half" else (torch.stack((a, b), dim=-1).flatten(-2),)
    y = rotated(
        torch.cat(pair, dim=-1)[:, None].contiguous(), TableRequest(cos, sin, -2, layout, layout)
    )[:, 0]
    first, second = (torch.from_numpy(m) for m in members(3, layout))
    # one float32 product, one fused or separate sum: both orders of rounding are a correct result
    wide_a, wide_b = a.double(), b.double()
    for got, expected in (
        (y[:, first], wide_a * cos - wide_b * sin),
        (y[:, second], wide_a * sin + wide_b * cos),
    ):
        assert torch.equal(got.isnan(), expected.isnan())
        finite = expected.isfinite() & (expected.abs() < torch.finfo(dtype).max)
        largest = torch.maximum(wide_a.abs(), wide_b.abs())[finite]
        assert_rounded_once(got[finite], expected[finite], largest)
        overflow = expected.abs() > torch.finfo(dtype).max * 1.01
        assert got[overflow & ~expected.isnan()].isinf().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_of_any_payload_in_a_given_table_stays_nan(isa, dtype):
    payloads = torch.tensor([0x7FFFFFFF, -1, 0x7F800001, 0x7FFF8000], dtype=torch.int32).view(
        torch.float32
    )[None]
    y = rotated(
        torch.ones(1, 1, 8, dtype=dtype),
        TableRequest(payloads, torch.ones(1, 4), -2, "half", "half"),
    )
    assert y.isnan().all()


@pytest.mark.parametrize("shape", [(0, 3, 7, 10), (2, 0, 7, 10), (2, 3, 0, 10)])
def test_empty_tensors_are_accepted(isa, shape):
    spec, x, k = RopeSpec(head_dim=10), torch.zeros(shape), torch.zeros(shape[0], 4, shape[2], 10)
    for positions in (None, torch.zeros(shape[0], shape[2], dtype=torch.int64)):
        request = Request(spec, -2, positions)
        assert cpu.why_not(x, request) is None
        cpu.run((x, k), (torch.empty_like(x), torch.empty_like(k)), request)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "shape", [(1, 4, 601, 64), (3, 1, 701, 96), (1, 257, 1, 640), (5, 13, 3, 1024)]
)
def test_a_call_divided_among_threads_equals_each_head_alone(shape, layout):
    spec = RopeSpec(head_dim=shape[-1], layout=layout)
    q, k = torch.randn(shape), torch.randn(shape).transpose(1, 2).contiguous().transpose(1, 2)
    outs = torch.full_like(q, 7), torch.full_like(k, 7)
    positions = torch.randint(0, 5000, (shape[0], shape[2]))
    cpu.run((q, k), outs, Request(spec, -2, positions))
    for x, y in zip((q, k), outs, strict=True):
        for batch in range(shape[0]):
            for head in range(shape[1]):
                # small enough for one thread
                alone = rotated(x[batch, head], Request(spec, -2, positions[batch]))
                assert same_bits(y[batch, head], alone)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("pool", [*library.POOLS, "serial"])
def test_every_thread_pool_gives_the_same_bits(pool):
    spec, x, positions = (
        RopeSpec(head_dim=64),
        torch.randn(2, 8, 401, 64),
        torch.randint(0, 5000, (2, 401)),
    )
    expected = torch.stack(
        [
            rotated(x[batch], Request(spec, -2, positions[batch : batch + 1].expand(8, -1)))
            for batch in range(2)
        ]
    )
    joined = library.join_pool(*(name for name in library.POOLS if name == pool))
    try:
        assert joined in (pool, "serial")  # an older or newer torch may lack one
        assert same_bits(rotated(x, Request(spec, -2, positions)), expected)
    finally:
        library.join_pool(*library.POOLS)


@pytest.mark.usefixtures("two_threads")
def test_eight_threads_may_call_at_once():
    specs = [RopeSpec(head_dim=64, theta=10_000.0 + caller) for caller in range(8)]
    xs = [torch.randn(1, 4, 300 + 100 * caller, 64) for caller in range(8)]
    expected = [
        exact(x, torch.arange(x.shape[2])[None], spec) for x, spec in zip(xs, specs, strict=True)
    ]
    wrong = []

    def call(caller):
        for _ in range(5):
            y = rotated(xs[caller], Request(specs[caller], -2))
            if not torch.allclose(y.double(), expected[caller], rtol=0, atol=1e-6):
                wrong.append(caller)

    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_does_not_wait_for_the_threads_of_its_parent():
    script = """
        import os, signal, torch
        from ropewalk.kernels.cpu import backend as cpu
        from ropewalk.kernels.request import Request
        from ropewalk.spec import RopeSpec
        torch.set_num_threads(2)
        x, request = torch.randn(1, 8, 512, 64), Request(RopeSpec(head_dim=64), -2)
        parent = torch.empty_like(x)
        cpu.run((x,), (parent,), request)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            out = torch.empty_like(x)
            cpu.run((x,), (out,), request)
            os._exit(0 if bytes(out.numpy()) == bytes(parent.numpy()) else 1)
        assert os.waitpid(child, 0)[1] == 0
        """
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)], check=True, timeout=60
    )


def test_tables_dropped_from_the_cache_are_built_again():
    spec, x = RopeSpec(head_dim=10, theta=777.0), torch.randn(1, 1, 3, 10)
    before = rotated(x, Request(spec, -2, offset=5))
    table.TABLES.clear()
    gc.collect()
    assert same_bits(rotated(x, Request(spec, -2, offset=5)), before)


def test_the_native_backend_is_picked_where_it_runs_and_says_why_elsewhere():
    request = Request(RopeSpec(head_dim=10), -2)
    x = torch.zeros(1, 2, 3, 10)
    assert pick((x,), request).run is cpu.run
    assert pick((x, x.double()), request).run is not cpu.run
    assert "float64" in cpu.why_not(x.double(), request)
    assert "stride 1" in cpu.why_not(torch.zeros(1, 2, 10, 3).transpose(-1, -2), request)
    assert "CPU" in cpu.why_not(x.to("meta"), request)
    assert "axes" in cpu.why_not(x.reshape(*(1,) * 7, 2, 3, 10), request)
    assert "memory" in cpu.why_not(torch._efficientzerotensor(1, 2, 3, 10), request)
    assert "negative" in cpu.why_not(torch._neg_view(x), request)
    for shape in ((2, 3, 5), (1, 4, 3, 5), (4, 5)):
        wrong = torch.zeros(shape)
        assert "tables" in cpu.why_not(x, TableRequest(wrong, wrong, -2, "half", "half"))


def test_a_missing_or_broken_library_is_a_reason_not_a_crash(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "_PATH", tmp_path / "_cpu.so")
    handle, reason = library._load()
    assert handle is None
    assert "C compiler" in reason
    (tmp_path / "_cpu.so").write_bytes(b"not a library")
    handle, reason = library._load()
    assert handle is None
    assert "does not load" in reason
    monkeypatch.setattr(library, "handle", handle)
    monkeypatch.setattr(library, "missing", reason)
    x = torch.zeros(1, 1, 1, 2)
    assert cpu.why_not(x, Request(RopeSpec(head_dim=2), -2)) == reason
    assert pick((x,), Request(RopeSpec(head_dim=2), -2)).run is not cpu.run


def test_an_unknown_instruction_set_is_refused():
    with pytest.raises(RopeError, match="portable"):
        library.choose_isa("abacus")
