"""The definition in plain floats, with a switch for every mistake.

Most functions take `wrong`, a dict of switches such as {"ramp": "inverted"}, each of which makes
one mistake; an empty one, or None, gives the definition. `mistakes.toml` sets the switches and says
in words what the mistakes are.

Words of this module:
  rope      the dict that a case of the vectors has under "rope": head_dim, rotary_dim, rotary_start,
            layout, theta, max_length (the served length), axes, scales_softmax (whether YaRN also
            multiplies the softmax scale), and "scaling" with its type and parameters
  wrong     the switches of one mistake, {what goes wrong: how}, such as {"betas": "swapped"}; what it
            does not name is right
  pair      two dimensions of a head that rotate together; a rotary_dim of d has d / 2 pairs
  magnitude the factor on cos and sin that a scaling brings, YaRN's for example
  turn      a rotation by 2 pi
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from struct import pack, unpack
from typing import Any

Rope = Mapping[str, Any]
Wrong = Mapping[str, Any]
Numbers = list[float]


def to_float32(x: float) -> float:
    """Return the float32 nearest to x."""
    return unpack("f", pack("f", x))[0]


def to_float16(x: float) -> float:
    """Return the float16 nearest to x; its largest number for an x beyond it."""
    return unpack("e", pack("e", max(-65504.0, min(65504.0, x))))[0]


def to_bfloat16(x: float) -> float:
    """Return the bfloat16 nearest to x."""
    (bits,) = unpack("I", pack("f", x))
    # the upper half of a float32, rounded to the nearest: 0x7FFF is just below half of its last bit,
    # and one more for an odd last bit makes ties even
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return unpack("f", pack("I", bits))[0]


#: type -> rounding to it; None: no rounding
ROUND: dict[Any, Callable[[float], float]] = {
    None: float,
    "float32": to_float32,
    "float16": to_float16,
    "bfloat16": to_bfloat16,
}


def changed(rope: Rope, wrong: Wrong) -> dict[str, Any]:
    """Return a copy of a rope in which the parameters have the values of a mistake. A switch about
    a parameter that this rope does not have changes nothing.
    """
    out = dict(rope)
    scaling = out["scaling"] = dict(rope["scaling"])
    kind = scaling["type"]
    factor = scaling.get("factor", 1.0)
    match wrong.get("theta"):
        case None:
            pass
        case "squared":
            out["theta"] = rope["theta"] ** 2
        case theta:
            out["theta"] = float(theta)
    match wrong.get("factor"):
        case None:
            pass
        case _ if "factor" not in scaling:
            pass
        case "lengths":
            scaling["factor"] = rope["max_length"] / scaling.get("original_length", 4096)
        case "inverse":
            scaling["factor"] = 1 / factor
        case "twice":
            scaling["factor"] = factor**2
        case given:
            scaling["factor"] = float(given)
    if kind == "yarn":
        if wrong.get("betas") == "swapped":
            scaling["beta_fast"], scaling["beta_slow"] = scaling["beta_slow"], scaling["beta_fast"]
        elif wrong.get("betas") == "default":
            scaling["beta_fast"], scaling["beta_slow"] = 32.0, 1.0
        scaling["truncate"] = wrong.get("truncate", scaling["truncate"])
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        if wrong.get("bands") == "swapped":
            low, high = high, low
        elif wrong.get("bands") == "default":
            low, high = 1.0, 4.0
        scaling["low_freq_factor"], scaling["high_freq_factor"] = low, high
    if "original_length" in wrong and "original_length" in scaling:
        given = wrong["original_length"]
        scaling["original_length"] = rope["max_length"] if given == "served" else given
    # None: as if the config did not give the key
    if "attention_factor" in wrong and "attention_factor" in scaling:
        scaling["attention_factor"] = None
    if "mscale" in wrong and "mscale" in scaling:
        scaling["mscale"] = scaling["mscale_all_dim"] = None
    match wrong.get("scaling"):
        case "none":
            out["scaling"] = {"type": "default"}
            # p-RoPE says which pairs rotate, which code without scalings also reads
            if kind == "proportional":
                out["scaling"] = scaling
        case "linear" if "factor" in scaling and kind != "proportional":
            out["scaling"] = {"type": "linear", "factor": factor}
        case "ntk" if "factor" in scaling and kind != "proportional":
            out["scaling"] = {"type": "ntk", "factor": factor}
        case _:
            pass
    # two ways to rotate a part of the head: partial rotary rotates the first dimensions alone;
    # p-RoPE, "proportional", gives the slow pairs of the whole head the frequency 0
    match wrong.get("rotary"):
        case "all":
            out |= {"rotary_dim": rope["head_dim"], "rotary_start": 0}
            if kind == "proportional":
                out["scaling"] = {"type": "default"}
        case "partial" if kind == "proportional":
            out |= {"rotary_dim": int(rope["head_dim"] * scaling["fraction"])}
            out["scaling"] = {"type": "default"}
        case "proportional" if rope["rotary_dim"] < rope["head_dim"] and kind == "default":
            fraction = rope["rotary_dim"] / rope["head_dim"]
            out |= {"rotary_dim": rope["head_dim"], "rotary_start": 0}
            out["scaling"] = {"type": "proportional", "fraction": fraction, "factor": 1.0}
        case _:
            pass
    if wrong.get("layout") == "other":
        out["layout"] = "interleaved" if rope["layout"] == "half" else "half"
    if wrong.get("slice") == "start":
        out["rotary_start"] = 0
    elif wrong.get("slice") == "end":
        out["rotary_start"] = rope["head_dim"] - out["rotary_dim"]
    return out


def frequencies(rope: Rope, length: int | None = None, wrong: Wrong | None = None) -> Numbers:
    """Return radians per step of each pair, in sequences of `length` tokens; None: up to the
    trained length.
    """
    wrong = wrong or {}
    rope = changed(rope, wrong)
    found = _scaled(rope, length, wrong)
    if wrong.get("order") == "reversed":
        found = found[::-1]
    if wrong.get("inverse") == "yes":
        found = [1 / w if w else 0.0 for w in found]
    return [ROUND[wrong.get("frequency_dtype")](w) for w in found]


def _scaled(rope: Rope, length: int | None, wrong: Wrong) -> Numbers:
    """Return the frequencies [pairs] of a rope whose parameters are changed already, in sequences
    of `length` tokens; None: up to the trained length. Of `wrong` only switches that are not
    about parameters are read.
    """
    d, theta, scaling = rope["rotary_dim"], rope["theta"], rope["scaling"]
    # exponents are -2i / d; a mistake divides by another number than d, the default
    divisor = {"half": 2 * d, "head": rope["head_dim"], "pairs": d // 2, "one_less": d - 2}.get(
        wrong.get("exponent", ""), d
    )

    def ladder(base: float) -> Numbers:
        """Return the frequencies without a scaling."""
        return [base ** (-2 * i / divisor) for i in range(d // 2)]

    plain, kind = ladder(theta), scaling["type"]
    s = scaling.get("factor", 1.0)
    if kind == "linear":
        return [w / s for w in plain]
    if kind == "ntk":
        return ladder(_ntk(theta, s, d, wrong))
    if kind == "dynamic":
        trained = scaling["original_length"]
        reached = max(length or 0, trained)  # shorter sequences are not scaled
        match wrong.get("dynamic"):
            case "trained":
                reached = trained
            case "factor":
                return ladder(_ntk(theta, s, d, wrong))
            case "length":
                return ladder(_ntk(theta, reached / trained, d, wrong))
            case "always":
                # in a sequence shorter than the trained length this may be 0 or less
                stretch = s * (length or trained) / trained - (s - 1)
                return ladder(_ntk(theta, max(stretch, 1e-6), d, wrong))
        return ladder(_ntk(theta, s * reached / trained - (s - 1), d, wrong))
    if kind == "llama3":
        return [_llama3(w, scaling, wrong) for w in plain]
    if kind == "yarn":
        ramp = _ramp(d, theta, scaling, wrong)
        return [w * (1 - g) + w / s * g for w, g in zip(plain, ramp, strict=True)]
    if kind == "longrope":
        factors = scaling[_longrope_name(length, scaling, wrong)]
        # a wrong rope may have more pairs than there are factors
        if wrong.get("factors") == "multiplied":
            return [w * f for w, f in zip(plain, factors, strict=False)]
        if wrong.get("factors") == "none":
            return plain
        return [w / f for w, f in zip(plain, factors, strict=False)]
    if kind == "proportional":
        rotating = int(scaling["fraction"] * d) // 2  # the first pairs of the head rotate
        return [w / s if i < rotating else 0.0 for i, w in enumerate(plain)]
    return plain


def _ntk(theta: float, stretch: float, d: int, wrong: Wrong) -> float:
    """Return the base of NTK scaling by the factor `stretch`, for `d` rotated dimensions."""
    power = {"none": 1.0, "inverse": (d - 2) / d}.get(wrong.get("ntk", ""), d / (d - 2))
    return theta * stretch**power


def _longrope_name(length: int | None, scaling: Rope, wrong: Wrong) -> str:
    """Return the key of the list of LongRoPE's factors that a sequence of `length` tokens uses."""
    long = length is not None and length > scaling["original_length"]
    match wrong.get("factors"):
        case "long":
            long = True
        case "short":
            long = False
        case "swapped":
            long = not long
        case "early":
            long = length is not None and length >= scaling["original_length"]
    return "long_factor" if long else "short_factor"


def _llama3(w: float, scaling: Rope, wrong: Wrong) -> float:
    """Return a frequency by Llama 3's rule: fast ones are kept, slow ones divided by the factor,
    and those between are a mean of both.
    """
    wavelength, trained = 2 * math.pi / w, scaling["original_length"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    divided = w / scaling["factor"]
    if wavelength < trained / high:
        return w
    if wavelength > trained / low:
        return divided
    weight = (trained / wavelength - low) / (high - low)  # of the frequency as it is
    if wrong.get("ramp") == "inverted":
        weight = 1 - weight
    elif wrong.get("ramp") == "none":
        weight = 0.0
    return (1 - weight) * divided + weight * w


def _ramp(d: int, theta: float, scaling: Rope, wrong: Wrong) -> Numbers:
    """Return YaRN's weight of the divided frequency for each pair: 0 keeps a frequency, 1 divides
    it by the factor.
    """

    def pair_with(turns: float) -> float:
        """Return the index of the pair that makes `turns` turns in the original length, a real
        number.
        """
        pair = d * math.log(scaling["original_length"] / (2 * math.pi * turns))
        return pair / (2 * math.log(theta))

    low, high = pair_with(scaling["beta_fast"]), pair_with(scaling["beta_slow"])
    if scaling["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    # YaRN's own code limits the end to d - 1, although the last pair is d // 2 - 1
    last = d // 2 - 1 if wrong.get("ramp") == "last_pair" else d - 1
    low, high = max(low, 0), min(high, last)
    if low == high:
        high += 0.001  # avoids a division by 0, also in YaRN's own code
    # a mistake counts dimensions, not pairs
    steps = [2 * i if wrong.get("ramp") == "dimensions" else i for i in range(d // 2)]
    ramp = [min(max((i - low) / (high - low), 0.0), 1.0) for i in steps]
    if wrong.get("ramp") == "inverted":
        ramp = [1 - g for g in ramp]
    elif wrong.get("ramp") == "step":
        ramp = [float(g >= 0.5) for g in ramp]
    return ramp


def same_rope(rope: Rope, length: int | None, wrong: Wrong) -> bool:
    """Return whether `wrong`, which changes only parameters of a rope, leaves this rope as it is in
    sequences of `length` tokens; None: up to the trained length.
    """
    names = ("head_dim", "rotary_dim", "rotary_start", "layout")
    other = changed(rope, wrong)
    return (
        all(rope[name] == other[name] for name in names)
        and magnitude(rope) == magnitude(rope, wrong)
        and frequencies(rope, length) == frequencies(rope, length, wrong)
    )


def _mscale(factor: float, weight: float) -> float:
    """Return YaRN's magnitude for a factor, whose logarithm counts `weight` times."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1


def magnitude(rope: Rope, wrong: Wrong | None = None) -> float:
    """Return the factor on cos and sin."""
    wrong = wrong or {}
    size = _magnitude(changed(rope, wrong), wrong)
    match wrong.get("magnitude"):
        case "none":
            return 1.0
        case "squared":
            return size**2
        case "inverse":
            return 1 / size
        case "root":
            return math.sqrt(size)
    return size


def _magnitude(rope: Rope, wrong: Wrong) -> float:
    """Return the factor on cos and sin of a scaling: of YaRN and LongRoPE; 1 for all others."""
    scaling = rope["scaling"]
    if scaling["type"] not in ("yarn", "longrope"):
        return 1.0
    if scaling["attention_factor"] is not None:
        return scaling["attention_factor"]
    s = scaling["factor"]
    if scaling["type"] == "longrope":
        if wrong.get("magnitude") == "yarn":
            return _mscale(s, 1)
        return 1.0 if s <= 1 else math.sqrt(1 + math.log(s) / math.log(scaling["original_length"]))
    if scaling["mscale"] and scaling["mscale_all_dim"]:
        if wrong.get("magnitude") == "first_mscale":
            return _mscale(s, scaling["mscale"])
        return _mscale(s, scaling["mscale"]) / _mscale(s, scaling["mscale_all_dim"])
    return _mscale(s, 1)


def softmax_scale(rope: Rope, wrong: Wrong | None = None) -> float:
    """Return the factor on q.k before the softmax: 1 / sqrt(head_dim), and for a rope with
    `scales_softmax` times the square of the magnitude that mscale_all_dim gives.
    """
    wrong = wrong or {}
    width = rope["head_dim"]
    # mistakes: the width of the part of the head that rotates, or of the part that does not
    match wrong.get("softmax_width"):
        case "rotated":
            width = rope["rotary_dim"]
        case "rest":
            width = max(1, rope["head_dim"] - rope["rotary_dim"])
    scale = 1.0 if wrong.get("softmax") == "one" else 1 / math.sqrt(width)
    if wrong.get("softmax") == "magnitude":
        return scale * _magnitude(rope, {}) ** 2
    if not rope.get("scales_softmax") or wrong.get("softmax") == "plain":
        return scale
    # its square multiplies the softmax scale; a mistake multiplies by it only once
    scaling = rope["scaling"]
    mscale = _mscale(scaling["factor"], scaling["mscale_all_dim"])
    return scale * (mscale if wrong.get("softmax") == "once" else mscale**2)


def axis_of_pair(rope: Rope, wrong: Wrong | None = None) -> list[int]:
    """Return the axis whose coordinate each pair takes: 0, 1 or 2; 0 for pairs beyond the sections,
    and for all pairs of a rope with one axis.
    """
    wrong = wrong or {}
    pairs, axes = rope["rotary_dim"] // 2, rope["axes"]
    if axes is None:
        return [0] * pairs
    order, sections = axes["order"], list(axes["sections"])
    match wrong.get("sections"):
        case "other_order":
            order = "interleaved" if order == "chunked" else "chunked"
        case "reversed":
            sections = sections[::-1]
        case "doubled":
            sections = [2 * size for size in sections]
        case "equal":
            sections = [pairs // 3 + (pairs % 3 > axis) for axis in range(3)]
        case "round_robin":
            return [i % 3 for i in range(pairs)]
    if order == "chunked":
        found = [axis for axis, size in enumerate(sections) for _ in range(size)]
        return (found + [0] * pairs)[:pairs]
    # interleaved: axes take turns, and where the section of axis 1 or 2 has ended, axis 0 follows
    found = [0] * pairs
    for axis in (1, 2):
        for i in range(axis, min(pairs, 3 * sections[axis]), 3):
            found[i] = axis
    return found


def with_axes(positions: Any) -> list[list[list[int]]]:
    """Return positions as [axes][batch][tokens], with one axis if they are [batch][tokens]."""
    return positions if isinstance(positions[0][0], list) else [positions]


def placed(positions: Any, wrong: Wrong, rope: Rope) -> list[Any]:
    """Return the positions at which code with a mistake rotates: [axes][batch][tokens]."""
    axes = [[list(line) for line in axis] for axis in with_axes(positions)]
    count, batch, tokens = len(axes), len(axes[0]), len(axes[0][0])

    def each(rule: Callable[[int], float]) -> list[Any]:
        return [[[rule(p) for p in line] for line in axis] for axis in axes]

    match wrong.get("positions"):
        case "plus_one":
            return each(lambda p: p + 1)
        case "minus_one":
            return each(lambda p: p - 1)
        case "index":
            return [[list(range(tokens))] * batch] * count
        case "first_row":
            return [[axis[0]] * batch for axis in axes]
        case "from_first":
            return [[[line[0] + i for i in range(tokens)] for line in axis] for axis in axes]
        case "first_token":
            return [[[line[0]] * tokens for line in axis] for axis in axes]
        case "first_axis":
            return [axes[0]] * count
        case "axes_reversed":
            return axes[::-1]
        case "overrun":
            # one id for each batch row and axis, read as one for each token; 0 beyond the end
            ids = [axes[a][b][0] for b in range(batch) for a in range(count)]
            ids += [0] * (batch * tokens * count)
            read = lambda a, b, i: ids[(b * tokens + i) * count + a]  # noqa: E731
            return [
                [[read(a, b, i) for i in range(tokens)] for b in range(batch)] for a in range(count)
            ]
        case "transposed":
            # the ids of a batch row are axes x tokens, read as tokens x axes
            flat = [
                [axes[a][b][i] for a in range(count) for i in range(tokens)] for b in range(batch)
            ]
            return [
                [[flat[b][i * count + a] for i in range(tokens)] for b in range(batch)]
                for a in range(count)
            ]
        case "clamped":
            return each(lambda p: min(p, rope["max_length"] - 1))
        case "modulo":
            return each(lambda p: p % rope["max_length"])
        case "zero":
            return each(lambda p: 0)
        case "wrap15":
            return each(lambda p: (p + 2**15) % 2**16 - 2**15)
        case "wrap16":
            return each(lambda p: p % 2**16)
        case "wrap31":
            return each(lambda p: (p + 2**31) % 2**32 - 2**31)
        case "float16" | "bfloat16" | "float32" as kind:
            return each(ROUND[kind])
    return axes


def tables(
    rope: Rope, positions: Any, length: int | None, wrong: Wrong | None = None
) -> tuple[list[Any], list[Any]]:
    """Return cos and sin, magnitude included: [batch][tokens][pairs]. `positions` are
    [batch][tokens] or [axes][batch][tokens]; `length` is that of the sequences.
    """
    wrong = wrong or {}
    axes = placed(positions, wrong, rope)
    of_pair = axis_of_pair(changed(rope, wrong), wrong)
    known: dict[int | None, Numbers] = {}  # length -> frequencies
    size = magnitude(rope, wrong)
    round_angle, round_table = ROUND[wrong.get("angle_dtype")], ROUND[wrong.get("table_dtype")]
    narrow = wrong.get("angle_dtype") is not None  # then frequencies are rounded too

    def of_token(p: Any) -> tuple[Numbers, Numbers]:
        """Return cos and sin [pairs] of a token with the position p[axis] on each axis."""
        # a mistake: the frequencies of a token are those of a sequence that ends with it
        reached = p[0] + 1 if wrong.get("factors") == "per_position" else length
        if reached not in known:
            known[reached] = frequencies(rope, reached, wrong)
            if narrow:
                known[reached] = [round_angle(w) for w in known[reached]]
        # a mistake may leave more frequencies than pairs that have an axis
        angles = [
            round_angle(w * p[axis if len(p) > 1 else 0])
            for w, axis in zip(known[reached], of_pair, strict=False)
        ]
        if wrong.get("table") == "swapped":  # sin in the place of cos
            return [round_table(size * math.sin(a)) for a in angles], [
                round_table(size * math.cos(a)) for a in angles
            ]
        sign = -1 if wrong.get("sin") == "negated" else 1
        return (
            [round_table(size * math.cos(a)) for a in angles],
            [round_table(sign * size * math.sin(a)) for a in angles],
        )

    rows = [
        [of_token([axis[b][i] for axis in axes]) for i in range(len(axes[0][0]))]
        for b in range(len(axes[0]))
    ]
    return [[c for c, _ in row] for row in rows], [[s for _, s in row] for row in rows]


def places_of(rope: Rope) -> list[tuple[int, int]]:
    """Return (first dimension, second dimension) of each pair."""
    start, pairs = rope["rotary_start"], rope["rotary_dim"] // 2
    if rope["layout"] == "half":
        return [(start + i, start + pairs + i) for i in range(pairs)]
    return [(start + 2 * i, start + 2 * i + 1) for i in range(pairs)]


def rotate(x: Any, cos: Any, sin: Any, rope: Rope, wrong: Wrong | None = None) -> list[Any]:
    """Return x [batch][heads][tokens][dims], rotated by tables of [batch][tokens][pairs]."""
    wrong = wrong or {}
    shown = changed(rope, wrong)
    pairs, start = shown["rotary_dim"] // 2, shown["rotary_start"]
    size = magnitude(rope, wrong)
    # whether cos and sin are laid out along the head as in the layout "half"; a mistake takes the
    # other layout
    half_tables = shown["layout"] == "half"
    if wrong.get("table_order") == "other":
        half_tables = not half_tables

    def entry(dim: int) -> int:
        """Return the index in the tables of the cos and sin that a dimension is multiplied by."""
        i = dim - start
        return i % pairs if half_tables else i // 2

    # pairs that a mistake adds have no entry in the tables and are not rotated
    known = min(len(line) for row in cos for line in row)
    # (dimension, dimension, the entry of the first in the tables, that of the second)
    of_pairs = [(a, b, entry(a), entry(b)) for a, b in places_of(shown)]
    of_pairs = [each for each in of_pairs if max(each[2:]) < known]
    # the factor on the dimensions that do not rotate
    rest = {"zeros": 0.0, "scaled": size}.get(wrong.get("rest", ""), 1.0)

    def rotated(token: Numbers, c: Numbers, s: Numbers) -> Numbers:
        """Return the vector of a token, rotated by cos and sin [pairs]."""
        out = [rest * value for value in token]
        for a, b, i, j in of_pairs:
            x, y = token[a], token[b]
            out[a], out[b] = c[i] * x - s[i] * y, s[j] * x + c[j] * y
        return out

    def row(heads: Any, b: int) -> Any:
        """Return the row `b` of the batch, [heads][tokens][dims], rotated."""
        if b > 0 and wrong.get("rows") == "zeros":
            return [[[0.0] * len(token) for token in head] for head in heads]
        if b > 0 and wrong.get("rows") == "unrotated":
            return heads
        return [
            [rotated(token, c, s) for token, c, s in zip(head, cos[b], sin[b], strict=True)]
            for head in heads
        ]

    return [row(heads, b) for b, heads in enumerate(x)]


def attention(
    rope: Rope, given: Mapping[str, Any], wrong: Wrong | None = None
) -> list[list[list[Numbers]]]:
    """Return causal attention inside each document: [batch][heads][tokens][value dims].

    given  q, k, v [batch][heads][tokens][dims], where k and v may have fewer heads than q;
           positions and document indices [batch][tokens]
    """
    wrong = wrong or {}
    positions, documents = given["positions"], given["documents"]
    if rope["axes"] is not None:
        positions = [positions] * 3  # a token of text has the same position on every axis
    if wrong.get("documents") == "continued":  # positions run on from document to document
        positions = [list(range(len(line))) for line in documents]
        positions = [positions] * 3 if rope["axes"] is not None else positions
    cos, sin = tables(rope, positions, length=None, wrong=wrong)
    q, k = (rotate(given[name], cos, sin, rope, wrong) for name in "qk")
    v, scale = given["v"], softmax_scale(rope, wrong)
    out = []
    for b, heads in enumerate(q):
        group = len(heads) // len(k[b])  # how many heads of q share one of k and v
        out.append(
            [
                _attend(head, k[b][h // group], v[b][h // group], documents[b], scale, wrong)
                for h, head in enumerate(heads)
            ]
        )
    return out


def _attend(
    q: Any, k: Any, v: Any, documents: list[int], scale: float, wrong: Wrong
) -> list[Numbers]:
    """Return the causal attention of one head within each document, [tokens][value dims]; `wrong`
    may change which keys a query sees.

    documents  the document index of each token
    scale      the factor on q.k before the softmax
    """
    out, count = [], len(q)
    # of "shard", where a query sees only keys on its own rank: tokens of the first of two ranks, half
    # of them, rounded up
    shard = -(-count // 2)
    for i, query in enumerate(q):
        seen = range(count) if wrong.get("causal") == "no" else range(i + 1)
        match wrong.get("documents"):
            case "mixed" | "continued":  # tokens see those of other documents
                pass
            case "shard":
                seen = [
                    j for j in seen if documents[j] == documents[i] and j // shard == i // shard
                ]
            case _:
                seen = [j for j in seen if documents[j] == documents[i]]
        scores = [scale * sum(a * b for a, b in zip(query, k[j], strict=True)) for j in seen]
        top = max(scores)
        powers = [math.exp(score - top) for score in scores]
        total = sum(powers)
        out.append(
            [
                sum(p * v[j][d] for p, j in zip(powers, seen, strict=True)) / total
                for d in range(len(v[0]))
            ]
        )
    return out


def moved(rope: Rope, given: Mapping[str, Any], wrong: Wrong | None = None) -> list[Any]:
    """Return cached keys [batch][heads][tokens][dims], rotated from their old to their new
    positions; the magnitude, which they have already, is not applied again.

    given  k, and the positions old and new [batch][tokens]
    """
    wrong = wrong or {}
    rows = zip(given["old"], given["new"], strict=True)
    kind = wrong.get("move")
    if kind == "unchanged":
        return given["k"]
    if kind == "new":  # as if the keys were not rotated yet
        steps = given["new"]
    else:
        sign = -1 if kind == "negated" else 1
        steps = [[sign * (b - a) for a, b in zip(*row, strict=True)] for row in rows]
    if kind == "first":  # all keys of a batch row move as far as its first key
        steps = [[line[0]] * len(line) for line in steps]
    # without the magnitude, except where applying it once more is the mistake
    unit = wrong if kind == "magnitude" else {**wrong, "magnitude": "none"}
    cos, sin = tables(rope, steps, length=None, wrong=unit)
    return rotate(given["k"], cos, sin, rope, unit)


def permuted(rope: Rope, given: Mapping[str, Any], wrong: Wrong | None = None) -> list[Any]:
    """Return the rows of a projection of q or k, permuted from the interleaved to the half layout.

    given  the weight [rows][columns], and the number of its heads
    """
    kind = (wrong or {}).get("permute")
    rows, heads = given["weight"], given["heads"]
    if kind == "other_heads":  # twice as many heads of half the width
        heads = heads * 2 if len(rows) % (heads * 2) == 0 else heads
    head_dim = len(rows) // heads
    start, d = rope["rotary_start"], rope["rotary_dim"]
    if kind in ("whole", "other_heads"):  # all rows of a head, not only those that rotate
        start, d = 0, head_dim
    order = list(range(head_dim))  # for each row of a head, the row that it is taken from
    order[start : start + d] = [*range(start, start + d, 2), *range(start + 1, start + d, 2)]
    # how often the rows are permuted; once is right
    times = {"missing": 0, "twice": 2}.get(kind or "", 1)
    if kind == "inverse":
        order = [order.index(i) for i in range(head_dim)]
    for _ in range(times):
        rows = [rows[head * head_dim + i] for head in range(heads) for i in order]
    return rows


def grid_positions(
    config: Mapping[str, Any], segments: list[Any], wrong: Wrong | None = None
) -> list[list[int]]:
    """Return the coordinates [time, height, width][tokens] of text, images and videos.

    segments  one after the other: {"text": number of tokens}, or {"image" or "video": [frames,
              rows, columns]} in patches, with the "seconds" from a frame of a video to the next

    spatial_merge_size x spatial_merge_size patches of a frame become one token.
    """
    kind = (wrong or {}).get("video")  # the mistake, if there is one
    merge, rate = config["spatial_merge_size"], config["tokens_per_second"]
    rows: list[list[int]] = [[], [], []]
    start = 0  # of the segment: larger by 1 than the largest coordinate so far
    for segment in segments:
        if "text" in segment:
            for axis in rows:
                axis.extend(range(start, start + segment["text"]))
            start += segment["text"]
            continue
        frames, height, width = segment.get("image") or segment["video"]
        # an image, which has no seconds, has a time step of 0; a mistake gives it that of a video
        seconds = segment.get("seconds", 1.0 if kind == "images" else 0)
        # from one frame to the next, in time coordinates; three mistakes compute it otherwise
        step = {"frames": 1.0, "whole_seconds": int(seconds) * rate, "seconds": seconds}.get(
            kind or "", seconds * rate
        )
        # the time of the first frame; in two mistakes the time step multiplies it too
        first = start * max(step, 1) if kind in ("start", "images") else start
        for frame in range(frames):
            for i in range(height // merge):
                for j in range(width // merge):
                    if kind == "height_width":
                        i, j = j, i
                    rows[0].append(int(first + math.floor(frame * step)))
                    rows[1].append(start + i)
                    rows[2].append(start + j)
        # the next segment starts after the largest coordinate of all axes; "start" and "images" leave
        # out time, and "tokens" counts tokens instead
        after = len(rows[0]) if kind == "tokens" else max(rows[1][-1], rows[2][-1]) + 1
        start = max(after, 0 if kind in ("start", "images") else max(map(max, rows)) + 1)
        start = len(rows[0]) if kind == "tokens" else start
    if kind == "text":
        return [list(range(len(rows[0])))] * 3
    return rows
