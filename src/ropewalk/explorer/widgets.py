"""A widget for every kind of control; it starts with the session's value and has the control's name as its id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from ropewalk.explorer import controls

#: the stops of the sliders; values from a config or a link are added
HEADS = (4, 8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 512, 768, 1024)
LENGTHS = tuple(1 << power for power in range(7, 31))
THETAS = tuple(float(digit * 10**power) for power in range(1, 10) for digit in (1, 2, 5))
NUMBERS = (
    0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0,
    32.0, 40.0, 48.0, 64.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0, 768.0, 1024.0,
)  # fmt: skip


def mirror(value: Any) -> Any:
    """A value as its widget holds it: lists are text."""
    return controls.write(value) if isinstance(value, tuple) else value


def draw_control(
    values: dict[str, Any],
    name: str,
    label: str,
    *,
    horizontal: bool = False,
    named: Callable[[str], Any] = str,
    choices: Sequence[str] | None = None,
) -> None:
    """Draw the widget of one control."""
    control = controls.controls()[name]
    slides = control.kind in ("integer", "number")
    options = stops(values, name, control) if slides else list(control.choices if choices is None else choices)
    seeded(values, name, (label, *options))
    if control.kind in ("word", "scaling") and horizontal:
        st.radio(label, options, key=name, format_func=named, horizontal=True)
    elif control.kind in ("word", "scaling"):
        st.selectbox(label, options, key=name, format_func=named)
    elif control.kind == "flag":
        st.checkbox(label, key=name)
    elif control.kind == "maybe":
        st.number_input(label, value=None, key=name, placeholder="None")
    elif control.kind == "numbers":
        st.text_input(label, key=name, max_chars=controls.MAX_TEXT)
    else:
        st.select_slider(label, options, key=name, format_func=shown)


def seeded(values: dict[str, Any], name: str, shape: object) -> str:
    """The widget's id, after the session holds the control's value under it; `shape` is the look of the widget.

    Streamlit treats a widget whose shape changed as a new one and would reset it, so its value is set again.
    """
    shapes = st.session_state.setdefault("shapes", {})
    if name not in st.session_state or shapes.get(name) != shape:
        st.session_state[name], shapes[name] = mirror(values[name]), shape
    return name


def stops(values: dict[str, Any], name: str, control: controls.Control) -> list[Any]:
    """The stops of a slider: the usual numbers, the default, and every value that it had."""
    field = name.rpartition(".")[2]
    if field == "rotary_dim":
        return sorted({0, *(head for head in HEADS if head <= values[f"{name[0]}.head_dim"]), values[name]})
    usual = {"head_dim": HEADS, "theta": THETAS}.get(field, LENGTHS if control.kind == "integer" else NUMBERS)
    seen = st.session_state.setdefault("seen", {}).setdefault(name, set())
    seen.add(values[name])
    return sorted({*usual, control.default, *seen})


def shown(value: float) -> str:
    """The text of a number on a slider."""
    return f"{value:,.6g}" if isinstance(value, float) and abs(value) < 1e6 else f"{value:,.0f}"
