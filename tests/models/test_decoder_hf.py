"""The Decoder against transformers: equal logits, gradients, losses and greedy generation, weights
in and out.
"""

import pytest
import torch
import transformers
from decoder_cases import CASES, theirs
from torch.nn import functional as F

from ropewalk.models import checkpoints

BATCH, SEQ, VOCAB = 2, 9, 41


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    """(their model, ours read from their folder)."""
    model, folder = theirs(request.param), tmp_path_factory.mktemp("theirs") / "model"
    model.save_pretrained(folder)
    return model, checkpoints.load(folder)


def tokens(batch=BATCH, seq=SEQ):
    return torch.randint(0, VOCAB, (batch, seq))


def by_their_names(model, tensors):
    """Our tensors under transformers' names, the packed ones cut where the heads and the halves
    end.
    """
    found, config = {}, model.config
    widths = [
        n * config.head_dim for n in (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    ]
    for name, value in tensors.items():
        name = name if name.startswith("lm_head") else "model." + name
        if "qkv_proj" in name:
            found |= {
                name.replace("qkv", part): piece
                for part, piece in zip("qkv", value.split(widths), strict=True)
            }
        elif "mlp.gate_up_proj" in name:
            found |= {
                name.replace("gate_up", part): piece
                for part, piece in zip(("gate", "up"), value.chunk(2), strict=True)
            }
        else:
            found[name] = value
    return found


def test_logits_and_gradients_are_equal(pair):
    model, ours = pair
    given, weight = tokens(), torch.randn(BATCH, SEQ, VOCAB)
    for each in pair:
        each.zero_grad()
    expected, found = model(given).logits, ours(given)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    (expected * weight).sum().backward()
    (found * weight).sum().backward()
    mine = by_their_names(
        ours, {name: parameter.grad for name, parameter in ours.named_parameters()}
    )
    wanted = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert mine.keys() == wanted.keys()
    for name, gradient in wanted.items():
        bound = 2e-6 * max(1.0, gradient.abs().max().item()) + 1e-5
        torch.testing.assert_close(
            mine[name],
            gradient,
            atol=bound,
            rtol=1e-5,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def test_greedy_generation_with_a_cache_gives_the_same_tokens(pair):
    model, ours = pair
    given = tokens()
    expected = model.generate(given, max_new_tokens=7, do_sample=False, use_cache=True)
    for cache in ("growing", "static", "none"):
        assert torch.equal(ours.generate(given, 7, cache=cache), expected), cache


def test_left_padded_generation_gives_the_same_tokens(pair):
    model, ours = pair
    given, padding = tokens(), torch.ones(BATCH, SEQ, dtype=torch.bool)
    padding[1, :4] = False
    config = transformers.GenerationConfig(max_new_tokens=5, do_sample=False, pad_token_id=0)
    expected = model.generate(given, attention_mask=padding.long(), generation_config=config)
    assert torch.equal(ours.generate(given, 5, padding=padding), expected)


def test_the_loss_without_all_logits_is_that_of_transformers(pair):
    model, ours = pair
    given = tokens()
    experts = hasattr(model.config, "num_experts")
    options = {"output_router_logits": True} if experts else {}
    expected = model(given, labels=given, **options).loss
    torch.testing.assert_close(ours.loss(given), expected, atol=2e-6, rtol=1e-5)
    expected = F.cross_entropy(model(given).logits.flatten(0, 1).double(), given.flatten())
    if experts and model.config.router_aux_loss_coef:
        expected = (
            expected
            + model.config.router_aux_loss_coef * model(given, labels=given, **options).aux_loss
        )
    torch.testing.assert_close(
        ours.loss(given, given).double(), expected.double(), atol=2e-6, rtol=1e-5
    )


def test_transformers_loads_what_we_save(pair, tmp_path):
    model, ours = pair
    checkpoints.save(ours, tmp_path / "ours", extra_config={"eos_token_id": 3})
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert read.config.eos_token_id == 3
    given = tokens()
    torch.testing.assert_close(read(given).logits, model(given).logits, atol=1e-5, rtol=0)
    again = checkpoints.load(tmp_path / "ours")
    assert again.config == ours.config
    assert torch.equal(again(given), ours(given))
