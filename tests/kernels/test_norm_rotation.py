"""The fused norm, rotation and cache write: the definition against a loop over numbers, the kernel
against the definition.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import mpmath
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

import ropewalk as rw
from another_process import run_tests
from frequency_oracle import oracle
from ropewalk import axes, frequencies
from ropewalk.kernels.norm_rotation import (
    CONFIGS,
    KVSlots,
    NormRotationConfig,
    QKNorm,
    qk_norm_rope,
    why_not,
)
from ropewalk.kernels.norm_rotation.config import pick_config
from torch_release import needs_triton_3_6

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
F64 = torch.float64
Q, K, D, T, SLOTS = 4, 2, 14, 5, 12
POSITIONS = torch.tensor([0, 5, 2**40 + 1, 70, -3])
WHERE = torch.tensor([3, -1, 0, 11, 6])
SPECS = {
    "half": rw.RopeSpec(D, rotary_dim=10, rotary_start=2),
    "interleaved": rw.RopeSpec(D, rotary_dim=10, layout="interleaved"),
    "de-interleaved": rw.RopeSpec(D, layout="interleaved", layout_out="half"),
    "yarn on q": rw.RopeSpec(
        D, scaling=frequencies.Yarn(factor=4.0, original_length=64), magnitude_on="q"
    ),
}
SPEC = SPECS["half"]


def by_loop(
    x: Tensor, spec: rw.RopeSpec, positions: Tensor, norm: QKNorm | None, key: bool
) -> Tensor:
    """Return x normed and rotated, head by head and number by number; angles have fifty digits."""
    radians, size = oracle(spec.scaling, spec.rotated_dims, spec.theta)
    weight = None if norm is None else norm.k_weight if key else norm.q_weight
    size = float(size)
    size = {"qk": size, "q": 1.0 if key else size**2}[spec.magnitude_on]
    y = torch.empty(x.shape, dtype=F64)
    first = spec.rotary_start
    places = {
        "half": lambda i: (first + i, first + i + spec.pairs),
        "interleaved": lambda i: (first + 2 * i, first + 2 * i + 1),
    }
    for t in range(x.shape[0]):
        for h in range(x.shape[1]):
            head = [float(value) for value in x[t, h]]
            if norm is not None:
                rms = (sum(value * value for value in head) / len(head) + norm.eps) ** 0.5
                factors = (
                    [1.0] * len(head)
                    if weight is None
                    else [float(w) + norm.plus_one for w in weight]
                )
                head = [value / rms * factor for value, factor in zip(head, factors, strict=True)]
            rotated = list(head)
            for i in range(spec.pairs):
                with mpmath.workdps(50):
                    angle = radians[i] * int(positions[t])
                    cos, sin = float(mpmath.cos(angle)), float(mpmath.sin(angle))
                (a, b), (left, right) = places[spec.layout](i), places[spec.output_layout](i)
                rotated[left] = size * (head[a] * cos - head[b] * sin)
                rotated[right] = size * (head[a] * sin + head[b] * cos)
            y[t, h] = torch.tensor(rotated, dtype=F64)
    return y


def inputs(dtype=F64) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(T, heads, D, dtype=F64).to(dtype) for heads in (Q, K, K))


def normed(kind: str, dtype=F64) -> QKNorm | None:
    weights = [torch.randn(D, dtype=F64).to(dtype) for _ in "qk"]
    return {
        "": None,
        "no weight": QKNorm(eps=0.1),
        "w": QKNorm(*weights),
        "1+w": QKNorm(*weights, plus_one=True),
    }[kind]


def poisoned(*shape, dtype=F64) -> KVSlots:
    return KVSlots(*(torch.full(shape, float("nan")).to(dtype) for _ in "kv"))


norms = pytest.mark.parametrize("norm", ["", "no weight", "w", "1+w"])


@norms
@pytest.mark.parametrize("name", SPECS)
def test_the_definition_equals_a_loop_in_python(name, norm):
    (q, k, _), norm = inputs(), normed(norm)
    found = qk_norm_rope(q, k, spec=SPECS[name], positions=POSITIONS, norm=norm)
    for x, y, key in ((q, found[0], False), (k, found[1], True)):
        # a step is rounded to 2^-65 turns, so 2^40 of them to 2e-7 radians
        assert_close(y, by_loop(x, SPECS[name], POSITIONS, norm, key), rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_is_the_float64_result_rounded_once(dtype):
    """Low precision is the float64 result rounded once; a second rounding after the norm would
    double the error.
    """
    (q, k, _), norm = inputs(dtype), normed("w", dtype)
    low = qk_norm_rope(q, k, spec=SPEC, positions=POSITIONS, norm=norm)
    wide = QKNorm(norm.q_weight.double(), norm.k_weight.double())
    exact = qk_norm_rope(q.double(), k.double(), spec=SPEC, positions=POSITIONS, norm=wide)
    for found, wanted in zip(low, exact, strict=True):
        assert found.dtype == dtype
        bound = (torch.finfo(dtype).eps / 2 + 1e-6) * wanted.abs() + 1e-6
        assert bool(((found.double() - wanted).abs() <= bound).all())


def cached(cache: KVSlots, dtype=F64, **how):
    torch.manual_seed(3)
    (q, k, v), norm = inputs(dtype), normed("w", dtype)
    call = {"spec": SPEC, "positions": POSITIONS, "norm": norm}
    given = (k.to(torch.float64), v.to(torch.float64))
    return (
        qk_norm_rope(q, k, v, **call, cache=cache, slots=WHERE, **how),
        qk_norm_rope(q, k, **call),
        given,
    )


CACHES = {
    "slots": lambda: poisoned(SLOTS, K, D),
    "pages": lambda: poisoned(3, 4, K, D),
    "pages, heads first": lambda: KVSlots(
        *(torch.full((3, K, 4, D), float("nan"), dtype=F64).transpose(1, 2) for _ in "kv")
    ),
    "every other slot of a larger cache": lambda: KVSlots(
        *(torch.full((2 * SLOTS, K, D), float("nan"), dtype=F64)[::2] for _ in "kv")
    ),
}


@pytest.mark.parametrize("name", CACHES)
def test_the_cache_holds_keys_and_values_at_their_slots_and_nothing_else(name):
    cache = CACHES[name]()
    q, (wanted_q, wanted_k), (_, v) = cached(cache)
    assert_close(q, wanted_q, rtol=0, atol=0)
    for store, rows in ((cache.k, wanted_k), (cache.v, v)):
        flat = store.reshape(SLOTS, K, D)
        for slot in range(SLOTS):
            token = WHERE.eq(slot).nonzero().flatten().tolist()
            if token:
                assert_close(flat[slot], rows[token[0]], rtol=0, atol=0)
            else:
                assert bool(flat[slot].isnan().all())


def test_a_step_of_padding_alone_stores_nothing():
    (q, k, v), cache = inputs(), poisoned(SLOTS, K, D)
    cache.k[0] = cache.v[0] = 7.0
    before = cache.k.clone(), cache.v.clone()
    qk_norm_rope(q, k, v, spec=SPEC, positions=POSITIONS, cache=cache, slots=torch.full((T,), -1))
    for found, wanted in zip((cache.k, cache.v), before, strict=True):
        assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


def test_no_tokens_give_an_empty_result_and_leave_the_cache_as_it_is():
    cache, none = poisoned(SLOTS, K, D), torch.zeros(0, dtype=torch.int64)
    q, k, v = (x[:0] for x in inputs())
    assert qk_norm_rope(q, k, v, spec=SPEC, positions=none, cache=cache, slots=none).shape == (
        0,
        Q,
        D,
    )
    assert bool(cache.k.isnan().all())


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_packed_qkv_without_tokens_gives_empty_heads(shape):
    packed = torch.zeros(*shape, (Q + 2 * K) * D)
    q, k = qk_norm_rope(packed, spec=SPEC, positions=torch.zeros(shape).long(), heads=(Q, K))
    assert (q.shape, k.shape) == ((*shape, Q, D), (*shape, K, D))


def test_return_kv_returns_the_rotated_keys_and_the_given_values_of_all_tokens():
    (q, k, v), (wanted_q, wanted_k), (_, given) = cached(poisoned(SLOTS, K, D), return_kv=True)
    for found, wanted in ((q, wanted_q), (k, wanted_k), (v, given)):
        assert_close(found, wanted, rtol=0, atol=0)


def test_fp8_stores_x_over_scale_and_saturates():
    stores = [torch.full((SLOTS, K, D), float("nan")).to(torch.float8_e4m3fn) for _ in "kv"]
    cache = KVSlots(*stores, k_scale=0.001, v_scale=torch.tensor([0.5]))
    _, (_, k), (_, v) = cached(cache, torch.float32)
    live = WHERE >= 0
    for store, rows, scale in ((cache.k, k, 0.001), (cache.v, v, 0.5)):
        found, exact = store.float()[WHERE[live]], (rows[live].float() / scale).clamp(-448, 448)
        assert bool(((found - exact).abs() <= 2**-4 * exact.abs() + 2**-10).all())
        assert int(store.float().isnan().sum()) == (SLOTS - int(live.sum())) * K * D
    # 0.001 is far too small a scale here: most keys are at the limit, and none became NaN
    assert float(cache.k.float()[WHERE[live]].abs().max()) == 448.0


def test_packed_qkv_equals_separate_q_and_k():
    (q, k, v), norm = inputs(), normed("w")
    packed = torch.cat((q, k, v), dim=1).flatten(1)
    call = {"spec": SPEC, "positions": POSITIONS, "norm": norm}
    for found, wanted in zip(
        qk_norm_rope(packed, heads=(Q, K), **call), qk_norm_rope(q, k, **call), strict=True
    ):
        assert_close(found, wanted, rtol=0, atol=0)


def test_positions_without_leading_axes_are_for_all_rows():
    q, k = torch.randn(3, T, Q, D, dtype=F64), torch.randn(3, T, K, D, dtype=F64)
    found = qk_norm_rope(q, k, spec=SPEC, positions=POSITIONS)
    for row in range(3):
        assert_close(
            found[0][row], by_loop(q[row], SPEC, POSITIONS, None, False), rtol=0, atol=2e-6
        )
        assert_close(found[1][row], by_loop(k[row], SPEC, POSITIONS, None, True), rtol=0, atol=2e-6)


def test_q_out_may_be_q_itself():
    (q, k, v), norm = inputs(), normed("w")
    call = {"spec": SPEC, "positions": POSITIONS, "norm": norm}
    wanted = qk_norm_rope(q, k, **call)[0]
    assert (
        qk_norm_rope(q, k, v, **call, cache=poisoned(SLOTS, K, D), slots=WHERE, q_out=q).data_ptr()
        == q.data_ptr()
    )
    assert_close(q, wanted, rtol=0, atol=0)


def straightforward(q, k, q_weight, k_weight, spec, positions, plus_one, eps):
    """norm and rotation by ordinary operations that autograd knows."""
    rope, found = rw.Rope(spec, backend="reference"), []
    for x, weight in ((q, q_weight), (k, k_weight)):
        x = x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()
        found.append(x if weight is None else x * (1 + weight if plus_one else weight))
    return rope(*found, positions, seq_dim=-3)


@norms
@pytest.mark.parametrize("name", SPECS)
def test_gradients_are_those_of_a_straightforward_implementation(name, norm):
    spec, norm = SPECS[name], normed(norm)
    positions = torch.tensor([0, 5, 1000, 70, -3])
    q, k, _ = (x.requires_grad_() for x in inputs())
    leaves = [q, k]
    if norm is not None and norm.q_weight is not None:
        leaves += [norm.q_weight.requires_grad_(), norm.k_weight.requires_grad_()]

    def ours(q, k, *weights):
        given = norm if not weights else replace(norm, q_weight=weights[0], k_weight=weights[1])
        return qk_norm_rope(q, k, spec=spec, positions=positions, norm=given)

    def plain(q, k, q_weight=None, k_weight=None):
        if norm is None:
            return rw.Rope(spec, backend="reference")(q, k, positions, seq_dim=-3)
        return straightforward(q, k, q_weight, k_weight, spec, positions, norm.plus_one, norm.eps)

    assert_close(ours(*leaves), tuple(plain(*leaves)), rtol=0, atol=1e-9)
    grads = [torch.randn_like(q), torch.randn_like(k)]
    for found, wanted in zip(
        torch.autograd.grad(ours(*leaves), leaves, grads),
        torch.autograd.grad(plain(*leaves), leaves, grads),
        strict=True,
    ):
        assert_close(found, wanted, rtol=0, atol=1e-9)
    assert gradcheck(ours, leaves, fast_mode=True)


def test_several_axes_and_a_given_length_rotate_as_rope_does():
    spec = rw.RopeSpec(D, axes=axes.chunked([3, 2, 2]))
    q, k, _ = inputs()
    positions = torch.randint(0, 100, (3, T))
    for found, wanted in zip(
        qk_norm_rope(q, k, spec=spec, positions=positions),
        rw.Rope(spec)(q, k, positions[:, None], seq_dim=0),
        strict=True,
    ):
        assert_close(found, wanted, rtol=0, atol=1e-9)
    dynamic = rw.RopeSpec(D, scaling=frequencies.Dynamic(factor=2.0, original_length=8))
    found = qk_norm_rope(q, k, spec=dynamic, positions=positions[0], length=100)
    assert_close(
        found[0], rw.Rope(dynamic).rotate(q, positions[0], seq_dim=0, length=100), rtol=0, atol=1e-9
    )


def test_real_positions_on_several_axes_are_axes_by_tokens():
    """[axes, S] is the same in every row, also where there are as many rows as axes."""
    spec = rw.RopeSpec(8, axes=axes.normalised(2, 2))
    q, positions = (
        torch.randn(2, 5, 1, 8, dtype=torch.float64),
        torch.rand(2, 5, dtype=torch.float64),
    )
    found, _ = qk_norm_rope(q, q, spec=spec, positions=positions)
    frequencies_of_axis = 10000.0 ** -(torch.arange(2, dtype=torch.float64) / 2)
    # [S, 1, pairs]
    angles = torch.cat([axis[:, None] * frequencies_of_axis for axis in positions], dim=-1)[:, None]
    first, second = q.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    assert_close(
        found,
        torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1),
        rtol=0,
        atol=1e-12,
    )
    for wrong in (positions.bfloat16(), positions[:, :4]):
        with pytest.raises(rw.RopeError, match=r"^positions: "):
            qk_norm_rope(q, q, spec=spec, positions=wrong)


def test_a_cpu_tensor_is_refused_by_the_kernel_with_the_reason():
    q, k, _ = inputs(torch.float32)
    reason = why_not(q, k, spec=SPEC, positions=POSITIONS)
    assert reason == "the kernel takes CUDA tensors, this one is on cpu"
    with pytest.raises(rw.RopeError, match="the kernel takes CUDA tensors"):
        qk_norm_rope(q, k, spec=SPEC, positions=POSITIONS, backend="triton")


REFUSED = {
    "slots": lambda q, k, v, cache: {"cache": cache, "slots": torch.tensor([0, 1, 2, 3, SLOTS])},
    "cache": lambda q, k, v, cache: {"cache": cache},
    "positions": lambda q, k, v, cache: {"positions": torch.zeros(T + 1, dtype=torch.int64)},
    "q_out": lambda q, k, v, cache: {"cache": cache, "slots": WHERE, "q_out": q[:-1]},
    "return_kv": lambda q, k, v, cache: {"return_kv": True},
    "norm": lambda q, k, v, cache: {"norm": QKNorm(torch.ones(3), torch.ones(3))},
    "heads": lambda q, k, v, cache: {"heads": (Q, K)},
    "backend": lambda q, k, v, cache: {"backend": "cuda"},
    "length": lambda q, k, v, cache: {
        "spec": rw.RopeSpec(D, scaling=frequencies.Dynamic(factor=2.0, original_length=8))
    },
}


@pytest.mark.parametrize("field", REFUSED)
def test_an_error_names_the_bad_argument(field):
    q, k, v = inputs()
    call = {"spec": SPEC, "positions": POSITIONS} | REFUSED[field](q, k, v, poisoned(SLOTS, K, D))
    with pytest.raises(rw.RopeError) as error:
        qk_norm_rope(q, k, v, **call)
    assert error.value.field == field


def test_a_cache_refuses_gradients_and_scales_it_cannot_use():
    q, k, v = inputs()
    with pytest.raises(rw.RopeError, match="no_grad"):
        qk_norm_rope(
            q.requires_grad_(),
            k,
            v,
            spec=SPEC,
            positions=POSITIONS,
            cache=poisoned(SLOTS, K, D),
            slots=WHERE,
        )
    with pytest.raises(rw.RopeError, match="float8_e4m3fn cache"):
        replace(poisoned(SLOTS, K, D), k_scale=0.5)
    with pytest.raises(rw.RopeError, match="shape, dtype and device"):
        KVSlots(torch.zeros(3, K, D), torch.zeros(4, K, D))


def test_configurations_fit_every_call_and_refuse_bad_values():
    assert [pick_config(tokens, 32, 128) for tokens in (64, 256, 8192)] == [
        config for _, config in CONFIGS
    ]
    for tokens in (1, 128, 129, 2048, 2049, 10**9):
        for heads, head_dim in itertools.product((1, 3, 6, 10, 48, 200), (16, 80, 128, 256, 512)):
            config, width = pick_config(tokens, heads, head_dim), 1 << (head_dim - 1).bit_length()
            # a program has less than twice the heads of the call, and several heads only if they
            # have at most 16 x 128 dimensions together
            assert config.heads < 2 * heads
            assert config.heads == 1 or config.heads * width <= 16 * 128
            assert config.warps == 1 or config.heads * width >= 256 * config.warps
    for wrong in ({"tokens": 3}, {"heads": 6}, {"warps": 0}, {"load": ".cs"}, {"store": "evict"}):
        with pytest.raises(rw.RopeError):
            NormRotationConfig(**wrong)


def test_evenly_spaced_pages_are_plain_slots_to_the_kernel():
    pytest.importorskip("triton", reason="triton has no build for this platform")
    from ropewalk.kernels.norm_rotation.launch import cache_strides

    pages = torch.zeros(3, 4, K, D)
    row, head = K * D, D
    assert cache_strides(KVSlots(pages, pages)) == ((row, 0, head), (row, 0, head), 1)
    first = torch.zeros(3, K, 4, D).transpose(1, 2)
    assert cache_strides(KVSlots(first, first)) == ((K * 4 * D, D, 4 * D),) * 2 + (4,)


@pytest.mark.gpu
def test_the_kernel_keeps_its_laws_on_the_gpu():
    run_tests([HERE / "interpreted_norm_rotation.py"], full=True, TRITON_INTERPRET="0")


@cache
def machine_code() -> dict[str, dict[str, int]]:
    path = os.pathsep.join((str(ROOT / "src"), os.environ.get("PYTHONPATH", "")))
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": path}
    command = [sys.executable, str(HERE / "sass_norm_rotation.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout)


FORWARDS = (
    "decode 256",
    "prefill",
    "prefill, float8 cache",
    "training",
    "prefill, many heads",
)


@needs_triton_3_6
@pytest.mark.parametrize("name", FORWARDS)
def test_the_forward_needs_no_shared_memory_no_barrier_and_no_narrow_loads(name):
    """The kernel is compiled here for sm_90: if Triton's layout of the data did not fit, the code
    would have barriers, shared memory or 16-bit loads.
    """
    code = machine_code()[name]
    assert code["STACK"] == code["SHARED"] == 0
    assert [
        op
        for op in code
        if op.startswith(("BAR", "LDS", "STS", "LDL", "STL", "LDG.E.U", "STG.E.U", "LDG.E.S"))
    ] == []
    assert any(op.startswith("LDG.E") and op.endswith(".128") for op in code)
    assert any(op.startswith("STG.E") and op.endswith(".128") for op in code)


@needs_triton_3_6
@pytest.mark.parametrize("name", FORWARDS)
def test_the_forward_waits_once_and_signals_once_for_each_of_q_k_and_v(name):
    """The code has one wait, and one signal in each branch: for q, for k and, with a cache, for v."""
    code = machine_code()[name]
    assert (code["ACQBULK"], code["PREEXIT"]) == (1, 2 if name == "training" else 3)


@needs_triton_3_6
@pytest.mark.parametrize(
    "name",
    ["decode 64", "backward", "backward, wide heads", "prefill, few heads", "prefill, interleaved"],
)
def test_the_backward_and_other_shapes_spill_no_registers(name):
    code = machine_code()[name]
    assert code["STACK"] == 0
    assert [op for op in code if op.startswith(("LDL", "STL"))] == []
