"""The page that streamlit runs: the story, or free play with widgets on the left and one view of
one or two specs on the right.

All values are in one dict of the session, at first `controls.defaults()`. Widgets only show copies
of these values, because streamlit discards the state of widgets that are not drawn.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import streamlit as st

from ropewalk.config.examples import EXAMPLES
from ropewalk.config.file import MAX_BYTES
from ropewalk.errors import RopeError
from ropewalk.frequencies import SCALINGS
from ropewalk.spec import RopeSpec
from ropewalk_lab.explorer import controls, model_tab, panels, story
from ropewalk_lab.explorer.controls import VIEWS
from ropewalk_lab.explorer.session import current, fit_scaling, remember_view, set_values
from ropewalk_lab.explorer.state import layers_of, spec_of
from ropewalk_lab.explorer.widgets import draw_control, show_error, widget_key, widget_value
from ropewalk_lab.explorer.words import Translate, about, translator

LANGUAGE, LANGUAGES = "Language / 语言", {"en": "English", "zh": "中文"}
#: environment variable with the path of the report, set by the launcher
REPORT = "ROPEWALK_REPORT"
TITLES = {
    "story": "Story",
    "clocks": "Clocks",
    "plane": "Plane",
    "ladder": "Ladder",
    "distance": "Distance",
    "map": "Map",
    "precision": "Precision",
    "model": "Model",
    "code": "Code and link",
    "report": "Report",
}
#: smaller margins than streamlit's own, so that a step fits on a screen
STYLE = """<style>
.stMainBlockContainer {padding: 3.2rem 3rem 2rem}
@media (max-width: 640px) {.stMainBlockContainer {padding: 3.2rem 1rem 1rem}}
</style>"""


def page() -> None:
    """Draw the whole page; streamlit calls this again after every change."""
    st.set_page_config(page_title="ropewalk", layout="wide")
    st.html(STYLE)
    values = current()
    translate = translator(values["language"])
    if values["view"] == "story":
        _story(values, translate)
    else:
        _free_play(values, translate)


def _story(values: dict[str, Any], translate: Translate) -> None:
    """Show the page as a story in steps."""
    title, language = st.columns([4, 1], vertical_alignment="center")
    title.markdown(f"**ropewalk** · {translate('Rotary position embedding')}")
    with language:
        draw_control(values, "language", LANGUAGE, tiles=True, option_text=LANGUAGES.get)
    _show_problem()
    try:
        beside_buttons = story.draw(values, translate)
    except RopeError as error:
        show_error(str(error))
        st.button(translate("Reset"), on_click=_reset, key="reset")
        return
    with beside_buttons:
        panels.export(values, [spec_of(values)], translate)
    _write_link(values)


def _free_play(values: dict[str, Any], translate: Translate) -> None:
    """Show the page with all controls in the sidebar and the chosen view."""
    report = os.environ.get(REPORT)
    with st.sidebar:
        draw_control(values, "language", LANGUAGE, horizontal=True, option_text=LANGUAGES.get)
        if values["view"] != "model":
            _sidebar(values, translate)
        st.button(translate("Reset"), on_click=_reset, key="reset")
    st.subheader(translate("Rotary position embedding"))
    _show_problem()
    _choose_view(values, translate, report)
    try:
        specs = _specs(values)
    except RopeError as error:
        show_error(str(error))
        return
    _write_link(values)
    values_with_picture = remember_view(
        values
    )  # the code view has no picture: its link restores the view before it
    if values["view"] == "code":
        address = (st.context.url or "").split("?")[0]
        panels.code(
            values, f"{address}?{urlencode(controls.to_link(values_with_picture))}", translate
        )
    elif values["view"] == "model":
        model_tab.draw(values, translate)
    elif values["view"] == "report":
        panels.report(Path(str(report)), translate)
    else:
        panels.show(values, specs, translate)
        panels.export(values, specs, translate)


def _specs(values: dict[str, Any]) -> list[RopeSpec]:
    """Return the one or two specs that the page shows."""
    return [spec_of(values, side) for side in controls.shown_sides(values)]


def _write_link(values: dict[str, Any]) -> None:
    link = controls.to_link(values)
    if st.query_params.to_dict() != link:
        st.query_params.from_dict(link)


def _show_problem() -> None:
    if st.session_state.get("problem"):
        show_error(st.session_state["problem"])


def _sidebar(values: dict[str, Any], translate: Translate) -> None:
    """Show presets, the upload, lengths and the controls of one or two specs."""
    st.selectbox(translate("Preset"), ["", *EXAMPLES], key="preset", on_change=_load_preset)
    st.file_uploader(
        translate("Drop a config.json"), type=["json"], key="upload", on_change=_load_upload
    )
    layers = st.session_state.get("layers", {})
    if len(layers) > 1:
        st.selectbox(translate("Layer type"), list(layers), key="layer", on_change=_load_layer)
    if layers and _changed(values, layers[st.session_state.get("layer") or next(iter(layers))]):
        st.caption(translate("Changed from the preset."))
    draw_control(values, "trained", translate("Trained length"))
    draw_control(values, "served", translate("Target length"))
    draw_control(values, "position", translate("Position"))
    with st.expander(translate("First spec"), expanded=True):
        _spec(values, "a", translate)
    draw_control(values, "compare", translate("Compare with a second spec"))
    if values["compare"]:
        with st.expander(translate("Second spec"), expanded=True):
            _spec(values, "b", translate)


def _changed(values: dict[str, Any], loaded: dict[str, Any]) -> bool:
    """Return whether a value in use differs from the loaded preset or config."""
    names = (name for name in loaded if controls.in_use(name, values))
    # a widget holds a list as text, so both sides are compared in that form
    return any(widget_value(values[name]) != widget_value(loaded[name]) for name in names)


def _spec(values: dict[str, Any], side: str, translate: Translate) -> None:
    """Show the controls of one spec, "a" or "b"."""
    draw_control(values, f"{side}.head_dim", "head_dim")
    draw_control(values, f"{side}.theta", "theta")
    name = f"{side}.scaling"
    draw_control(values, name, translate("Scaling"), on_change=fit_scaling, args=(name, side))
    chosen = values[f"{side}.scaling"]
    st.caption(about(SCALINGS[chosen], values["language"]))
    # the context factor comes first
    for field in sorted(
        controls.scaling_controls(SCALINGS[chosen]), key=lambda field: field != "factor"
    ):
        draw_control(values, f"{side}.{chosen}.{field}", field)
    with st.popover(translate("More")):
        draw_control(values, f"{side}.rotary_dim", translate("Rotated dimensions (0: all)"))
        for name in ("layout", "precision", "magnitude_on"):
            draw_control(values, f"{side}.{name}", name)


def _choose_view(values: dict[str, Any], translate: Translate, report: str | None) -> None:
    """Show the choice of a view, and the controls that only this view has."""
    views = [view for view in VIEWS if view != "report" or report]
    if values["view"] not in views:
        set_values({"view": "clocks"})
    title = lambda view: translate(TITLES[view])  # noqa: E731 - one line
    draw_control(
        values, "view", translate("View"), horizontal=True, option_text=title, choices=views
    )
    if values["view"] == "clocks":
        draw_control(values, "animate", translate("Animate the clocks"))
    elif values["view"] == "plane":
        last = min(controls.pairs_of(values, side) for side in controls.shown_sides(values)) - 1
        key = widget_key(values, "pair", (values["language"], last))
        # a slider needs two different ends
        st.slider(translate("Pair"), 0, max(last, 1), key=key, disabled=last == 0)


def _load(config: dict[str, Any] | bytes) -> None:
    """Set the controls to the first layer type of a config (bytes: a config.json), or store the
    error that the page shows.
    """
    session = st.session_state
    session["problem"] = None
    try:
        session["layers"] = layers_of(config)
    except RopeError as error:
        session["problem"] = str(error)
        return
    session.pop("layer", None)
    set_values(next(iter(session["layers"].values())))


def _load_preset() -> None:
    if st.session_state["preset"]:
        _load(EXAMPLES[st.session_state["preset"]])


def _load_upload() -> None:
    """Load the uploaded config."""
    if st.session_state["upload"] is not None:
        st.session_state["preset"] = ""
        # one byte above the limit, so that a larger file is detected
        _load(st.session_state["upload"].read(MAX_BYTES + 1))


def _load_layer() -> None:
    set_values(st.session_state["layers"][st.session_state["layer"]])


def _reset() -> None:
    """Set all controls but language and view to their defaults."""
    kept = {name: st.session_state["values"][name] for name in ("language", "view")}
    st.session_state["preset"], st.session_state["problem"] = "", None
    st.session_state.pop("layers", None)
    set_values(controls.defaults() | kept)


if __name__ == "__main__":
    page()
