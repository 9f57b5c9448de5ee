"""The same token at the same position gives the same bits whatever its neighbours, the memory order
and the configuration.
"""

import pytest
import torch

import ropewalk as rw
from invariance import DTYPES, count_differing
from ropewalk.kernels.norm_rotation import KVSlots, QKNorm, qk_norm_rope

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(40))
def test_a_token_has_the_same_bits_in_every_call(dtype, seed):
    wrong, compared = count_differing(seed, dtype)
    assert compared > 0
    assert wrong == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("normed", [False, True])
def test_the_fused_kernel_gives_the_same_bits_for_any_number_of_tokens(dtype, normed):
    spec, generator = rw.RopeSpec(128), torch.Generator("cuda").manual_seed(1)
    make = lambda *sizes: torch.randn(*sizes, generator=generator, device="cuda").to(dtype)
    qkv, positions = (
        make(3000, 48 * 128),
        torch.randint(0, 100_000, (3000,), generator=generator, device="cuda"),
    )
    norm = QKNorm(make(128), make(128)) if normed else None
    results = []
    for tokens in (3000, 600, 90, 1):
        cache = KVSlots(make(tokens, 8, 128), make(tokens, 8, 128))
        slots = torch.arange(tokens, device="cuda")
        q = qk_norm_rope(
            qkv[:tokens],
            spec=spec,
            positions=positions[:tokens],
            heads=(32, 8),
            norm=norm,
            cache=cache,
            slots=slots,
        )
        results.append((q, cache.k))
    whole_q, whole_k = results[0]
    for q, k in results[1:]:
        assert torch.equal(q, whole_q[: len(q)])
        assert torch.equal(k, whole_k[: len(k)])
    if not normed:
        rope = rw.Rope(spec)
        heads = qkv.view(3000, 48, 128)
        q, k = rope(heads[None, :, :32], heads[None, :, 32:40], positions[None], seq_dim=-3)
        assert torch.equal(q[0], whole_q)
        assert torch.equal(k[0], whole_k)
