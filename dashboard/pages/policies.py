"""Which policy files are in force, since when, and what is wrong with newer ones."""
from __future__ import annotations

from typing import Any

import streamlit as st

from dashboard import data, format, parts
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
        parts.frame(rows, "policies")
        parts.download(rows, ["team", "version"], "policies")
    parts.heading("Backtests")
    _backtests(view, viewer)
    parts.heading("Before you change one")
    st.code(
        "tollway policy check policies/          # valid? file, line, nearest word\n"
        "tollway policy test policies/           # the tests that stand in the files\n"
        "tollway policy backtest OLD NEW --from 2026-11-01 --to 2026-11-30 --keep", language="bash",
    )  # fmt: skip


def _backtests(view: View, viewer: Viewer) -> None:
    """What changed policies would have brought, each with its 95 % interval; a team sees its own classes."""
    rows = [row for one in data.backtests() for row in _rows(one, view.tz, viewer)]
    if not rows:
        st.caption("None was kept: `tollway policy backtest OLD NEW --keep` shows its result here.")
        return
    share = st.column_config.NumberColumn(format="percent")
    money = {name: parts.money(name, [row[name] for row in rows]) for name in ("old $", "new $")}
    numbers = {"missed, old": share, "missed, new": share, **money}
    parts.frame(rows, "backtests", numbers)
    parts.download(rows, list(rows[0]), "backtests")


def _rows(one: dict[str, Any], tz: str, viewer: Viewer) -> list[dict[str, Any]]:
    result = one["result"]
    groups = [{"team": None, "class": None, **result["all"]}] if viewer.team is None else []
    groups += [group for group in result.get("groups", []) if viewer.team in (None, group["team"])]
    return [_row(group, one, tz) for group in groups]


def _row(group: dict[str, Any], one: dict[str, Any], tz: str) -> dict[str, Any]:
    cost, missed, first = group["cost_usd"], group["miss_share"], group["first_token_p95_s"]
    low, high = cost["change_95"]
    return {
        "when": f"{data.instant(one['at_us'], tz):%Y-%m-%d %H:%M}", "what": one["title"], "team": group["team"] or "all",
        "class": group["class"] or "all", "calls": group["new"]["calls"], "old $": cost["old"], "new $": cost["new"],
        "change, 95 %": f"{low:+.6f} to {high:+.6f}", "missed, old": missed["old"], "missed, new": missed["new"],
        "first token p95": f"{format.ms(first['old'] * 1_000)} to {format.ms(first['new'] * 1_000)}",
    }  # fmt: skip
