"""Every choice of a run as data: a frozen dataclass, read from a TOML preset and changed by `table.key=value` flags."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError, choice, flag, integer, number
from ropewalk.lab.schedule import SCHEDULES, Plan, Stage

PRESETS = Path(__file__).parent / "presets"
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Settings:
    """How a model is trained. What is listed in UNIMPORTANT may change between a run and its continuation."""

    stages: tuple[Stage, ...]
    learning_rate: float = 3e-3
    schedule: str = "cosine"
    warmup: int = 40
    final: float = 0.1
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    clip: float | None = 1.0
    frequency_rate: float = 1.0  # learned frequencies move at this multiple of the learning rate
    accumulation: int = 1
    precision: str = "float32"
    compile: bool = False
    seed: int = 0
    smoothing: float = 0.98
    log_every: int = 10
    save_every: int = 200
    keep: int = 2
    evaluate_every: int = 0

    def __post_init__(self) -> None:
        number("learning_rate", self.learning_rate, above=0)
        choice("schedule", self.schedule, SCHEDULES)
        integer("warmup", self.warmup, low=0)
        number("final", self.final, low=0, high=1)
        number("weight_decay", self.weight_decay, low=0)
        number("eps", self.eps, above=0)
        number("frequency_rate", self.frequency_rate, low=0)
        number("smoothing", self.smoothing, low=0, high=0.999999)
        if len([number("betas", beta, low=0, high=1) for beta in self.betas]) != 2:
            raise RopeError("betas", "must be two numbers", self.betas)
        if self.clip is not None:
            number("clip", self.clip, above=0)
        choice("precision", self.precision, PRECISIONS)
        flag("compile", self.compile)
        for name, low in (("accumulation", 1), ("log_every", 1), ("save_every", 1), ("keep", 1), ("evaluate_every", 0)):
            integer(name, getattr(self, name), low=low)
        integer("seed", self.seed, low=0)
        for stage in self.stages:
            if stage.batch % self.accumulation:
                raise RopeError("accumulation", f"must divide the batch of every stage, {stage.batch}", self.accumulation)

    @property
    def plan(self) -> Plan:
        """The stages in order."""
        return Plan(self.stages)

    def important(self) -> dict[str, Any]:
        """What a continued run must share, as plain data."""
        return {name: value for name, value in asdict(self).items() if name not in UNIMPORTANT}


#: settings that do not change a single number of the run
UNIMPORTANT = ("log_every", "save_every", "keep", "evaluate_every")


@dataclass(frozen=True)
class Preset:
    """A whole run: which model, which data, how trained. Tables of the TOML file have the names of the fields."""

    train: Settings
    model: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)


def preset_names() -> list[str]:
    """The presets that come with the package."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def read_preset(name: str | Path, changes: Iterable[str] = ()) -> Preset:
    """A preset by name or the path of a TOML file, with changes such as "train.learning_rate=1e-3"."""
    path = PRESETS / f"{name}.toml" if str(name) in preset_names() else Path(name)
    if not path.is_file():
        raise RopeError("preset", f"must be the path of a TOML file or one of {', '.join(preset_names())}", str(name))
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RopeError("preset", f"must be TOML ({error})", str(name)) from None
    for change in changes:
        _apply(tables, change)
    unknown = sorted(set(tables) - {f.name for f in fields(Preset)})
    if unknown:
        raise RopeError("preset", "may have the tables model, data and train", unknown)
    return Preset(make_settings(tables.get("train", {})), tables.get("model", {}), tables.get("data", {}))


def make_settings(table: dict[str, Any]) -> Settings:
    """Settings from plain data; an unknown key is refused by name."""
    known = [f.name for f in fields(Settings)]
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise RopeError("train", f"has no setting {', '.join(unknown)}; known: {', '.join(known)}", unknown)
    stages = table.get("stages")
    if not isinstance(stages, list) or not all(isinstance(s, dict) and set(s) == {"length", "batch", "steps"} for s in stages):
        raise RopeError("train.stages", "must be a list of tables with length, batch and steps", stages)
    rest: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items() if k != "stages"}
    return Settings(stages=tuple(Stage(**stage) for stage in stages), **rest)


def _apply(tables: dict[str, Any], change: str) -> None:
    """Put the value of "table.key=value" where it belongs; the value is TOML, or a plain word."""
    where, equals, said = change.partition("=")
    table, dot, key = where.strip().partition(".")
    if not (equals and dot and key):
        raise RopeError("set", 'must read "table.key=value", as in train.learning_rate=1e-3', change)
    try:
        value = tomllib.loads(f"value = {said}")["value"]
    except tomllib.TOMLDecodeError:
        value = said.strip()
    tables.setdefault(table, {})[key] = value
