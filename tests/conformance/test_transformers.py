"""transformers' own rotary modules pass the vectors: float32 tables are no false alarm."""

import importlib
import inspect

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from ropewalk_conformance import run  # noqa: E402
from ropewalk_conformance.runner import SAME  # noqa: E402

#: model type: folder of its modeling file, where they differ
FOLDERS = {
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "qwen3_vl_text": "qwen3_vl",
    "qwen3_5_text": "qwen3_5",
}
#: the config class that reads these keys, where it is not the family's own
TEXT_CONFIGS = {"qwen2_vl": "qwen2_vl_text"}


def cos_sin(config, positions, part=None):
    """Return the table of the family's own module."""
    kind = config["model_type"]
    if kind in ("glm_moe_dsa", "deepseek_v32"):
        config = config | {"head_dim": config["qk_rope_head_dim"]}
    keys = {name: value for name, value in config.items() if name != "model_type"}
    made = transformers.AutoConfig.for_model(TEXT_CONFIGS.get(kind, kind), **keys)
    folder = FOLDERS.get(kind, kind)
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    names = [n for n in dir(module) if n.endswith("RotaryEmbedding") and "Vision" not in n]
    module = getattr(module, names[0])(config=made)
    x = torch.zeros(1, dtype=torch.float32)
    if "layer_type" in inspect.signature(module.forward).parameters:
        return module(x, positions, layer_type=part)
    result = module(x, positions)
    return torch.view_as_real(result).unbind(-1) if torch.is_tensor(result) else result


def test_transformers_passes_every_table():
    report = run(cos_sin=cos_sin, arrays="torch")
    assert not report.failures, str(report)
    assert len(report.of(SAME)) >= 50
    # transformers' angles are float32 products, which only an optional group reports
    assert {finding.mistake for finding in report.findings} == {"angle_float32"}
    assert {each.group for each in report.findings[0].results} == {"far"}
