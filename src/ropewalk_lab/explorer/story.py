"""The story: seven steps from one question to the engines; every step shows its answer and goes on
where free play begins.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import streamlit as st

from ropewalk.errors import RopeError
from ropewalk.frequencies import SCALINGS
from ropewalk.spec import RopeSpec
from ropewalk_lab.analysis import Facts, plain_radians, turns, wavelengths
from ropewalk_lab.analysis import radians as radians_of
from ropewalk_lab.explorer import charts, dials, drawings, engines, session, story_charts
from ropewalk_lab.explorer.controls import STEPS
from ropewalk_lab.explorer.state import fitted, spec_of
from ropewalk_lab.explorer.widgets import draw_control, widget_key
from ropewalk_lab.explorer.words import Translate, about
from ropewalk_lab.plots.numerals import short

STEP_TITLES = {
    "question": "The question", "angles": "Positions become angles", "pairs": "Fast and slow pairs",
    "beyond": "Beyond the trained length", "remedies": "Each remedy", "cost": "What it costs",
    "engines": "What engines make of it",
}  # fmt: skip
#: the scalings among which the story offers a choice; the page offers all
REMEDIES = ("default", "linear", "ntk", "dynamic", "yarn", "llama3")
# text beside pictures, in this proportion
_COLUMNS = (2, 3)


def draw(values: dict[str, Any], translate: Translate) -> Any:
    """Draw the choice of a step, the chosen step and the buttons below it; return the column beside
    them, for one more button.
    """
    title = lambda step: f"{STEPS.index(step) + 1} · {translate(STEP_TITLES[step])}"  # noqa: E731 - one line
    draw_control(values, "step", translate("Step"), tiles=True, option_text=title)
    spec = spec_of(values)
    facts = Facts(spec, values["trained"], values["served"])
    _DRAW_STEP[values["step"]](values, facts, translate)
    return _draw_buttons(STEPS.index(values["step"]), translate)


def _draw_buttons(index: int, translate: Translate) -> Any:
    """Show the buttons that lead from step number `index` to other steps and views; return the
    empty column beside them.
    """
    *columns, beside = st.columns([2, 2, 2, 3, 3])
    last = index + 1 == len(STEPS)
    # id of a button, its label, the values that it sets, whether it is disabled
    buttons = [
        ("back", f"← {translate('Back')}", {"step": STEPS[max(index - 1, 0)]}, index == 0),
        ("next", f"{translate('Next')} →", {"step": STEPS[index if last else index + 1]}, last),
        ("play", translate("Play freely"), {"view": "ladder", "compare": False}, False),
        ("model", translate("Let a model read"), {"view": "model"}, False),
    ]
    recommended = "play" if last else "next"
    for column, (key, label, target, disabled) in zip(columns, buttons, strict=True):
        options: dict[str, Any] = {
            "key": key,
            "type": "primary" if key == recommended else "secondary",
            "disabled": disabled,
        }
        column.button(
            label, on_click=session.set_values, args=(target,), width="stretch", **options
        )
    return beside


def _question(values: dict[str, Any], facts: Facts, translate: Translate) -> None:
    """Show step 1: the dials of a model that reads beyond its trained length."""
    lengths = {"trained": f"{facts.trained:,}", "served": f"{facts.served:,}"}
    st.subheader(
        translate(
            "A model was trained on {trained} tokens and now reads {served}. What is new to it?",
            **lengths,
        )
    )
    text, picture = st.columns(_COLUMNS, gap="large")
    with text:
        st.markdown(
            translate("Each dial is one pair of dimensions; its hand turns as the model reads.")
        )
        st.markdown(
            translate("Grey: angles seen in training. Red: angles that the model has never seen.")
        )
        _choose_remedy(values, translate, ("default", "yarn"))
        _verdict(facts, translate)
        draw_control(
            values,
            "trained",
            translate("Trained length"),
            on_change=session.fit_scaling,
            args=("trained",),
        )
        draw_control(
            values,
            "served",
            translate("Target length"),
            on_change=session.fit_scaling,
            args=("served",),
        )
    with picture:
        st.image(dials.reading(facts.spec, facts.trained, facts.served, translate), width="stretch")
        st.caption(
            translate("Fast pairs turn more often than a picture can show; they are slowed here.")
        )


def _verdict(facts: Facts, translate: Translate) -> None:
    """Show how many pairs reach angles that training never showed."""
    spec, new = facts.spec, facts.new_angles
    placeholders = {"name": spec.scaling.name, "new": new, "pairs": spec.pairs}
    if not new:
        st.success(
            translate(
                "{name}: no pair reaches an angle that training did not show.", **placeholders
            )
        )
    elif spec.scaling.name == "default":
        st.warning(
            translate(
                "{new} of {pairs} pairs reach angles that training never showed. Press yarn.",
                **placeholders,
            )
        )
    else:
        st.warning(
            translate(
                "{name}: {new} of {pairs} pairs reach angles that training never showed.",
                **placeholders,
            )
        )


def _choose_remedy(
    values: dict[str, Any], translate: Translate, names: tuple[str, ...] = REMEDIES
) -> None:
    """Show the choice of a scaling among `names`; a change fits it to the lengths."""
    # a scaling from a link or a config stays in the list
    names = tuple(dict.fromkeys((*names, values["a.scaling"])))
    scaling_text = lambda name: translate("no scaling") if name == "default" else name  # noqa: E731 - one line
    after_change: dict[str, Any] = {"on_change": session.fit_scaling, "args": ("a.scaling",)}
    draw_control(
        values,
        "a.scaling",
        translate("Scaling"),
        tiles=True,
        option_text=scaling_text,
        choices=names,
        **after_change,
    )


def _angles(values: dict[str, Any], facts: Facts, translate: Translate) -> None:
    """Show how the position rotates one pair."""
    spec, pair, position = facts.spec, values["pair"], values["position"]
    step = float(radians_of(spec, facts.served)[pair])
    st.subheader(translate("The position rotates every pair of q and k by an angle"))
    text, plane, chart = st.columns((3, 3, 5), gap="medium")
    with text:
        placeholders = {
            "pair": pair,
            "radians": f"{step:.4g}",
            "turn": short(float(wavelengths([step])[0])),
        }
        st.markdown(
            translate(
                "Pair {pair} rotates by {radians} radians per token; a turn takes {turn} tokens.",
                **placeholders,
            )
        )
        st.markdown(
            translate(
                "The score of a query and a key depends only on the difference of their "
                "angles: on their distance."
            )
        )
        draw_control(values, "position", translate("Position"))
        last = spec.pairs - 1
        key = widget_key(values, "pair", (values["language"], last))
        # a slider needs two different ends, even if there is one pair
        st.slider(translate("Pair"), 0, max(last, 1), key=key, disabled=last == 0)
    plane.image(drawings.plane(spec, pair, position, facts.served, translate), width="stretch")
    with chart:
        st.vega_lite_chart(
            spec=story_charts.wave(spec, pair, position, facts.served, translate), width="stretch"
        )
        st.caption(
            translate("The first dimension of the pair follows the cosine, the second the sine.")
        )


def _pairs(values: dict[str, Any], facts: Facts, translate: Translate) -> None:
    """Show the different speeds of the pairs."""
    spec, waves = facts.spec, wavelengths(radians_of(facts.spec, facts.served))
    st.subheader(translate("Every pair has a speed of its own"))
    placeholders = {"shortest": short(float(waves.min())), "longest": short(float(waves.max()))}
    st.markdown(
        translate(
            "The fastest pair turns once in {shortest} tokens, the slowest once in {longest}.",
            **placeholders,
        )
        + translate(" Fast pairs distinguish neighbours, slow pairs distinguish near from far.")
    )
    left, right = st.columns(2, gap="large")
    with left:
        st.image(
            drawings.clocks(
                spec, values["position"], facts.served, translate, animated=True, across=4
            ),
            width="stretch",
        )
        draw_control(values, "position", translate("Position"))
    right.vega_lite_chart(
        spec=charts.spectrum([spec], facts.trained, facts.served, translate), width="stretch"
    )


def _beyond(values: dict[str, Any], facts: Facts, translate: Translate) -> None:
    """Show that slow pairs reach new angles beyond the trained length."""
    slow = int((turns(plain_radians(facts.spec), facts.trained) < 1).sum())
    st.subheader(translate("Slow pairs leave the angles they were trained on"))
    placeholders = {"slow": slow, "pairs": facts.spec.pairs, "trained": f"{facts.trained:,}"}
    sentence = (
        "{slow} of {pairs} pairs complete no turn within {trained} tokens; beyond, their angles "
        "are new."
    )
    st.markdown(translate(sentence, **placeholders))
    left, right = st.columns(2, gap="large")
    plain = facts.spec.with_(scaling=SCALINGS["default"]())
    left.vega_lite_chart(
        spec=story_charts.beyond(plain, facts.trained, facts.served, translate), width="stretch"
    )
    right.vega_lite_chart(
        spec=charts.coverage([plain], facts.trained, facts.served, translate), width="stretch"
    )
    draw_control(
        values,
        "served",
        translate("Target length"),
        on_change=session.fit_scaling,
        args=("served",),
    )


def _remedies(values: dict[str, Any], facts: Facts, translate: Translate) -> None:
    """Show what each scaling does to the speeds and the angles."""
    st.subheader(
        translate("A scaling slows pairs down, so that their angles stay in the trained range")
    )
    _choose_remedy(values, translate)
    st.caption(about(SCALINGS[values["a.scaling"]], values["language"]))
    ratio = np.array(facts.radians) / plain_radians(facts.spec)
    magnitude = facts.spec.magnitude(facts.served)
    numbers = [
        (translate("New angles"), f"{facts.new_angles}/{facts.spec.pairs}"),
        (translate("Fastest pair, slowed by"), _times(ratio[0])),
        (translate("Slowest pair, slowed by"), _times(ratio[-1])),
        (translate("Magnitude"), f"{magnitude:.4g}"),
    ]
    for column, (label, number) in zip(st.columns(len(numbers)), numbers, strict=True):
        column.metric(label, number)
    left, right = st.columns(2, gap="large")
    left.vega_lite_chart(
        spec=story_charts.remedies(_specs(values), values["a.scaling"], facts.served, translate),
        width="stretch",
    )
    right.vega_lite_chart(
        spec=charts.coverage([facts.spec], facts.trained, facts.served, translate), width="stretch"
    )
    st.caption(
        translate(
            "A remedy that slows the fastest pair blurs neighbours; one that leaves the "
            "slowest alone leaves new angles."
        )
    )


def _times(ratio: float) -> str:
    """Return how many times slower a pair is at `ratio` of its speed, as text; a pair that stands
    still is ∞.
    """
    return f"{1 / ratio:.4g}x" if ratio else "∞"


def _specs(values: dict[str, Any]) -> dict[str, RopeSpec]:
    """Return {scaling: spec} of all REMEDIES, fitted to the lengths, and of the chosen scaling as
    its controls describe it.
    """
    chosen = values["a.scaling"]
    specs = {}
    for name in REMEDIES:
        with_scaling = values | {"a.scaling": name}
        specs[name] = spec_of(with_scaling | fitted(with_scaling, "a"))
    return specs | {chosen: spec_of(values)}


def _cost(values: dict[str, Any], facts: Facts, translate: Translate) -> None:
    """Show the cost in precision and memory."""
    st.subheader(translate("What it costs in precision and memory"))
    text = (
        "The length costs both; a scaling neither. Most libraries compute the angle in float32 and "
        "store one row per token."
    )
    st.markdown(translate(text))
    left, right = st.columns((3, 2), gap="large")
    left.vega_lite_chart(
        spec=charts.precision([facts.spec], facts.trained, facts.served, translate), width="stretch"
    )
    right.vega_lite_chart(spec=story_charts.memory(facts.memory, translate), width="stretch")
    right.caption(
        translate(
            "`none` computes every angle when it is needed; `two-level` keeps two small tables."
        )
    )
    draw_control(
        values,
        "served",
        translate("Target length"),
        on_change=session.fit_scaling,
        args=("served",),
    )


def _engines(values: dict[str, Any], facts: Facts, translate: Translate) -> None:
    """Show what inference engines compute from the same config."""
    st.subheader(translate("What engines make of the same config"))
    _choose_remedy(values, translate)
    text, code = st.columns((3, 2), gap="large")
    try:
        config = engines.config_of(facts)
    except RopeError:
        text.info(
            translate(
                "No config can name {name}: engines cannot read it. Choose another scaling.",
                name=values["a.scaling"],
            )
        )
        return
    rows = [f"| {row.engine} | {row.words(translate)} |" for row in engines.rows_of(config)]
    # Markdown instead of st.table, which would import pandas and arrow
    text.markdown(
        "\n".join(
            [
                f"| {translate('Engine')} | {translate('compared with transformers')} |",
                "|:---|:---|",
                *rows,
            ]
        )
    )
    text.caption(
        translate(
            "Read in the engines' sources and checked by runs; `ropewalk audit` names each "
            "rule and its evidence."
        )
    )
    code.markdown(f"**{translate('The config.json they read')}**")
    code.code(json.dumps(config, indent=2), language="json", wrap_lines=True)


_DRAW_STEP = {
    "question": _question,
    "angles": _angles,
    "pairs": _pairs,
    "beyond": _beyond,
    "remedies": _remedies,
    "cost": _cost,
    "engines": _engines,
}
