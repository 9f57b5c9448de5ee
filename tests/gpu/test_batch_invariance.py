"""The same token at the same position gives the same bits whatever its neighbours, the memory order and the configuration."""

import random

import pytest
import torch

import ropewalk as rw
from ropewalk.kernels.fused import KVSlots, QKNorm, qk_norm_rope

pytestmark = pytest.mark.gpu
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def one_by_one(spec, q, k, positions):
    """The rotation of each token alone, [B, H, S, D]: the decode configuration."""
    rope = rw.Rope(spec)
    parts = [
        rope(q[:, :, s : s + 1].contiguous(), k[:, :, s : s + 1].contiguous(), positions[:, s : s + 1]) for s in range(q.shape[2])
    ]
    return tuple(torch.cat(side, dim=2) for side in zip(*parts, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(40))
def test_a_token_has_the_same_bits_in_every_call(dtype, seed):
    draw = random.Random(seed)
    head_dim = draw.choice((32, 64, 80, 128, 256))
    batch, tokens = draw.choice(((1, 33), (2, 600), (5, 7), (3, 64)))
    q_heads = draw.choice((1, 4, 6, 32))
    k_heads = draw.choice([count for count in (1, 2, 4, 8) if q_heads % count == 0])
    scaling = draw.choice((None, rw.frequencies.Yarn(4096, 4.0)))
    spec = rw.RopeSpec(
        head_dim, rotary_dim=draw.choice((head_dim, head_dim // 2)), layout=draw.choice(("half", "interleaved")),
        **({} if scaling is None else {"scaling": scaling}),
    )  # fmt: skip
    generator = torch.Generator("cuda").manual_seed(seed)
    make = lambda heads: torch.randn(batch, heads, tokens, head_dim, generator=generator, device="cuda").to(dtype)
    q, k = make(q_heads), make(k_heads)
    positions = torch.randint(0, 1_000_000, (batch, tokens), generator=generator, device="cuda")
    rope = rw.Rope(spec)
    prefill = rope(q, k, positions)
    some = slice(0, min(tokens, 12))
    alone = one_by_one(spec, q[:, :, some], k[:, :, some], positions[:, some])
    by_token = rope(q.transpose(1, 2).contiguous(), k.transpose(1, 2).contiguous(), positions, seq_dim=-3)
    row = rope(q[-1:], k[-1:], positions[-1:])
    in_place = rope(q.clone(), k.clone(), positions, inplace=True)
    for side in range(2):
        assert torch.equal(prefill[side][:, :, some], alone[side])
        assert torch.equal(prefill[side], by_token[side].transpose(1, 2))
        assert torch.equal(prefill[side][-1:], row[side])
        assert torch.equal(prefill[side], in_place[side])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("normed", [False, True])
def test_the_fused_kernel_gives_the_same_bits_for_any_number_of_tokens(dtype, normed):
    spec, generator = rw.RopeSpec(128), torch.Generator("cuda").manual_seed(1)
    make = lambda *sizes: torch.randn(*sizes, generator=generator, device="cuda").to(dtype)
    qkv, positions = make(3000, 48 * 128), torch.randint(0, 100_000, (3000,), generator=generator, device="cuda")
    norm = QKNorm(make(128), make(128)) if normed else None
    results = []
    for tokens in (3000, 600, 90, 1):
        cache = KVSlots(make(tokens, 8, 128), make(tokens, 8, 128))
        slots = torch.arange(tokens, device="cuda")
        q = qk_norm_rope(
            qkv[:tokens], spec=spec, positions=positions[:tokens], heads=(32, 8), norm=norm, cache=cache, slots=slots
        )  # fmt: skip
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
