"""Write the vectors: `make vectors` makes every JSON file of `conformance/` but the schema.

The numbers come from `definition`, which computes with 50 digits; a float in a file is the double
nearest to the exact value, and "exact" has DIGITS of it. `--check` writes nothing and fails if a
file differs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mpmath

from conformance_vectors import definition
from conformance_vectors.groups import DOCUMENTS, GROUPS, NEAR, PACKED, Row

FOLDER = Path(__file__).parents[2] / "conformance"
VERSION = "1.0.0"
DATE = "2026-11-18"
DIGITS = 40
TOLERANCE = {
    "words": "A number passes if it differs from the expected one by at most `absolute`, plus "
    "`per_radian` for every radian of the angle (float32 angles lose that much), both times the "
    "largest size of the expected numbers; a frequency if it differs by at most `relative` of "
    "itself. float16 and bfloat16 results get the rounding of their type on top.",
    "absolute": 2e-5,
    "per_radian": 1e-6,
    "relative": 4e-6,
}


def document(group: Row) -> Row:
    """Return the file of one group."""
    return {
        "$schema": "schema.json",
        "version": VERSION,
        "date": DATE,
        "group": group["group"],
        "title": group["title"],
        "level": group.get("level", "required"),
        "functions": group["functions"],
        "why": group["why"],
        "bugs": group["bugs"],
        "tolerance": group.get("tolerance", TOLERANCE),
        "cases": [filled(row, group["functions"]) for row in group["cases"]],
    }


def filled(row: Row, functions: list[str]) -> Row:
    """Return a case with the numbers that each of these functions must give."""
    means = row["rope"]
    out: Row = {"id": row["id"], "comment": row["comment"]}
    for name in ("config", "part", "rope", "other_ropes", "before"):
        if name in row:
            out[name] = row[name]
    if "rope_freqs" in row:
        # what each plain frequency is divided by; a GGUF file holds these numbers in float32
        plain = definition.frequencies(means | {"scaling": {"type": "default"}})
        exact = definition.frequencies(means)
        out["tensors"] = {
            "rope_freqs.weight": [_float(w / f) for w, f in zip(plain, exact, strict=True)]
        }
    if {"inv_freq", "cos_sin", "rotate", "from_gguf"} & set(functions):
        positions = with_axes(row.get("positions", NEAR))
        length = 1 + max(p for axis in positions for line in axis for p in line)
        if means["scaling"]["type"] in ("dynamic", "longrope"):
            out["length"] = length
        fill_rope(out, row, positions, length, functions)
    if "softmax_scale" in functions:
        out["softmax_scale"] = number(definition.softmax_scale(means))
    if "attention" in row:
        out["attention"] = filled_attention(row)
    if "move" in row:
        out["move"] = filled_move(row)
    if "permute" in row:
        heads = row["permute"]["heads"]
        rows = [[8 * i + j for j in range(3)] for i in range(heads * means["head_dim"])]
        after = definition.permuted(rows, heads, means)
        out["permute"] = {"heads": heads, "weight": rows, "expected": after}
    if "segments" in row:
        config = row["config"]
        merge, rate = config["spatial_merge_size"], config["tokens_per_second"]
        out["segments"] = row["segments"]
        out["positions"] = definition.grid_positions(row["segments"], merge, rate)
    return out


def fill_rope(out: Row, row: Row, positions: list[Any], length: int, functions: list[str]) -> None:
    """Add frequencies, magnitude, cos and sin, and a rotation to a case."""
    means = row["rope"]
    exact = definition.frequencies(means, length)
    out["inv_freq"] = {
        "float": [_float(w) for w in exact],
        "exact": [mpmath.nstr(w, DIGITS, min_fixed=-60, max_fixed=60) for w in exact],
    }
    out["attention_factor"] = number(definition.magnitude(means))
    if functions == ["from_gguf"]:
        return
    if means["axes"] is not None:
        out["axis_of_pair"] = definition.axis_of_pair(means)
    tokens = [list(zip(*lines, strict=True)) for lines in zip(*positions, strict=True)]
    tables = [[definition.cos_sin(means, list(p), length) for p in line] for line in tokens]
    shown = positions if means["axes"] is not None else positions[0]
    out["positions"] = shown
    out["cos"] = floats([[table[0] for table in line] for line in tables])
    out["sin"] = floats([[table[1] for table in line] for line in tables])
    rotated: Row = {}
    for seed, name in enumerate("qk"):
        scale = row.get(f"{name}_scale", 1)
        x = inputs(len(tokens), len(tokens[0]), means["head_dim"], seed)
        if f"{name}_scale" in row:
            rotated[f"{name}_scale"] = scale
        rotated[name] = x
        rotated[f"{name}_expected"] = floats(
            [
                [
                    [
                        definition.rotate(means, [v * scale for v in token], list(p), length)
                        for token, p in zip(head, line, strict=True)
                    ]
                    for head in heads
                ]
                for heads, line in zip(x, tokens, strict=True)
            ]
        )
    out["rotation"] = rotated


def filled_attention(row: Row) -> Row:
    """Return q, k, v, positions and the result of attention inside each document."""
    means, count = row["rope"], len(PACKED[0])
    axes = 1 if means["axes"] is None else 3
    q, k = (inputs(1, count, means["head_dim"], seed) for seed in (0, 1))
    v = [[[token[:4] for token in head] for head in heads] for heads in inputs(1, count, 8, 3)]
    heads = [
        definition.attention(means, head, k[0][0], v[0][0], PACKED * axes, DOCUMENTS[0])
        for head in q[0]
    ]
    out: Row = dict(row["attention"])
    return out | {
        "positions": PACKED,
        "documents": DOCUMENTS,
        "q": q,
        "k": k,
        "v": v,
        "expected": floats([heads]),
    }


def filled_move(row: Row) -> Row:
    """Return keys at old positions, and the same keys at new ones."""
    means, old, new = row["rope"], row["move"]["old"], row["move"]["new"]
    raw = inputs(1, len(old), means["head_dim"], 1)[0][0]
    # keys as a cache holds them: rotated at the old positions, in short decimal numbers
    cached = [
        [round(_float(value), 6) for value in definition.rotate(means, x, [p])]
        for x, p in zip(raw, old, strict=True)
    ]
    after = [definition.moved(means, x, [a], [b]) for x, a, b in zip(cached, old, new, strict=True)]
    return {"old": [old], "new": [new], "k": [[cached]], "expected": floats([[after]])}


def with_axes(positions: list[Any]) -> list[list[list[int]]]:
    """Return positions as [axes][batch][tokens]; a plain list is one row on one axis."""
    return [[positions]] if isinstance(positions[0], int) else positions


def inputs(batch: int, tokens: int, width: int, seed: int) -> list[Any]:
    """Return [batch][heads][tokens][width] of eighths from -1 to 1, which every float type holds.

    An even seed gives two heads, an odd one gives one.
    """
    return [
        [
            [
                [
                    ((7 * i * i + 13 * i * (s + 1) + 5 * h + 3 * b + 11 * seed) % 17 - 8) / 8
                    for i in range(width)
                ]
                for s in range(tokens)
            ]
            for h in range(2 - seed % 2)
        ]
        for b in range(batch)
    ]


def number(value: Any) -> Row:
    """Return a number as a float and with its digits."""
    return {"float": _float(value), "exact": mpmath.nstr(value, DIGITS)}


def floats(values: Any) -> Any:
    """Return nested lists of exact numbers as floats."""
    return [floats(each) for each in values] if isinstance(values, list) else _float(values)


def _float(value: Any) -> float:
    return float(value) + 0.0  # no negative zero


def text(value: Any, indent: int = 0) -> str:
    """Return JSON with a line for each row of numbers."""
    pad = " " * (indent + 1)
    if isinstance(value, dict) and value and not _is_small(value):
        lines = [f"{pad}{json.dumps(k)}: {text(v, indent + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(lines) + "\n" + pad[1:] + "}"
    if isinstance(value, list) and value and isinstance(value[0], list | dict):
        lines = [pad + text(each, indent + 1) for each in value]
        return "[\n" + ",\n".join(lines) + "\n" + pad[1:] + "]"
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _is_small(value: Row) -> bool:
    return len(json.dumps(value)) < 90


def files() -> dict[str, str]:
    """Return {name: text} of every JSON file but the schema."""
    made = {f"{group['group']}.json": text(document(group)) + "\n" for group in GROUPS}
    index = {
        "$schema": "schema.json",
        "version": VERSION,
        "date": DATE,
        "groups": [group["group"] for group in GROUPS],
    }
    return made | {"index.json": text(index) + "\n"}


def main(arguments: list[str]) -> int:
    """Write the files, or with --check compare them."""
    stale = []
    for name, made in files().items():
        path = FOLDER / name
        if "--check" not in arguments:
            path.write_text(made, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != made:
            stale.append(name)
    print(f"differ: {', '.join(stale)}" if stale else f"{len(GROUPS)} groups")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
