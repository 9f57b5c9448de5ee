"""The right side of the page: charts and summary numbers of a spec, code, and the lab's report."""

from __future__ import annotations

import base64
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from ropewalk.spec import RopeSpec
from ropewalk_lab.analysis import Facts, critical_dimension, plain_radians
from ropewalk_lab.explorer import drawings
from ropewalk_lab.explorer.charts import charts_of, names
from ropewalk_lab.explorer.export import FORMATS, picture
from ropewalk_lab.explorer.program import program
from ropewalk_lab.explorer.widgets import show_error
from ropewalk_lab.explorer.words import Translate

MAX_REPORT = 32 << 20
#: the caption of each view
CAPTIONS = {
    "clocks": (
        "Each hand is one pair of dimensions. Fast pairs distinguish neighbours, slow pairs "
        "distinguish near from far."
    ),
    "plane": (
        "The grey vector is (1, 0); the coloured one is the same vector rotated to the position; "
        "dots are earlier tokens."
    ),
    "ladder": (
        "A pair that completes no full turn in training reaches new angles beyond it; a scaling "
        "slows it down."
    ),
    "distance": (
        "On average, tokens further apart score lower; the curve is jagged, and a larger base "
        "stretches it."
    ),
    "map": (
        "Lines of equal colour have equal distance: only the distance counts, not the positions of "
        "the two tokens."
    ),
    "precision": (
        "Each line is one method of computing the angle; above the dashed line its error exceeds "
        "rounding to bfloat16."
    ),
}


def show(values: dict[str, Any], specs: list[RopeSpec], translate: Translate) -> None:
    """Draw the summary numbers of each spec and the chosen view; charts show all specs on the same
    axes.
    """
    view, trained, served = values["view"], values["trained"], values["served"]
    all_facts = [Facts(spec, trained, served) for spec in specs]
    for facts in all_facts:
        _numbers(facts, translate)
    if view in ("clocks", "plane"):
        for column, spec in zip(st.columns(len(specs), gap="large"), specs, strict=True):
            column.image(_drawing(values, spec, translate), width=900 if view == "clocks" else 480)
    charts = charts_of(view, specs, trained, served, translate)
    for column, chart in zip(st.columns(max(len(charts), 1), gap="large"), charts, strict=False):
        column.vega_lite_chart(spec=chart, width="stretch")
    if view == "precision":
        _memory(all_facts, translate)
    st.caption(translate(CAPTIONS[view]))


def _drawing(values: dict[str, Any], spec: RopeSpec, translate: Translate) -> str:
    """Return the SVG of the view, clocks or plane, of one spec."""
    position, served = values["position"], values["served"]
    if values["view"] == "clocks":
        return drawings.clocks(spec, position, served, translate, values["animate"])
    return drawings.plane(spec, values["pair"], position, served, translate)


def _memory(all_facts: list[Facts], translate: Translate) -> None:
    """Show a table of the bytes that cos and sin take in each form of storage, one column per spec."""
    st.markdown(f"**{translate('Memory of cos and sin')}**")
    forms = dict.fromkeys(form for facts in all_facts for form in facts.memory)
    titles = " | ".join(
        f"{translate('bytes')}: {name}" for name in names([facts.spec for facts in all_facts])
    )
    rows = []
    for form in forms:
        cells = [f"{facts.memory[form]:,}" if form in facts.memory else "" for facts in all_facts]
        rows.append(f"| {form} | {' | '.join(cells)} |")
    # Markdown instead of st.table, which would import pandas and arrow
    st.markdown(
        "\n".join(
            [f"| {translate('form')} | {titles} |", f"|:---|{'---:|' * len(all_facts)}", *rows]
        )
    )


def _numbers(facts: Facts, translate: Translate) -> None:
    """Draw the name of the spec and four summary numbers."""
    spec = facts.spec
    st.markdown(f"**{spec.scaling.name}** · head_dim {spec.head_dim} · theta {spec.theta:,.6g}")
    magnitude = spec.magnitude(facts.served)
    full_turns = critical_dimension(plain_radians(spec), facts.trained) // 2
    metrics = [
        ("Pairs", f"{spec.pairs}", "Number of rotated pairs of dimensions."),
        (
            "Full turns",
            f"{full_turns}/{spec.pairs}",
            "Pairs that complete a turn within the trained length, without scaling.",
        ),
        (
            "New angles",
            f"{facts.new_angles}/{spec.pairs}",
            "Pairs that reach angles which training never showed.",
        ),
        ("Magnitude", f"{magnitude:.4g}", "The factor by which the scaling multiplies q and k."),
    ]
    for column, (label, value, meaning) in zip(st.columns(len(metrics)), metrics, strict=True):
        column.metric(translate(label), value, help=translate(meaning))


def export(values: dict[str, Any], specs: list[RopeSpec], translate: Translate) -> None:
    """Draw the buttons that save the picture; it is made when a button is pressed."""
    with st.popover(translate("Save the picture")):
        for file_format in FORMATS:
            data = partial(picture, dict(values), specs, file_format)
            label = (
                translate("{form}, in motion", form="GIF")
                if file_format == "gif"
                else file_format.upper()
            )
            name = f"ropewalk-{values['view']}.{file_format}"
            st.download_button(label, data, name, key=f"save_{file_format}", on_click="ignore")


def code(values: dict[str, Any], link: str, translate: Translate) -> None:
    """Show the code and the link that reproduce the view, each with a copy button."""
    st.markdown(f"**{translate('The code that reproduces this view')}**")
    st.code(program(values), language="python")
    st.markdown(f"**{translate('The link that restores this view')}**")
    st.code(link, language=None, wrap_lines=True)


def report(path: Path, translate: Translate) -> None:
    """Show the lab's report as a data URL: it has a separate origin, so its scripts cannot access
    the page.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_REPORT + 1)
    except OSError as error:
        show_error(f"{path}: {error.strerror}")
        return
    if len(data) > MAX_REPORT:
        show_error(
            translate(
                "The report is larger than {size} bytes: {path}", size=f"{MAX_REPORT:,}", path=path
            )
        )
    elif path.suffix.lower() in (".html", ".htm"):
        st.iframe(
            f"data:text/html;charset=utf-8;base64,{base64.b64encode(data).decode()}", height=900
        )
    else:
        st.markdown(data.decode("utf-8", errors="replace"))
