"""How the Triton kernel divides its work: one small table, chosen by memory order, width and number of tokens.

Nothing is tuned at run time. The numbers come from sweeps on an H200; `forced` lets a script try others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

#: up to this many tokens a call is a decode step: latency rules, not bytes
DECODE_TOKENS = 512


@dataclass(frozen=True)
class Config:
    """One program turns `tokens` tokens of `heads` heads with `warps` warps.

    together  the key's heads ride with the query's and share their angles; else a program turns heads of one of them
    hints     x is read once and written once: tell the caches not to keep it
    pdl       start while the kernel before is still running, where the GPU can
    """

    tokens: int
    heads: int
    warps: int
    together: bool = False
    hints: bool = False
    pdl: bool = True


#: what lies side by side in memory (a token's heads, or a head's tokens; "step": a token's heads, few tokens), where the
#: angles come from, the most pairs
Line = tuple[str, str, int, Config]
#: the first line that fits. Exact phases want more threads than pairs: with fewer, Triton moves x through shared memory
TABLE: tuple[Line, ...] = (
    ("step", "phase", 32, Config(1, 16, 2)),
    ("step", "phase", 64, Config(1, 8, 2)),
    ("step", "phase", 128, Config(1, 4, 2)),
    ("step", "phase", 256, Config(1, 2, 2)),
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

#: (order, what makes a call special, pairs that its whole head would have): where TABLE is too far off. Angles of several
#: axes cost more, so that fewer threads find them, for more heads each; dimensions that only go along want wide loads
SPECIAL: dict[tuple[str, str, int], Config] = {
    ("token", "axes", 64): Config(1, 16, 2),
    ("head", "axes", 64): Config(8, 2, 2),
    ("token", "part", 64): Config(1, 16, 2),
    ("head", "part", 64): Config(16, 1, 4),
}

_forced: Config | None = None


def forced_config() -> Config | None:
    """The configuration a sweep asks for, or None."""
    return _forced


@contextmanager
def forced(config: Config | None) -> Iterator[None]:
    """Every call inside uses `config` as it is; for sweeps, one thread at a time."""
    global _forced
    before, _forced = _forced, config
    try:
        yield
    finally:
        _forced = before


def choose(
    order: str, angles: str, pairs: int, copied: int, sizes: tuple[int, int], heads: tuple[int, int], itemsize: int, axes: int = 1
) -> Config:
    """The configuration for `sizes` = (rows, tokens a row) and (query, key) `heads`, fitted so that few lanes idle.

    `copied` dimensions of a head do not turn but go along; positions lie on `axes` axes.
    """
    if _forced is not None:
        return _forced
    rows, tokens = sizes
    order = "step" if (order, angles) == ("token", "phase") and rows * tokens <= DECODE_TOKENS else order
    lines = [line for line in TABLE if line[:2] == (order, angles)]
    width = power(pairs + copied // 2)
    _, _, widest, config = next((line for line in lines if width <= line[2]), lines[-1])
    special = SPECIAL.get((order, "axes" if axes > 1 else "part" if copied else "", width)) if angles == "phase" else None
    config = special or config
    # a float32 takes twice the room, a narrow head leaves some
    room = max(1, config.tokens * config.heads * widest // (width * itemsize // 2))
    config = _fitted(config, room, power(tokens), power(max(heads)))
    # a thread should load at least 4 bytes of the key at a time
    keys_at_once = power(-(-heads[1] // -(-heads[0] // config.heads))) * config.tokens
    thin = keys_at_once * power(pairs) * itemsize < 4 * 32 * config.warps
    return replace(config, together=False) if thin else config


def _fitted(config: Config, room: int, most_tokens: int, most_heads: int) -> Config:
    """Few heads leave room for more tokens, few tokens for more heads."""
    tokens = min(config.tokens, most_tokens, room)
    heads = min(room // tokens, most_heads)
    return replace(config, tokens=min(room // heads, most_tokens), heads=heads)


def power(count: int) -> int:
    """The power of two that holds `count`."""
    return 1 << (count - 1).bit_length()
