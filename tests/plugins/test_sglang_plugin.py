"""SGLang plug-in: with it, SGLang's rotary modules have exact tables, also after they appended rows;
without its switch it does nothing.
"""

import subprocess
import sys
from pathlib import Path

import plugin_files
import pytest

RUNNERS = Path(__file__).parents[2] / "src" / "ropewalk_lab" / "engines_run"
#: SGLang imports packages for GPUs; the runner has empty modules in their place, so it needs a
#: process of its own
SCRIPT = """
import sys
from types import SimpleNamespace
sys.path[:0] = sys.argv[1:3]
import run_sglang
import plugin_files
import torch
from sglang.srt.layers.rotary_embedding import get_rope
from sglang.srt.layers.rotary_embedding import factory
from sglang.srt.plugins.hook_registry import HookRegistry

def modules():
    factory._ROPE_DICT.clear()
    return {
        kind: get_rope(64, 64, length, 10_000, True, {"rope_type": kind, **more}, torch.float32)
        for kind, (more, length) in plugin_files.KINDS.items()
    }

def lengthen(modules):
    for kind in GROW:
        modules[kind]._ensure_cos_sin_cache_length(400_000)

GROW = ("default", "yarn")
before = modules()
lengthen(before)
plugin = plugin_files.load("sglang")
plugin.register()
HookRegistry.apply_hooks()
print("hooked", "sglang.srt.configs.model_config.ModelConfig.__init__" in HookRegistry._patched)
after = modules()
for position in (150_000, 390_000):
    for kind in after if position == 150_000 else GROW:
        near = (after[kind].cos_sin_cache[:500] - before[kind].cos_sin_cache[:500]).abs().max()
        print(kind, float(near), *(plugin_files.error_at(each[kind], kind, position) for each in (before, after)))
    lengthen(after)
for kind, (more, scaling) in plugin_files.OWN.items():
    module = get_rope(64, 64, 16_384, 10_000, True, {"rope_type": kind, **more}, torch.float32)
    error = lambda: float((module.cos_sin_cache - plugin_files.table_of(scaling, len(module.cos_sin_cache))).abs().max())
    first, rows = error(), len(module.cos_sin_cache)
    module._ensure_cos_sin_cache_length(rows + 10)
    print("own", kind, first, error(), len(module.cos_sin_cache) > rows + 10)
plugin._configs[:] = [SimpleNamespace(context_len=512, hf_text_config=SimpleNamespace(use_cope=True))]
module = get_rope(64, 64, 512, 10_000, True, None, torch.float32)
expected = plugin_files.table_of(plugin_files.frequencies.Clipped(), 512)
print("flag", float((module.cos_sin_cache - expected).abs().max()))
"""  # noqa: E501


def test_what_stops_it_is_logged_and_sglang_goes_on(monkeypatch):
    plugin_files.check_switches("sglang", "0.5.23.post1", monkeypatch)


def test_sglangs_own_modules_are_exact(monkeypatch):
    pytest.importorskip("sglang", reason="SGLang is not installed")
    monkeypatch.setenv("ROPEWALK_SGLANG", "1")
    command = [sys.executable, "-c", SCRIPT, str(RUNNERS), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [
        line.split()
        for line in done.stdout.splitlines()
        if line.split()[:1] and line.split()[0] in plugin_files.KINDS
    ]
    assert len(rows) == len(plugin_files.KINDS) + 2
    for kind, near, before, after in rows:
        assert float(near) < 5e-5, kind
        assert float(before) > 1e-4, kind
        assert float(after) < 1e-6, kind
    assert "hooked True" in done.stdout
    (flag,) = (line for line in done.stdout.splitlines() if line.startswith("flag "))
    assert (
        float(flag.split()[1]) < 1e-4
    )  # float32 frequencies are off by this much at 512 positions
    own = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("own ")]
    assert [kind for kind, *_ in own] == list(plugin_files.OWN)
    for kind, first, grown, is_longer in own:
        assert max(float(first), float(grown)) < 1e-6, kind
        assert is_longer == "True", kind
