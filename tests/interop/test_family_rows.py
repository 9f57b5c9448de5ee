"""A family is one row of TOML: a row added at run time is read, written and explained as the shipped
rows are, and a wrong row is refused by its name.
"""

from __future__ import annotations

import re
import tomllib

import pytest

from ropewalk import RopeError, RopeSpec
from ropewalk.config import add_families, explain, from_hf, layer_specs, to_hf
from ropewalk.config.families import TABLE, class_sizes, families, family_of

ROW = """
[[family]]
model_types = ["brook", "brook_text"]
layout = "interleaved"
reads = ["partial_rotary_factor"]
renamed.rope_theta = "rotary_emb_base"
defaults.rope_theta = 250_000.0
defaults.head_dim = 24
defaults.partial_rotary_factor = 0.5
unrotated = "no_rope_layers"
"""


@pytest.fixture
def added(monkeypatch):
    """Add rows for one test."""

    def add(text: str) -> tuple[str, ...]:
        names = add_families(text)
        for name in names:
            # monkeypatch removes them after the test
            family = families().pop(name)
            monkeypatch.setitem(families(), name, family)
        return names

    return add


def test_a_config_of_a_family_that_was_added_as_a_row_is_read(added):
    config = {"model_type": "brook", "num_hidden_layers": 4}
    with pytest.raises(RopeError, match="must be given for an unknown model_type"):
        from_hf(config)
    assert added(ROW) == ("brook", "brook_text")
    found = from_hf(config)
    assert (found.head_dim, found.theta) == (24, 250_000.0)
    assert (found.layout, 2 * found.pairs) == ("interleaved", 12)
    assert [spec is None for spec in layer_specs(config)] == [False, False, False, True]
    assert from_hf({**config, "rotary_emb_base": 500.0}).theta == 500.0
    with pytest.warns(UserWarning, match="brook reads rotary_emb_base"):
        assert from_hf({**config, "rope_theta": 500.0}).theta == 250_000.0
    values = explain(config).as_dict()["full_attention"]
    assert values["theta"]["source"] == "default of brook"
    assert values["layout"]["source"] == "code of brook"
    assert explain(config).known


def test_a_spec_is_written_for_a_family_that_was_added_as_a_row(added):
    added(ROW)
    spec = RopeSpec(24, 300.0, layout="interleaved", rotary_dim=12, precision="hf_frequencies")
    for version in (4, 5):
        written = to_hf(spec, version=version, model_type="brook")
        assert from_hf(written) == spec
    assert to_hf(spec, version=4, model_type="brook")["rotary_emb_base"] == 300.0


def test_a_family_with_a_theta_for_each_layer_type_is_a_row_too(added):
    added("""
    [[family]]
    model_types = ["delta"]
    defaults.head_dim = 16
    layer_thetas.full_attention = { key = "far_theta", default = 1e6, scaled = true }
    layer_thetas.sliding_attention = { default = 1e4, scaled = false }
    """)
    linear = {"rope_type": "linear", "factor": 8.0}
    config = {"model_type": "delta", "far_theta": 2e6, "rope_scaling": linear}
    found = from_hf(config, per_layer=True)
    assert (found["full_attention"].theta, found["full_attention"].scaling.name) == (2e6, "linear")
    assert found["sliding_attention"] == RopeSpec(16, 1e4, precision="hf_frequencies")


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ("layuot = 'half'", "layuot"),
        ("layout = 'sideways'", "layout"),
        ("latent = 1", "latent"),
        ("reads = ['colour']", "reads"),
        ("reads = 'alpha'", "reads"),
        ("renamed.rope_theta = 5", "renamed.rope_theta"),
        ("defaults.colour = 3", "defaults.colour"),
        ("defaults.rope_theta = 'large'", "defaults.rope_theta"),
        ("defaults.rope_theta = -1.0", "defaults.rope_theta"),
        ("defaults.head_dim = 64.5", "defaults.head_dim"),
        ("defaults.mrope_section = []", "defaults.mrope_section"),
        ("defaults_if.yarn.attention_factor = 0", "defaults_if.yarn.attention_factor"),
        ("defaults = 3", "defaults"),
        ("layer_thetas.full = { default = 1e4 }", "layer_thetas.full"),
        ("full_layers = { last = true }", "full_layers"),
        ("full_layers = { every = 4, least = 1 }", "full_layers"),
        ("full_layers = { every = 0 }", "full_layers.every"),
        ("full_layers = { every = 4, first = 1 }", "full_layers.first"),
        ("layer_thetas.full = { default = 1e4, scaled = 1 }", "layer_thetas.full.scaled"),
        ("axis_order = 'sideways'", "axis_order"),
        ("unrotated = 'some'", "unrotated"),
        ("rotates_if.kind = 'rope'", "rotates_if.kind"),
        ("refused = ''", "refused"),
        ("model_types = []", "model_types"),
        ("model_types = 'delta'", "model_types"),
    ],
)
def test_a_wrong_row_is_refused_by_the_name_of_its_key_and_adds_nothing(row, field):
    before = dict(families())
    names = "" if row.startswith("model_types") else "model_types = ['delta']\n"
    with pytest.raises(RopeError) as error:
        add_families(f"[[family]]\nmodel_types = ['first']\n[[family]]\n{names}{row}")
    assert error.value.field == field
    assert families() == before


@pytest.mark.parametrize(
    "text", ["", "x = 1", "[[family]]\nmodel_types = ['a']\n[unknown]\nlatent = true", "[[family"]
)
def test_a_text_without_rows_is_refused(text):
    with pytest.raises(RopeError, match="families: must"):
        add_families(text)


def test_a_misspelt_key_of_a_row_gets_a_hint():
    with pytest.raises(RopeError, match=re.escape("did you mean layout?")):
        add_families("[[family]]\nmodel_types = ['delta']\nlayuot = 'half'")


@pytest.mark.parametrize("names", ["['llama']", "['delta', 'delta']"])
def test_a_model_type_has_one_row(names):
    with pytest.raises(RopeError, match="model_types"):
        add_families(f"[[family]]\nmodel_types = {names}")
    assert "delta" not in families()


def test_every_name_of_the_table_is_known_once():
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["family"]
    names = [name for row in rows for name in row["model_types"]]
    assert len(names) == len(set(names)) > 150
    assert set(names) <= set(families())
    assert family_of("llama").default("rope_theta") == 10_000.0
    assert family_of("no such model") is family_of(None)


def test_sizes_of_classes_are_those_of_transformers():
    pytest.importorskip("transformers")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    assert len(class_sizes()) > 90
    for name, sizes in class_sizes().items():
        config = CONFIG_MAPPING[name]()
        assert {key: getattr(config, key) for key in sizes} == sizes, name


@pytest.mark.parametrize(("model_type", "text_type"), [("llava", "llama"), ("idefics2", "mistral")])
def test_a_text_part_may_leave_its_sizes_to_its_class(model_type, text_type):
    transformers = pytest.importorskip("transformers")
    part = {"model_type": text_type, "max_position_embeddings": 4096, "num_hidden_layers": 3}
    config = {"model_type": model_type, "text_config": part}
    real = transformers.AutoConfig.for_model(model_type, text_config=dict(part)).text_config
    assert from_hf(config) == from_hf(real.to_dict())
    assert len(layer_specs(config)) == real.num_hidden_layers
    # a size under another of its names is given
    other = from_hf({**config, "text_config": {**part, "n_embd": 2048}})
    assert other.head_dim == 2048 // real.num_attention_heads
    # the config of a text model itself has its sizes
    with pytest.raises(RopeError, match="hidden_size: must be given"):
        from_hf(part)
