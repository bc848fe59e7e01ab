"""OpenAI's exports: pages of `GET /v1/organization/usage/completions` (and embeddings) and of `/v1/organization/costs`.

Cached and written tokens stand inside `input_tokens`. A cost has no model, tier or class of its own: its `line_item` says
"gpt-6-astra, input_tokens" or, in older exports, "gpt-4o-2024-08-06, cached input".
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from gateway.metering.prices import tier_name
from gateway.reconcile.lines import Line, kind_of, nanos_of

Json = Mapping[str, Any]
USAGE = ("organization.usage.completions.result", "organization.usage.embeddings.result")
COSTS = "organization.costs.result"
_TIERS = ("batch", "flex", "priority", "fast", "scale", "ultrafast")


def fits(page: Json) -> bool:
    return page.get("object") == "page" or any(bucket.get("object") == "bucket" for bucket in page["data"][:1])


def lines(page: Json, zone: ZoneInfo) -> Iterator[Line]:
    for bucket in page["data"]:
        day = datetime.fromtimestamp(int(bucket["start_time"]), UTC).astimezone(zone).date().isoformat()
        for result in bucket.get("results") or bucket.get("result") or ():
            if result["object"] in USAGE:
                yield from _usage(day, result)
            elif result["object"] == COSTS:
                yield _cost(day, result)


def amounts(page: Json) -> Iterator[Any]:
    for bucket in page["data"]:
        for result in bucket.get("results") or bucket.get("result") or ():
            if result["object"] == COSTS:
                yield _value(result)


def _usage(day: str, result: Json) -> Iterator[Line]:
    read, written = result.get("input_cached_tokens") or 0, result.get("input_cache_write_tokens") or 0
    long = result.get("input_cache_write_12h_tokens") or 0
    short = result.get("input_cache_write_30m_tokens")
    short = written - long if short is None else short
    fresh = result.get("input_uncached_tokens")
    if fresh is None:
        fresh = int(result["input_tokens"]) - read - max(written, short + long)
    tier, batch = result.get("service_tier"), result.get("batch")
    out = result.get("output_tokens") or 0
    counts = {"uncached": fresh, "cache_read": read, "write_30m": short, "write_12h": long, "output": out}
    for kind, tokens in counts.items():
        if tokens:
            yield Line(
                day=day, key=result.get("api_key_id") or result.get("project_id"), model=result.get("model") or "*",
                tier=None if tier is None and batch is None else tier_name("openai", tier, bool(batch)), kind=kind,
                tokens=int(tokens),
            )  # fmt: skip


def _cost(day: str, result: Json) -> Line:
    item = str(result.get("line_item") or "*")
    model, comma, word = item.rpartition(", ")
    kind = kind_of(word) if comma else "other"
    name, *rest = (item,) if kind == "other" else model.split(" ")
    tier = next((word for word in rest if word.lower() in _TIERS), None)
    quantity = result.get("quantity") if result.get("quantity_unit") in ("tokens", "1000_tokens", None) else None
    if quantity is not None and result.get("quantity_unit") == "1000_tokens":
        quantity = quantity * 1000
    return Line(
        day=day, key=result.get("api_key_id") or result.get("project_id"), model=name.rstrip(","),
        tier=tier_name("openai", tier) if tier else None, kind=kind, nanos=nanos_of(_value(result)),
        tokens=None if quantity is None or kind == "other" else round(quantity),
    )  # fmt: skip


def _value(result: Json) -> Any:
    return (result.get("amount") or {}).get("value") or 0
