"""The Triton kernel compiled for Hopper without a GPU: its machine code loads wide, spills nothing
and does not wait.
"""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from hopper import compile_for_hopper, machine_code, registers_and_spills

import ropewalk as rw
from ropewalk.kernels.request import AnyRequest, Request, TableRequest
from torch_release import needs_triton_3_6

pytestmark = [
    needs_triton_3_6,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="triton has no build for this platform"
    ),
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing"
    ),
]


@dataclass(frozen=True)
class Case:
    """A call as a model makes it: [batch, tokens, query heads, key heads, head_dim] in one memory
    order.
    """

    batch: int
    tokens: int
    query_heads: int
    key_heads: int
    head_dim: int
    order: str = "bshd"
    angles: str = "phase"
    layout: str = "half"
    dtype: torch.dtype = torch.bfloat16
    rotary_dim: int | None = None

    def tensors(self) -> tuple[torch.Tensor, ...]:
        sizes = [
            (self.tokens, h) if self.order == "bshd" else (h, self.tokens)
            for h in (self.query_heads, self.key_heads)
        ]
        # untouched memory: nothing runs here
        return tuple(
            torch.empty(self.batch, *size, self.head_dim, dtype=self.dtype) for size in sizes
        )

    def request(self) -> AnyRequest:
        seq_dim = -3 if self.order == "bshd" else -2
        if self.angles == "rows":
            table = torch.empty(self.tokens, self.head_dim // 2)
            return TableRequest(table, table, seq_dim, self.layout, self.layout)
        if self.angles == "axes":
            spec = rw.RopeSpec(
                self.head_dim, axes=rw.axes.chunked((self.head_dim // 2 - 42, 21, 21))
            )
            return Request(
                spec, seq_dim, torch.zeros(3, self.batch, self.tokens, dtype=torch.int64)
            )
        positions = torch.zeros(self.batch, 1, dtype=torch.int64) if self.tokens == 1 else None
        return Request(
            rw.RopeSpec(self.head_dim, layout=self.layout, rotary_dim=self.rotary_dim),
            seq_dim,
            positions,
        )


@cache
def compiled(case: Case):
    """The kernel of one call, specialised as Triton's own launch would."""
    from ropewalk.kernels.rotation.triton import kernel as triton_kernel
    from ropewalk.kernels.rotation.triton import plan as triton_plan
    from ropewalk.kernels.rotation.triton.angle_source import angle_source

    xs, request = case.tensors(), case.request()
    outs = tuple(torch.empty_like(x) for x in xs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_plan, "has_pdl", lambda device: True)
        patch.setattr(triton_plan, "has_sine_unit", lambda x: x.element_size() == 2)
        plan = triton_plan.RotationPlan(xs, outs, request)
    source = plan.source or angle_source(request, xs[0])
    arguments = (
        *xs,
        *outs,
        getattr(request, "positions", None),
        *source.tensors,
        0,
        *plan.constants,
    )
    kernel = triton_kernel.rotate_kernel
    return compile_for_hopper(
        kernel, dict(zip(kernel.arg_names, arguments, strict=True)), plan.options
    )


PREFILL = {
    "llama-like [B, S, H, D]": Case(1, 8192, 32, 8, 128),
    "llama-like [B, H, S, D]": Case(1, 8192, 32, 8, 128, "bhsd"),
    "wide heads [B, S, H, D]": Case(2, 8192, 16, 16, 256),
    "narrow heads [B, H, S, D]": Case(8, 2048, 32, 32, 64, "bhsd"),
    "interleaved [B, S, H, D]": Case(1, 8192, 32, 8, 128, layout="interleaved"),
    "float32 [B, H, S, D]": Case(1, 8192, 32, 8, 128, "bhsd", dtype=torch.float32),
    "rows [B, S, H, D]": Case(1, 8192, 32, 8, 128, angles="rows"),
    "rows [B, H, S, D]": Case(1, 8192, 32, 8, 128, "bhsd", angles="rows"),
    "28 and 4 heads [B, S, H, D]": Case(1, 8192, 28, 4, 128),
    "a quarter rotates [B, S, H, D]": Case(1, 8192, 32, 8, 128, rotary_dim=32),
    "a quarter rotates [B, H, S, D]": Case(1, 8192, 32, 8, 128, "bhsd", rotary_dim=32),
}
#: calls whose threads wait for each other: angles of several axes take longer to compute, so fewer
#: threads are faster, although x then moves through shared memory
WAITING = {
    f"three axes, {order}": Case(1, 8192, 32, 8, 128, order, angles="axes")
    for order in ("bshd", "bhsd")
}
DECODE = {
    "64 rows": Case(64, 1, 32, 8, 128),
    "256 rows as Hugging Face has them": Case(256, 1, 64, 8, 128, "bhsd"),
}
ALL = {**PREFILL, **WAITING, **DECODE}


@pytest.fixture(params=ALL)
def case(request) -> Case:
    return ALL[request.param]


def test_the_rotation_kernel_spills_no_registers(case, tmp_path):
    registers, spilled = registers_and_spills(compiled(case), tmp_path)
    assert spilled == 0
    assert registers <= 96  # 20 warps or more on a multiprocessor


def test_no_thread_touches_memory_16_bits_at_a_time(case):
    touched = re.findall(r"(ld|st)\.global([\w.:]*)", compiled(case).asm["ptx"])
    assert touched
    for _, kind in touched:
        bits = int(re.search(r"b(\d+)$", kind).group(1)) * int(
            (re.search(r"\.v(\d)", kind) or [0, 1])[1]
        )
        assert bits >= 32, kind


@pytest.mark.parametrize("name", PREFILL)
def test_no_thread_waits_for_another(name):
    """Every thread computes the angles of the pairs it holds: no barrier, no shared memory."""
    assert "bar.sync" not in compiled(PREFILL[name]).asm["ptx"]
    assert compiled(PREFILL[name]).metadata.shared == 0


def test_every_load_of_x_comes_before_the_first_store(case):
    ptx = compiled(case).asm["ptx"]
    assert ptx.rindex("ld.global") < ptx.index("st.global")


def test_the_kernel_waits_before_it_reads_and_lets_the_next_one_start(case):
    ptx = compiled(case).asm["ptx"]
    assert ptx.index("griddepcontrol.wait") < ptx.index("ld.global")
    assert (
        ptx.index("griddepcontrol.wait")
        < ptx.index("griddepcontrol.launch_dependents")
        < ptx.index("st.global")
    )


def test_only_16_bit_tensors_use_the_approximate_sine(case):
    """The error of the approximate sine is below the rounding to 16 bits. For float32 the kernel uses
    polynomials; with rows of a table it loads cos and sin.
    """
    found = "sin.approx" in compiled(case).asm["ptx"]
    assert found == (case.dtype.itemsize == 2 and case.angles != "rows")


def test_the_approximate_sine_compiles_to_the_sine_unit(tmp_path):
    assert "MUFU.SIN" in machine_code(compiled(DECODE["64 rows"]), tmp_path, "-sass")


def test_a_direct_launch_passes_what_the_compiled_kernel_expects(monkeypatch):
    """Triton's C launcher takes the grid, a stream, the function, two flags, two scratches,
    metadata, three hooks, arguments.
    """
    from ropewalk.kernels.rotation.triton import kernel as triton_kernel
    from ropewalk.kernels.rotation.triton import plan as triton_plan

    case = DECODE["64 rows"]
    xs, request = case.tensors(), case.request()
    plan = triton_plan.RotationPlan(xs, xs, request)
    started = []

    class Launcher:
        launch_cooperative_grid, launch_pdl, global_scratch_size, profile_scratch_size = (
            "cooperative",
            "pdl",
            0,
            0,
        )

        @staticmethod
        def launch(*arguments):
            started.append(arguments)

    class Kernel:
        function, packed_metadata, run = "function", "metadata", Launcher

    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda index: "stream", raising=False
    )
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: plan.device_index, raising=False)
    plan._save_launcher(Kernel)
    plan(xs, xs, request, [t.data_ptr() for t in (*xs, *xs)])
    fixed, arguments = started[0][:13], started[0][13:]
    assert fixed[:3] == plan.grid
    assert fixed[3:] == (
        "stream",
        "function",
        "cooperative",
        "pdl",
        None,
        None,
        "metadata",
        None,
        None,
        None,
    )
    assert list(compiled(case).src.signature) == triton_kernel.rotate_kernel.arg_names
    by_name = dict(zip(triton_kernel.rotate_kernel.arg_names, arguments, strict=True))
    assert by_name["q"] == by_name["q_out"] == xs[0].data_ptr()
    assert by_name["k"] == by_name["k_out"] == xs[1].data_ptr()
    assert by_name["positions"] == request.positions.data_ptr()
    assert by_name["angles"] == plan.source.tensors[0].data_ptr()
    assert by_name["more_angles"] is None
    assert by_name["q_magnitude"] is None
    assert by_name["tokens"] == 64
    assert (by_name["Q_HEADS"], by_name["K_HEADS"]) == (32, 8)
