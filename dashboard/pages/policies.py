"""Which policy files are in force, since when, and what is wrong with newer ones."""
from __future__ import annotations

import streamlit as st

from dashboard import data, parts
from dashboard.data import Viewer
from dashboard.view import View


def page(view: View, viewer: Viewer) -> None:
    found = data.status()
    if not found:
        parts.unheard()
        return
    now = found[0]
    for problem in now["policy_problems"] if viewer.team is None else ():
        st.error("A changed policy file is not in force; the last good ones are.", icon=":material/error:")
        st.code(problem, language=None)
    loaded_us = int(now["policies_loaded_s"] * 1e6)
    st.caption(f"Loaded {data.instant(loaded_us, view.tz):%d %B %Y at %H:%M:%S}. Files are read again when they change.")
    shown = {team: version for team, version in now["policies"].items() if viewer.team in (None, team)}
    parts.heading("In force")
    if not shown:
        st.info("No policy file of its own: the default policy holds. Start one with the shipped examples.", icon=parts.NOTHING)
    else:
        rows = [{"team": team, "version": version} for team, version in sorted(shown.items())]
        st.dataframe(rows, hide_index=True, key="policies-table")
        parts.download(rows, ["team", "version"], "policies")
    parts.heading("Before you change one")
    st.code(
        "tollway policy check policies/          # valid? file, line, nearest word\n"
        "tollway policy test policies/           # the tests that stand in the files\n"
        "tollway policy backtest OLD NEW --from 2026-11-01 --to 2026-11-30", language="bash",
    )  # fmt: skip
