"""vLLM plug-in: its modules have exact tables, and ropewalk's scalings are served; without its switch
it does nothing, and what stops it is logged.
"""

import math
import os
import sys
from types import SimpleNamespace

import plugin_files
import pytest
import torch

import ropewalk as rw


@pytest.fixture(scope="module")
def plugin():
    return plugin_files.load("vllm")


def test_what_stops_it_is_logged_and_vllm_goes_on(monkeypatch):
    plugin_files.check_switches("vllm", "0.32.1", monkeypatch)


def test_a_broken_ropewalk_changes_nothing_in_vllm(plugin, monkeypatch):
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from vllm.model_executor.layers import rotary_embedding

    before = rotary_embedding.get_rope
    monkeypatch.setenv("ROPEWALK_VLLM", "1")
    monkeypatch.setitem(sys.modules, "ropewalk.interop.engine_tables", None)
    plugin.register()
    assert rotary_embedding.get_rope is before


def test_vllms_own_modules_are_exact(plugin, monkeypatch):
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers import rotary_embedding

    def modules():
        rotary_embedding._ROPE_DICT.clear()
        with set_current_vllm_config(VllmConfig()):
            return {
                kind: rotary_embedding.get_rope(
                    64,
                    length,
                    rope_parameters={"rope_theta": 1e4, "rope_type": kind, **more},
                    dtype=torch.float32,
                )
                for kind, (more, length) in plugin_files.KINDS.items()
            }

    monkeypatch.setenv("ROPEWALK_VLLM", "1")
    before, before_get_rope = modules(), rotary_embedding.get_rope
    plugin.register()
    for kind, module in modules().items():
        assert type(module).__name__.startswith("Ropewalk")
        assert (module.cos_sin_cache[:500] - before[kind].cos_sin_cache[:500]).abs().max() < 5e-5
        assert plugin_files.error_at(before[kind], kind, 150_000) > 1e-4
        assert plugin_files.error_at(module, kind, 150_000) < 1e-6
    plugin.register()  # vLLM may load it twice

    # vLLM's table for LongRoPE has two parts: rows by the short factors, then rows by the long ones
    assert rotary_embedding.get_rope is not before_get_rope
    config = VllmConfig()
    config.model_config = SimpleNamespace(max_model_len=150_000, hf_text_config=None)
    factors = [1.0 + 0.1 * i for i in range(32)]
    long = {"short_factor": factors, "long_factor": factors[::-1]}
    with set_current_vllm_config(config):
        module = rotary_embedding.get_rope(
            64,
            160_000,
            rope_parameters={
                "rope_theta": 1e4,
                "rope_type": "longrope",
                "original_max_position_embeddings": 4096,
                **long,
            },
            dtype=torch.float32,
        )
        own = {
            kind: rotary_embedding.get_rope(
                64,
                16_384,
                rope_parameters={"rope_theta": 1e4, "rope_type": kind, **more},
                dtype=torch.float32,
            )
            for kind, (more, _) in plugin_files.OWN.items()
        }
    plain = 1e4 ** -(torch.arange(0, 64, 2).double() / 64)
    angles = 150_000 * plain / torch.tensor(factors[::-1], dtype=torch.float64)
    row = module.long_short_cos_sin_cache[4096 + 150_000].double()
    magnitude = math.sqrt(1 + math.log(160_000 / 4096) / math.log(4096))
    expected = torch.cat([angles.cos(), angles.sin()]) * magnitude
    # vLLM's frequencies are float32
    assert (row - expected).abs().max() < 0.02
    inv_freq = module._compute_inv_freq(factors[::-1]).double() * 150_000
    expected = torch.cat([inv_freq.cos(), inv_freq.sin()]) * magnitude
    assert (row - expected).abs().max() < 1e-6

    for kind, (_, scaling) in plugin_files.OWN.items():
        table = own[kind].cos_sin_cache.double()
        assert len(table) == (65_536 if kind in ("ntk_by_parts", "clipped") else 16_384)
        assert (table - plugin_files.table_of(scaling, len(table))).abs().max() < 1e-6
    positions, heads = torch.tensor([3, 16_000]), torch.randn(2, 2, 64)
    rotated, _ = own["clipped"].forward_native(positions, heads.flatten(1), heads.flatten(1))
    spec = rw.RopeSpec(64, scaling=plugin_files.OWN["clipped"][1])
    expected = rw.Rope(spec).rotate(heads.transpose(0, 1), positions).transpose(0, 1)
    torch.testing.assert_close(rotated.view(2, 2, 64), expected, rtol=1e-5, atol=1e-5)
