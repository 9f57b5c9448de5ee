"""A Decoder on a CUDA device projects, norms and rotates by the fused kernels; its loss and
gradients stay right.
"""

import pytest
import torch

from ropewalk.kernels.norm_rotation import KVSlots, launch
from ropewalk.kernels.qkv import qkv_norm_rope
from ropewalk.models import Decoder, DecoderConfig, decoder_attention
from ropewalk.spec import RopeSpec

pytestmark = pytest.mark.gpu
SIZES = {
    "vocab_size": 97,
    "hidden_size": 256,
    "intermediate_size": 128,
    "num_layers": 2,
    "num_heads": 8,
    "num_kv_heads": 4,
}
OPTIONS = {
    "plain": {},
    "head norm": {"qk_norm": True},
    "head norm and biases": {"qk_norm": True, "qkv_bias": True},
}


def model_of(options, dtype, device="cuda"):
    torch.manual_seed(5)
    return Decoder(DecoderConfig(**SIZES, head_dim=64, init_std=0.1, **options)).to(device, dtype)


def loss_and_gradients(model, tokens, **arguments):
    loss = model.loss(tokens, **arguments)
    loss.backward()
    return loss.detach().double(), {name: p.grad.double() for name, p in model.named_parameters()}


@pytest.fixture
def calls(monkeypatch):
    """A list that grows with every launch of the kernel that norms, rotates and stores."""
    launched = []
    monkeypatch.setattr(decoder_attention, "FEWEST_TOKENS", 256)
    monkeypatch.setattr(
        launch, "run", lambda *args, run=launch.run: (launched.append(1), run(*args))[1]
    )
    return launched


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 4e-2)], ids=str
)
def test_loss_and_gradients_by_the_fused_kernels_equal_float64(options, dtype, tolerance, calls):
    tokens = torch.randint(0, 97, (2, 1100), device="cuda")
    documents = (torch.arange(1100, device="cuda") // 400).expand(2, -1)
    model, exact = model_of(options, dtype), model_of(options, torch.float64, "cpu")
    exact.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    loss, gradients = loss_and_gradients(model, tokens, documents=documents)
    assert len(calls) == (2 if "qk_norm" in options else 0)  # one for each layer
    exact_loss, exact_gradients = loss_and_gradients(exact, tokens.cpu(), documents=documents.cpu())
    assert abs(loss.cpu() - exact_loss) < tolerance
    for name, gradient in gradients.items():
        want = exact_gradients[name]
        assert (gradient.cpu() - want).norm() < tolerance * want.norm(), name


def test_a_padded_prompt_with_a_cache_is_as_exact_as_without_the_fused_kernels(calls, monkeypatch):
    model = model_of({"qk_norm": True}, torch.bfloat16).eval()
    tokens = torch.randint(0, 97, (2, 1200), device="cuda")
    padding = torch.ones_like(tokens, dtype=torch.bool)
    padding[1, :300] = False
    with torch.no_grad():
        fused = model(tokens, padding=padding, caches=model.caches())[padding].double()
        assert len(calls) == 2
        monkeypatch.setattr(decoder_attention, "FEWEST_TOKENS", 1 << 30)
        plain = model(tokens, padding=padding, caches=model.caches())[padding].double()
        exact = model.double()(tokens, padding=padding)[padding]
    assert (fused - exact).norm() < 1.1 * (plain - exact).norm()


@pytest.mark.parametrize("tokens", [300, 2100])
def test_layer_norms_that_a_user_put_in_place_of_rms_norms_are_computed(tokens):
    model = model_of({"qk_norm": True}, torch.float32).eval()
    for layer in model.layers:
        layer.self_attn.q_norm, layer.self_attn.k_norm = (
            torch.nn.LayerNorm(64, device="cuda") for _ in range(2)
        )
        torch.nn.init.normal_(layer.self_attn.q_norm.weight)
    prompt = torch.randint(0, 97, (1, tokens), device="cuda")
    with torch.no_grad():
        got, want = model(prompt).cpu().double(), model.cpu().double()(prompt.cpu())
    assert (got - want).norm() < 1e-4 * want.norm()


@pytest.mark.parametrize(
    ("depth", "tokens", "cached", "launches"),
    [(4096, 64, True, 0), (4096, 65, True, 1), (256, 128, True, 0), (256, 9, False, 1)],
)
def test_few_tokens_or_a_small_model_with_a_cache_take_one_launch(
    depth, tokens, cached, launches, calls
):
    weight = torch.randn(1024, depth, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(tokens, depth, device="cuda", dtype=torch.bfloat16)
    positions = torch.arange(tokens, device="cuda")
    memory = torch.zeros(2, tokens, 2, 128, device="cuda", dtype=torch.bfloat16)
    where = {"cache": KVSlots(*memory), "slots": positions} if cached else {}
    qkv_norm_rope(x, weight, spec=RopeSpec(128), positions=positions, heads=(4, 2), **where)
    assert len(calls) == launches  # `calls` has only second launches, which follow the product
