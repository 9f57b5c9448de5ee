"""Rotation functions of the families: a replacement returns what the function returns, in random
calls of every kind it takes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from installed import code_of, config_of, needs_v5
from patch_models import SIZES, model_of, squaring
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import AutoModel, AutoModelForCausalLM
from transformers.models.llama import modeling_llama

from ropewalk import Rope, RopeError, RopeSpec
from ropewalk.interop.patch.angles import LazyAngles
from ropewalk.interop.patch.functions import RotationFunction
from ropewalk.interop.patch.model import patch, patched
from ropewalk.interop.patch.trials import convention_of

pytestmark = needs_v5("has none of these functions")
ROWS, HEADS, KEY_HEADS, TOKENS = 2, 3, 1, 5


def x(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def doubled(*shape: int, interleaved: bool = False) -> list[Tensor]:
    """Random cos and sin [..., pairs], each entry twice."""
    return [
        each.repeat_interleave(2, -1) if interleaved else torch.cat((each, each), -1)
        for each in torch.rand(2, *shape)
    ]


def by_heads(tokens: int = TOKENS, width: int = 12) -> tuple[Tensor, Tensor]:
    return x(ROWS, HEADS, tokens, width), x(ROWS, KEY_HEADS, tokens, width)


def sam2_calls():
    for repeats, unrotated in ((1, 0), (1, 2), (3, 0), (3, 2), (0, 4)):
        q, k = x(ROWS, 1, TOKENS, 12), x(ROWS, 1, repeats * TOKENS + unrotated, 12)
        options = {"num_k_exclude_rope": unrotated, "repeat_freqs_k": repeats != 1}
        yield [q, k, *doubled(TOKENS, 6, interleaved=True)], options


def gemma4_calls():
    for axes in (1, 2, 3):
        blocks = zip(*(doubled(ROWS, TOKENS, 3) for _ in range(axes)), strict=True)
        tables = [torch.cat(each, dim=-1) for each in blocks]
        yield (
            [
                x(ROWS, TOKENS, HEADS, 6 * axes),
                *tables,
                torch.zeros(ROWS, TOKENS, axes, dtype=torch.int64),
            ],
            {},
        )


def llama4_calls():
    turns = torch.polar(torch.rand(TOKENS, 1, 6), torch.rand(TOKENS, 1, 6))
    yield [x(ROWS, TOKENS, HEADS, 12), x(ROWS, TOKENS, HEADS, 12), turns], {}


def qwen4_calls():
    cos, sin = doubled(ROWS, TOKENS, 6)
    yield [*by_heads(width=16), cos, sin], {}
    yield [x(ROWS, HEADS, TOKENS, 16)], {"cos": cos, "sin": sin}


def muse_calls():
    for count in (TOKENS, 3, 1):
        yield (
            [x(ROWS, HEADS, count, 12), x(ROWS, KEY_HEADS, TOKENS, 12), *doubled(ROWS, TOKENS, 6)],
            {},
        )


def clvp_calls():
    yield (
        [
            *by_heads(),
            x(ROWS, KEY_HEADS, TOKENS, 12),
            *doubled(9, 6),
            torch.randint(0, 9, (ROWS, TOKENS)),
        ],
        {},
    )


def dinov3_calls():
    yield from (([*by_heads(TOKENS + more), *doubled(TOKENS, 6)], {}) for more in (0, 1, 5))


#: family -> its function, and calls as its layers make them
CALLS: dict[str, tuple[str, Callable[[], Iterable[tuple[list, dict[str, Any]]]]]] = {
    "nanochat": ("apply_rotary_pos_emb", lambda: [([*by_heads(), *doubled(ROWS, TOKENS, 6)], {})]),
    "dinov3_vit": ("apply_rotary_pos_emb", dinov3_calls),
    "muse_glimmer_assistant": ("apply_rotary_pos_emb", muse_calls),
    "sam3": (
        "apply_rotary_pos_emb_2d",
        lambda: [([*by_heads(), *doubled(TOKENS, 6, interleaved=True)], {})],
    ),
    "sam2_video": ("apply_rotary_pos_emb_2d", sam2_calls),
    "minimax_m3_vl": (
        "apply_rotary_pos_emb_vision",
        lambda: [([x(1, TOKENS, HEADS, 16), x(1, TOKENS, HEADS, 16), *doubled(TOKENS, 6)], {})],
    ),
    "llama4": ("vision_apply_rotary_emb", llama4_calls),
    "gemma4": ("apply_multidimensional_rope", gemma4_calls),
    "musicflamingo": (
        "apply_rotary_time_emb",
        lambda: [([x(ROWS, TOKENS, 16), *doubled(ROWS, TOKENS, 6, interleaved=True)], {})],
    ),
    "clvp": ("apply_rotary_pos_emb", clvp_calls),
    "qwen4_exp": ("apply_rotary_pos_emb", qwen4_calls),
    "mistral_large4": (
        "apply_rotary_pos_emb_interleave",
        lambda: [([by_heads()[0], None, *doubled(ROWS, TOKENS, 6)], {})],
    ),
}


def tensors(found: Any) -> list[Tensor]:
    return [each for each in (found if isinstance(found, tuple) else (found,)) if each is not None]


@pytest.mark.parametrize("family", CALLS)
def test_a_replacement_returns_what_the_function_returns(family):
    name, calls = CALLS[family]
    function = getattr(code_of(family), name)
    replacement = RotationFunction(function, convention_of(function))
    for args, options in calls():
        theirs, ours = function(*args, **options), replacement(*args, **options)
        assert type(ours) is type(theirs)
        assert_close(ours, theirs, rtol=0, atol=2e-6)
        inputs = [each for each in args if isinstance(each, Tensor) and each.requires_grad]
        slopes = [
            torch.autograd.grad(sum(each.sin().sum() for each in tensors(found)), inputs)
            for found in (ours, theirs)
        ]
        assert_close(*slopes, rtol=0, atol=5e-6)


def test_a_cross_attention_with_tables_of_its_own_for_the_keys_is_not_recognised():
    assert convention_of(code_of("edgetam_video").apply_rotary_pos_emb_2d_cross_attn) is None


def without_last_keys(q, k, cos, sin, unsqueeze_dim=1):
    """A plain rotation, except that tokens beyond the number of table rows are not rotated."""
    width = cos.shape[-2]
    rotated = modeling_llama.apply_rotary_pos_emb(
        q[..., :width, :], k[..., :width, :], cos, sin, unsqueeze_dim
    )
    return tuple(
        torch.cat([new, old[..., width:, :]], dim=-2)
        for new, old in zip(rotated, (q, k), strict=True)
    )


def swapped(q, k, cos, sin, unsqueeze_dim=1):
    return modeling_llama.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)[::-1]


def shorter_from_the_front(q, k, cos, sin, unsqueeze_dim=1):
    count = q.shape[-2]
    rotate = modeling_llama.apply_rotary_pos_emb
    return rotate(q, q, cos[:, :count], sin[:, :count])[0], rotate(k, k, cos, sin)[0]


@pytest.mark.parametrize("function", [without_last_keys, swapped, shorter_from_the_front])
def test_a_function_that_differs_in_some_call_is_not_recognised(function):
    """The functions rotate as plain ones if q and k are equal and as long as the table; patch also
    tries longer tensors, different q and k, and a shorter q.
    """
    assert convention_of(function) is None


@pytest.mark.parametrize(
    ("family", "lengths"),
    [("muse_glimmer_assistant", (2, 5)), ("dinov3_vit", (7, 7)), ("dinov3_vit", (5, 5))],
)
def test_the_last_tokens_take_the_last_positions(family, lengths):
    """A query with fewer tokens than the tables have rows takes their last rows; tokens beyond the
    number of rows, at the front, are not rotated. Lazy tables do the same.
    """
    function = code_of(family).apply_rotary_pos_emb
    replacement, rope = RotationFunction(function, convention_of(function)), Rope(RopeSpec(12))
    replacement.add_spec(rope.spec)
    tables = LazyAngles(rope, torch.tensor([[0, 3, 9, 20, 900]]), "half", torch.float32)
    q, k = x(ROWS, HEADS, lengths[0], 12), x(ROWS, KEY_HEADS, lengths[1], 12)
    theirs, ours = function(q, k, *tables.tables()), replacement(q, k, *tables.output())
    assert_close(ours, theirs, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tables_whose_members_differ_are_refused_when_they_arrive(dtype):
    """One table in a thousand rows is wrong in one entry; tables that differ by rounding are no
    reason to stop.
    """
    function = modeling_llama.apply_rotary_pos_emb
    replacement = RotationFunction(function, convention_of(function))
    q, k = by_heads(1000)
    cos, sin = (table.to(dtype) for table in doubled(ROWS, 1000, 6))
    rounded = [table.clone() for table in (cos, sin)]
    for table in rounded:
        table[..., 6:] *= 1 + torch.finfo(dtype).eps
    assert_close(
        replacement(q, k, *rounded),
        function(q, k, *rounded),
        rtol=0,
        atol=0.05 if dtype is torch.bfloat16 else 1e-5,
    )
    for index in range(2):
        tables = [cos.clone(), sin.clone()]
        tables[index][1, 901, 7] += 0.1
        with pytest.raises(RopeError, match="both members of a pair"):
            replacement(q, k, *tables)


def test_functions_that_read_one_member_take_any_tables():
    """GLM reads the first half of its tables alone."""
    function = code_of("glm").apply_rotary_pos_emb
    replacement = RotationFunction(function, convention_of(function))
    q, k = by_heads()
    cos, sin = torch.rand(2, ROWS, TOKENS, 12)
    assert_close(replacement(q, k, cos, sin), function(q, k, cos, sin), rtol=0, atol=2e-6)


HUNYUAN = {
    "head_dim": 16,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2, 2]},
}


def test_a_model_whose_pairs_use_two_axes_is_refused_when_it_is_patched():
    """In HunYuan-VL the two members of a pair are rotated by positions on different axes."""
    torch.manual_seed(1)
    model = AutoModel.from_config(config_of("hunyuan_vl_text", **{**SIZES, **HUNYUAN})).eval()
    where = torch.arange(7).expand(4, 1, 7) + torch.arange(4)[:, None, None]
    cos, _ = model.rotary_emb(torch.zeros(1), where)
    assert (cos[..., :8] - cos[..., 8:]).abs().max() > 0.1
    with pytest.raises(RopeError, match="two members of a pair") as error:
        patch(model)
    assert error.value.field == "HunYuanVLRotaryEmbedding"
    # its layers use these tables, so there is no other part
    assert "patch(model" not in str(error.value)


@torch.no_grad()
def test_positions_on_more_axes_than_the_config_names_give_the_same_output():
    """NeoMME rotates text by one axis and images by two; its config names none."""
    torch.manual_seed(1)
    model = AutoModel.from_config(
        config_of("neomme", **{**SIZES, "head_dim": 16}), attn_implementation="eager"
    ).eval()
    ids = torch.randint(3, 61, (2, 11))
    for given in ({}, {"position_ids": torch.randint(0, 40, (2, 2, 11))}):
        plain = model(ids, **given)[0]
        with patched(model):
            assert_close(model(ids, **given)[0], plain, rtol=0, atol=2e-5)


class Composite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.language_model = copy.deepcopy(model_of("llama"))
        self.towers = nn.ModuleList([nn.Linear(2, 2), copy.deepcopy(model_of("qwen2"))])
        self.eyes = nn.Sequential(squaring().model.layers[1])


def test_an_error_names_the_parts_that_can_be_patched():
    model = Composite()
    with pytest.raises(RopeError, match="no rotation") as error:
        patch(model)
    assert error.value.field == "Squaring"
    assert "patch(model.language_model), patch(model.towers)" in str(error.value)
    patch(model.language_model)
    patch(model.towers)
    assert "forward" in vars(model.towers[1].model.rotary_emb)


@torch.no_grad()
@pytest.mark.parametrize("model_type", ["wav2vec2-conformer", "wav2vec2-bert"])
def test_a_method_that_rotates_heads_joined_in_one_axis_is_patched(model_type):
    sizes = {
        **SIZES,
        "num_conv_pos_embeddings": 4,
        "conv_depthwise_kernel_size": 3,
        "feature_projection_input_dim": 6,
        "add_adapter": False,
    }
    config = config_of(
        model_type, **{**sizes, "position_embeddings_type": "rotary", "hidden_size": 48}
    )
    torch.manual_seed(1)
    model = AutoModel.from_config(config).eval()
    layer = next(module for module in model.modules() if hasattr(module, "_apply_rotary_embedding"))
    tables = next(
        module for name, module in model.named_modules() if name.endswith("embed_positions")
    )
    hidden = torch.randn(2, 9, 48)
    plain = layer._apply_rotary_embedding(hidden, tables(hidden))
    with patched(model):
        assert "_apply_rotary_embedding" in vars(layer)
        assert_close(
            layer._apply_rotary_embedding(hidden, tables(hidden)), plain, rtol=0, atol=2e-6
        )
        unequal = tables(hidden).clone()
        unequal[1, 3, ..., 0] += 0.1
        with pytest.raises(RopeError, match="both members of a pair"):
            layer._apply_rotary_embedding(hidden, unequal)
    config.position_embeddings_type = "relative"
    with pytest.raises(RopeError, match="must rotate q and k"):
        patch(AutoModel.from_config(config))


def test_nanochat_generates_the_same_tokens():
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config_of("nanochat", **SIZES)).eval()
    prompt = torch.randint(3, 61, (2, 5))
    asked = {
        "attention_mask": torch.ones_like(prompt),
        "max_new_tokens": 6,
        "min_new_tokens": 6,
        "do_sample": False,
    }
    plain = model.generate(prompt, **asked)
    with patched(model):
        assert torch.equal(model.generate(prompt, **asked), plain)
