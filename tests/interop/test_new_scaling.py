"""A new scaling is one class and one line in SCALINGS: configs, `extend` and the audit
follow from the class.
"""

from __future__ import annotations

import copy
import json
import warnings
from dataclasses import dataclass
from typing import ClassVar

import pytest
from config_samples import LLAMA, refused

from ropewalk import RopeError, RopeSpec
from ropewalk.config.hf import explain, from_hf, to_hf
from ropewalk.engines.audit import audit
from ropewalk.frequencies import SCALINGS, Scaling
from ropewalk.frequencies.scaling import TRAINED_LENGTH_KEY, setting
from ropewalk.interop.extend.keys import kinds
from ropewalk.interop.extend.model import extend


@dataclass(frozen=True)
class Squeezed(Scaling):
    """Every pair slows by factor^strength, times its own entry of `weights`."""

    factor: float = setting(1.0, low=1, high=100, required=True)
    strength: float = setting(0.5, low=0, high=1, key="squeeze_strength")
    weights: tuple[float, ...] = setting((1.0,) * 8, above=0)
    boost: float | None = setting(None, above=0)
    original_length: int = setting(512, low=1, key=TRAINED_LENGTH_KEY, required=True)
    name: ClassVar[str] = "squeezed"
    in_configs: ClassVar[bool] = True
    in_extend: ClassVar[bool] = True

    def _radians(self, dim, theta, length, ops):
        plain = SCALINGS["default"]()._radians(dim, theta, length, ops)
        return plain / self.factor**self.strength / ops.vector(self.weights)

    def _magnitude(self, length, ops):
        return self.boost or 1.0


ROPE = {"rope_type": "squeezed", "factor": 4, "squeeze_strength": 0.25, TRAINED_LENGTH_KEY: 256}
MEANT = Squeezed(4.0, 0.25, original_length=256)


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(SCALINGS, "squeezed", Squeezed)


def test_the_fields_of_a_new_scaling_are_checked():
    assert Squeezed(2) == Squeezed(2.0)
    for bad in (
        {"factor": 0.5},
        {"factor": 101},
        {"strength": -1},
        {"weights": (0.0,)},
        {"boost": 0},
        {"original_length": 0},
    ):
        with pytest.raises(RopeError) as error:
            Squeezed(**bad)
        assert error.value.field.split("[")[0] == next(iter(bad))


@pytest.mark.parametrize("where", ["rope_scaling", "rope_parameters"])
def test_a_config_can_name_a_new_scaling(where):
    config = {**LLAMA, where: ROPE}
    assert from_hf(config).scaling == MEANT
    assert explain(config).as_dict()["full_attention"]["strength"] == {
        "value": 0.25,
        "source": f"{where}.squeeze_strength",
    }
    # a key that is not given has the default of the class, and the trained length may be beside the
    # rope
    short = {key: ROPE[key] for key in ("rope_type", "factor")}
    assert from_hf({**LLAMA, where: short, TRAINED_LENGTH_KEY: 99}).scaling == Squeezed(
        4.0, original_length=99
    )


def test_a_wrong_value_is_refused_by_its_config_key():
    refused(
        {**LLAMA, "rope_scaling": {key: value for key, value in ROPE.items() if key != "factor"}},
        "factor",
    )
    error = refused({**LLAMA, "rope_scaling": {**ROPE, "squeeze_strength": 2}}, "squeeze_strength")
    assert "rope_scaling.squeeze_strength" in str(error)
    refused({**LLAMA, "rope_scaling": {**ROPE, "weights": [1.0, -1.0]}}, "weights[1]")
    with pytest.warns(UserWarning, match="beta_fast: not read by rope_type 'squeezed'"):
        from_hf({**LLAMA, "rope_scaling": {**ROPE, "beta_fast": 3}})


def test_the_keys_of_a_new_scaling_are_no_layer_types():
    """An object under another name is the rope of a layer type; under its own key it is a wrong
    value.
    """
    refused({**LLAMA, "rope_parameters": {**ROPE, "squeeze_strength": {}}}, "squeeze_strength")


@pytest.mark.parametrize("version", [4, 5])
def test_a_new_scaling_is_written_and_read_back(version):
    spec = RopeSpec(16, scaling=Squeezed(4.0, 0.25, tuple(map(float, range(1, 9))), 1.5, 256))
    written = json.loads(json.dumps(to_hf(spec, version=version)))
    assert (
        written["rope_parameters" if version == 5 else "rope_scaling"]["squeeze_strength"] == 0.25
    )
    assert written["max_position_embeddings"] == 1024
    assert from_hf(written, precision="exact") == spec


def test_extend_offers_a_new_scaling_and_audit_knows_it_in_no_engine():
    assert "squeezed" in kinds()
    config = {**LLAMA, "rope_theta": 1e4}
    before = copy.deepcopy(config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = extend(config, "squeezed", factor=4.0, strength=0.25)
    assert config["rope_scaling"] == {**ROPE, TRAINED_LENGTH_KEY: 4096}
    assert config["max_position_embeddings"] == 16_384
    assert report.specs["full_attention"].scaling == Squeezed(4.0, 0.25, original_length=4096)
    # no engine has it
    assert {finding.known for finding in audit(config).findings} == {"not known"}
    report.undo()
    assert config == before
    with pytest.raises(RopeError) as error:
        extend(config, "squeezed", factor=4.0, beta_fast=1.0)
    assert error.value.field == "beta_fast"
