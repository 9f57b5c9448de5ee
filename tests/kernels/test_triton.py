"""The Triton backend without a GPU: when Triton is imported, how work is divided, and its laws under the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ropewalk.kernels import available
from ropewalk.kernels.triton import tuning as triton_tuning
from ropewalk.kernels.triton.tuning import TABLE, choose

TESTS = Path(__file__).parents[1]


def in_another_process(*command: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **environment},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=900,
    )


def test_every_law_holds_under_the_interpreter():
    """In a process of its own: Triton decides at import whether it interprets, and this one may have imported it."""
    pytest.importorskip("triton", reason="triton has no build for this platform")
    laws = str(TESTS / "kernels" / "interpreted_triton.py")
    done = in_another_process("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", laws, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_import_ropewalk_leaves_triton_alone():
    """Turning a CPU tensor does, too."""
    code = (
        "import sys, torch, ropewalk as rw; rw.Rope(rw.RopeSpec(8))(torch.zeros(1, 1, 2, 8)); assert 'triton' not in sys.modules"
    )
    done = in_another_process("-c", code, TRITON_INTERPRET="0")
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
                config = choose(order, angles, pairs, 0, (1, tokens), heads, itemsize)
                assert config.tokens & (config.tokens - 1) == 0
                assert config.heads & (config.heads - 1) == 0
                assert config.heads < 2 * max(heads)
                assert config.tokens < 2 * tokens
                # 64 registers for one side's two members of 32 pairs in float32; beyond, they would spill
                lanes = 32 * config.warps
                assert (
                    config.tokens * config.heads * triton_tuning.power(pairs) <= 32 * lanes or config.tokens * config.heads == 1
                )


def test_few_heads_take_more_tokens_and_dims_that_pass_take_their_room():
    many, few = (choose("token", "phase", 64, 0, (1, 4096), (heads, heads), 2) for heads in (32, 1))
    assert few.tokens * few.heads == many.tokens * many.heads
    assert few.tokens > many.tokens
    rotated = choose("token", "phase", 16, 0, (1, 4096), (32, 32), 2)
    partly = choose("token", "phase", 16, 96, (1, 4096), (32, 32), 2)
    assert partly.tokens * partly.heads < rotated.tokens * rotated.heads


@pytest.mark.parametrize("order", ["token", "head"])
def test_several_axes_and_dims_that_pass_have_lines_of_their_own(order):
    plain, axes, part = (
        choose(order, "phase", p, c, (1, 4096), (32, 8), 2, a) for p, c, a in ((64, 0, 1), (64, 0, 3), (16, 96, 1))
    )
    assert axes == triton_tuning.SPECIAL[order, "axes", 64] != plain
    assert part == triton_tuning.SPECIAL[order, "part", 64] != plain
    # measured for heads of 128; a decode step and other widths keep to the table
    assert choose(order, "phase", 32, 0, (1, 4096), (32, 8), 2, 3) == choose(order, "phase", 32, 0, (1, 4096), (32, 8), 2)
    assert choose("token", "phase", 64, 0, (64, 1), (32, 8), 2, 3) == choose("token", "phase", 64, 0, (64, 1), (32, 8), 2)


def test_a_thin_key_does_not_ride_with_the_query():
    """Its threads would load 2 bytes at a time."""
    assert choose("token", "phase", 64, 0, (1, 4096), (32, 8), 2).together
    assert not choose("token", "phase", 64, 0, (1, 4096), (32, 1), 2).together


def test_a_sweep_forces_its_configuration_and_gives_it_back():
    wanted = triton_tuning.Config(4, 2, 8, hints=True)
    with triton_tuning.forced(wanted):
        assert choose("head", "phase", 64, 0, (1, 4096), (32, 8), 2) == wanted
        with pytest.raises(RuntimeError, match="broken"), triton_tuning.forced(None):
            raise RuntimeError("broken")
        assert triton_tuning.forced_config() == wanted
    assert triton_tuning.forced_config() is None


def test_the_table_of_configurations_is_in_order():
    """`choose` takes the first line that is wide enough."""
    for order, angles in {line[:2] for line in TABLE}:
        widths = [line[2] for line in TABLE if line[:2] == (order, angles)]
        assert widths == sorted(set(widths))
    assert torch.tensor([line[3].warps for line in TABLE]).log2().frac().eq(0).all()
