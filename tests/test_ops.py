"""The registered ops: gradients of every order and mode, vmap, opcheck; what a compiler makes of
them is in compiled.py.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import ropewalk as rw
from another_process import run_tests
from helpers import DTYPES, HEAD_DIM, sample_positions, sample_spec
from ropewalk import axes, ops, rotation

B, H, S = 2, 2, 3
# forward-mode gradients use decompositions that torch compiles by torch.jit.script, which warns
forward_mode = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)
every_scaling = pytest.mark.parametrize("name", rw.frequencies.SCALINGS)
LAYOUTS = pytest.mark.parametrize(
    ("layout", "layout_out"), [("half", "half"), ("interleaved", "half")]
)


def small(**about):
    return torch.randn(1, 1, 2, HEAD_DIM, dtype=torch.float64, **about)


def rotated(name, layout="half", layout_out="half", **where):
    """Return a function that rotates x, or x and k, at two positions, of which one is past the
    trained length.
    """
    rope = rw.Rope(sample_spec(name, layout=layout, layout_out=layout_out))
    return lambda *xs: rope(*xs, positions=torch.tensor([3, 40]), **where)


@every_scaling
@LAYOUTS
def test_gradients_equal_finite_differences(name, layout, layout_out):
    x = small(requires_grad=True)
    assert gradcheck(rotated(name, layout, layout_out), x, atol=1e-9, rtol=1e-6, fast_mode=True)


@forward_mode
def test_gradients_of_queries_and_keys():
    q, k = small(requires_grad=True), small(requires_grad=True)
    both = rotated("xpos")
    about = {
        "atol": 1e-8,
        "check_batched_grad": True,
        "check_forward_ad": True,
        "check_undefined_grad": True,
    }
    assert gradcheck(both, (q, k), **about, fast_mode=True)
    assert gradgradcheck(
        lambda q, k: tuple(x.pow(3) for x in both(q, k)), (q, k), atol=1e-6, fast_mode=True
    )
    # the gradient of one tensor if the other needs none, or is not used
    assert_close(
        torch.autograd.grad(both(q, k)[1].sum(), k)[0],
        torch.autograd.grad(both(q.detach(), k)[1].sum(), k)[0],
    )
    assert torch.autograd.grad(both(q, k)[0].sum(), k, allow_unused=True)[0] is None


@forward_mode
def test_gradients_of_a_table_rotation_equal_finite_differences():
    x = small(requires_grad=True)
    cos, sin = (torch.randn(2, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    rotate_it = lambda x, cos, sin: rotation.rotate_by(
        x, cos, sin, layout="half", layout_out="interleaved", start=2
    )
    assert gradcheck(rotate_it, (x, cos, sin), atol=1e-8)
    assert gradgradcheck(rotate_it, (x, cos, sin), atol=1e-6, fast_mode=True)
    frozen = lambda x: rotate_it(x, cos.detach(), sin.detach())
    assert gradcheck(
        frozen, x, atol=1e-9, check_forward_ad=True, check_batched_grad=True, fast_mode=True
    )
    assert gradgradcheck(lambda x: frozen(x).pow(3), x, atol=1e-6, fast_mode=True)


def test_gradients_of_learned_frequencies_survive_vmap():
    rope, xs, positions = (
        rw.Rope(sample_spec("learnable")),
        torch.randn(4, S, HEAD_DIM),
        torch.randint(0, 50, (4, S)),
    )
    call = lambda x, p: rope(x, positions=p)
    mapped, looped = (
        torch.vmap(call)(xs, positions),
        torch.stack([call(*each) for each in zip(xs, positions, strict=True)]),
    )
    found, expected = (
        torch.autograd.grad(y.pow(3).sum(), rope.log_scale)[0] for y in (mapped, looped)
    )
    assert_close(found, expected)
    # the op has no gradient for tables, so it refuses tables that require one
    with pytest.raises(rw.RopeError, match="rotate_by"):
        torch.ops.ropewalk.rotate_by_table(
            xs, torch.rand(S, 5, requires_grad=True), torch.rand(S, 5), "half", "half", 2, -2
        )


def test_gradients_through_apply_rotary_pos_emb():
    x = small(requires_grad=True)
    cos, sin = rw.Rope(rw.RopeSpec(10)).cos_sin_hf(torch.arange(2)[None], torch.float64)
    assert gradcheck(
        lambda x: rw.apply_rotary_pos_emb(x, x, cos, sin), x, atol=1e-9, fast_mode=True
    )


def test_in_place_the_gradient_is_right_and_a_leaf_or_saved_tensor_is_refused():
    rope, x = rw.Rope(sample_spec()), torch.randn(B, H, S, HEAD_DIM, requires_grad=True)
    y = torch.randn(B, H, S, HEAD_DIM)
    (expected,) = torch.autograd.grad(rope(2 * x), x, y)
    (found,) = torch.autograd.grad(rope(2 * x, inplace=True), x, y)
    assert torch.equal(found, expected)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        rope(x, inplace=True)
    saved = x.sigmoid()
    rope(saved, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()


def test_positions_changed_before_the_backward_raise_an_error():
    rope, x, positions = (
        rw.Rope(sample_spec()),
        torch.randn(B, H, S, HEAD_DIM, requires_grad=True),
        torch.arange(S),
    )
    y = rope(x, positions=positions)
    positions += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_output_gradients_may_be_not_contiguous():
    rope, x = rw.Rope(sample_spec()), torch.randn(B, H, S, HEAD_DIM, requires_grad=True)
    full = torch.randn(B, S, 1, HEAD_DIM).expand(B, S, H, HEAD_DIM).transpose(1, 2)
    for grad in (full, torch.ones(()).expand(B, H, S, HEAD_DIM)):
        found, expected = (torch.autograd.grad(rope(x), x, g)[0] for g in (grad, grad.contiguous()))
        assert torch.equal(found, expected)


@forward_mode
def test_the_tangent_of_a_rotation_is_the_rotated_tangent():
    rope = rw.Rope(sample_spec("yarn"))
    x, tangent = torch.randn(2, B, H, S, HEAD_DIM, dtype=torch.float64)
    for primal in (x, x.clone().requires_grad_()):
        with forward_ad.dual_level():
            out = forward_ad.unpack_dual(rope(forward_ad.make_dual(primal, tangent)))
            assert_close(out.primal, rope(x))
            assert_close(out.tangent, rope(tangent))
            # a tangent of q alone, and a rotation in place
            q, k = rope(forward_ad.make_dual(primal, tangent), x)
            assert_close(forward_ad.unpack_dual(q).tangent, rope(tangent))
            assert forward_ad.unpack_dual(k).tangent is None
            own = forward_ad.unpack_dual(
                rope(forward_ad.make_dual(x.clone(), tangent.clone()), inplace=True)
            )
            assert_close(own.tangent, rope(tangent))


@forward_mode
@pytest.mark.parametrize("name", ["default", "dynamic", "xpos"])
def test_functorch_derivatives(name):
    rope = rw.Rope(sample_spec(name))
    rotate_it = lambda x: rope(x, positions=torch.tensor([3, 40]))
    x, tangent = small()[0, 0], small()[0, 0]
    jacobian = torch.stack(
        [rotate_it(e.view_as(x)) for e in torch.eye(x.numel(), dtype=x.dtype)], -1
    ).reshape(*x.shape, *x.shape)
    assert_close(torch.func.jacfwd(rotate_it)(x), jacobian)
    assert_close(torch.func.jacrev(rotate_it)(x), jacobian)
    assert_close(torch.func.jvp(rotate_it, (x,), (tangent,))[1], rotate_it(tangent))
    assert_close(
        torch.func.grad(lambda x: (rotate_it(x) * tangent).sum())(x),
        torch.einsum("abcd,ab->cd", jacobian, tangent),
    )
    hessian = torch.func.hessian(lambda x: 0.5 * rotate_it(x).pow(2).sum())(x)
    assert_close(hessian, torch.einsum("abcd,abef->cdef", jacobian, jacobian))
    samples = torch.randn(4, *x.shape, dtype=x.dtype)
    each = torch.func.vmap(torch.func.grad(lambda x: rotate_it(x).pow(3).sum()))(samples)
    leaf = samples.clone().requires_grad_()
    assert_close(
        each, torch.autograd.grad(sum(rotate_it(row).pow(3).sum() for row in leaf), leaf)[0]
    )


@pytest.mark.parametrize("name", ["default", "dynamic", "xpos", "learnable"])
@pytest.mark.parametrize(
    ("shape", "seq_dim"),
    [
        ((S, HEAD_DIM), -2),
        ((H, S, HEAD_DIM), -2),
        ((B, H, S, HEAD_DIM), -2),
        ((B, S, H, HEAD_DIM), -3),
    ],
)
def test_vmap_equals_a_loop(name, shape, seq_dim):
    rope = rw.Rope(sample_spec(name))
    xs, positions, offsets = (
        torch.randn(4, *shape),
        torch.randint(0, 50, (4, S)),
        torch.tensor([1, 2, 3, 90]),
    )
    call = lambda x, p: rope(x, 2 * x, positions=p, seq_dim=seq_dim)
    pairs = lambda args: zip(*args, strict=True)

    def check(found, each):
        for one, many in zip(found, pairs(each), strict=True):
            assert torch.equal(one, torch.stack(many))

    check(torch.vmap(call)(xs, positions), [call(x, p) for x, p in zip(xs, positions, strict=True)])
    check(
        torch.vmap(call, in_dims=(0, None))(xs, positions[0]), [call(x, positions[0]) for x in xs]
    )
    check(
        torch.vmap(call, in_dims=(None, 0))(xs[0], positions), [call(xs[0], p) for p in positions]
    )
    last = xs.movedim(0, -1)
    check(
        torch.vmap(call, in_dims=(-1, 0))(last, positions),
        [call(x, p) for x, p in zip(xs, positions, strict=True)],
    )
    by_offset = lambda x, o: rope(x, x, offset=o, seq_dim=seq_dim)
    check(
        torch.vmap(by_offset)(xs, offsets),
        [by_offset(x, o) for x, o in zip(xs, offsets, strict=True)],
    )
    single = lambda x: (rope.rotate(x, seq_dim=seq_dim),)
    check(torch.vmap(single)(xs), [single(x) for x in xs])
    tables = lambda p: rope.cos_sin(p)
    check(torch.vmap(tables)(positions), [tables(p) for p in positions])
    if name != "learnable":
        expected = [rope(x, seq_dim=seq_dim) for x in xs]
        found = torch.vmap(lambda x: (rope(x, seq_dim=seq_dim, inplace=True),))(xs.clone())
        assert torch.equal(found[0], torch.stack(expected))


@pytest.mark.parametrize("heads", [3, 4])
def test_vmap_of_packed_tokens_keeps_heads_apart(heads):
    """x is [T, H, D] and every head has a table. With as many mapped samples as heads, their axis
    must not be taken for that of the heads.
    """
    rope = rw.Rope(rw.RopeSpec(8, axes=axes.MixedAxes(num_heads=heads, pairs=4))).requires_grad_(
        False
    )
    xs, points = torch.randn(4, S, heads, 8), torch.rand(2, 1, S)
    by_op = lambda x: torch.ops.ropewalk.rotate_by_table(
        x, *rope.cos_sin(points), "half", "half", 0, -3
    )
    for call in (lambda x: rope(x, positions=points, seq_dim=0), by_op):
        assert_close(torch.vmap(call)(xs), torch.stack([call(x) for x in xs]))


def test_a_mapped_axis_that_shares_its_angles_costs_one_call(monkeypatch):
    """If only x is mapped, one call rotates all samples; if positions are mapped too, each sample
    takes a call.
    """
    rope, calls, execute = rw.Rope(sample_spec()), [], ops.execute
    monkeypatch.setattr(
        ops, "execute", lambda *args: (calls.append(len(args[0])), execute(*args))[1]
    )
    xs, positions = torch.randn(4, B, H, S, HEAD_DIM), torch.randint(0, 50, (4, S))
    torch.vmap(rope)(xs)
    assert calls == [1]
    torch.vmap(lambda x: rope(x, x, positions=positions[0], seq_dim=-3))(xs.transpose(2, 3))
    assert calls == [1] * 3
    torch.vmap(lambda x, p: rope(x, positions=p))(xs, positions)
    assert calls == [1] * 7


def test_vmap_of_rerotate_and_apply():
    rope, xs = rw.Rope(sample_spec()), torch.randn(4, H, S, HEAD_DIM)
    shifts = torch.tensor([1, 5, 20, 3])
    move = lambda x, shift: rope.rerotate(x, torch.arange(S), torch.arange(S) + shift)
    assert_close(
        torch.vmap(move)(xs, shifts),
        torch.stack([move(x, s) for x, s in zip(xs, shifts, strict=True)]),
    )
    cos, sin = rw.Rope(rw.RopeSpec(HEAD_DIM)).cos_sin_hf(torch.arange(S))
    rotate_it = lambda x: rw.apply_rotary_pos_emb(x, x, cos, sin, 0)
    assert_close(torch.vmap(rotate_it)(xs)[0], torch.stack([rotate_it(x)[0] for x in xs]))


def samples(dtype, layout, contiguous, grad):
    spec = sample_spec("dynamic", layout=layout)
    x, k = (torch.randn(B, heads, S, HEAD_DIM).to(dtype) for heads in (H, 1))
    if not contiguous:
        x, k = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (x, k))
    positions, length = sample_positions(spec, B, S), torch.tensor([9, 30])
    x, k = x.requires_grad_(grad), k.requires_grad_(grad)
    angles = (positions, 0, length, spec.fingerprint, "auto", -2, 1, 1)
    table = torch.rand(S, 5, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    return {
        "rotate": (x, *angles, True),
        "rotate_": (x.detach().clone(), *angles, False),
        "rotate_qk": (x, k, *angles),
        "rotate_by_table": (x, table, 1 - table, layout, "half", 2, -2),
        "cos_sin": (positions, length, 1, spec.fingerprint, "auto", table.dtype, False),
    }


@pytest.mark.parametrize("name", ["rotate", "rotate_", "rotate_qk", "rotate_by_table", "cos_sin"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_op_passes_opcheck(name, dtype, full):
    """Each op in each dtype: with --full, every combination of layout, contiguity and gradients;
    without, one of them.
    """
    every = itertools.product(["half", "interleaved"], [True, False], [True, False])
    mixed = [("interleaved", False, True)] if DTYPES.index(dtype) % 2 else [("half", True, False)]
    for about in every if full else mixed:
        torch.library.opcheck(
            getattr(torch.ops.ropewalk, name).default, samples(dtype, *about)[name]
        )


@pytest.mark.parametrize("shape", [(S,), (1, S), (B, S), (2, 1, S), (2, B, S)])
@pytest.mark.parametrize("rows", [None, 0, 1, B])
def test_fake_tables_have_the_shape_of_real_ones(shape, rows):
    spec = sample_spec("dynamic", "one" if len(shape) < 3 else "round_robin")
    length = None if rows is None else torch.tensor(30) if rows == 0 else torch.full((rows,), 30)
    args = (
        torch.zeros(shape, dtype=torch.int64),
        length,
        1,
        spec.fingerprint,
        "auto",
        torch.float32,
        False,
    )
    torch.library.opcheck(torch.ops.ropewalk.cos_sin.default, args, test_utils="test_faketensor")


class Watching(TorchDispatchMode):
    """A dispatch mode that changes nothing; under it a rotation must be one registered op."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("layout", "layout_out"), [("half", "interleaved"), ("interleaved", "half")]
)
def test_a_traced_table_rotation_changes_the_layout_and_its_gradient_changes_it_back(
    layout, layout_out
):
    x, weights = torch.randn(2, B, H, S, 12, dtype=torch.float64)
    angle = torch.randn(S, 4, dtype=torch.float64)
    table = {"layout": layout, "layout_out": layout_out, "start": 2}
    with Watching():
        found = rotation.rotate_by(x.requires_grad_(), angle.cos(), angle.sin(), **table)
        (grad,) = torch.autograd.grad(found, x, weights)
    pairs = {
        "half": lambda y: y[..., 2:10].unflatten(-1, (2, 4)).mT,
        "interleaved": lambda y: y[..., 2:10].unflatten(-1, (4, 2)),
    }
    for before, after, by, one, other in (
        (x, found, angle, layout, layout_out),
        (weights, grad, -angle, layout_out, layout),
    ):
        z = torch.view_as_complex(pairs[one](before).contiguous()) * torch.polar(
            torch.ones_like(by), by
        )
        assert_close(pairs[other](after), torch.view_as_real(z))
        assert torch.equal(after[..., :2], before[..., :2])
        assert torch.equal(after[..., 10:], before[..., 10:])


def test_meta_tensors_give_shapes():
    rope = rw.Rope(sample_spec())
    q, k = (
        torch.empty(B, heads, S, HEAD_DIM, device="meta", dtype=torch.bfloat16) for heads in (H, 1)
    )
    for x, y in zip(rope(q, k), (q, k), strict=True):
        assert (x.shape, x.dtype, x.device) == (y.shape, y.dtype, y.device)


def test_the_files_of_compiled_tests_pass_in_another_process(full):
    """The runtime type checks of the tests wrap functions in ways that dynamo cannot trace, so a
    process without them compiles.
    """
    files = [Path(__file__).parent / name for name in ("compiled.py", "models/decoder_compiled.py")]
    run_tests(files, full, "--noconftest", "-p", "sampling", "--show-capture=no")


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_only_the_tensor_that_requires_a_gradient_has_one(layout):
    """Where only q requires a gradient, k's result requires none, and the other way round."""
    rope = rw.Rope(rw.RopeSpec(6, layout=layout))
    for needed in ("q", "k"):
        q, k = (torch.randn(2, 3, 4, 6, requires_grad=name == needed) for name in "qk")
        rotated = dict(zip("qk", rope(q, k), strict=True))
        assert {name: out.requires_grad for name, out in rotated.items()} == {
            "q": needed == "q",
            "k": needed == "k",
        }
        grad = torch.randn(2, 3, 4, 6)
        rotated[needed].backward(grad)
        x = q if needed == "q" else k
        torch.testing.assert_close(x.grad, rope.unrotate(grad))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(("start", "width"), [(0, 6), (0, 4), (2, 4), (1, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batched_backward_equals_one_backward_for_each_gradient(layout, start, width, dtype):
    """`is_grads_batched` and `jacobian(vectorize=True)` map over the backward without functorch."""
    rope = rw.Rope(rw.RopeSpec(6, layout=layout, rotary_start=start, rotary_dim=width))
    x = torch.randn(1, 2, 3, 6, dtype=dtype, requires_grad=True)
    y, units = rope.rotate(x, torch.arange(3) + 5), torch.eye(36, dtype=dtype).view(36, 1, 2, 3, 6)
    one_by_one = torch.stack(
        [torch.autograd.grad(y, x, unit, retain_graph=True)[0] for unit in units]
    )
    batched = torch.autograd.grad(y, x, units, is_grads_batched=True)[0]
    torch.testing.assert_close(batched, one_by_one)
    jacobian = torch.autograd.functional.jacobian(
        lambda x: rope.rotate(x, torch.arange(3) + 5), x.detach(), vectorize=True
    )
    torch.testing.assert_close(jacobian.view(36, 36), one_by_one.view(36, 36))
