"""What stands on the right of the page: the charts of a spec, its figures in numbers, the code, the lab's report."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import streamlit as st

from ropewalk.analysis import Facts, critical_dimension, plain_radians
from ropewalk.explorer import drawings
from ropewalk.explorer.charts import side_by_side
from ropewalk.explorer.program import program
from ropewalk.explorer.words import Say
from ropewalk.spec import RopeSpec

MAX_REPORT = 32 << 20
#: what to see in each view
CAPTIONS = {
    "clocks": "Each hand is one pair of dimensions. Fast pairs tell neighbours apart, slow ones far from near.",
    "plane": "The grey vector is (1, 0), the coloured one is it turned to the position; dots are the tokens before.",
    "ladder": "A pair that never finished a turn in training meets new angles beyond it; a scaling slows it down.",
    "distance": "Two tokens further apart score lower on average; the curve is jagged, and a larger base stretches it.",
    "map": "One line of equal colour is one distance: only the distance counts, not where the two tokens stand.",
    "precision": "Every line is one way of forming the angle; above the dashed one it is worse than rounding to bfloat16.",
}


def show(values: dict[str, Any], specs: list[RopeSpec], say: Say) -> None:
    """One spec, or two side by side, in the chosen view."""
    drawn = side_by_side(values["view"], specs, values["trained"], values["served"], say)
    for column, spec, charts in zip(st.columns(len(specs)), specs, drawn, strict=True):
        with column:
            _show(values, spec, charts, say)


def _show(values: dict[str, Any], spec: RopeSpec, charts: list[dict[str, Any]], say: Say) -> None:
    view, trained, served, position = (values[name] for name in ("view", "trained", "served", "position"))
    facts = Facts(spec, trained, served)
    _numbers(facts, say, across=2 if values["compare"] else 4)
    if view == "clocks":
        st.image(drawings.clocks(spec, position, served, say, values["turning"]), width="stretch")
    elif view == "plane":
        st.image(drawings.plane(spec, values["pair"], position, served, say), width=480)
    for chart in charts:
        st.vega_lite_chart(spec=chart, width=chart.get("width", "stretch"))
    if view == "precision":
        st.markdown(f"**{say('Memory of cos and sin')}**")
        rows = [f"| {form} | {size:,} |" for form, size in facts.memory.items()]
        # text, not st.table: a slider would wait for pandas and arrow
        st.markdown("\n".join([f"| {say('form')} | {say('bytes')} |", "|:---|---:|", *rows]))
    st.caption(say(CAPTIONS[view]))


def _numbers(facts: Facts, say: Say, across: int) -> None:
    """Which spec it is, and four figures to read beside any chart."""
    spec = facts.spec
    st.markdown(f"**{spec.scaling.name}** · head_dim {spec.head_dim} · theta {spec.theta:,.6g}")
    magnitude = float(spec.ladder_frequencies(facts.served).magnitude)
    shown = [
        ("Pairs", f"{spec.pairs}", "How many pairs of dimensions turn."),
        ("Come round", f"{_round(facts)}/{spec.pairs}", "Pairs that go round within the trained length, unscaled."),
        ("New angles", f"{facts.new_angles}/{spec.pairs}", "Pairs that reach angles that training never showed."),
        ("Magnitude", f"{magnitude:.4g}", "What the scaling multiplies q and k by."),
    ]
    for start in range(0, len(shown), across):
        for column, (label, value, meaning) in zip(st.columns(across), shown[start : start + across], strict=True):
            column.metric(say(label), value, help=say(meaning))


def _round(facts: Facts) -> int:
    return critical_dimension(plain_radians(facts.spec), facts.trained) // 2


def code(values: dict[str, Any], link: str, say: Say) -> None:
    """The program and the link of the view, each with its copy button."""
    st.markdown(f"**{say('The code that reproduces this view')}**")
    st.code(program(values), language="python")
    st.markdown(f"**{say('The link that restores this view')}**")
    st.code(link, language=None, wrap_lines=True)


def report(path: Path, say: Say) -> None:
    """The lab's report; as a data address it has an origin of its own and cannot reach the page."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_REPORT + 1)
    except OSError as error:
        st.error(f"{path}: {error.strerror}")
        return
    if len(data) > MAX_REPORT:
        st.error(say("The report is at most {size} bytes; this one is larger: {path}", size=f"{MAX_REPORT:,}", path=path))
    elif path.suffix.lower() in (".html", ".htm"):
        st.iframe(f"data:text/html;charset=utf-8;base64,{base64.b64encode(data).decode()}", height=900)
    else:
        st.markdown(data.decode("utf-8", errors="replace"))
