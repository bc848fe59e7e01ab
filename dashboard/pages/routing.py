"""Which lane calls took, what it cost against what it waited, what the lanes that lost would have cost, and what went wrong."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from dashboard import charts, data, format, parts
from dashboard.data import Row, Viewer
from dashboard.view import View, buckets

SAMPLE = 300


def page(view: View, viewer: Viewer) -> None:
    if parts.empty(view, viewer):
        return
    sums = data.spend(("lane", "class"), view.part)
    _figures(sums.total)
    left, right = st.columns(2, gap="large")
    with left:
        parts.heading(f"Attempts per {view.bucket}, by lane")
        over_time = data.spend((view.bucket, "lane"), view.part).rows
        points = [charts.over_time(row, charts.name(row.key[1]), row.attempts, f"{row.attempts:,}") for row in over_time]
        ticks = buckets(view, (row.key[0] for row in over_time))
        parts.chart(charts.stacked(points, ticks, "lane", "attempts"), f"Attempts per {view.bucket} by lane")
    with right:
        parts.heading("Share of each class by lane")
        parts.chart(charts.grid(_shares(sums.rows), "share of the class"), "Share of each class by lane")
    parts.heading(f"Expected cost against wait, the latest {SAMPLE} calls and the lanes that lost")
    _weighed(view, viewer)
    parts.heading("What did not end well")
    statuses = [row for row in data.spend(("status",), view.part).rows if row.key[0] not in ("ok", "unpriced") and row.attempts]
    if statuses:
        parts.table(("status",), statuses, "statuses", ("attempts", "calls", "cost"))
    else:
        st.success("Every attempt in this range ended well.", icon=":material/check_circle:")
    parts.heading("All figures, by backend and lane")
    parts.table(("backend", "lane"), data.spend(("backend", "lane"), view.part).rows, "routing")


def _figures(total: Row) -> None:
    calls, retries, failed = st.columns(3)
    parts.figure(calls, "Calls", format.count(total.calls), f"{total.attempts:,} attempts")
    parts.figure(retries, "Retries, failovers and hedges", format.count(total.retries), "attempts after the first of a call",
                 format.share(total.retries / total.attempts if total.attempts else None), "none")
    parts.figure(failed, "Failed attempts", format.count(total.failed), "attempts that did not end well, hang-ups included",
                 format.share(total.failed / total.attempts if total.attempts else None), "none")


def _shares(rows: Sequence[Row]) -> list[charts.Point]:
    whole: dict[str, int] = {}
    for row in rows:
        whole[charts.name(row.key[1])] = whole.get(charts.name(row.key[1]), 0) + row.attempts
    return [
        {"x": charts.name(row.key[0]), "y": charts.name(row.key[1]), "value": row.attempts / whole[charts.name(row.key[1])],
         "exact": f"{row.attempts:,} of {whole[charts.name(row.key[1])]:,}"}
        for row in rows if row.attempts
    ]  # fmt: skip


def _weighed(view: View, viewer: Viewer) -> None:
    points, saved = [], 0.0
    for call in data.decisions(view.part, SAMPLE):
        lanes = [lane for lane in call["decision"] if _cost(lane) is not None]
        for place, lane in enumerate(lanes):
            chosen = place == 0
            points.append({
                "wait": max(float(lane.get("expected_wait_s") or 0), 0.001), "cost": max(_cost(lane) or 0, 1e-9),
                "name": str(lane["lane"]).rpartition("/")[2], "chosen": "chosen" if chosen else "lost", "id": call["id"],
                "exact": f"${_cost(lane):.6f}, {float(lane.get('expected_wait_s') or 0):.2f} s",
            })  # fmt: skip
        if len(lanes) > 1:
            saved += max(float(lane.get("sum_usd") or 0) for lane in lanes) - float(lanes[0].get("sum_usd") or 0)
    if not points:
        st.info("No decision with figures of several lanes was kept for the latest calls.", icon=parts.NOTHING)
        return
    parts.chart(charts.scatter(points), "Expected cost against expected wait of the lanes of the latest calls")
    st.caption(f"Against the dearest lane that was weighed, these calls save ${saved:,.4f} of cost and waiting together.")


def _cost(lane: dict[str, Any]) -> float | None:
    value = lane.get("expected_cost_usd", lane.get("cost_usd"))
    return None if value is None or "refused" in lane else float(value)
