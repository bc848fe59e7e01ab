"""The frame around the pages: navigation, login, the shared filter, refreshing, bad days."""
from __future__ import annotations

from pathlib import Path
from types import ModuleType

import streamlit as st

from dashboard import data, filters, login
from dashboard.data import LedgerUnavailable, Viewer
from dashboard.pages import budgets, caching, calls, health, latency, overview, policies, routing, runs, spend

PAGES: dict[str, tuple[ModuleType, str]] = {
    "Overview": (overview, ":material/monitoring:"),
    "Spend": (spend, ":material/payments:"),
    "Caching": (caching, ":material/cached:"),
    "Latency": (latency, ":material/speed:"),
    "Routing": (routing, ":material/alt_route:"),
    "Budgets": (budgets, ":material/savings:"),
    "Runs": (runs, ":material/account_tree:"),
    "Calls": (calls, ":material/list_alt:"),
    "Policies": (policies, ":material/policy:"),
    "Health": (health, ":material/vital_signs:"),
}
OF_NOW = ("Budgets", "Policies", "Health")
"""Pages about how things are, whatever range is chosen."""
REFRESH_S, RETRY_S = 5, 3
ICON = str(Path(__file__).with_name("icon.svg"))
"""A file: for the browser's tab Streamlit would fetch a named symbol or emoji from a CDN."""
_STYLE = """<style>
.stMainBlockContainer {padding: 3.2rem 3rem 2rem}
[data-testid=stMetricValue] {font-size: 1.7rem}
[data-testid=stMetricLabel] :is(p, div) {white-space: normal; overflow: visible}
@media (max-width: 640px) {
  .stMainBlockContainer {padding: 3rem 1rem}
  [data-testid=stColumn]:has([data-testid=stMetric]) {min-width: calc(50% - 1rem); flex: 1 1 calc(50% - 1rem)}
  [data-testid=stMetricValue] {font-size: 1.4rem}
}
</style>"""


def main() -> None:
    st.set_page_config("Tollway", ICON, layout="wide", initial_sidebar_state="auto")
    st.html(_STYLE)
    try:
        viewer = login.viewer()
    except LedgerUnavailable:
        _wait_for_keys()
        return
    if viewer is not None:
        pages = [st.Page(_nothing, title=title, icon=icon, url_path=title.lower()) for title, (_, icon) in PAGES.items()]
        st.session_state["pages"] = {page.title: page for page in pages}
        show(st.navigation(pages).title, viewer)


def _nothing() -> None:
    """A page is only a name and an address to `st.navigation`: what is on it is drawn by `show`."""


def show(title: str, viewer: Viewer) -> None:
    """One page in its frame."""
    with st.sidebar:
        chosen = filters.choose(viewer)
        if viewer.team is not None:
            st.caption("Signed in as")
            st.text(f"{viewer.name} ({viewer.team}{f', {viewer.project}' if viewer.project else ''})")
        if login.signed_in():
            st.button("Sign out", on_click=login.logout)
    filters.remember()
    every = RETRY_S if st.session_state.get("away") else REFRESH_S if filters.live() else None

    @st.fragment(run_every=every)
    def body() -> None:
        st.header(title, anchor=False)
        try:
            now = chosen(data.now_us())
            st.caption(f"{'As it is now' if title in OF_NOW else now.title} · days and hours of {now.tz}")
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


@st.fragment(run_every=RETRY_S)
def _wait_for_keys() -> None:
    """Without the database no key can be checked."""
    try:
        data.extent()
    except LedgerUnavailable as still:
        _away(still)
    else:
        st.rerun()
