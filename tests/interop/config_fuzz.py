"""Random configs, whole and spoiled; run by test_hf_fuzz.py in an interpreter of its own, where no type checker looks on.

The checker would answer first for a wrong type, and costs ten times what it watches.
"""

from __future__ import annotations

import copy
import math
import random
import sys
import warnings

import numpy as np

from ropewalk import RopeError
from ropewalk.interop.config.hf import from_hf

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
NONSENSE = (float("nan"), float("inf"), -1, "abc", True, [1.0], {"a": 1})


def draw_rope(draw: random.Random, rope_type: str, pairs: int) -> dict:
    rope: dict = {}
    if rope_type in ("linear", "dynamic", "yarn", "llama3"):
        rope["factor"] = draw.choice([1, 2, 1.5, draw.uniform(1, 64)])
    if rope_type in ("yarn", "longrope", "llama3"):
        rope["original_max_position_embeddings"] = draw.choice([16, 128, 2048, 8192])
    if rope_type == "yarn":
        optional = {"beta_fast": draw.uniform(8, 64), "beta_slow": draw.uniform(0.5, 8), "truncate": draw.random() < 0.5,
                    "attention_factor": draw.uniform(0.5, 2), "mscale": draw.choice([0, 1.0]),
                    "mscale_all_dim": draw.choice([0, 0.7])}  # fmt: skip
        rope |= {key: value for key, value in optional.items() if draw.random() < 0.5}
    if rope_type == "longrope":
        rope |= {key: [draw.uniform(0.5, 40) for _ in range(pairs)] for key in ("short_factor", "long_factor")}
        rope |= {"factor": draw.uniform(1, 32)} if draw.random() < 0.5 else {}
        rope |= {"attention_factor": draw.uniform(0.5, 2)} if draw.random() < 0.3 else {}
    if rope_type == "llama3":
        low = draw.uniform(0.5, 4)
        rope |= {"low_freq_factor": low, "high_freq_factor": low + draw.choice([0, 3, draw.uniform(0, 8)])}
    if rope_type == "proportional" and draw.random() < 0.5:
        rope["factor"] = draw.uniform(1, 8)
    return rope


def draw_config(draw: random.Random) -> tuple[dict, dict]:
    """A valid config in either spelling, and the plain values it stands for."""
    rope_type = draw.choice(ROPE_TYPES)
    pairs = draw.choice([2, 3, 5, 8, 32])
    head_dim, fraction = 2 * pairs, 1.0
    if draw.random() < 0.3:
        head_dim, fraction = 4 * pairs, 0.5
    theta = draw.choice([1e4, 1e6, 500_000, draw.uniform(2, 1e7)])
    rotated = head_dim if rope_type == "proportional" else int(head_dim * fraction)
    rope = draw_rope(draw, rope_type, rotated // 2)
    meant = {**rope, "rope_type": rope_type, "theta": theta, "head_dim": head_dim, "dim": rotated, "fraction": fraction}
    config: dict = {"max_position_embeddings": draw.choice([1024, 4096, 131072])}
    config |= {"head_dim": head_dim} if draw.random() < 0.5 else {"hidden_size": 4 * head_dim, "num_attention_heads": 4}
    rope = {draw.choice(["rope_type", "type"]): rope_type, **rope}
    partial = {} if fraction == 1.0 and draw.random() < 0.5 else {"partial_rotary_factor": fraction}
    if draw.random() < 0.5:
        config["rope_parameters"] = {**rope, "rope_theta": theta, **partial}
    else:
        config |= {"rope_theta": theta, "rope_scaling": rope, **partial}
    return config, {**meant, "served": config["max_position_embeddings"]}


def oracle(meant: dict, length: int) -> tuple[np.ndarray, float]:
    """Radians per step and magnitude in float64, straight from the published formulas."""
    d, theta, s = meant["dim"], meant["theta"], meant.get("factor", 1.0)
    i = np.arange(d // 2)
    plain = theta ** (-2.0 * i / d)
    match meant["rope_type"]:
        case "linear":
            return plain / s, 1.0
        case "dynamic":
            reached = max(length, meant["served"])
            return (theta * (s * reached / meant["served"] - (s - 1)) ** (d / (d - 2))) ** (-2.0 * i / d), 1.0
        case "llama3":
            start, low, high = (meant[key] for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
            turns = start * plain / (2 * math.pi)
            blend = np.where(turns > high, 1.0, 0.0) if low == high else np.clip((turns - low) / (high - low), 0, 1)
            return (1 - blend) * plain / s + blend * plain, 1.0
        case "yarn":
            start = meant["original_max_position_embeddings"]
            low, high = (d * math.log(start / (2 * math.pi * beta)) / (2 * math.log(theta))
                         for beta in (meant.get("beta_fast", 32), meant.get("beta_slow", 1)))  # fmt: skip
            if meant.get("truncate", True):
                low, high = math.floor(low), math.ceil(high)
            low, high = max(low, 0), min(high, d - 1)
            blend = np.clip((i - low) / (high - low if high != low else 0.001), 0, 1)
            return plain * (1 - blend) + plain / s * blend, yarn_magnitude(meant, s)
        case "longrope":
            start = meant["original_max_position_embeddings"]
            stretch = meant.get("factor", meant["served"] / start)
            given = meant.get("attention_factor", math.sqrt(1 + math.log(stretch) / math.log(start)) if stretch > 1 else 1.0)
            return plain / np.array(meant["long_factor" if length > start else "short_factor"]), given
        case "proportional":
            return np.where(i < int(meant["fraction"] * d // 2), plain, 0.0) / s, 1.0
    return plain, 1.0


def yarn_magnitude(meant: dict, s: float) -> float:
    weighted = [1 + 0.1 * weight * math.log(s) for weight in (meant.get("mscale", 0), meant.get("mscale_all_dim", 0)) if weight]
    return meant.get("attention_factor", weighted[0] / weighted[1] if len(weighted) == 2 else 1 + 0.1 * math.log(s))


def spoil(draw: random.Random, config: dict) -> str:
    """Spoil one field so that no reading is left; its name."""
    where = config.get("rope_parameters", config.get("rope_scaling"))
    rope_type = where.get("rope_type", where.get("type"))
    theta_in = where if "rope_theta" in where else config
    partial_in = next((part for part in (where, config) if "partial_rotary_factor" in part), None)
    plain_size = [(config, key, (*NONSENSE, 0, 1.5, 2**40)) for key in ("head_dim",) if key in config]
    from_heads = [(config, key, (*NONSENSE, 0, 1.5)) for key in ("hidden_size", "num_attention_heads") if key in config]
    fields = [(theta_in, "rope_theta", (*NONSENSE, 0)), *plain_size, *from_heads]
    # without a factor a proportional rope has no other key that gives a lost type away
    lost = () if rope_type in ("default", "proportional") else (None,)
    fields += [(where, key, (*NONSENSE, 0, *lost, "yam")) for key in ("rope_type", "type") if key in where]
    fields += [(partial_in, "partial_rotary_factor", (*NONSENSE, 0, 1.5))] if partial_in and rope_type != "default" else []
    for key, value in where.items():
        if isinstance(value, list):
            fields.append((where, key, (*NONSENSE, 0, None, value[:-1], [*value, 1.0], [*value[:-1], 0], [*value[:-1], "x"])))
        elif key in ("factor", "low_freq_factor", "high_freq_factor"):
            optional = rope_type in ("longrope", "proportional", "yarn")
            low = () if rope_type == "longrope" else (0.5,) if key == "factor" else ()
            fields.append((where, key, (*NONSENSE, 0, *low, *(() if optional else (None, "missing")))))
        elif key == "original_max_position_embeddings":
            fields.append((where, key, (*NONSENSE, 0, 1.5)))
        elif key in ("beta_fast", "beta_slow", "attention_factor"):
            fields.append((where, key, (*NONSENSE, 0)))
        elif key in ("mscale", "mscale_all_dim"):
            fields.append((where, key, NONSENSE))
        elif key == "truncate":
            fields.append((where, key, (0, 1, "abc", [True], -1, float("nan"))))
    if rope_type == "dynamic":
        fields.append((config, "max_position_embeddings", (*NONSENSE, 0, None, 1.5, "missing")))
    if rope_type == "longrope":
        fields.append((where, draw.choice(["short_factor", "long_factor"]), ("missing",)))
    part, key, values = draw.choice(fields)
    value = draw.choice(values)
    if value == "missing":
        del part[key]
    else:
        part[key] = value
    return "rope_type" if key in ("rope_type", "type") and value is None else key


def read_valid(draw: random.Random) -> None:
    """One valid config: read, and right to the last digits of float64."""
    config, meant = draw_config(draw)
    length = draw.choice([1, 16, 17, 2048, 200_000])
    spec = from_hf(config, precision="exact")
    found, (radians, magnitude) = spec.frequencies(length), oracle(meant, length)
    if (spec.head_dim, spec.rotary_dim) != (meant["head_dim"], meant["dim"]):
        raise AssertionError(f"wrong slice: {config} -> {spec}")
    if not math.isclose(found.magnitude, magnitude, rel_tol=1e-12) or not np.allclose(found.radians, radians, rtol=1e-9, atol=0):
        raise AssertionError(f"wrong frequencies at {length}: {config} -> {spec}")


def refuse_spoiled(draw: random.Random) -> None:
    """One config with one field spoiled: refused by that field's name, and left as it was."""
    config = copy.deepcopy(draw_config(draw)[0])
    key = spoil(draw, config)
    before = repr(config)
    try:
        spec = from_hf(config)
    except RopeError as error:
        if error.field.split("[")[0] != key:
            raise AssertionError(f"{key} spoiled, {error.field} named: {config}") from error
    else:
        raise AssertionError(f"{key} accepted: {config} -> {spec}")
    if repr(config) != before:
        raise AssertionError(f"written to: {config}")


if __name__ == "__main__":
    warnings.simplefilter("error")
    kind, count, seed = sys.argv[1:]
    one = {"valid": read_valid, "spoiled": refuse_spoiled}[kind]
    source = random.Random(int(seed))
    for _ in range(int(count)):
        one(source)
    print(f"{count} {kind} configs")
