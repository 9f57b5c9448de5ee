"""The page's values: a link restores them, configs fill them, and the program they print makes the
same specs.
"""

import json
import math
from dataclasses import dataclass, fields
from typing import ClassVar
from urllib.parse import parse_qsl, urlencode

import numpy as np
import pytest

from ropewalk import RopeError, RopeSpec
from ropewalk.axes import chunked
from ropewalk.config.examples import EXAMPLES
from ropewalk.config.hf import from_hf
from ropewalk.frequencies import (
    SCALINGS,
    Clipped,
    Dynamic,
    Learnable,
    Linear,
    LongRope,
    Scaling,
    Yarn,
)
from ropewalk.tensor_frequencies import ladder
from ropewalk_lab import plots
from ropewalk_lab.explorer import controls
from ropewalk_lab.explorer.program import program
from ropewalk_lab.explorer.state import layers_of, limited, spec_of, stretched, values_of
from tensor_forms import tensors

LAYERS = [
    (name, layer) for name, config in EXAMPLES.items() for layer in from_hf(config, per_layer=True)
]
EVERY_SCALING = list(SCALINGS)


def through_a_link(values):
    return controls.from_link(
        dict(parse_qsl(urlencode(controls.to_link(values)), keep_blank_values=True))
    )


def changed(name: str, control: controls.Control):
    """Another value than the default that every scaling accepts beside the others' defaults."""
    if control.kind in ("choice", "scaling"):
        return control.choices[-1]
    if control.kind == "flag":
        return not control.default
    if control.kind == "numbers":
        return tuple(value * 1.5 for value in control.default)
    if name.endswith(("fraction", "weight", "share")):
        return 0.5
    return (
        1.25
        if control.kind == "optional number"
        else control.default * 2 + (control.kind == "integer")
    )


@pytest.mark.parametrize(("name", "layer"), LAYERS)
def test_a_preset_is_the_spec_of_its_config_and_so_is_its_link(name, layer):
    values = limited(controls.defaults() | layers_of(EXAMPLES[name])[layer])
    wanted = from_hf(EXAMPLES[name], per_layer=True)[layer]
    assert spec_of(values) == wanted
    assert spec_of(through_a_link(values)) == wanted


def test_the_start_has_an_empty_link():
    assert controls.to_link(controls.defaults()) == {}
    assert controls.from_link({}) == controls.defaults()


@pytest.mark.parametrize("name", EVERY_SCALING)
def test_every_field_of_every_scaling_is_set_and_restored(name):
    values = controls.defaults() | {"a.scaling": name, "a.head_dim": 10}
    for field, control in controls.scaling_controls(SCALINGS[name]).items():
        values[f"a.{name}.{field}"] = changed(field, control)
    spec = spec_of(values)
    assert spec_of(through_a_link(values)) == spec
    for field in fields(spec.scaling):
        said, found = values[f"a.{name}.{field.name}"], getattr(spec.scaling, field.name)
        if isinstance(found, Scaling):
            assert found.name == said
        elif controls.scaling_controls(SCALINGS[name])[field.name].per_pair:
            assert found == said * 5
        else:
            assert found == said


def test_a_new_scaling_brings_its_controls(monkeypatch):
    monkeypatch.setitem(SCALINGS, "slower", Slower)
    values = controls.from_link(
        {"a.scaling": "slower", "a.slower.by": "2.5", "a.slower.softly": "1"}
    )
    assert spec_of(values).scaling == Slower(by=2.5, softly=True)
    assert tensors(spec_of(values)).radians[0] == pytest.approx(0.4)


@dataclass(frozen=True)
class Slower(Scaling):
    """Every pair slows."""

    by: float = 1.0
    softly: bool = False
    unseen: dict | None = None
    name: ClassVar[str] = "slower"

    def _radians(self, dim, theta, length, ops):
        return SCALINGS["default"]()._radians(dim, theta, length, ops) / self.by


@pytest.mark.parametrize(
    "spec",
    [
        RopeSpec(
            12,
            500.0,
            Yarn(factor=3.0, attention_factor=1.5),
            layout="interleaved",
            layout_out="half",
            rotary_dim=10,
        ),
        RopeSpec(14, rotary_start=4, magnitude_on="q", precision="hf", extra_softmax_factor=1.7),
        RopeSpec(14, axes=chunked([3, 2, 2])),
        RopeSpec(64, scaling=Clipped(inner=Yarn(), pairs=7)),
        RopeSpec(
            10,
            scaling=LongRope((1.0, 1.1, 1.2, 1.3, 1.4), (1.0, 2.0, 3.5, 4.0, 5.0), 64, factor=8.0),
        ),
    ],
)
def test_values_and_spec_are_two_forms_of_one_thing(spec):
    for side in controls.SIDES:
        values = controls.defaults() | {"compare": True} | values_of(spec, side)
        assert spec_of(through_a_link(values), side) == spec


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.head_dim", "12.5"),
        ("a.head_dim", "2048"),
        ("a.head_dim", "9" * 5000),
        ("a.theta", "nan"),
        ("a.theta", "1e999"),
        ("a.scaling", "Yarn"),
        ("a.yarn.truncate", "yes"),
        ("a.yarn.mscale", "much"),
        ("a.longrope.long_factor", "1,2,x"),
        ("language", "fr"),
        ("served", "-1"),
        ("a.longrope.long_factor", "1," * 70_000),
    ],
)
def test_a_bad_link_is_refused_by_the_name_of_what_is_bad(name, text):
    with pytest.raises(RopeError) as error:
        controls.from_link({name: text})
    assert error.value.field == name


def test_what_a_link_may_not_mean_is_refused_by_the_spec():
    for bad in (
        {"a.theta": "-1"},
        {"a.scaling": "yarn", "a.yarn.beta_fast": "0.5"},
        {"a.head_dim": "7"},
    ):
        with pytest.raises(RopeError):
            spec_of(controls.from_link(bad))


def test_unknown_names_in_a_link_are_let_be():
    assert (
        controls.from_link({"embed": "true", "a.yarn": "1", "c.theta": "3"}) == controls.defaults()
    )


def test_a_link_says_only_what_is_in_use():
    values = controls.defaults() | {"a.linear.factor": 3.0, "b.theta": 7.0}
    assert controls.to_link(values) == {}
    assert controls.to_link(values | {"a.scaling": "linear", "compare": True}) == {
        "compare": "1",
        "a.scaling": "linear",
        "a.linear.factor": "3",
        "b.theta": "7",
    }


def test_what_hangs_on_others_comes_into_range():
    values = controls.defaults() | {
        "a.rotary_dim": 96,
        "a.rotary_start": 40,
        "position": 9000,
        "pair": 60,
    }
    settled = limited(values | {"a.head_dim": 20, "served": 100})
    assert (
        settled["a.rotary_start"],
        settled["a.rotary_dim"],
        settled["position"],
        settled["pair"],
    ) == (18, 2, 99, 0)
    assert limited(controls.defaults()) == controls.defaults()


def test_a_second_spec_limits_the_pair_where_it_is_shown():
    values = controls.defaults() | {"pair": 60, "compare": True, "b.head_dim": 20}
    assert limited(values | {"view": "story"})["pair"] == 60
    assert limited(values | {"view": "plane"})["pair"] == 9


def test_a_list_stretches_over_the_pairs():
    assert stretched((1.0, 3.0), 5) == (1.0, 1.5, 2.0, 2.5, 3.0)
    assert stretched((7.0,), 3) == (7.0, 7.0, 7.0)
    assert stretched((1.0, 2.0, 3.0), 3) == (1.0, 2.0, 3.0)
    assert stretched((), 4) == ()
    assert stretched((0, 1, 2), 6, nearest=True) == (0, 0, 1, 1, 2, 2)


@pytest.mark.parametrize("head_dim", [64, 20, 2])
def test_every_preset_survives_another_head(head_dim):
    for config in EXAMPLES.values():
        for loaded in layers_of(config).values():
            assert (
                spec_of(limited(controls.defaults() | loaded | {"a.head_dim": head_dim})).pairs
                == head_dim // 2
            )


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[1]",
        b'{"rope_theta": NaN}',
        b"\xff",
        b"{" * 100,
        b" " * (1 << 20) + b"{}",
        json.dumps(
            {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "rope_theta": -1}
        ).encode(),
        json.dumps(
            {"model_type": "llama", "head_dim": 4096, "max_position_embeddings": 64}
        ).encode(),
        json.dumps({"model_type": "bert", "position_embedding_type": "absolute"}).encode(),
        b'{"model_type": "llama", "head_dim": 64}',
    ],
)
def test_a_config_that_is_none_is_refused(data):
    with pytest.raises(RopeError):
        layers_of(data)


@pytest.mark.parametrize(
    "scaling",
    [
        Clipped(inner=Yarn(factor=4.0)),
        Clipped(inner=Dynamic()),
        Clipped(inner=Clipped(pairs=3)),
        Learnable(Linear(2.0)),
    ],
)
def test_an_inner_scaling_that_the_page_has_no_controls_for_is_refused(scaling):
    with pytest.raises(RopeError, match="with its defaults, to be shown here"):
        values_of(RopeSpec(64, scaling=scaling))


def test_a_config_with_cope_over_yarn_is_refused():
    scaled = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    config = {
        "model_type": "llama",
        "head_dim": 64,
        "max_position_embeddings": 16_384,
        "rope_theta": 1e4,
        "use_cope": True,
    }
    assert layers_of(config)["full_attention"]["a.clipped.inner"] == "default"
    with pytest.raises(RopeError, match="inner"):
        layers_of(config | {"rope_scaling": scaled})


def test_a_config_file_is_the_same_as_its_dict():
    for config in EXAMPLES.values():
        assert layers_of(json.dumps(config).encode()) == layers_of(config)


def ran(code, monkeypatch, drawn):
    """What a printed program leaves behind; figures are recorded, not drawn."""
    monkeypatch.setattr(plots, "draw", lambda name, view: drawn.append((name, view)))
    monkeypatch.setattr(plots, "save", lambda figure, path: path)
    space = {}
    # the page printed it, and running it is the test
    exec(compile(code, "program", "exec"), space)  # noqa: S102
    return space


CASES = [{"a.scaling": name, "a.head_dim": 10} for name in SCALINGS]
CASES += [layers_of(EXAMPLES[name])[layer] | {"compare": True} for name, layer in LAYERS]


@pytest.mark.parametrize(
    "case",
    CASES,
    ids=lambda case: "-".join(filter(None, (case["a.scaling"], str(case["a.head_dim"])))),
)
def test_the_program_makes_what_the_page_shows(case, monkeypatch):
    values = limited(controls.defaults() | {"position": 1001} | case)
    drawn = []
    space = ran(program(values), monkeypatch, drawn)
    sides = controls.SIDES[: 1 + values["compare"]]
    assert [space[f"spec_{side}"] for side in sides] == [spec_of(values, side) for side in sides]
    for _, view in drawn:
        assert (view.trained, view.served) == (values["trained"], values["served"])
    assert [view.spec for _, view in drawn[::6]] == [spec_of(values, side) for side in sides]
    spec = spec_of(values, sides[-1])
    found = ladder(spec, values["served"])
    size = float(found.magnitude)
    if found.growth is not None:
        size = size * np.exp((1001 - found.center) * found.growth.numpy())
    np.testing.assert_allclose(
        space["cos"].detach().flatten(), np.cos(1001 * found.radians.numpy()) * size, atol=2e-6
    )


def test_the_program_writes_its_pictures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(program(controls.defaults() | {"a.head_dim": 10}), "program", "exec"), {})  # noqa: S102
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == sorted(
        f"spec_a-{name}.png"
        for name in ("clocks", "spectrum", "coverage", "decay", "similarity_map", "precision")
    )
    assert all(path.stat().st_size > 1000 for path in tmp_path.iterdir())


def test_texts_read_back_as_they_were_written():
    for value, kind in (
        (0.1, "number"),
        (1e300, "number"),
        (math.pi, "number"),
        (None, "optional number"),
        ((1.5, 2.0), "numbers"),
        (True, "flag"),
    ):
        assert controls.read("x", controls.Control(kind, None), controls.write(value)) == value
