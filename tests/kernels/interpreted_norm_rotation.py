"""Laws of the fused kernel against its definition in float64: on the GPU where there is one, else
in Triton's interpreter.

`test_triton.py` starts this file in a process of its own: the interpreter must be chosen before
Triton is imported.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import ropewalk as rw
from ropewalk import axes, frequencies
from ropewalk.kernels.norm_rotation import (
    KVSlots,
    LatentNorm,
    NormRotationConfig,
    QKNorm,
    launch,
    qk_norm_rope,
    why_not,
)

pytestmark = pytest.mark.sampled
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Q, K, SLOTS = 6, 3, 12
#: two dims before the ten that rotate and two after them
PARTIAL = rw.RopeSpec(14, rotary_dim=10, rotary_start=2)
WHOLE = rw.RopeSpec(10)
#: the worst relative error of one rounding; ARITHMETIC is the worst error of the float32 arithmetic
#: before it, relative or absolute
ROUNDING = {torch.float32: 2**-24, torch.bfloat16: 2**-8, torch.float16: 2**-11}
if DEVICE == "cpu":
    # the interpreter cuts bfloat16 off instead of rounding it
    ROUNDING[torch.bfloat16] = 2**-7
ARITHMETIC = 2e-6
POSITIONS = (0, 5, 1_000_003, 70, -3)
WHERE = (3, -1, 0, 11, 6)


@dataclass
class Case:
    """Everything one call needs, on the CPU, with q, k, v and weights in `dtype`."""

    spec: rw.RopeSpec
    norm: str = "w"
    tokens: int = 5
    dtype: torch.dtype = torch.float32

    def __post_init__(self):
        """Draw a packed qkv and the norm's weights; take the first positions and slots."""
        generator = torch.Generator().manual_seed(7)
        make = lambda *shape: torch.randn(*shape, generator=generator).to(self.dtype)
        self.qkv = make(self.tokens, (Q + 2 * K) * self.spec.head_dim) * 3
        self.weights = (make(self.spec.head_dim), make(self.spec.head_dim))
        self.positions = torch.tensor(POSITIONS[: self.tokens])
        self.slots = torch.tensor(WHERE[: self.tokens])

    def normed(self, wide: bool) -> QKNorm | None:
        """Return the norm of the case, in float64 on the CPU if `wide`; None without a norm."""
        if not self.norm:
            return None
        if self.norm == "no weight":
            return QKNorm(eps=0.01)
        weights = (w.double() if wide else w.to(DEVICE) for w in self.weights)
        return QKNorm(*weights, eps=0.01, plus_one=self.norm == "1+w")

    def run(self, make_cache, config: NormRotationConfig, **how):
        """Return (q, k, v, k cache, v cache) by the kernel."""
        cache = make_cache(self.spec.head_dim)
        call = dict(
            spec=self.spec,
            norm=self.normed(False),
            heads=(Q, K),
            cache=cache,
            **self.tensors(DEVICE),
        )
        assert why_not(self.qkv.to(DEVICE), **call) is None
        outs = qk_norm_rope(
            self.qkv.to(DEVICE), **call, backend="triton", config=config, return_kv=True, **how
        )
        return (*outs, cache.k, cache.v)

    def exact(self):
        """Return (q, k, v, k cache, v cache) by the definition in float64."""
        cache = contiguous(torch.float64, "cpu")(self.spec.head_dim)
        call = dict(
            spec=self.spec, norm=self.normed(True), heads=(Q, K), cache=cache, **self.tensors("cpu")
        )
        outs = qk_norm_rope(self.qkv.double(), **call, backend="definition", return_kv=True)
        return (*outs, cache.k, cache.v)

    def tensors(self, device):
        return {"positions": self.positions.to(device), "slots": self.slots.to(device)}


def poisoned(*shape, dtype, device=None) -> Tensor:
    """Return a tensor of NaN, so that elements which were not written are seen."""
    return torch.full(shape, float("nan"), device=device or DEVICE).to(dtype)


def contiguous(dtype=torch.float32, device=None, **scales):
    return lambda dim: KVSlots(
        *(poisoned(SLOTS, K, dim, dtype=dtype, device=device) for _ in "kv"), **scales
    )


def paged(dtype=torch.float32):
    return lambda dim: KVSlots(*(poisoned(3, 4, K, dim, dtype=dtype) for _ in "kv"))


def paged_heads_first(dtype=torch.float32):
    return lambda dim: KVSlots(*(poisoned(3, K, 4, dim, dtype=dtype).transpose(1, 2) for _ in "kv"))


def near(found: Tensor, exact: Tensor, rounding: float | None = None) -> None:
    """Check that values are within one rounding, and NaN in exactly the same places."""
    found, rounding = found.cpu(), ROUNDING[found.dtype] if rounding is None else rounding
    found, exact = found.double(), exact.reshape(found.shape)
    assert torch.equal(found.isnan(), exact.isnan())
    excess = (found - exact).abs() - (rounding + ARITHMETIC) * exact.abs() - ARITHMETIC
    assert float(excess.nan_to_num(-1.0).max()) <= 0


def check(case: Case, make_cache=None, config: NormRotationConfig | None = None) -> None:
    config = NormRotationConfig(tokens=8, heads=2, warps=2) if config is None else config
    for found, exact in zip(
        case.run(make_cache or contiguous(case.dtype), config), case.exact(), strict=True
    ):
        near(found, exact)


@pytest.mark.parametrize("norm", ["", "no weight", "w", "1+w"])
@pytest.mark.parametrize("spec", [WHOLE, PARTIAL], ids=["whole", "partial"])
def test_every_norm_equals_the_definition(spec, norm):
    check(Case(spec, norm))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("layout_out", ["half", "interleaved"])
def test_every_layout_equals_the_definition(layout, layout_out):
    check(Case(PARTIAL.with_(layout=layout, layout_out=layout_out)))


@pytest.mark.parametrize("start", [0, 4])
def test_a_rotated_slice_at_either_end_equals_the_definition(start):
    check(Case(PARTIAL.with_(rotary_start=start)))


def test_sizes_that_are_powers_of_two_equal_the_definition():
    check(Case(rw.RopeSpec(16), tokens=4), config=NormRotationConfig(tokens=2))


@pytest.mark.parametrize("warps", [1, 4])
def test_angles_computed_once_or_for_each_head_equal_the_definition(warps):
    check(Case(rw.RopeSpec(128), tokens=3), config=NormRotationConfig(warps=warps))


@pytest.mark.parametrize(
    "make_cache", [paged(), paged_heads_first()], ids=["paged", "paged, heads first"]
)
def test_a_paged_cache_equals_the_definition(make_cache):
    check(Case(WHOLE), make_cache)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype):
    check(Case(PARTIAL, dtype=dtype))


def test_a_cache_may_have_another_dtype_than_its_keys():
    case = Case(WHOLE, dtype=torch.bfloat16)
    *_, k, v = case.run(contiguous(torch.float32), NormRotationConfig(tokens=8))
    near(k, case.exact()[3])
    near(v, case.exact()[4])


def test_fp8_is_scaled_and_saturated():
    """Values that e4m3 has, so that no rounding is asked of the interpreter, whose own rounding to
    float8 loses carries.
    """
    case = Case(WHOLE, norm="", tokens=2)
    case.positions = torch.zeros(2, dtype=torch.int64)
    grid = torch.tensor([0.0, -0.015625, 1.0, 1.125, -1.875, 7.5, 96.0, -448.0, 0.001953125, 3.25])
    k, v = grid.expand(K, 10) * 0.25, grid.expand(K, 10) * 2.0
    case.qkv[0] = torch.cat((torch.ones(Q, 10), k, v)).flatten()
    case.qkv[1] = torch.cat(
        (torch.ones(Q, 10), torch.full((K, 10), 1e6), torch.full((K, 10), -1e6))
    ).flatten()
    case.slots = torch.tensor([5, 2])
    scales = {"k_scale": 0.25, "v_scale": torch.tensor([2.0], device=DEVICE)}
    *_, k, v = case.run(contiguous(torch.float8_e4m3fn, **scales), NormRotationConfig(tokens=2))
    for found, limit in ((k, 448.0), (v, -448.0)):
        found = found.cpu().to(torch.float32)
        assert torch.equal(found[5], grid.expand(K, 10))
        assert torch.equal(found[2], torch.full((K, 10), limit))
        assert int(found.isnan().sum()) == (SLOTS - 2) * K * 10


@pytest.mark.gpu
def test_fp8_is_rounded_once():
    case = Case(WHOLE)
    *_, k, v = case.run(
        contiguous(torch.float8_e4m3fn, k_scale=0.05, v_scale=0.25), NormRotationConfig(tokens=8)
    )
    for found, exact, scale in ((k, case.exact()[3], 0.05), (v, case.exact()[4], 0.25)):
        exact, found = (exact / scale).clamp(-448, 448), found.cpu().to(torch.float64)
        assert torch.equal(found.isnan(), exact.isnan())
        # below 2^-6 the steps are 2^-9 whatever the size
        assert bool(
            ((found - exact).abs() <= 2**-4 * exact.abs() + 2**-10 + 1e-5)[~exact.isnan()].all()
        )


def test_slots_beyond_the_cache_write_nothing():
    case = Case(WHOLE, tokens=2)
    case.slots = torch.tensor([SLOTS, 2])
    *_, k, v = case.run(contiguous(), NormRotationConfig(tokens=2))
    assert not k[2].isnan().any()
    assert not v[2].isnan().any()
    assert int(k.isnan().sum()) == int(v.isnan().sum()) == (SLOTS - 1) * K * 10


@pytest.mark.parametrize("side", ["qk", "q"])
def test_magnitudes_equal_the_definition(side):
    scaling = frequencies.Yarn(factor=4.0, original_length=64)
    check(Case(PARTIAL.with_(scaling=scaling, magnitude_on=side)))


def test_positions_on_several_axes_equal_the_definition():
    case = Case(rw.RopeSpec(10, axes=axes.chunked([2, 1, 2])))
    case.positions = torch.stack([case.positions, case.positions * 3 + 1, case.positions - 40])
    check(case)


@pytest.mark.parametrize("expanded", [False, True])
def test_positions_and_slots_may_be_strided(expanded):
    """Those of a decode step, the last column of [B, S]; or one position for all tokens."""
    case = Case(PARTIAL)
    positions, slots = (
        torch.stack([torch.zeros_like(x), x], dim=1)[:, -1:].to(DEVICE)
        for x in (case.positions, case.slots)
    )
    if expanded:
        positions = positions[3]
        case.positions = case.positions[3].expand(5)
    cache, call = (
        contiguous()(14),
        {"spec": case.spec, "norm": case.normed(False), "heads": (Q, K), "backend": "triton"},
    )
    got = qk_norm_rope(
        case.qkv.to(DEVICE)[:, None], **call, positions=positions, slots=slots, cache=cache
    )
    exact = case.exact()
    for found, wanted in ((got, exact[0]), (cache.k, exact[3]), (cache.v, exact[4])):
        near(found, wanted)


def test_positions_on_several_axes_may_be_strided():
    """The axes are last in memory, [B, S, axes]."""
    case = Case(rw.RopeSpec(10, axes=axes.chunked([2, 1, 2])))
    axes_last = torch.stack([case.positions, case.positions * 3 + 1, case.positions - 40], dim=-1)
    case.positions = axes_last.T
    call = {
        "spec": case.spec,
        "norm": case.normed(False),
        "heads": (Q, K),
        "backend": "triton",
        "cache": contiguous()(10),
    }
    positions, slots = axes_last[None].to(DEVICE).permute(2, 0, 1), case.slots[None].to(DEVICE)
    near(
        qk_norm_rope(case.qkv[None].to(DEVICE), **call, positions=positions, slots=slots),
        case.exact()[0],
    )


def test_an_output_that_the_kernel_cannot_write_is_left_to_the_definition():
    case = Case(PARTIAL)
    call = {"spec": case.spec, "norm": case.normed(False), "heads": (Q, K)} | case.tensors(DEVICE)
    q_out = torch.zeros(5, 14, Q, device=DEVICE).transpose(1, 2)
    assert "contiguous" in why_not(case.qkv.to(DEVICE), **call, cache=contiguous()(14), q_out=q_out)
    qk_norm_rope(case.qkv.to(DEVICE), **call, cache=contiguous()(14), q_out=q_out)
    near(q_out, case.exact()[0])
    with pytest.raises(
        rw.RopeError, match="'triton' cannot take this call: the last dimension is not contiguous"
    ):
        qk_norm_rope(
            case.qkv.to(DEVICE), **call, cache=contiguous()(14), q_out=q_out, backend="triton"
        )


def test_q_k_and_v_may_be_separate_and_strided_and_q_out_may_be_q():
    """q, k, v apart, each head first in memory; q is overwritten by its own result."""
    case, config = Case(PARTIAL), NormRotationConfig(tokens=4, heads=2)
    parts = case.qkv.to(DEVICE).unflatten(-1, (-1, 14)).split([Q, K, K], dim=1)
    q, k, v = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in parts)
    cache = contiguous()(14)
    call = dict(spec=case.spec, norm=case.normed(False), cache=cache, **case.tensors(DEVICE))
    got = qk_norm_rope(q, k, v, **call, q_out=q, backend="triton", config=config)
    assert got.data_ptr() == q.data_ptr()
    exact = case.exact()
    for found, wanted in ((q, exact[0]), (cache.k, exact[3]), (cache.v, exact[4])):
        near(found, wanted)


def test_no_launch_plan_serves_a_call_with_another_spec_or_norm():
    """The same shapes with another spec, norm or cache after one another: no plan serves the wrong
    call.
    """
    for spec, norm in (
        (WHOLE, "w"),
        (WHOLE.with_(theta=100.0), "w"),
        (WHOLE, "1+w"),
        (WHOLE, ""),
        (WHOLE, "w"),
    ):
        check(Case(spec, norm, tokens=2), config=NormRotationConfig(tokens=2))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("layout", "norm"), [("half", ""), ("half", "no weight"), ("half", "1+w"), ("interleaved", "w")]
)
def test_gradients_equal_those_of_the_definition(layout, norm, monkeypatch):
    """Two programs share five tokens, so that their shares of the weights' gradients must be added."""
    monkeypatch.setattr(launch, "BACKWARD_PROGRAMS_PER_MULTIPROCESSOR", 2)
    spec = PARTIAL.with_(
        layout=layout, layout_out="half", scaling=frequencies.Yarn(factor=4.0, original_length=64)
    )
    case = Case(spec, norm)
    grads = {}
    for wide, backend in ((True, "definition"), (False, "triton")):
        start = case.qkv.double() if wide else case.qkv.to(DEVICE)
        q, k, _ = (
            x.clone().requires_grad_()
            for x in start.unflatten(-1, (-1, 14)).split([Q, K, K], dim=1)
        )
        normed = case.normed(wide)
        leaves = [q, k]
        if normed is not None and normed.q_weight is not None:
            normed = replace(
                normed,
                q_weight=normed.q_weight.requires_grad_(),
                k_weight=normed.k_weight.requires_grad_(),
            )
            leaves += [normed.q_weight, normed.k_weight]
        positions = case.positions.to(start.device)
        outs = qk_norm_rope(
            q,
            k,
            spec=spec,
            positions=positions,
            norm=normed,
            backend=backend,
            config=NormRotationConfig(tokens=8),
        )
        weigh = [
            torch.linspace(-1, 2, out.numel(), dtype=torch.float64).reshape(out.shape).to(out)
            for out in outs
        ]
        grads[backend] = torch.autograd.grad(outs, leaves, weigh)
    for found, exact in zip(grads["triton"], grads["definition"], strict=True):
        near(found, exact, rounding=1e-5)


@pytest.mark.parametrize(
    ("rank", "rope", "dtype", "make"),
    [
        (12, 6, torch.float32, lambda dim, dtype: poisoned(SLOTS, 1, dim, dtype=dtype)),
        (16, 8, torch.bfloat16, lambda dim, dtype: poisoned(3, 4, 1, dim, dtype=dtype)),
        (
            5,
            2,
            torch.float16,
            lambda dim, dtype: poisoned(3, 1, 4, dim, dtype=dtype).transpose(1, 2),
        ),
    ],
)
def test_latents_are_normed_and_keys_rotated_into_one_row(rank, rope, dtype, make):
    """MLA: the head is [latent | key]; q is rotated alone, and the cache has no values."""
    spec = rw.RopeSpec(rank + rope, rotary_start=rank, layout="interleaved", layout_out="half")
    generator = torch.Generator().manual_seed(3)
    new = lambda *shape: (torch.randn(*shape, generator=generator) * 2).to(dtype)
    q, kv, weight = new(5, Q, rank + rope), new(5, 1, rank + rope), new(rank)
    found = {}
    for backend, device in (("definition", "cpu"), ("triton", DEVICE)):
        put = (lambda x: x.double()) if backend == "definition" else (lambda x: x.to(DEVICE))
        store = make(rank + rope, torch.float64 if backend == "definition" else dtype).to(device)
        call = {
            "spec": spec,
            "norm": LatentNorm(put(weight), 0.01),
            "cache": KVSlots(store),
            "config": NormRotationConfig(tokens=4, heads=4),
        }
        where = {
            "positions": torch.tensor(POSITIONS).to(device),
            "slots": torch.tensor(WHERE).to(device),
        }
        outs = qk_norm_rope(put(q), put(kv), **call, **where, backend=backend, return_kv=True)
        assert len(outs) == 2
        found[backend] = (*outs, store)
    for ours, exact in zip(found["triton"], found["definition"], strict=True):
        near(ours, exact.contiguous())
    # the definition itself, number by number
    _, k, store = found["definition"]
    latent, key = kv.double().split([rank, rope], dim=-1)
    normed = latent / (latent.square().mean(-1, keepdim=True) + 0.01).sqrt() * weight.double()
    angle = torch.tensor(POSITIONS).double()[:, None, None] * 10_000.0 ** (
        -torch.arange(rope // 2).double() * 2 / rope
    )
    z = torch.complex(key[..., 0::2], key[..., 1::2]) * torch.polar(torch.ones_like(angle), angle)
    torch.testing.assert_close(k, torch.cat([normed, z.real, z.imag], dim=-1), rtol=0, atol=1e-9)
    kept = [t for t, slot in enumerate(WHERE) if slot >= 0]
    rows = store.reshape(-1, rank + rope)[[WHERE[t] for t in kept]]
    torch.testing.assert_close(rows, k[kept, 0])
