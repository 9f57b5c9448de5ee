"""The configs of examined_configs.json, and the ropes that their author meant, by his formulas."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

TABLE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
BROKEN: list[dict[str, Any]] = TABLE["broken"]
#: what their authors would set and drop, and the rows by which they are found
JUDGED: list[dict[str, Any]] = TABLE["judged"]
RIGHT: dict[str, dict[str, Any]] = TABLE["right"]
#: the rows of mistakes.toml that a broken config is found by
IDS = {name for each in (*BROKEN, *JUDGED) for name in each["causes"]}


def plain(width: int, theta: float) -> list[float]:
    """The frequencies of an unscaled rope."""
    return [theta ** (-2 * pair / width) for pair in range(width // 2)]


def meant(rope: dict[str, Any], length: int | None) -> tuple[list[float], float]:
    """Frequencies and magnitude of a rope at a length."""
    base, factor = plain(rope["d"], rope["theta"]), rope.get("factor", 1.0)
    return {
        "default": lambda: (base, 1.0),
        "proportional": lambda: (proportional(rope), 1.0),
        "linear": lambda: ([each / factor for each in base], 1.0),
        "ntk": lambda: (larger_theta(rope, rope.get("alpha", 1.0)), 1.0),
        "dynamic": lambda: (dynamic(rope, length), 1.0),
        "yarn": lambda: yarn(rope, base),
        "llama3": lambda: (llama3(rope, base), 1.0),
        "longrope": lambda: longrope(rope, base, length),
    }[rope["kind"]]()


def proportional(rope: dict[str, Any]) -> list[float]:
    """The fast pairs of a whole head, and no rotation of the others."""
    return [
        each if pair < rope["pairs"] else 0.0
        for pair, each in enumerate(plain(rope["d"], rope["theta"]))
    ]


def larger_theta(rope: dict[str, Any], alpha: float) -> list[float]:
    """NTK with a fixed factor."""
    return plain(rope["d"], rope["theta"] * alpha ** (rope["d"] / (rope["d"] - 2)))


def dynamic(rope: dict[str, Any], length: int | None) -> list[float]:
    """Dynamic NTK."""
    longest = max(length or rope["orig"], rope["orig"])
    return larger_theta(rope, rope["factor"] * longest / rope["orig"] - (rope["factor"] - 1))


def yarn(rope: dict[str, Any], base: list[float]) -> tuple[list[float], float]:
    """YaRN with its ramp and its magnitude."""

    def pair(turns: float) -> float:
        wave = math.log(rope["orig"] / (turns * 2 * math.pi))
        return rope["d"] * wave / (2 * math.log(rope["theta"]))

    def scale(times: float) -> float:
        return 0.1 * times * math.log(rope["factor"]) + 1.0

    low, high = pair(rope.get("fast", 32)), pair(rope.get("slow", 1))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope["d"] - 1)
    high = high + 0.001 if low == high else high
    shares = [min(1, max(0, (i - low) / (high - low))) for i in range(len(base))]
    both = zip(base, shares, strict=True)
    found = [each / rope["factor"] * share + each * (1 - share) for each, share in both]
    if rope.get("mscale") and rope.get("mall"):
        return found, scale(rope["mscale"]) / scale(rope["mall"])
    return found, scale(1.0)


def llama3(rope: dict[str, Any], base: list[float]) -> list[float]:
    """The bands of Llama 3.1."""
    low, high, length = rope.get("low", 1.0), rope.get("high", 4.0), rope.get("orig", 8192)
    found = []
    for each in base:
        wave = 2 * math.pi / each
        if wave < length / high:
            found.append(each)
        elif wave > length / low:
            found.append(each / rope["factor"])
        else:
            share = (length / wave - low) / (high - low)
            found.append((1 - share) * each / rope["factor"] + share * each)
    return found


def longrope(
    rope: dict[str, Any], base: list[float], length: int | None
) -> tuple[list[float], float]:
    """LongRoPE with one list for short and one for long texts."""
    factors = rope["long"] if length and length > rope["orig"] else rope["short"]
    ratio = rope["maxp"] / rope["orig"]
    magnitude = math.sqrt(1 + math.log(ratio) / math.log(rope["orig"])) if ratio > 1 else 1.0
    return [each / by for each, by in zip(base, factors, strict=True)], magnitude
