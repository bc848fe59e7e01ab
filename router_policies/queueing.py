"""When a queued call goes, and where: cheap lanes in cheap hours, until its deadline is at risk. Pure; times are epoch seconds.

A call is at risk when what is left until its deadline is no more than what it is likely to need: the calls ahead of it at the
pace of the last ones, twice over, and a tenth of its window.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

from router_policies.globs import Glob, first_match
from router_policies.rules import Policy, Wait

Step = Literal["hold", "cheap", "any"]
_SAFETY, _WINDOW_SHARE = 2.0, 0.1
_TURNAROUND_SAFETY = 1.25


class Pace(NamedTuple):
    """How fast queued calls get done."""

    service_s: float = 10.0  # of one call on an ordinary lane
    at_once: int = 8
    turnaround_s: float = 3_600.0  # of a provider's batch: what nine of ten were done in


def reserve_s(window_s: float, ahead: int, pace: Pace) -> float:
    """Time before the deadline from which a call behind `ahead` others is at risk."""
    return window_s * _WINDOW_SHARE + _SAFETY * (ahead // max(pace.at_once, 1) + 1) * pace.service_s


def step(wait: Wait, now_s: float, deadline_s: float, window_s: float, ahead: int, pace: Pace) -> Step:
    """What a call may do now: stay, take a cheap lane, or take any."""
    if now_s >= deadline_s - reserve_s(window_s, ahead, pace):
        return "any"
    return "cheap" if in_hours(wait, now_s) else "hold"


def fits_provider_batch(now_s: float, deadline_s: float, window_s: float, pace: Pace) -> bool:
    """Whether a provider's batch is likely back while there is time to do without it."""
    return now_s + _TURNAROUND_SAFETY * pace.turnaround_s <= deadline_s - reserve_s(window_s, 0, pace)


def in_hours(wait: Wait, now_s: float) -> bool:
    if not wait.hours:
        return True
    start, end = (int(hour) for hour in wait.hours.split("-"))
    hour = datetime.fromtimestamp(now_s, UTC).astimezone(ZoneInfo(wait.timezone)).hour
    return start <= hour < end if start <= end else hour >= start or hour < end


def cheap_of(wait: Wait, lane_names: Iterable[str]) -> bool:
    """Whether any of these lanes is a cheap one."""
    return any(first_match(wait.lanes, name) is not None for name in lane_names)


def kept_to(policy: Policy, lanes: tuple[Glob, ...]) -> Policy:
    """The same policy, with no other lanes than these."""
    classes = {name: replace(klass, lanes=lanes) for name, klass in policy.classes.items()}
    rules = tuple(replace(rule, klass=replace(rule.klass, lanes=lanes)) for rule in policy.rules)
    return replace(policy, classes=classes, rules=rules)
