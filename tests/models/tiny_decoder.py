"""A Decoder in float64, small and odd, whose weights are large enough for every part to matter."""

import torch

from ropewalk.models import Decoder, DecoderConfig

VOCAB, BATCH, SEQ = 43, 2, 7


def make(seed=1, **options):
    """Return a seeded Decoder in float64 with config `options`."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 20,
        "intermediate_size": 27,
        "num_layers": 2,
        "num_heads": 6,
        "num_kv_heads": 2,
    }
    model = (
        Decoder(DecoderConfig(**(sizes | {"head_dim": 10, "length": 24} | options))).double().eval()
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.25)
    return model


def tokens(batch=BATCH, seq=SEQ):
    return torch.randint(0, VOCAB, (batch, seq))
