"""The light runners, where their engines are installed, and the arithmetic that reads a rope back
from rotated unit vectors.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

import ropewalk_lab.engines_run.installed as installed
from engines.matrix_rows import rows
from engines.record import TABLES, recorded_rope
from ropewalk import RopeError
from ropewalk_lab.engines_run.measured import LayerRope, cells, verdict
from ropewalk_lab.engines_run.small import small_config

RESULTS = Path(__file__).parents[2] / "results"
#: one config of each kind
NAMES = ("llama-3.1, v5", "deepseek-v3, v4", "gemma-3 linear, v4")


@pytest.fixture(scope="module")
def probe():
    spec = importlib.util.spec_from_file_location("probe", installed.RUNNERS / "probe.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def matrix(probe, size, radians, layouts, magnitude=1.0):
    """The rotation by `radians`, written out pair by pair."""
    made, width = np.eye(size), 2 * len(radians)
    made[:width, :width] = 0
    (first, second), (first_out, second_out) = (probe.members(layout, width) for layout in layouts)
    for i, angle in enumerate(radians):
        c, s = magnitude * math.cos(angle), magnitude * math.sin(angle)
        made[first_out[i], first[i]], made[second_out[i], first[i]] = c, s
        made[first_out[i], second[i]], made[second_out[i], second[i]] = -s, c
    return made


@pytest.mark.parametrize(
    "layouts", [("half", "half"), ("interleaved", "interleaved"), ("interleaved", "half")]
)
@pytest.mark.parametrize(("size", "magnitude"), [(10, 1.0), (14, 1.3)])
def test_a_rotation_is_read_back(probe, layouts, size, magnitude):
    radians = [1.0, 0.3, 0.02, 1e-4, 1e-7]
    found = probe.rope_of_matrices([matrix(probe, size, radians, layouts, magnitude)])
    assert found["radians"] == pytest.approx(radians, rel=1e-6)
    assert (found["layout"], found["layout_out"], found["width"], found["axis"]) == (
        *layouts,
        10,
        [0] * 5,
    )
    assert found["magnitude"] == pytest.approx(magnitude)


def test_axes_are_read_back_and_what_is_no_rotation_is_refused(probe):
    radians = np.array([1.0, 0.5, 0.1])
    steps = [
        matrix(probe, 6, np.where(np.array([0, 2, 1]) == axis, radians, 0), ("half", "half"))
        for axis in range(3)
    ]
    assert probe.rope_of_matrices(steps)["axis"] == [0, 2, 1]
    assert probe.rope_of_matrices([np.eye(6)]) is None
    with pytest.raises(ValueError, match="not a rotation"):
        probe.rope_of_matrices([np.arange(36.0).reshape(6, 6)])


@pytest.mark.parametrize("engine", ["hf", "mlx-lm", "onnxruntime"])
def test_an_installed_engine_computes_what_was_recorded(engine, monkeypatch, tmp_path):
    """In this process, because a new one would import torch again."""
    if installed.why_not(engine) is not None:
        pytest.skip(installed.why_not(engine))
    record = json.loads((RESULTS / TABLES).read_text(encoding="utf-8"))
    ran = record["engines"][engine]
    monkeypatch.syspath_prepend(str(installed.RUNNERS))
    script, package = installed.SCRIPTS[engine]
    runner = importlib.import_module(script.removesuffix(".py"))
    version = importlib.import_module(package).__version__
    if version != ran["version"]:
        pytest.skip(f"{package} {version} is installed, {ran['version']} was recorded")
    some = {row.id: row for row in rows() if row.name in NAMES}
    found = [
        {
            "name": row.name,
            "length": row.length,
            "max_model_len": row.max_model_len,
            **runner.measure(vars(row)),
        }
        for row in some.values()
    ]
    assert len(some) == len(NAMES)
    for row, layer_type, rope in cells({"results": found}, some):
        recorded = ran["rows"][row.id][layer_type]
        old = None if recorded is None else recorded_rope(record, recorded)
        new = None if rope is None else LayerRope.read(rope)
        # float32 frequencies differ in their last digit between processors
        assert verdict(old, new) == "same", row.id
        assert old is None or old.layout == new.layout
    for name in (script.removesuffix(".py"), "probe"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("engine", "packages", "folders", "reason"),
    [
        ("vllm", "", "", "vllm is not installed"),
        ("vllm", "vllm", "", None),
        ("mlx-lm", "mlx_lm", "", None),
        ("onnxruntime", "onnx", "", "onnxruntime is not installed"),
        ("onnxruntime", "onnxruntime", "", "onnx is not installed"),
        ("onnxruntime", "onnxruntime onnx", "", None),
        ("llama.cpp", "xllamacpp", "", "LLAMA_CPP and WEIGHTS must name"),
        ("llama.cpp", "xllamacpp", "WEIGHTS", "LLAMA_CPP and WEIGHTS must name"),
        ("llama.cpp", "xllamacpp", "WEIGHTS LLAMA_CPP", None),
    ],
)
def test_why_not_names_what_an_engine_needs_to_run(monkeypatch, engine, packages, folders, reason):
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: name if name in packages.split() else None
    )
    for name in ("LLAMA_CPP", "WEIGHTS"):
        monkeypatch.delenv(name, raising=False)
        if name in folders.split():
            monkeypatch.setenv(name, ".")
    found = installed.why_not(engine)
    assert found is None if reason is None else found.startswith(reason)


@pytest.mark.parametrize(
    ("script", "last"),
    [
        ("raise SystemExit('first\\nno such engine')", "no such engine"),
        ("pass", "no message"),
    ],
)
def test_a_runner_that_fails_or_writes_nothing_is_reported(monkeypatch, tmp_path, script, last):
    (tmp_path / "broken.py").write_text(script, encoding="utf-8")
    monkeypatch.setattr(installed, "RUNNERS", tmp_path)
    monkeypatch.setitem(installed.SCRIPTS, "hf", ("broken.py", "transformers"))
    with pytest.raises(RopeError, match=f"the last line of broken.py was: {last}"):
        installed.run("hf", [])


def test_an_engine_that_takes_too_long_is_named(monkeypatch, tmp_path):
    (tmp_path / "slow.py").write_text("import time; time.sleep(60)", encoding="utf-8")
    monkeypatch.setattr(installed, "RUNNERS", tmp_path)
    monkeypatch.setitem(installed.SCRIPTS, "slow", ("slow.py", "time"))
    with pytest.raises(
        RopeError, match=r"engine: must run to its end within 0\.2 seconds; got 'slow'"
    ):
        installed.run("slow", [], timeout=0.2)


@pytest.mark.parametrize("model_type", ["hunyuan_vl", "paddleocr_vl"])
def test_a_flat_config_with_a_vision_part_becomes_small(model_type):
    sizes = {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 18}
    vision = {"model_type": f"{model_type}_vision", "num_hidden_layers": 27}
    small = small_config(
        {
            "model_type": model_type,
            **sizes,
            "vocab_size": 103424,
            "torch_dtype": "bfloat16",
            "vision_config": vision,
        }
    )
    assert small == {
        "model_type": model_type,
        "hidden_size": 128,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": 128,
        "vision_config": {**vision, "num_hidden_layers": 2},
    }


def test_the_parts_of_a_config_become_small():
    text, rope = {"model_type": "qwen3_vl_text", "num_hidden_layers": 36}, {"rope_type": "default"}
    config = {"model_type": "qwen3_vl", "text_config": {**text, "rope_parameters": rope}}
    small = small_config(config | {"torch_dtype": "bfloat16"})
    assert small == {
        "model_type": "qwen3_vl",
        "text_config": {**text, "num_hidden_layers": 2, "rope_parameters": rope},
        "torch_dtype": "bfloat16",
    }
