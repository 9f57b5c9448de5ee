"""Known kinds of calls: the second call of a kind skips the checks, and a call of a similar but
different kind does not.
"""

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn.modules import module as modules
from torch.utils._python_dispatch import TorchDispatchMode

import ropewalk as rw
from door import as_users_call, assert_refused
from helpers import definition, sample_spec
from ropewalk import fast_path
from ropewalk import rope as rope_module
from ropewalk.kernels import available
from ropewalk.kernels.cpu import backend as cpu

pytestmark = pytest.mark.skipif(
    available("cpu")["cpu"] is not None, reason="the native kernel was not built here"
)
SPEC = rw.RopeSpec(10)


def slow_path(*_, **__):
    raise AssertionError("no fast path was taken")


def draw(heads: int) -> torch.Tensor:
    return torch.randn(2, heads, 7, 10)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_a_repeated_call_takes_the_fast_path_and_rotates_by_the_definition(
    monkeypatch, given, inplace
):
    rope, q, k = rw.Rope(SPEC), draw(3), draw(1)
    where = lambda start: (
        {"positions": torch.arange(start, start + 7).repeat(2, 1)} if given else {"offset": start}
    )
    rope(q.clone(), k.clone(), **where(5), inplace=inplace)
    monkeypatch.setattr(rope_module, "make_request", slow_path)
    positions = torch.arange(1000, 1007).expand(2, 7)
    given_q, given_k = q.clone(), k.clone()
    rotated = rope(given_q, given_k, **where(1000), inplace=inplace)
    assert (rotated[0] is given_q, rotated[1] is given_k) == (inplace, inplace)
    for found, x in zip(rotated, (q, k), strict=True):
        torch.testing.assert_close(found, definition(x, SPEC, positions).float())


def assert_rotated(rotated, xs, spec, positions):
    for found, x in zip(rotated, xs, strict=True):
        torch.testing.assert_close(found, definition(x, spec, positions.expand(2, 7)).float())


def test_tensors_that_require_gradients_take_the_fast_path_under_no_grad(monkeypatch):
    rope, q, k = rw.Rope(SPEC), draw(3).requires_grad_(), draw(1).requires_grad_()
    with torch.no_grad():
        rope(q, k, offset=5)
        monkeypatch.setattr(rope_module, "make_request", slow_path)
        assert_rotated(rope(q, k, offset=9), (q, k), SPEC, torch.arange(9, 16))


def test_slices_of_another_projection_of_the_same_form_take_the_fast_path(monkeypatch):
    rope, fused = rw.Rope(SPEC), [torch.randn(2, 7, 4, 10).transpose(1, 2) for _ in range(2)]
    rope(fused[0][:, :3], fused[0][:, 3:], offset=5)
    monkeypatch.setattr(rope_module, "make_request", slow_path)
    xs = fused[1][:, :3], fused[1][:, 3:]
    assert_rotated(rope(*xs, offset=9), xs, SPEC, torch.arange(9, 16))


def test_a_repeated_call_in_place_is_refused_if_its_q_and_k_share_memory(monkeypatch):
    """Whether q and k share memory depends on their addresses, which may differ between calls with
    the same shapes and strides.
    """
    rope, size = rw.Rope(SPEC), 2 * 7 * 10
    memory = torch.randn(4 * size)
    at = lambda start: memory[start : start + size].view(2, 1, 7, 10)
    rope(at(size), at(3 * size), offset=5, inplace=True)
    with pytest.raises(rw.RopeError, match="memory"):
        rope(at(2 * size - 5), at(2 * size + 5), offset=5, inplace=True)
    with pytest.raises(rw.RopeError, match="memory"):
        rope(at(size), at(size + 5), offset=5, inplace=True)
    monkeypatch.setattr(rope_module, "make_request", slow_path)
    xs = at(size).clone(), at(3 * size).clone()
    assert_rotated(
        rope(at(size), at(3 * size), offset=9, inplace=True), xs, SPEC, torch.arange(9, 16)
    )


@pytest.mark.parametrize("strided", ["q", "k", "qk"])
def test_repeated_calls_with_a_last_stride_other_than_1_follow_the_definition(strided):
    rope = rw.Rope(SPEC)
    for start in (5, 9):
        q, k = (torch.randn(2, 1, 10, 7).mT if name in strided else draw(1) for name in "qk")
        assert_rotated(rope(q, k, offset=start), (q, k), SPEC, torch.arange(start, start + 7))


def test_a_backend_that_prepares_nothing_may_be_called_twice():
    rope, q, k = rw.Rope(SPEC, backend="eager"), draw(3), draw(1)
    for start in (5, 9):
        assert_rotated(rope(q, k, offset=start), (q, k), SPEC, torch.arange(start, start + 7))


def test_repeated_calls_follow_frequencies_that_depend_on_the_length():
    rope = rw.Rope(sample_spec("dynamic"))
    q, k = torch.randn(2, 3, 7, 14), torch.randn(2, 1, 7, 14)
    for start in (0, 30, 90):
        expected = definition(
            q, rope.spec, torch.arange(start, start + 7).expand(2, 7), length=start + 7
        )
        torch.testing.assert_close(rope(q, k, offset=start)[0], expected.float())


def test_repeated_calls_follow_frequencies_that_are_trained():
    rope, q, k = rw.Rope(rw.RopeSpec(10, scaling=rw.frequencies.Learnable())), draw(3), draw(1)
    for scale in (0.0, 0.3, -0.2):
        torch.nn.init.constant_(rope.log_scale, scale)
        omega = (
            10_000.0 ** (-torch.arange(5, dtype=torch.float64) / 5)
            * torch.tensor(scale).double().exp()
        )
        fixed = rw.RopeSpec(10, scaling=rw.frequencies.Given(tuple(omega.tolist())))
        with torch.no_grad():
            assert_rotated(rope(q, k, offset=5), (q, k), fixed, torch.arange(5, 12))


def test_no_more_kinds_of_calls_are_kept_than_allowed(monkeypatch):
    fast_path.PREPARED.clear()
    monkeypatch.setattr(fast_path.PREPARED, "most_entries", 3)
    rope, kept = rw.Rope(SPEC), []
    for heads in range(1, 9):
        rope(draw(heads), draw(1))
        kept.append(len(fast_path.PREPARED))
    assert kept == [1, 2, 3, 3, 3, 3, 3, 3]


def test_repeated_calls_at_positions_without_a_table_follow_the_definition(monkeypatch):
    rope, q, k = rw.Rope(SPEC), draw(3), draw(1)
    rope(q, k, offset=5)
    # from the second call on, no backend is picked: the prepared kernel runs
    monkeypatch.setattr(fast_path, "pick", slow_path)
    for start in (-50, 2**20 - 3, 10**7):
        found = rope(q, k, offset=start)[0]
        torch.testing.assert_close(
            found, definition(q, SPEC, torch.arange(start, start + 7).expand(2, 7)).float()
        )


@pytest.mark.parametrize(
    "form", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, "axes"]
)
def test_repeated_calls_read_the_new_values_of_a_positions_tensor_of_any_dtype(form):
    """A kernel that was prepared for int64 must not read narrower integers: here two of them, read
    as one, would still be a small position.
    """
    rope, q, k = rw.Rope(rw.RopeSpec(10, theta=99.0)), draw(3), draw(1)
    memory = torch.zeros(8 * 14, dtype=torch.int64 if form == "axes" else form)
    given = memory[:14].view((1, 2, 7) if form == "axes" else (2, 7))
    for rows in (
        [[0, 3, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0]],
        [[5, 1, 0, 0, 0, 0, 0], [0, 9, 2, 0, 0, 0, 0]],
    ):
        positions = torch.tensor(rows)
        given.copy_(positions)
        assert_rotated(rope(q, k, positions=given), (q, k), rope.spec, positions)


@pytest.mark.parametrize("offset", [2**62, -(2**62), 2**70, -(2**70)])
def test_an_offset_no_integer_can_hold_is_refused(offset):
    rope, q, k = rw.Rope(SPEC), draw(3), draw(1)
    rope(q, k, offset=5)
    with pytest.raises(rw.RopeError, match="offset"):
        rope(q, k, offset=offset)


#: how a call may differ from the prepared one: (change of q, change of k, other keyword arguments)
CHANGES = {
    "gradient of q": (lambda q: q.requires_grad_(), None, {}),
    "gradient of k": (None, lambda k: k.requires_grad_(), {}),
    "strides of q": (lambda q: q.transpose(1, 2).contiguous().transpose(1, 2), None, {}),
    "strides of k": (None, lambda k: k.repeat(2, 1, 1, 1)[::2], {}),
    "dtype": (lambda q: q.bfloat16(), None, {}),
    "subclass as q": (lambda q: torch.nn.Parameter(q, requires_grad=False), None, {}),
    "subclass as k": (None, lambda k: torch.nn.Parameter(k, requires_grad=False), {}),
    "negative q": (torch._neg_view, None, {}),
    "negative k": (None, torch._neg_view, {}),
    "length of positions": (None, None, {"positions": torch.arange(6)}),
    "subclass as positions": (
        None,
        None,
        {"positions": torch.nn.Parameter(torch.arange(7), requires_grad=False)},
    ),
    "positions and an offset": (None, None, {"positions": torch.arange(7), "offset": 3}),
    "a list as positions": (None, None, {"positions": [0, 1, 2, 3, 4, 5, 6]}),
    "a truth as offset": (None, None, {"offset": True}),
    "another axis": (None, None, {"seq_dim": -3}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_call_of_another_kind_is_checked_again(monkeypatch, change):
    rope, q, k = rw.Rope(SPEC), draw(3), draw(1)
    rope(q, k, offset=5)
    rope(q, k, positions=torch.arange(7))
    monkeypatch.setattr(rope_module, "make_request", slow_path)
    to_q, to_k, where = CHANGES[change]
    q, k = to_q(q) if to_q else q, to_k(k) if to_k else k
    with as_users_call(), pytest.raises(AssertionError, match="no fast path"):
        rope(q, k, **where)


def under_vmap(rope, q, k):
    torch.vmap(rope)(q.expand(4, *q.shape), k.expand(4, *k.shape))


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def under_a_mode(rope, q, k):
    with Watching():
        rope(q, k)


def under_forward_derivatives(rope, q, k):
    with forward_ad.dual_level():
        rope(q, k)


def traced(rope, q, k):
    with as_users_call():
        torch.jit.trace(lambda q, k: rope(q, k), (q, k), check_trace=False)


def after_a_hook(register):
    """Called while a hook is registered."""

    def call(rope, q, k):
        handle = register(rope)(lambda *_: None)
        try:
            rope(q, k, offset=5)
        finally:
            handle.remove()

    return call


HOOKS = {
    "forward hook": lambda rope: rope.register_forward_hook,
    "forward pre-hook": lambda rope: rope.register_forward_pre_hook,
    "backward hook": lambda rope: rope.register_full_backward_hook,
    "backward pre-hook": lambda rope: rope.register_full_backward_pre_hook,
    "forward hook of every module": lambda _: modules.register_module_forward_hook,
    "forward pre-hook of every module": lambda _: modules.register_module_forward_pre_hook,
    "backward hook of every module": lambda _: modules.register_module_full_backward_hook,
    "backward pre-hook of every module": lambda _: modules.register_module_full_backward_pre_hook,
}
WATCHED = {
    "vmap": under_vmap,
    "mode": under_a_mode,
    "forward derivatives": under_forward_derivatives,
    "tracer": traced,
    **{name: after_a_hook(register) for name, register in HOOKS.items()},
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("watched", WATCHED.values(), ids=WATCHED)
def test_a_repeated_call_under_a_hook_tracer_or_transform_takes_the_slow_path(monkeypatch, watched):
    rope, q, k = rw.Rope(SPEC), draw(3), draw(1)
    rope(q, k, offset=5)
    monkeypatch.setattr(rope_module, "make_request", slow_path)
    with pytest.raises(AssertionError, match="no fast path"):
        watched(rope, q, k)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::torch.jit.TracerWarning"
)
@pytest.mark.parametrize("known", [False, True])
def test_a_traced_call_rotates_other_tensors_of_other_lengths(known):
    """The trace must hold the operator of the rotation, not the output of one kernel call."""
    rope = rw.Rope(SPEC)
    if known:
        rope(draw(3), draw(1), offset=5)
    with as_users_call():
        traced = torch.jit.trace(
            lambda q, k: rope(q, k, offset=5), (draw(3), draw(1)), check_trace=False
        )
        for seq in (7, 4):
            q, k = torch.randn(2, 3, seq, 10), torch.randn(2, 1, seq, 10)
            for found, x in zip(traced(q, k), (q, k), strict=True):
                positions = torch.arange(5, 5 + seq).expand(2, seq)
                torch.testing.assert_close(found, definition(x, SPEC, positions).float())


def test_a_replaced_or_overridden_forward_is_called_instead_of_the_fast_path():
    """Subclasses override `forward`, and libraries that place layers on devices replace it."""
    rope, q, k = rw.Rope(SPEC), draw(3), draw(1)
    rope(q, k, offset=5)

    class Mine(rw.Rope):
        def forward(self, q, k=None, *_, **__):
            return "mine"

    assert Mine(SPEC)(q, k, offset=5) == "mine"
    rope.forward = lambda *_, **__: "wrapped"
    assert rope(q, k, offset=5) == "wrapped"


def test_the_compiled_form_of_a_rope_is_called_instead_of_the_fast_path():
    rope, q, k = rw.Rope(SPEC), draw(3), draw(1)
    rope(q, k, offset=5)
    rope._compiled_call_impl = lambda *_, **__: "compiled"  # what rope.compile() sets
    assert rope(q, k, offset=5) == "compiled"


@pytest.mark.parametrize("graded", ["q", "k", "qk"])
def test_a_call_repeated_without_gradients_has_gradients_when_they_are_needed(graded):
    rope, q, k = (
        rw.Rope(SPEC),
        draw(3).requires_grad_("q" in graded),
        draw(1).requires_grad_("k" in graded),
    )
    with torch.no_grad():
        for _ in range(2):
            rope(q, k, offset=5)
    rotated = [
        (x, y, torch.randn_like(y))
        for x, y in zip((q, k), rope(q, k, offset=5), strict=True)
        if x.requires_grad
    ]
    xs, ys, weights = zip(*rotated, strict=True)
    for gradient, weight in zip(torch.autograd.grad(ys, xs, weights), weights, strict=True):
        # the transpose of a rotation is the rotation back
        torch.testing.assert_close(
            gradient, definition(weight, SPEC, -torch.arange(5, 12).expand(2, 7)).float()
        )


@pytest.mark.parametrize("known", [False, True])
def test_autograd_notices_that_a_tensor_it_kept_was_rotated_in_place(known):
    rope, q, k = rw.Rope(SPEC), draw(3), draw(1)
    if known:
        rope(q.clone(), k.clone(), offset=5, inplace=True)
    for kept in (0, 1):
        weight = torch.ones((), requires_grad=True)
        product = ((q, k)[kept] * weight).sum()
        with torch.no_grad():
            rope(q, k, offset=5, inplace=True)
        with pytest.raises(RuntimeError, match="inplace"):
            product.backward()


def test_calls_of_more_kinds_than_are_kept_for_one_key_follow_the_definition():
    rope, xs = rw.Rope(SPEC), []
    for step in range(1, fast_path.MOST_PER_KEY + 4):
        xs.append((draw(3), torch.randn(2, 1, 7 * step, 10)[:, :, ::step]))
    for start in (5, 9):
        for q, k in xs:
            assert_rotated(rope(q, k, offset=start), (q, k), SPEC, torch.arange(start, start + 7))
    assert max(len(kinds) for kinds in fast_path.PREPARED.values()) == fast_path.MOST_PER_KEY


def negative(rope, q, k):
    rope(torch._neg_view(q), k)


def subclass(rope, q, k):
    rope(q, torch.nn.Parameter(k, requires_grad=False))


def with_gradients(rope, q, k):
    rope(q.requires_grad_(), k)


def alone(rope, q, k):
    rope(q)


def at_a_length(rope, q, k):
    rope(q, k, length=9)


def compiling(rope, q, k):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        rope(q, k)


UNKNOWN = (
    under_vmap,
    under_a_mode,
    under_forward_derivatives,
    traced,
    negative,
    subclass,
    with_gradients,
    alone,
    at_a_length,
)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::torch.jit.TracerWarning"
)
@pytest.mark.parametrize("call", [*UNKNOWN, compiling])
def test_traced_calls_and_kinds_without_a_fast_path_are_not_prepared(monkeypatch, call):
    fast_path.PREPARED.clear()
    with as_users_call():
        call(rw.Rope(SPEC), draw(3), draw(1))
    assert fast_path.PREPARED == {}


def test_a_compiled_call_of_a_prepared_kind_takes_the_slow_path(monkeypatch):
    rope, q, k = rw.Rope(SPEC), draw(3), draw(1)
    rope(q, k)
    monkeypatch.setattr(rope_module, "make_request", slow_path)
    with pytest.raises(AssertionError, match="no fast path"):
        compiling(rope, q, k)


@pytest.mark.parametrize(
    ("field", "args", "where"),
    [("q", ["no tensor", draw(1)], {}), ("seq_dim", [draw(3), draw(1)], {"seq_dim": [-2]})],
)
def test_a_wrong_q_or_seq_dim_is_refused_after_a_call_was_prepared(field, args, where):
    rope = rw.Rope(SPEC)
    rope(draw(3), draw(1))
    assert_refused(field, lambda: rope(*args, **where))


@pytest.mark.parametrize("first", ["q", "k"])
def test_q_and_k_side_by_side_in_memory_take_the_fast_path_in_place(monkeypatch, first):
    """q ends where k starts, or k where q starts, so they share no memory."""
    rope, memory = rw.Rope(SPEC), torch.randn(2 * 2 * 7 * 10)
    rope(draw(1), draw(1), offset=5, inplace=True)
    xs = memory.view(2, 2, 1, 7, 10).unbind()
    xs = xs if first == "q" else xs[::-1]
    given = [x.clone() for x in xs]
    monkeypatch.setattr(rope_module, "make_request", slow_path)
    assert_rotated(rope(*xs, offset=9, inplace=True), given, SPEC, torch.arange(9, 16))


def test_slices_of_another_projection_take_the_fast_path_in_place(monkeypatch):
    """The memory of q and k is interleaved, so the fast path compares their distance in memory with
    that of the checked call.
    """
    rope, fused = rw.Rope(SPEC), [torch.randn(2, 7, 4, 10).transpose(1, 2) for _ in range(2)]
    rope(fused[0][:, :3], fused[0][:, 3:], offset=5, inplace=True)
    xs = fused[1][:, :3], fused[1][:, 3:]
    given = [x.clone() for x in xs]
    monkeypatch.setattr(rope_module, "make_request", slow_path)
    assert_rotated(rope(*xs, offset=9, inplace=True), given, SPEC, torch.arange(9, 16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_torch_without_the_quick_function_that_allocates_gives_the_same_tensors(
    monkeypatch, dtype
):
    fast_path.PREPARED.clear()
    monkeypatch.setattr(fast_path, "_compiled", None)
    rope, q, k = (
        rw.Rope(SPEC),
        draw(3).to(dtype).transpose(1, 2).contiguous().transpose(1, 2),
        draw(1).to(dtype),
    )
    long = rope(q, k, offset=5)
    monkeypatch.setattr(rope_module, "make_request", slow_path)
    for found, wanted in zip(rope(q, k, offset=5), long, strict=True):
        assert (found.dtype, found.stride(), found.device) == (
            dtype,
            wanted.stride(),
            wanted.device,
        )
        assert torch.equal(found, wanted)


def test_a_torch_without_the_guard_of_the_fast_path_takes_the_slow_path_and_is_right(monkeypatch):
    fast_path.PREPARED.clear()
    monkeypatch.setattr(fast_path, "_Guard", None)
    rope, q, k = rw.Rope(SPEC), draw(3), draw(1)
    for start in (5, 9):
        assert_rotated(rope(q, k, offset=start), (q, k), SPEC, torch.arange(start, start + 7))
    assert fast_path.PREPARED == {}


def test_alternating_specs_and_offsets_each_rotate_by_their_own_angles(monkeypatch):
    """The cache of rows of consecutive positions has two entries, fewer than these calls need."""
    monkeypatch.setattr(cpu, "CACHED_ROWS_FROM", 1)
    ropes = [rw.Rope(rw.RopeSpec(10, theta=theta)) for theta in (10_000.0, 99.0, 7.0)]
    q, k = draw(3), draw(1)
    for _ in range(2):
        for rope in ropes:
            for start in (5, 9):
                assert_rotated(
                    rope(q, k, offset=start), (q, k), rope.spec, torch.arange(start, start + 7)
                )


@pytest.mark.parametrize("tokens", [cpu.CACHED_ROWS_FROM - 1, cpu.CACHED_ROWS_FROM])
@pytest.mark.parametrize("offset", [-3, 0, 5, 52_000, 2**20 - 9])
def test_cached_and_computed_rows_give_the_same_bits(monkeypatch, tokens, offset):
    """At offsets below 0, within the cached rows, across their end, and across the end of the
    two-level table.
    """
    rope, q, k = rw.Rope(SPEC), torch.randn(1, 2, tokens, 10), torch.randn(1, 1, tokens, 10)
    found = [
        *rope(q, k, offset=offset),
        *rope(q, k, offset=offset),
        rope.rotate(q, offset=offset),
        rope.unrotate(k, offset=offset),
    ]
    monkeypatch.setattr(cpu, "CACHED_ROWS_FROM", tokens + 1)
    wanted = [*rope(q, k, offset=offset)] * 2 + [
        rope.rotate(q, offset=offset),
        rope.unrotate(k, offset=offset),
    ]
    assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))
    positions = torch.arange(offset, offset + tokens).expand(1, tokens)
    torch.testing.assert_close(found[0], definition(q, SPEC, positions).float())


def test_calls_with_few_tokens_do_not_read_cached_rows(monkeypatch):
    monkeypatch.setattr(cpu, "cached_rows", slow_path)
    rope, q, k = rw.Rope(SPEC), draw(3), draw(1)
    for start in (5, 9):
        assert_rotated(rope(q, k, offset=start), (q, k), SPEC, torch.arange(start, start + 7))
