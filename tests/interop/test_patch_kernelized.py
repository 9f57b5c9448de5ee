"""`patch` with rotation functions that the package `kernels` has made modules of, as transformers
decorates them where it is installed.
"""

import inspect
from types import MethodType

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

import ropewalk as rw
from ropewalk.errors import RopeError
from ropewalk.interop.patch.functions import RotationFunction

SIZES = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def plain_rotation():
    """The rotation function of transformers, whether `kernels` wraps it or not."""
    function = modeling_llama.apply_rotary_pos_emb
    if not isinstance(function, nn.Module):
        return function
    return inspect.getclosurevars(type(function).forward).nonlocals["func"]


ROTATION = plain_rotation()


def as_module(function):
    """A stand-in for `kernels.use_kernel_forward_from_hub`: a module whose forward has the
    signature of the function, and whose call takes any arguments.
    """

    class Func(nn.Module):
        def forward(self, *args, **kwargs):
            return function(*args, **kwargs)

    signature = inspect.signature(function)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    Func.forward.__signature__ = signature.replace(parameters=[own, *signature.parameters.values()])
    return Func()


def by_package(function):
    try:
        from kernels import use_kernel_forward_from_hub
    except ImportError:
        pytest.skip("the package kernels is not installed")
    return use_kernel_forward_from_hub("rotary_pos_emb")(function)


@pytest.fixture(params=[as_module, by_package])
def wrapped(request, monkeypatch):
    """A Llama whose rotation function is a module."""
    function = request.param(ROTATION)
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", function)
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES)).eval(), function


@torch.no_grad()
def logits(model, first=0):
    tokens = torch.arange(12)[None] * 5 % 61
    return model(tokens, position_ids=tokens[:, :0].new_tensor([range(first, first + 12)])).logits


def test_a_function_that_became_a_module_is_patched(wrapped, monkeypatch):
    model, _ = wrapped
    before, calls = logits(model), []
    rw.patch(model)
    ours = RotationFunction.__call__
    monkeypatch.setattr(
        RotationFunction, "__call__", lambda self, *args: calls.append(1) or ours(self, *args)
    )
    torch.testing.assert_close(logits(model), before, atol=1e-5, rtol=1e-4)
    assert len(calls) == 2  # one for each layer
    rw.unpatch(model)
    assert torch.equal(logits(model), before)
    assert len(calls) == 2


def test_a_replaced_forward_of_the_module_is_recognised_or_refused_by_what_it_computes(wrapped):
    model, function = wrapped

    def opposite(self, q, k, cos, sin, unsqueeze_dim=1):
        return ROTATION(q, k, cos, -sin, unsqueeze_dim)

    # as `kernelize` replaces the forward of one instance
    function.forward = MethodType(opposite, function)
    before = logits(model)
    torch.testing.assert_close(logits(rw.patch(model)), before, atol=1e-5, rtol=1e-4)
    rw.unpatch(model)
    function.forward = MethodType(lambda self, q, k, cos, sin: (2 * q, k), function)
    with pytest.raises(RopeError, match=r"no rotation this library supports.*apply_rotary_pos_emb"):
        rw.patch(model)
