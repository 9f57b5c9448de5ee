"""`undo` of an extension: called twice, out of order, and after the config was changed again."""

from __future__ import annotations

import copy
import itertools
import warnings

import pytest
import torch
from checkpoint_samples import logits
from extend_models import FACTOR, TRAINED, fresh, lengthen
from installed import V5

from ropewalk import RopeError
from ropewalk.interop.extend.model import extend

CONFIG = {
    "model_type": "llama",
    "head_dim": 12,
    "max_position_embeddings": TRAINED,
    "rope_theta": 1e4,
}
ROPE = "rope_parameters" if V5 else "rope_scaling"


def state(model):
    return model.config.to_dict(), logits(model, start=150)


def same(one, other) -> bool:
    return one[0] == other[0] and torch.equal(one[1], other[1])


def test_a_second_undo_changes_nothing_even_after_other_changes():
    model = fresh("llama")
    report = lengthen(model, "yarn")
    report.undo()
    model.config.max_position_embeddings = 17
    lengthen(model, "linear")
    now = state(model)
    report.undo()
    assert same(state(model), now)
    config = dict(CONFIG)
    report = lengthen(config, "yarn")
    report.undo()
    config["rope_scaling"] = {"rope_type": "linear", "factor": 2.0}
    report.undo()
    assert config == {**CONFIG, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_only_undo_of_the_last_of_three_extensions_changes_a_model(order):
    model = fresh("llama")
    plain = state(model)
    reports = [lengthen(model, kind) for kind in ("linear", "dynamic_yarn", "yarn")]
    extended = state(model)
    for place, index in enumerate(order):
        reports[index].undo()
        assert same(state(model), plain if 2 in order[: place + 1] else extended)
    with pytest.raises(RopeError, match="nothing to undo"):
        extend(model, None)


def test_extensions_of_a_config_are_undone_from_the_last():
    config = dict(CONFIG)
    first = lengthen(config, "llama3")
    between = copy.deepcopy(config)
    second = lengthen(config, "yarn", overwrite=True)
    now = copy.deepcopy(config)
    with pytest.raises(RopeError, match="first undo the extension that changed it") as error:
        first.undo()
    assert error.value.field == "rope_scaling"
    assert config == now
    second.undo()
    assert config == between
    first.undo()
    assert config == CONFIG


@pytest.mark.parametrize("key", ["max_position_embeddings", ROPE])
def test_a_config_key_that_was_changed_again_is_named_and_nothing_is_undone(key):
    model = fresh("llama")
    plain = state(model)
    report = lengthen(model, "yarn")
    extended, value = state(model), getattr(model.config, key)
    other = 99 if isinstance(value, int) else {**value, "factor": 2.0}
    setattr(model.config, key, other)
    for undo in (report.undo, lambda: extend(model, None), lambda: lengthen(model, "linear")):
        with pytest.raises(RopeError) as error:
            undo()
        assert error.value.field == key
        assert error.value.value == other
        assert torch.equal(logits(model, start=150), extended[1])
        assert getattr(model.config, key) == other
    setattr(model.config, key, value)
    report.undo()
    assert same(state(model), plain)


def test_a_change_inside_the_rope_is_noticed_too():
    config = dict(CONFIG)
    report = lengthen(config, "yarn")
    config["rope_scaling"]["factor"] = 2.0
    with pytest.raises(RopeError, match="rope_scaling: must still be"):
        report.undo()
    del config["rope_scaling"]
    with pytest.raises(RopeError, match="rope_scaling: must still be"):
        report.undo()


def test_other_config_keys_keep_later_changes():
    model = fresh("llama")
    report = lengthen(model, "yarn")
    model.config.use_cache = False
    report.undo()
    assert model.config.use_cache is False
    assert model.config.max_position_embeddings == TRAINED


def test_a_replaced_config_is_noticed():
    model = fresh("llama")
    report = lengthen(model, "yarn")
    ours, model.config = model.config, copy.deepcopy(model.config)
    with pytest.raises(RopeError, match="config: must be the object that extend changed"):
        report.undo()
    model.config = ours
    report.undo()
    assert model.config.max_position_embeddings == TRAINED


def test_a_forward_does_not_count_as_a_change():
    """transformers writes defaults into the rope of its config."""
    for kind in ("dynamic", "longrope", "yarn"):
        model = fresh("llama")
        plain = state(model)
        report = lengthen(model, kind)
        logits(model, start=int(FACTOR) * TRAINED)
        model.config.validate() if hasattr(model.config, "validate") else None
        report.undo()
        assert same(state(model), plain)


def test_buffers_with_two_names_and_saved_ones_come_back():
    """A short text after a long one makes two buffers of a dynamic rope one tensor; whether a
    buffer is saved stays as it was.
    """
    model = fresh("llama")
    lengthen(model, "dynamic")
    model = type(model)(model.config)  # its own rope is dynamic
    rotary = model.model.rotary_emb
    rotary.register_buffer("kept", torch.ones(1), persistent=True)
    for start in (0, 4 * int(FACTOR) * TRAINED, 0):
        logits(model, start=start)
    assert rotary.inv_freq is rotary.original_inv_freq
    expected, saved = logits(model, start=0), set(model.state_dict())
    lengthen(model, "yarn", overwrite=True).undo()
    assert torch.equal(logits(model, start=0), expected)
    assert torch.equal(rotary.inv_freq, rotary.original_inv_freq)
    assert set(model.state_dict()) == saved


@pytest.mark.parametrize("kind", ["dynamic_yarn", "rerope"])
@pytest.mark.parametrize("extended_before", [False, True])
def test_a_warning_that_is_an_error_leaves_the_model_as_it_was(kind, extended_before):
    model = fresh("llama")
    if extended_before:
        lengthen(model, "linear")
    before = state(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with pytest.raises(UserWarning, match="extend writes no config key for it"):
            extend(model, kind, **({"factor": FACTOR} if kind == "rerope" else {}))
    assert same(state(model), before)
