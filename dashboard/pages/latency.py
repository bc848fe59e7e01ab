"""How long callers wait: first token, whole answer, pace; by lane and class, over time, and spread out."""
from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from dashboard import charts, data, format, parts
from dashboard.data import Of, Quantiles, Viewer
from dashboard.view import View

MEASURES: Mapping[Of, str] = {"first_token": "First token", "total": "Whole answer", "per_token": "Per generated token"}


def page(view: View, viewer: Viewer) -> None:
    if parts.empty(view, viewer):
        return
    of = st.segmented_control("Measure", list(MEASURES), format_func=MEASURES.__getitem__, default="first_token", key="of", required=True)
    of = of or "first_token"
    found = data.latency(("lane", "class"), view.part, of)
    if not found:
        st.info("No attempt in this range has this time: only streamed, finished answers have a pace.", icon=":material/timer_off:")
        return
    for column, q in zip(st.columns(4), data.latency(("lane",), view.part, of), strict=False):
        column.metric(f"{charts.name(q.key[0])} lane, p50", format.ms(q.p50), border=True,
                      help=f"p95 {format.ms(q.p95)}, p99 {format.ms(q.p99)}, longest {format.ms(q.max)}, {q.count:,} attempts")
    left, right = st.columns(2, gap="large")
    with left:
        st.subheader("By lane and class", anchor=False)
        st.altair_chart(charts.spread(found), alt=f"{MEASURES[of]}: p50 to p95 by lane and class")
    with right:
        st.subheader("How often it took how long", anchor=False)
        st.altair_chart(charts.histogram(data.histogram(("lane",), view.part, of)), alt=f"Histogram of {MEASURES[of]} by lane")
    st.subheader(f"p95 per {view.bucket}", anchor=False)
    _over_time(view, of)
    st.subheader("All figures, in milliseconds", anchor=False)
    _table(found)


def _over_time(view: View, of: Of) -> None:
    points = [
        {"at": charts.wall(charts.name(q.key[0])), "when": charts.name(q.key[0]).replace("T", " "), "name": charts.name(q.key[1]),
         "value": q.p95, "exact": f"p95 {format.ms(q.p95)}, p50 {format.ms(q.p50)}, {q.count:,} attempts"}
        for q in data.latency((view.bucket, "lane"), view.part, of) if q.p95 > 0
    ]  # fmt: skip
    st.altair_chart(charts.lines(points, view.bucket, "lane", "ms"), alt=f"p95 per {view.bucket} by lane")


def _table(found: list[Quantiles]) -> None:
    rows = [q.json(("lane", "class")) for q in found]
    whole = st.column_config.NumberColumn(format="%.1f")
    st.dataframe(rows, hide_index=True, column_config={name: whole for name in ("p50", "p95", "p99", "max")}, key="latency-table")
    parts.download(rows, list(rows[0]), "latency")
