"""What was spent, is it rising, is it fast, what did caching save, and who spends most."""
from __future__ import annotations

from dataclasses import replace

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from dashboard import advice, charts, data, format, parts
from dashboard.data import Row, Viewer
from dashboard.view import View, buckets

WAITS = (("lane", "class"), ("lane",))
HOUR_US, WEEK_US = data.HOUR_US, 7 * data.DAY_US


def page(view: View, viewer: Viewer) -> None:
    if parts.empty(view, viewer):
        return
    now = data.spend((), view.part).total
    _money(view, now)
    _speed(view, now)
    _month(view, viewer)
    _next(view)
    left, right = st.columns(2, gap="medium")
    with left:
        parts.heading(f"Spend per {view.bucket}")
        _spend(view)
    with right:
        parts.heading("Teams, the dearest first")
        parts.table(("team",), data.spend(("team",), view.part).rows[:10], "teams", ("cost", "cache share", "calls"))
    left, right = st.columns([3, 2], gap="large")
    with left:
        parts.heading("Share of prompt tokens read from a cache")
        _cache(view)
    with right:
        parts.heading("First token by lane and class")
        found = data.waits(WAITS, view.part).by["lane", "class"]
        parts.chart(charts.spread(found), "First token, p50 to p95, by lane and class")
    parts.unpriced(now)


def _next(view: View) -> None:
    """What to do next, the dearest first, with what it would bring in a month of this pace."""
    if not view.part.since_us:
        return
    parts.heading("What to do next")
    months = advice.MONTH_US / max(view.part.until_us - view.part.since_us, HOUR_US)
    missed, part = data.misses(view.part)
    causes = advice.causes(missed, advice.MONTH_US / (part.until_us - part.since_us))
    by_model, by_team = data.spend(("team", "model"), view.part).rows, data.spend(("team",), view.part).rows
    if found := advice.found(by_model, by_team, months, causes)[:3]:
        parts.cards(found, linked=True)
    else:
        st.success("Caches hit, all is priced, little is retried: nothing to mend.", icon=":material/check_circle:")


def _money(view: View, now: Row) -> None:
    before = data.spend((), view.before).total if view.before else Row()
    today = data.spend((), view.today).total
    spend, day, saved, calls = st.columns(4)
    parts.figure(spend, "Spend", format.usd(now.cost_nanos), f"{format.exact(now.cost_nanos)}; against the period before",
                 format.change(now.cost_nanos, before.cost_nanos), "inverse")
    parts.figure(day, "Today", format.usd(today.cost_nanos if today.attempts else 0),
                 f"{today.calls:,} calls since midnight in {view.tz}")
    parts.figure(saved, "Saved by caching", format.usd(now.saved_nanos),
                 f"{format.exact(now.uncached_cost_nanos)} had every prompt been computed afresh",
                 format.change(now.saved_nanos, before.saved_nanos), "normal")
    parts.figure(calls, "Calls", format.count(now.calls), f"{now.attempts:,} attempts, {now.retries:,} of them retries",
                 format.change(now.calls, before.calls))


def _speed(view: View, now: Row) -> None:
    before = data.spend((), view.before).total if view.before else Row()
    earlier = {q.key: q.p95 for q in data.waits((("lane",),), view.before).by[("lane",)]} if view.before else {}
    share, *others = st.columns(4)
    parts.figure(share, "Cache share", format.share(now.cache_share),
                 f"{now.cache_read:,} of {now.input_total:,} prompt tokens",
                 format.points(now.cache_share, before.cache_share), "normal")
    for column, q in zip(others, data.waits(WAITS, view.part).by[("lane",)], strict=False):
        parts.figure(column, f"First token p95, {charts.name(q.key[0])}", format.ms(q.p95),
                     f"p50 {format.ms(q.p50)}, p99 {format.ms(q.p99)}, {q.count:,} attempts",
                     format.change(q.p95, earlier.get(q.key)), "inverse")


def _month(view: View, viewer: Viewer) -> None:
    """The calendar month, where it will end at this pace, and the budget that is nearest to its end."""
    now_us = view.today.until_us
    start, end = data.month(view.tz, now_us)
    part = replace(view.part, since_us=start, until_us=now_us)
    before = replace(part, since_us=data.month(view.tz, start - 1)[0], until_us=start)
    spent, last = data.spend((), part).total, data.spend((), before).total
    week = data.spend((), replace(part, since_us=now_us - WEEK_US)).total
    rest = (week.cost_nanos or 0) * (end - now_us) // WEEK_US
    forecast = None if spent.cost_nanos is None and week.cost_nanos is None else (spent.cost_nanos or 0) + rest
    so_far, at_end, budget, missed = st.columns(4)
    parts.figure(so_far, f"{data.instant(start, view.tz):%B} so far", format.usd(spent.cost_nanos),
                 f"{format.exact(spent.cost_nanos)}; the month before came to {format.usd(last.cost_nanos)}")
    parts.figure(at_end, f"Forecast for {data.instant(start, view.tz):%B}", format.usd(forecast),
                 "so far, and the rest at the pace of the last seven days; against the month before",
                 format.change(forecast, last.cost_nanos), "inverse")
    _budget(budget, view, viewer, now_us)
    now = data.spend((), view.part).total
    share = now.missed / now.expected if now.expected else None
    parts.figure(missed, "Expected, but missed", format.share(share),
                 f"{now.missed:,} of {now.expected:,} attempts whose prefix should have been in a cache read nothing from it")


def _budget(column: DeltaGenerator, view: View, viewer: Viewer, now_us: int) -> None:
    """The fullest one, with what it will be at its window's end."""
    limits, _, heard_us = data.limits(viewer)
    teams = view.part.where.get("team")
    found = data.uses(tuple(limit for limit in limits if teams is None or limit.team in teams))
    if not found:
        more = "No gateway has said which budgets there are" if heard_us is None else "Set one in a team's policy file: budgets"
        parts.figure(column, "Budget", format.NONE, more)
        return
    use = found[0]
    forecast = use.forecast_nanos(now_us)
    ends = "" if use.until_us is None else f", until {data.instant(use.until_us, use.limit.tz):%d %b %H:%M}"
    parts.figure(
        column, f"Budget {use.owner}, {use.limit.name}", format.share(use.share),
        f"{format.usd(use.spent_nanos)} of {format.usd(use.limit.limit_nanos)}{ends}; the fullest of {len(found):,}"
        + (f"; {use.unknown}" if use.unpriced else ""),
        None if forecast is None else f"{format.usd(forecast)} at its end", "none",
    )  # fmt: skip


def _spend(view: View) -> None:
    rows = data.spend((view.bucket, "team"), view.part).rows
    points = [
        charts.over_time(row, charts.name(row.key[1]), row.cost_nanos / 1e9, format.exact(row.cost_nanos))
        for row in rows
        if row.cost_nanos is not None
    ]
    ticks = buckets(view, (row.key[0] for row in rows))
    parts.chart(charts.stacked(points, ticks, "team", "$"), f"Spend per {view.bucket} by team")


def _cache(view: View) -> None:
    rows = data.spend((view.bucket, "team"), view.part).rows
    ticks = buckets(view, (row.key[0] for row in rows))
    parts.chart(charts.lines(charts.shares(rows), ticks, "team", "share"), f"Cache share per {view.bucket} by team")
