"""The rules of the engines: a data file for each release of an engine, read and applied to a case.

A file names its engine, the families whose code was read, and rows. A row says when it applies
(families, scalings, config keys, named conditions), what the engine then does (`then`, one of
OPERATIONS) and where that is written. Rows apply in order; of rows with the same `chain` only the
first that matches does. The file of a release may name another release with `extends`: a row
with the `id` of a row of that release replaces it, and other rows come after those of that release.

Words of this module:
  row       a table of a rules file; a row of "rule" is a `Rule`
  family    a model_type, as configs name it
  case      one layer type of a config and how it is served, a `ServedLayer`
  reading   what the engine computes for a case as far as the rows have applied, an `EngineReading`
  problem   why a reading has no result: "refused: ..." or "not known: ..."
  part      the name of a group of rows that other engines may apply by themselves; WHOLE is that of
            rows about what a config class refuses
  reason    why `from_hf` refuses a config, one of REASONS in unread.py
  releases  {engine: its release}, for rows that apply the rules of another engine
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ropewalk.caches import cached
from ropewalk.engines.case import OUTER_ARCHITECTURES, OUTER_TYPE, ServedLayer
from ropewalk.engines.conditions import CONDITIONS
from ropewalk.engines.reading import EngineReading, EngineRule
from ropewalk.engines.registries import registry_of
from ropewalk.engines.rope_faults import (
    ROPES,
    all_ropes,
    fits_fraction,
    has_three_sections,
    name_of,
)
from ropewalk.engines.taken_as import TAKEN_AS
from ropewalk.engines.unread import OTHER, REASONS, USUAL, usual
from ropewalk.errors import RopeError

FOLDER = Path(__file__).parent / "rules"
#: the line of a rules file that names its engine
ENGINE_LINE = re.compile(r'^engine = "([^"]*)"', re.MULTILINE)
#: the scalings whose rules are in the files
SCALINGS_READ = [
    "default",
    "linear",
    "dynamic",
    "yarn",
    "longrope",
    "llama3",
    "proportional",
    "ntk",
]

#: the `part` of rows about what a config class refuses before any rope is built; they hold for the
#: engines that use the class too
WHOLE = "whole config"
#: the `part` of rows about errors in the forward of transformers, which other engines do not run
FORWARD = "forward"
#: {type of a value, in the words of errors: whether a value has it}, as config classes check it
TYPES: dict[str, Callable[[Any], bool]] = {
    "an integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "an integer above 0": lambda value: TYPES["an integer"](value) and value > 0,
    "an integer above 0 or null": lambda value: value is None or TYPES["an integer above 0"](value),
    "an integer or null": lambda value: value is None or TYPES["an integer"](value),
    "true or false": lambda value: isinstance(value, bool),
    "a list of integers": lambda value: (
        value is None or (isinstance(value, list) and all(map(TYPES["an integer"], value)))
    ),
    # a row with `names` has the known ones
    "a list of known layer types": lambda value: value is None or isinstance(value, list),
}

#: {engine: the release whose rules are used}
Releases = Mapping[str, "Release"]
#: what a row can do; filled by `operations`
OPERATIONS: dict[str, Callable[[EngineReading, Rule, Release, Releases], None]] = {}


@dataclass(frozen=True)
class Rule:
    """One row of a rules file.

    The row applies if all of its conditions hold:

    family, not_family    the model types
    scaling, not_scaling  the scaling that the engine has read so far
    layer_type            the layer type
    when                  CONDITIONS, "not NAME" for the opposite
    given                 config keys that all have a value; `lacks`: keys of which at least one is
                          absent or null
    null                  keys of the rope of which at least one is written as null
    is_, is_not           {config key: values of which it has one, or none}; in a file `is`

    then                  what the engine does, one of OPERATIONS, and `values`, its parameters
    about, says, source   the topic, what the engine does in words, and the file in its sources
    id                    the name by which a file with `extends` replaces the row
    part                  the name of a group of rows that other engines may apply by themselves
    chain                 of the rows with this name only the first that matches applies
    """

    then: str
    about: str = ""
    says: str = ""
    source: str = ""
    id: str = ""
    part: str = ""
    chain: str = ""
    family: frozenset[str] | None = None
    not_family: frozenset[str] = frozenset()
    scaling: frozenset[str] | None = None
    not_scaling: frozenset[str] = frozenset()
    layer_type: str | None = None
    when: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    null: tuple[str, ...] = ()
    is_: Mapping[str, list[Any]] = field(default_factory=dict)
    is_not: Mapping[str, list[Any]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)

    def matches(self, reading: EngineReading) -> bool:
        """Return whether the row applies to what the engine has read so far."""
        case, scaling = reading.case, reading.spec.scaling.name
        value = case.value
        return (
            (self.family is None or case.model_type in self.family)
            and case.model_type not in self.not_family
            and (self.scaling is None or scaling in self.scaling)
            and scaling not in self.not_scaling
            and self.layer_type in (None, case.layer_type)
            and all(_holds(name, reading) for name in self.when)
            and all(value(path) is not None for path in self.given)
            and (not self.lacks or any(value(path) is None for path in self.lacks))
            and (not self.null or self.first_null(case) is not None)
            and all(value(path) in allowed for path, allowed in self.is_.items())
            and all(value(path) not in refused for path, refused in self.is_not.items())
        )

    @property
    def is_about_family(self) -> bool:
        """Whether the row is about certain families, whatever their rope and other keys are; it may
        also demand that the config is not multimodal.
        """
        others = (self.scaling, self.not_scaling, self.layer_type, self.given, self.lacks)
        written = (self.null, self.is_, self.is_not)
        return (
            self.family is not None
            and not any(others)
            and not any(written)
            and set(self.when) <= {"not in a multimodal config"}
        )

    def first_null(self, case: ServedLayer) -> str | None:
        """Return the first key of `null` that the rope writes as null; None if there is none."""
        rope = case.rope_with_nulls
        return next((key for key in self.null if key in rope and rope[key] is None), None)

    def text(self, reading: EngineReading, **more: Any) -> str:
        """Return what the engine does in words, with the values of the case in it."""
        case = reading.case
        names = {
            "model_type": case.model_type,
            "rope_type": case.rope_type,
            "null": self.first_null(case),
            "head_dim": reading.spec.head_dim,
            "pairs": reading.spec.pairs,
            "factors": len(getattr(case.spec.scaling, "long_factor", ())),
            **more,
        }
        return self.says.format(**names)


def _has_type(value: Any, row: Mapping[str, Any]) -> bool:
    """Return whether a value has the type that a row of `types` demands and, if the row lists names,
    is null or a list of some of these names.
    """
    names = row.get("names")
    return TYPES[row["is"]](value) and (
        names is None or value is None or all(each in names for each in value)
    )


def _holds(condition: str, reading: EngineReading) -> bool:
    """Return whether a condition of CONDITIONS holds; "not " before its name negates it."""
    name = condition.removeprefix("not ")
    return CONDITIONS[name](reading) != (name != condition)


@dataclass(frozen=True)
class Release:
    """One release of an engine: what its rules file says.

    engine    its name in `audit`; `title`: its name in texts
    version   the release whose code was read; `read`: when
    families  the model types whose code was read; of all others nothing is known
    rules     the rows of the file, in their order
    length    whether and how the engine multiplies the served length by a factor
    models    {model type: what the engine's model class reads}, for mlx-lm
    scalings  {rope_type: the scaling that it is, its keys and their defaults}, for mlx-lm
    not_known what is not known of a family that was not read, in words
    lists     {name: model types}, for rows that name a list as "@name"
    unread    rows about configs that `from_hf` refuses, see unread.py
    needs     {model type: keys of the config that its class demands}, for mlx-lm
    nulls_refused  {key of the config: families whose config class takes no null for it}
    types     keys of the config whose values the config class checks: rows with `keys`, the type
              `is`, for a list the `names` that it may have, `needed` if a config must have the keys,
              and, unless all classes have them, the `families` or `not_families`
    nulls     keys of a rope whose null the rules are about
    code      the model types that the engine can load, and what it says of others
    served    {model type: the served length that its config class has if a config gives none}
    text_types {model type of a whole config: that of its text_config if it names none}
    """

    engine: str
    title: str
    version: str
    read: str
    families: frozenset[str]
    rules: tuple[Rule, ...]
    length: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    scalings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    not_known: str = "how {title} builds the rope of {model_type}"
    lists: Mapping[str, list[str]] = field(default_factory=dict)
    unread: tuple[Mapping[str, Any], ...] = ()
    needs: Mapping[str, list[str]] = field(default_factory=dict)
    nulls: tuple[str, ...] = ()
    nulls_refused: Mapping[str, list[str]] = field(default_factory=dict)
    types: tuple[Mapping[str, Any], ...] = ()
    code: Mapping[str, Any] = field(default_factory=dict)
    served: Mapping[str, int] = field(default_factory=dict)
    text_types: Mapping[str, str] = field(default_factory=dict)

    def take(
        self,
        config: Mapping[str, Any],
        why: Iterable[str],
        same: Callable[[Mapping[str, Any], Mapping[str, Any]], bool],
    ) -> tuple[Mapping[str, Any] | str, list[EngineRule]]:
        """Return the config that the engine takes this one for, or the text of its problem with it,
        and the rules that say so.

        why   the REASONS for which `from_hf` refuses the config; a row of `unread` says what the
              engine does with one
        same  a function of two configs: whether the engine computes the same from both
        """
        notes: list[EngineRule] = []
        for reason in why:
            if not REASONS[reason](config):  # gone with an earlier reason
                continue
            rows = (row for row in self.unread if row["reason"] == reason)
            model_type = config.get("model_type")
            families = (
                row
                for row in rows
                if model_type in row.get("family", self.families)
                and model_type not in row.get("not_family", ())
                and row.get("three", has_three_sections(config)) == has_three_sections(config)
                and ("name" not in row or row["name"] == name_of(config.get("rope_scaling") or {}))
                and not _has_name(config, row.get("not_names", ()))
                and all(
                    key in (config.get("rope_scaling") or {}) for key in row.get("scaling_keys", ())
                )
                and (
                    "rope_lacks" not in row
                    or any(row["rope_lacks"] not in rope for rope in all_ropes(config))
                )
                and ("names" not in row or _has_name(config, row["names"]))
                and not (row.get("no_rope") and any(config.get(key) for key in ROPES))
                and ("given" not in row or config.get(row["given"]) is not None)
                and ("lacks" not in row or config.get(row["lacks"]) is None)
                and ("null" not in row or config.get(row["null"], 0) is None)
                and not (row.get("alone") and "model_type_outside" in config)
                and not (row.get("of_fraction") and not fits_fraction(config))
                and not any(row.get("lacks_in_rope", "") in rope for rope in all_ropes(config))
            )
            row = next(families, {})  # the first that is about such a config
            # an engine that raises no error in any case may not even read the faulty value: then it
            # computes the same with two values in its place, USUAL and OTHER
            if reason in OTHER and not row.get("always") and "as" not in row:
                taken, other = TAKEN_AS[USUAL[reason]](config), TAKEN_AS[OTHER[reason]](config)
                if same(usual(taken), usual(other)):  # the engine does not read the value
                    config = taken
                    continue
            if not row:
                return f"not known: what {self.title} does with a {reason}", []
            if "as" not in row:
                return f"refused: {row['says']}", []
            taken = TAKEN_AS[row["as"]](config)
            # `fits`: the value, as the engine takes it, must fit the rest of the config, if it is
            # read
            if row.get("fits") and REASONS[reason](taken):
                taken, other = TAKEN_AS[USUAL[reason]](config), TAKEN_AS[OTHER[reason]](config)
                if not same(usual(taken), usual(other)):
                    return f"refused: {row['says']}", []
            notes.append(EngineRule(reason, row["says"], row["source"], self.read))
            config = taken
        return config, notes

    def has_no_model(self, case: ServedLayer, releases: Releases) -> EngineReading | None:
        """Return a reading with a problem if the engine refuses the config before it builds a rope:
        it has no model for it, or its config class does not take it. None if it does not.
        """
        reading = self._reading(case)
        if (missing := self.cannot_load(case, releases)) is not None:
            # a checkpoint with code of its own runs that code, if the user allows it
            own_code = self.code.get("remote") and case.config.get("auto_map")
            kind = "not known" if own_code else "refused"
            return reading.fail(f"{kind}: {self.code['says'].format(model_type=missing)}")
        if (
            case.model_type is None
            and self.code.get("types_of")
            and CONDITIONS["whole config"](reading)
        ):
            return reading.fail("refused: the config has no model_type")
        # of the rows that refuse, only those that need no knowledge of the rope
        for rule in self.rules:
            if rule.then == "refuse" and rule.is_about_family and rule.matches(reading):
                return reading.fail(f"refused: {rule.text(reading)}")
            # the rules of the rope are applied to a config that `from_hf` reads, and these rows are
            # about the config as it is written
            is_written = rule.then in (
                "refuse without needed keys",
                "refuse above the served length",
            )
            if is_written and rule.matches(reading):
                OPERATIONS[rule.then](reading, rule, self, releases)
                if reading.problem is not None:
                    return reading
        # the engine whose config classes read the config, and the engine itself
        classes = releases.get(self.code.get("types_of", ""), self)
        for each in (classes, self):
            for rule in each.rules:
                if rule.part == WHOLE and rule.matches(reading):
                    return reading.fail(f"refused: {rule.text(reading)}")
            for key, kind in each.wrong_types(case):  # the first one is reported
                return reading.fail(f"refused: {key} must be {kind}")
        return None

    def wrong_types(self, case: ServedLayer) -> Iterator[tuple[str, str]]:
        """Yield (key, type) for keys of a config whose values its config class refuses, or which it
        needs and does not have; the type is a name of TYPES.
        """
        if case.model_type not in self.families:
            return
        # the keys of a rope alone are no config that lacks a needed key
        is_whole = CONDITIONS["whole config"](EngineReading(case))
        for row in self.types:
            families = row.get("families", self.families)
            if case.model_type in families and case.model_type not in row.get("not_families", ()):
                for key in row["keys"]:
                    if key not in case.config and row.get("needed") and is_whole:
                        yield key, row["is"]
                    if key in case.config and not _has_type(case.config[key], row):
                        yield key, row["is"]

    def loads(self, releases: Releases) -> frozenset[str]:
        """Return the model types or architectures that the engine can load; empty if that was not
        read.
        """
        # those of the engine `of`, whose classes this one uses, but `without` some, and its own
        other = releases.get(self.code.get("of", ""))
        base = other.loads(releases) if other is not None else frozenset()
        return (base - {*self.code.get("without", ())}) | {*self.code.get("names", ())}

    def cannot_load(self, case: ServedLayer, releases: Releases) -> str | None:
        """Return the model type, or the architecture, of a config that the engine has no code for;
        None if it has some, or if that was not read. The model type of the whole config comes
        first; only some engines read that of its text model too.
        """
        whole = case.config.get(OUTER_TYPE)
        known = self.loads(releases)
        if not known:
            return None
        if self.code.get("key") == "architectures":
            # llama.cpp's converter takes the architecture of the text model, if it names one
            names = case.config.get("architectures") or case.config.get(OUTER_ARCHITECTURES)
            name = names[0] if isinstance(names, list) and names else None
            return None if name is None or str(name) in known else str(name)
        if (outer := whole or case.model_type) and str(outer) not in known:
            return str(outer)
        # the text model's own type, if the engine reads it; `inside`: types for text models alone
        inside = case.model_type if self.code.get("parts") else None
        return None if not inside or inside in {*known, *self.code.get("inside", ())} else inside

    def _reading(self, case: ServedLayer) -> EngineReading:
        """Return a reading of a case that no rule has changed."""
        reading = EngineReading(case, self.read)
        registry = registry_of(self.engine, self.version)
        reading.in_transformers = registry is not None and registry.in_transformers(case.config)
        return reading

    @property
    def tree(self) -> str:
        """The release whose code was read."""
        return self.version

    def apply(
        self, case: ServedLayer, releases: Releases, *, without: str | None = None
    ) -> EngineReading:
        """Return what the engine computes for a case; its `problem` is "not known: ..." if no rule
        was read for it. `without` is a part whose rows are left out.
        """
        reading = self._reading(case)
        # whose rules are those of transformers
        known = self.families | (releases["hf"].families if reading.in_transformers else set())
        if case.model_type not in known:
            text = self.not_known.format(title=self.title, model_type=case.model_type)
            return reading.fail(f"not known: {text}")
        if case.spec.scaling.name not in SCALINGS_READ:
            return reading.fail(f"not known: rope_type {case.spec.scaling.name}")
        return self.apply_part("", reading, releases, without=without)

    def apply_part(
        self,
        part: str,
        reading: EngineReading,
        releases: Releases,
        *,
        without: str | None = None,
    ) -> EngineReading:
        """Apply the rows of one part, or with "" all rows but those of WHOLE and of the part
        `without`, to what was read so far; return the same reading.
        """
        ended: set[str] = set()  # the chains of which a row has applied
        for rule in self.rules:
            if reading.done:
                break
            if (
                (part and rule.part != part)
                or rule.part in (WHOLE, without)
                or rule.chain in ended
                or not rule.matches(reading)
            ):
                continue
            if rule.chain:  # its other rows are not looked at
                ended.add(rule.chain)
            OPERATIONS[rule.then](reading, rule, self, releases)
        return reading


def _has_name(config: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Return whether a rope of a config has one of the names of scalings."""
    return any(name_of(rope) in [*names] for rope in all_ropes(config))


def load(*folders: Path, engine: str | None = None) -> dict[str, dict[str, Release]]:
    """Return {engine: {version: its release}} of the rules files in the package and in `folders`,
    the newest release first; of one `engine` alone, if it is given.
    """
    found: dict[str, dict[str, Release]] = {}
    texts = [
        (path, tomllib.loads(text))
        for path, text in _texts(*folders)
        if engine is None or _engine_of(text) == engine
    ]
    # a release that extends another one is read after it
    for path, text in sorted(texts, key=lambda each: "extends" in each[1]):
        release = _release(path, text, found)
        found.setdefault(release.engine, {})[release.version] = release
    return {
        name: dict(sorted(found[name].items(), key=lambda each: _order(each[0]), reverse=True))
        for name in _sorted(found)
    }


def _texts(*folders: Path) -> list[tuple[Path, str]]:
    """Return (path, its text) of the rules files in the package and in `folders`."""
    paths = [path for folder in (FOLDER, *folders) for path in sorted(folder.glob("*.toml"))]
    return [(path, path.read_text(encoding="utf-8")) for path in paths]


def _engine_of(text: str) -> str:
    """Return the engine that a rules file names, without parsing the whole file; "" if none."""
    found = ENGINE_LINE.search(text)
    return "" if found is None else found[1]


def _sorted(engines: Iterable[str]) -> list[str]:
    """Return the names of engines, the reference first, those of other folders last."""
    order = ("hf", "vllm", "sglang", "mlx-lm", "llama.cpp")
    return sorted(engines, key=lambda name: (order.index(name) if name in order else 5, name))


class PackageReleases(Mapping[str, "Release"]):
    """The newest release of every engine of the package, the reference first. The rules of an engine
    are read when they are first asked for.
    """

    def __getitem__(self, engine: str) -> Release:
        """Return the newest release of an engine."""
        if engine not in self._names():
            raise KeyError(engine)
        return _newest(engine)

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the engines."""
        return iter(self._names())

    def __len__(self) -> int:
        """Return how many engines there are."""
        return len(self._names())

    @staticmethod
    @cached("engines", entries=1)
    def _names() -> list[str]:
        """Return the names of the engines that have a rules file."""
        return _sorted({_engine_of(text) for _, text in _texts()})


@cached("rules of engines", entries=8)
def newest(*folders: Path) -> dict[str, Release]:
    """Return the newest release of every engine, the reference first, with those in `folders`."""
    return {engine: next(iter(releases.values())) for engine, releases in load(*folders).items()}


@cached("rules of one engine", entries=8)
def _newest(engine: str) -> Release:
    """Return the newest release of an engine of the package."""
    return next(iter(load(engine=engine)[engine].values()))


def _order(version: str) -> list[int]:
    """Return the numbers of a version, by which releases are sorted."""
    return [int(part) for part in version.split(".") if part.isdigit()]


def _release(
    path: Path, text: Mapping[str, Any], found: Mapping[str, Mapping[str, Release]]
) -> Release:
    """Return the release that a rules file describes; a RopeError names the file and what is wrong.

    path   the file, for the error
    text   its content
    found  {engine: {version: release}} of the files read before it; `extends` names one of them, of
           which only what differs is in this file
    """
    try:
        base = _base(path, text, found)
        lists = {**(base.lists if base else {}), **text.get("lists", {})}
        rules = [_rule(row, lists) for row in text.get("rule", [])]
        models = {
            name: {key: value for key, value in row.items() if key != "families"}
            for row in text.get("model", [])
            for name in row["families"]
        }
        own: dict[str, Any] = {
            key: text[key]
            for key in (
                "engine",
                "title",
                "version",
                "read",
                "length",
                "scalings",
                "not_known",
                "needs",
                "nulls",
                "nulls_refused",
                "types",
                "code",
                "text_types",
            )
            if key in text
        }
        own["served"] = {
            **(base.served if base else {}),
            **{name: row["length"] for row in text.get("served", []) for name in row["families"]},
        }
        if "types" in text:
            own["types"] = tuple(
                {
                    **row,
                    **{
                        key: _names(row[key], lists)
                        for key in ("families", "not_families")
                        if key in row
                    },
                }
                for row in text["types"]
            )
        families = frozenset(_names(text.get("families", []), lists))
        unread = tuple(
            {**_with_families(row, lists), "reason": reason}
            for row in text.get("unread", [])
            for reason in ([row["reason"]] if isinstance(row["reason"], str) else row["reason"])
        )
        for row in unread:
            # "integers" is a name of TAKEN_AS, for a row without `as`, which is right too
            if row["reason"] not in REASONS or row.get("as", "integers") not in TAKEN_AS:
                raise ValueError(f"unread: {row['reason']!r}, {row.get('as')!r} is not known")
        if base is not None:
            own |= {"rules": _merged(base.rules, rules), "families": base.families | families}
            own["unread"] = (*unread, *base.unread)
            if base.code:  # a family that is added can be loaded
                own["code"] = {**base.code, "names": [*base.code["names"], *families]}
            return replace(base, **own, models={**base.models, **models}, lists=lists)
        return Release(
            **own, families=families, rules=tuple(rules), models=models, lists=lists, unread=unread
        )
    except RopeError:
        raise  # it names the key and the file
    except (KeyError, TypeError, ValueError) as error:
        raise RopeError(path.name, "must be a rules file of a release", str(error)) from None


def _base(
    path: Path, text: Mapping[str, Any], found: Mapping[str, Mapping[str, Release]]
) -> Release | None:
    """Return the release that the file extends, None if it extends none; the arguments are those of
    `_release`.
    """
    if "extends" not in text:
        return None
    versions = found.get(text["engine"], {})
    if text["extends"] not in versions:
        known = ", ".join(versions) or "none was read"
        rule = f"must be a release of {text['engine']} with a rules file ({path.name}): {known}"
        raise RopeError("extends", rule, text["extends"])
    return versions[text["extends"]]


def _merged(old: Iterable[Rule], new: Iterable[Rule]) -> tuple[Rule, ...]:
    """Return the rows `old` of a release and then the rows `new` of one that extends it; a new row
    with the id of an old one takes its place instead.
    """
    by_id = {rule.id: rule for rule in new if rule.id}
    kept = [by_id.pop(rule.id, rule) for rule in old]
    return (*kept, *(rule for rule in new if not rule.id or rule.id in by_id))


def _rule(row: Mapping[str, Any], lists: Mapping[str, list[str]]) -> Rule:
    """Return a row of a rules file as a Rule; keys that are no field of Rule are parameters of its
    operation. `lists` are the named lists of model types of the file.
    """
    row = {("is_" if key == "is" else key): value for key, value in row.items()}
    known = {each.name for each in fields(Rule)} - {"values"}
    given = {key: value for key, value in row.items() if key in known}
    given = _with_families(given, lists)
    for key in ("family", "not_family", "scaling", "not_scaling"):
        if key in given:
            given[key] = frozenset(given[key])
    for key in ("when", "given", "lacks", "null"):
        given[key] = tuple(given.get(key, ()))
    if row["then"] not in OPERATIONS:
        raise ValueError(f"then = {row['then']!r} is none of {', '.join(sorted(OPERATIONS))}")
    unknown = [name for name in given["when"] if name.removeprefix("not ") not in CONDITIONS]
    if unknown:
        raise ValueError(f"when = {unknown[0]!r} is none of {', '.join(sorted(CONDITIONS))}")
    values = {key: value for key, value in row.items() if key not in known}
    return Rule(**given, values=values)


def _with_families(row: Mapping[str, Any], lists: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return a row in which each "@name" in `family` and `not_family` is replaced by the model
    types of that list.
    """
    keys = {key: _names(row[key], lists) for key in ("family", "not_family") if key in row}
    return {**row, **keys}


def _names(given: str | list[str], lists: Mapping[str, list[str]]) -> list[str]:
    """Return model types: "@name" stands for those of a list of the file."""
    found: list[str] = []
    for name in [given] if isinstance(given, str) else given:
        found += lists[name[1:]] if name.startswith("@") else [name]
    return found
