"""A patch changes one instance, all or nothing, and whatever people do with a model still works."""

from __future__ import annotations

import copy
import pickle
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
from installed import V5, config_of, skip_old_cache
from patch_models import SIZES, model_of, outputs, squaring, tokens
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.llama import modeling_llama

from another_process import run_tests
from door import assert_refused
from ropewalk import RopeError
from ropewalk.interop.patch.methods import Replacement
from ropewalk.interop.patch.model import _installed, patch, patched, unpatch
from torch_release import needs_torch_2_7

#: what two float32 runs of these models may differ by
NEAR = {"rtol": 0, "atol": 5e-5}


def fresh(family: str = "llama") -> PreTrainedModel:
    return copy.deepcopy(model_of(family))


def replacements(model: torch.nn.Module) -> int:
    return sum(
        isinstance(found, Replacement)
        for module in model.modules()
        for found in vars(module).values()
    )


@pytest.fixture
def model() -> PreTrainedModel:
    return fresh()


def built(model_type: str, **keys) -> PreTrainedModel:
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(config_of(model_type, **{**SIZES, **keys})).eval()


def test_patch_changes_only_the_given_model(model):
    before, other, seen = (
        dict(vars(modeling_llama)),
        fresh(),
        modeling_llama.LlamaAttention.forward.__globals__,
    )
    plain = outputs(other)
    patch(model)
    assert replacements(model) == 3  # two layers and the rotary module
    assert replacements(other) == 0
    assert torch.equal(outputs(other), plain)
    assert vars(modeling_llama) == before
    assert modeling_llama.LlamaAttention.forward.__globals__ is seen


@pytest.mark.parametrize(
    ("model", "field", "match"),
    [
        (lambda: built("gpt2", n_embd=48, n_head=3, n_layer=2), "model", "no module of this model"),
        (squaring, "Squaring", "no rotation this library supports"),
    ],
)
def test_what_cannot_be_patched_is_refused_with_the_reason(model, field, match):
    model = model()
    with pytest.raises(RopeError, match=match) as error:
        patch(model)
    assert error.value.field == field
    assert replacements(model) == 0


def test_what_is_no_model_is_refused():
    assert_refused("model", lambda: patch("llama"))
    assert_refused("model", lambda: unpatch("llama"))


def test_a_method_that_other_code_replaced_is_refused_and_nothing_is_installed(model):
    model.model.layers[1].self_attn.forward = lambda *args, **kwargs: None
    with pytest.raises(RopeError, match="other code replaced it"):
        patch(model)
    assert replacements(model) == 0


def test_an_unknown_backend_is_refused_before_anything_changes(model):
    with pytest.raises(RopeError, match="must be one of"):
        patch(model, backend="quantum")
    assert replacements(model) == 0


def test_weights_that_are_not_loaded_are_refused():
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_of("llama").config)
    with pytest.raises(RopeError, match="load the weights"):
        patch(model)


@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_a_backend_may_be_named(model, backend):
    plain = outputs(model)
    assert_close(outputs(patch(model, backend=backend)), plain, **NEAR)


def test_patched_leaves_the_model_as_it_was_before_the_block(model):
    plain = outputs(model)

    def fail_inside():
        with patched(model) as same:
            assert same is model
            assert replacements(model) == 3
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert replacements(model) == 0
    assert torch.equal(outputs(model), plain)
    patch(model)
    with patched(model, backend="eager"):
        pass
    assert replacements(model) == 3


def test_patching_again_reads_the_config_again(model):
    first = outputs(patch(model))
    assert torch.equal(outputs(patch(model)), first)
    assert replacements(model) == 3
    if V5:
        model.config.rope_parameters["rope_theta"] = 77.0
    else:
        model.config.rope_theta = 77.0
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    changed = outputs(model)
    assert not torch.allclose(changed, first, atol=1e-2)
    assert_close(outputs(patch(model)), changed, **NEAR)


def test_a_refused_second_patch_keeps_the_first(model):
    patch(model)
    with pytest.raises(RopeError):
        patch(model, backend="quantum")
    model.model.layers.append(squaring().model.layers[1])
    with pytest.raises(RopeError, match="no rotation"):
        patch(model)
    assert replacements(model) == 3


def pickled(model):
    return pickle.loads(pickle.dumps(model))  # noqa: S301 - our own bytes


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
@pytest.mark.parametrize("family", ["llama", "roformer"])
def test_copies_are_patched_models_of_their_own(copied, family):
    model = fresh(family)
    try:
        copied(model)
    except AttributeError:  # the package kernels keeps local objects in the modules
        pytest.skip("the unpatched model cannot be copied in this way")
    plain, ours = outputs(model), outputs(patch(model))
    twin = copied(model)
    unpatch(model)
    assert torch.equal(outputs(twin), ours)
    assert torch.equal(outputs(unpatch(twin)), plain)


def test_a_patched_model_is_saved_as_the_model_it_is(model, tmp_path):
    plain, keys = outputs(model), list(model.state_dict())
    patch(model)
    assert list(model.state_dict()) == keys
    model.save_pretrained(tmp_path)
    assert torch.equal(
        outputs(AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")), plain
    )


@pytest.mark.parametrize("patch_first", [True, False])
def test_hooks_of_accelerate_and_a_patch_live_together(model, patch_first):
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module, remove_hook_from_submodules

    plain = outputs(model)
    hook = partial(accelerate.dispatch_model, model, device_map={"": "cpu"}, force_hooks=True)
    each = lambda: [
        add_hook_to_module(m, AlignDevicesHook("cpu"))
        for m in model.modules()
        if not list(m.children())
    ]
    attention = lambda: [
        add_hook_to_module(layer.self_attn, AlignDevicesHook("cpu")) for layer in model.model.layers
    ]
    steps = [lambda: patch(model), lambda: (hook(), each(), attention())]
    for step in steps if patch_first else reversed(steps):
        step()
    ours = outputs(model)
    assert not torch.equal(ours, plain)
    assert_close(ours, plain, **NEAR)
    assert torch.equal(outputs(unpatch(model)), plain)
    assert hasattr(model.model.layers[0].self_attn, "_hf_hook")
    remove_hook_from_submodules(model)
    assert torch.equal(outputs(model), plain)
    assert replacements(model) == 0


@pytest.mark.parametrize("patch_first", [True, False])
def test_lora_trains_on_a_patched_model(patch_first):
    peft = pytest.importorskip("peft", reason="needs peft")
    grads = []
    for order in ("never", "first" if patch_first else "last"):
        model = fresh()
        if order == "first":
            patch(model)
        torch.manual_seed(3)
        wrapped = peft.get_peft_model(
            model,
            peft.LoraConfig(r=2, target_modules=["q_proj", "k_proj"], init_lora_weights=False),
        )
        if order == "last":
            patch(wrapped)
        assert replacements(wrapped) == (0 if order == "never" else 3)
        wanted = [p for p in wrapped.parameters() if p.requires_grad]
        grads.append(torch.autograd.grad(wrapped(tokens(), labels=tokens()).loss, wanted))
    assert len(grads[0]) == 8
    for mine, other in zip(*grads, strict=True):
        assert other.abs().max() > 0
        assert_close(mine, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma-3"])
@pytest.mark.parametrize("cache", ["dynamic", "static", "none"])
def test_a_patched_model_generates_the_same_tokens_with_every_kind_of_cache(family, cache):
    """The prompt and 12 new tokens are longer than Mistral's window of 6 and than Gemma's window."""
    if cache != "none":
        skip_old_cache(family)
    model, prompt = model_of(family), tokens(2, 8)
    asked = {
        "max_new_tokens": 12,
        "min_new_tokens": 12,
        "do_sample": False,
        "attention_mask": torch.ones_like(prompt),
    }
    asked |= (
        {"use_cache": False}
        if cache == "none"
        else {"cache_implementation": cache, "disable_compile": True}
    )
    plain = model.generate(prompt, **asked)
    with patched(model):
        assert torch.equal(model.generate(prompt, **asked), plain)


def test_a_patched_model_generates_the_same_tokens_by_beams_and_with_an_assistant():
    model, prompt = model_of("llama"), tokens(1, 8)
    for asked in ({"num_beams": 3}, {"prompt_lookup_num_tokens": 2}):
        asked |= {
            "max_new_tokens": 8,
            "do_sample": False,
            "attention_mask": torch.ones_like(prompt),
        }
        plain = model.generate(prompt, **asked)
        with patched(model):
            assert torch.equal(model.generate(prompt, **asked), plain)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradients_of_a_patched_model_with_checkpointing_are_those_of_the_plain_one(
    model, reentrant
):
    model.train()
    wanted = [p for p in model.parameters() if p.requires_grad]

    def gradients():
        model.zero_grad()
        model(tokens(), labels=tokens()).loss.backward()
        return [p.grad.clone() for p in wanted]

    plain = gradients()
    patch(model).gradient_checkpointing_enable({"use_reentrant": reentrant})
    for mine, other in zip(gradients(), plain, strict=True):
        assert_close(mine, other, rtol=1e-3, atol=1e-5)


def test_a_row_padded_on_the_left_answers_as_it_does_alone(model):
    patch(model)
    row = tokens(1, 7)
    ids = torch.cat([torch.zeros(1, 4, dtype=torch.int64), row], dim=1)
    mask = (torch.arange(11) >= 4).long()[None]
    both = torch.cat([ids, tokens(1, 11)]), torch.cat([mask, torch.ones_like(mask)])
    where = (both[1].cumsum(-1) - 1).clamp(min=0)
    padded = outputs(model, both[0], attention_mask=both[1], position_ids=where)
    assert_close(padded[:1, 4:], outputs(model, row), **NEAR)
    assert_close(padded[1:], outputs(model, both[0][1:]), **NEAR)


def test_rows_at_different_positions_give_the_same_output(model):
    """[B, S] positions; scores depend on distances alone, so a row that starts later answers the
    same.
    """
    patch(model)
    where = torch.arange(11) + torch.tensor([[0], [900_000]])
    ids = tokens(1, 11).expand(2, -1)
    found = outputs(model, ids, position_ids=where)
    assert_close(found[0], found[1], **NEAR)


def test_threads_that_share_a_patched_model_do_not_disturb_each_other(model):
    patch(model)
    wheres = [torch.arange(11)[None] + 1000 * i for i in range(6)]
    alone = [outputs(model, position_ids=where).detach() for where in wheres]
    found: dict[int, bool] = {}

    def run(i):
        with torch.no_grad():
            found[i] = all(
                torch.equal(outputs(model, position_ids=wheres[i]), alone[i]) for _ in range(5)
            )

    workers = [threading.Thread(target=run, args=(i,)) for i in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == dict.fromkeys(range(6), True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_rounds_the_frequencies_of_a_model_and_a_patch_brings_them_back(dtype):
    """`model.half()` rounds `inv_freq`, which no checkpoint intends."""
    where = {"position_ids": 400 * torch.arange(11)[None]}
    rounded = fresh("qwen2").to(dtype)
    assert rounded.model.rotary_emb.inv_freq.dtype == dtype
    meant = fresh("qwen2")
    # the rounded weights, with the frequencies of the config
    meant.load_state_dict(rounded.state_dict())
    meant = outputs(meant, **where)
    lost = (outputs(rounded.float(), **where) - meant).abs().max()
    found = (outputs(patch(rounded.to(dtype)).float(), **where) - meant).abs().max()
    assert found < 1e-3 < 1e-2 < lost


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_leaves_the_frequencies_that_a_user_set(dtype):
    where = {"position_ids": 400 * torch.arange(11)[None]}
    model = fresh("qwen2")
    model.model.rotary_emb.inv_freq *= 0.01
    plain = outputs(model.to(dtype).float(), **where)
    assert_close(outputs(patch(model.to(dtype)).float(), **where), plain, atol=2e-2, rtol=0)
    assert (plain - outputs(fresh("qwen2"), **where)).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_patch_does_not_depend_on_the_default_dtype(model, dtype):
    plain = outputs(model)
    try:
        torch.set_default_dtype(dtype)
        patch(model)
    finally:
        torch.set_default_dtype(torch.float32)
    assert_close(outputs(model), plain, **NEAR)


def test_a_patch_does_not_depend_on_the_default_device(model):
    plain = outputs(model)
    with torch.device("meta"):
        patch(model)
    assert_close(outputs(model), plain, **NEAR)


@pytest.mark.parametrize("family", ["llama", "gpt-j"])
def test_patched_restores_the_backend_of_an_earlier_patch(family):
    model = patch(fresh(family), backend="reference")
    with patched(model, backend="eager"):
        assert {each.backend for each in _installed(model)} == {"eager"}
    assert {each.backend for each in _installed(model)} == {"reference"}


def test_training_steps_give_a_patched_model_the_losses_of_the_unpatched():
    losses = []
    for patched_too in (False, True):
        model = fresh("qwen3").train()
        if patched_too:
            patch(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(3):
            loss = model(tokens(), labels=tokens()).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@needs_torch_2_7("it cannot compile a model of transformers 5 as one graph, patched or not")
def test_patched_models_compile(full):
    """The suite's runtime type checks wrap functions in ways dynamo cannot follow, so a process
    without them compiles.
    """
    run_tests(
        [Path(__file__).parent / "patch_compiled.py"],
        full,
        "--noconftest",
        "-p",
        "sampling",
        "--show-capture=no",
    )
