"""Extended and patched at once, in either order: the same answers as extended alone."""

from __future__ import annotations

import copy

import pytest
import torch
from checkpoint_samples import logits
from extend_models import TRAINED, built, every, fresh, lengthen, rotary

from ropewalk.interop.extend.keys import kinds
from ropewalk.interop.extend.model import extend
from ropewalk.interop.patch.angles import LazyAngles, LazyTable
from ropewalk.interop.patch.model import patch, patched, unpatch


@pytest.mark.parametrize("kind", kinds())
def test_a_patched_model_follows_extend_and_its_undo(kind):
    model, other = fresh("llama"), fresh("llama")
    patch(model)
    plain = logits(model, start=150)
    lengthen(model, kind)
    lengthen(other, kind)
    torch.testing.assert_close(
        logits(model, start=150), logits(other, start=150), rtol=1e-4, atol=1e-5
    )
    assert (logits(model, start=150) - plain).abs().max() > 1e-4
    extend(model, None)
    assert torch.equal(logits(model, start=150), plain)
    unpatch(model)
    assert torch.equal(logits(model, start=150), logits(built("llama"), start=150))


@pytest.mark.sampled(every=3)
@every
def test_an_extended_model_may_be_patched_and_stays_extended(family, kind):
    model = fresh(family)
    lengthen(model, kind)
    wanted = {start: logits(model, start=start) for start in (0, 150, 9)}
    patch(model)
    for start in wanted:
        torch.testing.assert_close(logits(model, start=start), wanted[start], rtol=1e-4, atol=1e-5)
    unpatch(model)
    for start in wanted:
        assert torch.equal(logits(model, start=start), wanted[start])


@pytest.mark.parametrize("patched_first", [False, True])
def test_a_patched_dynamic_yarn_rotates_by_exact_angles_of_the_sequence_length(
    patched_first, monkeypatch
):
    """In generation with a cache, every step rotates by the frequencies for its own length, and no
    table of cos and sin is made.
    """
    model, asked = fresh("llama"), {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False}
    prompt = torch.arange(TRAINED - 4)[None] % 31
    if patched_first:
        patch(model)
    lengthen(model, "dynamic_yarn")
    wanted = unpatch(copy.deepcopy(model)).generate(prompt, **asked)
    patch(model)
    assert isinstance(rotary(model)(torch.zeros(1), prompt)[0], LazyTable)
    monkeypatch.delattr(LazyAngles, "tables")
    assert torch.equal(model.generate(prompt, **asked), wanted)


def test_float_positions_of_a_patched_dynamic_yarn_are_followed_too():
    model = fresh("llama")
    lengthen(model, "dynamic_yarn")
    where = torch.arange(3.0 * TRAINED)[None]
    wanted = rotary(model)(torch.zeros(1), where)
    rotary(model)(
        torch.zeros(1), where[:, :3]
    )  # leaves the frequencies of a short text in the module
    patch(model)
    assert all(
        torch.equal(a, b) for a, b in zip(rotary(model)(torch.zeros(1), where), wanted, strict=True)
    )


def test_a_patch_of_an_extended_model_does_not_copy_its_weights(monkeypatch):
    model = fresh("llama")
    lengthen(model, "yarn")
    monkeypatch.setattr(
        torch.nn.Parameter, "__deepcopy__", lambda weight, memo: pytest.fail("a weight was copied")
    )
    patch(model)


def test_a_config_changed_inside_patched_is_read_again_after_the_block():
    model, other = fresh("llama"), fresh("llama")
    patch(model, backend="reference")
    with patched(model):
        lengthen(model, "linear")
    lengthen(other, "linear")
    torch.testing.assert_close(
        logits(model, start=150), logits(other, start=150), rtol=1e-4, atol=1e-5
    )
    replacement = vars(rotary(model))["forward"]
    assert {match.rope.backend for match in replacement.matches.values()} == {"reference"}
