"""What torch.compile and torch.export make of a rotation: one graph, the same bits. Run by
test_ops.py in another process.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
import torch
from torch._dynamo.backends.debugging import aot_eager
from torch.testing import assert_close

import far_positions as far
import ropewalk as rw
from helpers import AXES, HEAD_DIM, sample_positions, sample_spec
from ropewalk.kernels.norm_rotation import KVSlots, QKNorm, qk_norm_rope
from ropewalk.kernels.qkv import qkv_norm_rope
from ropewalk.strategies import STRATEGIES
from ropewalk.table import TABLES
from torch_release import OLD_TORCH, needs_torch_2_7

B, H = 2, 3
#: how a call says where its S tokens are
WHERE = {
    "nothing": lambda s: {},
    "positions": lambda s: {"positions": torch.arange(s) + 5},
    "rows": lambda s: {"positions": torch.randint(0, 10**7, (B, s))},
    "offset": lambda s: {"offset": s + 3},
    "offsets": lambda s: {"offset": torch.tensor([s, 3])},
}


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


class Counted:
    """The compiler backend aot_eager, which here also counts the graphs it is given."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return aot_eager(graph, inputs)


def q_and_k(s):
    return torch.randn(B, H, s, HEAD_DIM), torch.randn(B, 1, s, HEAD_DIM)


def skip_learnable(name):
    if OLD_TORCH and name == "learnable":
        pytest.skip(
            f"torch {torch.__version__}: its compiler cannot pass a default that is an object "
            "of the package"
        )


@pytest.mark.sampled
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", rw.frequencies.SCALINGS)
def test_a_compiled_rope_gives_the_eager_bits_without_a_graph_for_each_length(name, where, full):
    skip_learnable(name)
    rope, counted = rw.Rope(sample_spec(name)), Counted()
    compiled = torch.compile(rope, fullgraph=True, backend=counted)
    # without --full, a scaling that reads no length is tried at one length: its graph is like that
    # of the default scaling
    for s in (3, 40, 17) if full or name == "default" or rope.spec.needs_length else (3,):
        q, k = q_and_k(s)
        given = WHERE[where](s)
        if name == "xpos" and where == "rows":
            given["positions"] %= 60
        for found, expected in zip(compiled(q, k, **given), rope(q, k, **given), strict=True):
            assert torch.equal(found, expected), s
    assert counted.graphs <= (3 if OLD_TORCH else 2)


@needs_torch_2_7("its compiler cannot follow a dataclass that is copied")
@pytest.mark.parametrize("rule", ["default", "yarn"])
def test_far_positions_follow_the_published_formulas(rule):
    """Frequencies beyond float64 are computed inside the op, where nothing is traced."""
    spec, positions = far.draw(rule, 0), far.near(40, 8)
    rope = rw.Rope(spec)
    rw.caches.clear_caches()
    x = torch.zeros(1, 1, 8, spec.head_dim)
    x[..., : spec.pairs] = 1.0
    found = (
        torch.compile(rope.rotate, fullgraph=True, backend="aot_eager")(x, torch.tensor(positions))[
            0, 0
        ]
        .double()
        .numpy()
    )
    error = far.largest_error(
        found[:, : spec.pairs] + 1j * found[:, spec.pairs :], far.expected(spec, positions)
    )
    assert error <= far.LIMITS[40]


@pytest.mark.parametrize("tables", [tables for tables in STRATEGIES if tables != "auto"])
def test_every_table_strategy_compiles_to_the_eager_bits(tables):
    """A compiled call gives the bits and gradients of the eager call, and keeps as many bytes."""
    rope = rw.Rope(sample_spec("yarn"), tables=tables)
    compiled = torch.compile(rope, fullgraph=True, backend="aot_eager")
    q, k = (x.requires_grad_() for x in q_and_k(600))
    kept, results = [], []
    for f in (compiled, rope):
        rw.caches.clear_caches()
        for where in ({}, {"positions": torch.arange(600) + 2**30}):
            rotated = f(q, k, **where)
            results.append((*rotated, *torch.autograd.grad(rotated, (q, k), (q, k))))
        kept.append(TABLES.bytes)
    for found, expected in zip(results[0] + results[1], results[2] + results[3], strict=True):
        assert torch.equal(found, expected)
    assert kept[0] == kept[1] == rope.table_bytes(600)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("axis", AXES)
def test_every_axis_map_compiles_to_the_eager_bits(axis):
    rope = rw.Rope(sample_spec(axis=axis))
    compiled = torch.compile(rope, fullgraph=True, backend="aot_eager")
    x = torch.randn(B, H, 7, rope.spec.head_dim)
    positions = sample_positions(rope.spec, B, 7)
    assert torch.equal(compiled(x, positions=positions), rope(x, positions=positions))
    assert torch.equal(compiled(x, offset=3), rope(x, offset=3))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", ["default", "dynamic", "learnable", "xpos"])
def test_compiled_gradients_equal_eager_ones(name):
    rope = rw.Rope(sample_spec(name))
    compiled = torch.compile(rope, fullgraph=True, backend="aot_eager")
    q, k = (x.requires_grad_() for x in q_and_k(7))
    wanted = (q, k, *rope.parameters())
    grads = [
        torch.autograd.grad((f(q, k)[0] * 2).sum() + f(q, k)[1].pow(2).sum(), wanted)
        for f in (compiled, rope)
    ]
    for found, expected in zip(*grads, strict=True):
        assert_close(found, expected)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", ["default", "dynamic", "learnable"])
def test_a_compiled_rotation_in_place_gives_the_eager_bits(name):
    rope = rw.Rope(sample_spec(name)).requires_grad_(False)
    compiled = torch.compile(
        lambda q, k: rope(q, k, inplace=True), fullgraph=True, backend="aot_eager"
    )
    q, k = q_and_k(7)
    expected = rope(q, k)
    found = compiled(q, k)
    for own, out, wanted in zip((q, k), found, expected, strict=True):
        assert torch.equal(own, wanted)
        assert torch.equal(out, wanted)


@pytest.mark.parametrize("name", ["default", "learnable"])
def test_in_place_with_gradients(name):
    skip_learnable(name)
    rope, x = rw.Rope(sample_spec(name)), torch.randn(B, H, 7, HEAD_DIM, requires_grad=True)
    f = lambda x: rope(2 * x, inplace=True).pow(3).sum()
    wanted = (x, *rope.parameters())
    found = torch.autograd.grad(torch.compile(f, fullgraph=True, backend="aot_eager")(x), wanted)
    assert_close(found, torch.autograd.grad(f(x), wanted))


def test_a_compiled_rope_takes_a_length_for_each_row():
    rope = rw.Rope(sample_spec("dynamic"))
    compiled = torch.compile(rope, fullgraph=True, backend="aot_eager")
    x = torch.randn(B, H, 7, HEAD_DIM)
    for length in (7, 90, torch.tensor([7, 90])):
        assert torch.equal(compiled(x, length=length), rope(x, length=length))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("name", "form"), [("default", "cos_sin_hf"), ("dynamic", "cos_sin"), ("learnable", "cos_sin")]
)
def test_compiled_tables_have_the_eager_bits(name, form):
    rope = rw.Rope(sample_spec(name))
    method = getattr(rope, form)
    compiled = torch.compile(method, fullgraph=True, backend="aot_eager")
    for s in (3, 40):
        positions = torch.randint(0, 100, (B, s) if form == "cos_sin" else (s,))
        for found, expected in zip(compiled(positions), method(positions), strict=True):
            assert torch.equal(found, expected)


@needs_torch_2_7("its compiler cannot pass a default that is an object of the package")
@pytest.mark.parametrize(
    "axis_map",
    [rw.axes.by_head([1, 1], 7, num_heads=H), rw.axes.GoldenAxes(H, 7, 3)],
    ids=["head", "golden"],
)
def test_frequencies_per_head_compile_to_the_eager_bits(axis_map):
    rope, counted = rw.Rope(rw.RopeSpec(HEAD_DIM, axes=axis_map)), Counted()
    compiled = torch.compile(rope, fullgraph=True, backend=counted)
    for s in (3, 40):
        q, k, positions = (
            *torch.randn(2, B, H, s, HEAD_DIM),
            torch.randint(0, 10**7, (axis_map.num_axes, B, s)),
        )
        for found, expected in zip(compiled(q, k, positions), rope(q, k, positions), strict=True):
            assert torch.equal(found, expected), s
    assert counted.graphs <= 2


@needs_torch_2_7("its compiler cannot follow a dataclass that is copied")
def test_unrotate_rerotate_and_the_drop_in_function_compile_to_eager_results():
    rope, other = rw.Rope(sample_spec()), rw.Rope(sample_spec(theta=500.0))
    cos, sin = rw.Rope(rw.RopeSpec(HEAD_DIM)).cos_sin_hf(torch.arange(7)[None])
    rows = torch.tensor([[6, 0, 1, 1, 2, 5, 3]])
    calls = {
        "rotate": lambda x: rope.rotate(x, key=True),
        "unrotate": rope.unrotate,
        "rerotate": lambda x: rope.rerotate(x, torch.arange(7), torch.arange(7) + 5, to=other),
        "apply": lambda x: rw.apply_rotary_pos_emb(x, x, cos, sin)[0],
        "apply to rows": lambda x: rw.apply_rotary_pos_emb(x, x, cos[0], sin[0], rows)[1],
        "apply to one": lambda x: rw.apply_rotary_pos_emb(x, cos[0], sin[0], rows),
    }
    x = torch.randn(B, H, 7, HEAD_DIM)
    for name, call in calls.items():
        assert torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(x), call(x)), (
            name
        )


def test_a_compiled_call_refuses_a_table_of_the_other_layout():
    cos, sin = rw.Rope(rw.RopeSpec(HEAD_DIM, layout="interleaved")).cos_sin_hf(
        torch.arange(7)[None]
    )
    x = torch.randn(B, H, 7, HEAD_DIM)
    compiled = torch.compile(
        lambda x: rw.apply_rotary_pos_emb(x, x, cos, sin)[0], fullgraph=True, backend="aot_eager"
    )
    with pytest.raises(RuntimeError, match="layout pairs dimensions"):
        compiled(x)


def test_a_compiled_rope_raises_the_same_errors():
    """A graph that cannot be made says why, in the package's words."""
    compiled = torch.compile(rw.Rope(sample_spec()), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=r"must have head_dim = 14|RopeError"):
        compiled(torch.randn(B, H, 7, 16))


@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script:DeprecationWarning", "ignore:Skipping serialization"
)
def test_inductor_computes_the_eager_attention_scores():
    """The real compiler, around an attention score; needs a C++ compiler."""
    rope = rw.Rope(sample_spec("yarn"))

    def scores(q, k):
        q, k = rope(q * 2, k + 1)
        return (q @ k.mT).softmax(-1)

    compiled = torch.compile(scores, fullgraph=True, dynamic=True)
    for s in (5, 9):  # neither equals another size in q's shape, so one graph serves both
        q, k = torch.randn(2, B, H, s, HEAD_DIM)
        assert_close(compiled(q, k), scores(q, k))


class Rotated(torch.nn.Module):
    """A model that is nothing but the rotation of one pair, one radian a token."""

    def __init__(self):
        super().__init__()
        self.rope = rw.Rope(rw.RopeSpec(2))

    def forward(self, x):
        return self.rope.rotate(x)


RUN_SAVED = """
import json, sys, torch, ropewalk
program = torch.export.load(sys.argv[1])
print(json.dumps(program.module()(torch.tensor([1.0, 0.0]).expand(1, 3, 7, 2)).tolist()))
"""


def test_importing_the_package_is_enough_to_load_and_run_an_exported_program(tmp_path):
    saved = tmp_path / "rotated.pt2"
    torch.export.save(
        torch.export.export(Rotated(), (torch.ones(1, 3, 7, 2),), strict=False), saved
    )
    done = subprocess.run(
        [sys.executable, "-c", RUN_SAVED, saved],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    heads = json.loads(done.stdout)[0]
    assert len(heads) == 3
    for head in heads:
        assert head == [pytest.approx([math.cos(m), math.sin(m)], abs=1e-6) for m in range(7)]


@pytest.mark.parametrize("cached", [False, True])
def test_norm_and_rotation_after_a_product_are_one_graph(cached):
    """`qkv_norm_rope`, which calls `qk_norm_rope`, under fullgraph=True; its gradients are compared
    only without a cache.
    """
    spec, positions = rw.RopeSpec(16, rotary_dim=12), torch.tensor([1, 5, 900_000])
    norm = QKNorm(torch.randn(16), torch.randn(16))
    weight = torch.randn(8 * 16, 32, requires_grad=not cached)
    slots = torch.tensor([3, -1, 0])

    def call(x):
        options = {"spec": spec, "positions": positions, "heads": (4, 2), "norm": norm}
        if not cached:
            return qkv_norm_rope(x, weight, **options)
        cache = KVSlots(torch.zeros(8, 2, 16), torch.zeros(8, 2, 16))
        return qkv_norm_rope(x, weight, **options, cache=cache, slots=slots), cache.k, cache.v

    x = torch.randn(3, 32)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    found, expected = compiled(x), call(x)
    for got, want in zip(found, expected, strict=True):
        assert torch.equal(got, want)
    if not cached:
        grads = (torch.autograd.grad(sum(y.sum() for y in ys), weight) for ys in (found, expected))
        torch.testing.assert_close(*(grad[0] for grad in grads))


def test_a_slot_beyond_the_cache_is_an_error_when_the_graph_runs():
    cache = KVSlots(torch.zeros(2, 1, 4), torch.zeros(2, 1, 4))
    options = {"spec": rw.RopeSpec(4), "heads": (1, 1), "positions": torch.arange(1)}
    compiled = torch.compile(
        lambda x, slots: qk_norm_rope(x, **options, cache=cache, slots=slots),
        fullgraph=True,
        backend="aot_eager",
    )
    compiled(torch.randn(1, 12), torch.tensor([1]))
    with pytest.raises(RuntimeError, match="must be below the cache's 2 slots"):
        compiled(torch.randn(1, 12), torch.tensor([2]))
