"""An extended model computes the scaled frequencies at once, saves them so that they load again,
and can be put back.
"""

from __future__ import annotations

import copy
import json
import math
import warnings
from pathlib import Path

import pytest
import torch
from checkpoint_samples import LATENT, SMALL, build, logits
from extend_models import (
    FACTOR,
    GIVEN,
    LONG,
    PHI3_TAKES,
    TRAINED,
    built,
    every,
    fresh,
    lengthen,
    rotary,
)
from installed import HERE, V5, needs_v5, rope_of
from transformers import AutoConfig, AutoModelForCausalLM

import frequency_oracle
from ropewalk import RopeError
from ropewalk.config.hf import from_hf
from ropewalk.engines.extended import disagreements
from ropewalk.frequencies import SCALINGS, Default
from ropewalk.interop.extend import keys as extend_keys
from ropewalk.interop.extend.keys import kinds
from ropewalk.interop.extend.model import extend

#: kinds that some engines compute otherwise than transformers, or that no config can hold
DISPUTED = ("dynamic", "longrope", "dynamic_yarn")
EVERYONE = {"vLLM", "SGLang", "mlx-lm", "llama.cpp"}


def frequencies(model, length):
    """The module's own frequencies and magnitude of full attention after a forward of that many
    tokens.
    """
    module = rotary(model)
    prefix = "full_attention_" if hasattr(module, "full_attention_inv_freq") else ""
    layer = ("full_attention",) if prefix else ()
    module(torch.zeros(1), torch.arange(length)[None], *layer)
    return getattr(module, f"{prefix}inv_freq"), getattr(module, f"{prefix}attention_scaling")


def defined(kind, theta, length):
    """Frequencies and magnitude by the published formula, in 50 digits."""
    fields = {
        "factor": FACTOR,
        "original_length": TRAINED,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": True,
        "attention_factor": None,
        "mscale": None,
        "mscale_all_dim": None,
        "low_freq_factor": 1.0,
        "short_factor": [1.0] * len(LONG),
        **GIVEN[kind],
    }
    radians, magnitude = frequency_oracle.ORACLE[kind](2 * len(LONG), theta, length, fields)
    return torch.tensor([float(each) for each in radians]), float(magnitude)


@pytest.mark.sampled(every=3)
@every
@pytest.mark.parametrize("length", [TRAINED // 2, 3 * TRAINED])
def test_the_model_has_the_frequencies_of_the_definition(family, kind, length):
    model = fresh(family)
    theta = 1e6 if family == "gemma3_text" else 1e4
    lengthen(model, kind)
    wanted, size = defined(kind, theta, length)
    found, magnitude = frequencies(model, length)
    torch.testing.assert_close(found, wanted, rtol=3e-6, atol=0)
    assert magnitude == pytest.approx(size, rel=1e-6)


@pytest.mark.sampled(every=3)
@every
def test_a_saved_model_loads_with_the_same_logits(family, kind, tmp_path):
    model = fresh(family)
    plain = logits(model, start=150)
    report = lengthen(model, kind)
    extended = logits(model, start=150)
    assert (extended - plain).abs().max() > 1e-5
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert report.saved == (kind != "dynamic_yarn")
    assert torch.equal(logits(loaded, start=150), extended if report.saved else plain)
    if report.saved:
        read = from_hf(tmp_path, per_layer=True)
        assert {name: read[name] for name in report.specs} == report.specs


@pytest.mark.sampled(every=3)
@every
def test_undo_restores_every_bit(family, kind):
    model = fresh(family)
    before, config, state = (
        logits(model, start=150),
        model.config.to_dict(),
        set(vars(rotary(model))),
    )
    report = lengthen(model, kind)
    logits(model, start=150)  # some rotary modules keep frequencies of an earlier call
    report.undo()
    assert torch.equal(logits(model, start=150), before)
    assert model.config.to_dict() == config
    assert set(vars(rotary(model))) == state
    assert not rotary(model)._forward_pre_hooks
    assert list(rotary(model).state_dict()) == []
    lengthen(model, kind)
    assert extend(model, None) is None
    assert torch.equal(logits(model, start=150), before)
    with pytest.raises(RopeError, match="nothing to undo"):
        extend(model, None)


@pytest.mark.sampled(every=3)
@every
def test_a_copy_is_extended_and_undone_by_itself(family, kind):
    model = fresh(family)
    plain = logits(model, start=150)
    lengthen(model, kind)
    extended, twin = logits(model, start=150), copy.deepcopy(model)
    assert torch.equal(logits(twin, start=150), extended)
    extend(twin, None)
    assert torch.equal(logits(twin, start=150), plain)
    assert torch.equal(logits(model, start=150), extended)


def test_extending_again_starts_from_the_trained_model():
    model, other = fresh("llama"), fresh("llama")
    lengthen(model, "linear")
    lengthen(model, "yarn")
    lengthen(other, "yarn")
    assert torch.equal(logits(model, start=99), logits(other, start=99))
    assert model.config.to_dict() == other.config.to_dict()
    with pytest.raises(RopeError):
        lengthen(model, "yarn", factor=0.5)  # a refusal leaves the extension that was there
    assert torch.equal(logits(model, start=99), logits(other, start=99))
    extend(model, None)
    assert torch.equal(logits(model, start=99), logits(built("llama"), start=99))


@needs_v5("keeps the local rope of Gemma 3 in a module and a config of its own")
def test_extend_leaves_the_sliding_layers_of_gemma_unscaled():
    model = fresh("gemma3_text")
    local = rotary(model).sliding_attention_inv_freq.clone()
    report = lengthen(model, "linear")
    assert list(report.specs) == ["full_attention"]
    assert torch.equal(rotary(model).sliding_attention_inv_freq, local)
    assert model.config.rope_parameters["sliding_attention"] == {
        "rope_type": "default",
        "rope_theta": 10000.0,
    }
    lengthen(model, "linear", layer_types=["sliding_attention"])
    torch.testing.assert_close(rotary(model).sliding_attention_inv_freq, local / FACTOR)
    assert model.config.rope_parameters["full_attention"]["rope_type"] == "default"


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind not in PHI3_TAKES])
def test_scalings_that_the_class_of_phi3_refuses_are_refused(kind):
    model = fresh("phi3")
    before = model.config.to_dict()
    with pytest.raises(RopeError, match=r"Phi3Config|phi3"):
        lengthen(model, kind)
    assert model.config.to_dict() == before


# configs without a model

V4 = {
    "model_type": "llama",
    "hidden_size": 48,
    "num_attention_heads": 4,
    "max_position_embeddings": TRAINED,
    "rope_theta": 1e4,
}
V5_KEYS = {**{key: value for key, value in V4.items() if key != "rope_theta"},
           "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}  # fmt: skip
HF_KINDS = [kind for kind in kinds() if kind != "dynamic_yarn"]


@pytest.mark.parametrize("kind", HF_KINDS)
@pytest.mark.parametrize("given", [V4, V5_KEYS], ids=["v4", "v5"])
def test_a_dict_keeps_its_spelling_and_transformers_reads_it(kind, given):
    if given is V5_KEYS and not V5:
        pytest.skip(f"{HERE} does not read rope_parameters")
    config = copy.deepcopy(given)
    report = lengthen(config, kind)
    assert ("rope_parameters" in config) == ("rope_parameters" in given)
    assert json.loads(json.dumps(config)) == config
    spec = from_hf(config)
    assert spec == report.specs["full_attention"]
    read = AutoConfig.for_model(**config)
    assert from_hf(read) == spec
    raised = kind not in ("linear", "dynamic")
    assert read.max_position_embeddings == (TRAINED * FACTOR if raised else TRAINED)
    if kind in ("yarn", "longrope", "llama3"):
        assert rope_of(read)["original_max_position_embeddings"] == TRAINED
    if kind == "ntk":
        assert spec.scaling == Default()
        assert spec.theta == pytest.approx(1e4 * FACTOR ** (12 / 10))
    else:
        assert isinstance(spec.scaling, SCALINGS[kind])
    report.undo()
    assert config == given


def test_a_config_object_is_extended_and_undone():
    config = AutoConfig.for_model("llama", **SMALL)
    before = config.to_dict()
    report = lengthen(config, "yarn")
    other = build(
        "llama",
        rope_parameters=rope_of(config),
        max_position_embeddings=config.max_position_embeddings,
    )
    model = fresh("llama")
    lengthen(model, "yarn")
    assert torch.equal(logits(model, start=99), logits(other, start=99))
    report.undo()
    assert config.to_dict() == before


def test_the_text_part_of_a_larger_config_is_the_one_that_changes():
    config = {
        "model_type": "gemma3",
        "vision_config": {"hidden_size": 7},
        "text_config": {**V4, "model_type": "llama"},
    }
    lengthen(config, "linear")
    assert config["text_config"]["rope_scaling"] == {"rope_type": "linear", "factor": FACTOR}
    assert config["vision_config"] == {"hidden_size": 7}
    assert "rope_scaling" not in config


def test_old_gemma_configs_scale_their_global_base():
    config = {
        "model_type": "gemma3_text",
        "head_dim": 12,
        "max_position_embeddings": TRAINED,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    }
    lengthen(config, "ntk")
    found = from_hf(config, per_layer=True)
    assert found["full_attention"].theta == pytest.approx(1e6 * FACTOR ** (12 / 10))
    assert found["sliding_attention"].theta == 1e4


def test_other_keys_of_a_rope_are_kept():
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 2, 2]}
    config = {**V5_KEYS, "model_type": "qwen2_vl_text", "rope_parameters": rope}
    lengthen(config, "yarn")
    assert config["rope_parameters"]["mrope_section"] == [2, 2, 2]
    assert config["rope_parameters"]["rope_theta"] == 1e6


def test_a_scaled_config_is_refused_without_overwrite():
    config = copy.deepcopy(V4)
    lengthen(config, "llama3")
    with pytest.raises(RopeError, match="overwrite=True"):
        lengthen(config, "yarn")
    report = lengthen(config, "yarn", overwrite=True)
    # the trained length is llama3's own, not the longer one it serves
    assert report.specs["full_attention"].scaling.original_length == TRAINED
    assert "low_freq_factor" not in config["rope_scaling"]


@pytest.mark.parametrize(
    ("kind", "options", "engines", "says"),
    [
        ("yarn", {"attention_factor": 1.0}, EVERYONE - {"vLLM"}, "attention_factor"),
        (
            "yarn",
            {"attention_factor": 1.0},
            EVERYONE - {"vLLM"},
            f"logits x {(0.1 * math.log(FACTOR) + 1) ** 2:.4g}",
        ),
        ("yarn", {"truncate": False}, {"mlx-lm", "llama.cpp"}, "truncate: not"),
        ("yarn", {"mscale": 1.0, "mscale_all_dim": 0.5}, {"llama.cpp"}, "mscale"),
        ("dynamic", {}, {"vLLM", "SGLang", "llama.cpp"}, "dynamic NTK"),
        ("longrope", {"long_factor": LONG}, {"vLLM", "mlx-lm", "llama.cpp"}, "factors"),
    ],
)
def test_disagreements_names_the_engines_that_differ_on_an_extended_config(
    kind, options, engines, says
):
    """`extend` itself warns of no engine."""
    config = copy.deepcopy(V4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = extend(config, kind, factor=FACTOR, **options)
    assert report.disagreements == ()
    messages = disagreements(
        config, layer_types=report.specs, max_model_len=round(FACTOR * TRAINED)
    )
    assert {text.split(" at ")[0] for text in messages} == engines
    assert all(says in text and "read 2026" in text for text in messages)


def test_engines_that_read_yarn_with_axes_otherwise_are_reported():
    config = {
        **V4,
        "model_type": "qwen2_vl_text",
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 2, 2]},
    }
    lengthen(config, "yarn")
    messages = disagreements(config)
    assert [text.split(" at ")[0] for text in messages] == ["vLLM", "mlx-lm"]
    assert "the band is computed for four times the trained length" in messages[0]


@pytest.mark.parametrize("kind", ["dynamic_yarn", "clipped"])
def test_a_scaling_without_a_config_key_of_extend_is_reported(kind):
    """`to_hf` writes `clipped` as `use_cope`, which no engine reads: `extend` leaves it out."""
    config = copy.deepcopy(V4)
    with pytest.warns(UserWarning, match=f"{kind}: extend writes no config key for it"):
        report = extend(config, kind)
    assert "not saved" in str(report)
    assert config == V4


def test_a_disagreement_about_a_layer_type_that_is_not_extended_is_not_reported():
    """An engine that differs in the local layers did so before the extension."""
    ropes = {
        "full_attention": {"rope_theta": 1e6},
        "sliding_attention": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
    }
    config = {
        "model_type": "gemma3_text",
        "head_dim": 12,
        "max_position_embeddings": TRAINED,
        "rope_parameters": ropes,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = extend(config, "linear", factor=FACTOR)
    messages = disagreements(config, layer_types=report.specs)
    assert any("linear: not" in text for text in messages)
    assert not any("dynamic" in text for text in messages)
    assert not any(text.endswith("; ") for text in messages)


def test_extend_imports_no_engine():
    folder = Path(extend_keys.__file__).parent
    for path in folder.glob("*.py"):
        assert "ropewalk.engines" not in path.read_text(encoding="utf-8"), path.name


@pytest.mark.parametrize("kind", [kind for kind in HF_KINDS if kind not in DISPUTED])
def test_extend_warns_of_nothing_for_kinds_that_a_config_holds_and_engines_agree_on(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert extend(copy.deepcopy(V4), kind, factor=FACTOR, **GIVEN[kind]).disagreements == ()


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"kind": "xpos", "factor": 2}, "kind"),
        ({"kind": "yarn"}, "factor"),
        ({"kind": "linear", "factor": 0.5}, "factor"),
        ({"kind": "dynamic_yarn", "factor": 2}, "factor"),
        ({"kind": "linear", "factor": 2, "beta_fast": 3.0}, "beta_fast"),
        ({"kind": "longrope", "factor": 2}, "long_factor"),
        ({"kind": "longrope", "factor": 2, "long_factor": [1.0] * 5}, "long_factor"),
        ({"kind": "yarn", "factor": 2, "search": lambda factors: 0.0}, "search"),
        ({"kind": "yarn", "factor": 2, "layer_types": ["sliding_attention"]}, "layer_types"),
        ({"kind": "yarn", "factor": 2, "original_length": 0}, "original_length"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(arguments, field):
    config = copy.deepcopy(V4)
    with pytest.raises(RopeError) as error:
        extend(config, **arguments)
    assert error.value.field == field
    assert config == V4


def test_what_has_no_scalable_rope_is_refused():
    gpt2 = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("gpt2", n_embd=8, n_head=2, n_layer=1, vocab_size=9)
    )
    for thing in (gpt2, torch.nn.Linear(2, 2), 3):
        with pytest.raises(RopeError, match="model"):
            extend(thing, "linear", factor=2)
    with pytest.raises(RopeError, match="no max_position_embeddings"):
        extend(
            {key: value for key, value in V4.items() if key != "max_position_embeddings"},
            "yarn",
            factor=2,
        )


@needs_v5("has no rope_parameters by layer type")
def test_truncate_per_layer_type_is_refused():
    """transformers reads `truncate` from the outer object, in which the ropes of the layer types are."""
    with pytest.raises(RopeError, match="truncate"):
        lengthen(fresh("gemma3_text"), "yarn", truncate=False)


def test_latent_attention_takes_a_softmax_scale_only_when_it_is_built():
    model = build("deepseek_v3", **LATENT)
    with pytest.raises(RopeError, match="mscale_all_dim"):
        lengthen(model, "yarn", mscale=1.0, mscale_all_dim=1.0)
    lengthen(model, "yarn")


def test_a_search_sees_the_model_under_the_factors_it_judges():
    model, wanted = fresh("llama"), torch.tensor(LONG)
    plain = logits(model, start=150)
    seen = {}

    def loss(factors):
        found, _ = frequencies(model, 3 * TRAINED)
        stretched = 1e4 ** (-torch.arange(6) / 6) / found
        torch.testing.assert_close(stretched, torch.tensor(factors), rtol=1e-5, atol=0)
        seen[factors] = (stretched - wanted).square().sum().item()
        return seen[factors]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        report = extend(
            model,
            "longrope",
            factor=FACTOR,
            search=loss,
            search_options={"rounds": 3, "population": 10},
        )
    assert report.specs["full_attention"].scaling.long_factor == min(seen, key=seen.__getitem__)
    assert len(seen) > 10
    extend(model, None)
    assert torch.equal(logits(model, start=150), plain)


def test_extending_a_model_with_an_adapter_and_its_base_is_the_same():
    peft = pytest.importorskip("peft")
    model = fresh("llama")
    plain = logits(model, start=150)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"])).eval()
    lengthen(adapted, "yarn")
    assert rope_of(model.config)["rope_type"] == "yarn"
    assert (logits(adapted, start=150) - plain).abs().max() > 1e-5
    extend(model, None)
    assert torch.equal(logits(adapted, start=150), plain)
