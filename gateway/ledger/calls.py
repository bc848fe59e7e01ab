"""Single calls and runs as `GET /tollway/calls/{id}` and `/tollway/runs/{id}` answer them."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from gateway.core.money import usd
from gateway.core.usage import TokenUsage
from gateway.ledger import Entry, days

Json = dict[str, Any]


def call_json(entries: Sequence[Entry]) -> Json:
    """All entries of one call, at least one, in the shape of design.md section 2."""
    attempts = with_corrections(entries)
    last = attempts[-1]
    return {
        "id": last.call_id,
        "team": last.team,
        "run": last.run,
        "model": last.model,
        "class": last.latency_class,
        "lane": last.lane,
        "status": last.status,
        "policy_version": last.policy_version,
        "reason": last.reason,
        "attempts": [_attempt(attempt) for attempt in attempts],
        "cost_usd": usd(_total(attempt.cost_nanos for attempt in attempts)),
        "prefix": {"predicted_read": last.predicted_read_tokens, "miss": last.miss},
        "decision": list(last.decision),
        "receipts": list(last.receipts),
    }


def summary(entries: Sequence[Entry]) -> Json:
    """One line of a list of calls."""
    attempts = with_corrections(entries)
    first, last = attempts[0], attempts[-1]
    return {
        "id": last.call_id, "at": days.instant(first.at_us).isoformat(timespec="milliseconds"), "at_us": first.at_us,
        "team": last.team, "project": last.project, "key": last.key_id, "client": last.client, "run": last.run,
        "model": last.model, "lane": last.lane, "class": last.latency_class, "backend": last.backend, "status": last.status,
        "attempts": len(attempts), "input_total": sum(attempt.tokens.input_total for attempt in attempts),
        "cache_read": sum(attempt.tokens.cache_read or 0 for attempt in attempts),
        "output": sum(attempt.tokens.output or 0 for attempt in attempts),
        "first_token_ms": last.first_token_ms, "total_ms": last.total_ms,
        "cost_usd": usd(_total(attempt.cost_nanos for attempt in attempts)),
    }  # fmt: skip


def timed(entry: Entry) -> Json:
    """An attempt on a timeline."""
    return {
        "id": entry.call_id, "at_us": entry.at_us, "end_us": entry.at_us + int(entry.total_ms * 1_000), "run": entry.run,
        "parent_run": entry.parent_run, "subgoal": entry.subgoal, "lane": entry.lane, "model": entry.model,
        "status": entry.status, "input_total": entry.tokens.input_total, "cache_read": entry.tokens.cache_read or 0,
        "output": entry.tokens.output or 0, "cost_usd": usd(entry.cost_nanos),
        "cost_nanos": entry.cost_nanos, "total_ms": entry.total_ms,
    }  # fmt: skip


def with_corrections(entries: Sequence[Entry]) -> list[Entry]:
    """The attempts in order, each with what its corrections changed added in."""
    ordered = sorted(entries, key=lambda entry: (entry.attempt, entry.at_us))
    attempts = {entry.id: entry for entry in ordered if not entry.corrects}
    for entry in entries:
        if entry.corrects in attempts:
            attempts[entry.corrects] = _corrected(attempts[entry.corrects], entry)
    return list(attempts.values()) or list(entries)


def _corrected(old: Entry, by: Entry) -> Entry:
    return replace(
        old,
        status="ok" if old.status == "unpriced" and by.cost_nanos is not None else old.status,
        tokens=_added(old.tokens, by.tokens),
        cost_nanos=_plus(old.cost_nanos, by.cost_nanos),
        uncached_cost_nanos=_plus(old.uncached_cost_nanos, by.uncached_cost_nanos),
        price_rows=by.price_rows or old.price_rows,
    )


def _added(old: TokenUsage, by: TokenUsage) -> TokenUsage:
    return TokenUsage(
        uncached=_plus(old.uncached, by.uncached),
        cache_read=_plus(old.cache_read, by.cache_read),
        cache_write=_sums(old.cache_write, by.cache_write),
        output=_plus(old.output, by.output),
        reasoning=_plus(old.reasoning, by.reasoning),
        other=_sums(old.other, by.other),
        flags=old.flags,
    )


def _sums(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {name: a.get(name, 0) + b.get(name, 0) for name in {**a, **b}}


def _plus(a: int | None, b: int | None) -> int | None:
    return a if b is None else b if a is None else a + b


def _total(amounts: Any) -> int | None:
    """None as soon as one part is not known."""
    parts = list(amounts)
    return None if None in parts else sum(parts)


def _attempt(entry: Entry) -> Json:
    return {
        "backend": entry.backend,
        "upstream_model": entry.upstream_model,
        "lane": entry.lane,
        "served_tier": entry.served_tier,
        "status": entry.status,
        "http_status": entry.http_status,
        "first_token_ms": entry.first_token_ms,
        "total_ms": entry.total_ms,
        "tokens": tokens_json(entry.tokens),
        "tokens_from": entry.tokens_from,
        "cost_usd": usd(entry.cost_nanos),
        "price_rows": list(entry.price_rows),
        **({"flags": list(entry.tokens.flags)} if entry.tokens.flags else {}),
    }


def tokens_json(tokens: TokenUsage) -> Json:
    """The two usual lifetimes of writes always stand there, others where they were reported."""
    return {
        "uncached": tokens.uncached,
        "cache_read": tokens.cache_read,
        "cache_write": {"5m": 0, "1h": 0, **tokens.cache_write},
        "output": tokens.output,
        "reasoning": tokens.reasoning,
        "other": dict(tokens.other),
    }


def by_call(entries: Sequence[Entry], order: Sequence[str]) -> list[list[Entry]]:
    """Entries of several calls, call by call in the order given."""
    grouped: Mapping[str, list[Entry]] = {id: [] for id in order}
    for entry in entries:
        grouped[entry.call_id].append(entry)
    return list(grouped.values())
