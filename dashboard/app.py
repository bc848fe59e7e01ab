"""The frame around the pages: navigation, the filter that all share and that lives in the address, refreshing, bad days."""
from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import ModuleType
from zoneinfo import available_timezones

import streamlit as st

from dashboard import data, login
from dashboard.data import LedgerUnavailable, Viewer
from dashboard.pages import caching, calls, latency, overview, spend
from dashboard.view import DEFAULT_RANGE, RANGES, View, view

PAGES: dict[str, tuple[ModuleType, str]] = {
    "Overview": (overview, ":material/monitoring:"),
    "Spend": (spend, ":material/payments:"),
    "Latency": (latency, ":material/speed:"),
    "Caching": (caching, ":material/cached:"),
    "Calls": (calls, ":material/list_alt:"),
}
ICON = str(Path(__file__).with_name("icon.svg"))
"""A file: for the browser's tab Streamlit would fetch a named symbol or emoji from a CDN."""
REFRESH_S, RETRY_S = 5, 3
ZONES = ("UTC", *sorted(zone for zone in available_timezones() if "/" in zone and not zone.startswith(("Etc/", "posix/"))))


_STYLE = """<style>
.stMainBlockContainer {padding: 3.2rem 3rem 2rem}
@media (max-width: 640px) {.stMainBlockContainer {padding: 3rem 1rem}}
</style>"""


def main() -> None:
    st.set_page_config("Tollway", ICON, layout="wide", initial_sidebar_state="auto")
    st.html(_STYLE)
    try:
        viewer = login.viewer()
    except LedgerUnavailable as error:
        _away(error)
        return
    if viewer is not None:
        pages = [st.Page(_nothing, title=title, icon=icon, url_path=title.lower()) for title, (_, icon) in PAGES.items()]
        # Drawn here and not by the page's `run()`: a widget that a page draws forgets its value when another page is chosen.
        show(st.navigation(pages).title, viewer)


def _nothing() -> None:
    """A page is only a name and an address to `st.navigation`."""


def show(title: str, viewer: Viewer) -> None:
    """One page in its frame."""
    with st.sidebar:
        chosen = _filters(viewer)
        live = st.toggle("Refresh every 5 s", key="live", value=_address("live") == "1")
        if viewer.team is not None:
            st.caption("Signed in as")
            st.text(f"{viewer.name} ({viewer.team})")
        if "secret" in st.session_state:
            st.button("Sign out", on_click=login.logout)
    _remember(live)
    every = RETRY_S if st.session_state.get("away") else REFRESH_S if live else None

    @st.fragment(run_every=every)
    def body() -> None:
        st.header(title, anchor=False)
        try:
            now = chosen(data.now_us())
            st.caption(f"{now.title} · days and hours of {now.tz}")
            PAGES[title][0].page(now, viewer)
        except LedgerUnavailable as error:
            _away(error)
            _switch(away=True)
        else:
            _switch(away=False)

    body()


def _switch(*, away: bool) -> None:
    """While the ledger is away the page tries again by itself, and no longer once it is back."""
    if st.session_state.get("away", False) != away:
        st.session_state["away"] = away
        st.rerun()


def _away(error: LedgerUnavailable) -> None:
    st.warning(str(error), icon=":material/cloud_off:")
    st.caption("This page tries again every few seconds.")


def _filters(viewer: Viewer) -> Callable[[int], View]:
    """The shared filter; gives a function from now to the view, for each refresh to use."""
    _from_address()
    range_ = st.selectbox("Time", list(RANGES), format_func=RANGES.__getitem__, key="range")
    dates = _dates() if range_ == "custom" else None
    tz = st.selectbox("Time zone", ZONES, key="tz")
    teams = [viewer.team] if viewer.team is not None else _choose_teams()
    return lambda now_us: view(range_ or DEFAULT_RANGE, tz or "UTC", teams, now_us, dates)


def _dates() -> tuple[date, date] | None:
    chosen = st.date_input("Days, both included", key="days", value=(date.today(), date.today()), format="YYYY-MM-DD")
    return (chosen[0], chosen[1]) if isinstance(chosen, tuple) and len(chosen) == 2 else None


def _choose_teams() -> list[str]:
    """Of those there are, and those that the address names: a team that is gone is still shown as chosen."""
    try:
        found = data.values("team", data.Slice())
    except LedgerUnavailable:
        found = []
    return st.multiselect("Teams", sorted({*found, *st.session_state["team"]}), key="team", placeholder="All teams")


def _address(name: str) -> str:
    return str(st.query_params.get(name, ""))


def _from_address() -> None:
    """At a session's first run its address decides; what is not valid there is left out."""
    state = st.session_state
    if "range" not in state:
        state["range"] = _address("range") if _address("range") in RANGES else DEFAULT_RANGE
    if "tz" not in state:
        wanted = (_address("tz"), st.context.timezone or "")
        state["tz"] = next((zone for zone in wanted if zone in ZONES), "UTC")
    if "team" not in state:
        state["team"] = [team for team in st.query_params.get_all("team") if team]
    if "days" not in state and state["range"] == "custom":
        try:
            state["days"] = (date.fromisoformat(_address("from")), date.fromisoformat(_address("to")))
        except ValueError:
            state["range"] = DEFAULT_RANGE


def _remember(live: bool) -> None:
    """The address shows what is chosen, so that it can be passed on."""
    state = st.session_state
    address: dict[str, str | list[str]] = {"range": state["range"], "tz": state["tz"]}
    if state.get("team"):
        address["team"] = state["team"]
    if live:
        address["live"] = "1"
    days = state.get("days")
    if state["range"] == "custom" and isinstance(days, tuple) and len(days) == 2:
        address |= {"from": days[0].isoformat(), "to": days[1].isoformat()}
    if "call" in st.query_params:
        address["call"] = _address("call")
    st.query_params.from_dict(address)

