"""Latent attention in the fused call: what it refuses, and that its cache is the one
LatentAttention computes with.
"""

import pytest
import torch
from torch.testing import assert_close

import ropewalk as rw
from door import assert_refused
from ropewalk.attention import LatentAttention
from ropewalk.kernels.norm_rotation import KVSlots, LatentNorm, qk_norm_rope

RANK, ROPE, TOKENS, SLOTS = 9, 4, 5, 8
SPEC = rw.RopeSpec(RANK + ROPE, rotary_start=RANK)
AT = torch.arange(TOKENS)


def call(**changes):
    x = torch.randn(TOKENS, 1, RANK + ROPE)
    how = {
        "spec": SPEC,
        "positions": AT,
        "slots": AT,
        "norm": LatentNorm(torch.ones(RANK)),
        "cache": KVSlots(store()),
    }
    return qk_norm_rope(x, x, **how | changes)


def store(dtype=torch.float32):
    return torch.zeros(SLOTS, 1, RANK + ROPE, dtype=dtype)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cache": None, "slots": None}, "norm"),
        ({"norm": LatentNorm(torch.ones(RANK + 1))}, "norm"),
        ({"spec": rw.RopeSpec(RANK + ROPE, rotary_dim=ROPE)}, "norm"),
        ({"v": torch.zeros(TOKENS, 1, RANK + ROPE)}, "cache"),
        ({"cache": KVSlots(store(), store())}, "cache"),
    ],
)
def test_an_error_of_a_latent_call_names_the_bad_argument(change, field):
    assert_refused(field, lambda: call(**change))


def test_bad_latent_norms_and_caches_are_refused():
    assert_refused("weight", lambda: LatentNorm(torch.ones(2, 2)))
    assert_refused("eps", lambda: LatentNorm(torch.ones(2), eps=-1.0))
    assert_refused("v_scale", lambda: KVSlots(store(), v_scale=2.0))


def test_a_decode_step_by_slots_equals_latent_attention():
    """q times the up-projection of keys, one fused call, attention over the cached rows, the
    up-projection of values.
    """
    torch.manual_seed(1)
    layer = LatentAttention(20, 3, kv_rank=RANK, nope_dim=6, rope_dim=ROPE, value_dim=5).double()
    x, cache = torch.randn(1, TOKENS, 20, dtype=torch.float64), KVSlots(store(torch.float64))
    with torch.no_grad():
        expected = layer(x).out[0, -1]
        q, k, _ = layer.project(x)
        latent = layer.kv_a_proj_with_mqa(x)[0, :, :RANK]  # not normed: the call does it
        up_key, up_value = layer.kv_b_proj.weight.view(3, 11, RANK).split([6, 5], dim=1)
        absorbed = torch.cat((q[0, :, :, :6] @ up_key, q[0, :, :, 6:]), dim=-1).transpose(0, 1)
        norm = LatentNorm(layer.kv_a_layernorm.weight, layer.kv_a_layernorm.eps)
        row = torch.cat((latent, k[0, 0]), dim=-1)[:, None]
        slots = torch.tensor([5, 0, 7, 2, 4])
        rotated = qk_norm_rope(
            absorbed, row, spec=SPEC, positions=AT, slots=slots, norm=norm, cache=cache
        )
        rows = cache.k[slots, 0]
        weights = (rotated[-1] @ rows.T * layer.scale).softmax(-1)
        out = layer.o_proj(torch.einsum("hr,hvr->hv", weights @ rows[:, :RANK], up_value).flatten())
    assert_close(out, expected, rtol=0, atol=1e-12)
