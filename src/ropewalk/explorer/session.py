"""The values of one visitor: at first from the link, then from the widgets; streamlit keeps them between runs."""

from __future__ import annotations

from typing import Any

import streamlit as st

from ropewalk.errors import RopeError
from ropewalk.explorer import controls
from ropewalk.explorer.state import fitted, settle
from ropewalk.explorer.widgets import mirror


def current() -> dict[str, Any]:
    """Return the session's values: initially from the link, then updated from the widgets and limited by `settle`."""
    session = st.session_state
    if "values" not in session:
        try:
            session["values"] = controls.from_link(st.query_params.to_dict())
        except RopeError as error:
            session["values"], session["problem"] = controls.defaults(), str(error)
    values = session["values"]
    # one read of the whole session, because looking up each name takes several milliseconds
    values.update({name: value for name, value in session.to_dict().items() if name in values})
    put(settle(values))
    return values


def put(new: dict[str, Any]) -> None:
    """Set values of the session and of the widgets that show them."""
    values = st.session_state["values"]
    changed = {name: value for name, value in new.items() if values.get(name) != value}
    values.update(changed)
    for name, value in changed.items():
        if name in st.session_state:
            st.session_state[name] = mirror(value)


def fit(name: str, side: str = "a") -> None:
    """Take over the widget `name` that was changed, and fit the scaling of one side to the trained and target length."""
    values = st.session_state["values"]
    values[name] = st.session_state[name]
    put(fitted(values, side))


def remember_view(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with the last view that showed a picture: a link from the code view restores that one."""
    session = st.session_state
    if values["view"] not in ("code", "report"):
        session["came_from"] = values["view"]
    return {**values, "view": session.get("came_from", values["view"])}
