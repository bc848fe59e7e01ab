"""On what the money went: by any one word, over time, and tokens by class."""
from __future__ import annotations

import streamlit as st

from dashboard import charts, data, format, parts
from dashboard.charts import Point
from dashboard.data import BadQuery, Row, Viewer
from dashboard.view import View

SPLITS = ("team", "project", "model", "lane", "backend", "class", "key", "client", "status", "run", "tag")
TOP = 9
"""Names with a colour of their own; the rest of them is one bar."""


def page(view: View, viewer: Viewer) -> None:
    if parts.empty(view, viewer):
        return
    by = _split()
    try:
        sums = data.spend((by,), view.part)
        over_time = data.spend((view.bucket, by), view.part)
    except BadQuery:
        st.info("A tag's name has letters, digits, dots, dashes and slashes.")
        return
    _figures(sums.total)
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.subheader(f"Cost per {view.bucket}", anchor=False)
        st.altair_chart(charts.stacked(_cost(over_time.rows, sums.rows), view.bucket, by, "$"), alt=f"Cost per {view.bucket} by {by}")
    with right:
        st.subheader("Cost in the whole range", anchor=False)
        st.altair_chart(charts.ranked(_totals(sums.rows), by, "$"), alt=f"Cost by {by}")
    st.subheader(f"Tokens per {view.bucket}, by class", anchor=False)
    st.altair_chart(charts.stacked(_tokens(data.spend((view.bucket,), view.part).rows), view.bucket, "token class", "tokens"),
                    alt=f"Tokens per {view.bucket} by class")
    st.subheader("All figures", anchor=False)
    parts.table((by,), sums.rows, "spend")
    parts.unpriced(sums.total)


def _split() -> str:
    left, right = st.columns([4, 1])
    by = left.segmented_control("Split by", SPLITS, default="team", key="split", required=True) or "team"
    if by != "tag":
        return by
    return f"tag:{right.text_input('Tag', value='feature', key='tag', max_chars=64)}"


def _figures(total: Row) -> None:
    columns = st.columns(5)
    columns[0].metric("Cost", format.usd(total.cost_nanos), border=True, help=format.exact(total.cost_nanos))
    columns[1].metric("Uncached it would be", format.usd(total.uncached_cost_nanos), border=True,
                      help=format.exact(total.uncached_cost_nanos))
    columns[2].metric("Prompt tokens", format.count(total.input_total), border=True, help=f"{total.input_total:,}")
    columns[3].metric("Output tokens", format.count(total.output), border=True,
                      help=f"{total.output:,}, of which {total.reasoning:,} reasoning")
    columns[4].metric("Attempts", format.count(total.attempts), border=True, help=f"of {total.calls:,} calls")


def _cost(rows: tuple[Row, ...], ranking: tuple[Row, ...]) -> list[Point]:
    top = {row.key[0] for row in ranking[:TOP]}
    return [
        charts.over_time(row, charts.name(row.key[1]) if row.key[1] in top else "(others)", row.cost_nanos / 1e9, format.exact(row.cost_nanos))
        for row in rows if row.cost_nanos is not None
    ]  # fmt: skip


def _totals(rows: tuple[Row, ...]) -> list[Point]:
    named = [
        {"name": charts.name(row.key[0]), "value": (row.cost_nanos or 0) / 1e9, "exact": format.exact(row.cost_nanos)}
        for row in rows[:TOP]
    ]
    if rest := rows[TOP:]:
        nanos = sum(row.cost_nanos or 0 for row in rest)
        named.append({"name": "(others)", "value": nanos / 1e9, "exact": f"{format.exact(nanos)}, {len(rest)} more"})
    return named


def _tokens(rows: tuple[Row, ...]) -> list[Point]:
    return [
        charts.over_time(row, token_class, count, f"{count:,}")
        for row in rows for token_class, count in charts.tokens(row).items() if count
    ]  # fmt: skip
