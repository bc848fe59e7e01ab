"""What is worth telling somebody: budgets that fill up, spend that jumps, caches that stop to hit, waits beyond a bound.

`rules.py` finds it in the ledger's sums, `messages.py` puts it into words, `senders.py` takes it away, `watch.py` sees to it
that nothing is told twice. Off until `alerts:` in tollway.yaml names a channel.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["budget", "spend", "cache", "latency", "test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One thing to tell. `id` says what it is about and in which window: it is told once."""

    id: str
    kind: Kind
    team: str
    """Empty: it concerns the operator only."""
    title: str
    text: str
    at_us: int
    level: Literal["info", "warning", "critical"] = "warning"
