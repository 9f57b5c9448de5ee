"""Reading configs: every spelling, every layer type, and an account of each value."""

from __future__ import annotations

import copy

import pytest
import torch
from config_samples import LLAMA, LLAMA3, LONGROPE, YARN, refused
from torch.testing import assert_close

import ropewalk as rw
from ropewalk import RopeSpec, axes
from ropewalk.config.hf import Explanation, explain, from_hf
from ropewalk.config.values import Entry
from ropewalk.frequencies import Default, Dynamic, Linear, LongRope, Ntk, Proportional, Yarn
from tensor_forms import tensors

SPELLINGS = {
    "v4 and v5": (
        {**LLAMA, "rope_theta": 5e5, "rope_scaling": LLAMA3},
        {**LLAMA, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
    ),
    "type": (
        {**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    ),
    "rope_scaling null": (
        {**LLAMA, "rope_theta": 5e5, "rope_scaling": None},
        {**LLAMA, "rope_parameters": {"rope_theta": 5e5}},
    ),
    "both spellings agree": (
        {**LLAMA, "rope_scaling": YARN, "rope_parameters": YARN},
        {**LLAMA, "rope_parameters": YARN},
    ),
    "rotary_emb_base": (
        {**LLAMA, "model_type": "gpt_neox", "rotary_emb_base": 777, "rotary_pct": 0.5},
        {"head_dim": 16, "rope_theta": 777.0, "partial_rotary_factor": 0.5},
    ),
    "rotary_emb_fraction": (
        {"head_dim": 16, "rope_theta": 1e4, "rotary_emb_fraction": 0.25},
        {"head_dim": 16, "rope_theta": 1e4, "partial_rotary_factor": 0.25},
    ),
    "rotary_dim": (
        {"model_type": "minimax_m2", "head_dim": 16, "rotary_dim": 8},
        {"head_dim": 16, "rope_theta": 5e6, "partial_rotary_factor": 0.5},
    ),
    "minimax text": (
        {"model_type": "minimax_text_01", "head_dim": 16, "rotary_dim": 8, "rope_theta": 1e7},
        {"head_dim": 16, "rope_theta": 1e7, "partial_rotary_factor": 0.5},
    ),
    "gpt-2 names": (
        {"n_embd": 64, "n_head": 4, "rope_theta": 1e4},
        {"head_dim": 16, "rope_theta": 1e4},
    ),
    "null head_dim": ({**LLAMA, "head_dim": None}, LLAMA),
    "text_config": (
        {"model_type": "llava", "text_config": LLAMA, "vision_config": {"hidden_size": 3}},
        LLAMA,
    ),
    "thinker": ({"model_type": "qwen2_5_omni", "thinker_config": {"text_config": LLAMA}}, LLAMA),
    "mrope": (
        {
            "head_dim": 16,
            "rope_theta": 1e6,
            "rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]},
        },
        {
            "model_type": "qwen2_vl",
            "head_dim": 16,
            "rope_scaling": {"rope_type": "default", "type": "mrope", "mrope_section": [4, 2, 2]},
        },
    ),
    "factor from lengths": (
        {**LLAMA, "rope_scaling": {**YARN, "factor": None}},
        {**LLAMA, "rope_scaling": YARN},
    ),
    "root length": (
        {
            **LLAMA,
            "original_max_position_embeddings": 1024,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
        },
        {**LLAMA, "rope_scaling": YARN},
    ),
    "seq_length": (
        {"head_dim": 16, "seq_length": 4096, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {
            "head_dim": 16,
            "max_position_embeddings": 4096,
            "rope_scaling": {"type": "dynamic", "factor": 2.0},
        },
    ),
    "minimind off": (
        {**LLAMA, "model_type": "minimind", "inference_rope_scaling": False, "rope_scaling": None},
        {"head_dim": 16, "rope_theta": 1e6},
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_two_spellings_are_one_spec(name):
    old, new = SPELLINGS[name]
    assert from_hf(old) == from_hf(new)


def test_legacy_phi3_su_and_yarn_are_longrope():
    """transformers fails on `su`: it misses the trained length, which is beside the rope object."""
    phi3 = {**LLAMA, "model_type": "phi3", "original_max_position_embeddings": 1024}
    lists = {key: LONGROPE[key] for key in ("short_factor", "long_factor")}
    wanted = from_hf({**phi3, "rope_scaling": {"rope_type": "longrope", **lists}})
    for name in ("su", "yarn"):
        assert from_hf({**phi3, "rope_scaling": {"type": name, **lists}}) == wanted
    assert wanted.scaling == LongRope(
        tuple([1.0] * 8), tuple([2.0] * 8), original_length=1024, factor=4.0
    )
    assert (
        from_hf(
            {
                **LLAMA,
                "rope_scaling": {"type": "su", **lists, "original_max_position_embeddings": 1024},
            }
        )
        == wanted
    )


def test_hunyuan_alpha_is_static_ntk():
    rope = {
        "type": "dynamic",
        "alpha": 50.0,
        "factor": 1.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    assert from_hf(
        {**LLAMA, "model_type": "hunyuan_v1_dense", "rope_scaling": rope}
    ).scaling == Ntk(50.0)
    with pytest.warns(UserWarning, match="alpha"):
        assert from_hf(
            {**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0, "alpha": 5.0}}
        ).scaling == Dynamic(2.0, 4096)
    # a model type that is not known may be such a model
    with pytest.warns(UserWarning, match="'tomorrow' is not known"):
        found = from_hf({**LLAMA, "model_type": "tomorrow", "rope_scaling": rope})
    assert found.scaling == Ntk(50.0)


def test_the_callers_dict_is_left_alone():
    for config in (
        {
            **LLAMA,
            "rope_scaling": {
                "type": "su",
                **{k: v for k, v in LONGROPE.items() if k != "rope_type"},
            },
        },
        {**LLAMA, "rope_parameters": {**YARN, "type": "yarn"}},
        {"model_type": "gemma3_text", **{k: v for k, v in LLAMA.items() if k != "model_type"}},
    ):
        before = copy.deepcopy(config)
        from_hf(config, per_layer=True)
        explain(config)
        assert config == before


def test_truncate_is_read_from_the_rope_of_each_layer_type():
    """transformers looks for it beside the ropes of the layer types, not in them."""
    full, sliding = {**YARN, "truncate": False}, YARN
    config = {
        **LLAMA,
        "layer_types": ["full_attention", "sliding_attention"],
        "rope_parameters": {"full_attention": full, "sliding_attention": sliding},
    }
    found = from_hf(config, per_layer=True)
    assert found["full_attention"].scaling == Yarn(factor=4.0, original_length=1024, truncate=False)
    assert found["sliding_attention"].scaling == Yarn(factor=4.0, original_length=1024)


def test_the_length_beside_the_rope_and_the_theta_inside_it_take_precedence():
    with pytest.warns(UserWarning, match="the former is used"):
        assert (
            from_hf(
                {**LLAMA, "original_max_position_embeddings": 512, "rope_scaling": YARN}
            ).scaling.original_length
            == 512
        )
    with pytest.warns(UserWarning, match="the former is used"):
        assert (
            from_hf({**LLAMA, "rope_parameters": {"rope_theta": 1e6}, "rope_theta": 1e4}).theta
            == 1e6
        )


def test_frequencies_of_a_partial_rotation_are_powers_over_the_rotated_dimensions():
    """With a partial rotation, both the pairs and the denominators of the exponents are those of the
    rotated dimensions. Llama's unscaled rope ignores partial_rotary_factor.
    """
    found = from_hf(
        {"head_dim": 20, "rope_theta": 1e4, "partial_rotary_factor": 0.4}, precision="exact"
    )
    assert (found.rotated_dims, found.rotary_start) == (8, 0)
    wanted = [1e4 ** (-2 * i / 8) for i in range(4)]
    assert_close(
        tensors(found).radians, torch.tensor(wanted, dtype=torch.float64), rtol=1e-15, atol=0
    )
    with pytest.warns(UserWarning, match="partial_rotary_factor"):
        assert from_hf({**LLAMA, "partial_rotary_factor": 0.5}).rotated_dims == 16


def test_proportional_scaling_of_latent_attention_keeps_its_fraction():
    rope = {"rope_type": "proportional", "partial_rotary_factor": 0.5}
    found = from_hf({"model_type": "deepseek_v3", "qk_rope_head_dim": 16, "rope_parameters": rope})
    assert (found.rotated_dims, found.scaling) == (16, Proportional(1.0, 0.5))


def test_gemma3_scales_its_full_layers_alone_and_modernbert_both():
    """rope_scaling applies to Gemma 3's full-attention layers only, and to both layer types of
    ModernBERT.
    """
    rope = {"rope_type": "linear", "factor": 8.0}
    gemma = from_hf(
        {
            **LLAMA,
            "model_type": "gemma3_text",
            "head_dim": 16,
            "rope_scaling": rope,
            "rope_theta": 2e6,
        },
        per_layer=True,
    )
    assert gemma["full_attention"] == RopeSpec(
        16, theta=2e6, scaling=Linear(8.0), precision="hf_frequencies"
    )
    assert gemma["sliding_attention"] == RopeSpec(16, theta=1e4, precision="hf_frequencies")
    bert = from_hf(
        {**LLAMA, "model_type": "modernbert", "rope_scaling": rope, "local_rope_theta": 3e4},
        per_layer=True,
    )
    assert {name: (spec.theta, spec.scaling) for name, spec in bert.items()} == {
        "full_attention": (1.6e5, Linear(8.0)),
        "sliding_attention": (3e4, Linear(8.0)),
    }
    error = refused({**LLAMA, "model_type": "gemma3_text"}, "rope_parameters")
    assert "per_layer=True" in str(error)


def test_per_layer_gives_none_for_layers_that_are_not_rotated():
    cohere = {**LLAMA, "model_type": "cohere2", "sliding_window": 64}
    still = from_hf(cohere, per_layer=True)
    assert still["full_attention"] is None
    assert still["sliding_attention"] == from_hf(cohere)
    assert (
        from_hf({**cohere, "layer_types": ["sliding_attention", "full_attention"]}, per_layer=True)
        == still
    )
    exaone = {
        **LLAMA,
        "model_type": "exaone4",
        "layer_types": ["full_attention"],
        "sliding_window": None,
    }
    assert from_hf(exaone, per_layer=True)["full_attention"] is not None
    nested = {
        **LLAMA,
        "rope_parameters": {"full_attention": None, "sliding_attention": {"rope_theta": 1e4}},
    }
    assert from_hf(nested, per_layer=True) == {
        "full_attention": None,
        "sliding_attention": from_hf(LLAMA),
    }
    refused({**LLAMA, "layer_types": ["a"], "rope_parameters": {"a": None}}, "rope_parameters")
    mixed = from_hf(
        {**LLAMA, "layer_types": ["linear_attention", "full_attention"]}, per_layer=True
    )
    assert mixed == {"linear_attention": None, "full_attention": from_hf(LLAMA)}


def test_no_rope_layers_of_llama4_and_smollm3():
    shape = {**LLAMA, "num_hidden_layers": 4, "head_dim": 16}
    smol = from_hf({**shape, "model_type": "smollm3"}, per_layer=True)
    assert list(smol) == ["full_attention", "no_rope"]
    assert smol["no_rope"] is None
    all_rotate = from_hf(
        {**shape, "model_type": "smollm3", "no_rope_layers": [1, 1, 1, 1]}, per_layer=True
    )
    assert list(all_rotate) == ["full_attention"]
    llama4 = {
        **shape,
        "model_type": "llama4_text",
        "layer_types": ["chunked_attention"] * 3 + ["full_attention"],
    }
    found = from_hf(llama4, per_layer=True)
    assert found["full_attention"] is None
    assert found["chunked_attention"] == from_hf(llama4)
    every = {**shape, "model_type": "llama4_text", "no_rope_layer_interval": 2}
    assert from_hf(every, per_layer=True)["no_rope"] is None


def test_gemma4_heads_differ_by_layer_type():
    rope = {
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1e6,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    for own in ({"global_head_dim": 32}, {"per_layer_config": {"1": {"head_dim": 32}}}):
        config = {
            "model_type": "gemma4_text",
            "head_dim": 16,
            "rope_parameters": rope,
            "layer_types": ["sliding_attention", "full_attention"],
            **own,
        }
        found = from_hf(config, per_layer=True)
        assert found["sliding_attention"].head_dim == 16
        assert found["full_attention"].head_dim == 32
        assert tensors(found["full_attention"]).radians.count_nonzero() == 4


@pytest.mark.parametrize(
    ("rope", "model_type", "wanted"),
    [
        ({"mrope_section": [4, 2, 2]}, None, axes.chunked([4, 2, 2])),
        (
            {"mrope_section": [4, 2, 2], "mrope_interleaved": True},
            None,
            axes.interleaved([4, 2, 2]),
        ),
        ({"mrope_section": [4, 2, 2]}, "qwen3_vl_text", axes.interleaved([4, 2, 2])),
        ({"mrope_section": [3, 3, 2]}, "ernie4_5_vl_moe_text", axes.ernie([3, 3, 2])),
        (
            {"type": "xdrope", "factor": 1.0, "xdrope_section": [2.0, 2.0, 4.0]},
            None,
            axes.chunked([2, 2, 4]),
        ),
    ],
)
def test_sections_become_an_axis_map(rope, model_type, wanted):
    """A list of sections in the rope object becomes the axis map that the model type uses."""
    assert (
        from_hf(
            {
                **LLAMA,
                "model_type": model_type,
                "head_dim": 16,
                "rope_theta": 1e4,
                "rope_scaling": rope,
            }
        ).axes
        == wanted
    )


def test_a_published_paddleocr_vl_has_the_keys_of_its_text_model_beside_the_others():
    """Its class makes a text_config of them, with a theta of 500,000 and heads 128 wide."""
    config = {
        "model_type": "paddleocr_vl",
        "vision_config": {"model_type": "paddleocr_vl"},
        "rope_scaling": {"mrope_section": [16, 24, 24], "rope_type": "default", "type": "default"},
    }
    spec = from_hf(config, precision="exact")
    assert spec == RopeSpec(128, theta=500_000.0, axes=axes.chunked([16, 24, 24]))
    assert {each.known for each in rw.audit(config, length=4096, max_model_len=4096).of("hf")} == {
        "rule"
    }


def test_precision_is_hf_frequencies_or_what_is_given():
    assert from_hf(LLAMA).precision == "hf_frequencies"
    assert from_hf(LLAMA, precision="exact") == RopeSpec(16)
    refused(LLAMA, "precision", precision="fast")


def test_explain_says_where_each_value_came_from():
    config = {
        **LLAMA,
        "rope_theta": 5e5,
        "rope_scaling": {"type": "llama3", **{k: v for k, v in LLAMA3.items() if k != "rope_type"}},
    }
    found = explain(config)
    values = found.as_dict()["full_attention"]
    assert values["theta"] == {"value": 5e5, "source": "config.rope_theta"}
    assert values["rope_type"] == {"value": "llama3", "source": "rope_scaling.type"}
    assert values["head_dim"] == {"value": 16, "source": "hidden_size / num_attention_heads"}
    assert values["original_length"] == {
        "value": 512,
        "source": "rope_scaling.original_max_position_embeddings",
    }
    assert values["layout"] == {"value": "half", "source": "code of llama"}
    shown = str(found)
    assert all(name in shown and value["source"] in shown for name, value in values.items())


@pytest.mark.parametrize(
    ("digits", "shown"), [(22, "'" + "9" * 22 + "'"), (23, "'" + "9" * 20 + "...")]
)
def test_explain_shows_values_of_24_characters_whole(digits, shown):
    assert f" {shown} " in str(
        Explanation(None, (Entry("full_attention", "name", "9" * digits, "here"),))
    )


def test_explain_names_values_that_are_assumed_or_defaults():
    values = explain({"head_dim": 16, "rope_theta": 1e4}).as_dict()["full_attention"]
    assert values["layout"]["source"].startswith("assumed")
    assert explain({**LLAMA}).as_dict()["full_attention"]["theta"]["source"] == "default of llama"
    assert (
        explain({**LLAMA, "model_type": "cohere2"}).as_dict()["full_attention"]["rope"]["value"]
        is None
    )


@pytest.mark.filterwarnings("ignore:model_type. 'tomorrow' is not known:UserWarning")
def test_an_unknown_family_reads_the_standard_keys():
    found = from_hf(
        {"model_type": "tomorrow", "head_dim": 16, "rope_theta": 1e4, "rope_interleave": True}
    )
    assert (found.layout, found.layout_out, found.scaling) == ("interleaved", "half", Default())
    assert from_hf({"model_type": "tomorrow", "head_dim": 16, "rope_theta": 1e4}).layout == "half"


@pytest.mark.parametrize(
    ("keys", "assumed", "not_assumed"),
    [
        (
            {"head_dim": 16, "rope_theta": 1e4},
            ("the layout half", "the whole head rotates", "every layer rotates"),
            ("rope_theta", "head_dim"),
        ),
        (
            {"head_dim": 16, "partial_rotary_factor": 0.5},
            ("the layout half", "every layer rotates", "rope_theta = 10000.0"),
            ("whole head",),
        ),
        (
            {
                "head_dim": 16,
                "rope_theta": 1e4,
                "rope_interleave": True,
                "layer_types": ["mamba", "full_attention"],
            },
            ("the whole head rotates",),
            ("layout", "every layer"),
        ),
    ],
)
@pytest.mark.parametrize("model_type", ["internlm3", "nemotron_h", "jamba"])
def test_an_unknown_family_is_read_with_a_warning_that_lists_what_was_assumed(
    model_type, keys, assumed, not_assumed
):
    config = {"model_type": model_type, **keys}
    with pytest.warns(UserWarning, match=f"model_type: '{model_type}' is not known") as caught:
        from_hf(config)
    text = str(caught[0].message).partition("assumed: ")[2].partition(". Compare")[0]
    assert all(each in text for each in assumed)
    assert not any(each in text for each in not_assumed)
    found = explain(config)
    assert not found.known
    assert found.warnings == (str(caught[0].message),)
    assert f"model_type {model_type} (not known)" in str(found)
    assert explain(LLAMA).known


@pytest.mark.parametrize("scaling", [None, {"rope_type": "linear", "factor": 2.0}])
@pytest.mark.parametrize("name", ["rotary_pct", "rotary_emb_fraction"])
def test_llama_does_not_read_other_names_of_the_fraction(name, scaling):
    """transformers' Llama then rotates the whole head: of these names it reads only
    `partial_rotary_factor`.
    """
    given = {**LLAMA, "rope_scaling": scaling, name: 0.25}
    with pytest.warns(UserWarning, match=f"config.{name} = 0.25 is ignored: llama reads partial"):
        found = from_hf(given)
    transformers = pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 1, "vocab_size": 8, "intermediate_size": 8}
    model = transformers.LlamaModel(transformers.LlamaConfig(**{**given, **sizes}))
    assert found.pairs == len(model.rotary_emb.inv_freq)
