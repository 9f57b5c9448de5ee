"""Parts of a patch: length-dependent ropes, vision towers, lazy tables, decorated methods."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from hf_families import CASES, LLAMA3, SECTIONS, YARN
from installed import HERE, V5, code_of, config_of, spelled
from patch_models import SIZES, InFloat64, model_of, outputs, tokens
from torch import nn
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.llama import modeling_llama

from ropewalk import Rope, RopeSpec
from ropewalk.interop.patch.angles import LazyAngles, LazyTable
from ropewalk.interop.patch.functions import RotationFunction
from ropewalk.interop.patch.model import patch, patched, unpatch
from ropewalk.interop.patch.rotary import is_rotary, matches_of
from ropewalk.interop.patch.trials import convention_of

NEAR = {"rtol": 0, "atol": 5e-5}
TRAINED = 24
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 10.0},
    "dynamic": {"rope_type": "dynamic", "factor": 10.0},
    "yarn": {**YARN, "factor": 10.0, "original_max_position_embeddings": TRAINED},
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "original_max_position_embeddings": TRAINED,
        "factor": 10.0,
    },
    "llama3": {**LLAMA3, "original_max_position_embeddings": TRAINED, "rope_theta": 1e4},
}


def scaled_llama(rope: dict | None) -> nn.Module:
    """A Llama trained on 24 tokens; the same weights whatever its rope."""
    longer = (
        {}
        if rope is None or rope["rope_type"] in ("linear", "dynamic")
        else {"max_position_embeddings": 10 * TRAINED}
    )
    keys = {**SIZES, "max_position_embeddings": TRAINED, **longer}
    config = config_of(
        "llama", **keys, rope_parameters={"rope_theta": 1e4, **(rope or {"rope_type": "default"})}
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    model.load_state_dict(model_of("llama").state_dict())
    return model


@pytest.mark.parametrize("name", SCALINGS)
@torch.no_grad()
def test_a_patched_scaled_model_gives_the_logits_of_the_model_for_short_and_long_texts(name):
    """Every scaling but dynamic changes the logits of a short text, and every scaling those of a long
    one.
    """
    short, long = tokens(1, 10), tokens(1, int(1.5 * TRAINED))
    plain = [outputs(patch(scaled_llama(None)), ids) for ids in (short, long)]
    theirs = [outputs(scaled_llama(SCALINGS[name]), ids) for ids in (short, long)]
    model = patch(scaled_llama(SCALINGS[name]))
    ours = [outputs(model, ids) for ids in (short, long)]
    for mine, other in zip(ours, theirs, strict=True):
        assert_close(mine, other, **NEAR)
    assert torch.allclose(ours[0], plain[0], atol=1e-5) == (name == "dynamic")
    assert not torch.allclose(ours[1], plain[1], atol=1e-2)


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
@torch.no_grad()
def test_a_long_call_does_not_change_the_next(name):
    model = patch(scaled_llama(SCALINGS[name]))
    between = tokens(1, TRAINED + 1)  # just past the trained length
    first = outputs(model, between)
    outputs(model, tokens(1, 6 * TRAINED))
    assert torch.equal(outputs(model, between), first)


@torch.no_grad()
def test_trying_a_module_does_not_change_it():
    """Dynamic NTK writes the longest call into its buffers; what unpatch gives back is what was
    there.
    """
    model = scaled_llama(SCALINGS["dynamic"])
    outputs(model, tokens(1, 2 * TRAINED))
    module = model.model.rotary_emb
    before = module.inv_freq.clone(), module.max_seq_len_cached
    patch(model)
    assert torch.equal(module.inv_freq, before[0])
    assert module.max_seq_len_cached == before[1] > TRAINED


@torch.no_grad()
def test_a_long_row_does_not_change_its_neighbour():
    model = patch(scaled_llama(SCALINGS["dynamic"]))
    ids = tokens(1, 11).expand(2, -1)
    where = torch.arange(11) + torch.tensor([[0], [5 * TRAINED]])
    both = outputs(model, ids, position_ids=where)
    assert_close(both[:1], outputs(model, ids[:1]), **NEAR)
    assert not torch.allclose(both[0], both[1], atol=1e-2)


TOWERS = {
    "qwen2_vl": ({}, {"embed_dim": 24, "hidden_size": 48, "mlp_ratio": 2}),
    "qwen3_vl": (
        {"head_dim": 16},
        {
            "hidden_size": 24,
            "out_hidden_size": 48,
            "intermediate_size": 20,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0],
        },
    ),
}


@pytest.mark.parametrize("name", TOWERS)
@torch.no_grad()
def test_vision_towers_rotate_with_our_kernels_too(name):
    text, tower = TOWERS[name]
    tower |= {
        "depth": 2,
        "num_heads": 3,
        "patch_size": 2,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "in_channels": 3,
    }
    marks = {
        "image_token_id": 50,
        "video_token_id": 51,
        "vision_start_token_id": 52,
        "vision_end_token_id": 53,
    }
    if name not in CONFIG_MAPPING:
        pytest.skip(f"{HERE} has no {name}")
    text = spelled(name, {**SIZES, "rope_parameters": dict(SECTIONS), **text})
    text = {"text_config": text} if "text_config" in CONFIG_MAPPING[name].sub_configs else text
    config = config_of(name, **text, vision_config=tower, **marks)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0, 0.3)
    eyes = next(module for path, module in model.named_modules() if path.endswith("visual"))
    ids = torch.tensor([[5, 6, 52, 50, 50, 50, 50, 53, 7, 8]])
    seen = {"pixel_values": torch.randn(16, 24), "image_grid_thw": torch.tensor([[1, 4, 4]])}
    see = lambda: (
        model(ids, **seen, **({"mm_token_type_ids": (ids == 50).int()} if V5 else {})).logits,
        eyes(seen["pixel_values"], grid_thw=seen["image_grid_thw"])[0],
    )
    plain = see()
    with patched(model):
        ours = see()
    for mine, other in zip(ours, plain, strict=True):
        assert not torch.equal(mine, other)
        assert_close(mine, other, rtol=0, atol=1e-4 * other.abs().max().item())
    assert all(torch.equal(mine, other) for mine, other in zip(see(), plain, strict=True))


#: name -> (folder, function, what is found)
FUNCTIONS = {
    "llama": ("llama", "apply_rotary_pos_emb", ("half", "half", "half", False)),
    "cohere": (
        "cohere",
        "apply_rotary_pos_emb",
        ("interleaved", "interleaved", "interleaved", False),
    ),
    "gpt-oss": ("gpt_oss", "apply_rotary_pos_emb", ("pairs", "half", "half", False)),
    "deepseek-v4": (
        "deepseek_v4",
        "apply_rotary_pos_emb",
        ("pairs", "interleaved", "interleaved", True),
    ),
    "vision": ("qwen2_vl", "apply_rotary_pos_emb_vision", ("half", "half", "half", False)),
}


def function_of(name):
    folder, function, _ = FUNCTIONS[name]
    return getattr(code_of(folder), function)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_recognised_by_what_they_do(name):
    found = convention_of(function_of(name))
    assert (found.form, found.layout, found.layout_out, found.at_end) == FUNCTIONS[name][2]


def key_backwards(q, k, cos, sin, unsqueeze_dim=1):
    rotate = modeling_llama.apply_rotary_pos_emb
    return rotate(q, q, cos, sin, unsqueeze_dim)[0], rotate(k, k, cos, -sin, unsqueeze_dim)[0]


def widening(q, k, cos, sin, unsqueeze_dim=1):
    """A plain rotation, except that it doubles what lies beyond the table."""
    width = cos.shape[-1]
    rotated = modeling_llama.apply_rotary_pos_emb(
        q[..., :width], k[..., :width], cos, sin, unsqueeze_dim
    )
    return tuple(
        torch.cat([new, 2 * x[..., width:]], dim=-1) for new, x in zip(rotated, (q, k), strict=True)
    )


@pytest.mark.parametrize(
    "function", [key_backwards, widening, lambda q, k: (q, k), lambda q, k, cos, sin: (q, q)]
)
def test_functions_that_do_something_else_are_not_recognised(function):
    assert convention_of(function) is None


@pytest.mark.parametrize("name", ["llama", "cohere", "deepseek-v4"])
@pytest.mark.parametrize("unsqueeze_dim", [1, 2])
def test_a_replaced_function_gives_the_same_results_on_tables(name, unsqueeze_dim):
    function = function_of(name)
    rotation_function = RotationFunction(function, convention_of(function))
    spec = RopeSpec(8, layout=rotation_function.convention.layout)
    cos, sin = Rope(spec).cos_sin(torch.randint(0, 50, (2, 7)))
    if rotation_function.convention.form != "pairs":
        cos, sin = Rope(spec).cos_sin_hf(torch.randint(0, 50, (2, 7)))
    shape = (2, 3, 7) if unsqueeze_dim == 1 else (2, 7, 3)
    xs = [
        torch.randn(*shape, 8 if name != "deepseek-v4" else 12)
        for _ in rotation_function.rotated_names
    ]
    for given in ((cos, sin), (cos, -sin)):  # DeepSeek V4 unrotates its values
        theirs, ours = (
            function(*xs, *given, unsqueeze_dim=unsqueeze_dim),
            rotation_function(*xs, *given, unsqueeze_dim=unsqueeze_dim),
        )
        assert type(ours) is type(theirs)
        assert_close(ours, theirs, rtol=0, atol=2e-6)


def test_tables_that_are_swapped_or_changed_rotate_as_tensors_and_not_by_positions():
    function = modeling_llama.apply_rotary_pos_emb
    rotation_function, rope = RotationFunction(function, convention_of(function)), Rope(RopeSpec(8))
    rotation_function.add_spec(rope.spec)
    cos, sin = LazyAngles(rope, torch.arange(7)[None], "half", torch.float32).output()
    q, k = torch.randn(2, 1, 3, 7, 8)
    for given in ((cos, sin), (sin, cos), (cos, -sin), (cos, cos)):
        tensors = [table.tensor() if isinstance(table, LazyTable) else table for table in given]
        assert_close(rotation_function(q, k, *given), function(q, k, *tensors), rtol=0, atol=2e-6)


def test_a_replaced_function_returns_none_for_k_none():
    rotation_function = RotationFunction(
        modeling_llama.apply_rotary_pos_emb, convention_of(modeling_llama.apply_rotary_pos_emb)
    )
    cos, sin = Rope(RopeSpec(8)).cos_sin_hf(torch.arange(7)[None])
    q = torch.randn(1, 3, 7, 8)
    rotated, key = rotation_function(q, None, cos, sin)
    assert key is None
    assert_close(rotated, modeling_llama.apply_rotary_pos_emb(q, q, cos, sin)[0], rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    "name", ["llama-2", "llama-3.1", "cohere", "gpt-oss", "deepseek-v2", "gemma-3 full", "qwen2-vl"]
)
def test_a_lazy_table_acts_as_the_family_s_own(name):
    case = CASES[name]
    module = case.rotary_module()
    assert is_rotary(module)
    match = matches_of(module, None)[case.layer_type]
    where = case.placed(torch.tensor([[0, 3, 9, 27, 81]]))
    given = LazyAngles(match.rope, where, match.form, torch.float32).output()
    theirs = module(
        torch.zeros(1),
        where,
        **({} if case.layer_type is None else {"layer_type": case.layer_type}),
    )
    if isinstance(theirs, torch.Tensor):
        given, theirs = (given,), (theirs,)
    for mine, other in zip(given, theirs, strict=True):
        assert isinstance(mine, LazyTable)
        assert mine.to("cpu") is mine
        assert mine.shape == other.shape
        for used in (
            lambda t: t + 0,
            lambda t: 2 * t,
            lambda t: -t,
            lambda t: t[..., :2],
            lambda t: torch.stack([t, t]),
            lambda t: t.abs(),
        ):
            assert_close(used(mine), used(other), rtol=0, atol=2e-5)
        moved = mine.to("meta")
        assert isinstance(moved, LazyTable)
        assert moved.angles.positions.is_meta
        assert mine.to(other.dtype).dtype == other.dtype


def test_frequencies_that_no_config_explains_are_used_as_they_are():
    """A changed inv_freq is respected: q and k rotate by the tables of the model, not of the
    config.
    """
    model = copy.deepcopy(model_of("llama"))
    with torch.no_grad():
        model.model.rotary_emb.inv_freq.mul_(0.7)
        plain = outputs(model)
        assert not torch.allclose(plain, outputs(model_of("llama")), atol=1e-2)
        assert matches_of(model.model.rotary_emb, None) == {}
        assert_close(outputs(patch(model)), plain, **NEAR)
        assert torch.equal(outputs(unpatch(model)), plain)


def announced(function):
    """What older releases of transformers put around forward."""

    @functools.wraps(function)
    def wrapper(self, *args, **kwargs):
        self.calls = getattr(self, "calls", 0) + 1
        return function(self, *args, **kwargs)

    return wrapper


class Decorated(modeling_llama.LlamaAttention):
    forward = announced(announced(modeling_llama.LlamaAttention.forward))


def test_decorated_methods_are_found_behind_their_decorators(monkeypatch):
    monkeypatch.delattr(LazyAngles, "tables")  # a layer that was not patched would call it
    model = copy.deepcopy(model_of("llama"))
    for layer in model.model.layers:
        layer.self_attn.__class__ = Decorated
    with torch.no_grad():
        plain = outputs(model)
        ours = outputs(patch(model))
        assert not torch.equal(ours, plain)
        assert_close(ours, plain, **NEAR)
        assert model.model.layers[0].self_attn.calls == 4
        assert torch.equal(outputs(unpatch(model)), plain)


@torch.no_grad()
def test_a_run_in_float64_does_not_depend_on_a_shift_of_all_positions():
    """The float64 run that the family tests compare with: a shift of all positions changes nothing,
    though float32 angles would change by it.
    """
    wide = copy.deepcopy(model_of("llama")).double()
    with InFloat64():
        near, far = (
            outputs(wide, position_ids=torch.arange(11)[None] + start) for start in (0, 1_000_000)
        )
    assert_close(near, far, rtol=0, atol=1e-7)
