"""The key of a GGUF file that says which layers rotate."""

import pytest

import ropewalk as rw
from gguf_samples import sizes, write
from ropewalk import RopeError
from ropewalk.gguf import GgufFile, hf_config, read_ropes

KEY = "attention.rope_pattern"


def test_layers_of_a_pattern_that_do_not_rotate(tmp_path):
    pattern = [True, True, True, False, True, True]
    path = write(tmp_path / "m.gguf", sizes("smollm3", **{KEY: pattern, "block_count": 6}))
    plain = rw.gguf.from_gguf(write(tmp_path / "plain.gguf", sizes("smollm3")))
    assert rw.gguf.from_gguf(path, per_layer=True) == {"full_attention": plain, "no_rope": None}
    assert rw.gguf.from_gguf(path) == plain
    assert any(
        "false for layers [3]" in entry.source for entry in read_ropes(GgufFile(path))[1].entries
    )
    config = hf_config(GgufFile(path))
    assert config["no_rope_layers"] == [1, 1, 1, 0, 1, 1]
    assert rw.from_hf(config, per_layer=True)["no_rope"] is None


@pytest.mark.parametrize("pattern", [[True, True], [False, False]])
def test_a_pattern_of_equal_layers(pattern, tmp_path):
    path = write(tmp_path / "m.gguf", sizes("smollm3", **{KEY: pattern}))
    found = rw.gguf.from_gguf(path, per_layer=True)
    assert list(found) == ["full_attention"]
    assert (found["full_attention"] is not None) == pattern[0]
    if not pattern[0]:
        with pytest.raises(RopeError, match="no layer that rotates"):
            rw.gguf.from_gguf(path)
        with pytest.raises(RopeError, match="must have layers that rotate"):
            hf_config(GgufFile(path))


@pytest.mark.parametrize("pattern", [[True], [1, 0]])
def test_wrong_patterns_are_refused(pattern, tmp_path):
    path = write(tmp_path / "m.gguf", sizes("smollm3", **{KEY: pattern}))
    with pytest.raises(RopeError, match="true or false for each of the 2 layers"):
        rw.gguf.from_gguf(path)
