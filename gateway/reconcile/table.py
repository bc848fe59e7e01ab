"""A plain CSV of a bill, for every provider without a reader of its own. Columns: docs/reconcile.md."""
from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any

from gateway.metering.prices import NOWHERE, tier_name
from gateway.reconcile.lines import CLASSES, WORDS, BadFile, Line, kind_of, nanos_of

REQUIRED = ("day", "model", "class")
OPTIONAL = ("key", "tier", "region", "tokens", "cost_usd")


def lines(text: str) -> Iterator[Line]:
    reader = csv.DictReader(text.splitlines())
    have = [name.strip().lower() for name in reader.fieldnames or ()]
    reader.fieldnames = have
    if missing := [name for name in REQUIRED if name not in have]:
        raise BadFile(f"line 1: no column {missing[0]!r}; a bill has {', '.join((*REQUIRED, *OPTIONAL))}")
    if not {"tokens", "cost_usd"} & set(have):
        raise BadFile("line 1: a bill needs a column tokens, cost_usd, or both")
    for row in reader:
        try:
            yield _line({name: (value or "").strip() for name, value in row.items() if name}, have)
        except (ValueError, InvalidOperation) as error:
            raise BadFile(f"line {reader.line_num}: {error or 'not a number'}") from None


def amounts(text: str) -> Iterator[Decimal]:
    for row in csv.DictReader(text.splitlines()):
        if value := next((v for name, v in row.items() if (name or "").strip().lower() == "cost_usd"), ""):
            yield Decimal(value.strip())


def _line(row: Mapping[str, str], have: list[str]) -> Line:
    word = row["class"]
    if kind_of(word) == "other" and word.lower() != "other":
        raise ValueError(f"class {word!r} is none of {', '.join((*CLASSES, *WORDS))}")
    labels: dict[str, Any] = {"day": _day(row["day"]), "model": row["model"], "kind": kind_of(word)}
    if "tier" in have:
        labels["tier"] = tier_name("", row["tier"])
    if "region" in have:
        labels["region"] = "" if row["region"] in NOWHERE else row["region"]
    return Line(
        **labels,
        key=row.get("key") or None,
        tokens=_whole(row["tokens"]) if row.get("tokens") else None,
        nanos=nanos_of(_amount(row["cost_usd"])) if row.get("cost_usd") else None,
    )


def _whole(text: str) -> int:
    if not text.isdigit():
        raise ValueError(f"tokens {text!r} is no whole number")
    return int(text)


def _amount(text: str) -> Decimal:
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite():
        raise ValueError(f"cost_usd {text!r} is no number; write 12.50")
    return amount


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise ValueError(f"day {text!r} is none; write 2026-11-30") from None
