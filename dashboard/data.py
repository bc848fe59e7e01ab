"""The ledger's figures for the pages: cached calls to `gateway.ledger.reports`. The only importer of gateway.

Answers are kept for a few seconds and shared by all sessions; the team that a viewer is confined to is part of each question,
so nobody is given another's answer.
"""
from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import streamlit as st

from gateway.access.keys import digest, key_id
from gateway.ledger import budget_use, reports
from gateway.ledger.budget_use import Limit, Use
from gateway.ledger.days import month_range
from gateway.ledger.misses import ADVICE, WORDS, Cause
from gateway.ledger.reports import (
    BadQuery,
    Bar,
    Extent,
    Late,
    LedgerUnavailable,
    Of,
    Person,
    Quantiles,
    Reports,
    Row,
    Slice,
    Sums,
    UnknownZone,
    Waits,
    day_range,
    instant,
    micros,
)
from gateway.ledger.savings import Saving
from gateway.ledger.warmed import Warmed

__all__ = [
    "ADVICE",
    "WORDS",
    "BadQuery",
    "Bar",
    "Cause",
    "Extent",
    "Late",
    "LedgerUnavailable",
    "Limit",
    "Of",
    "Person",
    "Quantiles",
    "Row",
    "Saving",
    "Slice",
    "Sums",
    "UnknownZone",
    "Use",
    "Viewer",
    "Waits",
    "alerts",
    "backtests",
    "call",
    "day_range",
    "dearest",
    "decisions",
    "extent",
    "instant",
    "late",
    "latest_calls",
    "limits",
    "micros",
    "misses",
    "month",
    "now_us",
    "person",
    "rolled",
    "run",
    "run_calls",
    "run_trace",
    "savings",
    "spend",
    "status",
    "test_alerts",
    "uses",
    "values",
    "verify",
    "waits",
    "warmed",
]  # fmt: skip

KEEP_S = 4
DAY_US, HOUR_US = 86_400_000_000, 3_600_000_000
MEND_US = 2 * DAY_US
LATEST_MISSES, LATEST_ENTRIES = 5_000, 20_000
"""What reads single entries reads so many of the latest, however large the ledger is."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks. `team` None: an operator, who sees all; `project`: a key of one project sees no other."""

    team: str | None
    name: str = ""
    project: str | None = None

    @property
    def where(self) -> dict[str, str]:
        """What every question of this viewer is narrowed to."""
        return {name: value for name, value in (("team", self.team), ("project", self.project)) if value is not None}


def now_us() -> int:
    return time.time_ns() // 1_000


def month(tz: str, at_us: int) -> tuple[int, int]:
    """Beginning and end of the calendar month that holds an instant."""
    return month_range(tz, at_us)


def database_url() -> str:
    return os.environ.get("TOLLWAY_DATABASE_URL", "sqlite:///.tollway/tollway.db")


@st.cache_resource(show_spinner=False)
def _reports(url: str) -> Reports:
    return reports.connect(url)


def spend(by: tuple[str, ...], part: Slice) -> Sums:
    return _spend(database_url(), by, part)


@st.cache_data(ttl=KEEP_S, max_entries=256, show_spinner=False)
def _spend(url: str, by: tuple[str, ...], part: Slice) -> Sums:
    return _reports(url).spend(by, part)


def waits(
    splits: tuple[tuple[str, ...], ...], part: Slice, of: Of = "first_token", bars: tuple[str, ...] | None = None
) -> Waits:
    """Waiting times by each of several splits, and bars by one."""
    return _waits(database_url(), splits, part, of, bars)


@st.cache_data(ttl=KEEP_S, max_entries=256, show_spinner=False)
def _waits(
    url: str, splits: tuple[tuple[str, ...], ...], part: Slice, of: Of, bars: tuple[str, ...] | None
) -> Waits:
    return _reports(url).waits(splits, part, of, bars)


def values(dimension: str, part: Slice) -> list[str]:
    return _values(database_url(), dimension, part)


@st.cache_data(ttl=15, max_entries=64, show_spinner=False)
def _values(url: str, dimension: str, part: Slice) -> list[str]:
    return _reports(url).values(dimension, part)


def extent(viewer: Viewer | None = None) -> Extent:
    """How much there is for whoever looks."""
    return _reports(database_url()).extent(Slice(where={} if viewer is None else viewer.where))


def latest_calls(part: Slice, search: str, limit: int) -> tuple[list[dict[str, Any]], int | None]:
    """The latest calls, and how far back was looked, None: as far as the slice goes."""
    return _reports(database_url()).latest_calls(part, search, limit)


def call(call_id: str, viewer: Viewer) -> dict[str, Any] | None:
    """None too if it is of another team or project."""
    return _reports(database_url()).call(call_id, viewer.team, viewer.project)


@st.cache_data(ttl=KEEP_S, max_entries=32, show_spinner=False)
def _decisions(url: str, part: Slice, limit: int) -> list[dict[str, Any]]:
    return _reports(url).decisions(part, limit)


def decisions(part: Slice, limit: int) -> list[dict[str, Any]]:
    """The latest calls for which several lanes were weighed, with what each would have cost."""
    return _decisions(database_url(), part, limit)


@st.cache_data(ttl=60, max_entries=32, show_spinner=False)
def _misses(url: str, part: Slice) -> tuple[list[Cause], Slice]:
    latest = _reports(url).latest_misses(part, LATEST_MISSES)
    return _reports(url).misses(latest), latest


def misses(part: Slice) -> tuple[list[Cause], Slice]:
    """What missed prefixes of the slice's last two days cost, by cause, the dearest first; and the slice that they are from."""
    return _misses(database_url(), last_days(part))


def last_days(part: Slice) -> Slice:
    """What reads single entries reads those of the last two days of a slice."""
    minute_us = 60_000_000      # whose answers are the same
    until_us = min(part.until_us, -(-now_us() // minute_us) * minute_us)
    return replace(part, since_us=max(part.since_us, until_us - MEND_US), until_us=until_us)


@st.cache_data(ttl=60, max_entries=32, show_spinner=False)
def _savings(url: str, part: Slice) -> list[Saving]:
    return _reports(url).savings(part, LATEST_ENTRIES)


def savings(part: Slice) -> list[Saving]:
    """What each lever saves against the conversations held out from it, in the slice's last two days."""
    return _savings(database_url(), last_days(part))


@st.cache_data(ttl=60, max_entries=32, show_spinner=False)
def _warmed(url: str, part: Slice) -> list[Warmed]:
    return _reports(url).warmed(part)


def warmed(part: Slice) -> list[Warmed]:
    """The gateway's own calls that keep prompts stored or write them ahead, in the slice's last two days."""
    return _warmed(database_url(), last_days(part))


def dearest(name: str, part: Slice, most: int) -> list[Row]:
    """Sums of the dearest values of a dimension; of a run or a tag, entries without one are in none."""
    return _dearest(database_url(), name, part, most)


@st.cache_data(ttl=KEEP_S, max_entries=32, show_spinner=False)
def _dearest(url: str, name: str, part: Slice, most: int) -> list[Row]:
    return _reports(url).dearest(name, part, most)


def run(run_id: str, viewer: Viewer) -> dict[str, Any] | None:
    return _reports(database_url()).run(run_id, viewer.team, viewer.project)


def run_calls(run_id: str, viewer: Viewer) -> list[dict[str, Any]]:
    return _reports(database_url()).run_calls(run_id, viewer.team, viewer.project)


@st.cache_data(ttl=KEEP_S, max_entries=4, show_spinner=False)
def _status(url: str) -> list[dict[str, Any]]:
    return _reports(url).status()


def status() -> list[dict[str, Any]]:
    """How the gateways said they are, the latest first; empty: none was heard yet."""
    return _status(database_url())


def limits(viewer: Viewer) -> tuple[list[Limit], dict[tuple[str, str], int], int | None]:
    """Budgets in force for whoever looks; nano-dollars held, by team and budget; when that was heard, None: never."""
    told = status()
    if not told:
        return [], {}, None
    own = [b for b in told[0]["budgets"] if viewer.team in (None, b["team"])]
    held = {(b["team"], b["name"]): int(b["held_nanos"]) for b in own}
    return [Limit(**{name: value for name, value in b.items() if name != "held_nanos"}) for b in own], held, told[0]["at_us"]


@st.cache_data(ttl=KEEP_S, max_entries=64, show_spinner=False)
def _uses(url: str, limits: tuple[Limit, ...]) -> list[Use]:
    return budget_use.uses(_reports(url), limits, now_us())


def late(part: Slice) -> list[Late]:
    """First tokens that came after their class's deadline, as the policies in force have it."""
    told = status()
    deadlines = {(d["team"], d["class"]): float(d["first_token_ms"]) for d in told[0].get("deadlines", [])} if told else {}
    return _late(database_url(), part, tuple(deadlines.items()))


@st.cache_data(ttl=KEEP_S, max_entries=64, show_spinner=False)
def _late(url: str, part: Slice, deadlines: tuple[tuple[tuple[str, str], float], ...]) -> list[Late]:
    return _reports(url).late(dict(deadlines), part) if deadlines else []


def uses(limits: tuple[Limit, ...]) -> list[Use]:
    return _uses(database_url(), limits)


def run_trace(run_id: str, viewer: Viewer) -> list[dict[str, Any]]:
    """The run's answered calls as lines of a trace file."""
    found = _reports(database_url()).run_trace(run_id, viewer.team, viewer.project)
    return found["trace"] if found else []


def backtests() -> list[dict[str, Any]]:
    return _reports(database_url()).backtests()


def alerts(team: str | None) -> list[dict[str, Any]]:
    return _reports(database_url()).alerts(team)


def test_alerts(secret: str) -> dict[str, str | None]:
    """Asks the gateway to send a harmless alert by every channel; what each of them answered."""
    url = os.environ.get("TOLLWAY_URL", "http://127.0.0.1:4000") + "/tollway/admin/alerts/test"
    request = urllib.request.Request(url, method="POST", headers={"authorization": f"Bearer {secret}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            said: dict[str, str | None] = json.load(answer)["channels"]
            return said
    except urllib.error.HTTPError as error:
        return {"gateway": str(json.loads(error.read() or b"{}").get("error", {}).get("message", error.code))}
    except (OSError, ValueError):
        return {"gateway": "it does not answer; TOLLWAY_URL says where it is"}


def rolled() -> tuple[int, int]:
    """Entries in the roll-ups, and when they were last added to."""
    return _reports(database_url()).rolled()


def person(issuer: str, subject: str) -> Person | None:
    """Somebody who was let in and still is; None for anybody else."""
    return _reports(database_url()).person(issuer, subject) if issuer and subject else None


def verify(secret: str) -> Viewer | None:
    """Who a gateway key belongs to: an admin's sees all, another its team; None for a key that is none, revoked or expired."""
    pepper_file = os.environ.get("TOLLWAY_PEPPER_FILE")
    if not pepper_file or key_id(secret) is None:
        return None
    key = _reports(database_url()).key_by_digest(digest(secret, Path(pepper_file).read_text().strip().encode()), now_us())
    if key is None:
        return None
    if key["role"] == "admin":
        return Viewer(None, key["name"] or key["id"])
    return Viewer(key["team"], key["name"] or key["id"], key["project"])
