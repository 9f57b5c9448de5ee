"""The functions that a project can give: how each is called, read and compared.

For a kind of function, `arguments` turns a case of the vectors into arguments, and `readings` reads
the result as flat lists of plain numbers. `expected` gives the right numbers, `allowed` how far
each may be off, `predicted` the numbers that code with a mistake would return (none if the case has
nothing that the mistake could change), `probe` the first of these, and `label` the name of a number
in words.

In these methods, `make` makes an array from lists and the name of a type; `wrong` are the switches
of a mistake (see `definition`); `tolerance` is that of the group of the case; `dtype` is the type
of the given vectors, in `allowed` the coarser of this and the result's.

Words of this module:
  case       what a function is called with and must return. "config" and "rope" say the same, as a
             model's config and as `definition` reads it; "inv_freq" has the frequencies and
             "attention_factor" the magnitude; "rotation", "attention", "move" and "permute" have the
             vectors and results of one kind; "positions", [batch][tokens] or [axes][batch][tokens];
             "before", if it is there, is another config that the function is called with first;
             "part" the part of the model, "other_ropes" the ropes of its other parts; "shards" the
             number of ranks that the tokens are on; "q_scale" and "k_scale" belong to quantised q
             and k: the rotated codes are multiplied by them
  tolerance  {"absolute", "relative", "per_radian"}: errors that are allowed in a number, per unit of
             its size, and for every radian of an angle, which float32 rounds
  ROUNDING   the rounding error of a coarse type, which is added; 0 for float32 and finer ones
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ropewalk.errors import RopeError
from ropewalk_conformance import definition
from ropewalk_conformance.arrays import ROUNDING, flat, rows, to_lists

Case = dict[str, Any]
Numbers = list[float]
Make = Callable[[Any, str], Any]
Wrong = definition.Wrong


#: switches of `definition`: OF_ROPE change frequencies or the magnitude, OF_TABLE also cos and sin,
#: and OF_VECTOR also rotated vectors
OF_ROPE = frozenset(
    [
        "rope",
        "part",
        "theta",
        "factor",
        "betas",
        "bands",
        "truncate",
        "original_length",
        "attention_factor",
        "mscale",
        "scaling",
        "rotary",
        "order",
        "inverse",
        "frequency_dtype",
        "exponent",
        "ntk",
        "dynamic",
        "factors",
        "ramp",
        "magnitude",
    ]
)
OF_TABLE = OF_ROPE | frozenset(
    ["positions", "sections", "angle_dtype", "table_dtype", "table", "sin", "per_radian"]
)
OF_VECTOR = OF_TABLE | frozenset(
    ["layout", "slice", "rest", "rows", "only", "only_magnitude", "table_order", "scales"]
)


def rope_of(case: Case, wrong: Wrong) -> definition.Rope | None:
    """Return the rope that a mistake starts from: the one that the mistake itself holds, the one of
    the call before, that of another part of the model, or that of the case. None if the case has no
    such call or part.
    """
    if isinstance(wrong.get("rope"), dict):  # `is_stale` of mistakes.py puts it there
        return wrong["rope"]
    if wrong.get("rope") == "before":
        return case["before"]["rope"] if "before" in case else None
    if wrong.get("part") == "other":
        others = case.get("other_ropes")
        return others[0] if others else None
    return case["rope"]


def rope_for_vectors(case: Case, wrong: Wrong) -> definition.Rope | None:
    """Return `rope_of`; None also if that rope is for heads of another width than the vectors of
    the case.
    """
    rope = rope_of(case, wrong)
    return rope if rope is not None and rope["head_dim"] == case["rope"]["head_dim"] else None


class Kind:
    """One kind of function that a project can give; the subclasses below are the kinds."""

    #: how the project must declare it
    signature = ""
    #: keywords that the project's function must take for a case that has them; else it is not run
    needs: tuple[str, ...] = ("part",)
    #: the switches of `definition` that its numbers depend on
    depends_on: frozenset[str] = frozenset()
    #: whether it takes vectors or weights, whose dtype may be coarse
    takes_vectors = False

    def arguments(self, case: Case, make: Make, dtype: str) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments, and the keywords that the function may take."""
        raise NotImplementedError

    def readings(self, case: Case, result: Any) -> list[Numbers]:
        """Return the numbers of a result, once for each way in which it may be meant."""
        return [flat(to_lists(result))]

    def expected(self, case: Case) -> Numbers:
        """Return the right numbers, which the case holds."""
        raise NotImplementedError

    def predicted(self, case: Case, wrong: Wrong) -> Numbers:
        """Return the numbers that code with a mistake returns; an empty list if the case has nothing
        that the mistake could change.
        """
        raise NotImplementedError

    def probe(self, case: Case, wrong: Wrong) -> Numbers:
        """Return the first of the predicted numbers if they are much quicker to compute than all of
        them, else an empty list.
        """
        return []

    def allowed(self, case: Case, tolerance: Case, dtype: str) -> Numbers:
        """Return how far each number may be off: the same for all, by the largest of them."""
        # 4 roundings of a coarse type, for the steps of a computation
        size = max(1.0, max(map(abs, self.expected(case))))
        error = tolerance["absolute"] + 4 * ROUNDING.get(dtype, 0.0)
        return [size * error] * len(self.expected(case))

    def label(self, case: Case, index: int) -> str:
        """Return which number of a result this is, in words."""
        return f"number {index}"


def keywords(case: Case) -> dict[str, Any]:
    """Return the keywords of a case that every function may take: its rope and, if the case has
    them, the part of the model and the length of the sequences.
    """
    found = {"rope": copy.deepcopy(case["rope"])}
    return found | {name: case[name] for name in ("part", "length") if name in case}


class InvFreq(Kind):
    """Frequencies, and the magnitude if the function returns a pair."""

    signature = "inv_freq(config) -> frequencies, or (frequencies, attention_factor)"
    needs = ("part", "length")
    depends_on = OF_ROPE

    def arguments(self, case: Case, make: Make, dtype: str) -> tuple[list[Any], dict[str, Any]]:
        return [copy.deepcopy(case["config"])], keywords(case)

    def readings(self, case: Case, result: Any) -> list[Numbers]:
        """Return the readings of a result: the frequencies and, if it was returned, the magnitude.
        If pairs that do not rotate are missing, a second reading has zeros for them.
        """
        factor: Numbers = []
        if isinstance(result, tuple) and len(result) == 2:
            result, factor = result[0], flat(to_lists(result[1]))
        found = next(row for row in rows(to_lists(result)) if row)  # those of the first sequence
        found = [float(value) for value in found]
        # without the magnitude, which is the last of the expected numbers
        pairs, half = len(self.expected(case)) - 1, len(found) // 2
        # a frequency may be given twice, once for each dimension of its pair: as two equal halves,
        # or side by side. Two numbers may also be the frequency of a single pair and the magnitude
        if len(found) == 2 * pairs and len(found) > 2:
            if found[:half] == found[half:]:
                found = found[:half]
            elif found[::2] == found[1::2]:
                found = found[::2]
        read = [found + factor]
        if len(found) < pairs and not any(self.expected(case)[len(found) : pairs]):
            # pairs that do not rotate may be left out
            read.append(found + [0.0] * (pairs - len(found)) + factor)
        return read

    def expected(self, case: Case) -> Numbers:
        return [*case["inv_freq"]["float"], case["attention_factor"]["float"]]

    def predicted(self, case: Case, wrong: Wrong) -> Numbers:
        rope = rope_of(case, wrong)
        if rope is None:
            return []
        found = definition.frequencies(rope, case.get("length"), wrong)
        return [*found, definition.magnitude(rope, wrong)]

    def allowed(self, case: Case, tolerance: Case, dtype: str) -> Numbers:
        # 1e-30: a frequency may also be 0
        return [tolerance["relative"] * abs(value) + 1e-30 for value in self.expected(case)]

    def label(self, case: Case, index: int) -> str:
        if index == len(self.expected(case)) - 1:
            return "the magnitude"
        return f"pair {index}"


class FromGguf(InvFreq):
    """Frequencies from GGUF metadata; `tensors` are the tensors of the file that divide frequencies,
    {name: one number for each pair}.
    """

    signature = "from_gguf(metadata, tensors) -> frequencies, or (frequencies, attention_factor)"

    def arguments(self, case: Case, make: Make, dtype: str) -> tuple[list[Any], dict[str, Any]]:
        tensors = copy.deepcopy(case.get("tensors", {}))
        return [copy.deepcopy(case["config"]), tensors], keywords(case)


class CosSin(Kind):
    """Tables of cos and sin with the magnitude in them."""

    signature = "cos_sin(config, positions) -> (cos, sin), or one complex array"
    depends_on = OF_TABLE

    def arguments(self, case: Case, make: Make, dtype: str) -> tuple[list[Any], dict[str, Any]]:
        positions = make(copy.deepcopy(case["positions"]), "int64")
        return [copy.deepcopy(case["config"]), positions], keywords(case)

    def readings(self, case: Case, result: Any) -> list[Numbers]:
        """Return the readings of a result: cos and then sin of every token, one value for each
        pair. If pairs are missing, a second reading has cos 1 and sin 0 for them.
        """
        lists = to_lists(result)
        if isinstance(result, tuple | list) and len(lists) == 2:
            cos, sin = rows(lists[0]), rows(lists[1])
        else:
            complex_rows = rows(lists)
            cos = [[complex(z).real for z in row] for row in complex_rows]
            sin = [[complex(z).imag for z in row] for row in complex_rows]
        if len(cos) != len(sin):
            rule = "must return cos and sin of the same shape"
            raise RopeError("cos_sin", rule, f"{len(cos)} rows of cos and {len(sin)} of sin")
        count = len(flat(case["cos"])) // len(case["cos"][0][0])  # batch x tokens
        # a table without a batch stands for every row of the batch
        if len(cos) < count and count % len(cos) == 0:
            cos, sin = cos * (count // len(cos)), sin * (count // len(sin))
        pairs = len(case["cos"][0][0])
        lines = [_one_per_pair(c, s, pairs) for c, s in zip(cos, sin, strict=True)]
        read = [[*flat([c for c, _ in lines]), *flat([s for _, s in lines])]]
        if (missing := pairs - len(lines[0][0])) > 0:  # those that do not rotate may be left out
            filled = [[*c, *[1.0] * missing] for c, _ in lines]
            read.append([*flat(filled), *flat([[*s, *[0.0] * missing] for _, s in lines])])
        return read

    def expected(self, case: Case) -> Numbers:
        return [*flat(case["cos"]), *flat(case["sin"])]

    def predicted(self, case: Case, wrong: Wrong) -> Numbers:
        rope = rope_of(case, wrong)
        if rope is None:
            return []
        cos, sin = definition.tables(rope, case["positions"], _length(case), wrong)
        return [*flat(cos), *flat(sin)]

    def allowed(self, case: Case, tolerance: Case, dtype: str) -> Numbers:
        size = case["attention_factor"]["float"]
        error = tolerance["absolute"] + ROUNDING.get(dtype, 0.0)
        return [size * (error + tolerance["per_radian"] * a) for a in flat(angles(case))] * 2

    def label(self, case: Case, index: int) -> str:
        pairs, tokens = len(case["cos"][0][0]), len(case["cos"][0])
        half = len(flat(case["cos"]))
        which, index = ("cos" if index < half else "sin"), index % half
        row, token = divmod(index // pairs, tokens)
        where = f"{which} of pair {index % pairs} at position {_position(case, row, token)}"
        return where if len(case["cos"]) == 1 else f"{where}, row {row}"


def _one_per_pair(cos: Numbers, sin: Numbers, pairs: int) -> tuple[Numbers, Numbers]:
    """Return cos and sin of one token with one value for each of `pairs` pairs; the given ones may
    have one for each dimension, in either layout, or be fewer.
    """

    def near(a: Numbers, b: Numbers) -> bool:
        return all(abs(x - y) <= 1e-6 for x, y in zip(a, b, strict=True))

    half = len(cos) // 2
    if len(cos) >= 2 * pairs and len(cos) % 2 == 0:
        if near(cos[:half], cos[half:]) and near(sin[:half], sin[half:]):
            cos, sin = cos[:half], sin[:half]
        elif near(cos[::2], cos[1::2]) and near(sin[::2], sin[1::2]):
            cos, sin = cos[::2], sin[::2]
    # pairs beyond those that rotate have the angle 0
    if len(cos) > pairs and near(cos[pairs:], [1.0] * len(cos[pairs:])) and not any(sin[pairs:]):
        cos, sin = cos[:pairs], sin[:pairs]
    return cos, sin


def angles(case: Case) -> list[list[Numbers]]:
    """Return the absolute value of each angle, in radians: [batch][tokens][pairs]."""
    axes = definition.with_axes(case["positions"])
    of_pair = definition.axis_of_pair(case["rope"])
    radians = case["inv_freq"]["float"]
    return [
        [
            [abs(w * axes[a][b][i]) for w, a in zip(radians, of_pair, strict=True)]
            for i in range(len(axes[0][0]))
        ]
        for b in range(len(axes[0]))
    ]


def _length(case: Case) -> int:
    """Return the length of the sequences of a case: its largest position + 1."""
    return 1 + int(max(flat(case["positions"])))


def _position(case: Case, row: int, token: int) -> Any:
    """Return the position of a token; with several axes, a tuple of the coordinates."""
    found = [axis[row][token] for axis in definition.with_axes(case["positions"])]
    return found[0] if len(found) == 1 else tuple(found)


class Rotate(Kind):
    """q and k, rotated."""

    signature = "rotate(config, q, k, positions) -> (q, k), all [batch, heads, tokens, head_dim]"
    needs = ("part", "q_scale", "k_scale")
    takes_vectors = True
    depends_on = OF_VECTOR

    def arguments(self, case: Case, make: Make, dtype: str) -> tuple[list[Any], dict[str, Any]]:
        given = case["rotation"]
        arrays = [make(copy.deepcopy(given[name]), dtype) for name in "qk"]
        positions = make(copy.deepcopy(case["positions"]), "int64")
        scales = {name: given[name] for name in ("q_scale", "k_scale") if name in given}
        return [copy.deepcopy(case["config"]), *arrays, positions], keywords(case) | scales

    def readings(self, case: Case, result: Any) -> list[Numbers]:
        """Return q and then k; for an interleaved rope also as if they were in the half layout."""
        lists = to_lists(result)
        if not isinstance(result, tuple | list) or len(lists) != 2:
            raise RopeError("rotate", "must return q and k", type(result).__name__)
        found = [flat(lists)]
        rope = case["rope"]
        if rope["layout"] == "interleaved" and len(found[0]) == len(self.expected(case)):
            # the result may be in the order of halves: q.k is the same
            found.append(_interleaved(found[0], rope))
        return found

    def expected(self, case: Case) -> Numbers:
        return flat([case["rotation"][f"{name}_expected"] for name in "qk"])

    def probe(self, case: Case, wrong: Wrong) -> Numbers:
        """Return the predicted numbers of the first head of the first row of q; [] leaves the
        comparison to `predicted`.
        """
        rope, given = rope_for_vectors(case, wrong), case["rotation"]
        if rope is None:
            return []
        # mistakes about one of q and k, or about their scales: `predicted` alone computes them
        if {"only", "only_magnitude", "scales"} & wrong.keys():
            return []
        cos, sin = definition.tables(rope, case["positions"], _length(case), wrong)
        scale = given.get("q_scale", 1.0)
        tokens = given["q"][0][0]
        rotated = definition.rotate([[tokens]], [cos[0]], [sin[0]], rope, wrong)
        return [scale * value for value in flat(rotated)]

    def predicted(self, case: Case, wrong: Wrong) -> Numbers:
        rope = rope_for_vectors(case, wrong)
        if rope is None:
            return []
        cos, sin = definition.tables(rope, case["positions"], _length(case), wrong)
        given, out = case["rotation"], []
        # of quantised q and k, by which the rotated codes are multiplied
        scales = [given.get("q_scale", 1.0), given.get("k_scale", 1.0)]
        match wrong.get("scales"):
            case "none":
                scales = [1.0, 1.0]
            case "twice":
                scales = [scale**2 for scale in scales]
            case "exchanged":
                scales = scales[::-1]
        for name, scale in zip("qk", scales, strict=True):
            x = given[name]
            # "only" names the one of q and k that is rotated
            if wrong.get("only", name) == name:
                switches = wrong
                # "only_magnitude" names the one of q and k that has the magnitude
                if wrong.get("only_magnitude", name) != name:
                    switches = {**wrong, "magnitude": "none"}
                    tables = definition.tables(rope, case["positions"], _length(case), switches)
                    x = definition.rotate(x, *tables, rope, switches)
                else:
                    x = definition.rotate(x, cos, sin, rope, switches)
            out += [scale * value for value in flat(x)]
        return out

    def allowed(self, case: Case, tolerance: Case, dtype: str) -> Numbers:
        rope, given, size = case["rope"], case["rotation"], case["attention_factor"]["float"]
        error = tolerance["absolute"] + ROUNDING.get(dtype, 0.0)
        out: Numbers = []
        angles_by_row = angles(case)
        for name in "qk":
            scale = given.get(f"{name}_scale", 1.0)
            for heads, row in zip(given[name], angles_by_row, strict=True):
                lines = [[scale * error] * rope["head_dim"] for _ in row]
                # a dimension that rotates is a sum of two products with cos and sin
                for line, angle in zip(lines, row, strict=True):
                    for (a, b), radians in zip(definition.places_of(rope), angle, strict=True):
                        line[a] = line[b] = (
                            2 * size * scale * (error + tolerance["per_radian"] * radians)
                        )
                out += flat(lines) * len(heads)
        return out

    def label(self, case: Case, index: int) -> str:
        name, given = "q", case["rotation"]
        if index >= (count := len(flat(given["q"]))):
            name, index = "k", index - count
        x = given[name]
        heads, tokens, width = len(x[0]), len(x[0][0]), len(x[0][0][0])
        rest, dim = divmod(index, width)
        rest, token = divmod(rest, tokens)
        row = rest // heads
        where = f"{name} at position {_position(case, row, token)}, dimension {dim}"
        return where if len(x) == 1 else f"{where}, row {row}"


def _interleaved(numbers: Numbers, rope: definition.Rope) -> Numbers:
    """Return vectors of heads, one after the other, with their rotated slice in the interleaved
    layout; those given have it in the half layout.
    """
    width, start, d = rope["head_dim"], rope["rotary_start"], rope["rotary_dim"]
    order = list(range(width))
    order[start : start + d] = [start + i // 2 + (i % 2) * (d // 2) for i in range(d)]
    return [numbers[first + i] for first in range(0, len(numbers), width) for i in order]


class SoftmaxScale(Kind):
    """The factor on q.k."""

    signature = "softmax_scale(config) -> float"
    depends_on = frozenset({"softmax", "softmax_width"})

    def arguments(self, case: Case, make: Make, dtype: str) -> tuple[list[Any], dict[str, Any]]:
        return [copy.deepcopy(case["config"])], keywords(case)

    def expected(self, case: Case) -> Numbers:
        return [case["softmax_scale"]["float"]]

    def predicted(self, case: Case, wrong: Wrong) -> Numbers:
        return [definition.softmax_scale(case["rope"], wrong)]

    def allowed(self, case: Case, tolerance: Case, dtype: str) -> Numbers:
        return [tolerance["relative"] * self.expected(case)[0]]

    def label(self, case: Case, index: int) -> str:
        return "the softmax scale"


class AttentionKind(Kind):
    """Causal attention inside each document."""

    signature = "attention(config, q, k, v, positions) -> [batch, heads, tokens, value dims]"
    needs = ("part", "shards")
    takes_vectors = True
    depends_on = OF_VECTOR | {"softmax", "softmax_width", "documents"}

    def arguments(self, case: Case, make: Make, dtype: str) -> tuple[list[Any], dict[str, Any]]:
        given = case["attention"]
        arrays = [make(copy.deepcopy(given[name]), dtype) for name in "qkv"]
        positions = make(copy.deepcopy(given["positions"]), "int64")
        more = {"shards": given["shards"]} if "shards" in given else {}
        return [copy.deepcopy(case["config"]), *arrays, positions], keywords(case) | more

    def expected(self, case: Case) -> Numbers:
        return flat(case["attention"]["expected"])

    def predicted(self, case: Case, wrong: Wrong) -> Numbers:
        rope = rope_for_vectors(case, wrong)
        return [] if rope is None else flat(definition.attention(rope, case["attention"], wrong))

    def allowed(self, case: Case, tolerance: Case, dtype: str) -> Numbers:
        # a value is a sum over many tokens, whose weights are off too
        error = 10 * tolerance["absolute"] + 4 * ROUNDING.get(dtype, 0.0)
        return [error] * len(self.expected(case))

    def label(self, case: Case, index: int) -> str:
        out = case["attention"]["expected"][0]  # the cases have one row
        head, rest = divmod(index, len(flat(out[0])))
        return f"head {head}, token {rest // len(out[0][0])}, value {rest % len(out[0][0])}"


class Move(Kind):
    """Cached keys, moved from their positions to others."""

    signature = "move(config, k, old_positions, new_positions) -> k"
    takes_vectors = True
    depends_on = OF_ROPE | {"move", "layout", "slice", "angle_dtype", "table_dtype", "per_radian"}

    def arguments(self, case: Case, make: Make, dtype: str) -> tuple[list[Any], dict[str, Any]]:
        given = case["move"]
        positions = [make(copy.deepcopy(given[name]), "int64") for name in ("old", "new")]
        k = make(copy.deepcopy(given["k"]), dtype)
        return [copy.deepcopy(case["config"]), k, *positions], keywords(case)

    def expected(self, case: Case) -> Numbers:
        return flat(case["move"]["expected"])

    def predicted(self, case: Case, wrong: Wrong) -> Numbers:
        rope = rope_for_vectors(case, wrong)
        return [] if rope is None else flat(definition.moved(rope, case["move"], wrong))

    def allowed(self, case: Case, tolerance: Case, dtype: str) -> Numbers:
        given, rope = case["move"], case["rope"]
        radians = definition.frequencies(rope)
        # the cases have one row with one head
        error = tolerance["absolute"] + 2 * ROUNDING.get(dtype, 0.0)
        out: Numbers = []
        for a, b in zip(given["old"][0], given["new"][0], strict=True):
            line = [error] * rope["head_dim"]
            for (first, second), w in zip(definition.places_of(rope), radians, strict=True):
                # a project may rotate back by the angle of the old position, then forward by that
                # of the new one. A rotation sums two products, so its error is at most twice that
                # of cos and sin; the second one multiplies the error of the first by sqrt(2) at
                # most, and 2 * sqrt(2) < 3
                line[first] = line[second] = 3 * (error + tolerance["per_radian"] * w * (a + b))
            out += line
        return out

    def label(self, case: Case, index: int) -> str:
        given, width = case["move"], case["rope"]["head_dim"]
        token, dim = divmod(index, width)
        old, new = given["old"][0][token], given["new"][0][token]
        return f"the key moved from {old} to {new}, dimension {dim}"


class Permute(Kind):
    """Rows of a projection from interleaved pairs to halves."""

    signature = "permute(config, weight, heads) -> weight"
    takes_vectors = True
    depends_on = frozenset({"permute"})

    def arguments(self, case: Case, make: Make, dtype: str) -> tuple[list[Any], dict[str, Any]]:
        given = case["permute"]
        weight = make(copy.deepcopy(given["weight"]), dtype)
        return [copy.deepcopy(case["config"]), weight, given["heads"]], keywords(case)

    def expected(self, case: Case) -> Numbers:
        return flat(case["permute"]["expected"])

    def predicted(self, case: Case, wrong: Wrong) -> Numbers:
        return flat(definition.permuted(case["rope"], case["permute"], wrong))

    def allowed(self, case: Case, tolerance: Case, dtype: str) -> Numbers:
        # the weights are whole numbers up to 8 x rows; half precision rounds the large ones
        return [max(1e-3, ROUNDING.get(dtype, 0.0) * abs(v)) for v in self.expected(case)]

    def label(self, case: Case, index: int) -> str:
        row, column = divmod(index, len(case["permute"]["weight"][0]))
        return f"row {row}, column {column}"


class MropePositions(Kind):
    """Coordinates of text, images and videos."""

    signature = "mrope_positions(config, segments) -> [time, height, width][tokens]"
    depends_on = frozenset({"video"})

    def arguments(self, case: Case, make: Make, dtype: str) -> tuple[list[Any], dict[str, Any]]:
        return [copy.deepcopy(case["config"]), copy.deepcopy(case["segments"])], keywords(case)

    def expected(self, case: Case) -> Numbers:
        return flat(case["positions"])

    def predicted(self, case: Case, wrong: Wrong) -> Numbers:
        return flat(definition.grid_positions(case["config"], case["segments"], wrong))

    def allowed(self, case: Case, tolerance: Case, dtype: str) -> Numbers:
        return [0.0] * len(self.expected(case))

    def label(self, case: Case, index: int) -> str:
        axis, token = divmod(index, len(case["positions"][0]))  # here [axes][tokens]
        return f"{('time', 'height', 'width')[axis]} of token {token}"


#: name of a function that a project gives -> its kind
KINDS: dict[str, Kind] = {
    "inv_freq": InvFreq(),
    "cos_sin": CosSin(),
    "rotate": Rotate(),
    "softmax_scale": SoftmaxScale(),
    "attention": AttentionKind(),
    "move": Move(),
    "permute": Permute(),
    "mrope_positions": MropePositions(),
    "from_gguf": FromGguf(),
}
