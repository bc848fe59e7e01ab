"""Charts are valid, fetch nothing, and give the same thing the same colour."""
from __future__ import annotations

import json

from dashboard import charts
from dashboard.data import Bar, Quantiles, Row

POINTS = [{"when": "2026-11-01", "name": "fast", "value": 1.0, "exact": "$1"}, {"when": "2026-11-02", "name": "new", "value": 2.0, "exact": "$2"}]


def test_lanes_and_token_classes_keep_their_colours() -> None:
    """Whichever others are shown; no two shown names share one."""
    few, many = charts.colours("lane", ["fast"]).to_dict(), charts.colours("lane", ["zeta", "fast", "standard", "alpha"]).to_dict()
    assert few["range"][0] == dict(zip(many["domain"], many["range"], strict=True))["fast"] == charts.LANES["fast"]
    assert many["domain"] == ["fast", "standard", "alpha", "zeta"]
    assert len(set(many["range"])) == 4
    assert len(set(charts.TOKEN_CLASSES.values())) == 6


def test_every_chart_is_whole_and_offline() -> None:
    """It validates against Vega-Lite's schema, and its data is in it."""
    quantiles = [Quantiles(key=("fast", None), count=3, p50=10.0, p95=20.0, p99=30.0, max=40.0)]
    bars = [Bar(key=("fast",), low_ms=None, high_ms=1, count=2), Bar(key=("slow",), low_ms=800_000, high_ms=None, count=1)]
    drawn = [
        charts.stacked(POINTS, ["2026-11-01", "2026-11-02"], "lane", "$"), charts.ranked(POINTS, "lane", "share"),
        charts.lines(POINTS, ["2026-11-01T00:00+00:00"], "lane", "ms"), charts.lines(POINTS, [], "team", "share"),
        charts.spread(quantiles), charts.histogram(bars),
    ]  # fmt: skip
    for chart in drawn:
        spec = chart.to_dict()
        del spec["$schema"]     # a name, never fetched
        assert "http" not in json.dumps(spec)
        assert "tooltip" in json.dumps(spec)


def test_bars_of_one_range_stand_on_each_other() -> None:
    bars = [Bar(key=("slow",), low_ms=1, high_ms=2, count=5), Bar(key=("fast",), low_ms=1, high_ms=2, count=3)]
    spec = charts.histogram(bars).to_dict()
    values = spec["datasets"][spec["data"]["name"]]
    assert [(v["name"], v["base"], v["top"]) for v in values] == [("fast", 0, 3), ("slow", 3, 8)]


def test_token_classes_do_not_overlap() -> None:
    row = Row(uncached=1, cache_read=2, cache_write=3, output=10, reasoning=4)
    assert sum(charts.tokens(row).values()) == row.input_total + row.output
