"""Charts are valid, fetch nothing, and give the same thing the same colour."""
from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from itertools import combinations

import pytest

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


# How a reader sees who lacks one kind of cone: linear RGB, after Machado, Oliveira and Fernandes (2009), severity 1.0.
CONES = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}  # fmt: skip
XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
WHITE = (0.9505, 1.0, 1.089)


def times(matrix: Sequence[Sequence[float]], vector: Sequence[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def lab(colour: str, cones: str) -> list[float]:
    """CIE L*a*b* of a colour as that reader sees it."""
    encoded = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in encoded]
    seen = [min(max(c, 0.0), 1.0) for c in times(CONES[cones], linear)]
    x, y, z = (v / w for v, w in zip(times(XYZ, seen), WHITE, strict=True))
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)]


@pytest.mark.parametrize("cones", CONES)
@pytest.mark.parametrize("colours", [charts.TOKEN_CLASSES.values(), charts.LANES.values(), charts.OTHERS[:6]], ids=["classes", "lanes", "others"])
def test_colours_are_told_apart_by_everybody(colours: Iterable[str], cones: str) -> None:
    """Any two that stand in one chart differ by 10 or more in L*a*b*, where a difference of 2 can just be seen."""
    near = {(a, b): math.dist(lab(a, cones), lab(b, cones)) for a, b in combinations(colours, 2)}
    assert {pair: round(distance, 1) for pair, distance in near.items() if distance < 10} == {}
