"""Presets have the sizes of the models they are named after: parameters counted from the sizes,
matrix by matrix.
"""

import pytest
import torch

from ropewalk.models.presets import PRESETS, build

#: vocabulary, hidden, feed-forward, layers, query heads, key heads, head_dim, experts, whether
#: heads are normed
DECODERS = {
    "tiny": (256, 64, 176, 2, 4, 2, 16, 0, False),
    "tiny-moe": (256, 64, 96, 2, 4, 2, 16, 4, True),
    "llama-100m": (32_000, 768, 2048, 12, 12, 4, 64, 0, False),
    "minimind-3": (6400, 768, 2432, 8, 8, 4, 96, 0, True),
    "minimind-3-moe": (6400, 768, 2432, 8, 8, 4, 96, 4, True),
}
#: vocabulary, hidden, feed-forward, layers, heads
ENCODERS = {
    "roformer-small": (50_000, 384, 1536, 6, 6),
    "roformer-base": (50_000, 768, 3072, 12, 12),
}


def counted(name):
    with torch.device("meta"):
        model = build(name)
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_have_the_parameters_of_their_sizes(name):
    vocabulary, hidden, inner, layers, heads, kv_heads, head_dim, experts, normed = DECODERS[name]
    attention = (
        2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim + 2 * head_dim * normed
    )
    feed_forward = 3 * hidden * inner * max(1, experts) + hidden * experts  # with the router
    assert (
        counted(name)
        == vocabulary * hidden + layers * (attention + feed_forward + 2 * hidden) + hidden
    )


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_have_the_parameters_of_their_sizes(name):
    vocabulary, hidden, inner, layers, heads = ENCODERS[name]
    norm = 2 * hidden
    layer = (
        4 * (hidden * hidden + hidden) + hidden * inner + inner + inner * hidden + hidden + 2 * norm
    )
    head = hidden * hidden + hidden + norm + vocabulary
    assert counted(name) == vocabulary * hidden + 2 * hidden + norm + layers * layer + head
    assert PRESETS[name].num_heads == heads


def test_presets_have_their_lengths_heads_and_expert_settings():
    assert {name: PRESETS[name].length for name in DECODERS} == {
        "tiny": 128,
        "tiny-moe": 128,
        "llama-100m": 2048,
        "minimind-3": 32_768,
        "minimind-3-moe": 32_768,
    }
    assert {name: PRESETS[name].num_heads for name in DECODERS} == {
        name: sizes[4] for name, sizes in DECODERS.items()
    }
    mixtures = [PRESETS[name] for name in ("tiny-moe", "minimind-3-moe")]
    assert [(each.experts_per_token, each.router_aux_coef) for each in mixtures] == [
        (2, 1e-3),
        (1, 5e-4),
    ]
    assert PRESETS["minimind-3"].encoding.theta == 1e6
