"""The definition of every rope in the vectors, in 50-digit arithmetic and one number at a time.

It shares nothing with the package: the formulas are written here once more, for `mpmath`. A rope is
the plain dict that a case of the vectors has under "rope".
"""

from __future__ import annotations

from typing import Any

import mpmath
from mpmath import mpf

mpmath.mp.dps = 50

Rope = dict[str, Any]
Values = Any  # nested lists of mpf, and of integers for positions


def frequencies(rope: Rope, length: int | None = None) -> list[mpf]:
    """Return radians per step of each pair, in sequences of `length` tokens."""
    d, theta, scaling = rope["rotary_dim"], mpf(rope["theta"]), rope["scaling"]
    plain = [theta ** (-mpf(2 * i) / d) for i in range(d // 2)]
    kind = scaling["type"]
    if kind == "default":
        return plain
    if kind == "linear":
        return [w / mpf(scaling["factor"]) for w in plain]
    if kind == "ntk":
        base = theta * mpf(scaling["factor"]) ** (mpf(d) / (d - 2))
        return [base ** (-mpf(2 * i) / d) for i in range(d // 2)]
    if kind == "dynamic":
        trained, s = mpf(scaling["original_length"]), mpf(scaling["factor"])
        stretch = s * max(mpf(length or 0), trained) / trained - (s - 1)
        base = theta * stretch ** (mpf(d) / (d - 2))
        return [base ** (-mpf(2 * i) / d) for i in range(d // 2)]
    if kind == "llama3":
        return [_llama3(w, scaling) for w in plain]
    if kind == "yarn":
        ramp = _ramp(d, theta, scaling)
        return [w * (1 - g) + w / mpf(scaling["factor"]) * g for w, g in zip(plain, ramp)]  # noqa: B905
    if kind == "longrope":
        long = length is not None and length > scaling["original_length"]
        factors = scaling["long_factor" if long else "short_factor"]
        return [w / mpf(factor) for w, factor in zip(plain, factors, strict=True)]
    if kind == "proportional":
        turning = int(mpf(scaling["fraction"]) * d) // 2
        s = mpf(scaling["factor"])
        return [w / s if i < turning else mpf(0) for i, w in enumerate(plain)]
    raise KeyError(kind)


def _llama3(w: mpf, scaling: Rope) -> mpf:
    """Return one frequency of Llama 3's rule: kept, divided by the factor, or between the two."""
    wavelength, trained = 2 * mpmath.pi / w, mpf(scaling["original_length"])
    low, high = mpf(scaling["low_freq_factor"]), mpf(scaling["high_freq_factor"])
    divided = w / mpf(scaling["factor"])
    if wavelength < trained / high:
        return w
    if wavelength > trained / low:
        return divided
    t = (trained / wavelength - low) / (high - low)
    return (1 - t) * divided + t * w


def _ramp(d: int, theta: mpf, scaling: Rope) -> list[mpf]:
    """Return YaRN's weight of the divided frequency for each pair."""

    def pair_with(turns: float) -> mpf:
        trained = mpf(scaling["original_length"])
        return d * mpmath.log(trained / (2 * mpmath.pi * mpf(turns))) / (2 * mpmath.log(theta))

    low, high = pair_with(scaling["beta_fast"]), pair_with(scaling["beta_slow"])
    if scaling["truncate"]:
        low, high = mpmath.floor(low), mpmath.ceil(high)
    low, high = max(low, mpf(0)), min(high, mpf(d - 1))
    if low == high:
        high += mpf("0.001")
    return [min(max((i - low) / (high - low), mpf(0)), mpf(1)) for i in range(d // 2)]


def _mscale(factor: mpf, weight: float) -> mpf:
    return mpf(1) if factor <= 1 else mpf(weight) * mpmath.log(factor) / 10 + 1


def magnitude(rope: Rope) -> mpf:
    """Return the factor on cos and sin."""
    scaling = rope["scaling"]
    if scaling["type"] not in ("yarn", "longrope"):
        return mpf(1)
    if scaling["attention_factor"] is not None:
        return mpf(scaling["attention_factor"])
    s = mpf(scaling["factor"])
    if scaling["type"] == "longrope":
        if s <= 1:
            return mpf(1)
        return mpmath.sqrt(1 + mpmath.log(s) / mpmath.log(mpf(scaling["original_length"])))
    if scaling["mscale"] and scaling["mscale_all_dim"]:
        return _mscale(s, scaling["mscale"]) / _mscale(s, scaling["mscale_all_dim"])
    return _mscale(s, 1)


def softmax_scale(rope: Rope) -> mpf:
    """Return the factor on q.k before the softmax."""
    plain = 1 / mpmath.sqrt(mpf(rope["head_dim"]))
    if not rope.get("scales_softmax"):
        return plain
    scaling = rope["scaling"]
    return plain * _mscale(mpf(scaling["factor"]), scaling["mscale_all_dim"]) ** 2


def axis_of_pair(rope: Rope) -> list[int]:
    """Return the axis whose coordinate each pair takes."""
    pairs, axes = rope["rotary_dim"] // 2, rope["axes"]
    if axes is None:
        return [0] * pairs
    if axes["order"] == "chunked":
        return [axis for axis, size in enumerate(axes["sections"]) for _ in range(size)]
    found = [0] * pairs
    for axis in (1, 2):
        for i in range(axis, 3 * axes["sections"][axis], 3):
            found[i] = axis
    return found


def places(rope: Rope) -> list[tuple[int, int]]:
    """Return the two dimensions of each pair."""
    start, pairs = rope["rotary_start"], rope["rotary_dim"] // 2
    if rope["layout"] == "half":
        return [(start + i, start + pairs + i) for i in range(pairs)]
    return [(start + 2 * i, start + 2 * i + 1) for i in range(pairs)]


def angles(rope: Rope, position: list[int], length: int | None = None) -> list[mpf]:
    """Return the angle of each pair at a position, which has a coordinate for each axis."""
    axes = axis_of_pair(rope)
    return [w * position[axis] for w, axis in zip(frequencies(rope, length), axes, strict=True)]


def cos_sin(
    rope: Rope, position: list[int], length: int | None = None
) -> tuple[list[mpf], list[mpf]]:
    """Return cos and sin of each pair at a position, times the magnitude."""
    size, turned = magnitude(rope), angles(rope, position, length)
    return [size * mpmath.cos(a) for a in turned], [size * mpmath.sin(a) for a in turned]


def rotate(rope: Rope, x: Values, position: list[int], length: int | None = None) -> list[mpf]:
    """Return one head's vector, rotated."""
    out = [mpf(value) for value in x]
    for (a, b), c, s in zip(places(rope), *cos_sin(rope, position, length), strict=True):
        out[a], out[b] = c * mpf(x[a]) - s * mpf(x[b]), s * mpf(x[a]) + c * mpf(x[b])
    return out


def moved(rope: Rope, x: Values, old: list[int], new: list[int]) -> list[mpf]:
    """Return a key, rotated at the position `old` with the magnitude, as it is when rotated at `new`."""
    plain = rope | {"scaling": rope["scaling"] | {"attention_factor": 1.0}}
    if rope["scaling"]["type"] not in ("yarn", "longrope"):
        plain = rope
    return rotate(plain, x, [b - a for a, b in zip(old, new, strict=True)])


def softmax(scores: list[mpf]) -> list[mpf]:
    """Return the softmax of scores: the weights of attention."""
    highest = max(scores)
    powers = [mpmath.exp(score - highest) for score in scores]
    return [power / sum(powers) for power in powers]


def attention(
    rope: Rope,
    q: Values,
    k: Values,
    v: Values,
    positions: list[list[int]],
    documents: list[int],
) -> list[list[mpf]]:
    """Return causal attention of one head inside each document: [tokens][value dims].

    positions  [axes][tokens]
    """
    at = [list(position) for position in zip(*positions, strict=True)]
    queries = [rotate(rope, x, p) for x, p in zip(q, at, strict=True)]
    keys = [rotate(rope, x, p) for x, p in zip(k, at, strict=True)]
    scale, out = softmax_scale(rope), []
    for i, query in enumerate(queries):
        seen = [j for j in range(i + 1) if documents[j] == documents[i]]
        scores = [scale * sum(a * b for a, b in zip(query, keys[j], strict=True)) for j in seen]
        weights = softmax(scores)
        out.append(
            [
                sum(w * mpf(v[j][d]) for w, j in zip(weights, seen, strict=True))
                for d in range(len(v[0]))
            ]
        )
    return out


def permuted(rows: list[Any], heads: int, rope: Rope) -> list[Any]:
    """Return the rows of a q or k projection in the half layout; `rows` are in the interleaved one."""
    head_dim = len(rows) // heads
    start, d = rope["rotary_start"], rope["rotary_dim"]
    order = list(range(head_dim))
    order[start : start + d] = [*range(start, start + d, 2), *range(start + 1, start + d, 2)]
    return [rows[head * head_dim + i] for head in range(heads) for i in order]


def grid_positions(segments: list[dict[str, Any]], merge: int, per_second: int) -> list[list[int]]:
    """Return [time, height, width][tokens] of text, images and videos, as Qwen2.5-VL has it."""
    rows: list[list[int]] = [[], [], []]
    start = 0
    for segment in segments:
        if "text" in segment:
            for axis in rows:
                axis.extend(range(start, start + segment["text"]))
            start += segment["text"]
            continue
        frames, height, width = segment.get("image") or segment["video"]
        step = mpf(segment.get("seconds", 0)) * per_second
        for frame in range(frames):
            for row in range(height // merge):
                for column in range(width // merge):
                    rows[0].append(start + int(mpmath.floor(frame * step)))
                    rows[1].append(start + row)
                    rows[2].append(start + column)
        start = max(map(max, rows)) + 1
    return rows
