"""Count elements that differ when the same token is rotated in different calls, over many random
draws.

A draw picks a spec, sizes, memory orders and positions. Its tokens are rotated together, some of
them alone, as one sequence of the batch, from other memory orders, in place, by the fused kernel
without a norm, and in every eighth draw in a replayed CUDA graph. The bits must be the same. The
draws are split over processes, because most of the time is compiling kernels.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor

import ropewalk as rw
from ropewalk.kernels.norm_rotation import qk_norm_rope
from ropewalk_lab.bench.rows import run_script

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DRAWS, PROCESSES = 10_000, 12
#: draws that a process takes at a time, and the seconds after which no more are counted
PART, SECONDS = 50, 400.0
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Draw:
    """One random case: a packed qkv [batch, tokens, width], its numbers of query and key heads, and
    positions [batch, tokens].

    `alone` are the indices of the tokens that are also rotated in a call of their own.
    """

    spec: rw.RopeSpec
    qkv: Tensor
    heads: tuple[int, int]
    positions: Tensor
    alone: list[int]

    @property
    def pair(self) -> Pair:
        """q and k as views of the packed tensor: neighbouring tokens are far apart in memory."""
        q_heads, k_heads = self.heads
        unpacked = self.qkv.unflatten(-1, (-1, self.spec.head_dim)).transpose(1, 2)
        return unpacked[:, :q_heads], unpacked[:, q_heads : q_heads + k_heads]


def make_draw(seed: int, dtype: torch.dtype, device: str = "cuda") -> Draw:
    """Return the random case of a seed."""
    pick = random.Random(seed)
    head_dim = pick.choice((32, 64, 80, 128, 256))
    batch, tokens = pick.choice((1, 2, 3, 5)), pick.choice((1, 7, 33, 64, 257, 600))
    q_heads = pick.choice((1, 4, 6, 32))
    k_heads = pick.choice([count for count in (1, 2, 4, 8) if q_heads % count == 0])
    scaling = pick.choice((None, rw.frequencies.Yarn(4096, 4.0)))
    spec = rw.RopeSpec(
        head_dim,
        rotary_dim=pick.choice((head_dim, head_dim // 2)),
        layout=pick.choice(("half", "interleaved")),
        **({} if scaling is None else {"scaling": scaling}),
    )
    generator = torch.Generator(device).manual_seed(seed)
    width = (q_heads + 2 * k_heads) * head_dim
    qkv = torch.randn(batch, tokens, width, generator=generator, device=device).to(dtype)
    positions = torch.randint(
        0, pick.choice((5_000, 1_000_000)), (batch, tokens), generator=generator, device=device
    )
    return Draw(
        spec, qkv, (q_heads, k_heads), positions, sorted(pick.sample(range(tokens), min(tokens, 3)))
    )


def other_ways(draw: Draw, graph: bool) -> Iterator[tuple[Pair, Pair]]:
    """Yield (expected, found): parts of the rotation of all tokens in one call, and the same tokens
    rotated another way.
    """
    rope, (q, k), positions = rw.Rope(draw.spec), draw.pair, draw.positions
    whole = rope(q.contiguous(), k.contiguous(), positions)
    for token in draw.alone:
        one = slice(token, token + 1)
        expected = whole[0][:, :, one], whole[1][:, :, one]
        yield (
            expected,
            rope(q[:, :, one].contiguous(), k[:, :, one].contiguous(), positions[:, one]),
        )
    yield whole, rope(q, k, positions)
    by_token = rope(
        q.transpose(1, 2).contiguous(), k.transpose(1, 2).contiguous(), positions, seq_dim=-3
    )
    yield whole, (by_token[0].transpose(1, 2), by_token[1].transpose(1, 2))
    yield (whole[0][-1:], whole[1][-1:]), rope(q[-1:], k[-1:], positions[-1:])
    yield whole, rope(q.clone(), k.clone(), positions, inplace=True)
    if draw.qkv.is_cuda:  # elsewhere it is plain torch, which rounds differently
        fused = qk_norm_rope(
            draw.qkv, spec=draw.spec, positions=positions, heads=draw.heads, backend="triton"
        )
        yield whole, (fused[0].transpose(1, 2), fused[1].transpose(1, 2))
    if draw.qkv.is_cuda and graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            found = rope(q, k, positions)
        captured.replay()
        yield whole, found


def count_differing(seed: int, dtype: torch.dtype, device: str = "cuda") -> tuple[int, int]:
    """Return how many elements of one draw differ between two calls, and how many were compared."""
    wrong = compared = 0
    for expected, found in other_ways(make_draw(seed, dtype, device), graph=seed % 8 == 0):
        for one, other in zip(expected, found, strict=True):
            # compared as integers: NaN and the sign of zero count too
            bits = torch.int32 if one.element_size() == 4 else torch.int16
            wrong += int((one.contiguous().view(bits) != other.contiguous().view(bits)).sum())
            compared += one.numel()
    return wrong, compared


def _count(seeds: list[int], device: str = "cuda") -> list[tuple[str, int, int]]:
    """Return (dtype, differing elements, compared elements) of the draw of each seed; the dtypes
    take turns.
    """
    dtypes = [DTYPES[seed % len(DTYPES)] for seed in seeds]
    return [
        (str(dtype), *count_differing(seed, dtype, device))
        for seed, dtype in zip(seeds, dtypes, strict=True)
    ]


def measure() -> Iterator[dict[str, Any]]:
    """Yield a row for each dtype, over all draws that ended within SECONDS."""
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        work = [
            pool.submit(_count, list(range(first, first + PART))) for first in range(0, DRAWS, PART)
        ]
        ended, _ = wait(work, timeout=SECONDS, return_when=FIRST_EXCEPTION)
        pool.shutdown(wait=False, cancel_futures=True)
        counts = [count for part in ended for count in part.result()]
    for dtype in map(str, DTYPES):
        of_dtype = [(wrong, compared) for name, wrong, compared in counts if name == dtype]
        differing, compared = (
            sum(wrong for wrong, _ in of_dtype),
            sum(compared for _, compared in of_dtype),
        )
        yield {
            "what": "batch invariance",
            "dtype": dtype,
            "draws": len(of_dtype),
            "differing": differing,
            "compared": compared,
        }


if __name__ == "__main__":
    run_script(__doc__, {"cuda": measure})
