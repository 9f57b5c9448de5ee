"""Layers of a GGUF file that rotate in another way than the others, or not at all, as the code of
llama.cpp has it (src/models/*.cpp).
"""

import math

import numpy as np
import pytest

import ropewalk as rw
from gguf_samples import sizes, write
from ropewalk import RopeError
from ropewalk.engines import REFERENCE
from ropewalk.frequencies import Default, Linear, Yarn
from ropewalk.gguf import GgufFile, hf_config, read_ropes

PATTERN = "attention.rope_pattern"
WINDOW = {"attention.sliding_window": 64}
SCALED = {
    "rope.freq_base": 5e5,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 8.0,
    "rope.scaling.original_context_length": 64,
}
YARN = Yarn(64, factor=8.0)


def layers(path, architecture, **keys):
    return rw.gguf.from_gguf(write(path / "a.gguf", sizes(architecture, **keys)), per_layer=True)


def plain(theta: float, dim: int = 16) -> np.ndarray:
    return theta ** (-np.arange(0, dim, 2) / dim)


@pytest.mark.parametrize("architecture", ["olmo2", "mellum", "laguna"])
def test_sliding_layers_of_these_rotate_without_yarn(architecture, tmp_path):
    """olmo2.cpp, mellum.cpp, laguna.cpp: freq_scale 1, ext_factor 0, attn_factor 1."""
    more = {**SCALED, "rope.scaling.attn_factor": 1.25}
    found = layers(tmp_path, architecture, **WINDOW, **more)
    full, sliding = found["full_attention"], found["sliding_attention"]
    assert isinstance(full.scaling, Yarn)
    assert float(full.frequencies().magnitude) == pytest.approx(1.25 * (1 + 0.1 * math.log(8)))
    assert (sliding.theta, sliding.scaling) == (5e5, Default())
    np.testing.assert_allclose(sliding.frequencies().radians, plain(5e5), rtol=1e-6)
    # without a window all layers are full ones
    assert layers(tmp_path, architecture, **more) == {"full_attention": full}


@pytest.mark.parametrize(
    "architecture",
    ["gemma3", "gemma3n", "gemma4", "gemma-embedding", "mimo2", "modern-bert", "plamo3", "step35"],
)
def test_sliding_layers_of_these_have_a_theta_of_their_own(architecture, tmp_path):
    """In llama.cpp rope_freq_base_train_swa is 10,000 and rope_freq_scale_train_swa 1 if no key
    changes them; rope.scaling.attn_factor gives the magnitude.
    """
    sliding = layers(tmp_path, architecture, **WINDOW, **SCALED)["sliding_attention"]
    assert (sliding.theta, sliding.scaling) == (1e4, Default())
    more = {"rope.freq_base_swa": 2e4, "rope.scaling.attn_factor": 1.25}
    sliding = layers(tmp_path, architecture, **WINDOW, **SCALED, **more)["sliding_attention"]
    found = sliding.with_(precision="exact").frequencies()
    np.testing.assert_allclose(found.radians, plain(2e4), rtol=1e-9)
    assert float(found.magnitude) == pytest.approx(1.25)


@pytest.mark.parametrize("architecture", ["gemma2", "gpt-oss", "smallthinker", "afmoe", "laguna"])
def test_sliding_layers_of_these_may_have_a_theta_by_their_key(architecture, tmp_path):
    found = layers(tmp_path, architecture, **WINDOW, **SCALED)["sliding_attention"]
    assert (found.theta, found.scaling) == (5e5, Default() if architecture == "laguna" else YARN)
    own = layers(tmp_path, architecture, **WINDOW, **SCALED, **{"rope.freq_base_swa": 2e4})
    assert own["sliding_attention"].theta == 2e4


@pytest.mark.parametrize("architecture", ["cohere2", "exaone-moe", "olmo2", "mellum"])
def test_a_theta_of_sliding_layers_that_is_not_read_gives_a_warning(architecture, tmp_path):
    """Their graphs use freq_base in every layer."""
    with pytest.warns(UserWarning, match="rope.freq_base_swa: llama.cpp does not read it"):
        found = layers(tmp_path, architecture, **WINDOW, **SCALED, **{"rope.freq_base_swa": 2e4})
    assert found["sliding_attention"].theta == 5e5


@pytest.mark.parametrize(
    "architecture", ["cohere2", "cohere2moe", "exaone-moe", "afmoe", "smallthinker"]
)
def test_full_layers_of_these_do_not_rotate(architecture, tmp_path):
    found = layers(tmp_path, architecture, **WINDOW, **SCALED)
    assert found["full_attention"] is None
    assert found["sliding_attention"].scaling == YARN


@pytest.mark.parametrize("window", [{}, WINDOW])
def test_exaone_4_has_sliding_layers_in_its_model_of_64_layers_alone(window, tmp_path):
    """exaone4.cpp asks for the number of layers, not for the key."""
    small = layers(tmp_path, "exaone4", **window, block_count=30)
    assert list(small) == ["full_attention"]
    assert small["full_attention"] is not None
    large = layers(tmp_path, "exaone4", **window, block_count=64)
    assert (large["full_attention"], large["sliding_attention"]) == (None, small["full_attention"])


def test_full_layers_of_step_3_5_rotate_half_of_the_dimensions(tmp_path):
    """step35.cpp halves n_rot_full after it is read."""
    found = layers(tmp_path, "step35", **WINDOW, **{"rope.dimension_count": 16})
    assert found["full_attention"].rotated_dims == 8
    assert found["sliding_attention"].rotated_dims == 16


@pytest.mark.parametrize("architecture", ["smollm3", "llama4", "afmoe"])
def test_every_fourth_layer_of_these_does_not_rotate(architecture, tmp_path):
    """(il + 1) % n_no_rope_layer_step != 0, without a key of the file."""
    few = layers(tmp_path, architecture, block_count=3)
    assert list(few) == ["full_attention"]
    found = layers(tmp_path, architecture, block_count=8)
    assert found == {**few, "no_rope": None}
    file = GgufFile(write(tmp_path / "b.gguf", sizes(architecture, block_count=8)))
    assert any("[3, 7]" in entry.source for entry in read_ropes(file)[1].entries)


def test_llama_4_without_chunks_rotates_every_layer(tmp_path):
    found = layers(tmp_path, "llama4", block_count=8, **{"attention.sliding_window": 0})
    assert list(found) == ["full_attention"]


def test_the_config_of_smollm_3_says_which_layers_rotate(tmp_path):
    path = write(tmp_path / "m.gguf", sizes("smollm3", block_count=6))
    config = hf_config(GgufFile(path))
    assert config["no_rope_layers"] == [1, 1, 1, 0, 1, 1]
    assert rw.from_hf(config, per_layer=True)["no_rope"] is None
    theirs = pytest.importorskip("transformers").SmolLM3Config(num_hidden_layers=6)
    assert theirs.no_rope_layers == config["no_rope_layers"]


@pytest.mark.parametrize("architecture", ["granite", "granitemoe", "granitehybrid"])
def test_granite_does_not_rotate_if_its_switch_is_off(architecture, tmp_path):
    """granite.cpp: "Granite uses rope_finetuned as a switch for rope, so default to true"."""
    on = layers(tmp_path, architecture)
    assert on == layers(tmp_path, architecture, **{"rope.scaling.finetuned": True})
    assert on["full_attention"] is not None
    off = layers(tmp_path, architecture, **{"rope.scaling.finetuned": False})
    assert off == {"full_attention": None}
    llama = layers(tmp_path, "llama", **{"rope.scaling.finetuned": False})
    assert llama["full_attention"] is not None


def test_the_config_of_olmo_3_has_yarn_in_full_layers_alone(tmp_path):
    path = write(tmp_path / "a.gguf", sizes("olmo2", **WINDOW, **SCALED))
    config = hf_config(GgufFile(path))
    assert config["model_type"] == "olmo3"
    specs = rw.from_hf(config, per_layer=True)
    assert {name: (spec.theta, spec.scaling) for name, spec in specs.items()} == {
        "full_attention": (5e5, YARN),
        "sliding_attention": (5e5, Default()),
    }
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoConfig.for_model(**config).rope_parameters
    assert theirs["sliding_attention"]["rope_type"] == "default"
    assert theirs["full_attention"]["factor"] == 8.0
    found = [each for each in rw.audit(path).findings if each.engine == REFERENCE]
    assert {each.layer_type: each.magnitude for each in found} == {
        "full_attention": pytest.approx(1 + 0.1 * math.log(8)),
        "sliding_attention": 1.0,
    }


def test_layers_that_a_pattern_names_as_unrotated_have_no_spec(tmp_path):
    pattern = [True, True, True, False, True, True]
    path = write(tmp_path / "m.gguf", sizes("granite_swa", **{PATTERN: pattern, "block_count": 6}))
    found = rw.gguf.from_gguf(write(tmp_path / "plain.gguf", sizes("granite_swa")))
    assert rw.gguf.from_gguf(path, per_layer=True) == {"full_attention": found, "no_rope": None}
    assert rw.gguf.from_gguf(path) == found
    assert any(
        "false for layers [3]" in entry.source for entry in read_ropes(GgufFile(path))[1].entries
    )


@pytest.mark.parametrize("pattern", [[True, True], [False, False]])
def test_a_pattern_of_equal_layers_gives_one_layer_type(pattern, tmp_path):
    path = write(tmp_path / "m.gguf", sizes("granite_swa", **{PATTERN: pattern}))
    found = rw.gguf.from_gguf(path, per_layer=True)
    assert list(found) == ["full_attention"]
    assert (found["full_attention"] is not None) == pattern[0]
    if not pattern[0]:
        with pytest.raises(RopeError, match="must be a file with layers that rotate"):
            rw.gguf.from_gguf(path)


def test_a_file_whose_layers_do_not_rotate_has_no_config(tmp_path):
    path = write(tmp_path / "m.gguf", sizes("granite", **{"rope.scaling.finetuned": False}))
    with pytest.raises(RopeError, match="must have layers that rotate"):
        hf_config(GgufFile(path))


@pytest.mark.parametrize("pattern", [[True], [1, 0]])
def test_wrong_patterns_are_refused(pattern, tmp_path):
    path = write(tmp_path / "m.gguf", sizes("granite_swa", **{PATTERN: pattern}))
    with pytest.raises(RopeError, match="true or false for each of the 2 layers"):
        rw.gguf.from_gguf(path)


def test_a_pattern_that_llama_cpp_does_not_read_gives_a_warning(tmp_path):
    path = write(tmp_path / "m.gguf", sizes("llama", **{PATTERN: [True, False]}))
    with pytest.warns(UserWarning, match="rope_pattern: llama.cpp does not read it for llama"):
        assert list(rw.gguf.from_gguf(path, per_layer=True)) == ["full_attention"]


@pytest.mark.parametrize("count", [2**31, 2**32 - 1])
def test_a_huge_number_of_layers_is_refused_before_any_list_is_made(count, tmp_path):
    for architecture, more in (("smollm3", {}), ("granite", {"rope.scaling.finetuned": False})):
        path = write(tmp_path / "m.gguf", sizes(architecture, block_count=count, **more))
        with pytest.raises(RopeError, match=r"block_count: must be an integer from . to 65536"):
            rw.gguf.from_gguf(path, per_layer=True)


def test_linear_scaling_is_that_of_the_full_layers_where_llama_cpp_says_so(tmp_path):
    found = layers(tmp_path, "gemma2", **WINDOW, **{"rope.scaling.factor": 4.0})
    assert found["sliding_attention"].scaling == found["full_attention"].scaling == Linear(4.0)
