"""What the prefix caches bring: share over time, who profits, what was predicted and what came, why it missed."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from dashboard import advice, charts, data, format, parts
from dashboard.charts import Point
from dashboard.data import Row, Saving, Viewer
from dashboard.view import View, buckets

SPLITS = ("team", "model", "lane", "client", "key")
SHOWN = ("cache share", "saved", "cost", "cost if uncached", "uncached", "cache read", "cache write", "calls")


def page(view: View, viewer: Viewer) -> None:
    if parts.empty(view, viewer):
        return
    _figures(data.spend((), view.part).total)
    by = st.segmented_control("Split by", SPLITS, default="team", key="cache_split", required=True) or "team"
    rows, over_time = data.spend((by,), view.part).rows, data.spend((view.bucket, by), view.part).rows
    left, right = st.columns([3, 2], gap="large")
    with left:
        parts.heading(f"Share of prompt tokens read from a cache, per {view.bucket}")
        ticks = buckets(view, (row.key[0] for row in over_time))
        top = {row.key[1] for row in sorted(over_time, key=lambda row: -row.input_total)[:40]}
        points = charts.shares([row for row in over_time if row.key[1] in top])
        parts.chart(charts.lines(points, ticks, by, "share"), f"Cache share per {view.bucket} by {by}")
    with right:
        parts.heading("In the whole range")
        parts.chart(charts.ranked(_totals(rows), by, "share"), f"Cache share by {by}")
    left, right = st.columns([3, 2], gap="large")
    with left:
        parts.heading("Predicted and real")
        _predicted(rows, by)
    with right:
        parts.heading("Why prefixes missed")
        _misses(data.spend(("miss",), view.part).rows)
    parts.heading("What to mend first")
    _mend(view)
    parts.heading("What each lever saves, against conversations held out from it")
    _levers(view)
    _warmed(view)
    parts.heading("Written and never read: teams whose writes cost more than reads saved")
    _wasted(data.spend(("team", "model"), view.part).rows)
    parts.heading("All figures")
    parts.table((by,), rows, "caching", SHOWN)


def _figures(total: Row) -> None:
    share, saved, true, missed = st.columns(4)
    parts.figure(share, "Cache share", format.share(total.cache_share),
                 f"{total.cache_read:,} of {total.input_total:,} prompt tokens")
    parts.figure(saved, "Saved", format.usd(total.saved_nanos),
                 f"{format.exact(total.saved_nanos)}: what uncached prompts would have cost, less what was paid")
    parts.figure(true, "Predictions that came true", format.share(_ratio(total.expected_read, total.predicted_read)),
                 f"{total.expected_read:,} tokens read of {total.predicted_read:,} predicted")
    parts.figure(missed, "Expected, but missed", format.share(_ratio(total.missed, total.expected)),
                 f"{total.missed:,} of {total.expected:,} attempts whose prefix was expected in a cache read nothing from it")


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _totals(rows: Sequence[Row]) -> list[Point]:
    return [
        {"name": charts.name(row.key[0]), "value": row.cache_share,
         "exact": f"{format.share(row.cache_share)} of {row.input_total:,} tokens"}
        for row in rows[:12] if row.cache_share is not None
    ]  # fmt: skip


def _predicted(found: Sequence[Row], by: str) -> None:
    rows = [
        {by: charts.name(row.key[0]), "came true": _ratio(row.expected_read, row.predicted_read), "expected": row.expected,
         "missed": row.missed, "predicted tokens": row.predicted_read, "read tokens": row.expected_read}
        for row in found if row.expected
    ]  # fmt: skip
    if not rows:
        st.info("No attempt in this range was expected to find its prefix in a cache.", icon=parts.NOTHING)
        return
    counts = ("expected", "missed", "predicted tokens", "read tokens")
    numbers = {name: st.column_config.NumberColumn(format="localized") for name in counts}
    parts.frame(rows, "predicted", {**numbers, "came true": parts.SHARE})


def _mend(view: View) -> None:
    """Places in prompts that made them miss, with what mending each brings."""
    found, part = data.misses(view.part)
    if not found:
        st.caption("No prefix of the last two days of this range missed a cache that should have held it.")
        return
    span_us = part.until_us - part.since_us
    parts.cards(advice.causes(found, advice.MONTH_US / span_us)[:3])
    rows = [cause.json(span_us) for cause in found[:20]]
    shown = [
        {**row, "what": data.WORDS.get(row["kind"], row["kind"]), "usd_a_month": _float(row["usd_a_month"])} for row in rows
    ]
    order = ("usd_a_month", "team", "what", "path", "client", "model", "calls", "advice", "example")
    how = {
        "usd_a_month": parts.money("$ a month", [row["usd_a_month"] for row in shown]),
        "what": st.column_config.TextColumn("because of", width=170),
        "path": st.column_config.TextColumn("at", help="Place in the request"),
        "calls": st.column_config.NumberColumn(format="localized"),
    }  # fmt: skip
    parts.frame(shown, "mend", how, column_order=order)
    since = data.instant(part.since_us, view.tz)
    st.caption(f"Of misses since {since:%d %B %H:%M}. The page Calls finds the example, `tollway why` shows the place.")
    parts.download(rows, list(rows[0]), "mend")


def _levers(view: View) -> None:
    """Measured, with 95 % intervals."""
    found = data.savings(view.part)
    if not found:
        st.caption("No conversation of the last two days of this range was held out: set `hold_out` in a team's policy.")
        return
    rows: list[dict[str, Any]] = [
        {"lever": one.lever, "saved": _usd(one.nanos), "from": _usd(one.low), "to": _usd(one.high),
         "conversations": one.sessions, "held out": one.held_out, "note": _note(one)}
        for one in found
    ]  # fmt: skip
    money = {name: parts.money(name, [row[name] for row in rows]) for name in ("saved", "from", "to")}
    parts.frame(rows, "levers", money)
    since = data.instant(min(one.since_us for one in found), view.tz)
    st.caption(f"Of conversations since {since:%d %B %H:%M}: the range's last two days, and of those the latest "
               f"{data.LATEST_ENTRIES:,} attempts. The true figure lies between from and to with 95 % confidence.")


def _warmed(view: View) -> None:
    """The gateway's own calls, where a policy pays for any."""
    found = data.warmed(view.part)
    if not found:
        return
    parts.heading("Kept warm and written ahead by the gateway itself")
    rows: list[dict[str, Any]] = [
        {"client": one.kind, "calls": one.calls, "cost": _usd(one.nanos), "of use": one.use, "looked at": one.looked,
         "saved": _usd(one.saved)}
        for one in found
    ]  # fmt: skip
    money = {name: parts.money(name, [row[name] for row in rows]) for name in ("cost", "saved")}
    parts.frame(rows, "warmed", money)
    st.caption("Of the range's last two days. A call is of use if another reads what it kept within the hour; what caching "
               "saved that one is what it saved.")


def _note(one: Saving) -> str:
    if one.low is None or one.high is None:
        return str(one.json()["note"])
    return "no difference shown yet" if one.low < 0 < one.high else ""


def _float(text: str | None) -> float | None:
    return None if text is None else float(text)


def _usd(nanos: float | None) -> float | None:
    return None if nanos is None else nanos / 1e9


def _wasted(found: Sequence[Row]) -> None:
    """Where caching cost money: `saved` is below nothing."""
    rows = [row for row in found if row.cache_write and row.saved_nanos is not None and row.saved_nanos < 0]
    if not rows:
        st.success("No team pays more for writing to a cache than it saves by reading.", icon=":material/check_circle:")
        return
    rows.sort(key=lambda row: row.saved_nanos or 0)
    parts.table(("team", "model"), rows, "wasted", ("saved", "cache write", "cache read", "cost", "calls"))
    st.caption("Longer lifetimes, fewer marks or a prompt that begins the same bring reads; else leave the marks out.")


def _misses(found: Sequence[Row]) -> None:
    rows = sorted((row for row in found if row.key[0] is not None), key=lambda row: -row.attempts)[:10]
    if not rows:
        st.success("No explained miss in this range.", icon=":material/check_circle:")
        return
    points = [
        {"name": data.WORDS.get(row.key[0] or "", charts.name(row.key[0])), "value": row.attempts,
         "exact": f"{row.attempts:,} attempts"}
        for row in rows
    ]
    parts.chart(charts.ranked(points, "miss", "attempts"), "Misses by kind")
