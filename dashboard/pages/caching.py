"""What the prefix caches bring: share over time, who profits, what was predicted and what came, why it missed."""
from __future__ import annotations

import streamlit as st

from dashboard import charts, data, format, parts
from dashboard.charts import Point
from dashboard.data import Row, Viewer
from dashboard.view import View


def page(view: View, viewer: Viewer) -> None:
    if parts.empty(view, viewer):
        return
    total = data.spend((), view.part).total
    _figures(total)
    by = st.segmented_control("Split by", ("team", "model", "lane", "client", "key"), default="team", key="cache_split", required=True)
    by = by or "team"
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.subheader(f"Share of prompt tokens read from a cache, per {view.bucket}", anchor=False)
        points = _shares(data.spend((view.bucket, by), view.part).rows)
        st.altair_chart(charts.lines(points, view.bucket, by, "share"), alt=f"Cache share per {view.bucket} by {by}")
    with right:
        st.subheader("In the whole range", anchor=False)
        st.altair_chart(charts.ranked(_totals(data.spend((by,), view.part).rows), by, "share"), alt=f"Cache share by {by}")
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.subheader("Predicted and real", anchor=False)
        _predicted(view, by)
    with right:
        st.subheader("Why prefixes missed", anchor=False)
        _misses(view)
    st.subheader("All figures", anchor=False)
    columns = ("cache share", "saved", "cost", "cost if uncached", "uncached", "cache read", "cache write", "calls")
    parts.table((by,), data.spend((by,), view.part).rows, "caching", columns)


def _figures(total: Row) -> None:
    columns = st.columns(4)
    columns[0].metric("Cache share", format.share(total.cache_share), border=True,
                      help=f"{total.cache_read:,} of {total.input_total:,} prompt tokens")
    columns[1].metric("Saved", format.usd(total.saved_nanos), border=True, help=format.exact(total.saved_nanos))
    columns[2].metric("Prediction came true", format.share(_ratio(total.expected_read, total.predicted_read)), border=True,
                      help=f"{total.expected_read:,} tokens read of {total.predicted_read:,} predicted")
    columns[3].metric("Missed wholly", format.share(_ratio(total.missed, total.expected)), border=True,
                      help=f"{total.missed:,} of {total.expected:,} attempts whose prefix was expected in a cache")


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _shares(rows: tuple[Row, ...]) -> list[Point]:
    return [
        charts.over_time(row, charts.name(row.key[1]), row.cache_share, f"{format.share(row.cache_share)} of {row.input_total:,} tokens")
        for row in rows if row.cache_share is not None
    ]  # fmt: skip


def _totals(rows: tuple[Row, ...]) -> list[Point]:
    return [
        {"name": charts.name(row.key[0]), "value": row.cache_share, "exact": f"{format.share(row.cache_share)} of {row.input_total:,} tokens"}
        for row in rows[:12] if row.cache_share is not None
    ]  # fmt: skip


def _predicted(view: View, by: str) -> None:
    rows = [
        {by: charts.name(row.key[0]), "expected": row.expected, "missed": row.missed, "predicted tokens": row.predicted_read,
         "read tokens": row.expected_read, "came true": _ratio(row.expected_read, row.predicted_read)}
        for row in data.spend((by,), view.part).rows if row.expected
    ]  # fmt: skip
    if not rows:
        st.info("No attempt in this range was expected to find its prefix in a cache.", icon=":material/hourglass_empty:")
        return
    numbers = {name: st.column_config.NumberColumn(format="localized") for name in ("expected", "missed", "predicted tokens", "read tokens")}
    true = st.column_config.ProgressColumn(format="percent", min_value=0, max_value=1)
    st.dataframe(rows, hide_index=True, column_config={**numbers, "came true": true}, key="predicted-table")


def _misses(view: View) -> None:
    rows = [row for row in data.spend(("miss",), view.part).rows if row.key[0] is not None]
    if not rows:
        st.success("No explained miss in this range.", icon=":material/check_circle:")
        return
    points = [{"name": charts.name(row.key[0]), "value": row.attempts, "exact": f"{row.attempts:,} attempts"} for row in rows]
    st.altair_chart(charts.ranked(points, "miss", "attempts"), alt="Misses by kind")
