"""Rows to charts: the same colour for the same thing everywhere, units on axes, exact figures in tooltips.

Colours are from Okabe and Ito's and Tol's sets, told apart with any kind of colour blindness and on light and dark ground. Times
are drawn in the report's zone, whatever zone the browser is in: local wall time goes to the chart as if it were UTC.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from dashboard import format
from dashboard.data import Bar, Quantiles, Row

TOKEN_CLASSES: Mapping[str, str] = {
    "uncached": "#d55e00", "cache write": "#e69f00", "cache read": "#009e73", "output": "#0072b2", "reasoning": "#56b4e9",
}  # fmt: skip
LANES: Mapping[str, str] = {"fast": "#aa3377", "standard": "#4477aa", "flex": "#b8a11d", "batch": "#7f8790"}
OTHERS = ("#4477aa", "#ee6677", "#228833", "#b8a11d", "#66ccee", "#aa3377", "#e69f00", "#7f8790", "#009e73", "#d55e00")
HEIGHT = 280
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
    return "(none)" if value is None else value


def wall(bucket: str) -> str:
    """A day or an hour with its offset as the chart's instant: the wall time, called UTC."""
    return f"{bucket}T00:00:00Z" if len(bucket) == 10 else f"{bucket[:16]}:00Z"


def _time(bucket: str) -> alt.X:
    unit, form = ("utcyearmonthdate", "%d %b") if bucket == "day" else ("utcyearmonthdatehours", "%d %b %H:%M")
    axis = alt.Axis(format=form, labelOverlap=True, title=None, grid=False, tickCount=8)
    return alt.X("at:T", timeUnit=alt.TimeUnitParams(unit=unit), axis=axis, scale=alt.Scale(type="utc"))


def _legend(dimension: str) -> alt.Legend:
    return alt.Legend(title=dimension, orient="bottom", columns=5, symbolType="square", labelLimit=160)


def stacked(points: Sequence[Point], bucket: str, dimension: str, unit: str) -> alt.Chart:
    """Bars over time. A point: `at`, `when`, `name`, `value`, and `exact`, the text of its tooltip."""
    form = {"$": "$,.2~f", "tokens": "~s"}.get(unit, ",d")
    names = sorted({point["name"] for point in points})
    return _chart(points).mark_bar().encode(
        x=_time(bucket),
        y=alt.Y("value:Q", title=unit, axis=alt.Axis(format=form, tickCount=5), stack=True),
        color=alt.Color("name:N", scale=colours(dimension, names), legend=_legend(dimension)),
        order=alt.Order("name:N"),
        tooltip=[alt.Tooltip("when:N", title=bucket), alt.Tooltip("name:N", title=dimension), alt.Tooltip("exact:N", title=unit)],
    ).properties(height=HEIGHT)  # fmt: skip


def ranked(points: Sequence[Point], dimension: str, unit: str) -> alt.Chart:
    """Horizontal bars, the longest on top."""
    names = sorted({point["name"] for point in points})
    bars = _chart(points).encode(
        y=alt.Y("name:N", sort="-x", title=None, axis=alt.Axis(labelLimit=180)),
        x=alt.X("value:Q", title=unit, axis=alt.Axis(format="%" if unit == "share" else "~s", tickCount=4)),
        tooltip=[alt.Tooltip("name:N", title=dimension), alt.Tooltip("exact:N", title=unit)],
    )
    painted = bars.mark_bar(cornerRadiusEnd=3).encode(color=alt.Color("name:N", scale=colours(dimension, names), legend=None))
    return painted.properties(height=max(90, 34 * len(names) + 40))


def lines(points: Sequence[Point], bucket: str, dimension: str, unit: str) -> alt.Chart:
    """Lines with a point at each bucket. `unit`: `share`, or `ms` on a logarithmic axis."""
    names = sorted({point["name"] for point in points})
    if unit == "share":
        y = alt.Y("value:Q", title=None, axis=alt.Axis(format="%", tickCount=5), scale=alt.Scale(domain=[0, 1]))
    else:
        y = alt.Y("value:Q", title="ms", axis=alt.Axis(format="~s", tickCount=5), scale=alt.Scale(type="log", nice=True))
    return _chart(points).mark_line(point=alt.OverlayMarkDef(size=36), strokeWidth=2).encode(
        x=_time(bucket),
        y=y,
        color=alt.Color("name:N", scale=colours(dimension, names), legend=_legend(dimension)),
        tooltip=[alt.Tooltip("when:N", title=bucket), alt.Tooltip("name:N", title=dimension), alt.Tooltip("exact:N", title=unit)],
    ).properties(height=HEIGHT)  # fmt: skip


def spread(found: Sequence[Quantiles]) -> alt.LayerChart:
    """Per lane and class a line from p50 to p95, logarithmic, so that one slow lane does not hide the others."""
    points = [
        {"row": " · ".join(name(part) for part in q.key), "name": name(q.key[0]), "p50": q.p50, "p95": q.p95, "n": f"{q.count:,}",
         "t50": format.ms(q.p50), "t95": format.ms(q.p95), "t99": format.ms(q.p99)}
        for q in found
    ]  # fmt: skip
    base = _chart(points).encode(
        y=alt.Y("row:N", title=None, sort=None, axis=alt.Axis(labelLimit=220)),
        color=alt.Color("name:N", scale=colours("lane", sorted({point["name"] for point in points})), legend=None),
        tooltip=[
            alt.Tooltip("row:N", title="lane · class"), alt.Tooltip("t50:N", title="p50"), alt.Tooltip("t95:N", title="p95"),
            alt.Tooltip("t99:N", title="p99"), alt.Tooltip("n:N", title="attempts"),
        ],
    )  # fmt: skip
    log = alt.Scale(type="log", nice=True)
    axis = alt.Axis(format="~s", tickCount=6)
    span = base.mark_bar(height=6, opacity=0.55).encode(x=alt.X("p50:Q", scale=log, axis=axis, title="ms, p50 to p95"), x2="p95:Q")
    low = base.mark_circle(size=90, opacity=1).encode(x=alt.X("p50:Q", scale=log, axis=axis))
    high = base.mark_tick(thickness=3, height=18).encode(x=alt.X("p95:Q", scale=log, axis=axis))
    layers = alt.layer(span, low, high)
    return layers.properties(height=max(90, 34 * len(points) + 40))


def histogram(bars: Sequence[Bar]) -> alt.Chart:
    """How many attempts took how long; bars are a tenth of a decade wide."""
    points = [
        {"low": bar.low_ms or 0.8, "high": bar.high_ms or 1e6, "name": name(bar.key[0]), "value": bar.count,
         "exact": f"{format.ms(bar.low_ms or 0)} to {format.ms(bar.high_ms) if bar.high_ms else 'more'}"}
        for bar in bars
    ]  # fmt: skip
    names = sorted({point["name"] for point in points})
    edges = alt.Scale(type="log", nice=False)
    return _chart(points).mark_bar().encode(
        x=alt.X("low:Q", scale=edges, axis=alt.Axis(format="~s", tickCount=6, grid=False), title="ms"),
        x2="high:Q",
        y=alt.Y("value:Q", title="attempts", stack=True, axis=alt.Axis(format=",d", tickCount=5)),
        color=alt.Color("name:N", scale=colours("lane", names), legend=_legend("lane")),
        tooltip=[
            alt.Tooltip("exact:N", title="took"), alt.Tooltip("name:N", title="lane"),
            alt.Tooltip("value:Q", title="attempts", format=","),
        ],
    ).properties(height=HEIGHT)  # fmt: skip


def tokens(row: Row) -> dict[str, int]:
    """Token classes that do not overlap: reasoning is shown apart from the rest of the output."""
    return {
        "uncached": row.uncached, "cache write": row.cache_write, "cache read": row.cache_read,
        "output": row.output - row.reasoning, "reasoning": row.reasoning,
    }  # fmt: skip


def over_time(row: Row, label: str, value: float | None, exact: str) -> Point:
    bucket = name(row.key[0])
    return {"at": wall(bucket), "when": bucket.replace("T", " "), "name": label, "value": value, "exact": exact}


def _chart(points: Sequence[Point]) -> alt.Chart:
    return alt.Chart(alt.Data(values=list(points)))
