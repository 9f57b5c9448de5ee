"""Streamlit widgets for all kinds of controls; a widget starts with the session's value, and its id
is the control's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from ropewalk_lab.explorer import controls

#: the values that sliders offer; values from a config or a link are added
HEADS = (4, 8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 512, 768, 1024)
LENGTHS = tuple(1 << power for power in range(7, 31))
THETAS = tuple(float(digit * 10**power) for power in range(1, 10) for digit in (1, 2, 5))
NUMBERS = (
    0.1,
    0.2,
    0.25,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.75,
    0.8,
    0.9,
    1.0,
    1.25,
    1.5,
    2.0,
    3.0,
    4.0,
    6.0,
    8.0,
    10.0,
    12.0,
    16.0,
    24.0,
    32.0,
    40.0,
    48.0,
    64.0,
    96.0,
    128.0,
    192.0,
    256.0,
    384.0,
    512.0,
    768.0,
    1024.0,
)

#: the same for the view of a model, by control
MODEL_VALUES = {
    "model.tokens": (96, 128, 192, 256, 384, 512, 768, 1024),
    "model.depth": tuple(step / 20 for step in range(21)),
    "model.gap": (0, *(1 << power for power in range(8, 20))),
    "model.factor": (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0),
}


def widget_value(value: Any) -> Any:
    """Return a value in the form its widget holds: lists are text."""
    return controls.write(value) if isinstance(value, tuple) else value


def show_error(text: str) -> None:
    """Draw an error message; nothing in it is rendered as Markdown, since it may quote a link or a
    config.
    """
    st.error(literal(text))


def literal(text: str) -> str:
    """Return a Markdown code span that shows a text character by character; line breaks become
    spaces.
    """
    text = " ".join(text.split())
    # a run of backticks ends a code span only if it is as long as the run that began it
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{fence} {text} {fence}"


def draw_control(
    values: dict[str, Any],
    name: str,
    label: str,
    *,
    horizontal: bool = False,
    tiles: bool = False,
    option_text: Callable[[str], Any] = str,
    choices: Sequence[str] | None = None,
    on_change: Callable[..., None] | None = None,
    args: tuple[Any, ...] = (),
) -> None:
    """Draw the widget of the control `name`; its value goes to the session, not to `values`.

    horizontal, tiles  how to choose one of several values: radio buttons in a row, or tiles without
                       a label; else a list
    option_text        value -> the text that is shown for it
    choices            the values on offer; None: all of the control
    on_change, args    a function to call after a change, and its arguments
    """
    control = controls.controls()[name]
    is_slider = control.kind in ("integer", "number")
    options = (
        slider_values(values, name, control)
        if is_slider
        else list(control.choices if choices is None else choices)
    )
    widget_key(values, name, (label, tiles, *options))
    call: dict[str, Any] = (
        {"key": name, "on_change": on_change, "args": args} if on_change else {"key": name}
    )
    if control.kind in ("choice", "scaling") and tiles:
        st.segmented_control(
            label,
            options,
            format_func=option_text,
            required=True,
            label_visibility="collapsed",
            **call,
        )
    elif control.kind in ("choice", "scaling") and horizontal:
        st.radio(label, options, format_func=option_text, horizontal=True, **call)
    elif control.kind in ("choice", "scaling"):
        st.selectbox(label, options, format_func=option_text, **call)
    elif control.kind == "flag":
        st.checkbox(label, key=name)
    elif control.kind == "optional number":
        st.number_input(label, value=None, key=name, placeholder="None")
    elif control.kind == "numbers":
        st.text_input(label, key=name, max_chars=controls.MAX_TEXT)
    else:
        st.select_slider(label, options, format_func=number_text, **call)


def widget_key(values: dict[str, Any], name: str, shape: object) -> str:
    """Store the control's value in the session under the widget's id, and return the id; `shape` is
    the label and options.

    Streamlit treats a widget whose label or options changed as a new widget and resets it, so the
    value is stored again.
    """
    shapes = st.session_state.setdefault("shapes", {})
    if name not in st.session_state or shapes.get(name) != shape:
        st.session_state[name], shapes[name] = widget_value(values[name]), shape
    return name


def slider_values(values: dict[str, Any], name: str, control: controls.Control) -> list[Any]:
    """Return the values that a slider offers: common numbers, the default, and every value it has
    had.
    """
    field = name.rpartition(".")[2]
    if field == "rotary_dim":
        head_dim = values[
            f"{name[0]}.head_dim"
        ]  # the first letter of a control's name is the side of its spec
        return sorted({0, *(size for size in HEADS if size <= head_dim), values[name]})
    if field == "position":
        return slider_positions(values["served"] - 1, values[name])
    if field == "pairs":
        return sorted({*range(controls.pairs_of(values, name[0]) + 1), values[name]})
    by_kind = LENGTHS if control.kind == "integer" else NUMBERS
    by_field = {"head_dim": HEADS, "theta": THETAS}.get(field, by_kind)
    common = MODEL_VALUES.get(name, by_field)
    seen = st.session_state.setdefault("seen", {}).setdefault(name, set())
    seen.add(values[name])
    return sorted({*common, control.default, *seen})


def slider_positions(last: int, current: int) -> list[int]:
    """Return the positions that the slider offers: 0 to 16, then eight up to each power of 2,
    `last`, and the current one.
    """
    powers_of_two = int(last).bit_length()
    steps = (
        round(2 ** (eighth / 8)) for eighth in range(4 * 8, 8 * powers_of_two)
    )  # from 2^4 = 16 on
    return sorted(
        {current, last, *(position for position in (*range(17), *steps) if position <= last)}
    )


def number_text(value: float) -> str:
    """Return the text of a number on a slider."""
    return f"{value:,.6g}" if isinstance(value, float) and abs(value) < 1e6 else f"{value:,.0f}"
