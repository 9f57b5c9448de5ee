"""All settings of a run as frozen dataclasses, read from a TOML preset and changed by
`table.name=value` options.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from ropewalk.errors import RopeError, choice, flag, integer, number
from ropewalk_lab.schedule import SCHEDULES, Stage, total_steps

PRESETS = Path(__file__).parent / "presets"
PRECISIONS = ("float32", "bfloat16")
#: settings that do not affect the results, so a resumed run may change them
CHANGEABLE = ("log_every", "save_every", "keep", "evaluate_every")


@dataclass(frozen=True)
class Settings:
    """How a model is trained.

    warmup          steps in which the learning rate rises to `learning_rate`
    final           the last learning rate, as a share of the highest
    clip            the largest norm of all gradients; None: they are not clipped
    frequency_rate  learned frequencies train at this multiple of the learning rate
    accumulation    micro-batches of one step
    smoothing       decay of the moving average of the loss that is logged
    keep            how many checkpoints are kept
    evaluate_every  steps from one evaluation to the next; 0: none
    """

    stages: tuple[Stage, ...]
    learning_rate: float = 3e-3
    schedule: str = "cosine"
    warmup: int = 40
    final: float = 0.1
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    clip: float | None = 1.0
    frequency_rate: float = 1.0
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
        """Check every setting."""
        if not self.stages:
            raise RopeError("stages", "must have at least one stage", self.stages)
        number("learning_rate", self.learning_rate, above=0)
        choice("schedule", self.schedule, SCHEDULES)
        number("final", self.final, low=0, high=1)
        number("eps", self.eps, above=0)
        number("smoothing", self.smoothing, low=0, high=0.999999)
        for name in ("weight_decay", "frequency_rate"):
            number(name, getattr(self, name), low=0)
        if len(self.betas) != 2 or not all(0 <= number("betas", beta) < 1 for beta in self.betas):
            raise RopeError("betas", "must be two numbers >= 0 and < 1", self.betas)
        if self.clip is not None:
            number("clip", self.clip, above=0)
        choice("precision", self.precision, PRECISIONS)
        flag("compile", self.compile)
        for name in ("accumulation", "log_every", "save_every", "keep"):
            integer(name, getattr(self, name), low=1)
        for name in ("warmup", "evaluate_every", "seed"):
            integer(name, getattr(self, name), low=0)
        for stage in self.stages:
            if stage.batch % self.accumulation:
                raise RopeError(
                    "accumulation",
                    f"must divide the batch of every stage, {stage.batch}",
                    self.accumulation,
                )

    @property
    def steps(self) -> int:
        """The number of steps of all stages."""
        return total_steps(self.stages)

    def fixed(self) -> dict[str, Any]:
        """Return the settings that a resumed run must not change, as plain data."""
        return {name: value for name, value in asdict(self).items() if name not in CHANGEABLE}


@dataclass(frozen=True)
class Preset:
    """A whole run: the model, the data and the training. The tables of a TOML preset have the names
    of these fields.
    """

    train: Settings
    model: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)


def preset_names() -> list[str]:
    """Return the names of the presets that come with the package."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def read_preset(name: str | Path, changes: Iterable[str] = ()) -> Preset:
    """Return a preset by its name or from the TOML file of that path, with changes such as
    "train.learning_rate=1e-3".
    """
    path = PRESETS / f"{name}.toml" if str(name) in preset_names() else Path(name)
    if not path.is_file():
        raise RopeError(
            "preset",
            f"must be the path of a TOML file or one of {', '.join(preset_names())}",
            str(name),
        )
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RopeError("preset", f"must be TOML ({error})", str(name)) from None
    return make_preset(tables, changes)


def make_preset(tables: dict[str, dict[str, Any]], changes: Iterable[str] = ()) -> Preset:
    """Return the preset of the tables `model`, `data` and `train`, with changes such as
    "train.learning_rate=1e-3".
    """
    values = [key for key, table in tables.items() if not isinstance(table, dict)]
    if values:
        raise RopeError("preset", "must hold tables only: model, data and train", values)
    tables = {name: dict(table) for name, table in tables.items()}
    for change in changes:
        target, equals, text = change.partition("=")
        table, dot, setting = target.strip().partition(".")
        if not (equals and dot and setting):
            raise RopeError(
                "set", 'must read "table.name=value", as in train.learning_rate=1e-3', change
            )
        tables.setdefault(table, {})[setting] = toml_value(text)
    unknown = sorted(set(tables) - {f.name for f in fields(Preset)})
    if unknown:
        raise RopeError("preset", "must have no tables but model, data and train", unknown)
    return Preset(
        make_settings(tables.get("train", {})), tables.get("model", {}), tables.get("data", {})
    )


def make_settings(table: dict[str, Any]) -> Settings:
    """Return the Settings of a preset's `train` table; an unknown name is an error."""
    stages = table.get("stages")
    fields_of_stage = {"length", "batch", "steps"}
    if not isinstance(stages, list) or not all(
        isinstance(stage, dict) and set(stage) == fields_of_stage for stage in stages
    ):
        raise RopeError(
            "train.stages", "must be a list of tables with length, batch and steps", stages
        )
    check_names("train", table, Settings)
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in table.items()
    }
    return Settings(**{**values, "stages": tuple(Stage(**stage) for stage in stages)})


def check_names(table: str, values: dict[str, Any], cls: Any) -> None:
    """Raise an error if a table of a preset has names that are not fields of a dataclass, or values
    of other types.
    """
    names = [each.name for each in fields(cls)]
    unknown = sorted(set(values) - set(names))
    if unknown:
        raise RopeError(
            table, f"has no setting {', '.join(unknown)}; known: {', '.join(names)}", unknown
        )
    hints = get_type_hints(cls)
    for name, value in values.items():
        if not _fits(value, hints[name]):
            # the types that the field may have, such as float and None
            choices = (
                get_args(hints[name]) if isinstance(hints[name], UnionType) else (hints[name],)
            )
            kinds = [_KINDS.get(each, "a list") for each in choices if each is not NoneType]
            raise RopeError(f"{table}.{name}", f"must be {' or '.join(kinds)}", value)


#: types of settings and their names in error messages; any other type is a list
_KINDS = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value has the type that a field declares, `hint`.

    A type that TOML has no values of, such as another dataclass, accepts any value here: its class
    checks it.
    """
    if isinstance(hint, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if hint in _KINDS:
        types = (int, float) if hint is float else hint  # a number may be an integer
        # a bool is an int in Python, but not in TOML
        return isinstance(value, types) and isinstance(value, bool) == (hint is bool)
    if get_origin(hint) is tuple:
        return isinstance(value, list | tuple)
    return hint is not NoneType or value is None  # NoneType accepts None only


def toml_value(text: str) -> Any:
    """Parse the value of a "name=value" flag as TOML; text that is not TOML is a plain string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text.strip()
