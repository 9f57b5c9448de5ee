"""Laws of a patched model, family by family: the same answers, nearer to float64, and no trace
after unpatch.
"""

from __future__ import annotations

import copy

import pytest
import torch
from installed import skip_old_yarn
from patch_models import CAUSAL, FAMILIES, InFloat64, model_of, outputs, tokens
from torch.testing import assert_close
from transformers import PreTrainedModel

from ropewalk.interop.patch.model import patch, patched, unpatch

#: families whose tables are a buffer with a row for each trained position and none beyond
TABLED = {"gpt-j", "codegen", "roformer", "roformer value"}
FAR = 1_000_000


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture
def model(family) -> PreTrainedModel:
    return model_of(family)


def rms(x: torch.Tensor) -> float:
    return x.double().square().mean().sqrt().item()


def three_ways(model, **given) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return outputs of the model: unpatched, patched, and in float64 throughout."""
    wide = copy.deepcopy(model).double()
    with torch.no_grad():
        plain = outputs(model, **given)
        with patched(model):
            ours = outputs(model, **given)
        with InFloat64():
            return plain, ours, outputs(wide, **given)


def test_a_patched_model_answers_within_the_rounding_of_the_unpatched(model):
    plain, ours, wide = three_ways(model)
    assert wide.dtype == torch.float64
    assert not torch.equal(plain, ours)  # something was replaced
    assert rms(ours - wide) <= 1.2 * rms(plain - wide)
    assert rms(ours - plain) <= 2 * rms(plain - wide)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in TABLED])
def test_far_out_a_patched_model_is_nearer_to_float64(family):
    if family == "deepseek-v3":
        skip_old_yarn()  # there, no spec matches, so the patch keeps the model's float32 tables
    where = {"position_ids": torch.arange(11)[None].expand(2, -1) + FAR}
    plain, ours, wide = three_ways(model_of(family), **where)
    assert rms(ours - wide) <= 0.1 * rms(plain - wide)


@pytest.mark.sampled(every=3)
def test_unpatch_restores_every_bit_and_leaves_no_trace(model):
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    with torch.no_grad():
        plain = outputs(model)
        assert unpatch(patch(model)) is model
        assert torch.equal(outputs(model), plain)
    for name, module in model.named_modules():
        assert vars(module).keys() == before[name].keys()
        assert all(vars(module)[key] is value for key, value in before[name].items())


@pytest.mark.sampled(every=3)
def test_gradients_are_those_of_the_unpatched(model):
    parameters = [p for p in model.parameters() if p.requires_grad]

    def gradients():
        loss = outputs(model).square().mean()
        return torch.autograd.grad(loss, parameters, allow_unused=True)

    plain = gradients()
    with patched(model):
        ours = gradients()
    assert [g is None for g in ours] == [g is None for g in plain]
    for mine, other in zip(ours, plain, strict=True):
        if other is not None:
            assert_close(mine, other, rtol=1e-3, atol=2e-5 * max(1.0, other.abs().max().item()))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", [name for name in CAUSAL if not name.endswith("text")])
def test_greedy_generation_is_token_for_token_the_same(name):
    model, asked = model_of(name), {"max_new_tokens": 7, "min_new_tokens": 7, "do_sample": False}
    prompt = tokens(2, 5)
    mask = torch.ones_like(prompt)
    plain = model.generate(prompt, attention_mask=mask, **asked)
    with patched(model):
        ours = model.generate(prompt, attention_mask=mask, **asked)
    assert plain.shape == (2, 12)
    assert torch.equal(plain, ours)


def test_at_least_thirty_families():
    assert len({model_type for model_type, _ in FAMILIES.values()}) >= 30
