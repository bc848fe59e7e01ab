"""What the sidebar chose: a range of time, a zone, teams. Pure, so that the same address shows the same figures anywhere."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

from dashboard.data import Slice, day_range, instant, micros

RANGES: Mapping[str, str] = {
    "1h": "Last hour", "24h": "Last 24 hours", "today": "Today", "yesterday": "Yesterday", "7d": "Last 7 days",
    "30d": "Last 30 days", "month": "This month", "90d": "Last 90 days", "all": "All time", "custom": "From, to",
}  # fmt: skip
DEFAULT_RANGE = "7d"
_DAYS = {"today": 1, "7d": 7, "30d": 30, "90d": 90}
_HOUR_US = 3_600_000_000
NONE = "(none)"
_STEP_US = 5_000_000
"""Now is rounded up to this, so that figures asked for at the same time share one query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    part: Slice
    before: Slice | None
    """The period of the same length before it; None for all time."""
    today: Slice
    range: str
    bucket: str
    """`hour` for up to two days, else `day`."""

    @property
    def tz(self) -> str:
        return self.part.tz

    @property
    def title(self) -> str:
        if self.range not in ("custom", "all"):
            return RANGES[self.range]
        if self.range == "all":
            return "All time"
        first, last = instant(self.part.since_us, self.tz), instant(self.part.until_us - 1, self.tz)
        return f"{first:%d %b %Y} to {last:%d %b %Y}"


def buckets(view: View, found: Iterable[str | None]) -> list[str]:
    """Names of the days or hours that a chart of the view has on its axis, those without a call included."""
    keys = sorted(key for key in found if key is not None)
    if not keys:
        return []
    if view.bucket == "day":
        first, last = date.fromisoformat(keys[0]), date.fromisoformat(keys[-1])
        if view.part.since_us:
            first = min(first, instant(view.part.since_us, view.tz).date())
            last = max(last, instant(view.part.until_us - 1, view.tz).date())
        return [(first + timedelta(days=n)).isoformat() for n in range((last - first).days + 1)]
    start = micros(datetime.fromisoformat(keys[0]))
    if view.part.since_us:
        start -= max(0, start - view.part.since_us + _HOUR_US - 1) // _HOUR_US * _HOUR_US
    hours = range(start, view.part.until_us, _HOUR_US)
    return sorted({*keys, *(instant(at, view.tz).isoformat(timespec="minutes") for at in hours)}, key=datetime.fromisoformat)


def narrowed(part: Slice, name: str, value: str) -> Slice:
    """The slice with one more condition, never wider than it was; `(none)` stands for entries without a value."""
    wanted = None if value == NONE else value
    within = part.where.get(name, (wanted,))
    allowed = wanted == within if within is None or isinstance(within, str) else wanted in within
    return replace(part, where={**part.where, name: [wanted] if allowed else []})


def view(
    range_: str, tz: str, where: Mapping[str, str | Sequence[str]], now_us: int, dates: tuple[date, date] | None = None
) -> View:
    now_us = -(-now_us // _STEP_US) * _STEP_US
    today = instant(now_us - 1, tz).date()
    since, until, back = _span(range_, tz, now_us, today, dates)
    part = Slice(since_us=since, until_us=until, tz=tz, where=where)
    return View(
        part=part,
        before=None if range_ == "all" else replace(part, since_us=since - back, until_us=until - back),
        today=replace(part, since_us=day_range(today, today, tz)[0], until_us=now_us),
        range=range_,
        bucket="hour" if until - since <= 50 * _HOUR_US else "day",
    )


def _span(range_: str, tz: str, now_us: int, today: date, dates: tuple[date, date] | None) -> tuple[int, int, int]:
    """Beginning, end, and how far back the period lies that it is compared with."""
    if range_ in ("1h", "24h"):
        length = _HOUR_US * (1 if range_ == "1h" else 24)
        return now_us - length, now_us, length
    if range_ == "all":
        return 0, now_us, 0
    if range_ == "yesterday":
        first = last = today - timedelta(days=1)
    elif range_ == "custom" and dates is not None:
        first, last = dates
    else:
        first, last = today - timedelta(days=_DAYS.get(range_, today.day) - 1), today
    since, end = day_range(first, last, tz)
    back = since - day_range(first - (last - first) - timedelta(days=1), first, tz)[0]
    return since, min(end, now_us) if last >= today else end, back
