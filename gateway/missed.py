"""Why a call's prompt was not read from a cache, as its entry tells it; and what is kept so that later calls can be explained.

Short prompts are left out: no provider caches them, and they should cost nothing here.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.call import Call
from gateway.core.usage import TokenUsage
from gateway.prefix.chain import Chain
from gateway.prefix.explain import explain
from gateway.prefix.history import History
from router_policies.types import Rates

_LEAST_TOKENS = 256


def why(
    history: History, call: Call, chain: Chain, model: str, tokens: TokenUsage, *,
    pool: str, provider: str, ttl_s: float, rates: Rates,
) -> Mapping[str, Any] | None:  # fmt: skip
    """The entry's `miss`; None where nothing was missed or the provider does not say what it read."""
    total, read = tokens.input_total, tokens.cache_read
    if read is None or total < _LEAST_TOKENS or not history.worth(call.tenant.team, chain, read):
        return None
    found = explain(
        history, call.tenant.team, chain, model, call.body, pool=pool, provider=provider, at_us=call.at_us, tokens=total,
        read=read, ttl_s=ttl_s,
    )  # fmt: skip
    if found is None:
        return None
    priced = rates.uncached is not None and rates.cached is not None
    lost = found.lost_tokens * (rates.uncached - rates.cached) // 1_000 if priced else None  # type: ignore[operator]
    return {
        "kind": found.kind, "path": found.path, "start": found.start, "end": found.end, "would_hit": found.would_hit_tokens,
        "lost": found.lost_tokens, "lost_nanos": lost, "earlier_us": found.earlier_us,
    }  # fmt: skip


def note(history: History, call: Call, chain: Chain, model: str, tokens: TokenUsage, *, pool: str) -> None:
    """Keeps the outline of an answered prompt."""
    if tokens.input_total >= _LEAST_TOKENS:
        history.note(call.tenant.team, chain, model, call.body, pool=pool, at_us=call.at_us, tokens=tokens.input_total)
