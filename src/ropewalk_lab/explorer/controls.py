"""The controls of the page as data, one per field of a spec and of every scaling; their values as
parameters of a link.

The values are one flat dict by control name. Names of a spec's controls start with its side, a or
b: "a.theta", "a.yarn.factor".
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from ropewalk.attention.remap import REMAPPINGS
from ropewalk.caches import cached
from ropewalk.errors import RopeError, choice, integer, number
from ropewalk.frequencies import SCALINGS, Scaling
from ropewalk.spec import LAYOUTS, MAGNITUDES, PRECISIONS
from ropewalk_lab.fit.methods import methods

LANGUAGES = ("en", "zh")
VIEWS = (
    "story",
    "clocks",
    "plane",
    "ladder",
    "distance",
    "map",
    "precision",
    "model",
    "code",
    "report",
)
#: the steps of the story, in order
STEPS = ("question", "angles", "pairs", "beyond", "remedies", "cost", "engines")
SIDES = ("a", "b")
# a larger head would give every chart thousands of points
MAX_HEAD_DIM = 1024
MAX_LENGTH = 1 << 40
MAX_TEXT = 1 << 16
#: tokens of one text that a model reads
MAX_TOKENS = 1024
#: the texts it may read: filler sentences, Python's documentation, or what the visitor types
TEXTS = ("filler", "python", "own")


@dataclass(frozen=True)
class Control:
    """One control: the type of its value, the default, and the bounds or choices."""

    #: choice (a text), integer, number, optional number, flag, numbers (a tuple), or scaling (the
    #: name of one)
    kind: str
    default: Any
    choices: tuple[str, ...] = ()
    low: int = 0
    high: int = MAX_LENGTH
    #: a list with one number for each pair, interpolated when the number of pairs changes
    per_pair: bool = False


_VIEW: dict[str, Control] = {
    "language": Control("choice", "en", LANGUAGES),
    "view": Control("choice", "story", VIEWS),
    "step": Control("choice", "question", STEPS),
    "trained": Control("integer", 4096, low=8),
    "served": Control("integer", 16_384, low=8),
    "position": Control("integer", 64),
    "pair": Control("integer", 0, high=MAX_HEAD_DIM),
    "animate": Control("flag", False),
    "compare": Control("flag", False),
}
_SPEC: dict[str, Control] = {
    "head_dim": Control("integer", 128, low=2, high=MAX_HEAD_DIM),
    "theta": Control("number", 10_000.0),
    "rotary_dim": Control("integer", 0, high=MAX_HEAD_DIM),
    "rotary_start": Control("integer", 0, high=MAX_HEAD_DIM),
    "layout": Control("choice", "half", LAYOUTS),
    "layout_out": Control("choice", "same", ("same", *LAYOUTS)),
    "precision": Control("choice", "exact", PRECISIONS),
    "magnitude_on": Control("choice", "qk", MAGNITUDES),
    "extra_softmax_factor": Control("number", 1.0),
    "axes": Control("numbers", (), per_pair=True),
    "ladder": Control("choice", "shared", ("shared", "per_axis")),
}


def controls() -> Mapping[str, Control]:
    """Return every control by name, including those of scalings that were added to SCALINGS."""
    return _controls(tuple(SCALINGS.items()))


@cached("explorer controls", entries=4)
def _controls(scalings: tuple[tuple[str, type[Scaling]], ...]) -> Mapping[str, Control]:
    """Return all controls of the page by name; those of a spec are named "a..." and "b..."."""
    by_name = _VIEW | _model_controls()
    for side in SIDES:
        by_name |= {f"{side}.{name}": control for name, control in _SPEC.items()}
        by_name[f"{side}.scaling"] = Control(
            "choice", "default" if side == "a" else "yarn", tuple(name for name, _ in scalings)
        )
        for name, scaling in scalings:
            by_name |= {
                f"{side}.{name}.{field}": control
                for field, control in scaling_controls(scaling).items()
            }
    # other defaults than in the first spec, so that a new comparison shows a difference
    by_name["b.yarn.factor"] = Control("number", 4.0)
    by_name["b.yarn.original_length"] = Control("integer", 4096)
    return types.MappingProxyType(by_name)


def _model_controls() -> dict[str, Control]:
    """Return the controls of the view "model" by name: the method, the text with its pass key, and
    the head that is shown.
    """
    return {
        "model.method": Control("choice", "yarn", offered_methods()),
        "model.factor": Control("number", 4.0),
        "model.text": Control("choice", TEXTS[0], TEXTS),
        "model.tokens": Control("integer", 256, low=1, high=MAX_TOKENS),
        "model.depth": Control("number", 0.25),
        "model.gap": Control("integer", 16_384, high=1 << 24),
        "model.layer": Control("integer", 0, high=1 << 10),
        "model.head": Control("integer", 0, high=1 << 10),
    }


def offered_methods() -> tuple[str, ...]:
    """Return the methods of `fit` that change the angles and nothing else of the attention."""
    return tuple(name for name in methods() if name not in REMAPPINGS)


@cached("explorer scaling controls", entries=256)
def scaling_controls(scaling: type[Scaling]) -> dict[str, Control]:
    """Return a control for each field of a scaling that has a default, except for fields of types
    without a control.
    """
    hints = typing.get_type_hints(scaling)
    with_default = [field for field in fields(scaling) if field.default is not MISSING]
    by_field = {field.name: _control(hints[field.name], field.default) for field in with_default}
    return {name: control for name, control in by_field.items() if control is not None}


def _control(hint: Any, default: Any) -> Control | None:
    """Return the control for a field of a scaling, chosen by its type; None if the type has none."""
    kinds = {float: "number", int: "integer", bool: "flag"}
    if hint in kinds:
        return Control(kinds[hint], default, low=-MAX_LENGTH)
    if isinstance(hint, types.UnionType) and set(typing.get_args(hint)) == {float, types.NoneType}:
        return Control("optional number", default)
    if typing.get_origin(hint) is tuple and set(typing.get_args(hint)) <= {float, Ellipsis}:
        # tuple[float, ...] has one number for each pair, tuple[float, float] always two
        return Control("numbers", default, per_pair=Ellipsis in typing.get_args(hint))
    if hint is Scaling:
        # a scaling that is built on another one accepts these
        names = tuple(
            name
            for name, scaling in SCALINGS.items()
            if not scaling.learned and not scaling.needs_length
        )
        return Control("scaling", default.name, names)
    return None


def defaults() -> dict[str, Any]:
    """Return the initial values of the page."""
    return {name: control.default for name, control in controls().items()}


def read(name: str, control: Control, text: str) -> Any:
    """Return the value that a control's text states; a RopeError names the control if the text is
    not valid.
    """
    if len(text) > MAX_TEXT:
        raise RopeError(name, f"must be at most {MAX_TEXT} characters", len(text))
    if control.kind in ("choice", "scaling"):
        return choice(name, text, control.choices)
    if control.kind == "flag":
        return choice(name, text, ("0", "1")) == "1"
    if control.kind == "integer":
        return integer(name, _parse(name, text, int), low=control.low, high=control.high)
    if control.kind == "optional number" and not text.strip():
        return None
    if control.kind == "numbers":
        return (
            tuple(number(name, _parse(name, part, float)) for part in text.split(","))
            if text.strip()
            else ()
        )
    return number(name, _parse(name, text, float))


def write(value: Any) -> str:
    """Return a value as text that `read` can parse."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, tuple):
        return ",".join(map(write, value))
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else repr(value)
    return "" if value is None else str(value)


def _parse(name: str, text: str, number_type: type[int] | type[float]) -> int | float:
    """Return the number that a text states; raise an error if it states none or has more than 40
    characters.
    """
    try:
        if len(text) <= 40:
            return number_type(text)
    except ValueError:
        pass
    raise RopeError(name, "must be an integer" if number_type is int else "must be a number", text)


def from_link(query: Mapping[str, str]) -> dict[str, Any]:
    """Return the page's values from the parameters of a link; missing ones are defaults, unknown
    names are ignored.
    """
    by_name = controls()
    return defaults() | {
        name: read(name, by_name[name], text) for name, text in query.items() if name in by_name
    }


def to_link(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters of a link that restores the page: the values in use that differ from
    their defaults.
    """
    return {
        name: write(values[name])
        for name, control in controls().items()
        if in_use(name, values) and values[name] != control.default
    }


def in_use(name: str, values: Mapping[str, Any]) -> bool:
    """Return whether a control affects the page: its scaling is selected and its spec, step or view
    is shown.
    """
    if name == "step":
        return values["view"] == "story"
    if name.startswith("model."):
        return values["view"] == "model"
    side, _, name_in_spec = name.partition(".")
    if side not in SIDES:
        return True
    if side not in shown_sides(values):
        return False
    scaling, _, field = name_in_spec.partition(".")  # "yarn.factor" has a field, "theta" has none
    return not field or scaling == values[f"{side}.scaling"]


def shown_sides(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the sides of the specs that the page shows: "a", and "b" if two specs are compared."""
    return SIDES if values["compare"] else SIDES[:1]


def pairs_of(values: Mapping[str, Any], side: str) -> int:
    """Return the number of rotated pairs in the spec of one side."""
    from_start = values[f"{side}.head_dim"] - values[f"{side}.rotary_start"]
    rotary_dim = (
        values[f"{side}.rotary_dim"] or from_start
    )  # 0 means all dimensions from rotary_start on
    return max(rotary_dim // 2, 1)
