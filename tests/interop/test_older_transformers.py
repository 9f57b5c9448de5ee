"""Small copies of what transformers 4 does differently, so that support for it is tested with every
release.
"""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from checkpoint_samples import build, logits
from extend_models import FACTOR, LONG, TRAINED, fresh, lengthen, rotary
from installed import config_of
from patch_models import model_of, outputs
from torch.testing import assert_close
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from ropewalk import Rope, RopeError, RopeSpec, axes
from ropewalk.config.hf import from_hf, to_hf
from ropewalk.frequencies import LongRope
from ropewalk.interop.extend.model import extend
from ropewalk.interop.patch.angles import BY_AXIS, LazyAngles, LazyTable
from ropewalk.interop.patch.functions import RotationFunction
from ropewalk.interop.patch.model import patch, unpatch
from ropewalk.interop.patch.trials import convention_of

COUNTS = [2, 1, 1]
WHERE = torch.tensor([[[0, 1, 5, 900]], [[0, 2, 5, 41]], [[0, 3, 7, 8]]])


def by_sections(q, k, cos, sin, mrope_section, unsqueeze_dim=1):
    """A rotation that is given the tables of all axes: each section of the pairs uses its own."""
    axis_of_pair = [axis for axis, count in enumerate(mrope_section) for _ in range(count)] * 2
    cos, sin = (
        torch.stack([table[axis, ..., i] for i, axis in enumerate(axis_of_pair)], dim=-1).unsqueeze(
            unsqueeze_dim
        )
        for table in (cos, sin)
    )
    half = lambda x: torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], dim=-1)
    return q * cos + half(q) * sin, k * cos + half(k) * sin


def in_reverse(q, k, cos, sin, mrope_section, unsqueeze_dim=1):
    return by_sections(q, k, cos.flip(0), sin.flip(0), mrope_section, unsqueeze_dim)


def tables_by_axis(theta=1e4):
    """cos and sin [3, 1, tokens, 8] of all axes by the definition, in float64."""
    angles = WHERE.double()[..., None] * theta ** (-torch.arange(4, dtype=torch.float64) / 4)
    return tuple(torch.cat([each, each], dim=-1) for each in (angles.cos(), angles.sin()))


def test_a_rotation_by_sections_is_recognised():
    found = convention_of(by_sections)
    assert (found.form, found.layout, found.layout_out, found.tokens) == (
        "half",
        "half",
        "half",
        -2,
    )
    assert convention_of(in_reverse) is None


@pytest.mark.parametrize("counts", [COUNTS, [1, 1, 2]])
@pytest.mark.parametrize("computed", [False, True])
def test_a_rotation_by_sections_rotates_each_pair_by_its_axis(counts, computed):
    """Also where the call names other sections than the config does, and where the tables are
    materialised.
    """
    rotation_function = RotationFunction(by_sections, convention_of(by_sections))
    rope = Rope(RopeSpec(8, axes=axes.chunked(COUNTS)))
    rotation_function.add_spec(rope.spec)
    cos, sin = LazyAngles(rope, WHERE, BY_AXIS, torch.float32).output()
    for mine, other in zip((cos, sin), tables_by_axis(), strict=True):
        assert_close(mine.tensor(), other.float(), rtol=0, atol=1e-6)
    q, k = torch.randn(1, 3, 4, 8), torch.randn(1, 1, 4, 8)
    rotated = rotation_function(q, k, *((cos + 0, sin + 0) if computed else (cos, sin)), counts)
    for mine, other in zip(
        rotated, by_sections(q.double(), k.double(), *tables_by_axis(), counts), strict=True
    ):
        assert_close(mine, other.float(), rtol=0, atol=2e-6)


def by_selected_rows(q, k, cos, sin, position_ids, unsqueeze_dim=1):
    """A rotation that is given a row for each position and selects those of the tokens, as Idefics
    and PhiMoE had it.
    """
    return apply_rotary_pos_emb(
        q, k, cos[position_ids], sin[position_ids], unsqueeze_dim=unsqueeze_dim
    )


@pytest.mark.parametrize("unsqueeze_dim", [1, 2])
def test_a_rotation_that_selects_rows_is_recognised(unsqueeze_dim):
    rotation_function = RotationFunction(by_selected_rows, convention_of(by_selected_rows))
    cos, sin = Rope(RopeSpec(8)).cos_sin_hf(torch.arange(50))
    shape = (2, 3, 7) if unsqueeze_dim == 1 else (2, 7, 3)
    given = (
        torch.randn(*shape, 8),
        torch.randn(*shape, 8),
        cos,
        sin,
        torch.randint(0, 50, (2, 7)),
        unsqueeze_dim,
    )
    assert_close(rotation_function(*given), by_selected_rows(*given), rtol=0, atol=2e-6)


def test_positions_reach_a_rotation_by_sections(monkeypatch):
    monkeypatch.delattr(LazyAngles, "tables")
    rotation_function = RotationFunction(by_sections, convention_of(by_sections))
    rope = Rope(RopeSpec(8, axes=axes.chunked(COUNTS)))
    rotation_function.add_spec(rope.spec)
    tables = LazyAngles(rope, WHERE, BY_AXIS, torch.float32).output()
    q, _ = rotation_function(torch.randn(1, 3, 4, 8), torch.randn(1, 1, 4, 8), *tables, COUNTS)
    assert q.shape == (1, 3, 4, 8)


def eager(module, hidden_states, cos, sin):
    shape = (*hidden_states.shape[:-1], -1, module.head_dim)
    q, k, v = (
        each(hidden_states).view(shape).transpose(1, 2)
        for each in (module.q_proj, module.k_proj, module.v_proj)
    )
    q, k = apply_rotary_pos_emb(q, k, cos, sin)
    mixed = (q @ k.mT * module.scaling).tril().softmax(-1) @ v
    return module.o_proj(mixed.transpose(1, 2).flatten(-2))


WAYS = {"eager": eager, "none": None}


class PicksItsWay(LlamaAttention):
    """An attention that calls a function of the dict WAYS, which calls the rotation."""

    def forward(self, hidden_states, position_embeddings, attention_mask=None, **kwargs):
        return WAYS["eager"](self, hidden_states, *position_embeddings), None


@torch.no_grad()
def test_a_rotation_behind_a_table_of_functions_is_found(monkeypatch):
    monkeypatch.delattr(LazyAngles, "tables")  # a layer that was not patched would call it
    model, before = copy.deepcopy(model_of("llama")), dict(WAYS)
    for layer in model.model.layers:
        layer.self_attn.__class__ = PicksItsWay
    plain = outputs(model)
    ours = outputs(patch(model))
    assert not torch.equal(ours, plain)
    assert_close(ours, plain, rtol=0, atol=1e-4)
    assert before == WAYS
    assert torch.equal(outputs(unpatch(model)), plain)


class Gathers(LlamaRotaryEmbedding):
    """A rotary module with a method whose name is that of a rotation, but which rotates nothing."""

    def apply_interleaved_mrope(self, angles):
        return angles


def test_a_rotary_module_is_not_a_rotating_layer():
    model = copy.deepcopy(model_of("llama"))
    model.model.rotary_emb = Gathers(model.config)
    patch(model)
    assert isinstance(model.model.rotary_emb(torch.zeros(1), torch.arange(3)[None])[0], LazyTable)


class Deaf(LlamaRotaryEmbedding):
    """A rotary module that computes an unscaled rope with `theta`, whatever its config says."""

    theta = 1e4

    def __init__(self, config, device=None):
        keys = {key: getattr(config, key) for key in ("hidden_size", "num_attention_heads")}
        super().__init__(
            config_of(
                "llama", **keys, rope_parameters={"rope_type": "default", "rope_theta": self.theta}
            )
        )
        self.config = config


class DeafAndStrange(Deaf):
    """The same with a theta that its config never had, scaled or not."""

    theta = 77.0


@pytest.mark.parametrize(("deaf", "field"), [(Deaf, "kind"), (DeafAndStrange, "model")])
@pytest.mark.parametrize("kind", ["linear", "yarn", "longrope"])
def test_keys_that_the_model_does_not_read_are_refused(kind, deaf, field):
    model = fresh("llama")
    model.model.rotary_emb = deaf(model.config)
    before, config = logits(model), model.config.to_dict()
    with pytest.raises(RopeError, match=r"rotary module model\.rotary_emb computes other") as error:
        lengthen(model, kind)
    assert error.value.field == field
    assert torch.equal(logits(model), before)
    assert model.config.to_dict() == config
    assert "_ropewalk_extension" not in vars(rotary(model))


@pytest.mark.parametrize("family", ["gemma3_text", "olmo3"])
@pytest.mark.parametrize("kind", ["linear", "dynamic_yarn"])
def test_local_layers_keep_their_frequencies(family, kind):
    """One module with two ropes, or two modules: only those of full attention get longer."""
    own = {"head_dim": 12} if family == "gemma3_text" else {}
    model = build(
        family, **own, layer_types=["sliding_attention", "full_attention"], sliding_window=32
    )
    before = cosines(model)
    lengthen(model, kind)
    after = cosines(model)
    local = [name for name in before if "sliding" in name or "local" in name]
    assert 0 < len(local) < len(before)
    assert all(torch.equal(after[name], before[name]) for name in local)
    # the angle of the slowest pair is smaller
    longer = [name for name in before if name not in local]
    assert all(after[name][..., -1].acos() < before[name][..., -1].acos() for name in longer)


def cosines(model) -> dict[str, torch.Tensor]:
    """Return {rotary module and layer type: its cos at position 1} in a call three times as long as
    in training, divided by the magnitude, which is the root of sin^2 + cos^2.
    """
    found = {}

    def note(name, module, args, kwargs, output):
        layer_type = [each for each in (*args, *kwargs.values()) if isinstance(each, str)]
        cos, sin = (table[0, 1].double() for table in output)
        found[" ".join([name, *layer_type])] = cos / (cos**2 + sin**2).sqrt()

    modules = [each for each in model.named_modules() if "rotary_emb" in each[0].rpartition(".")[2]]
    handles = [
        module.register_forward_hook(partial(note, name), with_kwargs=True)
        for name, module in modules
    ]
    model(torch.arange(3 * TRAINED)[None] % 7)
    for handle in handles:
        handle.remove()
    return found


def test_olmo_gets_linear_scaling_whether_its_class_reads_type_or_rope_type():
    model = build("olmo")
    before = rotary(model).inv_freq.clone()
    lengthen(model, "linear")
    assert_close(rotary(model).inv_freq, before / FACTOR)
    assert from_hf(model.config).scaling.factor == FACTOR


class CountsKeys:
    """A config class that takes `type` and `factor`, and nothing else."""

    def __init__(self, **keys):
        vars(self).update(keys)

    @classmethod
    def from_dict(cls, keys):
        if keys["rope_scaling"].keys() != {"type", "factor"}:
            raise ValueError("two fields, `type` and `factor`")
        return cls(**keys)

    def to_dict(self):
        return dict(vars(self))


def test_a_config_class_that_reads_only_type_gets_type():
    config = CountsKeys(
        model_type="llama", head_dim=12, max_position_embeddings=TRAINED, rope_theta=1e4
    )
    extend(config, "linear", factor=FACTOR)
    assert config.rope_scaling == {"type": "linear", "factor": FACTOR}
    other = CountsKeys(
        model_type="llama", head_dim=12, max_position_embeddings=TRAINED, rope_theta=1e4
    )
    with pytest.raises(RopeError, match="two fields"):
        lengthen(other, "llama3")
    assert not hasattr(other, "rope_scaling")


@pytest.mark.parametrize("model_type", ["llama", "phi3"])
@pytest.mark.parametrize("length", [TRAINED, 3 * TRAINED])
def test_longrope_in_the_old_spelling_is_read_by_every_release(model_type, length):
    """The trained length stands beside the rope, and Phi-3 takes three keys."""
    shape = {"hidden_size": 48, "num_attention_heads": 4, "pad_token_id": 0}
    extended = {
        "model_type": model_type,
        **shape,
        "max_position_embeddings": TRAINED,
        "rope_theta": 1e4,
    }
    lengthen(extended, "longrope")
    spec = RopeSpec(
        12,
        scaling=LongRope((1.0,) * 6, tuple(LONG), original_length=TRAINED, factor=FACTOR),
        precision="hf",
    )
    for keys in (extended, {**shape, **to_hf(spec, version=4, model_type=model_type)}):
        assert keys["original_max_position_embeddings"] == TRAINED
        radians, magnitude = ROPE_INIT_FUNCTIONS["longrope"](
            AutoConfig.for_model(**keys), device=None, seq_len=length
        )
        factors = LONG if length > TRAINED else [1.0] * 6
        wanted = [1e4 ** (-pair / 6) / factor for pair, factor in enumerate(factors)]
        assert_close(radians.double(), torch.tensor(wanted, dtype=torch.float64), rtol=3e-7, atol=0)
        assert magnitude == pytest.approx(
            (1 + torch.tensor(FACTOR).log() / torch.tensor(float(TRAINED)).log()).sqrt().item()
        )


def test_a_longrope_with_an_attention_factor_is_refused_for_phi3():
    config = {
        "model_type": "phi3",
        "head_dim": 12,
        "max_position_embeddings": TRAINED,
        "rope_theta": 1e4,
    }
    with pytest.raises(RopeError, match="cannot be expressed"):
        lengthen(config, "longrope", attention_factor=1.5)
