"""On what the money went: by any one word, over time, and tokens by class."""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import streamlit as st

from dashboard import charts, data, format, parts
from dashboard.charts import Point
from dashboard.data import BadQuery, Row, Viewer
from dashboard.view import View, buckets

SPLITS = ("team", "project", "model", "lane", "backend", "class", "key", "client", "status", "run", "tag")
TOP = 9
"""Names with a colour of their own; the rest of them is one bar."""
OTHERS = "(others)"


def page(view: View, viewer: Viewer) -> None:
    if parts.empty(view, viewer):
        return
    by = _split()
    try:
        sums, over_time = data.spend((by,), view.part), data.spend((view.bucket, by), view.part)
    except BadQuery:
        st.info("A tag's name has letters, digits, dots, dashes and slashes.")
        return
    ticks = buckets(view, (row.key[0] for row in over_time.rows))
    _figures(sums.total)
    left, right = st.columns([3, 2], gap="large")
    with left:
        parts.heading(f"Cost per {view.bucket}")
        parts.chart(charts.stacked(_cost(over_time.rows, sums.rows), ticks, by, "$"), f"Cost per {view.bucket} by {by}")
    with right:
        parts.heading("Cost in the whole range")
        parts.chart(charts.ranked(_totals(sums.rows), by, "$"), f"Cost by {by}")
    _classes(view, ticks)
    parts.heading("All figures")
    parts.table((by,), sums.rows, "spend")
    parts.unpriced(sums.total)
    with st.expander("Price rows used"):
        parts.table(("prices",), data.spend(("prices",), view.part).rows, "prices", ("cost", "attempts", "uncached", "output"))


def _classes(view: View, ticks: Sequence[str]) -> None:
    """Money and tokens by token class, in the same colours."""
    rows = data.spend((view.bucket,), view.part).rows
    left, right = st.columns(2, gap="large")
    with left:
        parts.heading(f"Cost per {view.bucket}, by token class")
        costs = [
            charts.over_time(row, name, nanos / 1e9, format.exact(nanos))
            for row in rows for name, nanos in charts.costs(row).items() if nanos
        ]  # fmt: skip
        parts.chart(charts.stacked(costs, ticks, "token class", "$"), f"Cost per {view.bucket} by token class")
    with right:
        parts.heading(f"Tokens per {view.bucket}, by class")
        parts.chart(charts.stacked(_tokens(rows), ticks, "token class", "tokens"), f"Tokens per {view.bucket} by class")


def _split() -> str:
    left, right = st.columns([4, 1])
    by = left.segmented_control("Split by", SPLITS, default="team", key="split", required=True) or "team"
    if by != "tag":
        return by
    return f"tag:{right.text_input('Tag', value='feature', key='tag', max_chars=64)}"


def _figures(total: Row) -> None:
    cost, uncached, prompt, output, attempts = st.columns(5)
    parts.figure(cost, "Cost", format.usd(total.cost_nanos), format.exact(total.cost_nanos))
    parts.figure(uncached, "Without caches", format.usd(total.uncached_cost_nanos),
                 f"{format.exact(total.uncached_cost_nanos)} had every prompt been computed afresh")
    parts.figure(prompt, "Prompt tokens", format.count(total.input_total), f"{total.input_total:,}")
    parts.figure(output, "Output tokens", format.count(total.output),
                 f"{total.output:,}, of which {total.reasoning:,} reasoning")
    parts.figure(attempts, "Attempts", format.count(total.attempts), f"of {total.calls:,} calls")


def _cost(rows: Sequence[Row], ranking: Sequence[Row]) -> list[Point]:
    """Points of the dearest names; the others are added up."""
    top = {row.key[0] for row in ranking[:TOP]}
    nanos: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row.cost_nanos is not None:
            nanos[charts.name(row.key[0]), charts.name(row.key[1]) if row.key[1] in top else OTHERS] += row.cost_nanos
    return [
        {"when": when, "name": name, "value": cost / 1e9, "exact": format.exact(cost)}
        for (when, name), cost in nanos.items()
    ]


def _totals(rows: Sequence[Row]) -> list[Point]:
    points = [
        {"name": charts.name(row.key[0]), "value": (row.cost_nanos or 0) / 1e9, "exact": format.exact(row.cost_nanos)}
        for row in rows[:TOP]
    ]
    if rest := rows[TOP:]:
        nanos = sum(row.cost_nanos or 0 for row in rest)
        points.append({"name": OTHERS, "value": nanos / 1e9, "exact": f"{format.exact(nanos)}, {len(rest):,} more"})
    return points


def _tokens(rows: Sequence[Row]) -> list[Point]:
    return [
        charts.over_time(row, token_class, count, f"{count:,}")
        for row in rows
        for token_class, count in charts.tokens(row).items()
        if count
    ]
