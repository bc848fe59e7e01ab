"""Who may look. `TOLLWAY_DASHBOARD_LOGIN=off` counts only on a loopback address; else a gateway key is asked for.

The key is checked again at every run of a page, so one that is revoked shuts the page within seconds.
"""
from __future__ import annotations

import os
import time

import streamlit as st

from dashboard import data
from dashboard.data import Viewer

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_WRONG_S = 1.0


def viewer() -> Viewer | None:
    """Who looks; None after drawing the login instead."""
    if os.environ.get("TOLLWAY_DASHBOARD_LOGIN") == "off" and st.get_option("server.address") in LOOPBACK:
        return Viewer(None)
    secret = st.session_state.get("secret")
    found = data.verify(secret) if secret else None
    if found is None:
        st.session_state.pop("secret", None)
        _form(expired=bool(secret))
    return found


def logout() -> None:
    st.session_state.clear()


def _form(expired: bool) -> None:
    _, middle, _ = st.columns([1, 2, 1])
    with middle, st.form("login"):
        st.subheader("Tollway", anchor=False)
        st.caption("Please log in to see your team's figures.")
        if expired:
            st.warning("This key is no longer valid.")
        secret = st.text_input("Gateway key", type="password", autocomplete="off", help="An admin's key shows all teams.")
        if st.form_submit_button("Sign in", type="primary") and secret:
            if data.verify(secret.strip()) is None:
                time.sleep(_WRONG_S)        # guessing is slow
                st.error("This key is not valid. `tollway keys create --team TEAM` makes one.")
            else:
                st.session_state["secret"] = secret.strip()
                st.rerun()
        if not os.environ.get("TOLLWAY_PEPPER_FILE"):
            st.caption("Keys cannot be checked: TOLLWAY_PEPPER_FILE is not set for the dashboard.")
