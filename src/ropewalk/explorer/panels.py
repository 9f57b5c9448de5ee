"""The right side of the page: charts and summary numbers of a spec, code, and the lab's report."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import streamlit as st

from ropewalk.analysis import Facts, critical_dimension, plain_radians
from ropewalk.explorer import drawings
from ropewalk.explorer.charts import side_by_side
from ropewalk.explorer.program import program
from ropewalk.explorer.widgets import show_error
from ropewalk.explorer.words import Translate
from ropewalk.spec import RopeSpec

MAX_REPORT = 32 << 20
#: the caption of each view
CAPTIONS = {
    "clocks": "Each hand is one pair of dimensions. Fast pairs distinguish neighbours, slow pairs distinguish near from far.",
    "plane": "The grey vector is (1, 0); the coloured one is the same vector rotated to the position; dots are earlier tokens.",
    "ladder": "A pair that completes no full turn in training reaches new angles beyond it; a scaling slows it down.",
    "distance": "On average, tokens further apart score lower; the curve is jagged, and a larger base stretches it.",
    "map": "Lines of equal colour have equal distance: only the distance counts, not the positions of the two tokens.",
    "precision": "Each line is one method of computing the angle; above the dashed line its error exceeds rounding to bfloat16.",
}


def show(values: dict[str, Any], specs: list[RopeSpec], translate: Translate) -> None:
    """Draw one spec, or two side by side, in the chosen view."""
    charts_by_spec = side_by_side(values["view"], specs, values["trained"], values["served"], translate)
    for column, spec, charts in zip(st.columns(len(specs)), specs, charts_by_spec, strict=True):
        with column:
            _show(values, spec, charts, translate)


def _show(values: dict[str, Any], spec: RopeSpec, charts: list[dict[str, Any]], translate: Translate) -> None:
    view, trained, served, position = (values[name] for name in ("view", "trained", "served", "position"))
    facts = Facts(spec, trained, served)
    _numbers(facts, translate, across=2 if values["compare"] else 4)
    if view == "clocks":
        st.image(drawings.clocks(spec, position, served, translate, values["animate"]), width="stretch")
    elif view == "plane":
        st.image(drawings.plane(spec, values["pair"], position, served, translate), width=480)
    for chart in charts:
        st.vega_lite_chart(spec=chart, width=chart.get("width", "stretch"))
    if view == "precision":
        st.markdown(f"**{translate('Memory of cos and sin')}**")
        rows = [f"| {form} | {size:,} |" for form, size in facts.memory.items()]
        # Markdown instead of st.table, which would import pandas and arrow
        st.markdown("\n".join([f"| {translate('form')} | {translate('bytes')} |", "|:---|---:|", *rows]))
    st.caption(translate(CAPTIONS[view]))


def _numbers(facts: Facts, translate: Translate, across: int) -> None:
    """Draw the name of the spec and four summary numbers."""
    spec = facts.spec
    st.markdown(f"**{spec.scaling.name}** · head_dim {spec.head_dim} · theta {spec.theta:,.6g}")
    magnitude = float(spec.ladder_frequencies(facts.served).magnitude)
    full_turns = critical_dimension(plain_radians(spec), facts.trained) // 2
    metrics = [
        ("Pairs", f"{spec.pairs}", "Number of rotated pairs of dimensions."),
        ("Full turns", f"{full_turns}/{spec.pairs}", "Pairs that complete a turn within the trained length, without scaling."),
        ("New angles", f"{facts.new_angles}/{spec.pairs}", "Pairs that reach angles which training never showed."),
        ("Magnitude", f"{magnitude:.4g}", "The factor by which the scaling multiplies q and k."),
    ]
    for start in range(0, len(metrics), across):
        for column, (label, value, meaning) in zip(st.columns(across), metrics[start : start + across], strict=True):
            column.metric(translate(label), value, help=translate(meaning))


def code(values: dict[str, Any], link: str, translate: Translate) -> None:
    """Show the code and the link that reproduce the view, each with a copy button."""
    st.markdown(f"**{translate('The code that reproduces this view')}**")
    st.code(program(values), language="python")
    st.markdown(f"**{translate('The link that restores this view')}**")
    st.code(link, language=None, wrap_lines=True)


def report(path: Path, translate: Translate) -> None:
    """Show the lab's report as a data URL: it has a separate origin, so its scripts cannot access the page."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_REPORT + 1)
    except OSError as error:
        show_error(f"{path}: {error.strerror}")
        return
    if len(data) > MAX_REPORT:
        show_error(translate("The report is larger than {size} bytes: {path}", size=f"{MAX_REPORT:,}", path=path))
    elif path.suffix.lower() in (".html", ".htm"):
        st.iframe(f"data:text/html;charset=utf-8;base64,{base64.b64encode(data).decode()}", height=900)
    else:
        st.markdown(data.decode("utf-8", errors="replace"))
