"""A config as facts: which lengths, from where, for every layer type."""

import json

import pytest

import ropewalk as rw
from ropewalk_lab import analysis

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
GEMMA = {
    "model_type": "gemma3_text",
    "head_dim": 16,
    "max_position_embeddings": 8192,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "sliding_window": 512,
}


def lengths(config, **keywords):
    found = analysis.read_checkpoint(config, **keywords)
    (name,) = found.layers
    facts = found.layers[name]
    return (facts.trained, facts.served, *found.sources[name])


@pytest.mark.parametrize(
    ("config", "keywords", "expected"),
    [
        (LLAMA, {}, (4096, 4096, "max_position_embeddings", "max_position_embeddings")),
        (LLAMA, {"served": 9000}, (4096, 9000, "max_position_embeddings", "given")),
        (LLAMA, {"trained": 100}, (100, 4096, "given", "max_position_embeddings")),
        (
            LLAMA | {"rope_scaling": YARN},
            {},
            (2048, 8192, "the scaling's original length", "original length times factor"),
        ),
        (
            LLAMA | {"rope_scaling": YARN, "max_position_embeddings": 16_384},
            {},
            (2048, 16_384, "the scaling's original length", "max_position_embeddings"),
        ),
        (
            {"rope_theta": 1e4, "head_dim": 8, "n_positions": 77},
            {},
            (77, 77, "n_positions", "n_positions"),
        ),
        ({"rope_theta": 1e4, "head_dim": 8}, {"trained": 64}, (64, 64, "given", "given")),
    ],
)
def test_lengths_and_where_they_come_from(config, keywords, expected):
    assert lengths(config, **keywords) == expected


def test_lengths_and_windows_are_those_of_the_text_model():
    config = {"model_type": "gemma3", "text_config": GEMMA, "max_position_embeddings": 77}
    found = analysis.read_checkpoint(config).layers
    assert {name: (facts.served, facts.window) for name, facts in found.items()} == {
        "full_attention": (8192, None),
        "sliding_attention": (8192, 512),
    }


def test_every_layer_type_has_its_own_facts_and_window():
    found = analysis.read_checkpoint(GEMMA)
    whole, sliding = found.layers["full_attention"], found.layers["sliding_attention"]
    assert (whole.spec.theta, whole.spec.scaling.name, whole.window) == (1e6, "linear", None)
    assert (sliding.spec.theta, sliding.spec.scaling.name, sliding.window) == (1e4, "default", 512)
    assert whole.methods == tuple(analysis.COS_SIN_METHODS)


def test_a_layer_type_that_is_not_rotated_has_no_facts():
    config = {
        "model_type": "smollm3",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "max_position_embeddings": 4096,
        "num_hidden_layers": 4,
        "no_rope_layers": [1, 1, 1, 0],
    }
    found = analysis.read_checkpoint(config)
    assert None in found.layers.values()
    assert set(found.sources) == {name for name, facts in found.layers.items() if facts is not None}


def test_a_folder_is_read_and_its_warnings_are_in_the_explanation(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps(LLAMA | {"rope_scaling": YARN | {"finetuned": True}})
    )
    assert any(
        "finetuned" in text for text in analysis.read_checkpoint(tmp_path).explanation.warnings
    )


def test_a_missing_or_negative_length_is_refused():
    with pytest.raises(rw.RopeError, match="max_position_embeddings: must be in the config"):
        analysis.read_checkpoint({"rope_theta": 1e4, "head_dim": 8})
    with pytest.raises(rw.RopeError, match="max_position_embeddings"):
        analysis.read_checkpoint(LLAMA | {"max_position_embeddings": -1})


def test_lengths_and_windows_end_at_two_to_the_forty():
    last = 1 << 40
    assert lengths(LLAMA | {"max_position_embeddings": last})[:2] == (last, last)
    found = analysis.read_checkpoint(GEMMA | {"sliding_window": last})
    assert found.layers["sliding_attention"].window == last
    for config in (
        LLAMA | {"max_position_embeddings": last + 1},
        GEMMA | {"sliding_window": last + 1},
    ):
        with pytest.raises(rw.RopeError, match=r"max_position_embeddings|sliding_window") as error:
            analysis.read_checkpoint(config)
        assert error.value.value == last + 1
