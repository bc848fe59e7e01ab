"""Who may spend how much, how far it is spent, what is held, and who runs out next."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from dashboard import charts, data, format, parts
from dashboard.data import Use, Viewer
from dashboard.view import View

_SHARE = st.column_config.ProgressColumn("spent", format="percent", min_value=0, max_value=1)
_DOLLARS = ("spent $", "limit $", "held $", "forecast $")


def page(view: View, viewer: Viewer) -> None:
    limits, held, heard_us = data.limits(viewer)
    if heard_us is None:
        parts.unheard()
        return
    teams = view.part.where.get("team")
    wanted = [limit for limit in limits if not teams or limit.team in teams]
    if not wanted:
        st.info(
            "No budget is set for these teams. Add one to the team's policy file, for example:", icon=":material/savings:"
        )
        st.code("budgets:\n  - {name: cap, limit_usd: 500, window: month, timezone: Europe/Berlin}", language="yaml")
        return
    now_us = data.now_us()
    found = data.uses(tuple(wanted))
    _next(found, now_us, view.tz)
    parts.heading("Spent of each budget in its present window")
    rows = [_row(use, held, now_us, view.tz) for use in found]
    money = {name: parts.money(name, [row[name] for row in rows]) for name in _DOLLARS}
    st.dataframe(rows, hide_index=True, column_config={**money, "share": _SHARE}, key="budgets-table")
    parts.download(rows, list(rows[0]) if rows else [], "budgets")
    if found:
        _burn_down(found, view)


def _next(found: Sequence[Use], now_us: int, tz: str) -> None:
    """Who is next to run out."""
    ends = sorted(((end, use) for use in found if (end := use.empty_us(now_us)) is not None), key=lambda each: each[0])
    if not ends:
        st.success("At the present pace no budget runs out within its window.", icon=":material/check_circle:")
        return
    for column, (end, use) in zip(st.columns(3), ends[:3], strict=False):
        when = "spent" if end <= now_us else f"{data.instant(end, tz):%d %b %H:%M}"
        of = f"{format.share(use.share)} of {format.usd(use.limit.limit_nanos)}"
        parts.figure(column, f"{use.owner}, {use.limit.name}", when, of, f"{format.usd(use.spent_nanos)} spent", "none")


def _row(use: Use, held: dict[tuple[str, str], int], now_us: int, tz: str) -> dict[str, Any]:
    forecast, end = use.forecast_nanos(now_us), use.empty_us(now_us)
    return {
        "team": use.limit.team, "budget": use.limit.name, "for": use.owner, "window": f"{use.limit.window}, {use.limit.tz}",
        "share": min(use.share, 1.0), "spent $": use.spent_nanos / 1e9, "limit $": use.limit.limit_nanos / 1e9,
        "held $": held.get((use.limit.team, use.limit.name), 0) / 1e9 if use.limit.scope == "team" else None,
        "forecast $": None if forecast is None else forecast / 1e9,
        "runs out": "" if end is None else f"{data.instant(max(end, use.since_us), tz):%Y-%m-%d %H:%M}",
    }  # fmt: skip


def _burn_down(found: Sequence[Use], view: View) -> None:
    """What is left of one budget, day by day."""
    names = [f"{use.owner}: {use.limit.name}" for use in found]
    chosen = st.selectbox("Burn-down of", range(len(names)), format_func=names.__getitem__, key="burn")
    use = found[chosen or 0]
    where: dict[str, str] = {"team": use.limit.team}
    if use.limit.scope != "team":
        where[use.limit.scope] = use.owner
    part = data.Slice(since_us=use.since_us, until_us=view.part.until_us, tz=use.limit.tz, where=where)
    left, points = use.limit.limit_nanos, []
    for row in data.spend(("day",), part).rows:
        left -= row.cost_nanos or 0
        points.append(charts.over_time(row, "left", left / 1e9, format.exact(left)))
    if points:
        ticks = [point["when"] for point in points]
        parts.chart(charts.lines(points, ticks, "budget", "$"), f"Left of {use.limit.name}, day by day")
