"""vLLM plug-in: its modules have exact tables; without its switch it does nothing."""

import os
import sys

import plugin_files
import pytest
import torch


@pytest.fixture(scope="module")
def plugin():
    return plugin_files.load("vllm")


def test_it_is_off_unless_asked(plugin, monkeypatch):
    monkeypatch.delenv("ROPEWALK_VLLM", raising=False)
    monkeypatch.setitem(sys.modules, "vllm", None)  # an import of vLLM would raise
    plugin.register()
    monkeypatch.setenv("ROPEWALK_VLLM", "1")
    with pytest.raises(ImportError):
        plugin.register()


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
    before = modules()
    plugin.register()
    for kind, module in modules().items():
        assert type(module).__name__.startswith("Ropewalk")
        assert (module.cos_sin_cache[:500] - before[kind].cos_sin_cache[:500]).abs().max() < 5e-5
        assert plugin_files.error_at(before[kind], kind, 150_000) > 1e-4
        assert plugin_files.error_at(module, kind, 150_000) < 1e-6
