"""A patched model overwrites q and k where nobody can tell, and only there."""

from __future__ import annotations

import copy

import pytest
import torch
from installed import V5
from patch_models import FAMILIES, model_of, outputs, tokens
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.dlpack import from_dlpack, to_dlpack
from transformers.models.llama.modeling_llama import LlamaAttention, apply_rotary_pos_emb

from ropewalk import Rope
from ropewalk.interop import patch_apply, patch_in_place
from ropewalk.interop.patch import patch, patched
from ropewalk.interop.patch_in_place import rebinds

NEAR = {"rtol": 0, "atol": 5e-5}
#: q and k are slices of one projection, or go by other names than a rotation of q and k has
OUT_OF_PLACE = {
    "llama-4", "phi", "phi-3", "gpt-neox", "gpt-j", "codegen", "stablelm", "falcon", "deepseek-v2", "deepseek-v3",
    "modernbert", "roformer", "roformer value",
}  # fmt: skip
if not V5:  # they pass positions or sections beside cos and sin
    OUT_OF_PLACE |= {"qwen2-moe", "qwen2-vl text"}
GRADLESS = [torch.no_grad, torch.inference_mode]


@pytest.fixture
def turns(monkeypatch) -> list[bool]:
    """Whether each call since was in place; the tiny tensors of these models are worth it."""
    seen, call = [], Rope.__call__

    def recorded(self, *args, inplace=False, **kwargs):
        seen.append(inplace)
        return call(self, *args, inplace=inplace, **kwargs)

    monkeypatch.setattr(patch_in_place, "SMALL", 0)
    monkeypatch.setattr(Rope, "__call__", recorded)
    return seen


@pytest.mark.parametrize("family", FAMILIES)
def test_in_place_or_not_every_bit_is_the_same(family, turns, monkeypatch):
    model = model_of(family)
    for without_gradients in GRADLESS:
        with without_gradients():
            plain = outputs(model)
            with patched(model):
                found = model(tokens(), output_hidden_states=True)
                with monkeypatch.context() as forbidden:
                    mine, turns[:] = list(turns), []
                    forbidden.setattr(patch_apply, "unseen", lambda args: False)
                    wanted = model(tokens(), output_hidden_states=True)
        assert set(mine) <= {family not in OUT_OF_PLACE}
        assert len(mine) == len(turns)
        assert not any(turns)
        assert all(torch.equal(a, b) for a, b in zip(found.hidden_states, wanted.hidden_states, strict=True))
        assert torch.equal(found[0], wanted[0])
        assert_close(found[0], plain, rtol=0, atol=1e-4 * max(1.0, plain.abs().max().item()))
        turns.clear()


def test_most_families_are_turned_in_place():
    assert {"llama", "mistral", "qwen2", "qwen3", "gemma-3", "olmo-2", "gpt-oss"} <= FAMILIES.keys() - OUT_OF_PLACE
    assert len(OUT_OF_PLACE) < len(FAMILIES) / 2


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
def test_generation_is_token_for_token_that_of_the_unpatched(family, cache, turns):
    asked = {"max_new_tokens": 7, "min_new_tokens": 7, "do_sample": False, "cache_implementation": cache}
    model, prompt = copy.deepcopy(model_of(family)), tokens(2, 5)
    model.generation_config.disable_compile = True
    plain = model.generate(prompt, attention_mask=torch.ones_like(prompt), **asked)
    ours = patch(model).generate(prompt, attention_mask=torch.ones_like(prompt), **asked)
    assert torch.equal(plain, ours)
    assert turns == [True] * 14


@pytest.mark.parametrize("checkpointed", [False, True])
def test_with_gradients_nothing_is_overwritten(checkpointed, turns):
    model = copy.deepcopy(model_of("llama")).train()
    wanted = list(model.parameters())
    plain = torch.autograd.grad(outputs(model).square().mean(), wanted)
    patch(model)
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    ours = torch.autograd.grad(outputs(model).square().mean(), wanted)
    assert turns
    assert not any(turns)
    for mine, other in zip(ours, plain, strict=True):
        assert_close(mine, other, rtol=1e-3, atol=2e-5 * max(1.0, other.abs().max().item()))


@pytest.mark.parametrize("without_gradients", GRADLESS)
@pytest.mark.parametrize(
    ("family", "part"), [("llama", "q_proj"), ("llama", "k_proj"), ("qwen3", "q_norm"), ("gemma-3", "k_norm")]
)
def test_a_hook_keeps_what_it_saw(family, part, without_gradients, turns):
    """Interpretability hooks keep the output of a projection; it must not turn under their hands."""
    model = copy.deepcopy(model_of(family))
    kept: list[Tensor] = []
    listened = getattr(model.model.layers[0].self_attn, part)
    listened.register_forward_hook(lambda module, args, output: kept.append(output))
    with without_gradients():
        plain = outputs(model)
        ours = outputs(patch(model))
    assert_close(ours, plain, **NEAR)
    assert torch.equal(kept[1], kept[0])
    assert turns == [False, True]  # the second layer has no listener


def heads(attention: LlamaAttention, projection: nn.Module, x: Tensor) -> Tensor:
    return projection(x).view(*x.shape[:-1], -1, attention.head_dim).transpose(1, 2)


class Attention(LlamaAttention):
    """Attention around `turned`, which the classes below write in their own ways."""

    def forward(self, hidden_states, position_embeddings, attention_mask=None, **kwargs):
        q, k = self.turned(hidden_states, *position_embeddings)
        weights = (q @ k.mT * self.scaling).tril().softmax(-1)
        mixed = weights @ heads(self, self.v_proj, hidden_states)
        return self.o_proj(mixed.transpose(1, 2).flatten(-2)), None


class Plain(Attention):
    def turned(self, x, cos, sin):
        q, k = heads(self, self.q_proj, x), heads(self, self.k_proj, x)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k


class UsesTheUnturnedLater(Attention):
    def turned(self, x, cos, sin):
        q, k = heads(self, self.q_proj, x), heads(self, self.k_proj, x)
        new_q, new_k = apply_rotary_pos_emb(q, k, cos, sin)
        return new_q + q, new_k - k


class KeepsAnotherName(Attention):
    def turned(self, x, cos, sin):
        q, k = heads(self, self.q_proj, x), heads(self, self.k_proj, x)
        before = q
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q + before, k


class KeepsItInAList(Attention):
    def turned(self, x, cos, sin):
        q, k = heads(self, self.q_proj, x), heads(self, self.k_proj, x)
        self.seen = [k]
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k + self.seen.pop()


class KeepsAView(Attention):
    def turned(self, x, cos, sin):
        q, k = heads(self, self.q_proj, x), heads(self, self.k_proj, x)
        some = k[..., 3:]
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, torch.cat([k[..., :3], some], dim=-1)


class KeepsTheProjection(Attention):
    def turned(self, x, cos, sin):
        flat = self.q_proj(x)
        q, k = flat.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2), heads(self, self.k_proj, x)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q + flat.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2), k


class KeepsTheMemory(Attention):
    def turned(self, x, cos, sin):
        q, k = heads(self, self.q_proj, x), heads(self, self.k_proj, x)
        memory = q.numpy()
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q + torch.from_numpy(memory), k


class LendsTheMemory(Attention):
    def turned(self, x, cos, sin):
        q, k = heads(self, self.q_proj, x), heads(self, self.k_proj, x)
        lent = to_dlpack(k)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k + from_dlpack(lent)


class TurnsWhatItWasGiven(Attention):
    def turned(self, x, cos, sin):
        q, k = heads(self, self.q_proj, x), heads(self, self.k_proj, x)
        new_q, new_k = self.turned_pair(q, k, cos, sin)
        return new_q + q, new_k + k

    def turned_pair(self, q, k, cos, sin):
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k


class TurnsOneTensorTwice(Attention):
    def turned(self, x, cos, sin):
        q = k = heads(self, self.q_proj, x)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k


class TurnsHeadsThatAreOne(Attention):
    def turned(self, x, cos, sin):
        q, k = heads(self, self.q_proj, x), heads(self, self.k_proj, x).expand(-1, 3, -1, -1)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k


class TurnsItsInput(Attention):
    """hidden_states has the width of the queries, so it may pass for them."""

    def turned(self, x, cos, sin):
        q, k = heads(self, nn.Identity(), x), heads(self, self.k_proj, x)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q + heads(self, nn.Identity(), x), k


class TurnsSlices(Attention):
    def turned(self, x, cos, sin):
        both = torch.cat([self.q_proj(x), self.k_proj(x)], dim=-1).view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2)
        q, k = both[:, :3], both[:, 3:]
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q + both[:, :3], k


@pytest.mark.parametrize("without_gradients", GRADLESS)
@pytest.mark.parametrize("kind", [Plain, *[kind for kind in Attention.__subclasses__() if kind is not Plain]])
def test_only_what_nobody_can_see_is_overwritten(kind, without_gradients, turns):
    model = copy.deepcopy(model_of("llama"))
    for layer in model.model.layers:
        layer.self_attn.__class__ = kind
    with without_gradients():
        plain = outputs(model)
        ours = outputs(patch(model))
    assert_close(ours, plain, rtol=0, atol=1e-4)
    assert turns == [kind is Plain] * 2


turn = apply_rotary_pos_emb  # of the functions below only the code is read


def plain(x):
    q, k, cos, sin = x()
    q, k = turn(q, k, cos, sin)
    return q, k


def conditional(x):
    q, k = x()
    if x:
        cos, sin = x()
        q, k = turn(q, k, cos, sin)
    return q, k, [each + 1 for each in x()]


def swapped(x):
    q, k, cos, sin = x()
    k, q = turn(q, k, cos, sin)
    return q, k


def once_more(x):
    q, k, cos, sin = x()
    q, k = turn(q, k, cos, sin)
    return turn(q, k, cos, sin)


def both_names(x):
    q, k, cos, sin = x()
    q, k = pair = turn(q, k, cos, sin)
    return q, k, pair


def by_another_name(x):
    q, k, cos, sin = x()
    q, k = turn(q, k, cos, sin)
    return turn


def inside(x):
    q, k, cos, sin = x()
    q, k = turn(q, k, cos, sin)
    return lambda a: turn(a, a, a, a)


def given(q, k, cos, sin):
    q, k = turn(q, k, cos, sin)
    return q, k


def given_by_name(x, *, k):
    q, cos, sin = x()
    q, k = turn(q, k, cos, sin)
    return q, k


@pytest.mark.parametrize(
    ("function", "expected"),
    [(plain, True), (conditional, True)]
    + [(each, False) for each in (swapped, once_more, both_names, by_another_name, inside, given, given_by_name)],
)
def test_the_code_of_a_method_shows_what_it_forgets(function, expected):
    assert rebinds(function.__code__, "turn") is expected
    assert not rebinds(function.__code__, "another")


@pytest.mark.parametrize("missing", [0, 1])
@torch.no_grad()
def test_small_tensors_are_not_worth_the_question(missing, turns, monkeypatch):
    monkeypatch.setattr(patch_in_place, "SMALL", 2 * 11 * 3 * 16 + missing)  # rows, tokens, heads, dimensions
    with patched(model_of("llama")) as model:
        outputs(model)
    assert turns == [not missing] * 2
