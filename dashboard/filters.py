"""The filter that all pages share: in the sidebar, in the session, in the address.

What was chosen is kept under a name of our own and given to the widgets at each run: Streamlit forgets what stands in a widget
when another page is chosen before the first has been drawn to its end.
"""
from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any
from zoneinfo import available_timezones

import streamlit as st

from dashboard import data
from dashboard.data import LedgerUnavailable, Viewer
from dashboard.view import DEFAULT_RANGE, RANGES, View, view

ZONES = ("UTC", *sorted(zone for zone in available_timezones() if "/" in zone and not zone.startswith(("Etc/", "posix/"))))

LISTS = {"team": "Teams", "model": "Models", "lane": "Lanes"}
OF_PAGES = ("call", "run", "by", "is")
"""Query parameters that pages use for themselves."""
ONLY = "only"
"""One that a link has: the team to narrow the filter to, where teams are the viewer's to choose."""


def choose(viewer: Viewer) -> Callable[[int], View]:
    """Draws the filter; gives a function from now to the view, for each refresh to use."""
    kept = _kept()
    for name, value in kept.items():
        st.session_state[name] = value
    st.selectbox("Time", list(RANGES), format_func=RANGES.__getitem__, key="range", on_change=_keep, args=("range",))
    if kept["range"] == "custom":
        st.date_input("Days, both included", key="days", format="YYYY-MM-DD", on_change=_keep, args=("days",))
    st.selectbox("Time zone", ZONES, key="tz", on_change=_keep, args=("tz",))
    where: dict[str, Any] = dict(viewer.where)
    for name, label in LISTS.items():
        if name in where:       # it is not the viewer's to choose
            continue
        options = sorted({*_values(name, viewer), *kept[name]})     # one that is gone is still shown as chosen
        shown = f"All {label.lower()}"
        st.multiselect(label, options, key=name, placeholder=shown, on_change=_keep, args=(name,))
        if kept[name]:
            where[name] = list(kept[name])
    st.toggle("Refresh every 5 s", key="live", on_change=_keep, args=("live",))
    days = kept["days"] if len(kept["days"]) == 2 else None     # one, while the second is being chosen
    return lambda now_us: view(kept["range"], kept["tz"], where, now_us, days)


def live() -> bool:
    return bool(_kept()["live"])


def widen() -> None:
    """All time, all teams, models and lanes."""
    _kept().update(range="all", **{name: [] for name in LISTS})


def remember() -> None:
    """The address shows what is chosen, so that it can be passed on."""
    own: dict[str, str | list[str]] = {name: _address(name) for name in OF_PAGES if name in st.query_params}
    st.query_params.from_dict(address() | own)


def address() -> dict[str, str | list[str]]:
    """What is chosen, as query parameters."""
    kept = _kept()
    found: dict[str, str | list[str]] = {"range": kept["range"], "tz": kept["tz"]}
    found |= {name: kept[name] for name in LISTS if kept[name]}
    if kept["live"]:
        found["live"] = "1"
    if kept["range"] == "custom" and len(kept["days"]) == 2:
        found |= {"from": kept["days"][0].isoformat(), "to": kept["days"][1].isoformat()}
    return found


def _kept() -> dict[str, Any]:
    """At a session's first run its address decides; what is not valid there is left out."""
    if "kept" not in st.session_state:
        range_, days = _address("range"), _days()
        zones = (_address("tz"), st.context.timezone or "")
        st.session_state["kept"] = {
            "range": range_ if range_ in RANGES and (days or range_ != "custom") else DEFAULT_RANGE,
            "tz": next((zone for zone in zones if zone in ZONES), "UTC"),
            **{name: [value for value in st.query_params.get_all(name) if value] for name in LISTS},
            "live": _address("live") == "1",
            "days": days or (date.today(), date.today()),
        }
    kept: dict[str, Any] = st.session_state["kept"]
    if only := _address(ONLY):
        kept["team"] = [only]
        del st.query_params[ONLY]
    return kept


def _keep(name: str) -> None:
    _kept()[name] = st.session_state[name]


def _days() -> tuple[date, date] | None:
    try:
        first, last = date.fromisoformat(_address("from")), date.fromisoformat(_address("to"))
    except ValueError:
        return None
    return (first, last) if first <= last else None


def _values(name: str, viewer: Viewer) -> list[str]:
    try:
        return data.values(name, data.Slice(where=viewer.where))
    except LedgerUnavailable:
        return []


def _address(name: str) -> str:
    return str(st.query_params.get(name, ""))
