"""A report asked for in words (`tollway report`, `/tollway/usage`) -> the sums, as JSON.

Words: `report` (spend, cache, routing, latency), `by` (comma-separated dimensions), `since` and `until` (a day, an instant,
or an age such as 24h or 7d), `tz`, `of` (latency: first_token, total, per_token); any other word filters by a dimension.
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, cast
from zoneinfo import ZoneInfo

from gateway.core import clock
from gateway.ledger.days import day_range
from gateway.ledger.latency import Of
from gateway.ledger.reports import DIMENSIONS, BadQuery, Reports, Slice

REPORTS = ("spend", "latency", "cache", "routing")
_BY = {"spend": "team", "cache": "team", "routing": "lane,class", "latency": "lane,class"}
_LEAST_SPAN_US, _MOST_CAUSES = 3_600_000_000, 100
"""Dollars a month are told from an hour of traffic on."""
_MOST_BY = 8
_AGE = re.compile(r"(\d{1,6})([smhdw])")
_PLUS = re.compile(r"(?<=:\d\d) (?=\d\d:?\d\d$)")
"""A blank where a zone begins: what becomes of `+` in an address that nobody has encoded."""
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LATENCIES = ("first_token", "total", "per_token")


def answer(reports: Reports, words: Mapping[str, str], now_us: int | None = None) -> dict[str, Any]:
    """Raises `BadQuery` for a word that means nothing here, with those that do."""
    words = dict(words)
    report = words.pop("report", "spend")
    if report not in REPORTS:
        raise BadQuery(f"{report!r} is no report; use one of: {', '.join(REPORTS)}")
    by = tuple(name.strip() for name in words.pop("by", _BY[report]).split(",") if name.strip())
    if len(by) > _MOST_BY:
        raise BadQuery(f"by: at most {_MOST_BY} names")
    of = words.pop("of", "first_token")
    if of not in _LATENCIES:
        raise BadQuery(f"of: {of!r} is not measured; use one of: {', '.join(_LATENCIES)}")
    part = slice_of(words, clock.now_us() if now_us is None else now_us)
    head = {"report": report, "by": list(by), "tz": part.tz, "since_us": part.since_us, "until_us": part.until_us}
    if report == "latency":
        return {**head, "of": of, "rows": [row.json(by) for row in reports.latency(by, part, cast(Of, of))]}
    sums = {**head, **reports.spend(by, part).json()}
    if report == "cache":
        now_us = clock.now_us() if now_us is None else now_us
        first = reports.extent(part).first_us
        span_us = 0 if first is None else max(min(part.until_us, now_us) - max(part.since_us, first), _LEAST_SPAN_US)
        sums["misses"] = [cause.json(span_us) for cause in reports.misses(part)[:_MOST_CAUSES]]
        sums["warmed"] = [one.json() for one in reports.warmed(part)]
        sums["savings"] = [one.json() for one in reports.savings(part)]
    return sums


def slice_of(words: Mapping[str, str], now_us: int) -> Slice:
    """`since`, `until`, `tz` and filters."""
    tz = words.get("tz", "UTC")
    bounds = {}
    if since := words.get("since"):
        bounds["since_us"] = _instant(since, tz, now_us, end=False)
    if until := words.get("until"):
        bounds["until_us"] = _instant(until, tz, now_us, end=True)
    if len(bounds) == 2 and bounds["since_us"] > bounds["until_us"]:
        raise BadQuery("since lies after until")
    where = {name: value for name, value in words.items() if name not in ("since", "until", "tz")}
    for name in where:
        if name not in DIMENSIONS and not name.startswith("tag:"):
            raise BadQuery(f"{name!r} is nothing to filter by; use one of: {', '.join(DIMENSIONS)}")
    return Slice(tz=tz, where=where, **bounds)


def _instant(text: str, tz: str, now_us: int, *, end: bool) -> int:
    """Microseconds; a day means its start, or as an end, its end."""
    if match := _AGE.fullmatch(text):
        return max(now_us - int(match[1]) * _SECONDS[match[2]] * 1_000_000, 0)
    try:
        if len(text) == 10:
            day = date.fromisoformat(text)
            first, last = day_range(day, day, tz)
            return last if end else first
        instant = datetime.fromisoformat(_PLUS.sub("+", text))
        if instant.tzinfo is None:
            instant = instant.replace(tzinfo=ZoneInfo(tz))
        return int(instant.timestamp() * 1_000_000)
    except (ValueError, OverflowError) as error:
        raise BadQuery(f"{text!r} is no time; write 24h, 7d, 2026-11-30 or 2026-11-30T12:00+01:00") from error
