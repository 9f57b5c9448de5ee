"""A cache that is filled in one mode of autograd and continued in another."""

import pytest
import torch

from ropewalk.attention import Attention, KVCache

CACHES = {"growing": {}, "static": {"capacity": 12}, "sliding": {"capacity": 12, "sinks": 2}}


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("then", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("first", [torch.inference_mode, torch.no_grad])
def test_a_cache_filled_in_one_autograd_mode_continues_in_another(kind, first, then):
    torch.manual_seed(0)
    layer, x, cache = (
        Attention(16, 2).double(),
        torch.randn(2, 9, 16).double(),
        KVCache(kind, **CACHES[kind]),
    )
    expected = layer(x).out.detach()
    with first():
        layer(x[:, :6], cache=cache)
    with then():
        steps = [layer(x[:, i : i + 1], cache=cache).out for i in range(6, 9)]
        if then is torch.enable_grad:
            torch.cat(steps, dim=1).sum().backward()
    with torch.no_grad():
        torch.testing.assert_close(torch.cat(steps, dim=1), expected[:, 6:], atol=1e-12, rtol=1e-9)
