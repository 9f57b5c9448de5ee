"""The values of one visitor: at first from the link, then from the widgets; streamlit keeps them
between runs.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from ropewalk.errors import RopeError
from ropewalk_lab.explorer import controls
from ropewalk_lab.explorer.state import fitted, limited
from ropewalk_lab.explorer.widgets import widget_value


def current() -> dict[str, Any]:
    """Return the session's values by name: first those of the link, then those of the widgets,
    within the controls' limits.
    """
    session = st.session_state
    if "values" not in session:
        try:
            session["values"] = controls.from_link(st.query_params.to_dict())
        except RopeError as error:
            session["values"], session["problem"] = controls.defaults(), str(error)
    values = session["values"]
    # one read of the whole session, because looking up each name takes several milliseconds
    values.update({name: value for name, value in session.to_dict().items() if name in values})
    set_values(limited(values))  # also changes `values`
    return values


def set_values(new: dict[str, Any]) -> None:
    """Set the values `new` in the session and in the widgets that show them."""
    values = st.session_state["values"]
    changed = {name: value for name, value in new.items() if values.get(name) != value}
    values.update(changed)
    for name, value in changed.items():
        if name in st.session_state:
            st.session_state[name] = widget_value(value)


def fit_scaling(name: str, side: str = "a") -> None:
    """Store the value of the changed widget `name`, then set the scaling's factor and trained
    length from the two lengths.
    """
    values = st.session_state["values"]
    values[name] = st.session_state[name]
    set_values(fitted(values, side))


def remember_view(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with `view` replaced by the latest view that shows a picture; a link from
    the code leads back to it.
    """
    session = st.session_state
    if values["view"] not in ("code", "report"):
        session["picture_view"] = values["view"]
    return {**values, "view": session.get("picture_view", values["view"])}
