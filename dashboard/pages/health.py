"""How gateways, lanes and stores are, how fresh the figures are, and what alerts told."""
from __future__ import annotations

import streamlit as st

from dashboard import data, format, parts
from dashboard.data import Viewer
from dashboard.view import View

STALE_S = 90


def page(view: View, viewer: Viewer) -> None:
    found = data.status()
    now_us = data.now_us()
    if not found:
        parts.unheard()
    else:
        if viewer.team is None:
            _gateways(found, now_us)
        _lanes(found, now_us)
    _freshness(now_us, view.tz)
    parts.heading("Alerts told lately")
    if viewer.team is None:
        _test_alerts()
    alerts = data.alerts(viewer.team)
    if not alerts:
        st.caption("None. `alerts:` in tollway.yaml says what is told and where; `tollway alerts test` tries it.")
        return
    rows = [
        {"when": f"{data.instant(a['at_us'], view.tz):%d %b %H:%M}", "kind": a["kind"], "team": a["team"], "what": a["title"],
         "more": a["text"]}
        for a in alerts
    ]  # fmt: skip
    parts.frame(rows, "alerts")


def _test_alerts() -> None:
    """The gateway sends, not this page, and only for an admin's key."""
    secret = st.session_state.get("secret")
    if secret is None:
        st.caption("`tollway alerts check` is a dry run, `tollway alerts test` sends a harmless one by every channel.")
    elif st.button("Send a test alert", key="test-alert", icon=":material/send:"):
        for channel, problem in data.test_alerts(secret).items():
            st.text(f"{channel}: {problem or 'taken'}")


def _gateways(found: list[dict[str, object]], now_us: int) -> None:
    parts.heading("Gateways")
    rows = [
        {"gateway": one["gateway"], "heard": format.ms((now_us - int(str(one["at_us"]))) / 1_000) + " ago",
         "database": one["database"], "journal lag, entries": one["journal_lag"], "draining": one["draining"]}
        for one in found
    ]  # fmt: skip
    parts.frame(rows, "gateways")
    if now_us - int(str(found[0]["at_us"])) > STALE_S * 1_000_000:
        st.warning("No gateway was heard for a while: it is stopped, or the database does not take what it writes.",
                   icon=":material/heart_broken:")


def _lanes(found: list[dict[str, object]], now_us: int) -> None:
    parts.heading("Lanes")
    rows = [
        {"lane": lane["lane"], "state": "taken" if lane["healthy"] else f"left alone: {lane['why_not']}",
         "in flight": lane["in_flight"], "expected first token": format.ms(lane["queue_s"] * 1_000), "samples": lane["samples"],
         **({"gateway": one["gateway"]} if len(found) > 1 else {})}
        for one in found if now_us - int(str(one["at_us"])) <= STALE_S * 1_000_000
        for lane in one["lanes"]      # type: ignore[attr-defined]
    ]  # fmt: skip
    if rows:
        parts.frame(rows, "lanes-health")
    else:
        st.info("No gateway that is running has said how its lanes are.", icon=parts.NOTHING)


def _freshness(now_us: int, tz: str) -> None:
    parts.heading("How fresh the figures are")
    entries, rolled_us = data.rolled()
    last = data.extent().last_us
    if rolled_us:
        ago = format.ms((now_us - rolled_us) / 1_000)
        st.text(f"Roll-ups hold {entries:,} entries, last added to {ago} ago; newer entries are read from the ledger itself.")
    else:
        st.text("No roll-up has been made yet: all figures are read from the ledger itself.")
    if last is not None and last > now_us + 60_000_000:
        st.warning(
            f"The newest entry is from {data.instant(last, tz):%d %b %Y %H:%M:%S}, in the future: a gateway's clock is wrong. "
            "Its calls are counted on the day that its clock said.", icon=":material/schedule:",
        )  # fmt: skip
