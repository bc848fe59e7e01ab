"""A provider's bill against the ledger: joined line by line, every gap under a cause.

    readers (openai, anthropic, table) -> lines -> gaps (cells of both sides) -> causes -> result

The command reads the file, the gateway does the rest, because it has the ledger and the price book.
"""
from __future__ import annotations

from datetime import date

from pydantic import BaseModel, ConfigDict, Field

from gateway.ledger.days import day_range
from gateway.ledger.reports import Reports, Slice
from gateway.metering.prices import PriceBook
from gateway.reconcile import causes, gaps
from gateway.reconcile.lines import Line
from gateway.reconcile.rates import Rates
from gateway.reconcile.result import Result

__all__ = ["Ask", "Line", "Result", "reconcile"]


class Ask(BaseModel):
    """What `POST /tollway/admin/reconcile` takes."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    provider: str
    """As the ledger's entries name it."""
    first: date = Field(alias="from")
    last: date = Field(alias="to")
    tz: str = "UTC"
    unit_nanos: int = Field(1, ge=1)
    keys: dict[str, str] = Field(default_factory=dict)
    """The provider's key, project or workspace -> backend."""
    lines: list[Line]


def reconcile(ask: Ask, reports: Reports, book: PriceBook) -> Result:
    """Reads the ledger once; plain and slow, for a thread."""
    since, until = day_range(ask.first, ask.last, ask.tz)
    booked = reports.lines(ask.provider, Slice(since_us=since, until_us=until, tz=ask.tz))
    billed = [line for line in ask.lines if ask.first.isoformat() <= line.day <= ask.last.isoformat()]
    rates = Rates(book, ask.provider)
    join = gaps.join(billed, booked, rates, ask.keys)
    return Result.of(join, causes.named(join, rates, ask.unit_nanos))
