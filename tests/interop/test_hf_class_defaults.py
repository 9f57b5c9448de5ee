"""Values that a config.json leaves to its config class, or that the class replaces: from_hf reads a
dict as that class would complete it.
"""

from __future__ import annotations

import copy
import warnings

import pytest
from installed import config_of, needs_v5
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ropewalk.config.families import FAMILIES
from ropewalk.config.hf import from_hf, to_hf
from ropewalk.frequencies import LongRope
from ropewalk.interop.extend.keys import config_change
from ropewalk.spec import RopeSpec

pytestmark = needs_v5("leaves the rope to the model")

SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
}
SIZES |= {"max_position_embeddings": 8192}
FACTORS = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
KEY = "original_max_position_embeddings"
#: where a config gives the trained length: inside the rope, and beside it
PLACES = {"inside": (256, None), "beside": (None, 300), "both": (256, 300), "nowhere": (None, None)}


def ours(keys: dict, model_type: str) -> dict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return from_hf({**copy.deepcopy(keys), "model_type": model_type}, per_layer=True)


@pytest.mark.parametrize(
    "name", sorted(name for name, family in FAMILIES.items() if family.layer_thetas)
)
@pytest.mark.parametrize("given", ["every key", "no key"])
def test_each_layer_type_has_the_theta_that_its_class_makes_of_the_keys(name, given):
    """Before v5, each layer type had a key of its own; OLMo 3 reads none for its sliding layers."""
    keys = dict(SIZES) | {"head_dim": 16}
    thetas = (
        "rope_theta",
        "rope_local_base_freq",
        "global_rope_theta",
        "local_rope_theta",
        "compress_rope_theta",
    )
    if given == "every key":
        keys |= {key: 1234.0 + i for i, key in enumerate(thetas)}
    theirs = config_of(name, **copy.deepcopy(keys)).rope_parameters
    assert {layer: spec.theta for layer, spec in ours(keys, name).items()} == {
        layer: theirs[layer]["rope_theta"] for layer in ours(keys, name)
    }


#: families whose class spells its rope otherwise, or does not take the sizes of this test
OTHER_CLASSES = {
    "beam",
    "codegen",
    "cohere2_moe",
    "cohere_compass_text",
    "esm",
    "falcon",
    "gemma4_text",
    "gemma4_unified_text",
    "glmasr",
    "gptj",
    "laguna",
    "mellum",
    "mimo_v2_flash",
    "qwen2_vl",
    "qwen2_5_vl",
    "roformer",
    "t5gemma",
    "zamba2",
}
WITH_ONE_THETA = {
    name for name, family in FAMILIES.items() if not family.layer_thetas and not family.refused
}


@pytest.mark.parametrize("name", sorted(WITH_ONE_THETA - OTHER_CLASSES))
def test_a_rope_without_a_theta_has_that_of_its_class(name):
    family = FAMILIES[name]
    head_dim = 16 if family.sections is None else int(2 * sum(family.sections) / family.partial)
    keys = {**SIZES, "head_dim": head_dim, "rope_parameters": {"rope_type": "default"}}
    keys |= {"position_embedding_type": "rope"} if name == "granitemoehybrid" else {}
    theirs = config_of(name, **copy.deepcopy(keys)).rope_parameters
    assert {spec.theta for spec in ours(keys, name).values() if spec is not None} == {
        theirs["rope_theta"]
    }


def read_by_the_class(name: str, keys: dict) -> tuple[float, float]:
    """(theta, fraction) that the config class makes of these keys."""
    rope = CONFIG_MAPPING[name](
        **copy.deepcopy({key: value for key, value in keys.items() if key != "model_type"})
    ).rope_parameters
    return rope["rope_theta"], rope["partial_rotary_factor"]


NEOX = ("gpt_neox", "gpt_neox_japanese")


@pytest.mark.parametrize("name", NEOX)
@pytest.mark.parametrize(
    "keys",
    [
        {"rotary_emb_base": 777.0, "rotary_pct": 0.5},
        {"rope_theta": 777.0},
        {"partial_rotary_factor": 0.5},
        {"rope_theta": 777.0, "rotary_emb_base": 888.0},
        {"partial_rotary_factor": 0.5, "rotary_pct": 0.75},
    ],
)
def test_gpt_neox_reads_theta_and_fraction_under_its_own_names_alone(name, keys):
    theta, fraction = read_by_the_class(name, {**SIZES, **keys})
    (spec,) = ours({**SIZES, **keys}, name).values()
    assert (spec.theta, spec.rotated_dims) == (theta, 16 * fraction)
    if "rotary_emb_base" not in keys or "rope_theta" in keys:
        with pytest.warns(UserWarning, match=f"is ignored: {name} reads rotary_"):
            from_hf({**SIZES, **keys, "model_type": name})


@pytest.mark.parametrize("name", ["llama", "qwen2", "mistral", "stablelm", "phi", "nomic_bert"])
@pytest.mark.parametrize("keys", [{}, {"rope_theta": 777.0}])
def test_only_gpt_neox_reads_theta_as_rotary_emb_base(name, keys):
    config = {**SIZES, **keys, "rotary_emb_base": 888.0}
    theirs = CONFIG_MAPPING[name](**copy.deepcopy(config)).rope_parameters["rope_theta"]
    with pytest.warns(UserWarning, match="config.rotary_emb_base = 888.0 is ignored"):
        assert from_hf({**config, "model_type": name}).theta == theirs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        written = config_change({**config, "model_type": name}, "ntk", factor=4.0).keys
    read = CONFIG_MAPPING[name](**copy.deepcopy({**config, **written})).rope_parameters
    dim = 16 * read.get("partial_rotary_factor", 1.0)
    assert read["rope_theta"] == pytest.approx(theirs * 4 ** (dim / (dim - 2)))


@pytest.mark.parametrize("name", NEOX)
def test_what_is_written_for_gpt_neox_is_read_by_its_class(name):
    for version in (4, 5):
        written = to_hf(RopeSpec(16, theta=777.0, rotary_dim=8), version=version, model_type=name)
        sizes = {"hidden_size": 64, "num_attention_heads": 4}
        assert read_by_the_class(name, {**sizes, **written, "head_dim": None}) == (777.0, 0.5)
    config = {**SIZES, "model_type": name}
    keys = config_change(config, "ntk", factor=4.0).keys
    dim = 4 if name == "gpt_neox" else 16
    assert read_by_the_class(name, {**config, **keys})[0] == pytest.approx(
        1e4 * 4 ** (dim / (dim - 2))
    )


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    "name",
    ["llama", "mistral", "qwen2", "granite", "starcoder2", "gemma2", "phi3", "phi4_multimodal"],
)
def test_the_trained_length_is_that_of_the_class(name, spelling, place):
    """The length beside the rope takes precedence over that inside it; beside it Phi-3's classes have
    a default.
    """
    inside, beside = PLACES[place]
    rope = {"rope_type": "longrope", **FACTORS, "rope_theta": 1e4, "factor": 2.0} | (
        {KEY: inside} if inside else {}
    )
    keys = {**SIZES, "head_dim": 16, spelling: rope} | ({KEY: beside} if beside else {})
    config = config_of(name, **copy.deepcopy(keys))
    config.standardize_rope_params()  # as the model does before it computes
    assert {spec.scaling.original_length for spec in ours(keys, name).values()} == {
        config.rope_parameters[KEY]
    }


@pytest.mark.parametrize("name", ["phi3", "phi4_multimodal"])
@pytest.mark.parametrize("version", [4, 5])
def test_a_trained_length_that_is_written_is_read_by_the_class(name, version):
    factors = {key: tuple(value) for key, value in FACTORS.items()}
    spec = RopeSpec(16, scaling=LongRope(**factors, original_length=256, factor=32.0))
    written = to_hf(spec, version=version, model_type=name)
    theirs = config_of(**{**SIZES, **written}).rope_parameters
    assert (theirs[KEY], theirs["rope_type"]) == (256, "longrope")
    assert (theirs["short_factor"], theirs["long_factor"]) == (
        FACTORS["short_factor"],
        FACTORS["long_factor"],
    )


@pytest.mark.parametrize(
    "rope", [{}, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}]
)
def test_an_extended_config_has_the_trained_length_that_was_asked_for(rope):
    config = {**SIZES, "model_type": "phi3", **rope}
    options = {key: tuple(value) for key, value in FACTORS.items()}
    keys = config_change(config, "longrope", factor=4.0, original_length=512, options=options).keys
    theirs = config_of(**{**config, **keys})
    assert (theirs.rope_parameters[KEY], theirs.max_position_embeddings) == (512, 2048)
