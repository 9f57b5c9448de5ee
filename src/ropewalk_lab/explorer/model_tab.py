"""The view of a model: it reads a text without and with a scaling; one head's attention, the losses
and a pass key are shown.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import streamlit as st

from ropewalk.errors import RopeError
from ropewalk_lab.downloads import find_fetched
from ropewalk_lab.explorer import model_charts, reading
from ropewalk_lab.explorer.controls import MAX_TEXT
from ropewalk_lab.explorer.reading import OWN, LoadedModel, Reading, ReadingRequest
from ropewalk_lab.explorer.widgets import draw_control, literal, show_error, widget_key
from ropewalk_lab.explorer.words import Translate
from ropewalk_lab.fit.methods import NONE, methods
from ropewalk_lab.studies.real import TINY

#: environment variables, set by the launcher: visitors may name paths, since the page is served to
#: this machine only
LOCAL = "ROPEWALK_LOCAL"
#: the model that the view begins with
MODEL = "ROPEWALK_MODEL"
TEXT_TITLES = {
    "filler": "Filler sentences",
    "python": "Python's documentation",
    "own": "A text of your own",
}


def draw(values: dict[str, Any], translate: Translate) -> None:
    """Draw the choice of a model, the controls and the charts; errors are sentences on the page."""
    name = _choose_model(translate)
    if not name:
        return
    try:
        with st.spinner(translate("Loading the model; a file of 100 MB takes some seconds ...")):
            model = reading.load(name)
        typed = _controls(values, model, translate)
        before, after = _read(model, _request(values, typed), translate)
    except RopeError as error:
        show_error(str(error))
        return
    _show(values, model, before, after, translate)


def _choose_model(translate: Translate) -> str:
    """Draw the field for a model's path and return what is in it; a hosted page has no field and
    returns its owner's model.
    """
    given = os.environ.get(MODEL, "")
    if not os.environ.get(LOCAL):
        # a hosted page reads only the model that its owner has named
        if not given:
            text = (
                "This page is hosted, so it reads no file of its machine; here is a tiny model "
                "with random weights."
            )
            st.info(
                f"{translate(text)} "
                f"{translate('To read with a model of your own, run `ropewalk explore` on your machine.')}"
            )
        return given or TINY
    session = st.session_state
    session.setdefault("model_path", given or _downloaded_model())
    label = translate("Model: the path of a .gguf file or of a Hugging Face folder")
    session["model_path"] = (
        st.text_input(label, session["model_path"], max_chars=4096) or ""
    ).strip()
    if not session["model_path"]:
        st.info(
            translate(
                "`ropewalk lab fetch smollm2` downloads a model of 93 MB; then enter smollm2."
            )
            + " "
            + translate("`tiny` is a model with random weights, only to try the page.")
        )
    return session["model_path"]


def _downloaded_model() -> str:
    """Return the name of the model that `ropewalk lab fetch` has downloaded, or an empty text."""
    try:
        find_fetched("smollm2")
    except RopeError:
        return ""
    return "smollm2"


def _controls(values: dict[str, Any], model: LoadedModel, translate: Translate) -> str:
    """Draw the controls of a reading; return the text that the visitor typed, empty unless that
    text is chosen.
    """
    left, middle, right = st.columns(3, gap="large")
    method_text = lambda method: translate("no scaling") if method == NONE else method  # noqa: E731 - one line
    with left:
        draw_control(values, "model.method", translate("Scaling"), option_text=method_text)
        if methods()[values["model.method"]].factor:  # the method has a factor
            draw_control(values, "model.factor", translate("Factor"))
        st.caption(translate("Trained length: {tokens} tokens", tokens=f"{model.trained:,}"))
    with middle:
        draw_control(
            values,
            "model.text",
            translate("Text"),
            option_text=lambda text: translate(TEXT_TITLES[text]),
        )
        draw_control(values, "model.tokens", translate("Tokens"))
    with right:
        draw_control(values, "model.depth", translate("Depth of the pass key: 0 is the start"))
        draw_control(values, "model.gap", translate("Positions skipped before the question"))
    if values["model.text"] != OWN:
        return ""
    session = st.session_state
    session["typed"] = st.text_area(
        translate("Text"), session.get("typed", ""), max_chars=MAX_TEXT, key="typed_text"
    )
    return session["typed"]


def _request(values: dict[str, Any], typed: str) -> ReadingRequest:
    """Return what the controls ask for; the factor is 1 if the method has none, so that equal
    readings are equal requests.
    """
    fields = ("method", "factor", "text", "tokens", "depth", "gap")
    request = ReadingRequest(**{field: values[f"model.{field}"] for field in fields}, typed=typed)
    return request if methods()[request.method].factor else replace(request, factor=1.0)


def _read(
    model: LoadedModel, request: ReadingRequest, translate: Translate
) -> tuple[Reading, Reading]:
    """Return the readings without and with the method; a bar shows the layers that are done."""
    bar = st.empty()

    def report(done: int, total: int) -> None:
        bar.progress(
            done / total, translate("Reading: layer {done} of {total}", done=done, total=total)
        )

    without = replace(request, method=NONE, factor=1.0)
    try:
        return reading.read(model, without, report), reading.read(model, request, report)
    finally:
        bar.empty()


def _show(
    values: dict[str, Any],
    model: LoadedModel,
    before: Reading,
    after: Reading,
    translate: Translate,
) -> None:
    """Show what the model read without and with the scaling: numbers, attention of one head, and
    losses.
    """
    plain, chosen = translate("no scaling"), _title(values, translate)
    st.markdown(f"**{translate('Before and after')}** · {literal(model.source[0])}")
    numbers = [
        (
            translate("Probability of the pass key"),
            f"{before.probability:.1%}",
            f"{after.probability:.1%}",
        ),
        (
            translate("Mean loss, nats per token"),
            f"{before.losses.mean():.3f}",
            f"{after.losses.mean():.3f}",
        ),
        (translate("Last position"), f"{before.positions[-1]:,}", f"{after.positions[-1]:,}"),
    ]
    # Markdown instead of st.table, which would import pandas and arrow
    rows = [f"| {label} | {first} | {second} |" for label, first, second in numbers]
    st.markdown("\n".join([f"| | {plain} | {chosen} |", "|:---|---:|---:|", *rows]))
    for name, title, last in (
        ("layer", "Layer", model.layers - 1),
        ("head", "Head", model.heads - 1),
    ):
        # the values may be those of a model with more layers or heads
        values[f"model.{name}"] = min(values[f"model.{name}"], last)
        key = widget_key(values, f"model.{name}", (values["language"], last))
        # a slider needs two different ends; the next run of the page reads its value from the
        # session, under its key
        st.slider(translate(title), 0, max(last, 1), key=key, disabled=last == 0)
    layer, head = values["model.layer"], values["model.head"]
    largest = float(max(before.maps[layer, head].max(), after.maps[layer, head].max()))
    charts = [
        model_charts.attention(
            result,
            layer,
            head,
            largest,
            f"{translate('Attention of one head')}: {title}",
            translate,
        )
        for title, result in ((plain, before), (chosen, after))
    ]
    for column, chart in zip(st.columns(2, gap="large"), charts, strict=True):
        column.vega_lite_chart(spec=chart, width="stretch")
    # one line if no scaling is chosen, since both readings have the same label then
    st.vega_lite_chart(
        spec=model_charts.losses({plain: before, chosen: after}, translate), width="stretch"
    )
    st.caption(
        translate("A pass key is stated in the text and asked for at its end.")
        + translate(
            " Skipped positions put the same distance between them as a longer text does, "
            "without its tokens."
        )
    )


def _title(values: dict[str, Any], translate: Translate) -> str:
    """Return the name of the chosen method, with its factor if it has one."""
    name = values["model.method"]
    if name == NONE:
        return translate("no scaling")
    return f"{name} {values['model.factor']:g}x" if methods()[name].factor else name
