"""Who may spend how much, how far it is spent, what is held, and who runs out next."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from dashboard import charts, data, format, parts
from dashboard.data import DAY_US, HOUR_US, Row, Use, Viewer
from dashboard.view import View, buckets

_SHARE = st.column_config.ProgressColumn("spent", format="percent", min_value=0, max_value=1)
_TOLD = 3
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
    _unknown(found)
    _next(found, now_us, view.tz)
    parts.heading("Spent of each budget in its present window")
    rows = [_row(use, held, now_us, view.tz) for use in found]
    money = {name: parts.money(name, [row[name] for row in rows]) for name in _DOLLARS}
    parts.frame(rows, "budgets", {**money, "share": _SHARE})
    parts.download(rows, list(rows[0]) if rows else [], "budgets")
    if found:
        _burn_down(found, view)


def _unknown(found: Sequence[Use]) -> None:
    """A sum that rests on holds says so."""
    resting = [use for use in found if use.unpriced]
    if resting:
        told = [f"{use.owner}, {use.limit.name}: {use.unknown}" for use in resting[:_TOLD]]
        more = [f"{len(resting) - _TOLD:,} more budgets, see the table"] if len(resting) > _TOLD else []
        st.warning(format.plain("; ".join(told + more) + "."), icon=":material/money_off:")


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
        "cost unknown": use.unpriced,
        "runs out": "" if end is None else f"{data.instant(max(end, use.since_us), tz):%Y-%m-%d %H:%M}",
    }  # fmt: skip


def _burn_down(found: Sequence[Use], view: View) -> None:
    """What is left of one budget, from its window's beginning to its end."""
    names = [f"{use.owner}: {use.limit.name}" for use in found]
    use = found[st.selectbox("Burn-down of", range(len(names)), format_func=names.__getitem__, key="burn") or 0]
    where: dict[str, str] = {"team": use.limit.team}
    if use.limit.scope != "team":
        where[use.limit.scope] = use.owner
    part = data.Slice(since_us=use.since_us, until_us=view.part.until_us, tz=use.limit.tz, where=where)
    short = use.until_us is not None and use.until_us - use.since_us <= DAY_US + HOUR_US
    bucket = "hour" if short else "day"
    rows = data.spend((bucket,), part).rows
    if rows:
        window = replace(view, part=replace(part, until_us=use.until_us or part.until_us), bucket=bucket)
        ticks = buckets(window, (row.key[0] for row in rows))
        parts.chart(charts.lines(_left(use, rows, ticks), ticks, "budget", "$"), f"Left of {use.limit.name}, by {bucket}")


def _left(use: Use, rows: Sequence[Row], ticks: Sequence[str]) -> list[charts.Point]:
    """At the end of each day or hour up to now; what is held for attempts of unknown cost is gone from the start."""
    left, spent, points = use.limit.limit_nanos - use.held_nanos, {row.key[0]: row.cost_nanos or 0 for row in rows}, []
    for tick in ticks[: ticks.index(rows[-1].key[0] or "") + 1]:
        left -= spent.get(tick, 0)
        points.append({"when": tick, "name": "left", "value": left / 1e9, "exact": format.exact(left)})
    return points
