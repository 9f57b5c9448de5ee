"""A family is converted so that code with the other pair layout computes the same, or it is refused
by name.
"""

from __future__ import annotations

import random

import pytest
import torch
from convert_families import (
    CONVERTED,
    MORE,
    REFUSED,
    outputs,
    rotated_specs,
    run_options,
    taking_the_other_layout,
    tiny,
)
from installed import needs_v5

from ropewalk import RopeError
from ropewalk.interop.checkpoint import convert_checkpoint, which_layout

pytestmark = needs_v5("has other names for the sizes of some families")


def assert_converted_rightly(model_type, keys, folder):
    model = tiny(model_type, keys)
    specs = rotated_specs(model.config)
    model.save_pretrained(folder / "a", max_shard_size="40KB")
    source = specs[0].layout
    target = "half" if source == "interleaved" else "interleaved"
    convert_checkpoint(folder / "a", folder / "b", source, target)
    # both are read from files: transformers does not restore every model that it saves
    model, other = (
        type(model).from_pretrained(folder / each, **run_options(model.config)).eval()
        for each in "ab"
    )
    wanted = outputs(model)
    assert (outputs(other) - wanted).abs().max() > 1e-3  # its own code pairs otherwise
    with taking_the_other_layout(other, specs, target):
        torch.testing.assert_close(outputs(other), wanted, atol=2e-4, rtol=1e-4)
    found = which_layout(folder / "b")
    assert (found.layout, found.confidence) == (target, "likely")


@pytest.mark.parametrize("family", CONVERTED)
def test_code_with_the_other_layout_computes_the_same_from_converted_weights(family, tmp_path):
    assert_converted_rightly(*CONVERTED[family], tmp_path)


@pytest.mark.slow
def test_many_families_compute_the_same_from_converted_weights(tmp_path, full):
    wrong = {}
    for model_type in MORE if full else random.Random(2).sample(sorted(MORE), 5):
        try:
            assert_converted_rightly(model_type, MORE[model_type], tmp_path / model_type)
        except pytest.skip.Exception:
            continue
        except Exception as error:
            wrong[model_type] = str(error)
    assert wrong == {}


@pytest.mark.parametrize("family", REFUSED)
def test_what_would_be_converted_in_part_is_refused_by_name(family, tmp_path):
    model_type, keys, says = REFUSED[family]
    model = tiny(model_type, keys)
    model.save_pretrained(tmp_path / "a")
    source = rotated_specs(model.config)[0].layout
    target = "half" if source == "interleaved" else "interleaved"
    with pytest.raises(RopeError, match=says):
        convert_checkpoint(tmp_path / "a", tmp_path / "b", source, target)
    assert not (tmp_path / "b").exists()
