"""A longer context for a GGUF file: the keys to change, and llama.cpp's flags for them."""

import itertools
import json
import math

import numpy as np
import pytest

import ropewalk as rw
from command_line import call
from gguf_samples import sizes, write
from ropewalk import RopeError
from ropewalk.interop.gguf.extend import extend_gguf

THETA, TRAINED, FACTOR, DIM = 1e5, 512, 4.0, 16


def original(path, architecture="llama", **keys):
    keys = {"rope.freq_base": THETA, **keys}
    return write(path / "a.gguf", sizes(architecture, **keys), {"unused": np.ones(4)})


def overridden(flags: list[str]) -> dict:
    """Keys and values of --override-kv, as llama.cpp's string_parse_kv_override reads them."""
    (text,) = (value for name, value in itertools.pairwise(flags) if "override" in name)
    parse = {"int": int, "float": float, "str": str}
    pairs = (each.partition("=") for each in text.split(","))
    typed = ((key, *value.partition(":")[::2]) for key, _, value in pairs)
    return {key: parse[kind](value) for key, kind, value in typed}


def plain(theta: float = THETA) -> np.ndarray:
    return theta ** (-np.arange(0, DIM, 2) / DIM)


def yarn() -> np.ndarray:
    """ggml's rope_yarn with beta_fast 32 and beta_slow 1."""
    corner = lambda turns: DIM * math.log(TRAINED / (turns * 2 * math.pi)) / (2 * math.log(THETA))
    first, last = max(0, math.floor(corner(32))), min(DIM - 1, math.ceil(corner(1)))
    share = 1 - np.clip((np.arange(DIM // 2) - first) / max(0.001, last - first), 0, 1)
    return plain() * share + plain() / FACTOR * (1 - share)


EXPECTED = {
    "yarn": (yarn(), 1 + 0.1 * math.log(FACTOR)),
    "linear": (plain() / FACTOR, 1.0),
    "ntk": (plain(THETA * FACTOR ** (DIM / (DIM - 2))), 1.0),
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_the_flags_and_the_keys_give_the_rope_for_the_longer_context(kind, tmp_path):
    path = original(tmp_path)
    found = extend_gguf(path, kind, factor=FACTOR)
    metadata = sizes(**{"rope.freq_base": THETA})
    assert found.flags[:2] == ["--ctx-size", "2048"]
    for keys in (found.metadata.keys, overridden(found.flags)):
        changed = write(tmp_path / "b.gguf", metadata | keys, {"unused": np.ones(4)})
        spec = rw.gguf.from_gguf(changed, precision="exact")
        radians, magnitude = EXPECTED[kind]
        np.testing.assert_allclose(spec.frequencies().radians, radians, rtol=1e-6)
        assert float(spec.frequencies().magnitude) == pytest.approx(magnitude)
    assert found.changes["llama.context_length"] == (512, 2048)
    assert overridden(found.flags).keys() == found.changes.keys()
    assert rw.gguf.from_gguf(path).theta == THETA  # the file is as it was


def test_keys_that_do_not_change_are_not_named(tmp_path):
    keys = {"attention.key_length": 16, "rope.dimension_count": 16, "rope.scaling.type": "none"}
    found = extend_gguf(original(tmp_path, **keys), "linear", factor=FACTOR)
    assert found.changes == {
        "llama.rope.scaling.type": ("none", "linear"),
        "llama.rope.scaling.factor": (None, 4.0),
        "llama.context_length": (512, 2048),
    }


@pytest.mark.parametrize("sections", [[4, 2, 2], [4, 2, 2, 0]])
def test_sections_are_not_changed_whether_a_zero_ends_them_or_not(sections, tmp_path):
    path = original(tmp_path, "qwen2vl", **{"rope.dimension_sections": sections})
    found = extend_gguf(path, "linear", factor=FACTOR)
    assert "qwen2vl.rope.dimension_sections" not in found.changes
    assert overridden(found.flags).keys() == found.changes.keys()


def test_a_scaling_that_llama_cpp_has_no_keys_for_is_a_tensor(tmp_path):
    options = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    found = extend_gguf(original(tmp_path), "llama3", factor=FACTOR, **options)
    assert list(found.metadata.tensors) == ["rope_freqs.weight"]
    assert found.flags == []
    assert "rope_freqs.weight: a tensor of 8 numbers" in str(found)


@pytest.mark.parametrize("original_length", [None, 256])
def test_the_trained_length_may_be_given(original_length, tmp_path):
    found = extend_gguf(original(tmp_path), "yarn", factor=FACTOR, original_length=original_length)
    trained = original_length or TRAINED
    assert found.metadata.keys["llama.context_length"] == 4 * trained
    assert found.metadata.keys["llama.rope.scaling.original_context_length"] == trained


def test_layers_of_gemma_3_with_a_window_stay_as_they_are(tmp_path):
    path = original(tmp_path, "gemma3", **{"attention.sliding_window": 64})
    found = extend_gguf(path, "linear", factor=8.0)
    metadata = sizes("gemma3", **{"rope.freq_base": THETA, "attention.sliding_window": 64})
    changed = write(tmp_path / "b.gguf", metadata | overridden(found.flags))
    specs = rw.gguf.from_gguf(changed, per_layer=True)
    assert specs["full_attention"].scaling == rw.frequencies.Linear(8.0)
    assert specs["sliding_attention"].scaling == rw.frequencies.Default()


def test_a_layer_type_that_llama_cpp_cannot_scale_alone_is_refused(tmp_path):
    """openai-moe.cpp scales both layer types."""
    path = original(tmp_path, "gpt-oss", **{"attention.sliding_window": 64})
    config = rw.gguf.hf_config(rw.gguf.GgufFile(path))
    assert set(rw.from_hf(config, per_layer=True)) == {"full_attention", "sliding_attention"}
    with pytest.raises(
        RopeError,
        match=r"kind: must leave sliding_attention layers .* computes for gpt-oss.*got 'linear'",
    ):
        extend_gguf(path, "linear", factor=8.0, layer_types=["full_attention"])


@pytest.mark.parametrize(
    ("kind", "architecture", "message"),
    [
        ("dynamic", "llama", "scaling: must have fixed frequencies"),
        ("llama3", "qwen2", "reads no rope_freqs"),
        ("linear", "chatglm", "general.architecture: must be one with a Hugging Face model_type"),
    ],
)
def test_extensions_that_cannot_be_computed_or_compared_are_refused(
    kind, architecture, message, tmp_path
):
    with pytest.raises(RopeError, match=message):
        extend_gguf(original(tmp_path, architecture), kind, factor=FACTOR)


def test_a_file_without_a_context_length_needs_original_length(tmp_path):
    metadata = sizes()
    del metadata["llama.context_length"]
    path = write(tmp_path / "a.gguf", metadata)
    with pytest.raises(RopeError, match=r"llama\.context_length: must be in the file"):
        extend_gguf(path, "linear", factor=FACTOR)
    found = extend_gguf(path, "linear", factor=FACTOR, original_length=100)
    assert found.flags[:2] == ["--ctx-size", "400"]


def test_the_command_prints_and_writes_the_keys(tmp_path, capsys):
    path, out = original(tmp_path), tmp_path / "keys.json"
    asked = ("extend", path, "yarn", "--factor", "4")
    code, text, _ = call(capsys, *asked, "--out", out)
    assert code == 0
    assert "llama.rope.scaling.type: None -> yarn" in text
    assert "start llama.cpp with: --ctx-size 2048 --override-kv llama.rope.scaling" in text
    printed, written = json.loads(call(capsys, *asked, "--json")[1]), json.loads(out.read_text())
    assert printed == {"kind": "yarn", **written}
    assert written["keys"]["llama.rope.scaling.factor"] == 4.0


def test_the_command_writes_no_gguf_file(tmp_path, capsys):
    target = tmp_path / "b.gguf"
    code, _, text = call(
        capsys, "extend", original(tmp_path), "yarn", "--factor", "4", "--out", target
    )
    assert code != 0
    assert "--out: must be a .json file: ropewalk changes no GGUF file" in text
    assert not target.exists()


@pytest.mark.parametrize(
    ("command", "says"), [("inspect", "full_attention"), ("audit", "All 5 engines agree.")]
)
def test_other_commands_read_a_gguf_file(command, says, tmp_path, capsys):
    """A theta other than 10,000 is no disagreement: mlx-lm reads it where it reads it in a config."""
    code, text, _ = call(capsys, command, original(tmp_path))
    assert code == 0
    assert says in text
