"""A saved model is the model: transformers and our reader compute from the folder what it computed,
or it is not saved.
"""

from collections import Counter

import pytest
import torch
from saved_draws import CONFIGS, alone, answer, build, peer_of, together, tokens_for

import ropewalk as rw
from door import assert_refused
from ropewalk.errors import RopeError
from ropewalk.models import DecoderConfig, RoFormerConfig
from ropewalk.temperatures import FloorLog

kinds = pytest.mark.parametrize("kind", CONFIGS, ids=lambda kind: kind.__name__)


def save_and_compare(model, folder) -> str:
    """Return what happened: the field that was refused, or "equal"; fail if a reader computes
    something else.
    """
    tokens = tokens_for(model)
    try:
        rw.save(model, folder)
    except RopeError as refused:
        assert not folder.exists()
        return refused.field
    again, peer = rw.load(folder), peer_of(folder)
    with torch.no_grad():
        ours = model(tokens)
        # transformers has no similarity head, and reads the encoder
        read = model.hidden(tokens) if getattr(model.config, "head", "") == "similarity" else ours
        torch.testing.assert_close(answer(peer, tokens), read, atol=1e-4, rtol=0)
        torch.testing.assert_close(again(tokens), ours, atol=1e-5, rtol=0)
    changed = {
        name
        for name in vars(model.config)
        if getattr(again.config, name) != getattr(model.config, name)
    }
    assert changed <= {"encoding"}, changed  # a name may come back as the spec it means
    return "equal"


def outcomes(kind, draws, folder) -> Counter:
    found = Counter()
    for number, changes in enumerate(draws):
        model = build(kind, changes, seed=number)
        if model is not None:
            try:
                found[save_and_compare(model, folder / str(number))] += 1
            except Exception as error:
                raise AssertionError(f"{changes}: {error}") from error
    return found


def test_a_temperature_that_the_saved_model_would_not_have_is_refused(tmp_path):
    """transformers' Qwen3 with experts reads no temperature; nothing is warned of before the error."""
    changes = {
        "temperature": FloorLog(0.3, 2),
        "num_experts": 4,
        "experts_per_token": 1,
        "qk_norm": True,
    }
    model = build(DecoderConfig, changes, seed=0)
    assert_refused("temperature", lambda: rw.save(model, tmp_path / "model"))


@kinds
@pytest.mark.slow
def test_every_field_changed_alone_is_saved_or_refused(kind, tmp_path, full):
    found = outcomes(kind, alone(kind, None if full else 30), tmp_path)
    assert found["equal"] >= 5
    assert "encoding" in found


@kinds
@pytest.mark.slow
def test_fields_changed_together_are_saved_or_refused(kind, tmp_path, full):
    found = outcomes(kind, together(kind, 600 if full else 16), tmp_path)
    assert found["equal"] >= 4


@kinds
def test_the_draw_of_configs_has_every_field(kind):
    assert set(CONFIGS[kind][1]) == set(kind.__dataclass_fields__)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (RoFormerConfig, "layers.0.attention.encoding.rope"),
        (DecoderConfig, "layers.1.self_attn.encoding.rope"),
    ],
    ids=["roformer", "decoder"],
)
def test_a_rotation_that_the_config_does_not_describe_is_named(tmp_path, kind, name):
    model = build(kind, {}, seed=0)
    rope = model.get_submodule(name)
    rope.spec = rope.spec.with_(theta=77.0)
    assert_refused(name, lambda: rw.save(model, tmp_path / "a"))
    model.get_submodule(name.removesuffix(".rope")).rope = torch.nn.Identity()
    assert_refused(name, lambda: rw.save(model, tmp_path / "a"))
    assert not (tmp_path / "a").exists()


def test_a_weight_that_the_config_does_not_describe_is_named(tmp_path):
    model = build(RoFormerConfig, {}, seed=0)
    model.layers[0].up = torch.nn.Linear(30, 22, bias=False)
    with pytest.raises(
        RopeError,
        match=r"exactly the weights that model\.config describes; got \['layers\.0\.up\.bias'\]",
    ):
        rw.save(model, tmp_path / "a")
    model.layers[0].up = torch.nn.Linear(30, 21)
    with pytest.raises(RopeError, match=r"layers\.0\.up\.weight: must have the shape \[22, 30\]"):
        rw.save(model, tmp_path / "a")


@pytest.mark.parametrize(
    "extra",
    [
        {"norm_type": "rms_norm"},
        {"ropewalk": {"summary": "first"}},
        {"rope_theta": 500.0},
        {"add_cross_attention": True},
    ],
)
def test_extra_keys_must_not_describe_another_model(tmp_path, extra):
    model = build(RoFormerConfig, {}, seed=0)
    with pytest.raises(RopeError):
        rw.save(model, tmp_path / "a", extra_config=extra)
    assert not (tmp_path / "a").exists()
