"""Anthropic's exports: `usage_report/messages` and `cost_report`, and their successors under `organizations/analytics`.

Classes stand beside each other. Costs are decimal strings of cents, and know no API key, at most a workspace.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from gateway.metering.prices import NOWHERE, tier_name
from gateway.reconcile.lines import Line, kind_of, nanos_of

Json = Mapping[str, Any]
CENTS = 100
_TIERS = {"priority_on_demand": "priority", "flex_discount": "flex"}


def fits(page: Json) -> bool:
    return not page["data"] or "starting_at" in page["data"][0]


def lines(page: Json, zone: ZoneInfo) -> Iterator[Line]:
    for bucket in page["data"]:
        at = datetime.fromisoformat(bucket["starting_at"].replace("Z", "+00:00"))
        day = at.astimezone(zone).date().isoformat()
        for result in bucket["results"]:
            if "amount" in result:
                yield _cost(day, result)
            else:
                yield from _usage(day, result)


def amounts(page: Json) -> Iterator[Any]:
    return (result["amount"] for bucket in page["data"] for result in bucket["results"] if "amount" in result)


def _usage(day: str, result: Json) -> Iterator[Line]:
    written = result.get("cache_creation") or {}
    counts = {
        "uncached": result["uncached_input_tokens"],
        "cache_read": result["cache_read_input_tokens"],
        "write_5m": written.get("ephemeral_5m_input_tokens"),
        "write_1h": written.get("ephemeral_1h_input_tokens"),
        "output": result["output_tokens"],
    }
    for kind, tokens in counts.items():
        if tokens:
            yield Line(**_labels(day, result), kind=kind, tokens=int(tokens))


def _cost(day: str, result: Json) -> Line:
    kind = kind_of(str(result.get("token_type"))) if result.get("cost_type", "tokens") == "tokens" else "other"
    return Line(**_labels(day, result), kind=kind, nanos=nanos_of(result["amount"], CENTS))


def _labels(day: str, result: Json) -> dict[str, str | None]:
    tier, geo = result.get("service_tier"), result.get("inference_geo")
    if result.get("speed") == "fast":
        tier = "fast"
    return {
        "day": day,
        "key": result.get("api_key_id") or result.get("workspace_id"),
        "model": result.get("model") or "*",
        "tier": None if tier is None else tier_name("anthropic", _TIERS.get(tier, tier)),
        "region": None if geo is None else "" if geo in NOWHERE else geo,
    }
