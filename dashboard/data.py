"""The ledger's figures for the pages: cached calls to `gateway.ledger.reports`. The only importer of gateway.

Answers are kept for a few seconds and shared by all sessions; the team that a viewer is confined to is part of each question,
so nobody is given another's answer.
"""
from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from gateway.access.keys import digest, key_id
from gateway.ledger import reports
from gateway.ledger.reports import (
    BadQuery,
    Bar,
    Extent,
    LedgerUnavailable,
    Of,
    Quantiles,
    Reports,
    Row,
    Slice,
    Sums,
    UnknownZone,
    day_range,
    instant,
    micros,
)

__all__ = [
    "BadQuery", "Bar", "Extent", "LedgerUnavailable", "Of", "Quantiles", "Row", "Slice", "Sums", "UnknownZone", "Viewer",
    "call", "call_list", "day_range", "extent", "histogram", "instant", "latency", "micros", "now_us", "spend", "values",
    "verify",
]  # fmt: skip

KEEP_S = 4


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks. `team` None: an operator, who sees all."""

    team: str | None
    name: str = ""


def now_us() -> int:
    return time.time_ns() // 1_000


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


def latency(by: tuple[str, ...], part: Slice, of: Of = "first_token") -> list[Quantiles]:
    return _latency(database_url(), by, part, of)


@st.cache_data(ttl=KEEP_S, max_entries=256, show_spinner=False)
def _latency(url: str, by: tuple[str, ...], part: Slice, of: Of) -> list[Quantiles]:
    return _reports(url).latency(by, part, of)


def histogram(by: tuple[str, ...], part: Slice, of: Of = "first_token") -> list[Bar]:
    return _histogram(database_url(), by, part, of)


@st.cache_data(ttl=KEEP_S, max_entries=64, show_spinner=False)
def _histogram(url: str, by: tuple[str, ...], part: Slice, of: Of) -> list[Bar]:
    return _reports(url).histogram(by, part, of)


def values(dimension: str, part: Slice) -> list[str]:
    return _values(database_url(), dimension, part)


@st.cache_data(ttl=15, max_entries=64, show_spinner=False)
def _values(url: str, dimension: str, part: Slice) -> list[str]:
    return _reports(url).values(dimension, part)


def extent(team: str | None = None) -> Extent:
    """How much there is for whoever looks."""
    return _reports(database_url()).extent(Slice() if team is None else Slice(where={"team": team}))


def call_list(part: Slice, search: str, limit: int) -> list[dict[str, Any]]:
    return _reports(database_url()).call_list(part, search, limit)


def call(call_id: str, team: str | None) -> dict[str, Any] | None:
    return _reports(database_url()).call(call_id, team)


def verify(secret: str) -> Viewer | None:
    """Who a gateway key belongs to: an admin's sees all, another its team; None for a key that is none, revoked or expired."""
    pepper_file = os.environ.get("TOLLWAY_PEPPER_FILE")
    if not pepper_file or key_id(secret) is None:
        return None
    key = _reports(database_url()).key_by_digest(digest(secret, Path(pepper_file).read_text().strip().encode()), now_us())
    if key is None:
        return None
    return Viewer(None if key["role"] == "admin" else key["team"], key["name"] or key["id"])
