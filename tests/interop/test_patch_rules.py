"""Rules by which `patch` recognises what rotates: conventions of functions, dispatch by dicts, odd
tables, axes of positions.
"""

from __future__ import annotations

import pytest
import torch
from hf_families import CASES
from installed import needs_v5
from torch import nn
from torch.testing import assert_close
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from ropewalk.errors import RopeError
from ropewalk.interop.patch.angles import LazyTable
from ropewalk.interop.patch.conventions import Convention
from ropewalk.interop.patch.functions import RotationFunction
from ropewalk.interop.patch.methods import redirected, rotations_called_by
from ropewalk.interop.patch.model import _largest_part, patch
from ropewalk.interop.patch.rotary import RotaryReplacement, matches_of, unequal_members
from ropewalk.interop.patch.trials import convention_of


def conformer(hidden_states, relative_position_embeddings, sine=1):
    """The rotation of Conformer encoders: one table [2, tokens, 1, 1, dims] of cos and sin, and
    heads joined in the last axis.
    """
    tables = relative_position_embeddings[:, : hidden_states.shape[1], 0, 0]  # [2, tokens, dims]
    cos, sin = tables[0][:, None], tables[sine][:, None]
    heads = hidden_states.unflatten(-1, (-1, cos.shape[-1]))
    first, second = heads.chunk(2, dim=-1)
    return (heads * cos + torch.cat((-second, first), dim=-1) * sin).flatten(-2)


def rotates(hidden_states, relative_position_embeddings):
    return conformer(hidden_states, relative_position_embeddings)


def takes_the_cosine_for_the_sine(hidden_states, relative_position_embeddings):
    return conformer(hidden_states, relative_position_embeddings, sine=0)


def test_one_table_of_cos_and_sin_is_recognised_if_both_are_used():
    found = convention_of(rotates, heads=3, pairs=4)
    assert (found.form, found.layout, found.layout_out) == ("cos over sin", "half", "half")
    assert convention_of(takes_the_cosine_for_the_sine, heads=3, pairs=4) is None
    x, tables = torch.randn(2, 5, 24), torch.rand(2, 5, 1, 1, 4).repeat(1, 1, 1, 1, 2)
    assert_close(RotationFunction(rotates, found)(x, tables), rotates(x, tables), rtol=0, atol=1e-6)


def without_heads(x, cos, sin):
    if x.ndim != 3 or cos.shape != x.shape:
        raise ValueError("x and cos must be [rows, tokens, width]")
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def test_a_function_of_tensors_without_heads_is_recognised():
    found = convention_of(without_heads)
    assert (found.form, found.tokens, found.by_row) == ("half", -2, True)
    x, cos, sin = (
        torch.randn(2, 5, 8),
        torch.rand(2, 5, 4).repeat(1, 1, 2),
        torch.rand(2, 5, 4).repeat(1, 1, 2),
    )
    assert_close(
        RotationFunction(without_heads, found)(x, cos, sin),
        without_heads(x, cos, sin),
        rtol=0,
        atol=1e-6,
    )


@pytest.mark.parametrize("result", [None, "text", 0.5, [1, 2]])
def test_a_function_that_returns_no_tensor_is_no_rotation(result):
    assert convention_of(lambda x, cos, sin: result) is None


def rotate_both(q, k, cos, sin):
    return apply_rotary_pos_emb(q, k, cos, sin)


def rotate_nothing(q, k, cos, sin):
    return q, k


#: as ModernBERT picks its attention in transformers 4
BY_NAME = {"eager": rotate_both, "none": rotate_nothing, "title": "two ways"}


def picks(name, *tensors):
    return BY_NAME[name](*tensors)


def test_a_rotation_behind_a_dict_of_functions_is_found_and_replaced():
    assert rotations_called_by(picks) == {"apply_rotary_pos_emb": apply_rotary_pos_emb}
    assert rotations_called_by(rotate_nothing) == {}
    copy = redirected(picks, {"apply_rotary_pos_emb": lambda q, k, cos, sin: ("replaced", q, k)})
    assert copy("eager", 1, 2, 3, 4) == ("replaced", 1, 2)
    assert copy("none", 1, 2, 3, 4) == (1, 2)
    assert BY_NAME["eager"] is rotate_both
    q, cos, sin = torch.randn(1, 2, 3, 8), torch.rand(1, 3, 8), torch.rand(1, 3, 8)
    assert torch.equal(picks("eager", q, q, cos, sin)[0], apply_rotary_pos_emb(q, q, cos, sin)[0])


def test_a_function_that_calls_itself_is_replaced_at_every_depth():
    def again(depth, *tensors):
        return again(depth - 1, *tensors) if depth else apply_rotary_pos_emb(*tensors)

    assert rotations_called_by(again) == {"apply_rotary_pos_emb": apply_rotary_pos_emb}
    copy = redirected(again, {"apply_rotary_pos_emb": lambda q, k, cos, sin: ("replaced", q, k)})
    assert copy(2, 1, 2, 3, 4) == copy(0, 1, 2, 3, 4) == ("replaced", 1, 2)


@pytest.mark.parametrize(
    ("path", "refused", "part"),
    [
        ("model.layers.0.attn", [], ".model"),
        ("model.layers.0.attn", ["vision.blocks.0.attn"], ".model"),
        ("model.layers.0.attn", ["model.layers.1.attn"], ".model.layers[0]"),
        ("model.layers.0.attn", ["model.layers.0.mixer"], ".model.layers[0].attn"),
        ("model.layers.1", ["model.layers.10"], ".model.layers[1]"),
        ("model.layers.0.attn", ["model.layers.0.attn.inner"], None),
        ("vision.blocks.0.attn.inner", ["vision.blocks.0"], None),  # part of a refused module
        ("model.layers.0.attn", [""], None),
    ],
)
def test_the_largest_part_to_patch_neither_holds_a_refused_module_nor_is_part_of_one(
    path, refused, part
):
    assert _largest_part(path, refused) == part


class Tables(nn.Module):
    """A rotary module whose tables have `width` columns: those of the first axis alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("inv_freq", torch.linspace(1, 0.1, width))

    def forward(self, x, position_ids):
        angles = position_ids[0, ..., None] * self.inv_freq
        return angles.cos(), angles.sin()


@pytest.mark.parametrize("width", [1, 5, 6])
@pytest.mark.parametrize("blocks", [False, True])
def test_tables_that_no_pairs_fit_are_not_called_unequal(width, blocks):
    convention = Convention("half", "half", "half", -2, reads_both=True, blocks=blocks)
    assert unequal_members(Tables(width), [convention]) is None


@needs_v5("gives tables by axis")
def test_a_patched_module_computes_exact_angles_for_positions_on_three_axes():
    case = CASES["qwen2-vl"]
    module = case.rotary_module()
    replacement = RotaryReplacement(module, matches_of(module, None))
    far = torch.tensor([[[1_000_003]], [[2_000_001]], [[5_000_007]]])
    cos, sin = replacement(torch.zeros(1), far)
    assert type(cos) is LazyTable
    # sections of 4, 2 and 2 pairs, each of its own axis; frequencies of a model are float32 numbers
    axis_of_pair = torch.tensor([0] * 4 + [1] * 2 + [2] * 2)
    angles = torch.cat([far[:, 0, 0].double()[axis_of_pair] * module.inv_freq.double()] * 2)
    assert_close(cos.tensor()[0, 0].double(), angles.cos(), rtol=0, atol=1e-6)
    assert_close(sin.tensor()[0, 0].double(), angles.sin(), rtol=0, atol=1e-6)


class OwnRotation(nn.Module):
    """A layer that rotates in a method of its own, and does not say how wide its heads are."""

    def _apply_rope(self, x, cos, sin):
        first, second = x.chunk(2, dim=-1)
        return x * cos[:, None] + torch.cat((-second, first), dim=-1) * sin[:, None]

    def forward(self, x, cos, sin):
        return self._apply_rope(x, cos, sin)


class Unknown(OwnRotation):
    def _apply_rope(self, x, cos, sin):
        return x + cos[:, None] * sin[:, None]


def test_a_method_of_a_module_without_a_head_size_is_recognised():
    model = OwnRotation()
    x, angles = torch.randn(2, 3, 5, 12), torch.rand(2, 5, 6).repeat(1, 1, 2)
    wanted = model(x, angles.cos(), angles.sin())
    assert_close(patch(model)(x, angles.cos(), angles.sin()), wanted, rtol=0, atol=1e-6)
    assert "_apply_rope" in vars(model)


def test_the_calls_in_a_hint_are_python_code():
    model = nn.Sequential(OwnRotation(), Unknown())
    with pytest.raises(RopeError, match=r"call patch\(model\[0\]\); got"):
        patch(model)
    patch(model[0])
    root = OwnRotation()
    root.part = Unknown()
    with pytest.raises(RopeError, match="the model is left unchanged; got"):
        patch(root)
