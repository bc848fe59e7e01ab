"""What was spent, is it rising, is it fast, what did caching save, and who spends most."""
from __future__ import annotations

import streamlit as st

from dashboard import charts, data, format, parts
from dashboard.data import Viewer
from dashboard.view import View


def page(view: View, viewer: Viewer) -> None:
    if parts.empty(view, viewer):
        return
    _figures(view)
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.subheader(f"Spend per {view.bucket}", anchor=False)
        _spend(view)
    with right:
        st.subheader("Teams", anchor=False)
        _teams(view)
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.subheader("Share of prompt tokens read from a cache", anchor=False)
        _cache(view)
    with right:
        st.subheader("First token by lane and class", anchor=False)
        st.altair_chart(charts.spread(data.latency(("lane", "class"), view.part)), alt="First token, p50 to p95, by lane and class")
    parts.unpriced(data.spend((), view.part).total)


def _figures(view: View) -> None:
    now = data.spend((), view.part).total
    before = data.spend((), view.before).total if view.before else None
    today = data.spend((), view.today).total
    first = st.columns(4)
    first[0].metric("Spend", format.usd(now.cost_nanos), format.change(now.cost_nanos, before.cost_nanos if before else None),
                    delta_color="inverse", border=True, help=f"{format.exact(now.cost_nanos)}; against the period before")
    first[1].metric("Today", format.usd(today.cost_nanos if today.attempts else 0), border=True,
                    help=f"Since midnight in {view.tz}: {today.calls:,} calls")
    first[2].metric("Saved by caching", format.usd(now.saved_nanos), border=True,
                    help=f"Uncached it would have cost {format.exact(now.uncached_cost_nanos)}")
    first[3].metric("Calls", format.count(now.calls), format.change(now.calls, before.calls if before else None),
                    delta_color="off", border=True, help=f"{now.attempts:,} attempts, {now.retries:,} of them retries")
    second = st.columns(4)
    second[0].metric("Cache share", format.share(now.cache_share), format.points(now.cache_share, before.cache_share if before else None),
                     border=True, help=f"{now.cache_read:,} of {now.input_total:,} prompt tokens")
    lanes = data.latency(("lane",), view.part)
    earlier = {q.key: q for q in data.latency(("lane",), view.before)} if view.before else {}
    for column, q in zip(second[1:], lanes, strict=False):
        was = earlier.get(q.key)
        column.metric(f"First token p95, {charts.name(q.key[0])} lane", format.ms(q.p95), format.change(q.p95, was.p95 if was else None),
                      delta_color="inverse", border=True, help=f"p50 {format.ms(q.p50)}, p99 {format.ms(q.p99)}, {q.count:,} attempts")


def _spend(view: View) -> None:
    sums = data.spend((view.bucket, "team"), view.part)
    points = [
        charts.over_time(row, charts.name(row.key[1]), row.cost_nanos / 1e9, format.exact(row.cost_nanos))
        for row in sums.rows if row.cost_nanos is not None
    ]  # fmt: skip
    st.altair_chart(charts.stacked(points, view.bucket, "team", "$"), alt=f"Spend per {view.bucket} by team")


def _teams(view: View) -> None:
    parts.table(("team",), data.spend(("team",), view.part).rows[:10], "teams", ("cost", "calls", "cache share", "saved"))


def _cache(view: View) -> None:
    sums = data.spend((view.bucket, "team"), view.part)
    points = [
        charts.over_time(row, charts.name(row.key[1]), row.cache_share, f"{format.share(row.cache_share)} of {row.input_total:,} tokens")
        for row in sums.rows if row.cache_share is not None
    ]  # fmt: skip
    st.altair_chart(charts.lines(points, view.bucket, "team", "share"), alt=f"Cache share per {view.bucket} by team")
