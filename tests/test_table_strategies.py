"""Every choice of `Rope(spec, tables=...)` rotates alike, forwards and backwards, and keeps the
bytes that it says.
"""

import copy
import pickle

import pytest
import torch
from torch.testing import assert_close

import ropewalk as rw
from door import as_users_call
from far_positions import LIMITS, expected, largest_error, near
from helpers import TOLERANCE, backend_or_skip, definition, sample_spec
from ropewalk import axes, fast_path, rotation
from ropewalk import frequencies as fq
from ropewalk.strategies import STRATEGIES, memory, strategies
from ropewalk.table import TABLES

B, H, S = 2, 3, 7
every_strategy = pytest.mark.parametrize("tables", STRATEGIES)
every_backend = pytest.mark.parametrize("backend", rw.kernels.BACKENDS)
#: specs with tables: plain, with a magnitude, with one on queries alone, with growth
SPECS = {
    "plain": sample_spec(),
    "yarn": sample_spec("yarn"),
    "yarn on q": sample_spec("yarn", magnitude_on="q"),
    "xpos": sample_spec("xpos"),
}
every_spec = pytest.mark.parametrize("name", SPECS)


@pytest.fixture(autouse=True)
def _empty_caches():
    rw.caches.clear_caches()
    yield
    rw.caches.clear_caches()


def q_and_k(spec, dtype=torch.float32, seq=S):
    return torch.randn(B, H, seq, spec.head_dim, dtype=dtype), torch.randn(
        B, 1, seq, spec.head_dim, dtype=dtype
    )


#: name -> (the arguments that place the S tokens of a call, the positions that they give)
WHERE = {
    "nothing": ({}, torch.arange(S)),
    "offset": ({"offset": 260}, torch.arange(S) + 260),
    "positions": (
        {"positions": torch.tensor([5, 0, 70, 3, 3, 1, 44])},
        torch.tensor([5, 0, 70, 3, 3, 1, 44]),
    ),
    "rows": (
        {"positions": torch.arange(2 * S).view(2, S).int() * 9},
        torch.arange(2 * S).view(2, S) * 9,
    ),
}


@pytest.mark.sampled(by=["backend"])
@every_strategy
@every_backend
@every_spec
def test_calls_and_their_gradients_are_the_definition(name, backend, tables):
    spec = SPECS[name]
    rope = rw.Rope(spec, backend=backend_or_skip(backend, q_and_k(spec)[0], spec), tables=tables)
    for call, positions in WHERE.values():
        check_call_and_gradient(rope, call, positions)


def check_call_and_gradient(rope, call, positions):
    spec, (q, k) = rope.spec, (x.requires_grad_() for x in q_and_k(rope.spec))
    rotated = rope(q, k, **call)
    weights = [torch.randn_like(x) for x in rotated]
    grads = torch.autograd.grad(rotated, (q, k), weights)
    for x, found, weight, grad, key in zip(
        (q, k), rotated, weights, grads, (False, True), strict=True
    ):
        exact = definition(x, spec, positions, key=key)
        size = max(1.0, float(exact.abs().max()))
        assert_close(found.detach().double(), exact, rtol=0, atol=TOLERANCE[torch.float32] * size)
        # <w, R x> = <R^T w, x>: the gradient is w through the transposed rotation
        wide = torch.randn_like(x).double()
        pulled = (definition(wide, spec, positions, key=key) * weight).sum()
        assert_close((wide * grad.double()).sum(), pulled, rtol=0, atol=2e-5 * size)


@every_strategy
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bits", LIMITS)
def test_far_positions_are_as_exact_with_every_strategy(tables, dtype, bits):
    spec, positions = rw.RopeSpec(64, 500_000.0), near(bits, 12)
    rope, wanted = (
        rw.Rope(spec, tables=tables),
        expected(rw.RopeSpec(64, 500_000.0), near(bits, 12)),
    )
    x = torch.zeros(1, 1, 12, 64, dtype=dtype)
    x[..., :32] = 1.0
    found = rope.rotate(x, torch.tensor(positions))[0, 0].double().numpy()
    assert largest_error(found[:, :32] + 1j * found[:, 32:], wanted) <= LIMITS[bits]
    cos, sin = rope.cos_sin(torch.tensor(positions), dtype)
    assert largest_error(cos.double().numpy() + 1j * sin.double().numpy(), wanted) <= LIMITS[bits]
    moved = rope.rerotate(
        rope.rotate(x, torch.tensor(positions)), torch.tensor(positions), torch.arange(12)
    )
    assert_close(moved, rope.rotate(x), rtol=0, atol=2e-6)
    assert_close(
        rope.unrotate(rope.rotate(x, torch.tensor(positions)), torch.tensor(positions)),
        x,
        rtol=0,
        atol=1e-6,
    )


@pytest.mark.parametrize("backend", ["cpu", "eager"])
@every_spec
def test_auto_equals_two_level_and_full_equals_none_in_every_bit(name, backend):
    """ "auto" and "two-level" agree in every bit, and so do "full" and "none"; between these two
    groups cos and sin may differ in the last place.
    """
    spec = SPECS[name]
    q, k = q_and_k(spec, seq=700)
    run_by = backend_or_skip(backend, q, spec)
    for where in ({}, {"offset": 300}, {"positions": torch.randint(0, 900, (B, 700))}):
        rotated = {
            tables: rw.Rope(spec, backend=run_by, tables=tables)(q, k, **where)
            for tables in STRATEGIES
        }
        for one, other in (("auto", "two-level"), ("full", "none")):
            assert all(torch.equal(a, b) for a, b in zip(rotated[one], rotated[other], strict=True))
    positions = torch.cat([torch.arange(3000), torch.randint(2**20, (3000,))])
    if name == "xpos":
        positions %= 3000
    for by_level, by_phase in zip(
        *(rw.Rope(spec, tables=t).cos_sin(positions) for t in ("two-level", "none")), strict=True
    ):
        assert (
            float(((by_level - by_phase).abs() / by_phase.abs().clamp(min=2**-30)).max()) <= 2**-23
        )


@every_strategy
@every_spec
@pytest.mark.parametrize("length", [1, 256, 700, 3000])
def test_the_bytes_kept_are_those_that_table_bytes_returns(name, length, tables):
    """Only queries are rotated: for keys a rope may keep further rows."""
    spec = SPECS[name]
    rope = rw.Rope(spec, backend="eager", tables=tables)
    rope.rotate(torch.randn(1, 1, length, spec.head_dim))
    assert TABLES.bytes == rope.table_bytes(length) == memory(spec, length)[tables]


@every_strategy
def test_no_kind_of_call_keeps_more_than_table_bytes_returns(tables):
    """Given and far positions, gradients, float64, inverse and moved rotations, and every backend
    there is.
    """
    spec = rw.RopeSpec(16)
    rope = rw.Rope(spec, tables=tables)
    for backend in (None, "eager", "reference"):
        rope.backend = backend
        for dtype in (torch.float32, torch.float64):
            q, k = q_and_k(spec, dtype, 600)
            rope(q.requires_grad_(), k)[0].sum().backward()
            for positions in (
                torch.arange(600),
                torch.arange(600) + 2**30,
                torch.arange(600) - 300,
            ):
                rope(q, k, positions)
                rope.unrotate(q, positions)
                rope.cos_sin(positions, dtype)
            with torch.no_grad():
                rope(q, k)
                rope(q, k)  # the prepared kernel of "auto"
    assert TABLES.bytes <= rope.table_bytes(600)


def test_a_full_table_grows_with_the_largest_position_used():
    spec = rw.RopeSpec(10)
    rope, x = rw.Rope(spec, tables="full"), torch.randn(1, 1, 3, 10)
    for position, rows in (
        (3, 256),
        (255, 256),
        (256, 512),
        (5000, 8192),
        (7, 8192),
        (2**40, 8192),
        (-1, 8192),
    ):
        rope.rotate(x, torch.tensor([0, 1, position]))
        assert TABLES.bytes == (1 + rows) * 5 * 8
    assert rope.table_bytes(2**20) == rope.table_bytes(2**30) == (1 + 2**20) * 5 * 8
    assert rope.rotate(x[:, :, :0], torch.zeros(0, dtype=torch.int64)).shape == (1, 1, 0, 10)


def test_tables_larger_than_one_step_of_their_computation():
    rope, x = rw.Rope(rw.RopeSpec(4), tables="full"), torch.randn(1, 1, 5, 4)
    positions = torch.tensor([0, 2**14 - 1, 2**14, 2**15 + 1, 40_000])
    assert_close(
        rope.rotate(x, positions).double(), definition(x, rope.spec, positions), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("tables", ["full", "two-level", "none"])
def test_a_prepared_call_of_another_strategy_is_not_used(tables, monkeypatch):
    spec = rw.RopeSpec(16)
    q, k = q_and_k(spec)
    for _ in range(2):
        rw.Rope(spec)(q, k)
    monkeypatch.setattr(
        fast_path, "rotate_prepared", lambda *arguments: pytest.fail("the tables of auto were used")
    )
    exact = definition(q, spec, torch.arange(S))
    assert_close(
        rw.Rope(spec, tables=tables)(q, k)[0].double(), exact, rtol=0, atol=TOLERANCE[torch.float32]
    )


@every_strategy
def test_copies_of_a_rope_have_its_table_strategy(tables):
    rope = rw.Rope(sample_spec(), tables=tables)
    for other in (copy.deepcopy(rope), pickle.loads(pickle.dumps(rope))):  # noqa: S301 - our own bytes
        assert other.tables == tables
    assert (f"tables='{tables}'" in repr(rope)) == (tables != "auto")


#: spec -> the strategies it has
POSSIBLE = {
    "plain": (rw.RopeSpec(8), STRATEGIES),
    "float32 angles": (rw.RopeSpec(8, precision="hf"), ("auto", "full", "none")),
    "by length": (rw.RopeSpec(8, scaling=fq.Dynamic(2.0)), ("auto", "none")),
    "learned": (rw.RopeSpec(8, scaling=fq.Learnable()), ("auto", "none")),
    "axes": (rw.RopeSpec(8, axes=axes.axial(2, 2)), ("auto", "none")),
    "fractions": (rw.RopeSpec(8, axes=axes.normalised(4)), ("auto", "none")),
}


@every_strategy
@pytest.mark.parametrize("kind", POSSIBLE)
def test_a_strategy_that_a_spec_cannot_use_is_refused(kind, tables):
    spec, possible = POSSIBLE[kind]
    assert strategies(spec) == tuple(memory(spec, 9)) == possible
    if tables in possible:
        assert rw.Rope(spec, tables=tables).table_bytes(9) == memory(spec, 9)[tables]
        return
    with pytest.raises(
        rw.RopeError, match=f"tables: must be one of {', '.join(possible)} for this spec"
    ):
        rw.Rope(spec, tables=tables)
    if not spec.learned:
        positions = torch.zeros(
            (spec.num_axes, 1, 2) if spec.num_axes > 1 else (2,), dtype=torch.int64
        )
        with pytest.raises(rw.RopeError, match="tables"):
            rotation.rotate(torch.zeros(1, 1, 2, 8), spec, positions, tables=tables)


@pytest.mark.parametrize("word", ["", "Full", "two_level", "phase", None, 3, True])
def test_unknown_strategies_are_refused(word):
    with (
        pytest.raises(
            rw.RopeError, match="tables: must be one of auto, full, two-level, none; got"
        ),
        as_users_call(),
    ):
        rw.Rope(rw.RopeSpec(8), tables=word)


def test_a_rope_with_full_tables_rerotates_keys_to_a_spec_without_tables():
    rope, other = (
        rw.Rope(rw.RopeSpec(8), tables="full"),
        rw.Rope(rw.RopeSpec(8, scaling=fq.Dynamic(2.0, 4))),
    )
    k, where = torch.randn(1, 1, S, 8), torch.arange(S)
    moved = rope.rerotate(rope.rotate(k), where, where, to=other, to_length=9)
    assert_close(moved, other.rotate(k, length=9), rtol=0, atol=1e-6)
