"""The table of the vLLM plug-in is the float64 one; without its switch the plug-in does nothing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

FILE = Path(__file__).parents[2] / "plugins" / "vllm" / "ropewalk_vllm.py"


@pytest.fixture(scope="module")
def plugin():
    spec = importlib.util.spec_from_file_location("ropewalk_vllm", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table_of(inv_freq, length, magnitude, dtype):
    angles = torch.arange(length, dtype=dtype)[:, None] * inv_freq.to(dtype)
    return torch.cat([angles.cos(), angles.sin()], dim=-1) * magnitude


@pytest.mark.parametrize("magnitude", [1.0, 1.25])
def test_the_table_is_exact_where_float32_angles_are_not(plugin, magnitude):
    inv_freq, length = 1.0 / 1e4 ** (torch.arange(0, 10, 2) / 10), 200_000
    single = table_of(inv_freq, length, magnitude, torch.float32)
    double = table_of(inv_freq, length, magnitude, torch.float64)
    exact = plugin._exact_table(single, inv_freq)
    assert exact.dtype == single.dtype
    assert (single - double).abs().max() > 5e-4
    assert (exact - double).abs().max() < 1e-6


def test_a_table_of_another_form_stays(plugin):
    inv_freq = 1.0 / 1e4 ** (torch.arange(0, 10, 2) / 10)
    slowed = table_of(inv_freq / 4, 100, 1.0, torch.float32)
    assert plugin._exact_table(slowed, inv_freq) is slowed
    wide = torch.zeros(4, 12)
    assert plugin._exact_table(wide, inv_freq) is wide


def test_it_is_off_unless_asked(plugin, monkeypatch):
    monkeypatch.delenv("ROPEWALK_VLLM", raising=False)
    monkeypatch.setitem(sys.modules, "vllm", None)  # an import of vLLM would raise
    plugin.register()
    monkeypatch.setenv("ROPEWALK_VLLM", "1")
    with pytest.raises(ImportError):
        plugin.register()
