"""A patched rotary module and its lazy tables can be used wherever the originals can."""

from __future__ import annotations

import copy
import inspect
import pickle
from functools import cache

import numpy as np
import pytest
import torch
from installed import config_of
from patch_models import FAMILIES, SIZES, model_of, tokens
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.llama import modeling_llama
from transformers.models.roformer.modeling_roformer import RoFormerSelfAttention

from ropewalk.interop.patch.angles import LazyTable
from ropewalk.interop.patch.model import patch, patched

#: tables in a buffer, no module that makes them
TABLED = {"gpt-j", "codegen", "roformer", "roformer value"}
WHERE = torch.tensor([[0, 1, 2, 17, 63], [5, 6, 7, 8, 9]])
#: the tolerance: a float32 angle up to 63 rad is off by a few units in the last place, a bfloat16
#: entry by one
SLACK = {torch.float32: 63 * 2.0**-21, torch.bfloat16: 2.0**-8}


def rotary_modules(model: nn.Module) -> dict[str, nn.Module]:
    return {
        name: module
        for name, module in model.named_modules()
        if "RotaryEmbedding" in type(module).__name__
        and "position_ids" in inspect.signature(type(module).forward).parameters
    }


def layer_types(module: nn.Module) -> list[tuple[str, ...]]:
    """Return the further arguments with which the module's forward can be called: its layer types."""
    if "layer_type" not in inspect.signature(type(module).forward).parameters:
        return [()]
    return [(name,) for name in dict.fromkeys(module.config.layer_types)]


def positions_for(module: nn.Module) -> Tensor:
    """Text: the same position on every axis a module has."""
    rope = (
        getattr(module.config, "rope_parameters", None)
        or getattr(module.config, "rope_scaling", None)
        or {}
    )
    sections = rope.get("mrope_section")
    return WHERE if sections is None else WHERE.expand(len(sections), *WHERE.shape)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("dtype", SLACK)
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in TABLED])
def test_a_direct_call_returns_what_the_family_returns(family, dtype):
    model = model_of(family)
    own = {name: copy.deepcopy(module) for name, module in rotary_modules(model).items()}
    assert own
    x = torch.zeros(2, 5, 3, dtype=dtype)
    with patched(model):
        for name, module in rotary_modules(model).items():
            for named in layer_types(module):
                ours, theirs = (
                    each(x, positions_for(module), *named) for each in (module, own[name])
                )
                assert type(ours) is type(theirs) or isinstance(theirs, Tensor)
                # of tensors, assert_close compares the shape, the dtype and the device too
                assert_close(ours, theirs, rtol=0, atol=SLACK[dtype])


@cache
def llama_tables() -> tuple[tuple[Tensor, Tensor], tuple[LazyTable, LazyTable]]:
    """(cos, sin) of transformers, and of a patched model, which are still lazy."""
    model, x = model_of("llama"), torch.zeros(1)
    own = model.model.rotary_emb(x, WHERE)
    with patched(model):
        return own, model.model.rotary_emb(x, WHERE)


USES = {
    "compared with itself": lambda t: t == t,
    "compared with a number": lambda t: torch.stack(
        [t < 0.5, t <= 0.5, t > 0.5, t >= 0.5, t != 0.5]
    ),
    "in numpy": lambda t: torch.from_numpy(np.asarray(t)),
    "row by row": lambda t: torch.stack(list(t)),
    "a matrix": lambda t: t @ t.mT,
    "on the right": lambda t: 1 - 1 / (2 + t) + torch.ones(5, 5) @ t,
    "powers": lambda t: t**2 + 2**t,
    "a number": lambda t: torch.tensor([float(t[0, 0, 0]), float(bool(t[0, 0, 0]))]),
    "from a list": lambda t: torch.cat([t, t + 0], dim=-1),
    "copied": lambda t: copy.deepcopy(t) + 0,
}


@pytest.mark.parametrize("use", USES)
def test_a_table_is_used_as_a_tensor_is(use):
    for own, ours in zip(*llama_tables(), strict=True):
        assert_close(USES[use](ours), USES[use](own), rtol=0, atol=3e-5)


def test_a_lazy_table_is_an_instance_of_tensor():
    for own, ours in zip(*llama_tables(), strict=True):
        assert isinstance(ours, Tensor)
        assert torch.is_tensor(ours)
        assert isinstance(ours, LazyTable)  # patched layers look for this type
        assert ours in {ours}
        assert str(ours).startswith("tensor(")
        assert pickle.dumps(ours)  # on its way to another process
        assert_close(ours, ours)
        with pytest.raises(AssertionError):
            assert_close(ours, own + 1e-3)


@pytest.mark.parametrize("unsqueeze_dim", [1, 2])
def test_the_unpatched_function_takes_patched_tables(unsqueeze_dim):
    shape = (2, 3, 5, 16) if unsqueeze_dim == 1 else (2, 5, 3, 16)
    q, k = torch.randn(2, *shape)
    rotated = [
        modeling_llama.apply_rotary_pos_emb(q, k, *tables, unsqueeze_dim=unsqueeze_dim)
        for tables in llama_tables()
    ]
    assert_close(rotated[1], rotated[0], rtol=0, atol=1e-4)


@torch.no_grad()
def test_layers_take_the_tables_of_either_model():
    """As code does that runs a model layer by layer."""
    model, x = model_of("llama"), torch.randn(2, 5, 48)
    own, ours = llama_tables()
    wanted = model.model.layers[0](x, position_embeddings=own)
    crossed = model.model.layers[0](x, position_embeddings=ours)
    with patched(model):
        rotated = [model.model.layers[0](x, position_embeddings=tables) for tables in (own, ours)]
    for found in (crossed, *rotated):
        assert_close(found, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["roformer", "roformer value"])
def test_roformer_rotates_by_its_own_table(family):
    model = model_of(family)
    before = model.roformer.encoder.embed_positions.weight.clone()
    sinusoidal = model.roformer.encoder.embed_positions((2, 7))[None, None]
    xs = [torch.randn(2, 3, 7, 16) for _ in range(3 if family.endswith("value") else 2)]
    theirs = RoFormerSelfAttention.apply_rotary_position_embeddings(sinusoidal, *xs)
    with patched(model):
        attention = model.roformer.encoder.layer[0].attention.self
        assert "apply_rotary_position_embeddings" in vars(attention)
        ours = attention.apply_rotary_position_embeddings(sinusoidal, *xs)
        assert torch.equal(model.roformer.encoder.embed_positions.weight, before)
        assert not model.roformer.encoder.embed_positions.weight.requires_grad
    assert_close(ours, theirs, rtol=0, atol=2e-6)


TRAINED = 24
LENGTH_ROPES = {
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "longrope": {
        "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": TRAINED,
        "short_factor": [1.5] * 8, "long_factor": [3.0] * 8,
    },
}  # fmt: skip


@cache
def following(model_type: str, rope: str) -> PreTrainedModel:
    """A model whose rope changes with the length of the text."""
    longest = {"max_position_embeddings": TRAINED * (4 if rope == "longrope" else 1)}
    asked = {"original_max_position_embeddings": TRAINED} if model_type == "phi3" else {}
    config = config_of(
        model_type,
        **{
            **SIZES,
            **longest,
            **asked,
            "rope_parameters": {"rope_theta": 1e4, **LENGTH_ROPES[rope]},
        },
    )
    torch.manual_seed(5)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("rope", LENGTH_ROPES)
@torch.no_grad()
def test_a_patched_module_has_no_memory_of_lengths(rope):
    """Transformers' own writes the longest call into its buffers; a patched one finds the
    frequencies of each call anew.
    """
    module = patch(copy.deepcopy(following("llama", rope))).model.rotary_emb
    before = {**copy.deepcopy(dict(module.named_buffers())), "cached": module.max_seq_len_cached}
    for length in (2 * TRAINED, 5, 3 * TRAINED):
        own = copy.deepcopy(following("llama", rope)).model.rotary_emb
        where = torch.arange(length)[None]
        assert_close(
            module(torch.zeros(1), where),
            own(torch.zeros(1), where),
            rtol=0,
            atol=SLACK[torch.float32],
        )
    after = {**dict(module.named_buffers()), "cached": module.max_seq_len_cached}
    assert all(
        torch.equal(torch.as_tensor(after[name]), torch.as_tensor(value))
        for name, value in before.items()
    )


def test_generation_past_the_trained_length_makes_the_cache_anew():
    """Phi-3 changes its factors there, and drops keys rotated with the old ones."""
    model, prompt = following("phi3", "longrope"), tokens(1, TRAINED - 3)
    asked = {
        "max_new_tokens": 8,
        "min_new_tokens": 8,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
        "attention_mask": torch.ones_like(prompt),
    }
    plain = model.generate(prompt, **asked)
    with patched(model):
        ours = model.generate(prompt, **asked)
        whole = model(ours.sequences[:, :-1]).logits[:, -1]
    assert torch.equal(ours.sequences, plain.sequences)
    assert_close(torch.stack(ours.logits), torch.stack(plain.logits), rtol=0, atol=1e-4)
    assert_close(ours.logits[-1], whole, rtol=0, atol=1e-4)  # no key is left of the short factors
