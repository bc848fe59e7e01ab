"""The bill of one demo: every figure is asked of the gateway's ledger by the demo's tag; nothing is counted here.

What routing saved is a comparison, so it says how it is known: the same tokens at the price row of the fast lane's own calls.
It is left out, with the reason, where that row does not give the ledger's own figure for those calls.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Any, Protocol

from gateway.core.money import nanos, usd

Json = dict[str, Any]
FAST = "fast"
_COLUMN = {"uncached": "input", "cache_read": "cached", "cache_write": "write", "output": "output"}
"""Token class -> column of a price row."""


class Asked(Protocol):
    """A gateway that can be asked (`commands.remote.Remote`)."""

    def ask(self, method: str, path: str, **how: Any) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Rows as `/tollway/usage` gives them."""

    rows: Sequence[Json]
    """By team, class and lane."""
    total: Json
    calls: Mapping[str, Json]
    """By call id."""
    first_token: Sequence[Json]
    whole_answer: Sequence[Json]
    """Waiting times by lane."""
    routing: Json

    def json(self) -> Json:
        return {
            "bill": {"rows": list(self.rows), "total": self.total},
            "latency": {"first_token": list(self.first_token), "whole_answer": list(self.whole_answer)},
            "routing": self.routing,
        }


def bill(gateway: Asked, demo: str) -> Bill:
    """Asks for everything."""
    tag = {"tag:demo": demo}
    sums = _usage(gateway, report="spend", by="team,class,lane", **tag)
    calls = _usage(gateway, report="spend", by="call_id,lane", **tag)["rows"]
    return Bill(
        rows=sums["rows"],
        total=sums["total"],
        calls={row["call_id"]: row for row in calls},
        first_token=_usage(gateway, report="latency", by="lane", of="first_token", **tag)["rows"],
        whole_answer=_usage(gateway, report="latency", by="lane", of="total", **tag)["rows"],
        routing=_routing(gateway, sums, calls),
    )


def _usage(gateway: Asked, **words: str) -> Json:
    found: Json = gateway.ask("GET", "/tollway/usage", params=words)
    return found


def _routing(gateway: Asked, sums: Json, calls: Sequence[Json]) -> Json:
    cost = sums["total"]["cost_usd"]
    fast = [row for row in sums["rows"] if row["lane"] == FAST]
    sample = next((c for c in calls if c["lane"] == FAST and c["output"]), None)
    if not calls:
        return {"left_out": "there were no calls"}
    if cost is None or sums["total"]["unpriced"]:
        return {"left_out": "not every call has a price"}
    if sample is None:
        return {"left_out": "no call was answered by the fast lane, so its price row is not known from the ledger"}
    (name, *others) = _rows_of(gateway, sample["call_id"]) or [""]
    row = next((r for r in _prices(gateway, name) if r["id"] == name), None)
    if row is None or others:
        return {"left_out": "the fast lane is not priced by one row that the gateway can show"}
    own, everything = price(fast, row["prices"]), price(sums["rows"], row["prices"])
    if own is None or everything is None:
        return {"left_out": f"the price row {name} has no price for some class of tokens that was used"}
    booked = sum(nanos(r["cost_usd"]) for r in fast)
    if not 0 <= booked - own <= sum(r["attempts"] for r in fast):  # each entry is rounded up to a nano-dollar by itself
        return {"left_out": f"the price row {name} does not give what the ledger has for the fast lane's own calls"}
    return {
        "all_fast_usd": usd(everything),
        "saved_usd": usd(everything - nanos(cost)),
        "price_row": name,
        "price_source": row["source"],
        "how": f"the same tokens at the price row of the fast lane's own calls, {name}",
    }


def _rows_of(gateway: Asked, call_id: str) -> list[str]:
    attempts = gateway.ask("GET", f"/tollway/calls/{call_id}")["attempts"]
    return list(attempts[-1]["price_rows"])


def _prices(gateway: Asked, row: str) -> list[Json]:
    """The rows in force for the model of a row's id (`[file:]provider/model@day#tier`)."""
    provider, _, rest = row.partition("/")
    model = f"{provider.rpartition(':')[2]}/{rest.rpartition('@')[0]}"
    return list(gateway.ask("GET", "/tollway/admin/prices", params={"model": model})) if rest else []


def price(rows: Sequence[Json], prices: Mapping[str, str]) -> int | None:
    """Nano-dollars for the tokens of rows, rounded up once; None where a class that was used has no price."""
    picos = Decimal(0)
    for name, column in _COLUMN.items():
        tokens = sum(row[name] for row in rows)
        if tokens and column not in prices:
            return None
        picos += tokens * Decimal(prices.get(column, "0")) * 1_000_000
    return int((picos / 1_000).to_integral_value(ROUND_CEILING))
