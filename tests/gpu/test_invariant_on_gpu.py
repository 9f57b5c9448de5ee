"""An invariant Decoder on a CUDA device: equal bits in every batch, chunk and captured step, and
the values and gradients of float64.
"""

import pytest
import torch

from ropewalk.models import Decoder, DecoderConfig
from ropewalk.models.decode_step import captured_step

pytestmark = pytest.mark.gpu
SIZES = {
    "vocab_size": 1000,
    "hidden_size": 320,
    "intermediate_size": 640,
    "num_layers": 2,
    "init_std": 0.1,
}
#: heads, key heads, head_dim, options
MODELS = {
    "groups of four": (8, 2, 64, {}),
    "head norm": (6, 6, 80, {"qk_norm": True}),
    "one key head, wide heads": (5, 1, 256, {"qkv_bias": True}),
    "window": (4, 2, 128, {"window": 100, "layer_types": ("sliding", "full")}),
}


def model_of(name, dtype, **how):
    torch.manual_seed(5)
    heads, k_heads, head_dim, options = MODELS[name]
    config = DecoderConfig(
        **SIZES, num_heads=heads, num_kv_heads=k_heads, head_dim=head_dim, **options
    )
    return Decoder(config, **how).to("cuda", dtype).eval()


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_a_row_has_the_same_bits_in_every_batch_chunk_padding_and_captured_step(name, dtype):
    model = model_of(name, dtype, invariant=True)
    tokens = torch.randint(0, 1000, (70, 1100), device="cuda")
    alone = model(tokens[3:4])[0]
    for rows in ([3], [0, 3], [3, *range(20, 40)], [*range(70)]):
        place = rows.index(3)
        assert torch.equal(model(tokens[rows])[place], alone)
    caches, parts = model.caches(), tokens[:7].split((600, 1, 50, 449), dim=1)
    found = torch.cat([model(part, caches=caches) for part in parts], dim=1)
    assert torch.equal(found[3], alone)
    padded = torch.cat((tokens[:2, :9], tokens[[0, 3]]), dim=1)
    real = torch.ones_like(padded, dtype=torch.bool)
    real[1, :9] = False
    assert torch.equal(model(padded, padding=real)[1, 9:], alone)
    for rows in ([3], [0, 3], [*range(40)]):
        caches = model.caches()
        model(tokens[rows, :1090], caches=caches)
        with captured_step(model, len(rows), 1100) as step:
            step.start(caches)
            for token in range(1090, 1100):
                logits = step(tokens[rows, token])
                assert torch.equal(logits[rows.index(3)], alone[token])


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_of_an_invariant_decoder_equal_float64(name):
    tokens, found = torch.randint(0, 1000, (2, 700), device="cuda"), {}
    for dtype, invariant in ((torch.float32, True), (torch.float64, False)):
        model = model_of(name, torch.float32, invariant=invariant).to(dtype).train()
        loss = model.loss(tokens)
        loss.backward()
        found[invariant] = [loss.detach(), *(p.grad for p in model.parameters())]
    for got, want in zip(found[True], found[False], strict=True):
        assert (got.double() - want).norm() < 2e-4 * want.norm()
