"""After `extend` the forward of a model uses the angles that were asked for; what does not is
refused and left as it was.
"""

from __future__ import annotations

import copy
import itertools
import random
import warnings

import pytest
import torch
from checkpoint_samples import LATENT, build, logits
from extend_models import fresh, lengthen, rotary
from extend_tiny import TRAINED, angles_in_forward, families, has_frequencies, theta_of, tiny
from installed import needs_v5
from torch.testing import assert_close
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import frequency_oracle
from ropewalk import RopeError
from ropewalk.config.hf import from_hf
from ropewalk.interop.extend.keys import kinds
from ropewalk.interop.extend.model import extend

FACTOR = 4.0
#: positions of the last token: far below the trained length, just beyond it, and far beyond it
LAST = (TRAINED // 8, TRAINED, 16 * TRAINED)
#: models whose forward uses rotary modules with a copy of the config
COPIES = ("granite_swa", "granitemoe_swa")
KEYS = ("rope_parameters", "max_position_embeddings", "layer_rope_theta")
#: families that are hard to extend, and the kinds that are tried with them
TROUBLE = {
    "granite_swa": ("linear", "ntk", "yarn", "dynamic_yarn", "longrope"),
    "granitemoe_swa": ("dynamic", "llama3"),
    "phimoe": ("ntk", "linear", "dynamic_yarn"),
    "ministral3": ("linear", "ntk", "yarn"),
    "zaya": ("linear",),
}
SOME = (
    "apertus",
    "arcee",
    "aria_text",
    "bitnet",
    "cohere",
    "cohere2",
    "deepseek_v3",
    "ernie4_5",
    "exaone4",
    "falcon",
    "gemma2",
    "gemma3_text",
    "gemma4_text",
    "glm4",
    "glm4v_text",
    "gpt_neox",
    "gpt_oss",
    "granite",
    "helium",
    "hunyuan_v1_dense",
    "lfm2",
    "llama",
    "llama4_text",
    "minimax_m2",
    "mistral4",
    "mixtral",
    "modernbert-decoder",
    "nemotron",
    "olmo2",
    "olmo3",
    "olmoe",
    "persimmon",
    "phi",
    "phi3",
    "qwen2_moe",
    "qwen2_vl_text",
    "qwen3",
    "qwen3_next",
    "qwen3_vl_text",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
)

pytestmark = needs_v5("has other families")


def given(kind, pairs):
    """What `extend` is given for a kind."""
    if kind == "dynamic_yarn":
        return {}
    factors = {
        "short_factor": [1 + i / 10 for i in range(pairs)],
        "long_factor": [1 + i / 3 for i in range(pairs)],
    }
    return {
        "factor": FACTOR,
        **(factors if kind == "longrope" else {}),
        **({"beta_fast": 3.0} if kind == "yarn" else {}),
    }


def defined(kind, angles, length):
    """Angles at position 1, sorted, and the magnitude, by the published formula in 50 digits, from
    the unscaled angles.
    """
    pairs = angles.numel()
    defaults = {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": True,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    absent = dict.fromkeys(("attention_factor", "mscale", "mscale_all_dim"))
    fields = {"original_length": TRAINED, **defaults, **absent, **given(kind, pairs)}
    radians, magnitude = frequency_oracle.ORACLE[kind](2 * pairs, theta_of(angles), length, fields)
    return torch.tensor(
        [float(each) for each in radians], dtype=torch.float64
    ).sort().values, float(magnitude)


def quietly(model, kind, pairs, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return extend(model, kind, **given(kind, pairs), **options)


def check_effect(family, kind):
    """Extend a tiny model; compare every rotary module that its forward calls. Returns whether it
    was extended.
    """
    model = tiny(family)
    plain = angles_in_forward(model, LAST[0])
    config = model.config.to_dict()
    try:
        report = quietly(model, kind, min(angles.numel() for angles, _ in plain.values()))
    except RopeError:
        assert model.config.to_dict() == config
        for key, (angles, magnitude) in angles_in_forward(model, LAST[0]).items():
            assert torch.equal(angles, plain[key][0])
            assert magnitude == plain[key][1]
        return False
    for last in LAST:
        for (name, layer_type), (found, magnitude) in angles_in_forward(model, last).items():
            before = plain[name, layer_type][0]
            stays = layer_type is not None and layer_type not in report.specs
            wanted, size = (before, 1.0) if stays else defined(kind, before, last + 1)
            assert_close(
                found,
                wanted,
                rtol=1e-5,
                atol=0,
                msg=lambda text, at=(name, layer_type, last): f"{at}: {text}",
            )
            assert magnitude == pytest.approx(size, rel=1e-5)
    return True


def test_the_forward_of_an_extended_model_uses_the_angles_of_its_kind(full):
    """A few families and kinds; with --full, all that have a tiny model that runs here, and every
    kind.
    """
    draw = random.Random(20260701)
    cases = itertools.product(families() if full else SOME, kinds())
    cases = [*cases] if full else draw.sample([*cases], 8)
    done = {True: 0, False: 0}
    for family, kind in cases:
        try:
            rotates = angles_in_forward(tiny(family), 3)
        except Exception:  # the rules for tiny configs do not suit every family
            continue
        if rotates:
            done[check_effect(family, kind)] += 1
    print(f"{done[True]} extended, {done[False]} refused, of {len(cases)}")
    assert done[True] >= len(cases) // 2
    assert done[False] <= done[True] // 5


@pytest.mark.parametrize("family", TROUBLE)
def test_families_that_are_hard_to_extend_are_extended_with_effect(family):
    extended = {kind for kind in TROUBLE[family] if check_effect(family, kind)}
    assert extended == ({"ntk"} if family == "phimoe" else set(TROUBLE[family]))


@pytest.mark.parametrize("family", COPIES)
@pytest.mark.parametrize("kind", ["ntk", "yarn"])
def test_a_model_with_copies_of_its_config_is_saved_and_undone(family, kind, tmp_path):
    model = tiny(family)
    ropes = lambda: [
        vars(module.config)[key]
        for module in model.model.modules()
        if has_frequencies(module)
        for key in KEYS
    ]
    plain, before = logits(model, start=150), copy.deepcopy(ropes())
    report = quietly(model, kind, 8)
    extended = logits(model, start=150)
    assert (extended - plain).abs().max() > 1e-6
    model.save_pretrained(tmp_path)
    assert torch.equal(
        logits(AutoModelForCausalLM.from_pretrained(tmp_path).eval(), start=150), extended
    )
    report.undo()
    assert torch.equal(logits(model, start=150), plain)
    assert ropes() == before


@pytest.mark.parametrize("kind", ["linear", "ntk", "dynamic_yarn"])
@pytest.mark.parametrize("thetas", [[1e4, 5e5], [5e5, 5e5], [5e5, 0]])
def test_layers_with_a_theta_of_their_own_are_refused(kind, thetas):
    model = tiny("granite_swa", layer_rope_theta=thetas)
    before, config = logits(model, start=150), model.config.to_dict()
    with pytest.raises(RopeError) as error:
        quietly(model, kind, 8)
    assert error.value.field == "layer_rope_theta"
    assert torch.equal(logits(model, start=150), before)
    assert model.config.to_dict() == config


def test_a_theta_for_each_layer_is_written_too():
    model = tiny("granite_swa", layer_rope_theta=[0, 1e4])
    report = quietly(model, "ntk", 8)
    longer = report.specs["sliding_attention"].theta  # the other layer is not rotated
    assert model.config.layer_rope_theta == [0, longer]
    assert longer == pytest.approx(1e4 * FACTOR ** (16 / 14))


class Drifts(LlamaRotaryEmbedding):
    """A rotary module that, once extended, computes wrong angles for one pair or a wrong magnitude,
    always or from a length on.
    """

    pair, relative, beyond, magnitude = 0, 0.0, 0, 1.0

    def forward(self, x, position_ids):
        cos, sin = super().forward(x, position_ids)
        if self.rope_type == "default" or position_ids.max() < self.beyond:
            return cos, sin
        angle = torch.atan2(sin, cos).double()
        for column in (self.pair, self.pair + angle.shape[-1] // 2):
            angle[..., column] *= 1 + self.relative
        size = torch.hypot(cos, sin) * self.magnitude
        return angle.cos().float() * size, angle.sin().float() * size


@pytest.mark.parametrize("drawn", range(12))
def test_a_rotary_module_that_computes_other_angles_is_refused_and_restored(drawn):
    """One pair, fast or slow, or the magnitude is wrong, at every length or only at longer ones."""
    draw = random.Random(drawn)
    wrong = {"pair": draw.randrange(6), "beyond": draw.choice([0, 0, 100])}
    wrong |= draw.choice(
        [{"relative": draw.choice([-1, 1]) * 10 ** draw.uniform(-4, -1)}, {"magnitude": 1.0001}]
    )
    model = fresh("llama")
    model.model.rotary_emb = type("Drifts", (Drifts,), wrong)(model.config)
    before, config = logits(model, start=150), model.config.to_dict()
    with pytest.raises(RopeError, match=r"model\.rotary_emb computes other angles") as error:
        lengthen(model, draw.choice(["linear", "yarn", "llama3"]))
    assert error.value.field == "kind"
    assert torch.equal(logits(model, start=150), before)
    assert model.config.to_dict() == config
    assert "_ropewalk_extension" not in vars(rotary(model))


def test_a_rotary_module_that_computes_the_new_angles_is_not_refused():
    model = fresh("llama")
    model.model.rotary_emb = Drifts(model.config)
    lengthen(model, "yarn")


def test_a_layer_type_that_no_rotary_module_serves_is_refused():
    model = tiny("gemma3_text", layer_types=["sliding_attention"] * 2, num_hidden_layers=2)
    with pytest.raises(
        RopeError,
        match="layer_types: must be among those of the model's rotary modules: sliding_attention",
    ):
        quietly(model, "linear", 8)


@pytest.mark.parametrize("kind", ["yarn", "dynamic_yarn"])
def test_a_model_without_weights_is_extended_too(kind):
    model = fresh("llama").to("meta")
    lengthen(model, kind)
    assert rotary(model).inv_freq.is_meta
    other = fresh("llama").to("meta")
    other.model.rotary_emb = type("Drifts", (Drifts,), {"magnitude": 1.1})(other.config).to("meta")
    with pytest.raises(RopeError, match="computes other angles"):
        lengthen(other, "yarn")


def test_rounded_frequencies_do_not_prevent_patching():
    model = fresh("llama").bfloat16()
    lengthen(model, "yarn")
    assert rotary(model).inv_freq.dtype == torch.float32  # as a newly loaded model has them


@pytest.mark.filterwarnings("ignore:mlx-lm at:UserWarning")
def test_another_softmax_factor_needs_a_newly_loaded_model():
    yarn = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 2.0,
        "original_max_position_embeddings": 32,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    model = build("deepseek_v3", **LATENT, rope_parameters=yarn)
    for kind, options in {"linear": {}, "yarn": {"mscale": 1.0, "mscale_all_dim": 1.0}}.items():
        with pytest.raises(RopeError) as error:
            extend(model, kind, factor=4, overwrite=True, **options)
        assert error.value.field == "mscale_all_dim"
    report = extend(
        model, "yarn", factor=2, overwrite=True, mscale=1.0, mscale_all_dim=1.0, beta_fast=3.0
    )
    assert (
        report.specs["full_attention"].extra_softmax_factor
        == from_hf(model.config).extra_softmax_factor
        > 1
    )
