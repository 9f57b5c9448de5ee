"""Configs by authors who did not know the rows: the cause is found by its row, what is corrected is
the rope that its author calculated, and right configs are left alone.
"""

from __future__ import annotations

import copy
import json
import warnings

import pytest
from examined_configs import BROKEN, JUDGED, RIGHT, meant

import ropewalk as rw


def specs_of(config):
    """The spec of each layer type."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return rw.from_hf(config, per_layer=True, precision="exact")


def lengths_of(rope, length):
    """The lengths at which a rope is compared: two where it depends on the length."""
    if rope["kind"] not in ("dynamic", "longrope"):
        return [length]
    return [rope["orig"], 2 * (rope.get("maxp") or rope["orig"])]


def assert_meant(config, intent, length):
    """Every layer that rotates has the rope that was meant; `intent` is one rope, or one, or None,
    for each layer type.
    """
    for name, spec in specs_of(config).items():
        rope = intent if "kind" in intent else intent[name]
        if spec is None:
            assert rope is None or "kind" in intent
            continue
        assert spec.rotated_dims == rope["d"]
        for tokens in lengths_of(rope, length):
            frequencies, magnitude = meant(rope, tokens)
            found = spec.frequencies(tokens)
            ours = [max(each) if isinstance(each, tuple) else each for each in found.radians]
            assert ours == pytest.approx(frequencies, rel=2e-5)
            assert float(found.magnitude) == pytest.approx(magnitude, rel=1e-4)
        if rope.get("section"):
            counts = [list(spec.axis_of_pair).count(axis) for axis in range(spec.num_axes)]
            assert counts == rope["section"]


@pytest.mark.parametrize("broken", BROKEN, ids=[each["name"] for each in BROKEN])
def test_an_examined_config_is_found_and_corrected_as_meant(broken, tmp_path):
    given = copy.deepcopy(broken.get("config"))
    if given is None:
        given = tmp_path / "config.json"
        given.write_text(broken["text"], encoding="utf-8")
    options = {key: broken.get(key) for key in ("engine", "length", "draft")}
    found = rw.doctor(given, **options)
    assert [each.id for each in found.findings if each.severity != "note"] == broken["causes"]
    assert broken["fixed"] == (found.corrected is not None or found.draft is not None)
    left = broken.get("left", [])
    assert not any(each.repaired for each in found.findings if each.id in left)
    if found.corrected is None or left:
        return
    assert_meant(found.corrected, broken["intent"], broken.get("length"))
    again = rw.doctor(json.loads(json.dumps(found.corrected)), **options)
    assert all(each.severity == "note" for each in again.findings), again.findings


@pytest.mark.parametrize("judged", JUDGED, ids=[each["name"] for each in JUDGED])
def test_a_judged_config_is_found_and_corrected_as_its_author_says(judged):
    found = rw.doctor(copy.deepcopy(judged["config"]), length=judged.get("length"))
    heavy = [each.id for each in found.findings if each.severity != "note"]
    assert heavy == judged["causes"]
    # a value that the config gives itself stays, though its author would change it
    if judged["intended"] is None or heavy == judged.get("left"):
        assert found.corrected is None
        return
    change, given = judged["intended"], judged["config"]
    rest = {key: value for key, value in given.items() if key not in change["drop"]}
    assert found.corrected is not None
    assert specs_of(found.corrected) == specs_of({**rest, **change["set"]})
    again = rw.doctor(json.loads(json.dumps(found.corrected)), length=judged.get("length"))
    heavy = {each.id for each in again.findings if each.severity != "note"}
    assert heavy == set(judged.get("left", []))


@pytest.mark.parametrize("name", RIGHT)
def test_an_examined_right_config_needs_no_change(name):
    found = rw.doctor(RIGHT[name])
    assert [each.id for each in found.findings if each.severity != "note"] == []
    assert found.corrected is None
