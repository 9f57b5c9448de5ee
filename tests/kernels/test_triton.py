"""The Triton backend without a GPU: when Triton is imported, how work is divided, and its laws
under the interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from another_process import run_tests
from ropewalk.kernels import available
from ropewalk.kernels.rotation.triton.config import CONFIGS, SPECIAL_CONFIGS, pick_config
from ropewalk.kernels.support import power_of_two


def test_every_law_of_every_kernel_holds_under_the_interpreter(full):
    """In a process of its own: Triton decides at import whether it interprets, and this one may
    have imported it.
    """
    pytest.importorskip("triton", reason="triton has no build for this platform")
    laws = sorted(Path(__file__).parent.glob("interpreted_*.py"))
    assert len(laws) >= 4
    run_tests(laws, full, TRITON_INTERPRET="1")


def test_importing_ropewalk_does_not_import_triton():
    """Nor does rotating a CPU tensor."""
    code = (
        "import sys, torch, ropewalk as rw; rw.Rope(rw.RopeSpec(8))(torch.zeros(1, 1, 2, 8)); "
        "assert 'triton' not in sys.modules"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_cpu_tensor_is_refused_with_the_reason(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    reason = available("cpu")["triton"]
    assert reason is not None
    assert "CUDA" in reason
    assert "cpu" in reason


@pytest.mark.parametrize("order", ["token", "head"])
@pytest.mark.parametrize("angles", ["phase", "rows"])
@pytest.mark.parametrize("pairs", [1, 5, 8, 32, 33, 64, 100, 128, 256, 2048])
def test_every_call_finds_a_configuration_that_fits(order, angles, pairs):
    for heads in ((1, 0), (32, 8), (28, 4), (4, 1), (128, 1), (8, 8)):
        for tokens in (1, 3, 4096):
            for itemsize in (2, 4):
                config = pick_config(order, angles, pairs, 0, (1, tokens), heads, itemsize)
                assert config.tokens & (config.tokens - 1) == 0
                assert config.heads & (config.heads - 1) == 0
                assert config.heads < 2 * max(heads)
                assert config.tokens < 2 * tokens
                # a thread holds at most 32 pairs of q, or of k: their members take 64 registers in
                # float32, and more would spill
                lanes = 32 * config.warps
                assert (
                    config.tokens * config.heads * power_of_two(pairs) <= 32 * lanes
                    or config.tokens * config.heads == 1
                )


def test_few_heads_leave_room_for_more_tokens_and_copied_dims_take_room():
    many, few = (
        pick_config("token", "phase", 64, 0, (1, 4096), (heads, heads), 2) for heads in (32, 1)
    )
    assert few.tokens * few.heads == many.tokens * many.heads
    assert few.tokens > many.tokens
    rotated = pick_config("token", "phase", 16, 0, (1, 4096), (32, 32), 2)
    partly = pick_config("token", "phase", 16, 96, (1, 4096), (32, 32), 2)
    assert partly.tokens * partly.heads < rotated.tokens * rotated.heads


@pytest.mark.parametrize("order", ["token", "head"])
def test_several_axes_and_copied_dims_have_configurations_of_their_own(order):
    plain, axes, part = (
        pick_config(order, "phase", p, c, (1, 4096), (32, 8), 2, a)
        for p, c, a in ((64, 0, 1), (64, 0, 3), (16, 96, 1))
    )
    assert axes == SPECIAL_CONFIGS[order, "axes", 64] != plain
    assert part == SPECIAL_CONFIGS[order, "part", 64] != plain
    # these configurations were measured for prompts with heads of 128; for a decode step and for
    # other widths the table of plain calls is used
    for call in (
        (order, "phase", 32, 0, (1, 4096), (32, 8), 2),
        ("token", "phase", 64, 0, (64, 1), (32, 8), 2),
    ):
        assert pick_config(*call, 3) == pick_config(*call)


def test_a_key_of_few_heads_is_not_in_the_programs_of_the_query():
    """In programs of q, each thread would load only 2 bytes of such a key at a time."""
    assert pick_config("token", "phase", 64, 0, (1, 4096), (32, 8), 2).q_and_k
    assert not pick_config("token", "phase", 64, 0, (1, 4096), (32, 1), 2).q_and_k


def test_the_table_of_configurations_is_in_order():
    """`pick_config` uses the first row that is wide enough."""
    for order, angles in {row[:2] for row in CONFIGS}:
        widths = [row[2] for row in CONFIGS if row[:2] == (order, angles)]
        assert widths == sorted(set(widths))
    assert torch.tensor([row[3].warps for row in CONFIGS]).log2().frac().eq(0).all()
