"""How the Triton kernel divides its work: one small table, chosen by memory order, width and number of tokens.

Nothing is tuned at run time: the numbers come from sweeps on an H200.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ropewalk.kernels.support import power_of_two

#: up to this many tokens a call is a decode step, limited by latency and not by memory bandwidth
DECODE_TOKENS = 512


@dataclass(frozen=True)
class Config:
    """One program rotates `tokens` tokens of `heads` heads with `warps` warps.

    together  a program rotates heads of q and of k with the same angles; otherwise heads of only one of them
    hints     tell the caches not to keep x, which is read once and written once
    pdl       start while the kernel before is still running, if the GPU supports it
    """

    tokens: int
    heads: int
    warps: int
    together: bool = False
    hints: bool = False
    pdl: bool = True


#: (memory order, source of the angles, most pairs, configuration); the first row that fits is used. The order is "token" if the
#: heads of a token are adjacent in memory, "head" if the tokens of a head are, and "decode" for "token" with few tokens.
#: Exact phases need more threads than pairs: with fewer, Triton moves x through shared memory.
CONFIGS: tuple[tuple[str, str, int, Config], ...] = (
    ("decode", "phase", 32, Config(1, 16, 2)),
    ("decode", "phase", 64, Config(1, 8, 2)),
    ("decode", "phase", 128, Config(1, 4, 2)),
    ("decode", "phase", 256, Config(1, 2, 2)),
    ("token", "phase", 32, Config(1, 32, 4, together=True, hints=True)),
    ("token", "phase", 64, Config(1, 16, 4, together=True)),
    ("token", "phase", 128, Config(1, 8, 8, together=True, hints=True)),
    ("token", "phase", 256, Config(1, 8, 16, together=True, hints=True)),
    ("token", "rows", 32, Config(1, 16, 2)),
    ("token", "rows", 64, Config(1, 8, 1)),
    ("token", "rows", 128, Config(1, 8, 4)),
    ("token", "rows", 256, Config(1, 4, 4)),
    ("head", "phase", 32, Config(16, 2, 2)),
    ("head", "phase", 64, Config(16, 1, 8)),
    ("head", "phase", 128, Config(8, 2, 4)),
    ("head", "phase", 256, Config(8, 1, 4)),
    ("head", "rows", 32, Config(16, 1, 4, hints=True)),
    ("head", "rows", 64, Config(16, 2, 8, hints=True)),
    ("head", "rows", 128, Config(16, 1, 8, hints=True)),
    ("head", "rows", 256, Config(8, 1, 8, hints=True)),
)

#: (memory order, special case, pairs the whole head would have): calls where CONFIGS is too slow. The angles of several axes cost
#: more, so fewer threads compute them, for more heads each. A head that rotates in part also copies dims, which needs wide loads.
SPECIAL_CONFIGS: dict[tuple[str, str, int], Config] = {
    ("token", "axes", 64): Config(1, 16, 2),
    ("head", "axes", 64): Config(8, 2, 2),
    ("token", "part", 64): Config(1, 16, 2),
    ("head", "part", 64): Config(16, 1, 4),
}


def pick_config(
    order: str, angles: str, pairs: int, copied: int, sizes: tuple[int, int], heads: tuple[int, int], itemsize: int, axes: int = 1
) -> Config:
    """Return the configuration for `sizes` = (rows, tokens per row) and (query, key) `heads`, fitted so that few lanes idle.

    `copied` dimensions of a head are copied and not rotated; positions have `axes` axes.
    """
    rows, tokens = sizes
    order = "decode" if (order, angles) == ("token", "phase") and rows * tokens <= DECODE_TOKENS else order
    candidates = [row for row in CONFIGS if row[:2] == (order, angles)]
    width = power_of_two(pairs + copied // 2)
    _, _, widest, config = next((row for row in candidates if width <= row[2]), candidates[-1])
    case = "axes" if axes > 1 else "part" if copied else ""
    if angles == "phase":
        config = SPECIAL_CONFIGS.get((order, case, width), config)
    # a float32 takes twice the registers, a narrow head leaves some free
    room = max(1, config.tokens * config.heads * widest // (width * itemsize // 2))
    config = _fitted(config, room, power_of_two(tokens), power_of_two(max(heads)))
    # a thread should load at least 4 bytes of the key at a time
    keys_at_once = power_of_two(-(-heads[1] // -(-heads[0] // config.heads))) * config.tokens
    thin = keys_at_once * power_of_two(pairs) * itemsize < 4 * 32 * config.warps
    return replace(config, together=False) if thin else config


def _fitted(config: Config, room: int, most_tokens: int, most_heads: int) -> Config:
    """Return the configuration with more tokens where there are few heads, and more heads where there are few tokens."""
    tokens = min(config.tokens, most_tokens, room)
    heads = min(room // tokens, most_heads)
    return replace(config, tokens=min(room // heads, most_tokens), heads=heads)
