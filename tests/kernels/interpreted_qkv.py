"""Laws of `qkv_norm_rope` for more tokens than one launch takes, and without a cache: a product, then
a second launch. Compared with definitions in float64, on the GPU where there is one, else in the
interpreter.

`test_triton.py` starts this file in a process of its own: the interpreter must be chosen before
Triton is imported. `interpreted_decode.py` has the laws of one launch.
"""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

import ropewalk as rw
from ropewalk import axes, frequencies
from ropewalk.errors import RopeError
from ropewalk.kernels.decode_step.config import pick_qkv_tile
from ropewalk.kernels.norm_rotation import KVSlots, QKNorm
from ropewalk.kernels.qkv import qkv_norm_rope, why_not
from ropewalk.kernels.qkv.launch import qkv_product
from ropewalk.kernels.support import multiprocessors

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: dtype -> largest relative error; the interpreter multiplies the bits of bfloat16 as integers, so it
#: gets float32, and a GPU gets the 16-bit types
DTYPES = (
    {torch.float16: 2e-3, torch.bfloat16: 1.5e-2} if DEVICE == "cuda" else {torch.float32: 4e-6}
)
#: two more tokens than one launch takes
TOKENS, DEPTH, HEADS = 66, 40, (2, 1)
pytestmark = pytest.mark.sampled
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
SPECS = {
    "half": rw.RopeSpec(32),
    "interleaved": rw.RopeSpec(16, layout="interleaved"),
    "partial": rw.RopeSpec(16, rotary_dim=12),
    "magnitude": rw.RopeSpec(32, scaling=frequencies.Yarn(64, factor=4.0), magnitude_on="q"),
    "axes": rw.RopeSpec(32, axes=axes.chunked((8, 5, 3))),
}


def random(*sizes, dtype):
    return torch.randn(*sizes).to(DEVICE, dtype)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(3)


def inputs(spec, dtype, tokens=TOKENS):
    """x, weight, bias and positions."""
    width = (HEADS[0] + 2 * HEADS[1]) * spec.head_dim
    lead = (spec.num_axes,) if spec.num_axes > 1 else ()
    return (
        random(tokens, DEPTH, dtype=dtype),
        random(width, DEPTH, dtype=dtype) / 6,
        random(width, dtype=dtype),
        torch.randint(0, 1_000_000, (*lead, tokens), device=DEVICE),
    )


def expected(x, weight, bias, norm, spec, positions, heads=HEADS):
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


def assert_near(got, want, dtype):
    assert float((got.double() - want).abs().max() / want.abs().max()) < DTYPES[dtype]


@dtypes
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("normed", [False, True])
def test_q_k_and_v_without_a_cache_equal_the_definition(dtype, name, normed):
    spec = SPECS[name]
    x, weight, bias, positions = inputs(spec, dtype, tokens=5)
    weights = (random(spec.head_dim, dtype=dtype) for _ in range(2))
    norm = QKNorm(*weights, eps=0.01, plus_one=name == "half") if normed else None
    bias = bias if normed else None
    got = qkv_norm_rope(x, weight, bias, spec=spec, positions=positions, heads=HEADS, norm=norm)
    for ours, want in zip(got, expected(x, weight, bias, norm, spec, positions), strict=True):
        assert_near(ours, want, dtype)


def caches(spec, dtype):
    """Key and value caches of 80 slots full of NaN."""
    memory = torch.full((2, 80, HEADS[1], spec.head_dim), math.nan, device=DEVICE)
    return KVSlots(*memory.to(dtype))


@dtypes
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("captured", [False, True], ids=["public call", "decode step"])
def test_keys_and_values_of_many_tokens_are_in_their_slots(dtype, normed, captured):
    """Through the public call, and through `qkv_product`, as a decode step calls it, into outputs
    that exist already. A token with slot -1 is not stored.
    """
    spec = SPECS["half"]
    x, weight, bias, positions = inputs(spec, dtype)
    norm = QKNorm(*(random(32, dtype=dtype) for _ in range(2)), eps=0.01) if normed else None
    cache, slots = caches(spec, dtype), torch.randperm(80, device=DEVICE)[:TOKENS]
    slots[::7] = -1
    if captured:
        q = torch.full((TOKENS, HEADS[0], 32), math.nan, device=DEVICE, dtype=dtype)
        qkv_product(x, weight, q, cache, slots, positions, spec, bias=bias, head_norm=norm)
    else:
        call = {"spec": spec, "positions": positions, "heads": HEADS, "norm": norm}
        q = qkv_norm_rope(x, weight, bias, **call, cache=cache, slots=slots)
    exact, written = expected(x, weight, bias, norm, spec, positions), slots >= 0
    assert_near(q, exact[0], dtype)
    for stored, want in zip((cache.k, cache.v), exact[1:], strict=True):
        assert_near(stored[slots[written]], want[written], dtype)
        assert int((~stored.isnan()).sum()) == int(written.sum()) * HEADS[1] * 32


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_gradients_equal_those_of_the_definition(norm, dtype):
    """In float64 by the definition in plain torch, otherwise by the kernels."""
    spec = SPECS["partial"]
    x, weight, bias, _ = inputs(spec, dtype, tokens=6)
    x, positions = x.view(2, 3, DEPTH), torch.arange(7, 10, device=DEVICE)
    weights = [random(16, dtype=dtype) for _ in range(2)]
    leaves = [t.requires_grad_() for t in (x, weight, bias, *(weights if norm else ()))]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    head_norm, exact_norm = (
        QKNorm(*tensors[3:], eps=0.01) if norm else None for tensors in (leaves, exact)
    )
    call = {"spec": spec, "positions": positions, "heads": HEADS}
    got = qkv_norm_rope(*leaves[:3], **call, norm=head_norm)
    every = positions.expand(2, 3).reshape(-1)
    want = expected(exact[0].view(-1, DEPTH), *exact[1:3], exact_norm, spec, every)
    tolerance = {**DTYPES, torch.float64: 1e-12}[dtype]
    factors = [torch.randn_like(t) for t in want]
    found = [
        torch.autograd.grad(
            sum((t.flatten(0, -3).double() * f).sum() for t, f in zip(outs, factors, strict=True)),
            inputs,
        )
        for outs, inputs in ((got, leaves), (want, exact))
    ]
    for ours, theirs in zip(*found, strict=True):
        assert (ours.double() - theirs).abs().max() <= 4 * tolerance * theirs.abs().max()


def test_one_launch_is_refused_without_a_cache_and_for_more_tokens_than_it_takes():
    spec, dtype = SPECS["half"], next(iter(DTYPES))
    available = multiprocessors(torch.device(DEVICE))
    pick = partial(pick_qkv_tile, norm=False, head_norm=False, available=available)
    shape = DEPTH, HEADS[0] + 2 * HEADS[1], spec.head_dim
    launches = [pick(rows, *shape) is not None for rows in range(1, 100 * available)]
    most = launches.index(False)
    assert most >= 32
    assert not any(launches[most:])
    x, weight, _, positions = inputs(spec, dtype, most + 1)
    cache, slots = caches(spec, dtype), torch.arange(most + 1, device=DEVICE) % 80
    call = {"spec": spec, "heads": HEADS}
    for tokens, stored, reason in (
        (most, True, None),
        (most + 1, True, f"for {most + 1} tokens of this shape"),
        (2, False, "cache"),
    ):
        where = {"cache": cache, "slots": slots[:tokens]} if stored else {}
        options = {**call, "positions": positions[:tokens], **where}
        why = why_not(x[:tokens], weight, **options)
        assert (why is None) if reason is None else reason in why
        if reason is not None:
            with pytest.raises(RopeError, match=reason):
                qkv_norm_rope(x[:tokens], weight, **options, backend="triton")
