"""One immutable ledger row per attempt: what was asked, where it went, what it took and what it cost."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.core.outcome import Status, TokensFrom
from gateway.core.usage import TokenUsage


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt of one call at one backend. Times are microseconds since the epoch, UTC; money is nano-dollars."""

    id: str
    """Attempt id; unique, and what makes every write of this entry idempotent."""
    call_id: str
    attempt: int
    """Counts the attempts of a call from 1."""
    at_us: int
    kind: str = "attempt"
    """`attempt`, or `correction` with `corrects` set."""
    corrects: str | None = None

    team: str
    project: str | None = None
    key_id: str
    client: str = ""
    session: str | None = None
    """The conversation: a digest of how it begins, the same in all its turns."""
    run: str | None = None
    parent_run: str | None = None
    subgoal: str | None = None
    tags: Mapping[str, str] = {}

    dialect: str
    stream: bool
    model: str
    """As the client asked for it."""
    upstream_model: str
    served_model: str | None = None
    backend: str
    provider: str
    lane: str
    served_tier: str | None = None
    latency_class: str
    policy_version: str
    reason: str
    """Why this lane, in words."""
    decision: tuple[Mapping[str, Any], ...] = ()
    """Every lane's figures: lane, cost and wait expected, or why it was refused."""
    receipts: tuple[Mapping[str, Any], ...] = ()
    """What normalization changed: pass, place, hash before and after."""

    status: Status
    http_status: int | None = None
    error: str | None = None
    first_token_ms: float | None = None
    total_ms: float = 0.0
    tokens: TokenUsage = TokenUsage()
    tokens_from: TokensFrom = "none"
    predicted_read_tokens: int | None = None
    miss: Mapping[str, Any] | None = None
    """First difference to the nearest earlier prefix, where one was expected to hit."""

    cost_nanos: int | None = None
    """None: the price is not known, which is not the same as free."""
    held_nanos: int | None = None
    """What budgets count an attempt at whose cost is not known: its hold. On the correction that tells the cost: what it takes
    the place of."""
    uncached_cost_nanos: int | None = None
    """What the attempt would have cost had every prompt token been computed afresh."""
    price_rows: tuple[str, ...] = ()
