"""Laws of the decode kernels against written-out definitions in float64: on the GPU where there is
one, else in the interpreter.

`test_triton.py` starts this file in a process of its own: the interpreter must be chosen before
Triton is imported.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import triton
import triton.language as tl

import ropewalk as rw
from ropewalk import axes, frequencies
from ropewalk.caches import Cache
from ropewalk.errors import RopeError
from ropewalk.kernels.decode_step import definition, launch
from ropewalk.kernels.decode_step import workspace as workspaces
from ropewalk.kernels.decode_step.config import ProductTile
from ropewalk.kernels.decode_step.product import rows_of_x
from ropewalk.kernels.decode_step.workspace import DecodeWorkspace
from ropewalk.kernels.norm_rotation import KVSlots, QKNorm
from ropewalk.kernels.qkv import qkv_norm_rope, why_not
from ropewalk.kernels.qkv.launch import qkv_product

pytestmark = pytest.mark.sampled
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: the interpreter is slow, and multiplies the bits of bfloat16 as integers: 16-bit types are tested
#: on the GPU
DTYPES = {
    torch.float32: 4e-6,
    **({torch.float16: 3e-3, torch.bfloat16: 2e-2} if DEVICE == "cuda" else {}),
}
K, Q_HEADS, K_HEADS = 20, 2, 1
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
TILES = [(1, ProductTile(1, 4, 16)), (18, ProductTile(16, 4, 16))]
rows_and_tiles = pytest.mark.parametrize(("rows", "tile"), TILES)


def random(*sizes, dtype):
    return torch.randn(*sizes).to(DEVICE, dtype)


def relative_error(got, want):
    return float((got.double() - want).abs().max() / want.abs().max())


def rms_normed(x, weight, eps):
    x = x.double()
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight.double()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(3)


@dtypes
@pytest.mark.parametrize("finish", ["store", "add", "gate"])
def test_products_without_a_given_tile_equal_the_definition(dtype, finish):
    """With a gate, or in float32, torch's product computes these 65 rows; otherwise our kernel."""
    for bias in (False, True):
        check_product(dtype, 65, None, finish, bias)


@dtypes
# with a gate, the last tile has 64 weight rows, which become the left operand of the product
@pytest.mark.parametrize(("rows", "tile"), [*TILES, (18, ProductTile(32, 32, 16))])
@pytest.mark.parametrize("finish", ["store", "add", "gate"])
@pytest.mark.parametrize("bias", [False, True])
def test_products_of_every_tile_equal_the_definition(dtype, rows, tile, finish, bias):
    check_product(dtype, rows, tile, finish, bias)


def check_product(dtype, rows, tile, finish, bias):
    """Compare a product, with its norm if there is one row, with float64."""
    columns = 22
    x, weight, norm_weight = (
        random(rows, K, dtype=dtype),
        random(columns, K, dtype=dtype) / 6,
        random(K, dtype=dtype),
    )
    residual = random(rows, columns, dtype=dtype) if finish == "add" else None
    added = random(columns, dtype=dtype) if bias else None
    norm = launch.Norm(norm_weight, 1e-3) if rows == 1 else None
    out = torch.full(
        (rows, columns // 2 if finish == "gate" else columns), math.nan, device=DEVICE, dtype=dtype
    )
    if residual is not None:
        out.copy_(residual)  # a decode step adds in place
    given = None if residual is None else out
    launch.product(
        x, weight, out, norm=norm, bias=added, residual=given, gate=finish == "gate", tile=tile
    )
    want = definition.product(
        x.double(),
        weight.double(),
        norm=None if norm is None else launch.Norm(norm_weight.double(), 1e-3),
        bias=None if added is None else added.double(),
        residual=None if residual is None else residual.double(),
        gate=finish == "gate",
    )
    assert relative_error(out, want) < DTYPES[dtype]


@triton.jit
def row_offsets(x, out, rows, ROWS: tl.constexpr):
    """Store the first element of x, read where `rows_of_x` says that each row of a tile begins."""
    row = tl.arange(0, ROWS)
    tl.store(out + row, tl.load(rows_of_x(x, row, rows, 3, ROWS)))


def test_a_tile_never_reads_after_the_last_row():
    x, out = torch.arange(15, device=DEVICE), torch.full((16,), -1, device=DEVICE)
    row_offsets[(1,)](x, out, 5, ROWS=16)
    assert out.tolist() == [3 * (row % 5) for row in range(16)]


@dtypes
@pytest.mark.parametrize(("rows", "tile_rows"), [(5, 16), (16, 16), (17, 16), (70, 64)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("gate", [False, True])
def test_rows_of_x_are_masked_or_read_again(dtype, rows, tile_rows, masked, gate, monkeypatch):
    """K and the columns fill their tiles. Where the rows do not fill theirs, the missing rows are
    masked, or earlier rows are read again.
    """
    x, weight = random(rows, 32, dtype=dtype), random(8, 32, dtype=dtype) / 6
    out, were_masked = (
        torch.full((rows, 4 if gate else 8), math.nan, device=DEVICE, dtype=dtype),
        [],
    )

    class Recorder:
        def __getitem__(self, grid, kernel=launch._PRODUCT):
            return lambda *given, **options: (
                were_masked.append(options["ROWS_MASKED"]),
                kernel[grid](*given, **options),
            )

    monkeypatch.setattr(launch, "_PRODUCT", Recorder())
    launch.product(x, weight, out, gate=gate, tile=ProductTile(tile_rows, 4, 16, masked=masked))
    want = x.double() @ weight.double().T
    if gate:
        want = torch.nn.functional.silu(want[:, :4]) * want[:, 4:]
    assert relative_error(out, want) < DTYPES[dtype]
    assert were_masked == [masked and rows != 16]


@dtypes
def test_the_norm_equals_the_definition(dtype):
    x, weight = random(3, K, dtype=dtype), random(K, dtype=dtype)
    out = launch.normed(x, launch.Norm(weight, 0.01), torch.empty_like(x))
    assert relative_error(out, rms_normed(x, weight, 0.01)) < DTYPES[dtype]


@dtypes
@pytest.mark.parametrize("splits", [1, 4, 32])
@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("shared", [1, 3])
@pytest.mark.parametrize(("early", "num_keys"), [(False, 71), (True, 71), (True, 65), (True, 36)])
def test_attention_over_a_padded_cache_equals_the_definition(
    dtype, splits, window, shared, early, num_keys
):
    batch, tokens, dim = 2, 90, 20
    q = random(batch, K_HEADS * shared, dim, dtype=dtype)
    k, v = (random(batch, K_HEADS, tokens, dim, dtype=dtype) for _ in range(2))
    first = torch.tensor([0, 35], device=DEVICE)
    out = torch.full_like(q, math.nan)
    workspace = DecodeWorkspace(
        batch, K_HEADS * shared, K_HEADS, dim, splits=splits, device=q.device
    )
    last = torch.tensor([num_keys], device=DEVICE)
    if DEVICE == "cuda":
        torch.cuda.synchronize()  # with `early` the kernel does not wait for earlier work by itself
    doubles = (t.double() for t in (q, k, v))
    want = definition.attend(*doubles, first, last, 0.3, window)
    for _ in range(2):  # the second call finds the workspace as the first left it
        out.fill_(math.nan)
        launch.attend(
            q, k, v, out, first, last, 0.3, workspace, window=window, keys=16, early=early
        )
        if DEVICE == "cuda":
            torch.cuda.synchronize()  # before `out` is filled again
        assert relative_error(out, want) < DTYPES[dtype]


@dtypes
@pytest.mark.parametrize("splits", [1, 4])
def test_the_next_token_is_the_first_highest_logit(dtype, splits):
    rows, vocabulary, width = 4, 2500, 1030  # more than a block of each
    embedding = random(vocabulary, width, dtype=dtype)
    tokens, counters = (
        torch.full((40,), -1, device=DEVICE),
        5 * torch.arange(2 * rows + 1, device=DEVICE),
    )
    x = torch.full((rows, width), math.nan, device=DEVICE, dtype=dtype)
    workspace = DecodeWorkspace(rows, 1, 1, 2, vocabulary_splits=splits, device=DEVICE)
    # the second call finds the workspace as the first left it
    for call, highest in enumerate(
        ([[2499], [1040, 1041], [0, 700, 2498], []], [[0], [2498, 2499], [1900], []]), 1
    ):
        logits = random(rows, vocabulary, dtype=dtype)
        for row, places in enumerate(highest):
            logits[row, places] = 9.0
        logits[3] = -math.inf
        launch.next_token(logits, embedding, tokens, x, counters, workspace)
        # the slots of the rows were 20, 25, 30, 35 before the first call
        token = tokens[19 + call :: 5]
        assert token.tolist() == [min(places, default=0) for places in highest]
        assert int((tokens >= 0).sum()) == 4 * call
        assert torch.equal(x, embedding[token])
        for ours, theirs in zip((token, x), definition.next_token(logits, embedding), strict=True):
            assert torch.equal(ours, theirs)
        assert counters.tolist() == [5 * count + call for count in range(2 * rows + 1)]


@pytest.mark.parametrize("splits", [1, 4])
def test_logits_that_are_all_nan_still_give_a_token_of_the_vocabulary(splits):
    token, counters, x = (
        torch.tensor([-1], device=DEVICE),
        torch.zeros(3, dtype=torch.int64, device=DEVICE),
        random(1, 8, dtype=torch.float32),
    )
    embedding = random(90, 8, dtype=torch.float32)
    workspace = DecodeWorkspace(1, 1, 1, 2, vocabulary_splits=splits, device=DEVICE)
    launch.next_token(
        torch.full((1, 90), math.nan, device=DEVICE), embedding, token, x, counters, workspace
    )
    assert 0 <= int(token) < 90
    assert torch.equal(x, embedding[token])


SPECS = {
    "half": rw.RopeSpec(12),
    "interleaved": rw.RopeSpec(12, layout="interleaved"),
    "other layout out": rw.RopeSpec(12, layout="interleaved", layout_out="half"),
    "part of the head": rw.RopeSpec(14, rotary_dim=10, rotary_start=2),
    "odd start": rw.RopeSpec(14, rotary_dim=10, rotary_start=1),
    "magnitude": rw.RopeSpec(12, scaling=frequencies.Yarn(64, factor=4.0), magnitude_on="q"),
    "axes": rw.RopeSpec(12, axes=axes.chunked((3, 2, 1))),
}


def expected(x, weight, bias, norm, spec, positions):
    """q, k and v in float64 from the definitions: product, RMS norm of each head, rotation by plain
    cos and sin.
    """
    packed = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    q, k, v = packed.view(len(x), -1, spec.head_dim).split((Q_HEADS, K_HEADS, K_HEADS), 1)
    if norm is not None:
        q, k = rms_normed(q, norm.q_weight, norm.eps), rms_normed(k, norm.k_weight, norm.eps)
    rope, positions = rw.Rope(spec, backend="reference"), positions.unsqueeze(-2)  # one batch row
    return *(
        rope.rotate(t[None], positions, seq_dim=-3, key=key)[0]
        for t, key in ((q, False), (k, True))
    ), v


@dtypes
@rows_and_tiles
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("norm", [False, True])
def test_the_qkv_product_equals_the_definition(dtype, rows, tile, name, norm):
    check_qkv(dtype, rows, tile, SPECS[name], norm)


@dtypes
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    "spec", [rw.RopeSpec(128), rw.RopeSpec(80), rw.RopeSpec(80, layout="interleaved")], ids=str
)
def test_the_qkv_product_of_wide_tiles_equals_the_definition(dtype, spec, norm):
    """A tile of 32 pairs has 64 weight rows, which become the left operand of the product; the
    second tile of a head of 80 dims is not full.
    """
    check_qkv(dtype, 18, ProductTile(32, 32, 16), spec, norm)


@pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter runs one program at a time")
@pytest.mark.parametrize("rows", [2, 17, 64])
@pytest.mark.parametrize("head_dim", [128, 192, 256])
def test_programs_of_a_head_wait_for_each_other_in_every_launch(rows, head_dim):
    """Launches that follow each other closely give the bits of launches that do not."""
    spec, width = rw.RopeSpec(head_dim), (Q_HEADS + 2 * K_HEADS) * head_dim
    weight, norm = (
        random(width, 512, dtype=torch.bfloat16),
        QKNorm(*(random(head_dim, dtype=torch.bfloat16) for _ in range(2))),
    )
    workspace, index = (
        DecodeWorkspace(rows, Q_HEADS, K_HEADS, head_dim, device=DEVICE),
        torch.arange(rows, device=DEVICE),
    )
    xs, runs = [random(rows, 512, dtype=torch.bfloat16) for _ in range(8)], []
    for repeat in range(20):
        for x in xs:
            q, cache = (
                x.new_empty(rows, Q_HEADS, head_dim),
                KVSlots(*(x.new_empty(rows, K_HEADS, head_dim) for _ in range(2))),
            )
            qkv_product(
                x, weight, q, cache, index, index, spec, head_norm=norm, workspace=workspace
            )
            runs.append((q, cache.k))
            if repeat == 0:
                torch.cuda.synchronize()
    for i, (q, k) in enumerate(runs):
        assert torch.equal(q, runs[i % 8][0])
        assert torch.equal(k, runs[i % 8][1])
    for x, (q, k) in zip(xs, runs, strict=False):
        for got, want in zip((q, k), expected(x, weight, None, norm, spec, index), strict=False):
            assert relative_error(got, want) < DTYPES[torch.bfloat16]
    assert not workspace.sums.any()


def check_qkv(dtype, rows, tile, spec, norm):
    width = (Q_HEADS + 2 * K_HEADS) * spec.head_dim
    x, weight, bias = (
        random(rows, K, dtype=dtype),
        random(width, K, dtype=dtype) / 6,
        random(width, dtype=dtype),
    )
    head_norm = (
        QKNorm(*(random(spec.head_dim, dtype=dtype) for _ in range(2)), eps=0.01) if norm else None
    )
    # pages of 4 slots, with memory between pages and between slots
    pages = (
        torch.full((6, 5, K_HEADS + 1, spec.head_dim), math.nan, device=DEVICE, dtype=dtype)
        for _ in range(2)
    )
    cache = KVSlots(*(page[:, :4, 1:] for page in pages))
    slots = torch.randperm(24, device=DEVICE)[:rows]
    slots[rows // 2] = -1 if rows > 1 else slots[0]
    lead = (spec.num_axes,) if spec.num_axes > 1 else ()
    positions = torch.randint(0, 1_000_000, (*lead, rows), device=DEVICE)
    q = torch.full((rows, Q_HEADS, spec.head_dim), math.nan, device=DEVICE, dtype=dtype)
    workspace = DecodeWorkspace(rows, Q_HEADS, K_HEADS, spec.head_dim, device=x.device)
    options = {"bias": bias, "head_norm": head_norm, "workspace": workspace, "tile": tile}
    qkv_product(x, weight, q, cache, slots, positions, spec, **options)
    for got, want in zip(
        (q, cache.k.flatten(0, 1), cache.v.flatten(0, 1)),
        expected(x, weight, bias, head_norm, spec, positions),
        strict=True,
    ):
        if got is not q:
            want = want[slots >= 0]
            untouched = torch.ones(24, dtype=torch.bool, device=DEVICE)
            untouched[slots[slots >= 0]] = False
            assert got[untouched].isnan().all()
            got = got[slots[slots >= 0]]
        assert relative_error(got, want) < DTYPES[dtype]
    assert not workspace.arrived.any()
    assert not workspace.sums.any()
    # a kernel that reads positions and slots before earlier work has ended gives the same results
    early_q, early_cache = (
        torch.full_like(q, math.nan),
        KVSlots(*(torch.full_like(cache.k, math.nan) for _ in range(2))),
    )
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    qkv_product(x, weight, early_q, early_cache, slots, positions, spec, early=True, **options)
    for got, want in ((early_q, q), (early_cache.k, cache.k), (early_cache.v, cache.v)):
        assert torch.equal(got.nan_to_num(9.0), want.nan_to_num(9.0))


@pytest.mark.parametrize("backend", ["triton", "definition", None])
@pytest.mark.parametrize("tokens", [(1,), (2, 3)])
def test_qkv_norm_rope_returns_q_and_fills_the_cache(backend, tokens):
    spec = SPECS["part of the head"]
    width = (Q_HEADS + 2 * K_HEADS) * spec.head_dim
    x, weight = random(*tokens, K, dtype=torch.float32), random(width, K, dtype=torch.float32) / 6
    norm = QKNorm(*(random(spec.head_dim, dtype=torch.float32) for _ in range(2)), eps=0.01)
    cache = KVSlots(*(torch.zeros(8, K_HEADS, spec.head_dim, device=DEVICE) for _ in range(2)))
    count = math.prod(tokens)
    slots, positions = (
        torch.arange(count, device=DEVICE).view(tokens),
        torch.arange(7, 7 + count, device=DEVICE).view(tokens),
    )
    call = {
        "spec": spec,
        "positions": positions,
        "heads": (Q_HEADS, K_HEADS),
        "cache": cache,
        "slots": slots,
        "norm": norm,
    }
    q = qkv_norm_rope(x, weight, **call, backend=backend)
    want_q, want_k, want_v = expected(x.view(-1, K), weight, None, norm, spec, positions.view(-1))
    assert q.shape == (*tokens, Q_HEADS, spec.head_dim)
    for got, want in (
        (q.view(-1, Q_HEADS, spec.head_dim), want_q),
        (cache.k[:count], want_k),
        (cache.v[:count], want_v),
    ):
        assert relative_error(got, want) < 4e-6


@pytest.mark.parametrize("strided", ["x", "bias"])
def test_qkv_norm_rope_takes_strided_inputs(strided):
    """x with its rows as columns in memory, or every second element of a longer bias."""
    spec = SPECS["half"]
    x, weight = random(2, K, dtype=torch.float32), random(48, K, dtype=torch.float32) / 6
    bias = random(96, dtype=torch.float32)[::2]
    if strided == "x":
        x, bias = x.T.contiguous().T, bias.contiguous()
    positions = slots = torch.arange(2, device=DEVICE)
    cache = KVSlots(*(torch.zeros(2, K_HEADS, 12, device=DEVICE) for _ in range(2)))
    call = {
        "spec": spec,
        "positions": positions,
        "heads": (Q_HEADS, K_HEADS),
        "cache": cache,
        "slots": slots,
    }
    assert "contiguous" in why_not(x, weight, bias, **call)
    got = (qkv_norm_rope(x, weight, bias, **call), cache.k, cache.v)
    for each, want in zip(got, expected(x, weight, bias, None, spec, positions), strict=True):
        assert relative_error(each, want) < 4e-6


def test_a_float8_cache_equals_that_of_the_definition():
    spec = SPECS["half"]
    x, weight = random(2, K, dtype=torch.float16), random(48, K, dtype=torch.float16) / 6
    make = lambda: KVSlots(
        *(torch.zeros(2, K_HEADS, 12, device=DEVICE, dtype=torch.float8_e4m3fn) for _ in range(2)),
        k_scale=0.5,
        v_scale=2.0,
    )
    positions = slots = torch.arange(2, device=DEVICE)
    caches = {}
    for backend in ("triton", "definition"):
        caches[backend] = make()
        qkv_norm_rope(
            x,
            weight,
            spec=spec,
            positions=positions,
            heads=(Q_HEADS, K_HEADS),
            cache=caches[backend],
            slots=slots,
            backend=backend,
        )
    for name in ("k", "v"):
        got, want = (getattr(caches[backend], name).float() for backend in ("triton", "definition"))
        # one step of e4m3: the product is rounded to float16 before
        assert ((got - want).abs() <= want.abs() / 8 + 2**-9).all()


def test_qkv_norm_rope_refuses_bad_arguments():
    spec = SPECS["half"]
    x, weight = random(2, K, dtype=torch.float32), random(48, K, dtype=torch.float32)
    cache = KVSlots(*(torch.zeros(2, K_HEADS, 12, device=DEVICE) for _ in range(2)))
    index = torch.arange(2, device=DEVICE)
    call = {
        "spec": spec,
        "positions": index,
        "heads": (Q_HEADS, K_HEADS),
        "cache": cache,
        "slots": index,
    }
    with pytest.raises(RopeError, match="bias"):
        qkv_norm_rope(x, weight, torch.zeros(48, dtype=torch.float16, device=DEVICE), **call)
    with pytest.raises(RopeError, match=r"^bias: must be \[48\]"):
        # runtime types of the tests refuse it in qkv_norm_rope
        why_not(x, weight, torch.zeros(3, device=DEVICE), **call)
    with pytest.raises(RopeError, match=r"^weight: must be \[\(2 \+ 2 \* 1\) \* 12, 20\]"):
        qkv_norm_rope(x, weight[:-1], **call)
    depends_on_length = replace(spec, scaling=frequencies.Dynamic(factor=2.0, original_length=8))
    with pytest.raises(RopeError, match=r"^spec: .*qk_norm_rope, which takes a length"):
        qkv_norm_rope(x, weight, **{**call, "spec": depends_on_length})
    with pytest.raises(RopeError, match="no_grad"):
        qkv_norm_rope(x, weight.requires_grad_(), **call)
    weight = weight.detach()
    assert why_not(x, weight, **call) is None
    assert "contiguous" in why_not(x, weight.T.contiguous().T, **call)
    dynamic = replace(spec, precision="hf")
    assert "hf" in why_not(x, weight, **{**call, "spec": dynamic})
    with pytest.raises(RopeError, match="triton"):
        qkv_norm_rope(x, weight, **{**call, "spec": dynamic}, backend="triton")


@pytest.fixture
def norm_of_two_rows():
    """Return (call, what the definition gives): a head norm of two rows, in one launch."""
    dtype = list(DTYPES)[-1]
    x, weight = random(2, K, dtype=dtype), random(48, K, dtype=dtype)
    cache = KVSlots(*(x.new_zeros(2, K_HEADS, 12) for _ in range(2)))
    index, norm = torch.arange(2, device=DEVICE), QKNorm(eps=0.01)
    where = {"positions": index, "slots": index, "cache": cache, "heads": (Q_HEADS, K_HEADS)}
    call = partial(qkv_norm_rope, x, weight, spec=SPECS["half"], norm=norm, **where)
    return partial(call, backend="triton"), call(backend="definition")


def test_the_workspace_of_a_stream_is_made_once_and_grows(monkeypatch):
    monkeypatch.setattr(workspaces, "_KEPT", Cache("workspaces for a test", entries=16))
    device = torch.zeros(1, device=DEVICE).device
    small = workspaces.kept_workspace(2, 4, 2, 64, device)
    assert workspaces.kept_workspace(1, 4, 2, 64, device) is small
    wide = workspaces.kept_workspace(2, 2, 1, 256, device)  # fewer heads, but more sums for each
    assert wide is not small
    assert wide.holds(2, 3, 256, wide.sums.device)
    assert not small.holds(2, 3, 256, small.sums.device)


def test_repeated_calls_with_a_head_norm_equal_the_definition(norm_of_two_rows):
    call, want = norm_of_two_rows
    for _ in range(3):  # each call finds the workspace as the one before left it
        assert relative_error(call(), want) < 2e-2


@pytest.mark.skipif(DEVICE == "cpu", reason="a CPU captures no graphs")
def test_graphs_captured_on_one_stream_share_no_workspace(monkeypatch, norm_of_two_rows):
    call, want = norm_of_two_rows
    kept = Cache("workspaces for a test", entries=16)
    monkeypatch.setattr(workspaces, "_KEPT", kept)
    call()
    stream, graphs, results = torch.cuda.Stream(), [], []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            results += [call(), call()]
        graphs.append(graph)
    assert len(kept) == 3  # one of the call without a graph, and one of each graph
    assert len({each.sums.data_ptr() for each in kept.values()}) == 3
    for _ in range(3):
        for graph in graphs:
            graph.replay()
    torch.cuda.synchronize()
    for result in results:
        assert relative_error(result, want) < 2e-2
