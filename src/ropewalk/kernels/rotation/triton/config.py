"""How the Triton kernel divides its work: a table of configurations by memory order, head width and
number of tokens.

Nothing is tuned at run time: the numbers come from sweeps on an H200. A program is what a GPU runs
as one block of `warps` warps; its tokens and heads are powers of two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ropewalk.kernels.support import power_of_two

#: up to this many tokens a call is a decode step, limited by latency and not by memory bandwidth
DECODE_TOKENS = 512


@dataclass(frozen=True)
class RotationConfig:
    """One program rotates `tokens` tokens of `heads` heads with `warps` warps.

    q_and_k  every program rotates heads of both q and k and computes their angles once; otherwise
             heads of either q or k
    hints    use cache hints for data that is read or written only once
    pdl      start before the previous kernel ends (programmatic dependent launch), if the GPU
             supports it
    """

    tokens: int
    heads: int
    warps: int
    q_and_k: bool = False
    hints: bool = False
    pdl: bool = True


#: (memory order, angle mode, most pairs, configuration): the first row with enough pairs is used,
#: or the last one. The order is "token" if the heads of a token are adjacent in memory, "head" if
#: the tokens of a head are, and "decode" for "token" with few tokens. The rows of "token" with
#: exact phases have more threads than pairs: with fewer, Triton moves x through shared memory.
CONFIGS: tuple[tuple[str, str, int, RotationConfig], ...] = (
    ("decode", "phase", 32, RotationConfig(1, 16, 2)),
    ("decode", "phase", 64, RotationConfig(1, 8, 2)),
    ("decode", "phase", 128, RotationConfig(1, 4, 2)),
    ("decode", "phase", 256, RotationConfig(1, 2, 2)),
    ("token", "phase", 32, RotationConfig(1, 32, 4, q_and_k=True, hints=True)),
    ("token", "phase", 64, RotationConfig(1, 16, 4, q_and_k=True)),
    ("token", "phase", 128, RotationConfig(1, 8, 8, q_and_k=True, hints=True)),
    ("token", "phase", 256, RotationConfig(1, 8, 16, q_and_k=True, hints=True)),
    ("token", "rows", 32, RotationConfig(1, 16, 2)),
    ("token", "rows", 64, RotationConfig(1, 8, 1)),
    ("token", "rows", 128, RotationConfig(1, 8, 4)),
    ("token", "rows", 256, RotationConfig(1, 4, 4)),
    ("head", "phase", 32, RotationConfig(16, 2, 2)),
    ("head", "phase", 64, RotationConfig(16, 1, 8)),
    ("head", "phase", 128, RotationConfig(8, 2, 4)),
    ("head", "phase", 256, RotationConfig(8, 1, 4)),
    ("head", "rows", 32, RotationConfig(16, 1, 4, hints=True)),
    ("head", "rows", 64, RotationConfig(16, 2, 8, hints=True)),
    ("head", "rows", 128, RotationConfig(16, 1, 8, hints=True)),
    ("head", "rows", 256, RotationConfig(8, 1, 8, hints=True)),
)

#: (memory order, kind of call, head_dim / 2): configurations for two kinds of calls where CONFIGS
#: are too slow. "axes": angles of several axes take longer to compute, so fewer threads compute
#: them, each for more heads. "part": the kernel also copies the dims that do not rotate, with wide
#: loads.
SPECIAL_CONFIGS: dict[tuple[str, str, int], RotationConfig] = {
    ("token", "axes", 64): RotationConfig(1, 16, 2),
    ("head", "axes", 64): RotationConfig(8, 2, 2),
    ("token", "part", 64): RotationConfig(1, 16, 2),
    ("head", "part", 64): RotationConfig(16, 1, 4),
}


def pick_config(
    order: str,
    angles: str,
    pairs: int,
    copied: int,
    sizes: tuple[int, int],
    heads: tuple[int, int],
    itemsize: int,
    axes: int = 1,
) -> RotationConfig:
    """Return the configuration for `sizes` = (batch, tokens) and `heads` = (query heads, key
    heads), with few idle threads.

    order, angles  the memory order and the angle mode of a row of CONFIGS: "phase" computes cos and
                   sin, "rows" loads them
    copied         the number of dims of a head that are copied, not rotated
    itemsize       the bytes of one number of q and k
    axes           the number of position axes
    """
    batch, tokens = sizes
    order = (
        "decode"
        if (order, angles) == ("token", "phase") and batch * tokens <= DECODE_TOKENS
        else order
    )
    # the whole head in pairs: two copied dims count as one
    head_pairs = power_of_two(pairs + copied // 2)
    candidates = [row[2:] for row in CONFIGS if row[:2] == (order, angles)]
    wide_enough = [row for row in candidates if head_pairs <= row[0]]
    most_pairs, config = wide_enough[0] if wide_enough else candidates[-1]
    if angles == "phase" and (axes > 1 or copied):
        config = SPECIAL_CONFIGS.get((order, "axes" if axes > 1 else "part", head_pairs), config)
    # CONFIGS were measured with 16-bit heads of `most_pairs` pairs. The registers of a program hold
    # more heads if these are narrower, and half as many in float32
    most_token_heads = max(
        1, config.tokens * config.heads * most_pairs // (head_pairs * itemsize // 2)
    )
    config = _fit(config, most_token_heads, power_of_two(tokens), power_of_two(max(heads)))
    q_programs = -(-heads[0] // config.heads)
    keys_per_program = power_of_two(-(-heads[1] // q_programs)) * config.tokens
    # with k in the same program, each of a warp's 32 threads should load at least 4 bytes of k
    k_is_too_small = keys_per_program * power_of_two(pairs) * itemsize < 4 * 32 * config.warps
    return replace(config, q_and_k=False) if k_is_too_small else config


def _fit(
    config: RotationConfig, most_token_heads: int, most_tokens: int, most_heads: int
) -> RotationConfig:
    """Return the configuration with as many tokens and heads per program as fit: tokens x heads <=
    most_token_heads.

    most_tokens, most_heads  the tokens and heads of the whole call
    """
    tokens = min(config.tokens, most_tokens, most_token_heads)
    heads = min(most_token_heads // tokens, most_heads)
    # a call with few heads leaves room for more tokens
    return replace(config, tokens=min(most_token_heads // heads, most_tokens), heads=heads)
