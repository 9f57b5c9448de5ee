"""The public API on a CUDA device against the float64 definition: every feature, no
synchronisation, graph-safe.
"""

import itertools

import pytest
import torch

import ropewalk as rw
from ropewalk import axes, frequencies
from ropewalk.kernels.request import align
from ropewalk.kernels.rotation import definition
from ropewalk.tensor_frequencies import ladder

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
ULP = {torch.float32: 4 * 2**-24, torch.bfloat16: 1.05 * 2**-8, torch.float16: 1.05 * 2**-11}
ORDERS = {
    "bshd": (-3, (2, 7, 3, 10)),
    "bhsd": (-2, (2, 3, 7, 10)),
    "sbhd": (-4, (7, 2, 3, 10)),
    "thd": (-3, (7, 3, 10)),
}


def rotated_by_definition(x, spec, positions, seq_dim, *, key=False, length=None):
    """Return x rotated in float64 on the CPU, by cos and sin of float64 angles, which are exact
    enough for small positions only.
    """
    found = ladder(spec, length)
    where = torch.as_tensor(positions).cpu()
    coordinates = (
        where[..., None] if spec.num_axes == 1 else where[list(spec.axis_of_pair)].movedim(0, -1)
    )
    radians = found.radians if found.radians.ndim == 1 else found.radians[:, None]
    size = torch.as_tensor(found.magnitude, dtype=torch.float64)
    size = size[:, None, None] if size.ndim else size
    if found.growth is not None:
        size = size * ((coordinates - found.center) * found.growth * (-1 if key else 1)).exp()
    angles = coordinates.double() * radians
    x = x.cpu().double()
    cos, sin = align(angles.cos() * size, x, seq_dim), align(angles.sin() * size, x, seq_dim)
    start, stop = spec.rotary_start, spec.rotary_start + spec.rotated_dims
    middle = definition.rotate(x[..., start:stop], cos, sin, spec.layout, spec.output_layout)
    return torch.cat((x[..., :start], middle, x[..., stop:]), dim=-1)


def assert_near(ours, exact, dtype):
    bound = ULP[dtype] * exact.abs().amax(dim=-1, keepdim=True).clamp(min=1e-3) * 1.5
    worst = ((ours.cpu().double() - exact).abs() - bound).max().item()
    assert worst <= 0, f"beyond one rounding by {worst}"


@pytest.mark.parametrize("dtype", ULP, ids=str)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_every_memory_order_layout_and_dtype_equals_the_definition(order, layout, dtype):
    seq_dim, shape = ORDERS[order]
    spec = rw.RopeSpec(head_dim=10, layout=layout)
    x = torch.randn(shape, device=CUDA).to(dtype)
    got = rw.Rope(spec).rotate(x, seq_dim=seq_dim)
    assert_near(got, rotated_by_definition(x, spec, torch.arange(7), seq_dim), dtype)


@pytest.mark.parametrize("head_dim", [16, 20, 64, 96, 128, 192, 256, 512])
@pytest.mark.parametrize("seq", [1, 5, 133])
@pytest.mark.parametrize(("order", "seq_dim"), [("bshd", -3), ("bhsd", -2)])
def test_every_head_dim_and_length_with_grouped_heads_equals_the_definition(
    head_dim, seq, order, seq_dim
):
    heads, kv_heads = 6, 2
    spec = rw.RopeSpec(head_dim=head_dim)
    shape = lambda h: (3, seq, h, head_dim) if order == "bshd" else (3, h, seq, head_dim)
    q, k = (
        torch.randn(shape(heads), device=CUDA).bfloat16(),
        torch.randn(shape(kv_heads), device=CUDA).bfloat16(),
    )
    positions = torch.randint(0, 5000, (3, seq), device=CUDA)
    got_q, got_k = rw.Rope(spec)(q, k, positions, seq_dim=seq_dim)
    assert_near(got_q, rotated_by_definition(q, spec, positions, seq_dim), torch.bfloat16)
    assert_near(got_k, rotated_by_definition(k, spec, positions, seq_dim), torch.bfloat16)


@pytest.mark.parametrize(
    "spec",
    [
        rw.RopeSpec(head_dim=26, rotary_dim=10, rotary_start=6),
        rw.RopeSpec(head_dim=24, rotary_dim=14, layout="interleaved", layout_out="half"),
        rw.RopeSpec(head_dim=16, scaling=frequencies.Yarn(factor=4.0, original_length=64)),
        rw.RopeSpec(head_dim=16, scaling=frequencies.XPos()),
        rw.RopeSpec(head_dim=16, scaling=frequencies.Llama3(factor=8.0, original_length=64)),
        rw.RopeSpec(head_dim=16, axes=axes.chunked([2, 3, 3])),
        rw.RopeSpec(head_dim=16, axes=axes.axial(4, 4), theta=100.0),
    ],
    ids=["slice", "deinterleave", "yarn", "xpos", "llama3", "mrope", "axial"],
)
@pytest.mark.parametrize("inplace", [False, True])
def test_specs_of_every_kind_equal_the_definition_and_are_undone_by_unrotate(spec, inplace):
    q, k = (
        torch.randn(2, 3, 7, spec.head_dim, device=CUDA),
        torch.randn(2, 1, 7, spec.head_dim, device=CUDA),
    )
    shape = (2, 7) if spec.num_axes == 1 else (spec.num_axes, 2, 7)
    positions = torch.randint(0, 300, shape, device=CUDA)
    exact_q = rotated_by_definition(q, spec, positions, -2)
    exact_k = rotated_by_definition(k, spec, positions, -2, key=True)
    got_q, got_k = rw.Rope(spec)(q, k, positions, inplace=inplace)
    assert inplace == (got_q.data_ptr() == q.data_ptr())
    assert_near(got_q, exact_q, torch.float32)
    assert_near(got_k, exact_k, torch.float32)
    back = rw.Rope(spec).unrotate(got_q, positions)
    torch.testing.assert_close(back, q if not inplace else back, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    "scaling",
    [
        frequencies.Dynamic(factor=2.0, original_length=16),
        frequencies.DynamicYarn(original_length=16),
        frequencies.LongRope(
            short_factor=(1.0,) * 8, long_factor=(1.5,) * 8, original_length=16, factor=4.0
        ),
    ],
    ids=lambda s: s.name,
)
def test_frequencies_follow_each_rows_own_length(scaling):
    spec = rw.RopeSpec(head_dim=16, scaling=scaling)
    x = torch.randn(2, 3, 40, 16, device=CUDA)
    positions = torch.stack([torch.arange(40), torch.arange(40) // 4]).to(CUDA)
    length = torch.tensor([40, 10])
    assert_near(
        rw.Rope(spec).rotate(x, positions),
        rotated_by_definition(x, spec, positions, -2, length=length),
        torch.float32,
    )


@pytest.mark.parametrize(
    ("position", "limit"),
    [(10**7, 2e-7), (-(10**7), 2e-7), (2**31, 2e-7), (2**36, 2e-7), (2**40, 5e-7)],
)
def test_far_positions_follow_the_published_formula(position, limit):
    mpmath = pytest.importorskip("mpmath")
    spec, x = rw.RopeSpec(head_dim=16), torch.zeros(1, 1, 1, 16, device=CUDA)
    x[..., :8] = 1.0
    got = (
        rw.Rope(spec)
        .rotate(x, torch.tensor([position], device=CUDA))[0, 0, 0]
        .cpu()
        .double()
        .tolist()
    )
    with mpmath.workdps(60):
        angles = [position * mpmath.mpf(10_000) ** (-mpmath.mpf(i) / 8) for i in range(8)]
        exact = [float(f(angle)) for f in (mpmath.cos, mpmath.sin) for angle in angles]
    assert max(abs(a - b) for a, b in zip(got, exact, strict=True)) <= limit


def test_views_expanded_empty_and_unaligned_tensors_equal_the_definition():
    spec = rw.RopeSpec(head_dim=10)
    rope = rw.Rope(spec)
    qkv = torch.randn(2, 7, 3 + 1 + 1, 10, device=CUDA)
    q, k = qkv[:, :, :3], qkv[:, :, 3:4]
    exact = rotated_by_definition(q, spec, torch.arange(7), -3)
    untouched = qkv[:, :, 4].clone()
    rope(q, k, seq_dim=-3, inplace=True)
    assert_near(q, exact, torch.float32)
    assert torch.equal(qkv[:, :, 4], untouched)
    wide = torch.randn(1, 1, 7, 10, device=CUDA).expand(2, 3, 7, 10)
    assert_near(
        rope.rotate(wide), rotated_by_definition(wide, spec, torch.arange(7), -2), torch.float32
    )
    assert rope.rotate(torch.empty(2, 3, 0, 10, device=CUDA)).shape == (2, 3, 0, 10)
    # not 16-byte aligned
    odd = torch.randn(2 * 3 * 7 * 10 + 1, device=CUDA).bfloat16()[1:].view(2, 3, 7, 10)
    assert_near(
        rope.rotate(odd), rotated_by_definition(odd, spec, torch.arange(7), -2), torch.bfloat16
    )
    with pytest.raises(rw.RopeError, match="device"):
        rope.rotate(q, torch.arange(7), seq_dim=-3)


@pytest.mark.parametrize("positions_dtype", [torch.int32, torch.int64])
def test_positions_near_two_to_the_31_equal_the_definition(positions_dtype):
    spec = rw.RopeSpec(head_dim=16)
    x = torch.randn(1, 2, 3, 16, device=CUDA)
    positions = torch.tensor([2**31 - 3, 2**31 - 2, 2**31 - 1])
    found = rw.Rope(spec).rotate(x, positions.to(CUDA, positions_dtype))
    cos, sin = rw.Rope(spec).cos_sin(positions, torch.float64)
    exact = definition.rotate(x.cpu().double(), cos, sin, "half")
    assert_near(found, exact, torch.float32)


def test_a_tensor_of_more_than_two_to_the_31_elements_is_rotated():
    spec = rw.RopeSpec(head_dim=128)
    x = torch.zeros(1, 2**17 + 3, 129, 128, device=CUDA, dtype=torch.bfloat16)
    x[0, -1, -1] = torch.randn(128, device=CUDA)
    x[0, 5, 3] = torch.randn(128, device=CUDA)
    got = rw.Rope(spec).rotate(x, seq_dim=-3)
    for token, head in ((-1, -1), (5, 3)):
        position = torch.tensor([token % x.shape[1]])
        exact = rotated_by_definition(
            x[:, token % x.shape[1] :][:, :1, head : head + 1 or None], spec, position, -3
        )
        assert_near(
            got[:, token % x.shape[1] :][:, :1, head : head + 1 or None], exact, torch.bfloat16
        )
    assert got.count_nonzero() <= 256


def test_gradient_is_the_opposite_rotation():
    rope = rw.Rope(rw.RopeSpec(head_dim=20, rotary_dim=14))
    q = torch.randn(2, 3, 7, 20, device=CUDA, requires_grad=True)
    k = torch.randn(2, 1, 7, 20, device=CUDA, requires_grad=True)
    rotated = rope(q, k, offset=9)
    torch.autograd.backward(rotated, [t.detach() for t in rotated])
    torch.testing.assert_close(q.grad, q.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(k.grad, k.detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("scaling", "inplace"),
    list(itertools.product([None, frequencies.Dynamic(2.0, 16)], [False, True])),
)
def test_no_call_waits_for_the_device_and_a_captured_call_reads_new_inputs(scaling, inplace):
    spec = rw.RopeSpec(head_dim=16, scaling=scaling or frequencies.Default())
    rope, x = rw.Rope(spec), torch.randn(2, 3, 40, 16, device=CUDA)
    positions = torch.arange(40, device=CUDA).expand(2, 40).contiguous()
    rope.rotate(x.clone(), positions, inplace=inplace)  # compiles the kernel and keeps the tables
    torch.cuda.set_sync_debug_mode("error")
    try:
        rope.rotate(x.clone(), positions, inplace=inplace)
        rope.rotate(x.clone(), offset=3, inplace=inplace)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    static, graph = x.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = rope.rotate(static, positions, inplace=inplace)
    fresh = torch.randn_like(x)
    static.copy_(fresh)
    positions.add_(7)
    graph.replay()
    torch.testing.assert_close(out, rope.rotate(fresh, positions), atol=0, rtol=0)


def test_compiled_equals_eager_and_does_not_recompile():
    rope = rw.Rope(rw.RopeSpec(head_dim=16))
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, k, p: rope(q, k, p), fullgraph=True, dynamic=True, backend=count
    )
    for seq in (5, 9, 33):
        q, k = torch.randn(2, 3, seq, 16, device=CUDA), torch.randn(2, 1, seq, 16, device=CUDA)
        positions = torch.randint(0, 99, (2, seq), device=CUDA)
        for a, b in zip(compiled(q, k, positions), rope(q, k, positions), strict=True):
            torch.testing.assert_close(a, b, atol=0, rtol=0)
    assert len(graphs) <= 2


def test_rotating_allocates_its_outputs_alone_and_nothing_in_place():
    rope = rw.Rope(rw.RopeSpec(head_dim=128))
    q, k = (torch.randn(4, 32, 8192, 128, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    for inplace, most in ((True, 0), (False, 2 * q.numel() * 2)):
        rope(q, k, inplace=inplace)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        kept = rope(q, k, inplace=inplace)
        assert torch.cuda.max_memory_allocated() - before <= most
        del kept
