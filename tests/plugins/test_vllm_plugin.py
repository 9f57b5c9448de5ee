"""vLLM plug-in: its modules have exact tables, and ropewalk's scalings are served; without its switch
it does nothing, and what stops it is logged.
"""

import math
import os
import sys
from types import ModuleType, SimpleNamespace

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


def module_of(name, **contents):
    module = ModuleType(name)
    vars(module).update(contents)
    return module


@pytest.fixture
def stand_in(monkeypatch):
    """A package in the place of vLLM, with rotary modules that hold a table of float32 angles."""

    class Base:
        def __init__(self, head_size, rotary_dim, rows, base, is_neox_style, dtype):
            self.sizes, self.dtype = (head_size, rotary_dim, rows, base, is_neox_style), dtype
            self.rotary_dim, self.base, self.rows = rotary_dim, base, rows
            self.cos_sin_cache = self._compute_cos_sin_cache()

        def _compute_inv_freq(self, base):
            return base ** -(torch.arange(0, self.rotary_dim, 2).float() / self.rotary_dim)

        def _compute_cos_sin_cache(self):
            angles = torch.arange(self.rows).float()[:, None] * self._compute_inv_freq(self.base)
            return torch.cat([angles.cos(), angles.sin()], -1)

    inside = {"__module__": "vllm.model_executor.layers.rotary_embedding.kinds"}
    plain = type("RotaryEmbedding", (Base,), inside)
    scaled = type("ScaledRotaryEmbedding", (plain,), inside)
    elsewhere = type("OtherRotaryEmbedding", (Base,), {"__module__": "other"})
    phi = type("Phi3LongRoPEScaledRotaryEmbedding", (plain,), inside)
    asked = []

    def get_rope(
        head_size,
        max_position,
        is_neox_style=True,
        rope_parameters=None,
        dtype=None,
        dual_chunk_attention_config=None,
    ):
        asked.append((head_size, max_position))
        return "vLLM's own"

    known = {}
    registered = module_of(
        "vllm.model_executor.custom_op",
        CustomOp=SimpleNamespace(
            register_oot=lambda name: lambda kind: known.setdefault(name, kind)
        ),
    )
    rotary = module_of(
        "vllm.model_executor.layers.rotary_embedding",
        get_rope=get_rope,
        _ROPE_DICT={},
        RotaryEmbedding=plain,
        Phi3LongRoPEScaledRotaryEmbedding=phi,
    )
    config = SimpleNamespace(model_config=None)
    model = module_of("a_model", get_rope=get_rope, _ROPE_DICT=None)
    modules = [
        module_of("vllm", __version__="0.32.1"),
        module_of("vllm.config", get_current_vllm_config_or_none=lambda: config),
        module_of("vllm.model_executor"),
        registered,
        module_of("vllm.model_executor.layers", rotary_embedding=rotary),
        rotary,
        module_of("vllm.model_executor.layers.rotary_embedding.base", RotaryEmbeddingBase=Base),
        model,
        module_of("another", get_rope=len),
    ]
    for each in modules:
        monkeypatch.setitem(sys.modules, each.__name__, each)
    return SimpleNamespace(
        known=known, rotary=rotary, model=model, asked=asked, kinds=(plain, scaled, elsewhere, phi)
    )


def test_rotary_classes_and_get_rope_are_replaced_wherever_they_are_held(plugin, stand_in):
    before = stand_in.rotary.get_rope
    plugin._install()
    plain, scaled, _, phi = stand_in.kinds
    assert {name: kind.__mro__[1] for name, kind in stand_in.known.items()} == {
        "RotaryEmbedding": plain,
        "ScaledRotaryEmbedding": scaled,
        "Phi3LongRoPEScaledRotaryEmbedding": phi,
    }
    assert {kind.__name__ for kind in stand_in.known.values()} == {
        "RopewalkRotaryEmbedding",
        "RopewalkScaledRotaryEmbedding",
        "RopewalkPhi3LongRoPEScaledRotaryEmbedding",
    }
    wrapped = stand_in.rotary.get_rope
    assert wrapped is stand_in.model.get_rope is not before
    assert sys.modules["another"].get_rope is len
    plugin._install()  # vLLM may load it twice
    assert stand_in.rotary.get_rope is wrapped
    for kind in (stand_in.known["ScaledRotaryEmbedding"], phi):
        own = kind(8, 8, 150_001, 1e4, True, None)
        usual = plain(8, 8, 150_001, 1e4, True, None)
        angles = 150_000 * own._compute_inv_freq(1e4).double()
        exact = torch.cat([angles.cos(), angles.sin()])
        assert (own.cos_sin_cache[-1] - exact).abs().max() < 1e-6
        assert (usual.cos_sin_cache[-1] - exact).abs().max() > 1e-4


def test_ropes_that_vllm_lacks_get_a_module_that_layers_share(plugin, stand_in):
    plugin._install()
    get_rope = stand_in.rotary.get_rope
    assert get_rope(64, 512) == get_rope(64, 512, rope_parameters={"rope_type": "yarn"})
    assert stand_in.asked == [(64, 512)] * 2
    for kind, (more, scaling) in plugin_files.OWN.items():
        rope = {"rope_type": kind, "rope_theta": 1e4, "partial_rotary_factor": 0.5, **more}
        module = get_rope(64, 512, False, rope, torch.float32)
        assert module is get_rope(64, 512, is_neox_style=False, rope_parameters=rope)
        assert module is not get_rope(64, 512, True, rope, torch.float32)
        assert module.sizes == (64, 32, len(module.cos_sin_cache), 1e4, False)
        assert module.dtype is torch.float32
        table = plugin_files.table_of(scaling, len(module.cos_sin_cache), dim=32)
        assert (module.cos_sin_cache - table).abs().max() < 1e-6
    assert stand_in.asked == [(64, 512)] * 2
    dual = {"rope_parameters": rope, "dual_chunk_attention_config": {}}
    assert get_rope(64, 512, **dual) == "vLLM's own"
