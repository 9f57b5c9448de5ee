"""Run one stack with the vectors, in the process that imports it.

python -m stacks.harness litgpt build/stacks/litgpt.json
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ropewalk_conformance import definition, load, run
from ropewalk_conformance.arrays import maker, to_lists
from ropewalk_conformance.functions import KINDS
from ropewalk_conformance.runner import DIFFERS, NOT_RUN, RAISED, REFUSED, SAME, Report
from stacks import data
from stacks.adapters import NotExpressible

#: what a cell says, by what the runner says of its functions; the first one present counts
OUTCOMES = {
    DIFFERS: "differs",
    RAISED: "refuses",
    SAME: "agrees",
    REFUSED: "not expressible",
}


def adapter_of(name: str) -> ModuleType:
    """Return the adapter of a stack."""
    return importlib.import_module(f"stacks.adapters.{name.lower().replace('-', '_')}")


def functions(adapter: ModuleType, arrays: str) -> dict[str, Callable[..., Any]]:
    """Return the functions for the runner: the rotation, and what else an adapter has."""
    has_parts = "part" in inspect.signature(adapter.rope).parameters
    make = maker(arrays)

    def built(config: Any, rope: Any, part: str | None) -> Callable[[Any, Any], Any]:
        if rope["axes"] and not getattr(adapter, "AXES", False):
            raise NotExpressible("no argument for positions on several axes")
        if part is None:
            return adapter.rope(rope, config)
        if not has_parts:
            raise NotExpressible(f"no model with a rope of its own for {part}")
        return adapter.rope(rope, config, part=part)

    def rotate(
        config: Any, q: Any, k: Any, positions: Any, *, rope: Any, part: str | None = None
    ) -> Any:
        apply = built(config, rope, part)
        return apply(q, positions), apply(k, positions)

    def inv_freq(
        config: Any, *, rope: Any, part: str | None = None, length: int | None = None
    ) -> tuple[list[float], float]:
        """Return frequencies and magnitude, read from unit vectors rotated at position 1."""
        places = definition.places_of(rope)
        at = [1] if length is None else [1, length - 1]
        units = [[[float(i == a) for i in range(rope["head_dim"])]] * len(at) for a, _ in places]
        positions = [[at]] * 3 if rope["axes"] else [at]
        apply = built(config, rope, part)
        out = to_lists(apply(make([units], "float32"), make(positions, "int64")))[0]
        read = places
        if rope["layout"] == "interleaved":
            # the result may be in the order of halves: q.k is the same
            halves = definition.places_of(rope | {"layout": "half"})
            read = max(places, halves, key=lambda each: _size(out, each))
        cos = [row[0][a] for row, (a, _) in zip(out, read, strict=True)]
        sin = [row[0][b] for row, (_, b) in zip(out, read, strict=True)]
        size = sum(map(math.hypot, cos, sin)) / len(places)
        return [math.atan2(s, c) for s, c in zip(sin, cos, strict=True)], size

    more = {name: getattr(adapter, name) for name in KINDS if hasattr(adapter, name)}
    return {"rotate": rotate, "inv_freq": inv_freq} | more


def _size(out: Any, places: Any) -> float:
    """Return how much of the rotated unit vectors is at these places."""
    return sum(abs(row[0][a]) + abs(row[0][b]) for row, (a, b) in zip(out, places, strict=True))


def cells(given: dict[str, Callable[..., Any]], report: Report) -> dict[str, dict[str, Any]]:
    """Return {group/case: its result, and how large a difference is}."""
    mistake_of = {
        id(result): finding.mistake for finding in report.findings for result in finding.results
    }
    by_case: dict[str, list[Any]] = {}
    for each in report.results:
        if each.status != NOT_RUN:
            by_case.setdefault(f"{each.group}/{each.case}", []).append(each)
    found = {}
    for name, results in by_case.items():
        status = next(s for s in OUTCOMES if any(each.status == s for each in results))
        first = next(each for each in results if each.status == status)
        cell: dict[str, Any] = {"result": OUTCOMES[status]}
        if status == DIFFERS:
            names = [mistake_of[id(each)] for each in results if id(each) in mistake_of]
            cell |= {"mistake": names[0] if names else None, "words": first.words}
            cell |= frequencies_off(given["inv_freq"], *name.split("/"))
        elif status != SAME:
            cell["words"] = first.words
        found[name] = cell
    return found


def frequencies_off(inv_freq: Callable[..., Any], group: str, case_id: str) -> dict[str, Any]:
    """Return how many frequencies are off, the first such pair, the factor of the one that is furthest
    off, and the factor of the magnitude.
    """
    case = next(each for each in load(group)["cases"] if each["id"] == case_id)
    keywords = {name: case[name] for name in ("part", "length") if name in case}
    wanted = case["inv_freq"]["float"] if "inv_freq" in case else []
    try:
        got, size = inv_freq(case["config"], rope=case["rope"], **keywords)
    except Exception:  # the runner has recorded how the functions failed
        return {}
    ratios = [a / b if b else 1.0 + abs(a) for a, b in zip(got, wanted, strict=False)]
    off = [i for i, ratio in enumerate(ratios) if abs(ratio - 1) > 1e-5]
    found: dict[str, Any] = {"pairs": len(wanted), "pairs_off": len(off)}
    if any(ratio <= 0 for ratio in ratios):  # read at dimensions that are no pairs there
        return found
    if off:
        worst = max((ratios[i] for i in off), key=lambda r: abs(math.log(r)) if r > 0 else math.inf)
        found |= {"first_pair": off[0], "factor": float(f"{worst:.6g}")}
    magnitude = size / case["attention_factor"]["float"]
    if abs(magnitude - 1) > 1e-5:
        found["magnitude"] = float(f"{magnitude:.6g}")
    return found


def measure(name: str, groups: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """Return the cells of a stack that can be imported here."""
    row = data.row(name)
    adapter = adapter_of(name)
    given = functions(adapter, row["arrays"])
    return cells(given, run(arrays=row["arrays"], groups=groups, **given))


def main() -> None:
    name, path = sys.argv[1:]
    found = measure(name)
    Path(path).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
