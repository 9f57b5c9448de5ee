"""transformers plug-in: a model's own code rotates with ropewalk, where that computes the same."""

from importlib import metadata

import plugin_files
import pytest
import torch

import ropewalk as rw

for package in ("transformers", "kernels"):
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed", allow_module_level=True)

SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "vocab_size": 50,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
}


@pytest.fixture(scope="module")
def plugin():
    return plugin_files.load("transformers")


def model_of(name, **more):
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **SIZES, **more)).eval()


def function_of(model):
    """The function that the attention of a model's family calls; one object in the whole process."""
    functions = (getattr(module, "_kernel_funcs", {}) for module in model.modules())
    return next(each["rotary_pos_emb"] for each in functions if each)


@pytest.mark.parametrize("name", ["llama", "qwen2", "olmo"])
def test_logits_are_those_of_the_model_and_ropewalk_rotates(plugin, name, monkeypatch):
    model, tokens = model_of(name), torch.arange(10)[None]
    positions = torch.arange(10)[None] + 3000
    expected = model(tokens, position_ids=positions).logits
    calls = []
    rotate = rw.apply_rotary_pos_emb
    monkeypatch.setattr(
        rw, "apply_rotary_pos_emb", lambda *args, **named: calls.append(1) or rotate(*args, **named)
    )
    model.set_use_kernels(True, plugin.kernel_config())
    calls.clear()
    torch.testing.assert_close(model(tokens, position_ids=positions).logits, expected)
    assert len(calls) == SIZES["num_hidden_layers"]


def test_gradients_are_those_of_the_models_own_code(plugin):
    grads = []
    for uses in (False, True):
        model = model_of("mistral")
        if uses:
            model.set_use_kernels(True, plugin.kernel_config())
        model.train()
        model(torch.arange(10)[None], labels=torch.arange(10)[None]).loss.backward()
        grads.append(model.model.layers[0].self_attn.q_proj.weight.grad)
    torch.testing.assert_close(grads[0], grads[1])


def test_tables_of_another_form_keep_transformers_code(plugin):
    model = model_of("gpt_oss", num_local_experts=4, head_dim=16)
    expected = model(torch.arange(10)[None]).logits
    model.set_use_kernels(True, plugin.kernel_config())
    assert function_of(model).forward.__func__ is type(function_of(model)).forward
    assert torch.equal(model(torch.arange(10)[None]).logits, expected)


def test_the_kernel_rounds_once_in_bfloat16(plugin):
    """transformers rounds both products and the sum; the kernel rounds the result alone."""
    function = function_of(model_of("qwen3", head_dim=16))
    q, k = torch.randn(2, 1, 4, 30, 16, dtype=torch.float64).bfloat16()
    angles = torch.randn(1, 30, 8, dtype=torch.float64).repeat(1, 1, 2)
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    exact = type(function).forward(function, q.double(), k.double(), cos.double(), sin.double())
    theirs = type(function).forward(function, q, k, cos, sin)
    ours = plugin.Rotary()(q, k, cos, sin)
    for want, single, fused in zip(exact, theirs, ours, strict=True):
        assert (fused - want).abs().mean() < 0.8 * (single - want).abs().mean()
        assert torch.equal(fused, want.float().bfloat16())
