"""Layers without positions: every spelling in configs, against which layers of a tiny transformers
model really rotate.
"""

import pytest
import torch
from extend_tiny import tiny
from tiny_configs import tiny_config
from transformers import AttentionInterface, AutoModel
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import ropewalk as rw
from ropewalk.config import layer_specs
from ropewalk.errors import RopeError

SIX = {"num_hidden_layers": 6, "layer_types": None}
ROPE = {"rope_type": "default", "rope_theta": 1e4}
#: (family, changed keys, 1 for each layer that rotates; None: only compared with the model)
CASES = [
    ("smollm3", SIX, [1, 1, 1, 0, 1, 1]),
    ("smollm3", {**SIX, "no_rope_layers": [0, 1, 1, 0, 0, 1]}, [0, 1, 1, 0, 0, 1]),
    (
        "smollm3",
        {**SIX, "use_sliding_window": True, "sliding_window": 8, "no_rope_layer_interval": 2},
        [1, 0, 1, 0, 1, 0],
    ),
    ("llama4_text", {**SIX, "no_rope_layers": []}, [1, 1, 1, 0, 1, 1]),
    ("cohere2", SIX, [1, 1, 1, 0, 1, 1]),
    ("exaone4", {**SIX, "sliding_window": 8, "sliding_window_pattern": 3}, None),
    ("exaone4", {**SIX, "sliding_window": None, "layer_types": ["full_attention"] * 6}, [1] * 6),
    ("exaone_moe", {**SIX, "mlp_layer_types": None}, None),
    ("granite_swa", {**SIX, "layer_rope_theta": None}, [1] * 6),
    ("granite_swa", {**SIX, "layer_rope_theta": [1e4, 0, 1e4, 1e4, 0, 1e4]}, [1, 0, 1, 1, 0, 1]),
    (
        "muse_spark_text",
        {**SIX, "mlp_layer_types": None, "layer_rope_theta": None, "moe_hidden_size": 16},
        [1, 0, 1, 1, 1, 0],
    ),
    ("muse_glimmer_text", {**SIX, "layer_rope_theta": None}, [1, 0, 1, 1, 1, 0]),
    ("beam", {**SIX, "mlp_layer_types": None, "rope_parameters": None}, [1, 1, 1, 1, 1, 0]),
    (
        "cohere_compass_text",
        {
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {**ROPE, "mrope_section": [4, 2, 2]},
                "full_attention": None,
            },
        },
        [1, 0, 1],
    ),
]


def rotated_layers(model):
    """Whether q of each layer changes when all positions grow by the same number; no other part of
    a model sees positions.
    """
    seen = {}

    def record(module, query, *args, **kwargs):
        seen[module.layer_idx] = query
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, *args, **kwargs)

    AttentionInterface.register("record_test", record)
    AttentionMaskInterface.register("record_test", sdpa_mask)
    model.set_attn_implementation("record_test")
    tokens, queries = torch.arange(3, 8)[None], []
    for shift in (0, 37):
        with torch.no_grad():
            model(tokens, position_ids=torch.arange(5)[None] + shift, use_cache=False)
        queries.append(dict(seen))
    # the direction alone: layers without positions may multiply their queries by a factor of the
    # position
    first, second = (
        {i: torch.nn.functional.normalize(q, dim=-1) for i, q in each.items()} for each in queries
    )
    return [int((first[i] - second[i]).abs().max() > 1e-3) for i in sorted(seen)]


@pytest.mark.parametrize(
    ("family", "changed", "expected"), CASES, ids=[f"{case[0]}-{i}" for i, case in enumerate(CASES)]
)
def test_layers_are_those_that_the_model_rotates(family, changed, expected):
    model = tiny(family, **changed)
    specs = layer_specs(model.config)
    by_effect = rotated_layers(model)
    assert [int(spec is not None) for spec in specs] == by_effect
    assert by_effect == (expected or by_effect)
    assert (None in rw.from_hf(model.config, per_layer=True).values()) == (0 in by_effect)


def test_cohere_2_without_a_window_rotates_no_layer(monkeypatch):
    """Without a window the model builds no mask, so its attention modules are called one by one,
    without a mask.
    """
    from transformers.models.cohere2 import modeling_cohere2

    model = tiny("cohere2", **{**SIX, "sliding_window": None}).model
    rotated = []
    monkeypatch.setattr(
        modeling_cohere2, "apply_rotary_pos_emb", lambda q, k, *_: rotated.append(1) or (q, k)
    )
    hidden = torch.randn(1, 5, model.config.hidden_size)
    for layer in model.layers:
        layer.self_attn(hidden, model.rotary_emb(hidden, torch.arange(5)[None]), None)
    assert rotated == []
    assert layer_specs(model.config) == [None] * 6
    keys = {"model_type": "cohere2", "head_dim": 8, "num_hidden_layers": 6, "sliding_window": None}
    assert rw.from_hf(keys, per_layer=True) == {"full_attention": None}


@pytest.mark.parametrize(
    "interval", [{}, {"no_rope_layer_interval": 2}, {"no_rope_layer_interval": 5}]
)
@pytest.mark.parametrize("family", ["smollm3", "llama4_text"])
def test_without_a_list_the_interval_says_which_layers_rotate(family, interval):
    """A config.json may leave the list to its class, which makes it from the interval."""
    keys = {"num_hidden_layers": 6, **interval}
    theirs = CONFIG_MAPPING[family](**keys).no_rope_layers
    specs = layer_specs({"model_type": family, "head_dim": 8, **keys})
    assert [int(spec is not None) for spec in specs] == theirs
    assert theirs == [
        int((layer + 1) % interval.get("no_rope_layer_interval", 4) != 0) for layer in range(6)
    ]


@pytest.mark.parametrize("layers", [12, 13])
@pytest.mark.parametrize(
    ("family", "given"),
    [
        ("afmoe", {}),
        ("afmoe", {"global_attn_every_n_layers": 3}),
        ("bailing_hybrid", {}),
        ("bailing_hybrid", {"layer_group_size": 5}),
        ("beam", {}),
        ("cohere2", {}),
        ("cohere2", {"sliding_window_pattern": 3}),
        ("exaone4", {}),
        ("exaone4", {"sliding_window_pattern": 2}),
        ("exaone_moe", {}),
        ("gemma3_text", {}),
        ("gemma3_text", {"sliding_window_pattern": 5}),
        ("gemma3n_text", {}),
        ("minimax", {}),
        ("modernbert", {}),
        ("modernbert", {"global_attn_every_n_layers": 2}),
        ("olmo3", {}),
        ("olmo_hybrid", {}),
        ("qwen3_5_text", {}),
        ("qwen3_next", {}),
        ("qwen3_next", {"full_attention_interval": 3}),
    ],
)
def test_without_layer_types_the_layers_are_those_of_the_families_class(family, given, layers):
    """A config.json may leave `layer_types` to its class, as those of Gemma 3 and Cohere 2 do."""
    keys = {"num_hidden_layers": layers, **given}
    theirs = CONFIG_MAPPING[family](**keys).layer_types
    keys |= {"model_type": family, "hidden_size": 512, "num_attention_heads": 4}
    keys |= {"head_dim": 128, "rope_theta": 5e5}
    if family == "bailing_hybrid":
        keys["qk_rope_head_dim"] = 64
    if family == "qwen3_5_text":
        keys["rope_parameters"] = {"mrope_section": [6, 5, 5], "partial_rotary_factor": 0.25}
    if family == "olmo3":
        keys["rope_scaling"] = {"rope_type": "linear", "factor": 2.0}
    declared = layer_specs({**keys, "layer_types": theirs})
    assert len(set(declared)) == 2
    assert layer_specs(keys) == declared


def test_an_interval_that_is_no_number_of_layers_needs_layer_types():
    config = {"model_type": "exaone4", "head_dim": 8, "num_hidden_layers": 4}
    with pytest.raises(RopeError, match="layer_types: must be given to tell which layers are"):
        layer_specs({**config, "sliding_window_pattern": "LLLG"})


def test_more_than_65536_layers_are_refused():
    with pytest.raises(
        RopeError, match="num_hidden_layers: must be an integer from 1 to 65536; got 65537"
    ):
        layer_specs({"model_type": "smollm3", "head_dim": 8, "num_hidden_layers": 65537})


def test_a_theta_for_each_layer_is_read():
    config = {
        "model_type": "granite_swa",
        "head_dim": 8,
        "num_hidden_layers": 4,
        "rope_parameters": ROPE,
    }
    types = ["full_attention", "sliding_attention"] * 2
    specs = rw.from_hf(
        {**config, "layer_types": types, "layer_rope_theta": [0, 5e5, 0, 5e5]}, per_layer=True
    )
    assert specs["full_attention"] is None
    assert specs["sliding_attention"].theta == 5e5
    with pytest.raises(RopeError, match="layer_rope_theta"):
        rw.from_hf(
            {**config, "layer_types": types, "layer_rope_theta": [0, 5e5, 0, 1e6]}, per_layer=True
        )
    muse = {
        **config,
        "model_type": "muse_spark_text",
        "layer_types": types,
        "layer_rope_theta": [0, 5e5, 0, 1e6],
    }
    # Muse's code only asks whether a layer's theta is 0; other values are not used
    assert rw.from_hf(muse, per_layer=True)["sliding_attention"].theta == 1e4


def test_olmo_hybrid_with_a_null_theta_has_no_positions():
    config = {
        "model_type": "olmo_hybrid",
        "head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
    }
    for rope, rotated in (({**ROPE, "rope_theta": None}, False), (ROPE, True), (None, True)):
        specs = layer_specs({**config, "rope_parameters": rope})
        assert [spec is not None for spec in specs] == [False, rotated]


def test_an_empty_list_is_absent_in_llama_4_only():
    keys = {"head_dim": 8, "num_hidden_layers": 4, "no_rope_layers": []}
    assert rw.from_hf({"model_type": "llama4_text", **keys}, per_layer=True)["no_rope"] is None
    with pytest.raises(RopeError, match="no_rope_layers"):
        rw.from_hf({"model_type": "smollm3", **keys}, per_layer=True)
    with pytest.raises(RopeError, match="no_rope_layers"):
        layer_specs({"model_type": "smollm3", **keys, "no_rope_layers": [1, 0]})
    with pytest.raises(RopeError, match="num_hidden_layers"):
        layer_specs({"model_type": "llama", "head_dim": 8})


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("esm", "position_embedding_type", "absolute"),
        ("esm", "position_embedding_type", "rotary"),
        ("granitemoehybrid", "position_embedding_type", None),
        ("granitemoehybrid", "position_embedding_type", "rope"),
        ("zamba2", "use_mem_rope", False),
        ("zamba2", "use_mem_rope", True),
        # published ModernBERTs have this key, which their code does not read
        ("modernbert", "position_embedding_type", "absolute"),
    ],
)
def test_a_model_without_a_rotary_module_has_no_spec(family, key, value):
    if family not in CONFIG_MAPPING:
        pytest.skip(f"the installed transformers has no {family}")
    config = tiny_config(family)
    setattr(config, key, value)
    with torch.device("meta"):
        rotates = any(
            "RotaryEmbedding" in type(module).__name__
            for module in AutoModel.from_config(config).modules()
        )
    # the tiny model may have no layer with attention
    keys = {
        **config.to_dict(),
        key: value,
        "layer_types": None,
    }
    configs = (
        [keys]
        if getattr(CONFIG_MAPPING[family](), key, ()) != value
        else [keys, {k: keys[k] for k in keys if k != key}]
    )
    for each in configs:
        if rotates:
            assert any(rw.from_hf(each, per_layer=True).values())
        else:
            with pytest.raises(RopeError, match=f"{key}: must be .* this model does not rotate"):
                rw.from_hf(each, per_layer=True)


@pytest.mark.parametrize(
    ("family", "key"), [("esm", "position_embedding_type"), ("zamba2", "use_mem_rope")]
)
def test_a_spec_written_for_a_family_gives_its_model_a_rotary_module(family, key):
    if family not in CONFIG_MAPPING:
        pytest.skip(f"the installed transformers has no {family}")
    spec = rw.RopeSpec(32)
    config = tiny_config(family)
    setattr(config, key, rw.to_hf(spec, model_type=family)[key])
    with torch.device("meta"):
        assert any(
            "RotaryEmbedding" in type(module).__name__
            for module in AutoModel.from_config(config).modules()
        )
