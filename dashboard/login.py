"""Who may look. `TOLLWAY_DASHBOARD_LOGIN=off` counts only on a loopback address; else a gateway key is asked for, or people
sign in at their identity provider, by Streamlit's own login, where `TOLLWAY_DASHBOARD_SECRETS` names its settings.

Keys and people are looked up again at every run of a page, so one that is revoked or disabled shuts the page within seconds.
"""
from __future__ import annotations

import os
import time
from typing import Any

import streamlit as st

from dashboard import data
from dashboard.data import Viewer

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_WRONG_S = 1.0


def viewer() -> Viewer | None:
    """Who looks; None after drawing the login instead."""
    if os.environ.get("TOLLWAY_DASHBOARD_LOGIN") == "off" and st.get_option("server.address") in LOOPBACK:
        return Viewer(None)
    if _provider() and st.user.is_logged_in:
        return _person(st.user.to_dict())
    secret = st.session_state.get("secret")
    found = data.verify(secret) if secret else None
    if found is None:
        st.session_state.pop("secret", None)
        _form(expired=bool(secret))
    return found


def signed_in() -> bool:
    """Whether there is anybody to sign out."""
    return "secret" in st.session_state or (_provider() and bool(st.user.is_logged_in))


def logout() -> None:
    person = _provider() and st.user.is_logged_in
    st.session_state.clear()
    if person:
        st.logout()


def _provider() -> bool:
    return bool(os.environ.get("TOLLWAY_DASHBOARD_SECRETS"))


def _person(claims: dict[str, Any]) -> Viewer | None:
    """Somebody whom the provider vouches for sees what the gateway's own list of people says."""
    person = data.person(str(claims.get("iss", "")), _subject(claims))
    if person is None or not (person.admin or person.teams):
        with _middle():
            st.warning("You are signed in, but not let in here. An admin can do that: `tollway users add`.")
            st.button("Sign out", on_click=logout)
        return None
    if person.admin:
        return Viewer(None, person.name)
    team = person.teams[0] if len(person.teams) == 1 else st.sidebar.selectbox("As a member of", person.teams, key="as-team")
    return Viewer(team, person.name)


def _subject(claims: dict[str, Any]) -> str:
    """As `login.oidc_claim` of the gateway; an address that is not verified is nobody's."""
    claim = os.environ.get("TOLLWAY_DASHBOARD_CLAIM", "sub")
    if claim == "email" and claims.get("email_verified") is not True:
        return ""
    return str(claims.get(claim, ""))


def _middle() -> Any:
    return st.columns([1, 2, 1])[1]


def _form(expired: bool) -> None:
    with _middle():
        if _provider() and st.button("Sign in with your organisation", type="primary", width="stretch"):
            st.login()
        with st.form("login"):
            _ask(expired)


def _ask(expired: bool) -> None:
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
