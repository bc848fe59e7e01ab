"""On what the money went: by any one word, over time, and tokens by class."""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import streamlit as st

from dashboard import charts, data, format, parts
from dashboard.charts import Point
from dashboard.data import BadQuery, Row, Viewer
from dashboard.view import View, buckets

SPLITS = ("team", "project", "model", "lane", "backend", "class", "key", "client", "status", "run", "tag")
TOP, MOST = 9, 500
"""Names with a colour of their own, the rest is one bar; rows of the table."""
OTHERS = "(others)"


def page(view: View, viewer: Viewer) -> None:
    if parts.empty(view, viewer):
        return
    by = _split()
    try:
        rows = data.dearest(by, view.part, MOST)
        if len(rows) < MOST:        # also what has no such value
            rows = list(data.spend((by,), view.part).rows)
    except BadQuery:
        st.info("A tag's name has letters, digits, dots, dashes and slashes.")
        return
    sums = data.spend((view.bucket,), view.part)
    ticks = buckets(view, (row.key[0] for row in sums.rows))
    _figures(sums.total)
    left, right = st.columns([3, 2], gap="large")
    with left:
        parts.heading(f"Cost per {view.bucket}")
        parts.chart(charts.stacked(_over_time(view, by, rows, sums.rows), ticks, by, "$"), f"Cost per {view.bucket} by {by}")
    with right:
        parts.heading("Cost in the whole range")
        parts.chart(charts.ranked(_totals(rows, sums.total), by, "$"), f"Cost by {by}")
    _classes(sums.rows, view.bucket, ticks)
    parts.heading("All figures")
    parts.table((by,), rows, "spend")
    if len(rows) == MOST:
        st.caption(f"The {MOST} dearest. `tollway report spend --by {by}` tells the others.")
    parts.unpriced(sums.total)
    with st.expander("Price rows used"):
        parts.table(("prices",), data.spend(("prices",), view.part).rows, "prices", ("cost", "attempts", "uncached", "output"))


def _classes(rows: Sequence[Row], bucket: str, ticks: Sequence[str]) -> None:
    """Money and tokens by token class, in the same colours."""
    left, right = st.columns(2, gap="large")
    with left:
        parts.heading(f"Cost per {bucket}, by token class")
        costs = [
            charts.over_time(row, name, nanos / 1e9, format.exact(nanos))
            for row in rows for name, nanos in charts.costs(row).items() if nanos
        ]  # fmt: skip
        parts.chart(charts.stacked(costs, ticks, "token class", "$"), f"Cost per {bucket} by token class")
    with right:
        parts.heading(f"Tokens per {bucket}, by class")
        parts.chart(charts.stacked(_tokens(rows), ticks, "token class", "tokens"), f"Tokens per {bucket} by class")


def _split() -> str:
    by = st.segmented_control("Split by", SPLITS, default="team", key="split", required=True) or "team"
    return by if by != "tag" else f"tag:{st.text_input('Tag', value='feature', key='tag', max_chars=64, width=240)}"


def _figures(total: Row) -> None:
    cost, uncached, prompt, output, attempts = st.columns(5)
    parts.figure(cost, "Cost", format.usd(total.cost_nanos), format.exact(total.cost_nanos))
    parts.figure(uncached, "Without caches", format.usd(total.uncached_cost_nanos),
                 f"{format.exact(total.uncached_cost_nanos)} had every prompt been computed afresh")
    parts.figure(prompt, "Prompt tokens", format.count(total.input_total), f"{total.input_total:,}")
    parts.figure(output, "Output tokens", format.count(total.output),
                 f"{total.output:,}, of which {total.reasoning:,} reasoning")
    parts.figure(attempts, "Attempts", format.count(total.attempts), f"of {total.calls:,} calls")


def _over_time(view: View, by: str, ranking: Sequence[Row], whole: Sequence[Row]) -> list[Point]:
    """Points of the dearest names, and what is left of the whole."""
    sparse = by == "run" or by.startswith("tag:")       # most calls have none: what is left of the whole has them
    top = [row.key[0] for row in ranking[:TOP] if not (sparse and row.key[0] is None)]
    part = replace(view.part, where={**view.part.where, by: top})
    rows = [row for row in data.spend((view.bucket, by), part).rows if row.cost_nanos is not None] if top else []
    left = Counter({row.key[0]: row.cost_nanos or 0 for row in whole})
    for row in rows:
        left[row.key[0]] -= row.cost_nanos or 0
    found = [(row.key[0], charts.name(row.key[1]), row.cost_nanos or 0) for row in rows]
    found += [(when, OTHERS, nanos) for when, nanos in left.items() if nanos]
    return [{"when": when, "name": name, "value": nanos / 1e9, "exact": format.exact(nanos)} for when, name, nanos in found]


def _totals(rows: Sequence[Row], total: Row) -> list[Point]:
    points = [
        {"name": charts.name(row.key[0]), "value": (row.cost_nanos or 0) / 1e9, "exact": format.exact(row.cost_nanos)}
        for row in rows[:TOP]
    ]
    if nanos := (total.cost_nanos or 0) - sum(row.cost_nanos or 0 for row in rows[:TOP]):
        points.append({"name": OTHERS, "value": nanos / 1e9, "exact": format.exact(nanos)})
    return points


def _tokens(rows: Sequence[Row]) -> list[Point]:
    return [
        charts.over_time(row, token_class, count, f"{count:,}")
        for row in rows
        for token_class, count in charts.tokens(row).items()
        if count
    ]
