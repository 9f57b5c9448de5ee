"""Configs that the rows were not written for: every mistake is found by its name, the corrected
config computes what was meant, and right configs are left alone.
"""

from __future__ import annotations

import warnings

import pytest
from field_configs import BROKEN, CONFIGS, field_config

import ropewalk as rw

#: without a scaling's own length, and beyond what it was trained with
LENGTHS = (2000, 300_000)


def ropes(config):
    """The pairs of every layer type: widths, layout, axes, frequencies and softmax factor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        specs = rw.from_hf(config, per_layer=True, precision="exact")
    return {name: spec and _rope(spec) for name, spec in specs.items()}


def _rope(spec):
    radians = [spec.frequencies(length).radians for length in LENGTHS]
    flat = [
        x for many in radians for each in many for x in (each if type(each) is tuple else [each])
    ]
    magnitudes = [spec.magnitude(length) for length in LENGTHS]
    widths = (spec.head_dim, spec.rotary_dim, spec.layout, spec.axis_of_pair)
    return widths, pytest.approx([*flat, *magnitudes, spec.softmax_factor], rel=1e-9)


def numbers(rope):
    """A rope whose numbers are plain, to be compared with those of `ropes`."""
    return rope and (rope[0], rope[1].expected)


def assert_same(ours, theirs):
    if ours.keys() != theirs.keys():  # a rope of all layers in place of one for each type
        ours = {name: next(iter(ours.values())) for name in theirs} if len(ours) == 1 else ours
        theirs = (
            {name: next(iter(theirs.values())) for name in ours} if len(theirs) == 1 else theirs
        )
    assert {name: numbers(rope) for name, rope in ours.items()} == theirs


@pytest.mark.parametrize(
    "broken", BROKEN, ids=[f"{i}-{each['causes'][0]}" for i, each in enumerate(BROKEN)]
)
def test_a_broken_config_is_found_and_repaired(broken):
    found = rw.doctor(field_config(broken["config"], broken), **broken.get("options", {}))
    assert set(broken["causes"]) <= {each.id for each in found.findings}
    heavy = {each.id for each in found.findings if each.severity != "note"}
    assert heavy <= set(broken["causes"])
    if broken["right"] is None:
        assert found.corrected is None
        return
    corrected = found.corrected or field_config(broken["config"], broken)
    assert_same(ropes(corrected), ropes(field_config(broken["config"], broken["right"])))
    again = rw.doctor(corrected, **broken.get("options", {}))
    assert again.corrected is None, again.findings


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "unknown"])
def test_a_right_config_needs_no_change(name):
    found = rw.doctor(field_config(name))
    assert [each.id for each in found.findings if each.severity != "note"] == []
    assert found.corrected is None


def test_enough_configs_and_families():
    assert len(BROKEN) >= 300
    assert len(CONFIGS) >= 150
    types = {(each.get("text_config") or each)["model_type"] for each in CONFIGS.values()}
    assert len(types) >= 30
