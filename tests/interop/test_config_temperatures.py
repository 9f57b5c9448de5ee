"""Temperatures read from configs, against the queries of tiny transformers models at far positions."""

import pytest
import torch
from extend_tiny import tiny
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import ropewalk as rw
from ropewalk.attention.temperature import factor
from ropewalk.config import layer_specs, temperatures_from_hf
from ropewalk.errors import RopeError
from ropewalk.temperatures import FloorLog, LearnedLog, LogAbove, LogN, Power

POSITIONS = torch.tensor([[0, 1, 7, 8, 15, 16, 31, 47]])
ROPE = {"rope_type": "default", "rope_theta": 1e4}
MINISTRAL = {**ROPE, "llama_4_scaling_beta": 0.3, "original_max_position_embeddings": 8}
#: a family, the keys that give it a temperature, and keys that take it away from the same weights
CASES = [
    (
        "ministral3",
        {"rope_parameters": MINISTRAL},
        {"rope_parameters": {**MINISTRAL, "llama_4_scaling_beta": 0.0}},
    ),
    (
        "llama4_text",
        {
            "num_hidden_layers": 4,
            "layer_types": None,
            "floor_scale": 2,
            "attn_scale": 0.3,
            "use_qk_norm": False,
        },
        {"attn_temperature_tuning": False},
    ),
]


def queries(model, **positions):
    """The rotated queries of each layer, when every layer gets the same input."""
    seen = {}

    def record(module, query, *args, **kwargs):
        seen[module.layer_idx] = query
        out, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, *args, **kwargs)
        # so that a factor in one layer does not change the next one
        return torch.zeros_like(out), None

    AttentionInterface.register("record_temperature_test", record)
    AttentionMaskInterface.register("record_temperature_test", sdpa_mask)
    model.set_attn_implementation("record_temperature_test")
    with torch.no_grad():
        model(torch.arange(3, 3 + len(POSITIONS[0]))[None], use_cache=False, **positions)
    return [seen[layer].double() for layer in sorted(seen)]


@pytest.mark.parametrize(("family", "keys", "without"), CASES, ids=[case[0] for case in CASES])
def test_temperatures_read_from_a_config_are_those_of_the_model(family, keys, without):
    model = tiny(family, **keys)
    plain = tiny(family, **{**keys, **without})
    plain.load_state_dict(model.state_dict())
    # transformers' Llama 4 counts tokens instead of reading positions
    positions = torch.arange(8)[None] if family == "llama4_text" else POSITIONS
    places = {"position_ids": positions}
    by_type = temperatures_from_hf(model.config)
    assert any(by_type.values())
    names = [
        "no_rope" if spec is None and "no_rope" in by_type else None
        for spec in layer_specs(model.config)
    ]
    types = model.config.to_dict().get("layer_types") or ["full_attention"] * len(names)
    for name, layer_type, got, before in zip(
        names, types, queries(model, **places), queries(plain, **places), strict=True
    ):
        temperature = by_type[name or layer_type]
        expected = (
            before
            if temperature is None
            else before * factor(temperature, positions)[:, None, :, None]
        )
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_temperatures_are_read_from_the_keys_of_every_family():
    small = {"head_dim": 8, "num_hidden_layers": 4}
    llama4 = {"model_type": "llama4_text", **small}
    assert temperatures_from_hf(llama4) == {
        "full_attention": None,
        "no_rope": FloorLog(0.1, 8192, shift=1),
    }
    assert temperatures_from_hf({**llama4, "attn_temperature_tuning": False})["no_rope"] is None
    beam = {
        "model_type": "beam",
        **small,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }
    assert temperatures_from_hf(beam) == {
        "sliding_attention": None,
        "full_attention": Power(2048, 0.1),
    }
    large = {
        "model_type": "mistral_large4_text",
        "qk_rope_head_dim": 8,
        "num_hidden_layers": 4,
        "rope_parameters": ROPE,
    }
    assert set(temperatures_from_hf(large).values()) == {LearnedLog(scale=0.0, bias=1.0)}
    types = ["hybrid_sliding", "hybrid"]
    inkling = {
        "model_type": "inkling_text",
        "layer_types": types,
        "log_scaling_n_floor": 128,
        "log_scaling_alpha": 0.2,
    }
    assert temperatures_from_hf(inkling) == {"hybrid_sliding": None, "hybrid": LogAbove(0.2, 128)}
    assert set(temperatures_from_hf({**inkling, "log_scaling_n_floor": None}).values()) == {None}
    qwen = {
        "model_type": "qwen",
        "head_dim": 8,
        "rotary_emb_base": 1e4,
        "use_logn_attn": True,
        "seq_length": 2048,
    }
    assert temperatures_from_hf(qwen) == {"full_attention": LogN(2048)}
    assert temperatures_from_hf({"model_type": "llama", "head_dim": 8}) == {"full_attention": None}
    assert "FloorLog" in str(rw.explain(llama4))
    with pytest.raises(RopeError, match="original_max_position_embeddings"):
        temperatures_from_hf(
            {
                "model_type": "ministral3",
                "head_dim": 8,
                "rope_parameters": {**ROPE, "llama_4_scaling_beta": 0.1},
            }
        )


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_the_temperature_of_ministral_is_read_in_both_spellings(key):
    config = {
        "model_type": "ministral3",
        "head_dim": 16,
        "max_position_embeddings": 64,
        key: MINISTRAL,
    }
    assert temperatures_from_hf(config) == {"full_attention": FloorLog(scale=0.3, length=8)}
