"""How long callers wait: first token, whole answer, pace; by lane and class, over time, and spread out."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import streamlit as st

from dashboard import charts, data, format, parts
from dashboard.data import Of, Quantiles, Viewer
from dashboard.view import View, buckets

WEEK_US = 7 * 86_400_000_000
MEASURES: Mapping[Of, str] = {"first_token": "First token", "total": "Whole answer", "per_token": "Per generated token"}


def page(view: View, viewer: Viewer) -> None:
    if parts.empty(view, viewer):
        return
    of = _measure()
    over_time = (view.bucket, "lane")
    waits = data.waits((("lane", "class"), ("lane",), over_time), view.part, of, bars=("lane",))
    found = waits.by["lane", "class"]
    if not found:
        st.info("No attempt in this range has this time. Only streamed, finished answers have a pace.", icon=parts.NOTHING)
        return
    for column, q in zip(st.columns(4), waits.by[("lane",)], strict=False):
        more = f"p99 {format.ms(q.p99)}, longest {format.ms(q.max)}, {q.count:,} attempts"
        parts.figure(column, f"{charts.name(q.key[0])} lane, median", format.ms(q.p50), more, f"p95 {format.ms(q.p95)}", "none")
    left, right = st.columns(2, gap="large")
    with left:
        parts.heading("By lane and class")
        parts.chart(charts.spread(found), f"{MEASURES[of]}: p50 to p95 by lane and class")
    with right:
        parts.heading("How often it took how long")
        parts.chart(charts.histogram(waits.bars), f"Histogram of {MEASURES[of]} by lane")
    parts.heading(f"p95 per {view.bucket}")
    _over_time(view, waits.by[over_time])
    left, right = st.columns(2, gap="large")
    with left:
        parts.heading("Worst p95 by hour of the day, last week of the range")
        _by_hour(view, of)
    with right:
        parts.heading("p95 by length of the prompt, in tokens, and lane")
        _by_prompt(view, of)
    left, right = st.columns(2, gap="large")
    with left:
        parts.heading("Deadlines missed")
        _late(view)
    with right:
        parts.heading("Queues now")
        _queues()
    parts.heading("All figures")
    _table(found)


def _measure() -> Of:
    chosen = st.segmented_control(
        "Measure", list(MEASURES), format_func=MEASURES.__getitem__, default="first_token", key="of", required=True
    )
    return chosen or "first_token"


def _over_time(view: View, found: Sequence[Quantiles]) -> None:
    points = [
        {"when": charts.name(q.key[0]), "name": charts.name(q.key[1]), "value": q.p95,
         "exact": f"p95 {format.ms(q.p95)}, p50 {format.ms(q.p50)}, {q.count:,} attempts"}
        for q in found if q.p95 > 0
    ]  # fmt: skip
    ticks = buckets(view, (q.key[0] for q in found))
    parts.chart(charts.lines(points, ticks, "lane", "ms"), f"p95 per {view.bucket} by lane")


def _by_hour(view: View, of: Of) -> None:
    """A heat map: the worst p95 that an hour of the clock had in the last week of the range. Hours are UTC's, as the roll-ups
    have them: in zones of half hours they begin at half past."""
    until = min(view.part.until_us, data.now_us())
    part = replace(view.part, since_us=max(view.part.since_us, until - WEEK_US), until_us=until, tz="UTC")
    zone, worst = ZoneInfo(view.tz), dict[tuple[str, str], Quantiles]()
    for q in data.waits((("hour", "lane"),), part, of).by["hour", "lane"]:
        begins = datetime.fromisoformat(charts.name(q.key[0])).astimezone(zone)
        cell = (f"{begins:%H:%M}" if begins.minute else f"{begins:%H}", charts.name(q.key[1]))
        if cell not in worst or q.p95 > worst[cell].p95:
            worst[cell] = q
    points = [
        {"x": hour, "y": lane, "value": q.p95, "exact": f"worst p95 {format.ms(q.p95)}, {q.count:,} attempts in that hour"}
        for (hour, lane), q in sorted(worst.items(), key=lambda item: item[0])
    ]
    parts.chart(charts.grid(points, "ms"), "Worst p95 by hour of the day and lane")


def _by_prompt(view: View, of: Of) -> None:
    points = [
        {"x": charts.name(q.key[0]).partition(": ")[2], "y": charts.name(q.key[1]), "value": q.p95, "order": q.key[0],
         "exact": f"p95 {format.ms(q.p95)}, p50 {format.ms(q.p50)}, {q.count:,} attempts"}
        for q in data.waits((("prompt", "lane"),), view.part, of).by["prompt", "lane"]
    ]  # fmt: skip
    parts.chart(charts.grid(points, "ms"), "p95 by length of the prompt and lane")


def _late(view: View) -> None:
    found = data.late(view.part)
    if not found:
        st.caption("No class with calls here has a `first_token_deadline_ms` in its team's policy, or no gateway has told.")
        return
    rows = [
        {"team": one.team, "class": one.klass, "deadline": format.ms(one.deadline_ms), "late": one.late, "calls": one.count,
         "share": one.late / one.count}
        for one in found
    ]  # fmt: skip
    parts.frame(rows, "late", {"share": st.column_config.NumberColumn(format="percent")})
    st.caption("First tokens after the deadline that is in force now; counted from bins 12 % wide.")


def _queues() -> None:
    told = data.status()
    lanes = told[0]["lanes"] if told else []
    if not lanes:
        st.caption("No gateway has said how its lanes are.")
        return
    rows = [
        {"lane": lane["lane"], "in flight": lane["in_flight"], "of at most": lane["max_in_flight"],
         "expected first token": format.ms(lane["queue_s"] * 1_000)}
        for lane in lanes
    ]  # fmt: skip
    parts.frame(rows, "queues")


def _table(found: Sequence[Quantiles]) -> None:
    rows = [q.json(("lane", "class")) for q in found]
    whole = st.column_config.NumberColumn("attempts", format="localized")
    numbers = {name: st.column_config.NumberColumn(f"{name}, ms", format="accounting") for name in ("p50", "p95", "p99", "max")}
    order = ("lane", "class", "count", "p50", "p95", "p99", "max")
    parts.frame(rows, "latency", {**numbers, "count": whole}, column_order=order)
    if not all(q.exact for q in found):
        st.caption("Of very many attempts, from bins 12 % wide: a figure is off by less than that.")
    parts.download(rows, list(rows[0]), "latency")
