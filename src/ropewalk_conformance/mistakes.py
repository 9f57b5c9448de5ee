"""Mistakes by name: the wrong rope whose numbers are those that a function returned.

Words of this module:
  switches    what a mistake changes in `definition`, such as {"ramp": "inverted"}
  group       a file of vectors about one subject, with its cases and its tolerance
  case        what a function was called with and what it must return; "before" in a case is another
              config that the function was called with first
  kind        which function it is, how it is called and its result is read
  stale       numbers that a cache kept from an earlier call with another rope
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from ropewalk.caches import cached
from ropewalk_conformance import definition
from ropewalk_conformance.functions import OF_ROPE, Case, Kind, Numbers

#: switches that change the parameters of a rope and nothing else
PARAMETERS = OF_ROPE - {"rope", "part"} | {"layout", "slice"}


@dataclass(frozen=True)
class RotationMistake:
    """One row of mistakes.toml.

    change  the switches of `definition` that make the wrong rope
    words   what the code does, in a sentence; `fix`: how to mend it
    groups  the groups in which it is tried; empty: all
    common  whether it is also tried together with another common one

    The change `per_radian` is a coarser angle: the numbers are the right ones within that error.
    """

    name: str
    change: dict[str, Any] = field(hash=False)
    words: str
    fix: str
    groups: tuple[str, ...] = ()
    common: bool = False
    #: of two mistakes at once: these two
    parts: tuple[RotationMistake, ...] = ()

    def __add__(self, other: RotationMistake) -> RotationMistake:
        """Return the two mistakes at once; it is tried in all groups."""
        return RotationMistake(
            f"{self.name} + {other.name}",
            self.change | other.change,
            f"{self.words} {other.words}",
            f"{self.fix} {other.fix}",
            parts=(self, other),
        )


@cached("conformance mistakes", entries=1)
def mistakes() -> tuple[RotationMistake, ...]:
    """Return every mistake that has a name."""
    text = (Path(__file__).parent / "mistakes.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["mistake"]
    return tuple(RotationMistake(**row | {"groups": tuple(row.get("groups", ()))}) for row in rows)


@cached("pairs of conformance mistakes", entries=1)
def _pairs() -> tuple[RotationMistake, ...]:
    """Return every two common mistakes that change different things."""
    common = [row for row in mistakes() if row.common]
    return tuple(a + b for a, b in combinations(common, 2) if not a.change.keys() & b.change.keys())


def agree(found: Numbers, wanted: Numbers, allowed: Numbers) -> bool:
    """Return whether every number found is as near to the wanted one as allowed."""
    # a function of frequencies may leave the magnitude out, which comes last
    if len(found) not in (len(wanted), len(wanted) - 1) or not found:
        return False
    # a mistake made a rope of another width, whose numbers have no limits of their own: the largest
    # limit serves for all, but at most 1e-4
    if len(allowed) != len(wanted):
        allowed = [max(allowed)] * len(wanted) if allowed else []
        allowed = [min(limit, 1e-4) for limit in allowed]
    # a NaN is near nothing
    return all(abs(a - b) <= limit for a, b, limit in zip(found, wanted, allowed, strict=False))


@dataclass
class EntryDifference:
    """A result and its case: what is needed to compare it with the vectors and with mistakes.

    group      the name of the group of vectors that the case belongs to
    readings   the numbers of the result, once for each way in which it may be meant
    tolerance  that of the group
    dtype      the coarsest type of the arrays
    """

    group: str
    case: Case
    kind: Kind
    readings: list[Numbers]
    tolerance: Case
    dtype: str
    #: the ropes that the function was called with before
    earlier: list[Any] = field(default_factory=list)
    #: name of a mistake -> what `is_unaffected_by` has found
    _unaffected: dict[str, bool] = field(default_factory=dict)

    @cached_property
    def allowed(self) -> Numbers:
        """How far each number may be off."""
        return self.kind.allowed(self.case, self.tolerance, self.dtype)

    def is_right(self) -> bool:
        """Return whether the numbers are those of the vectors."""
        return self._agrees(self.kind.expected(self.case), self.allowed)

    def _agrees(self, wanted: Numbers, allowed: Numbers) -> bool:
        """Return whether one of the readings agrees with the wanted numbers."""
        return any(agree(found, wanted, allowed) for found in self.readings)

    def fits(self, mistake: RotationMistake) -> bool:
        """Return whether a mistake explains these numbers: it is tried in this group, it would
        change the right numbers, and it gives the found ones.
        """
        if mistake.groups and self.group not in mistake.groups:
            return False
        if any(self.is_unaffected_by(each) for each in mistake.parts or (mistake,)):
            return False
        if "per_radian" in mistake.change:  # the right numbers, with a coarser angle
            # the change has the key and the number of this coarser tolerance
            coarse = self.kind.allowed(self.case, self.tolerance | mistake.change, self.dtype)
            return self._agrees(self.kind.expected(self.case), coarse)
        try:
            # the first numbers are compared before all of them are computed, which takes longer
            first = self.kind.probe(self.case, mistake.change)
            if first and not self._begins_with(first):
                return False
            wanted = self.kind.predicted(self.case, mistake.change)
        except (ArithmeticError, ValueError, LookupError):  # the mistake makes no rope of this case
            return False
        return self._agrees(wanted, self.allowed)

    def _begins_with(self, first: Numbers) -> bool:
        """Return whether a reading begins with these numbers."""
        count = len(first)
        return any(agree(found[:count], first, self.allowed[:count]) for found in self.readings)

    def is_unaffected_by(self, mistake: RotationMistake) -> bool:
        """Return whether a mistake would not change this result."""
        if mistake.name not in self._unaffected:
            switches = mistake.change.keys()
            # numbers that one of the switches cannot change do not show the mistake
            unaffected = not switches <= self.kind.depends_on
            # a changed parameter may have the value that the rope has already. Factors chosen "per
            # position" show in tables alone, and `same_rope` compares frequencies
            if (
                not unaffected
                and switches <= PARAMETERS
                and "per_position" not in mistake.change.values()
            ):
                length = self.case.get("length")
                unaffected = definition.same_rope(self.case["rope"], length, mistake.change)
            self._unaffected[mistake.name] = unaffected
        return self._unaffected[mistake.name]

    def contradicts(self, mistake: RotationMistake) -> bool:
        """Return whether this result, which is right, shows that a project does not make a mistake:
        the mistake would have changed it.
        """
        if mistake.groups and self.group not in mistake.groups:
            return False
        unaffected = all(self.is_unaffected_by(each) for each in mistake.parts or (mistake,))
        return not unaffected and not self.fits(mistake)

    def singles(self) -> list[RotationMistake]:
        """Return the mistakes that explain these numbers, each on its own."""
        return [mistake for mistake in mistakes() if self.fits(mistake)]

    def candidates(self) -> list[RotationMistake]:
        """Return what may explain these numbers: single mistakes that are limited to groups with
        this one; if there are none, any single mistakes; if there are none, two common ones at once.
        """
        found = self.singles()
        narrow = [mistake for mistake in found if mistake.groups]
        # two mistakes at once only if no single one explains the numbers
        return narrow or found or [mistake for mistake in _pairs() if self.fits(mistake)]

    def is_like(self, other: EntryDifference) -> bool:
        """Return whether another result is of the same function and scaling, and `other` has no call
        before it.
        """
        kinds = [each.case["rope"]["scaling"]["type"] for each in (self, other)]
        return self.kind is other.kind and kinds[0] == kinds[1] and "before" not in other.case

    def is_stale(self) -> bool:
        """Return whether the numbers are those of one of the `earlier` ropes."""
        for rope in self.earlier:
            try:
                wanted = self.kind.predicted(self.case, {"rope": rope})
            except (ArithmeticError, ValueError, LookupError):  # that rope does not fit this case
                continue
            if self._agrees(wanted, self.allowed):
                return True
        return False


def explain(
    differences: Sequence[EntryDifference], same: Iterable[EntryDifference]
) -> tuple[list[tuple[RotationMistake, list[EntryDifference]]], list[EntryDifference]]:
    """Return few mistakes that explain the differences, each with those that it explains, and the
    differences that none explains. `same` are the results that are right.

    In its groups, a mistake that is limited to groups comes before all others. Then the mistake
    that explains most of the differences comes first; among equals the one that the fewest right
    results contradict, then the earlier row. Where a case shows that results of an earlier config
    return, other cases are compared with earlier configs too.
    """
    right = list(same)
    fits = {
        id(each): _after_another(each, differences, right)
        for each in differences
        if "before" in each.case
    }
    stale = [mistake for found in fits.values() for mistake in found if _is_stale(mistake)]
    for each in differences:
        if id(each) not in fits:
            fits[id(each)] = stale[:1] if stale and each.is_stale() else each.candidates()
    left = list(differences)
    found: list[tuple[RotationMistake, list[EntryDifference]]] = []
    while any(fits[id(each)] for each in left):
        counts: dict[RotationMistake, int] = {}
        for each in left:
            for mistake in fits[id(each)]:
                counts[mistake] = counts.get(mistake, 0) + 1
        most = max(counts.values())
        best = [mistake for mistake, count in counts.items() if count == most]
        if len(best) > 1:
            best.sort(key=lambda mistake: sum(each.contradicts(mistake) for each in right))
        mistake = best[0]
        explained = [each for each in left if mistake in fits[id(each)]]
        found.append((mistake, explained))
        left = [each for each in left if mistake not in fits[id(each)]]
    return found, left


def _is_stale(mistake: RotationMistake) -> bool:
    """Return whether the mistake is that the numbers of an earlier config return."""
    return mistake.change.get("rope") == "before"


def _after_another(
    each: EntryDifference, differences: Sequence[EntryDifference], right: Sequence[EntryDifference]
) -> list[RotationMistake]:
    """Return what may explain the result `each`, which follows a call with another config;
    `differences` are all results that differ, `right` those that do not.

    A mistake that also occurs without the other call explains it better than a stale table does.
    Mistakes that are limited to groups are left out of these: they may be about just such calls.
    """
    # `is_like`: same function and scaling, and `other` follows no other call
    always = [
        mistake
        for mistake in each.singles()
        if not mistake.groups
        and any(each.is_like(other) and other.fits(mistake) for other in differences)
        and not any(other.contradicts(mistake) for other in right if each.is_like(other))
    ]
    return always or each.candidates()
