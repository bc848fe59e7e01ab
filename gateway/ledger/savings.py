"""What a lever saves, measured: conversations that have it against those that were held out, drawn at random.

The unit is a conversation. Of each we take what caching saved and how many prompt tokens it sent, so a side's figure is
dollars saved per prompt token (a ratio of sums), and the saving is the difference between the sides, with Welch's 95 %
interval from the conversations' residuals. Below `LEAST` conversations on a side there is not enough data, and no figure.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from sqlalchemy import ColumnElement, Select, String, cast, func, select

from gateway.core.levers import ARM
from gateway.core.money import usd
from gateway.ledger.slices import Slice
from gateway.ledger.tables import LEDGER

C = LEDGER.c
LEAST = 20
"""Conversations on each side."""
MAX_ENTRIES = 200_000
LOOKED = 3
"""Times as many attempts are looked through as are wanted, matching or not."""
_Z = 1.96
"""95 % of a normal distribution; from 20 conversations on the t quantile is at most 7 % wider, which `_quantile` adds."""


@dataclass(slots=True)
class Session:
    """One conversation: nano-dollars that caching saved, and prompt tokens."""

    saved: float = 0.0
    tokens: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Of one lever. Amounts are nano-dollars over the tokens of the conversations that had it."""

    lever: str
    sessions: int
    held_out: int
    since_us: int
    """The oldest attempt that it is from."""
    nanos: float | None = None
    low: float | None = None
    high: float | None = None

    def json(self) -> dict[str, Any]:
        told = None not in (self.nanos, self.low, self.high)
        saved, low, high = (usd(None if nanos is None else round(nanos)) for nanos in (self.nanos, self.low, self.high))
        return {
            "lever": self.lever, "sessions": self.sessions, "held_out": self.held_out, "since_us": self.since_us,
            "saved_usd": saved, "interval_usd": [low, high] if told else None, "confidence": 0.95 if told else None,
            "note": None if told else f"not enough data: {LEAST} conversations are needed on each side",
        }  # fmt: skip


def query(part: Slice, latest: int, among: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """Those of the latest entries that tell their arm; `among`: where to look for them."""
    prompt = func.coalesce(C.uncached, 0) + func.coalesce(C.cache_read, 0)
    for name in ("write_5m", "write_1h", "write_30m", "write_12h", "write_unknown"):
        prompt = prompt + func.coalesce(C[name], 0)
    columns = [C.at_us, C.receipts, C.cost_nanos, C.uncached_cost_nanos, prompt.label("prompt")]
    some = part.apply(select(*columns)).where(C.kind == "attempt", among).order_by(C.at_us.desc()).limit(latest).subquery()
    told = cast(some.c.receipts, String).contains(f'"{ARM}"')
    return select(some).where(told, some.c.cost_nanos.is_not(None), some.c.uncached_cost_nanos.is_not(None))


def savings(rows: Iterable[Mapping[str, Any]]) -> list[Saving]:
    """Each lever that was under trial."""
    sides: dict[str, tuple[dict[str, Session], dict[str, Session]]] = {}
    since: dict[str, int] = {}
    for row in rows:
        for receipt in row["receipts"]:
            if receipt.get("pass") != ARM:
                continue
            for lever, held in receipt["held"].items():
                sessions = sides.setdefault(lever, ({}, {}))[bool(held)]
                session = sessions.setdefault(receipt["place"], Session())
                session.saved += float(row["uncached_cost_nanos"] - row["cost_nanos"])
                session.tokens += float(row["prompt"])
                since[lever] = min(since.get(lever, row["at_us"]), row["at_us"])
    return [saving(lever, list(on.values()), list(held.values()), since[lever]) for lever, (on, held) in sorted(sides.items())]


def saving(lever: str, on: Sequence[Session], held: Sequence[Session], since_us: int) -> Saving:
    if min(len(on), len(held)) < LEAST or not sum(s.tokens for s in on) or not sum(s.tokens for s in held):
        return Saving(lever=lever, sessions=len(on), held_out=len(held), since_us=since_us)
    (one, v_one), (other, v_other) = _rate(on), _rate(held)
    tokens, spread = sum(session.tokens for session in on), v_one + v_other
    parts = v_one**2 / (len(on) - 1) + v_other**2 / (len(held) - 1)
    reach = _quantile(spread**2 / parts if parts else 1e9) * sqrt(spread)
    return Saving(
        lever=lever, sessions=len(on), held_out=len(held), since_us=since_us, nanos=(one - other) * tokens,
        low=(one - other - reach) * tokens, high=(one - other + reach) * tokens,
    )  # fmt: skip


def _rate(sessions: Sequence[Session]) -> tuple[float, float]:
    """Saved per token, and the variance of that."""
    tokens, n = sum(session.tokens for session in sessions), len(sessions)
    rate = sum(session.saved for session in sessions) / tokens
    residuals = sum((session.saved - rate * session.tokens) ** 2 for session in sessions)
    return rate, n / (n - 1) * residuals / tokens**2


def _quantile(freedom: float) -> float:
    """Student's 97.5 % quantile, by the first terms of its expansion; within 0.1 % from 15 degrees of freedom on."""
    z = _Z
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
