"""Laws of the QKV product of many tokens against definitions in float64: on the GPU where there is
one, else in the interpreter.

`test_triton.py` starts this file in a process of its own: the interpreter must be chosen before
Triton is imported.
"""

from __future__ import annotations

import math

import pytest
import torch

import ropewalk as rw
from ropewalk import axes, frequencies
from ropewalk.errors import RopeError
from ropewalk.kernels.fused import KVSlots, QKNorm
from ropewalk.kernels.prefill import forms, launch
from ropewalk.kernels.qkv import qkv_norm_rope, why_not

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: relative error; the interpreter multiplies the bits of bfloat16 as integers, and float32 is for
#: it alone
DTYPES = (
    {torch.float16: 2e-3, torch.bfloat16: 1.5e-2} if DEVICE == "cuda" else {torch.float32: 4e-6}
)
#: one more row than two tiles hold, and a depth that no tile divides; specialised warps need four
#: blocks, and use L2 from 512 on
TOKENS, DEPTH = (
    2 * forms.PLAIN.rows + 1,
    9 * forms.DEPTH + 8 if DEVICE == "cuda" else forms.DEPTH + 8,
)
#: Gluon has no interpreter
FORMS = {"plain": forms.PLAIN, "one tile": forms.ONE_TILE, "many tiles": forms.MANY_TILES}
FORMS = FORMS if DEVICE == "cuda" and forms._has_gluon() else {"plain": forms.PLAIN}
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
SPECS = {
    "half": rw.RopeSpec(128),
    "interleaved": rw.RopeSpec(64, layout="interleaved"),
    "magnitude": rw.RopeSpec(128, scaling=frequencies.Yarn(64, factor=4.0), magnitude_on="q"),
    "axes": rw.RopeSpec(128, axes=axes.chunked((32, 20, 12))),
    "wide": rw.RopeSpec(256),
}


def random(*sizes, dtype):
    return torch.randn(*sizes).to(DEVICE, dtype)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(3)


@pytest.fixture(params=FORMS.values(), ids=FORMS.keys(), autouse=True)
def form(request, monkeypatch):
    """The form that computes: with few programs, so that each has several tiles, or more programs
    than tiles.
    """
    monkeypatch.setattr(forms, "pick_form", lambda *args: request.param)
    programs = 1 if DEVICE == "cpu" else 100 if request.param.one_tile else 5
    monkeypatch.setattr(launch, "multiprocessors", lambda device: programs)
    return request.param


def inputs(spec, dtype, tokens=TOKENS):
    """x, weight, bias, (q heads, k heads) and positions; the numbers of heads are the fewest, and
    differ where they can.
    """
    k_heads = forms.PLAIN.columns // spec.head_dim
    heads = (2 * k_heads, k_heads)
    width = (heads[0] + 2 * heads[1]) * spec.head_dim
    lead = (spec.num_axes,) if spec.num_axes > 1 else ()
    positions = torch.randint(0, 1_000_000, (*lead, tokens), device=DEVICE)
    return (
        random(tokens, DEPTH, dtype=dtype),
        random(width, DEPTH, dtype=dtype) / 8,
        random(width, dtype=dtype),
        heads,
        positions,
    )


def expected(x, weight, bias, norm, spec, heads, positions):
    """q, k and v in float64 from the definitions: product, RMS norm of each head, rotation by plain
    cos and sin.
    """
    packed = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    q, k, v = packed.view(len(x), -1, spec.head_dim).split((heads[0], heads[1], heads[1]), 1)
    if norm is not None:
        q, k = (
            t / torch.sqrt((t * t).mean(-1, keepdim=True) + norm.eps) * (w.double() + norm.plus_one)
            for t, w in ((q, norm.q_weight), (k, norm.k_weight))
        )
    rope, positions = rw.Rope(spec, backend="reference"), positions.unsqueeze(-2)
    return *(
        rope.rotate(t[None], positions, seq_dim=-3, key=key)[0]
        for t, key in ((q, False), (k, True))
    ), v


def test_repeated_calls_give_the_same_bits():
    """Calls in close succession, each of which may start before the previous one ends."""
    x, weight, bias, heads, positions = inputs(SPECS["half"], next(iter(DTYPES)))
    call = {"spec": SPECS["half"], "positions": positions, "heads": heads, "backend": "triton"}
    results = [
        qkv_norm_rope(x, weight, bias, **call) for _ in range(200 if DEVICE == "cuda" else 2)
    ]
    assert all(
        torch.equal(ours, theirs)
        for result in results
        for ours, theirs in zip(result, results[0], strict=True)
    )


def assert_near(got, want, dtype):
    assert float((got.double() - want).abs().max() / want.abs().max()) < DTYPES[dtype]


@dtypes
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("normed", [False, True])
def test_heads_without_a_cache(dtype, name, normed, form):
    spec = SPECS[name]
    if form.specialised and spec.head_dim not in forms.SPECIALISED_HEAD_DIMS:
        pytest.skip("specialised warps do not compute it")
    x, weight, bias, heads, positions = inputs(spec, dtype)
    weights = (random(spec.head_dim, dtype=dtype) for _ in range(2))
    norm = QKNorm(*weights, eps=0.01, plus_one=name == "half") if normed else None
    bias = bias if normed else None
    call = {"spec": spec, "positions": positions, "heads": heads, "norm": norm}
    got = qkv_norm_rope(x, weight, bias, **call, backend="triton")
    for ours, want in zip(
        got, expected(x, weight, bias, norm, spec, heads, positions), strict=True
    ):
        assert_near(ours, want, dtype)


def caches(heads, page_size, dtype):
    """Key and value caches of 320 slots full of NaN, with other strides each, and more NaN around
    both.

    Pages have their heads first in memory, so that their slots are not evenly spaced.
    """
    pages, size = (322, ()) if page_size == 1 else (320 // page_size + 2, (page_size,))
    k, v = (
        torch.full((pages, count, *size, 128), math.nan, device=DEVICE).to(dtype)
        for count in (heads, heads + 1)
    )
    k, v = k[1:-1], v[1:-1, 1:]
    return (k, v) if page_size == 1 else (k.transpose(1, 2), v.transpose(1, 2))


def numbers_in(memory):
    """How many numbers of a cache, and of the memory around it, were written."""
    return int((~memory._base.float().isnan()).sum())


@dtypes
@pytest.mark.parametrize("page_size", [1, 16])
def test_keys_and_values_in_their_slots(dtype, page_size):
    spec = SPECS["half"]
    x, weight, bias, heads, positions = inputs(spec, dtype)
    # the last slot is used, the first one is not
    slots = 1 + torch.randperm(318, device=DEVICE)[:TOKENS]
    slots[1] = 319
    slots[::7] = -1
    k_cache, v_cache = caches(heads[1], page_size, dtype)
    cache = KVSlots(k_cache, v_cache)
    call = {"spec": spec, "positions": positions, "heads": heads}
    got = qkv_norm_rope(x, weight, bias, **call, cache=cache, slots=slots, backend="triton")
    q, k, v = expected(x, weight, bias, None, spec, heads, positions)
    assert_near(got, q, dtype)
    written = slots >= 0
    for stored, want in ((cache.k, k), (cache.v, v)):
        assert_near(stored.reshape(320, heads[1], 128)[slots[written]], want[written], dtype)
        assert numbers_in(stored) == int(written.sum()) * heads[1] * 128


@dtypes
@pytest.mark.parametrize("normed", [False, True] if DEVICE == "cuda" else [True])
def test_the_rows_of_a_decode_step(dtype, normed, monkeypatch):
    """A decode step with more rows than its own kernel takes, into outputs that a graph would have
    captured.
    """
    from ropewalk.kernels.decode.launch import qkv_product

    monkeypatch.setattr(forms, "is_faster", lambda *args: True)
    tokens = (
        TOKENS if DEVICE == "cuda" else 66
    )  # the interpreter computes it by two launches, slowly
    x, weight, bias, heads, positions = inputs(SPECS["half"], dtype, tokens)
    norm = QKNorm(*(random(128, dtype=dtype) for _ in range(2)), eps=0.01) if normed else None
    cache, slots = KVSlots(*caches(heads[1], 1, dtype)), torch.randperm(320, device=DEVICE)[:tokens]
    q = torch.full((tokens, heads[0], 128), math.nan, device=DEVICE, dtype=dtype)
    qkv_product(x, weight, q, cache, slots, positions, SPECS["half"], bias=bias, head_norm=norm)
    exact = expected(x, weight, bias, norm, SPECS["half"], heads, positions)
    for ours, want in zip((q, cache.k[slots], cache.v[slots]), exact, strict=True):
        assert_near(ours, want, dtype)


@dtypes
def test_a_float8_cache_holds_scaled_keys_and_values(dtype):
    """The bias alone at position 0, with values that e4m3 has: the interpreter's own rounding to
    float8 loses carries.
    """
    x, weight, bias, heads, _ = inputs(SPECS["half"], dtype, tokens=17)
    grid = torch.tensor(
        [0.0, -0.015625, 1.0, 1.125, -1.875, 7.5, 96.0, -448.0], device=DEVICE
    ).repeat(16)
    scales = torch.tensor([1.0] * heads[0] + [0.5] * heads[1] + [4.0] * heads[1], device=DEVICE)
    bias.copy_((scales[:, None] * grid).flatten())
    cache, slots = (
        KVSlots(*caches(heads[1], 1, torch.float8_e4m3fn), k_scale=0.5, v_scale=4.0),
        torch.arange(17, device=DEVICE),
    )
    call = {"spec": SPECS["half"], "positions": torch.zeros_like(slots), "heads": heads}
    qkv_norm_rope(
        x, torch.zeros_like(weight), bias, **call, cache=cache, slots=slots, backend="triton"
    )
    for stored in (cache.k, cache.v):
        assert torch.equal(stored[slots].float(), grid.expand(17, heads[1], 128))
        assert numbers_in(stored) == 17 * heads[1] * 128


@dtypes
@pytest.mark.parametrize("name", ["interleaved", "magnitude"])
def test_gradients(dtype, name):
    spec = SPECS[name]
    *tensors, heads, positions = inputs(spec, dtype, tokens=9)
    tensors = [t.requires_grad_() for t in tensors]
    exact = [t.detach().double().requires_grad_() for t in tensors]
    got = qkv_norm_rope(*tensors, spec=spec, positions=positions, heads=heads, backend="triton")
    want = expected(*exact, None, spec, heads, positions)
    factors = [torch.randn_like(t) for t in want]
    for outputs, leaves in ((got, tensors), (want, exact)):
        sum(
            (out.double() * factor).sum() for out, factor in zip(outputs, factors, strict=True)
        ).backward()
        assert all(leaf.grad is not None for leaf in leaves)
    for ours, theirs in zip(tensors, exact, strict=True):
        assert_near(ours.grad, theirs.grad, dtype)


@pytest.mark.parametrize("norm", [False, True])
def test_the_definition_gives_the_same_heads_and_gradients(norm):
    spec = rw.RopeSpec(16, rotary_dim=12)
    x, weight = torch.randn(2, 3, 8, dtype=torch.float64), torch.randn(64, 8, dtype=torch.float64)
    weights = [torch.randn(16, dtype=torch.float64) for _ in range(2)]
    leaves = [t.requires_grad_() for t in (x, weight, *(weights if norm else ()))]
    positions = torch.arange(7, 10)
    head_norm = QKNorm(*weights, eps=0.01) if norm else None
    got = qkv_norm_rope(x, weight, spec=spec, positions=positions, heads=(2, 1), norm=head_norm)
    every = positions.expand(2, 3).reshape(-1)
    want = expected(x.view(-1, 8), weight, None, head_norm, spec, (2, 1), every)
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours.flatten(0, 1), theirs)
    factors = [torch.randn_like(t) for t in want]
    both = [
        torch.autograd.grad(
            sum((t.flatten(0, -3) * f).sum() for t, f in zip(outs, factors, strict=True)), leaves
        )
        for outs in (got, want)
    ]
    for ours, theirs in zip(*both, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_the_kernel_refuses():
    x, weight, _, heads, positions = inputs(SPECS["half"], next(iter(DTYPES)))
    call = {"positions": positions, "heads": heads}
    assert why_not(x, weight, spec=rw.RopeSpec(128), **call) is None
    assert "whole heads" in why_not(x, weight, spec=rw.RopeSpec(128, rotary_dim=64), **call)
    one_key_head = {**call, "heads": (weight.shape[0] // 64 - 2, 1)}
    assert "multiple" in why_not(x, weight, spec=rw.RopeSpec(64), **one_key_head)
    normed = {
        **call,
        "norm": QKNorm(
            torch.ones(128, device=DEVICE, dtype=x.dtype),
            torch.ones(128, device=DEVICE, dtype=x.dtype),
        ),
    }
    assert "gradient" in why_not(
        x.clone().requires_grad_(), weight, spec=rw.RopeSpec(128), **normed
    )
    with pytest.raises(RopeError, match="triton"):
        qkv_norm_rope(x, weight, spec=rw.RopeSpec(128, rotary_dim=64), **call, backend="triton")
