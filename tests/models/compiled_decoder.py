"""The Decoder's loss under torch.compile, run by test_decoder.py in a process without runtime type checks."""

import torch

from ropewalk.models import Decoder, DecoderConfig
from ropewalk.models.decoder_loss import token_loss

CASES = (
    {"qk_norm": True, "num_experts": 3, "experts_per_token": 2, "router_aux_coef": 0.1, "window": 3},
    {"encoding": "learned", "qkv_bias": True, "tie_embeddings": False},
)

torch.manual_seed(0)
for options in CASES:
    model = Decoder(DecoderConfig(41, 20, 24, 1, 6, 2, 10, **options))
    tokens = torch.randint(0, 41, (2, 7))
    parameters = tuple(model.parameters())
    expected = model.loss(tokens)
    wanted = torch.autograd.grad(expected, parameters)
    found = torch.compile(model.loss, fullgraph=True, backend="aot_eager")(tokens)
    torch.testing.assert_close(found, expected)
    for mine, theirs in zip(torch.autograd.grad(found, parameters), wanted, strict=True):
        torch.testing.assert_close(mine, theirs)

x, weight = torch.randn(11, 6, requires_grad=True), torch.randn(41, 6, requires_grad=True)
targets = torch.randint(0, 41, (11,))
expected = torch.nn.functional.cross_entropy(x @ weight.T, targets)
found = torch.compile(token_loss, fullgraph=True, backend="aot_eager")(x, weight, targets, 3 * 41)  # four chunks
torch.testing.assert_close(found, expected)
for mine, theirs in zip(*(torch.autograd.grad(loss, (x, weight)) for loss in (found, expected)), strict=True):
    torch.testing.assert_close(mine, theirs)
