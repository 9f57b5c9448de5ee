"""Every family's q and k, as its own code rotates them: pairing errors hide in cos and sin, so q
and k are compared.
"""

from __future__ import annotations

import inspect
import json
import math
from types import SimpleNamespace

import pytest
import torch
import transformers
from hf_families import CASES, NEAR, POSITIONS, SECTIONS, Case
from installed import HERE, V5, code_of, config_of, rope_of, skip_old_yarn
from torch.testing import assert_close

from ropewalk import Rope, RopeError, RopeSpec
from ropewalk.config.families import FAMILIES
from ropewalk.config.hf import from_hf
from ropewalk.frequencies import Yarn
from ropewalk.frequencies.formulas import mscale
from ropewalk.kernels.rotation import definition
from ropewalk.tensor_frequencies import ladder
from tensor_forms import tensors

#: how far q and k of size 1 may differ in float32, where a family multiplies in another order
ROUNDING = 5e-6


def spec_of(case: Case) -> RopeSpec:
    if case.model_type == "deepseek_v3" and rope_of(case.config).get("factor"):
        # this config's factor is not the ratio of its two lengths
        skip_old_yarn()
    if case.layer_type is not None:
        return from_hf(case.config, per_layer=True, precision="hf")[case.layer_type]
    return from_hf(case.config, precision="hf")


def positions_of(case: Case, spec: RopeSpec, positions: torch.Tensor = POSITIONS) -> torch.Tensor:
    placed = case.placed(positions)
    return placed if case.axes == spec.num_axes else placed.expand(spec.num_axes, *placed.shape)


def one_per_pair(table: torch.Tensor, pairs: int, slack: float) -> torch.Tensor:
    """The family's table with one column a pair, whichever way it was doubled."""
    if table.shape[-1] == pairs:
        return table
    if (table[..., :pairs] - table[..., pairs:]).abs().max() <= slack:
        return table[..., :pairs]
    assert_close(table[..., ::2], table[..., 1::2], rtol=0, atol=slack)
    return table[..., ::2]


@pytest.fixture(params=CASES)
def case(request) -> Case:
    return CASES[request.param]


def test_frequencies_are_those_of_the_model_bit_for_bit(case):
    spec, module = spec_of(case), case.rotary_module()
    theirs = getattr(
        module, "inv_freq" if case.layer_type is None else f"{case.layer_type}_inv_freq"
    )
    ours = ladder(spec).radians
    if case.model_type.startswith("ernie4_5_vl"):
        # stored height first, then width; the rotation is compared below
        ours, theirs = ours.sort().values, theirs.sort().values
    assert torch.equal(ours.to(torch.float32), theirs)


def test_cos_and_sin_are_those_of_the_model_bit_for_bit(case):
    spec = spec_of(case)
    for positions, slack in ((NEAR, 0), (POSITIONS, 2**-23)):
        # torch.polar takes cos and sin from a routine of its own
        slack = 2**-23 if case.style == "complex" else slack
        for ours, theirs in zip(
            Rope(spec).cos_sin(positions_of(case, spec, positions)),
            case.table(positions),
            strict=True,
        ):
            theirs = one_per_pair(theirs, spec.pairs, slack)
            assert_close(ours.expand_as(theirs), theirs, rtol=0, atol=slack)


def test_cos_sin_hf_gives_the_doubled_tables_of_the_model(case):
    spec = spec_of(case)
    theirs = case.table(NEAR)
    doubled_as_paired = spec.layout == "half" or torch.equal(
        theirs[0][..., ::2], theirs[0][..., 1::2]
    )
    if case.style == "complex" or theirs[0].shape[-1] == spec.pairs or not doubled_as_paired:
        return
    for mine, other in zip(
        Rope(spec).cos_sin_hf(positions_of(case, spec, NEAR)), theirs, strict=True
    ):
        assert torch.equal(mine.expand_as(other), other)


def test_rotated_q_and_k_are_those_of_the_model(case):
    spec = spec_of(case)
    q, k = (
        torch.randn(1, 3, POSITIONS.shape[-1], spec.head_dim),
        torch.randn(1, 1, POSITIONS.shape[-1], spec.head_dim),
    )
    rotated = Rope(spec)(q, k, positions_of(case, spec))
    for ours, theirs in zip(rotated, case.rotated(q, k), strict=True):
        assert_close(ours, theirs, rtol=0, atol=ROUNDING)


@pytest.mark.sampled(every=3)
def test_a_saved_config_reads_as_the_object_does(case, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(case.config.to_json_string(use_diff=False))
    assert (
        from_hf(path, per_layer=True)
        == from_hf(tmp_path, per_layer=True)
        == from_hf(case.config, per_layer=True)
    )
    assert from_hf(json.loads(path.read_text()), per_layer=True) == from_hf(
        str(path), per_layer=True
    )


@pytest.mark.parametrize("sections", [[0, 4, 4], [1, 7, 0], [0, 8, 0], [2, 2, 4]])
def test_interleaved_sections_that_do_not_fit_are_read_as_the_code_reads_them(sections):
    """Height and width get every third pair at most, and time the rest."""
    keys = {"rope_parameters": {**SECTIONS, "mrope_section": sections}, "head_dim": 16}
    case = Case("qwen3_vl_text", keys, axes=3)
    with pytest.warns(UserWarning, match="every third pair"):
        spec = from_hf(case.config, precision="hf")
    for ours, theirs in zip(
        Rope(spec).cos_sin(positions_of(case, spec, NEAR)), case.table(NEAR), strict=True
    ):
        assert torch.equal(ours.expand(theirs[..., : spec.pairs].shape), theirs[..., : spec.pairs])


def test_at_least_thirty_families_are_compared():
    assert len({case.model_type for case in CASES.values()}) >= 45
    assert {case.model_type for case in CASES.values()} <= FAMILIES.keys()


#: rows without a modeling file in transformers, or whose rotation is compared by a test of its own
ELSEWHERE = {
    "kimi_k2",
    "minimind",
    "minimax_m1",
    "minimax_text_01",
    "roformer",
    "gptj",
    "codegen",
    "nanochat",
    "dinov3_vit",
    "eomt_dinov3",
    "sapiens2",
}
FOLDERS = {
    "modernbert-decoder": "modernbert_decoder",
    "mllama_text_model": "mllama",
    "emu3_text_model": "emu3",
    **dict.fromkeys(
        ("blt_global_transformer", "blt_local_decoder", "blt_local_encoder", "blt_patcher"), "blt"
    ),
}
#: rows whose code, before v5, is given tables of all positions and chooses rows from them
OTHER_TABLES = {"esm", "idefics", "phimoe"}
#: rows whose tables have one column a pair
UNDOUBLED = {"gpt_oss", "openai_privacy_filter", "deepseek_v4"}


@pytest.mark.parametrize(
    "name", sorted(FAMILIES.keys() - ELSEWHERE - {"llama4_text", "deepseek_v2"})
)
def test_the_layout_of_every_row_is_that_of_its_code(name):
    """A quarter turn sends each member of a pair to the place of the other."""
    folder = FOLDERS.get(name, name.removesuffix("_text"))
    code = code_of(folder)
    names = (
        "apply_rotary_pos_emb_interleave",
        "apply_multimodal_rotary_pos_emb",
        "apply_rotary_pos_emb",
    )
    rotate = next(getattr(code, each) for each in names if hasattr(code, each))
    x = torch.arange(1.0, 9.0).reshape(1, 1, 1, 8)
    cos, sin = torch.zeros(1, 1, 4), torch.ones(1, 1, 4)
    doubled = (cos, sin) if name in UNDOUBLED else (cos.repeat(1, 1, 2), sin.repeat(1, 1, 2))
    arguments = inspect.signature(rotate).parameters
    if "mrope_section" in arguments:
        # before v5 the function gets the tables of three axes, and how many pairs each axis has
        doubled = (*(each.expand(3, 1, 1, -1) for each in doubled), [2, 1, 1])
    if not V5 and name in OTHER_TABLES:
        pytest.skip(f"{HERE} gives the rotation of {name} whole tables to choose from")
    rotated = rotate(x, x, *doubled)[0] if "k" in arguments else rotate(x, *doubled)
    assert torch.equal(
        rotated, definition.rotate(x, cos, sin, FAMILIES[name].layout, FAMILIES[name].layout_out)
    )


#: keys a config.json may leave to its class
LEFT_TO_THE_CLASS = (
    "rope_parameters",
    "rope_scaling",
    "head_dim",
    "rotary_dim",
    "rope_theta",
    "per_layer_config",
)
#: classes whose defaults do not fit together, or that name no head at all
OTHER_DEFAULTS = {"cohere", "falcon_h1", "olmo3", "persimmon", "qwen3_vl_moe_text", "qwen3_vl_text"}
#: what makes models rotate whose defaults do not
ROTATING = {
    "granitemoehybrid": {"position_embedding_type": "rope"},
    "zamba2": {"use_mem_rope": True},
}
UNFIT = {
    "glm4_moe",
    "glm4v_text",
    "glm_image_text",
    "glm4v_moe_text",
    "qwen3_omni_moe_text",
    "blt",
    "esm",
}


# the class of MiniMax-M3 has it and its code ignores it
@pytest.mark.filterwarnings("ignore:config.rotary_dim = 64 is ignored")
@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - ELSEWHERE - UNFIT))
def test_the_defaults_of_every_row_are_those_of_its_config_class(name):
    if not V5 and name in OTHER_DEFAULTS:
        pytest.skip(f"{HERE} has another rope_theta for a {name} whose config names none")
    whole = {**config_of(name, **ROTATING.get(name, {})).to_dict(), "model_type": name}
    bare = {key: value for key, value in whole.items() if key not in LEFT_TO_THE_CLASS}
    if FAMILIES[name].rope_required:
        with pytest.raises(RopeError, match="must be given") as error:
            from_hf(bare)
        assert error.value.field == "rope_parameters"
    else:
        assert from_hf(bare, per_layer=True) == from_hf(whole, per_layer=True)


@pytest.mark.parametrize(
    "name", sorted(FAMILIES.keys() - ELSEWHERE - {"ernie4_5_vl_moe_text", "esm"})
)
def test_a_row_says_whether_the_unscaled_rope_reads_partial_rotary_factor(name):
    folder = FOLDERS.get(name, name.removesuffix("_text"))
    code = code_of(folder)
    rope = {"rope_theta": 1e4, "partial_rotary_factor": 0.5}
    config = SimpleNamespace(head_dim=16, rope_parameters={**rope, "layer": rope})
    if not V5:
        pytest.skip(
            f"{HERE} has one unscaled rope for all families, and it reads partial_rotary_factor"
        )
    made = [
        found
        for key, found in vars(code).items()
        if "RotaryEmbedding" in key and hasattr(found, "compute_default_rope_parameters")
    ]
    radians, _ = made[0].compute_default_rope_parameters(config, layer_type="layer")
    assert len(radians) == (4 if FAMILIES[name].unscaled_reads_fraction else 8)


@pytest.mark.parametrize("rotary_dim", [8, 16])
def test_gptj_rotates_neighbours_of_its_first_dimensions(rotary_dim):
    from transformers.models.gptj import modeling_gptj as code

    spec = from_hf(
        {
            "model_type": "gptj",
            "n_embd": 32,
            "n_head": 2,
            "rotary_dim": rotary_dim,
            "n_positions": 64,
        },
        precision="hf",
    )
    assert (spec.rotated_dims, spec.head_dim, spec.layout) == (rotary_dim, 16, "interleaved")
    table = code.create_sinusoidal_positions(64, rotary_dim)[None, :9]
    sin, cos = table.chunk(2, dim=-1)
    for ours, theirs in zip(Rope(spec).cos_sin(torch.arange(9)[None]), (cos, sin), strict=True):
        assert torch.equal(ours, theirs)
    q = torch.randn(1, 9, 3, 16)
    theirs = torch.cat(
        [code.apply_rotary_pos_emb(q[..., :rotary_dim], sin, cos), q[..., rotary_dim:]], dim=-1
    )
    assert_close(
        Rope(spec).rotate(q, torch.arange(9)[None], seq_dim=-3), theirs, rtol=0, atol=ROUNDING
    )


def test_codegen_rotates_as_gptj_does():
    from transformers.models.codegen import modeling_codegen as code

    spec = from_hf(
        {"model_type": "codegen", "n_embd": 32, "n_head": 2, "rotary_dim": 8, "n_positions": 64},
        precision="hf",
    )
    sin, cos = code.create_sinusoidal_positions(64, 8)[None, :9].chunk(2, dim=-1)
    q = torch.randn(1, 9, 3, 16)
    theirs = torch.cat([code.apply_rotary_pos_emb(q[..., :8], sin, cos), q[..., 8:]], dim=-1)
    assert_close(
        Rope(spec).rotate(q, torch.arange(9)[None], seq_dim=-3), theirs, rtol=0, atol=ROUNDING
    )


def test_roformer_rotates_neighbours_with_an_exact_table():
    """transformers makes RoFormer's table in float64, so precision="exact" gives the same rotation."""
    from transformers import RoFormerConfig
    from transformers.models.roformer import modeling_roformer as code

    config = RoFormerConfig(hidden_size=32, num_attention_heads=2, max_position_embeddings=64)
    table = code.RoFormerSinusoidalPositionalEmbedding(64, 16)
    if hasattr(table, "create_weight"):
        table.weight = torch.nn.Parameter(table.create_weight(), False)
    else:
        table._init_weight()
    q, k = torch.randn(1, 2, 9, 16), torch.randn(1, 2, 9, 16)
    theirs = code.RoFormerSelfAttention.apply_rotary_position_embeddings(
        table.weight[None, None, :9], q, k
    )
    for mine, other in zip(Rope(from_hf(config, precision="exact"))(q, k), theirs, strict=True):
        assert_close(mine, other, rtol=0, atol=1e-6)


def test_minimind_follows_its_formula():
    """theta 1e6, half-split; YaRN with attention factor 1 unless the config says otherwise."""
    shape = {
        "model_type": "minimind",
        "hidden_size": 96,
        "num_attention_heads": 2,
        "max_position_embeddings": 32768,
    }
    plain = from_hf(shape, precision="exact")
    wanted = torch.tensor([1e6 ** (-2 * i / 48) for i in range(24)], dtype=torch.float64)
    assert_close(tensors(plain).radians, wanted, rtol=1e-15, atol=0)
    scaling = {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 2048,
        "beta_fast": 32,
        "beta_slow": 1,
    }
    found = tensors(from_hf({**shape, "rope_scaling": scaling}, precision="exact"))
    low, high = (
        48 * math.log(2048 / (beta * 2 * math.pi)) / (2 * math.log(1e6)) for beta in (32, 1)
    )
    low, high = max(math.floor(low), 0), min(math.ceil(high), 23)
    blend = torch.tensor(
        [min(max((i - low) / (high - low), 0), 1) for i in range(24)], dtype=torch.float64
    )
    assert_close(found.radians, wanted * (1 - blend) + wanted / 16 * blend, rtol=1e-14, atol=0)
    assert found.magnitude == 1.0


@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v3", "glm4-moe-lite"])
def test_the_softmax_factor_of_latent_attention_is_the_square_of_its_mscale(name):
    case = CASES[name]
    spec, config = spec_of(case), case.config
    if V5:
        theirs = case.code.yarn_apply_mscale(rope_of(config), 1.0)
    elif hasattr(case.code, "yarn_get_mscale"):
        theirs = case.code.yarn_get_mscale(40.0, 0.7) ** 2
    else:
        pytest.skip(f"{HERE} leaves the softmax of {case.model_type} alone")
    assert spec.extra_softmax_factor == pytest.approx(theirs, rel=1e-15)
    assert spec.softmax_factor == pytest.approx(theirs, rel=1e-15)
    assert theirs == pytest.approx((0.1 * 0.7 * math.log(40) + 1) ** 2)
    assert isinstance(spec.scaling, Yarn)
    assert tensors(spec).magnitude == pytest.approx(mscale(40.0) / mscale(40.0, 0.7))
    assert spec.head_dim == config.qk_rope_head_dim


def test_other_families_have_no_softmax_factor():
    config = {**CASES["llama yarn"].config.to_dict()}
    scaled = "rope_parameters" if V5 else "rope_scaling"
    config[scaled] = {**config[scaled], "mscale": 1.0, "mscale_all_dim": 0.7}
    assert from_hf(config).softmax_factor == 1.0


@pytest.mark.skipif(not V5, reason="rope_parameters are read by transformers 5")
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral"])
def test_sections_are_not_read_by_a_text_model(model_type):
    """A text model's rotary module in transformers computes the same with and without sections, and
    refuses the rope type `mrope`.
    """
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "num_hidden_layers": 1}
    rope = {"rope_type": "default", "rope_theta": 1e6}
    config = {"model_type": model_type, "max_position_embeddings": 64, **sizes}
    with_sections = {**config, "rope_parameters": {**rope, "mrope_section": [4, 2, 2]}}
    tables = []
    for each in ({**config, "rope_parameters": rope}, with_sections):
        read = transformers.AutoConfig.for_model(**each)
        model = transformers.AutoModel.from_config(read)
        tables.append(model.rotary_emb(torch.zeros(1), torch.arange(9)[None]))
    assert torch.equal(torch.stack(tables[0]), torch.stack(tables[1]))
    with pytest.warns(UserWarning, match="mrope_section.*is ignored"):
        found = from_hf(with_sections)
    assert found == from_hf({**config, "rope_parameters": rope})
    named = {**config, "rope_theta": 1e6, "rope_scaling": {"type": "mrope"}}
    named["rope_scaling"]["mrope_section"] = [4, 2, 2]
    with pytest.raises(KeyError, match="mrope"):
        transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**named))
    with pytest.raises(RopeError, match="must not be mrope"):
        from_hf(named)
