"""The runner: calls a project's functions with the vectors and says in words what differs.

Words of this module:
  group       a file of vectors about one subject, such as "yarn", with its tolerance and its cases
  case        what a function is called with and what it must return
  function    the name of a function that a project gives, a key of KINDS, which says how a function
              of this kind is called and its result is read
  finding     a mistake with a name that explains some of the results
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.safe_text import shown
from ropewalk_conformance import vectors
from ropewalk_conformance.arrays import ROUNDING, dtype_of, library_of, maker
from ropewalk_conformance.functions import KINDS, Case, Kind, Numbers
from ropewalk_conformance.mistakes import EntryDifference, explain

SAME, DIFFERS, RAISED, REFUSED, NOT_RUN = "same", "differs", "raised", "refused", "not run"


@dataclass
class Result:
    """What one function gave for one case.

    status  same, differs, raised, refused (NotImplementedError) or not run
    words   what differs, or why it was not run
    level   required or optional: whether a difference counts as a failure
    """

    group: str
    case: str
    function: str
    status: str
    words: str = ""
    level: str = "required"

    @property
    def name(self) -> str:
        """The case with its group and function."""
        return f"{self.group}/{self.case}, {self.function}"


@dataclass
class NamedMistake:
    """A mistake by name, in words, how to mend it (`fix`), and the results that it explains."""

    mistake: str
    words: str
    fix: str
    results: list[Result]


@dataclass
class Report:
    """The results of a run, and the mistakes that explain them."""

    version: str
    date: str
    results: list[Result]
    findings: list[NamedMistake]

    @property
    def failures(self) -> list[Result]:
        """Results that differ or raised an error; optional groups count only if `run` was given
        their names.
        """
        return [
            each
            for each in self.results
            if each.status in (DIFFERS, RAISED) and each.level == "required"
        ]

    @property
    def passed(self) -> bool:
        """Whether there are no failures, and at least one result is the same."""
        return not self.failures and any(each.status == SAME for each in self.results)

    def of(self, status: str) -> list[Result]:
        """Return the results with a status."""
        return [each for each in self.results if each.status == status]

    @property
    def unexplained(self) -> list[Result]:
        """Results that differ and that no known mistake explains."""
        known = {id(each) for finding in self.findings for each in finding.results}
        return [each for each in self.of(DIFFERS) if id(each) not in known]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "version": self.version,
            "date": self.date,
            "passed": self.passed,
            "counts": {
                status: len(self.of(status)) for status in (SAME, DIFFERS, RAISED, REFUSED, NOT_RUN)
            },
            "findings": [
                {
                    "mistake": each.mistake,
                    "words": each.words,
                    "fix": each.fix,
                    "cases": [result.name for result in each.results],
                }
                for each in self.findings
            ],
            "results": [vars(each) for each in self.results],
        }

    def __str__(self) -> str:
        counts = [
            f"{len(found)} {'different' if status == DIFFERS else status}"
            for status in (SAME, DIFFERS, RAISED, REFUSED, NOT_RUN)
            if (found := self.of(status))
        ]
        lines = [f"Conformance vectors {self.version} of {self.date}: {', '.join(counts)}."]
        for finding in self.findings:
            lines += ["", f"{finding.mistake}: {finding.words}", f"  fix: {finding.fix}"]
            lines += _shortened([f"  {each.name}: {each.words}" for each in finding.results])
        if self.unexplained:
            lines += ["", "No known mistake gives these numbers:"]
            lines += _shortened([f"  {each.name}: {each.words}" for each in self.unexplained], 12)
        for status in (RAISED, REFUSED):
            if found := self.of(status):
                lines += ["", f"{status}:"]
                lines += _shortened([f"  {each.name}: {each.words}" for each in found], 8)
        if found := self.of(NOT_RUN):
            reasons: dict[str, list[str]] = {}
            for each in found:
                reasons.setdefault(each.words, []).append(each.group)
            lines += ["", "not run:"]
            lines += [
                f"  {', '.join(dict.fromkeys(names))}: {words}" for words, names in reasons.items()
            ]
        return "\n".join(lines)


def _shortened(lines: list[str], most: int = 4) -> list[str]:
    """Return the first `most` lines, and one that counts the others if there are more."""
    more = len(lines) - most
    return lines if more <= 0 else [*lines[:most], f"  ... and {more} more"]


def run(
    module: Any = None,
    *,
    groups: str | Iterable[str] | None = None,
    arrays: str | None = None,
    dtype: str = "float32",
    **functions: Callable[..., Any],
) -> Report:
    """Call a project's functions with the vectors and return a report.

    module     an object with some of the functions; or give them by name
    functions  inv_freq, cos_sin, rotate, softmax_scale, attention, move, permute,
               mrope_positions, from_gguf: see KINDS for what each takes and returns
    groups     names of groups, as a list or in one string; by default all. An optional group that is
               named here counts as required
    arrays     the library of the arrays that are passed in: torch, jax, mlx, numpy or list; by
               default the one that the function's module imports
    dtype      the type of q, k, v, cached keys and weights that are passed in
    """
    given = _functions(module, functions)
    names = groups.replace(",", " ").split() if isinstance(groups, str) else groups
    chosen = list(names) if names is not None else vectors.groups()
    results: list[Result] = []
    differing: list[tuple[Result, EntryDifference]] = []
    same: list[EntryDifference] = []
    earlier: dict[str, list[Any]] = {function: [] for function in given}
    for name in chosen:
        group = vectors.load(name)
        known = [each for each in group["functions"] if each in given]
        if not known:
            words = f"needs {' or '.join(group['functions'])}"
            results.append(Result(name, "", "", NOT_RUN, words, group["level"]))
        for case in group["cases"]:
            for function in known:
                result, difference = _run_case(
                    group, case, function, given[function], arrays, dtype
                )
                if names is not None:  # a group that is named is required
                    result.level = "required"
                results.append(result)
                if difference is not None:
                    difference.earlier = list(earlier[function])
                # added after `earlier` was copied, because only later cases can get numbers that a
                # cache kept of these ropes; a case with a call `before` has two
                for rope in (case.get("before", case)["rope"], case["rope"]):
                    if rope not in earlier[function]:
                        earlier[function].append(rope)
                if difference is not None and result.status == DIFFERS:
                    differing.append((result, difference))
                elif difference is not None:
                    same.append(difference)
    index = vectors.index()
    return Report(index["version"], index["date"], results, _mistakes(differing, same))


def _mistakes(
    differing: list[tuple[Result, EntryDifference]], same: list[EntryDifference]
) -> list[NamedMistake]:
    """Return the mistakes that explain the differences, each with the results it explains; a
    difference that none explains is left out. `same` are the results that are right.
    """
    result_of = {id(difference): result for result, difference in differing}
    found, _ = explain([difference for _, difference in differing], same)
    return [
        NamedMistake(
            mistake.name, mistake.words, mistake.fix, [result_of[id(d)] for d in explained]
        )
        for mistake, explained in found
    ]


def _functions(module: Any, functions: Mapping[str, Any]) -> dict[str, Callable[..., Any]]:
    """Return the functions that a project gives, by name; raise an error if there are none, or for
    an unknown name.
    """
    found = {name: getattr(module, name) for name in KINDS if callable(getattr(module, name, None))}
    found |= functions
    unknown = [name for name in found if name not in KINDS]
    if unknown or not found:
        rule = f"must be among {', '.join(KINDS)}"
        raise RopeError("functions", rule, ", ".join(unknown) or "none of them")
    return found


def _run_case(
    group: Case, case: Case, name: str, function: Callable[..., Any], arrays: str | None, dtype: str
) -> tuple[Result, EntryDifference | None]:
    """Call one function with one case; return the result, and what compares the returned numbers
    with the expected ones; None if no numbers were returned.

    name           the kind of function, a key of KINDS
    arrays, dtype  as for `run`
    """
    kind = KINDS[name]
    result = Result(group["group"], case["id"], name, SAME, level=group["level"])
    try:
        make = maker(arrays or library_of(function))
        call = _call(kind, case, function, make, dtype)
        if isinstance(call, str):
            result.status, result.words = NOT_RUN, call
            return result, None
    except (OverflowError, RuntimeError) as error:  # positions that the library cannot hold
        result.status, result.words = NOT_RUN, f"no such array here: {_line(error)}"
        return result, None
    try:
        returned = call()
        # the numbers, once for each way in which they may be meant, such as in either layout; the
        # result is right if one of them is, and `words` are about the first
        readings = kind.readings(case, returned)
    except NotImplementedError as error:
        result.status, result.words = REFUSED, _line(error)
        return result, None
    except Exception as error:
        result.status, result.words = RAISED, f"{type(error).__name__}: {_line(error)}"
        return result, None
    # the tolerance is that of the coarser dtype, of what went in or of what came out
    coarsest = dtype_of(returned)
    if kind.takes_vectors and ROUNDING.get(dtype, 0.0) > ROUNDING.get(coarsest, 0.0):
        coarsest = dtype
    difference = EntryDifference(group["group"], case, kind, readings, group["tolerance"], coarsest)
    if not difference.is_right():
        result.status = DIFFERS
        result.words = _worst(kind, case, readings[0], kind.expected(case), difference.allowed)
    return result, difference


def _call(
    kind: Kind, case: Case, function: Callable[..., Any], make: Callable[..., Any], dtype: str
) -> Callable[[], Any] | str:
    """Return a function without arguments that calls `function` with a case, or why it cannot be
    called.

    If the case has a call `before`, that call is made first, so that a table which stays from it
    changes the result.
    """
    arguments, keywords = kind.arguments(case, make, dtype)
    taken = _taken(function)
    # without a keyword that the case needs, such as `part`, the function cannot know what is asked
    missing = [
        name for name in kind.needs if name in keywords and taken is not None and name not in taken
    ]
    if missing:
        return f"the function takes no keyword {' and '.join(missing)}"
    passed = {name: value for name, value in keywords.items() if taken is None or name in taken}
    before = case.get("before")
    if before is None:
        return lambda: function(*arguments, **passed)
    earlier = case | {"config": before["config"], "rope": before["rope"]}
    # the only dtype that a case may name is "half precision", which is bfloat16 here
    first_dtype = "bfloat16" if "dtype" in before else dtype
    first_arguments, _ = kind.arguments(earlier, make, first_dtype)
    first_passed = passed | ({"rope": before["rope"]} if "rope" in passed else {})

    def call() -> Any:
        function(*first_arguments, **first_passed)
        return function(*arguments, **passed)

    return call


def _taken(function: Callable[..., Any]) -> set[str] | None:
    """Return the names of the keywords that a function takes; None if it takes any."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin: its keywords cannot be read, so it gets none
        return set()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return None
    return {each.name for each in parameters}


def _worst(kind: Kind, case: Case, found: Numbers, expected: Numbers, allowed: Numbers) -> str:
    """Return in words where the found numbers differ most from the expected ones, in units of what
    is allowed.
    """
    # the magnitude, the last number of frequencies, may be left out
    if len(found) not in (len(expected), len(expected) - 1):
        return f"{len(found):,} numbers, expected {len(expected):,}"
    off = [
        (i, abs(a - b) / limit if limit else abs(a - b))
        for i, (a, b, limit) in enumerate(zip(found, expected, allowed, strict=False))
    ]
    if any(value != value for value in found):  # only NaN differs from itself
        return "NaN"
    index = max(off, key=lambda each: each[1])[0]
    wrong = sum(abs(a - b) > limit for a, b, limit in zip(found, expected, allowed, strict=False))
    got, wanted = found[index], expected[index]
    ratio = f" (x {got / wanted:.4g})" if abs(wanted) > 1e-12 else ""
    return (
        f"{kind.label(case, index)} is {got:.9g}, expected {wanted:.9g}{ratio}; "
        f"{wrong:,} of {len(found):,} numbers differ"
    )


def _line(error: BaseException) -> str:
    """Return the text of an error on one line, at most 200 characters."""
    return shown(" ".join(str(error).split())[:200])


__all__ = ["DIFFERS", "NOT_RUN", "RAISED", "REFUSED", "SAME", "NamedMistake", "Report", "run"]
