"""Entries -> what a backtest replays: recorded calls, as values and as lines of a trace file.

The ledger keeps no prompts and no headers. A call's class is the recorded one where the client chose it; rules that look at
headers see none. What a cache held is known for the backend that served the call, and for no other.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gateway.ledger import Entry
from router_policies.simulate import Recorded

_CHOSEN = ("client's word", "service tier")
_PATHS = {
    "openai_chat": "/v1/chat/completions", "openai_responses": "/v1/responses", "anthropic_messages": "/v1/messages",
    "openai_embeddings": "/v1/embeddings",
}  # fmt: skip


def calls(entries: Iterable[Entry]) -> Iterator[Recorded]:
    """One for each call that was answered, seconds counted from the first."""
    start: int | None = None
    for entry in entries:
        if entry.kind != "attempt" or entry.status not in ("ok", "unpriced") or not entry.tokens.known:
            continue
        start = entry.at_us if start is None else start
        tokens = entry.tokens
        chosen = any(f"({word}" in entry.reason for word in _CHOSEN)
        yield Recorded(
            (entry.at_us - start) / 1e6, max(tokens.input_total, 1), max(tokens.output or 0, 1), entry.team, entry.model,
            session=entry.session or entry.run or entry.key_id, wished_class=entry.latency_class if chosen else None,
            stream=entry.stream, client=entry.client, path=_PATHS.get(entry.dialect, ""), tags=entry.tags,
            cached={entry.backend: tokens.cache_read} if tokens.cache_read else {},
        )  # fmt: skip


def lines(entries: Iterable[Entry]) -> Iterator[dict[str, Any]]:
    """As `tollway policy backtest --trace` reads them; what is as usual is left out."""
    for call in calls(entries):
        usual = Recorded._field_defaults
        yield {name: value for name, value in call._asdict().items() if name not in usual or value != usual[name]}
