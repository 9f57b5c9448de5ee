"""Hostile config files: each is refused by a RopeError, within ten seconds of CPU and 256 MiB."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path

import pytest

from ropewalk import RopeError
from ropewalk.config.hf import from_hf

GOOD = '"head_dim": 16, "rope_theta": 10000.0'

HOSTILE = {
    "nan": ('{"head_dim": 16, "rope_theta": NaN}', "rope_theta"),
    "infinity": ('{"head_dim": 16, "rope_theta": Infinity}', "rope_theta"),
    "minus infinity in a list": (
        ('{"head_dim": 16, "rope_scaling": {"short_factor": [1, [-Infinity]]}}'),
        "short_factor",
    ),
    "overflowing float": ('{"head_dim": 16, "rope_theta": 1e999}', "rope_theta"),
    "overflowing float in a key that no rope has": (f'{{{GOOD}, "note": [1, -1e999]}}', "note"),
    "duplicate keys": ('{"head_dim": 16, "rope_theta": 1.0, "rope_theta": 2.0}', "rope_theta"),
    "duplicate keys, one value": (f'{{{GOOD}, "head_dim": 16}}', "head_dim"),
    "duplicate keys, deep": (
        '{"head_dim": 16, "rope_scaling": {"factor": 1, "factor": 2}}',
        "factor",
    ),
    "deep lists": ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "config"),
    "deep objects": ('{"a":' * 65 + "1" + "}" * 65, "config"),
    "too large": ('{"a": "' + "x" * (1 << 20) + '"}', "config"),
    "long integer": ('{"head_dim": ' + "9" * 500_000 + "}", "config"),
    "huge head": ('{"head_dim": 1099511627776, "rope_theta": 10000.0}', "head_dim"),
    "huge layer count": (
        f'{{{GOOD}, "model_type": "smollm3", "num_hidden_layers": 1000000000000}}',
        "num_hidden_layers",
    ),
    "huge section": (
        f'{{{GOOD}, "rope_scaling": {{"mrope_section": [1099511627776, 1, 1]}}}}',
        "mrope_section[0]",
    ),
    "huge length": (
        (
            f'{{{GOOD}, "rope_scaling": {{"rope_type": "dynamic", "factor": 2.0}}, '
            f'"max_position_embeddings": {10**30}}}'
        ),
        "max_position_embeddings",
    ),
    "not an object": ("[1, 2]", "config"),
    "empty": ("", "config"),
    "cut off": ('{"head_dim": 16,', "config"),
    "code": ("__import__('os')", "config"),
    "bad utf-8": (b'{"a": "\xff"}', "config"),
    "null bytes": (b"\x00" * 64, "config"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_quickly_and_by_name(name, tmp_path):
    content, field = HOSTILE[name]
    path = tmp_path / "config.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(RopeError) as error:
        from_hf(path)
    took, (_, peak) = time.process_time() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert error.value.field == field
    assert took < 10
    assert peak < 256 << 20
    assert len(str(error.value)) < 500


def test_brackets_inside_a_string_do_not_count_as_nesting(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"head_dim": 16, "rope_theta": 1e4, "note": '[{"\\' * 100}))
    assert from_hf(path).head_dim == 16


def test_depth_sixty_four_is_the_last_accepted(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(f'{{{GOOD}, "a": ' + "[" * 63 + "]" * 63 + "}")
    assert from_hf(path).head_dim == 16


def test_a_mebibyte_is_the_largest_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(f"{{{GOOD}}}".ljust(1 << 20))
    assert from_hf(path).head_dim == 16
    assert from_hf(tmp_path).head_dim == 16  # the folder of the file
    path.write_text(f"{{{GOOD}}}".ljust((1 << 20) + 1))
    with pytest.raises(RopeError, match="at most 1048576 bytes"):
        from_hf(path)


@pytest.mark.parametrize("sign", ["", "-"])
def test_forty_digits_are_the_longest_integer_with_either_sign(tmp_path, sign):
    path = tmp_path / "config.json"
    path.write_text(f'{{{GOOD}, "a": {sign}{"9" * 40}}}')
    assert from_hf(path).head_dim == 16
    path.write_text(f'{{{GOOD}, "a": {sign}{"9" * 41}}}')
    with pytest.raises(RopeError, match="at most 40 digits; got '41 digits'"):
        from_hf(path)


@pytest.mark.parametrize("path", ["missing.json", "folder"])
def test_a_path_without_a_config_is_refused(path, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(RopeError, match=r"config\.json"):
        from_hf(tmp_path / path)


def test_a_name_that_is_too_long_for_a_path_is_refused():
    with pytest.raises(RopeError, match="config: must be a readable file"):
        from_hf("x" * 5000)


def test_a_device_is_not_a_config():
    with pytest.raises(RopeError, match=r"config\.json"):
        from_hf(Path("/dev/zero"))


def test_many_objects_side_by_side_do_not_count_as_nesting(tmp_path):
    parts = ", ".join(f'"part {i}": {{"list": [1]}}' for i in range(200))
    path = tmp_path / "config.json"
    path.write_text(f'{{{GOOD}, "model_type": "llama", {parts}}}')
    assert from_hf(path).head_dim == 16


def test_what_is_no_config_is_refused():
    for wrong in (5, None, ["config.json"], object()):
        with pytest.raises(RopeError, match="must be a dict, a transformers config, or the path"):
            from_hf(wrong)


def test_a_text_part_without_a_type_has_that_of_the_model():
    """A text part without a model_type has the default theta of the model's family; with a model_type
    it has that of its own family.
    """
    assert from_hf({"model_type": "qwen3_vl", "text_config": {"head_dim": 128}}).theta == 5e5
    assert (
        from_hf(
            {"model_type": "qwen3_vl", "text_config": {"head_dim": 128, "model_type": "llama"}}
        ).theta
        == 1e4
    )


def test_a_dict_that_is_a_part_of_itself_is_refused():
    config: dict = {"model_type": "llama", "head_dim": 16}
    config["text_config"] = config
    with pytest.raises(RopeError, match="text_config: must be nested at most 64 deep"):
        from_hf(config)
