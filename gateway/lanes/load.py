"""The load that an engine tells of itself, and what it means for the next call's wait.

An adapter scrapes its engine off the hot path and hands a `Load` to the lane's probe; nothing else enters this way.
"""
from __future__ import annotations

from typing import NamedTuple

from router_policies.live import Figures, behind_s

MAX_AGE_S = 3.0
"""Older figures are not used: then our own calls in flight have to do."""


class Load(NamedTuple):
    """One reading. None is what the engine does not tell."""

    at_s: float
    """Monotonic seconds when it was read."""
    running: int
    waiting: int
    waiting_tokens: int | None = None
    """Prompt tokens in the queue that no cache holds: work, where `waiting` is only a count."""
    kv_used: float | None = None
    hit_rate: float | None = None


def backlog_s(
    load: Load | None, now_s: float, in_flight: int, slots: int | None, prefill_s_per_token: float, figures: Figures
) -> float:
    """Seconds that a call sent now waits for those before it; 0 where nothing tells."""
    if load is not None and now_s - load.at_s <= MAX_AGE_S:
        if load.waiting_tokens is not None:
            return load.waiting_tokens * prefill_s_per_token * figures.first_token[2]
        return load.waiting * figures.service_s / max(load.running, 1)
    return 0.0 if slots is None else behind_s(in_flight, slots, figures.service_s)
