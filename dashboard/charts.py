"""Rows to charts: the same colour for the same thing everywhere, units on axes, exact figures in tooltips.

Colours are from Okabe and Ito's and Tol's sets, told apart with any colour blindness and on light and dark ground. Times
are drawn as the names of days and hours in the report's zone, so the browser's own zone never moves them.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas  # noqa: F401  Altair looks into a pandas that another thread may have imported by half: wait until it is whole
from altair.utils.schemapi import disable_debug_mode

from dashboard import format
from dashboard.data import Bar, Quantiles, Row
from dashboard.view import NONE

disable_debug_mode()        # a chart is held against the schema once, when it is drawn, not each of its parts too

TOKEN_CLASSES: Mapping[str, str] = {
    "uncached": "#d55e00", "cache write": "#e69f00", "cache read": "#009e73", "output": "#0072b2", "reasoning": "#56b4e9",
    "other": "#7f8790",
}  # fmt: skip
LANES: Mapping[str, str] = {"fast": "#aa3377", "standard": "#4477aa", "flex": "#b8a11d", "batch": "#7f8790"}
OTHERS = ("#4477aa", "#ee6677", "#228833", "#b8a11d", "#66ccee", "#aa3377", "#e69f00", "#7f8790", "#009e73", "#d55e00")
HEIGHT = 280
_MONTHS = "['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec']"
_WAITS = [step * 10.0**power for power in range(-1, 7) for step in (1, 2, 5)]
_WAIT = "datum.value < 1000 ? format(datum.value, '~r') + ' ms' : format(datum.value / 1000, '~r') + ' s'"
Point = dict[str, Any]


def colours(dimension: str, names: Sequence[str]) -> alt.Scale:
    """Lanes and token classes have their own colours; other names get theirs by their place in the alphabet."""
    fixed = {"lane": LANES, "token class": TOKEN_CLASSES}.get(dimension, {})
    free = [colour for colour in OTHERS if colour not in fixed.values()]
    unknown = [name for name in names if name not in fixed]
    known = {**fixed, **{name: free[n % len(free)] for n, name in enumerate(sorted(unknown))}}
    order = [name for name in fixed if name in names] + sorted(unknown)
    return alt.Scale(domain=order, range=[known[name] for name in order])


def name(value: str | None) -> str:
    return NONE if value is None else value


def _time(ticks: Sequence[str]) -> alt.X:
    """Every day or hour of the range, also those without a call; hours say the day where it changes."""
    day = f"substring(datum.value, 8, 10) + ' ' + {_MONTHS}[+substring(datum.value, 5, 7) - 1]"
    hour = f"substring(datum.value, 11, 16) == '00:00' ? {day} : substring(datum.value, 11, 16)"
    label = day if not ticks or len(ticks[0]) == 10 else hour
    axis = alt.Axis(labelExpr=label, labelOverlap="greedy", labelAngle=0, labelSeparation=3, grid=False, ticks=False)
    return alt.X("when:O", title=None, axis=axis, scale=alt.Scale(domain=list(ticks)))


def _legend() -> alt.Legend:
    return alt.Legend(title=None, orient="top", columns=3, symbolType="square", labelLimit=170, offset=4, padding=0)


def _tooltip(dimension: str, unit: str) -> list[alt.Tooltip]:
    return [alt.Tooltip("when:N", title="when"), alt.Tooltip("name:N", title=dimension), alt.Tooltip("exact:N", title=unit)]


def stacked(points: Sequence[Point], ticks: Sequence[str], dimension: str, unit: str) -> alt.Chart:
    """Bars over time. A point: `when`, `name`, `value`, and `exact`, the text of its tooltip."""
    scale = colours(dimension, _names(points))
    rank = {shown: n for n, shown in enumerate(scale.to_dict()["domain"])}
    ordered = [{**point, "rank": rank[point["name"]]} for point in points]
    chart: alt.Chart = _chart(ordered).mark_bar().encode(
        _time(ticks),
        alt.Y("value:Q", title=_title(unit), axis=_axis(unit, 5), stack=True),
        alt.Color("name:N", scale=scale, legend=_legend()),
        alt.Order("rank:Q"),
        tooltip=_tooltip(dimension, unit),
    ).properties(height=HEIGHT)  # fmt: skip
    return chart


def ranked(points: Sequence[Point], dimension: str, unit: str) -> alt.Chart:
    """Horizontal bars, the longest on top."""
    chart: alt.Chart = _chart(points).mark_bar(cornerRadiusEnd=3, height=18).encode(
        alt.X("value:Q", title=_title(unit), axis=_axis(unit, 4)),
        alt.Y("name:N", sort="-x", title=None, axis=alt.Axis(labelLimit=180, ticks=False)),
        alt.Color("name:N", scale=colours(dimension, _names(points)), legend=None),
        tooltip=[alt.Tooltip("name:N", title=dimension), alt.Tooltip("exact:N", title=unit)],
    ).properties(height=34 * len(points) + (50 if _title(unit) else 30))  # fmt: skip
    return chart


def lines(points: Sequence[Point], ticks: Sequence[str], dimension: str, unit: str) -> alt.Chart:
    """Lines with a point at each bucket. `unit`: `share`, `$`, or `ms` on a logarithmic axis."""
    if unit == "$":
        y = alt.Y("value:Q", title=None, axis=_axis(unit, 5))
    elif unit == "share":
        y = alt.Y("value:Q", title=None, axis=_axis(unit, 5), scale=alt.Scale(domain=[0, 1]))
    else:
        y = alt.Y("value:Q", title=None, axis=_wait_axis(), scale=alt.Scale(type="log", nice=False, padding=12))
    chart: alt.Chart = _chart(points).mark_line(point=alt.OverlayMarkDef(size=36), strokeWidth=2).encode(
        _time(ticks),
        y,
        alt.Color("name:N", scale=colours(dimension, _names(points)), legend=_legend()),
        tooltip=_tooltip(dimension, unit),
    ).properties(height=HEIGHT)  # fmt: skip
    return chart


def spread(found: Sequence[Quantiles]) -> alt.LayerChart:
    """Per lane and class a line from p50 to p95, logarithmic, so that one slow lane does not hide the others."""
    points: list[Point] = [
        {"row": " · ".join(map(name, q.key)), "name": name(q.key[0]), "p50": q.p50, "p95": q.p95, "n": f"{q.count:,}",
         "t50": format.ms(q.p50), "t95": format.ms(q.p95), "t99": format.ms(q.p99)}
        for q in found
    ]  # fmt: skip
    texts = {"row": "lane · class", "t50": "p50", "t95": "p95", "t99": "p99", "n": "attempts"}
    base = _chart(points).encode(
        alt.Y("row:N", title=None, sort=None, axis=alt.Axis(labelLimit=220, ticks=False)),
        alt.Color("name:N", scale=colours("lane", _names(points)), legend=None),
        tooltip=[alt.Tooltip(f"{field}:N", title=title) for field, title in texts.items()],
    )
    log = alt.Scale(type="log", nice=False, padding=12)
    p50, p95 = (alt.X(f"{field}:Q", scale=log, axis=_wait_axis(), title="dot: p50, line to p95") for field in ("p50", "p95"))
    span = base.mark_bar(height=6, opacity=0.55).encode(p50, alt.X2("p95:Q"))
    layers = span, base.mark_circle(size=90, opacity=1).encode(p50), base.mark_tick(thickness=3, height=18).encode(p95)
    return alt.LayerChart(layer=list(layers)).properties(height=34 * len(points) + 50)


def histogram(bars: Sequence[Bar]) -> alt.Chart:
    """How many attempts took how long: bars a tenth of a decade wide, lanes on top of each other."""
    points: list[Point] = []
    reached: dict[float | None, int] = {}
    for bar in sorted(bars, key=lambda bar: list(LANES).index(name(bar.key[0])) if bar.key[0] in LANES else 99):
        base = reached.get(bar.low_ms, 0)
        reached[bar.low_ms] = base + bar.count
        took = f"{format.ms(bar.low_ms or 0)} to {format.ms(bar.high_ms) if bar.high_ms else 'more'}"
        points.append({"low": bar.low_ms or 0.8, "high": bar.high_ms or 1e6, "base": base, "top": base + bar.count,
                       "name": name(bar.key[0]), "exact": took, "n": f"{bar.count:,}"})  # fmt: skip
    texts = {"exact": "took", "name": "lane", "n": "attempts"}
    chart: alt.Chart = _chart(points).mark_rect(stroke="white", strokeWidth=0.5, strokeOpacity=0.4).encode(
        alt.X("low:Q", scale=alt.Scale(type="log", nice=False), axis=_wait_axis(), title=None),
        alt.X2("high:Q"),
        alt.Y("base:Q", title="attempts", axis=alt.Axis(format=",d", tickCount=5)),
        alt.Y2("top:Q"),
        alt.Color("name:N", scale=colours("lane", _names(points)), legend=_legend()),
        tooltip=[alt.Tooltip(f"{field}:N", title=title) for field, title in texts.items()],
    ).properties(height=HEIGHT)  # fmt: skip
    return chart


def grid(points: Sequence[Point], unit: str) -> alt.Chart:
    """A heat map. A point: `x`, `y`, `value`, `exact`. `unit`: `ms`, on a logarithmic scale, or a share's name."""
    waits, values = unit == "ms", [point["value"] for point in points]
    scale = alt.Scale(scheme="viridis", type="log") if waits else alt.Scale(scheme="viridis", domain=[0, 1])
    within = [wait for wait in _WAITS if min(values, default=0) <= wait <= max(values, default=0)]
    how: dict[str, Any] = {"labelExpr": _WAIT, "values": within} if waits else {"format": ".0%", "tickCount": 4}
    colour = alt.Color("value:Q", scale=scale, legend=alt.Legend(title=None, orient="right", **how))
    chart: alt.Chart = _chart(points).mark_rect(stroke="white", strokeWidth=0.5, strokeOpacity=0.4).encode(
        alt.X("x:O", title=None, sort=None, axis=alt.Axis(labelAngle=0, labelOverlap="greedy", labelFlush=False, ticks=False)),
        alt.Y("y:O", title=None, axis=alt.Axis(ticks=False, labelLimit=160)),
        colour,
        tooltip=[alt.Tooltip("y:N", title="row"), alt.Tooltip("x:N", title="column"), alt.Tooltip("exact:N", title=unit)],
    ).properties(height=HEIGHT)  # fmt: skip
    return chart


def scatter(points: Sequence[Point]) -> alt.Chart:
    """Cost against wait, both logarithmic; lanes that were chosen are filled, those that lost are not."""
    log = alt.Scale(type="log", nice=False, padding=12)
    texts = {"name": "lane", "chosen": "was", "exact": "cost, wait", "id": "call"}
    chart: alt.Chart = _chart(points).mark_point(size=50).encode(
        alt.X("wait:Q", title="expected wait, seconds", scale=log, axis=_steps(-3, 5)),
        alt.Y("cost:Q", title="expected cost, $", scale=log, axis=_steps(-9, 4)),
        alt.Color("name:N", scale=colours("lane", _names(points)), legend=_legend()),
        alt.Shape("chosen:N", scale=alt.Scale(domain=["chosen", "lost"], range=["circle", "cross"]), legend=_legend()),
        tooltip=[alt.Tooltip(f"{field}:N", title=title) for field, title in texts.items()],
    ).properties(height=HEIGHT)  # fmt: skip
    return chart


def timeline(points: Sequence[Point]) -> alt.Chart:
    """Calls as bars from their beginning to their end, in seconds from the first one."""
    texts = {"at": "began", "subgoal": "subgoal", "name": "lane", "status": "status", "exact": "took, cost"}
    chart: alt.Chart = _chart(points).mark_bar(height={"band": 0.8}, minBandSize=2).encode(
        alt.X("from:Q", title="seconds since the first call"),
        alt.X2("to:Q"),
        alt.Y("row:O", title=None, axis=None),
        alt.Color("name:N", scale=colours("lane", _names(points)), legend=_legend()),
        tooltip=[alt.Tooltip(f"{field}:N", title=title) for field, title in texts.items()],
    ).properties(height=min(600, 60 + 9 * len(points)))  # fmt: skip
    return chart


def _title(unit: str) -> str | None:
    """An axis whose ticks do not say their unit has it for a title."""
    return None if unit in ("$", "share") else unit


def _axis(unit: str, ticks: int) -> alt.Axis:
    """Dollars below one are written out: SI's small m means a thousandth, and a million to whoever pays."""
    if unit == "$":
        dollars = "datum.value >= 1 ? format(datum.value, '$,.2~f') : format(datum.value, '$.2~r')"
        return alt.Axis(labelExpr=dollars, tickCount=ticks)
    return alt.Axis(format="%" if unit == "share" else "~s", tickCount=ticks)


def _steps(least: int, most: int) -> alt.Axis:
    """Of a logarithm, one, two and five of each power of ten."""
    values = [step * 10.0**power for power in range(least, most) for step in (1, 2, 5)]
    return alt.Axis(values=values, format=",.2~r", labelOverlap="greedy")


def _wait_axis() -> alt.Axis:
    """Milliseconds up to a second, then seconds."""
    return alt.Axis(values=_WAITS, labelExpr=_WAIT, labelOverlap="greedy")


def tokens(row: Row) -> dict[str, int]:
    """Token classes that do not overlap: reasoning is shown apart from the rest of the output."""
    return {
        "uncached": row.uncached, "cache write": row.cache_write, "cache read": row.cache_read,
        "output": row.output - row.reasoning, "reasoning": row.reasoning,
    }  # fmt: skip


def costs(row: Row) -> dict[str, int]:
    """Nano-dollars by token class, adding up to the row's cost; reasoning is part of the output here."""
    return {name.replace("_", " "): nanos for name, nanos in row.cost_parts.items()}


def over_time(row: Row, label: str, value: float | None, exact: str) -> Point:
    return {"when": name(row.key[0]), "name": label, "value": value, "exact": exact}


def shares(rows: Sequence[Row]) -> list[Point]:
    """Cache share of rows by time and a name."""
    return [
        over_time(row, name(row.key[1]), row.cache_share, f"{format.share(row.cache_share)} of {row.input_total:,} tokens")
        for row in rows
        if row.cache_share is not None
    ]


def _names(points: Sequence[Point]) -> list[str]:
    return sorted({point["name"] for point in points})


def _chart(points: Sequence[Point]) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=list(points)))
