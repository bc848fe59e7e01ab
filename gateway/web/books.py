"""The books, for admin keys: pricing the past anew, and comparing it with what a provider billed.

`POST /tollway/admin/rerate` answers one JSON line per page of the ledger, the last one with `"done": true`. The run goes on to
its end if the client hangs up, and leaves an audit row in any case. It reads the price files anew, so that a corrected row
need not wait for a restart; calls go on under the book that the gateway started with, and the answer says if that is another.
"""
from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import orjson
from litestar import Request, post
from litestar.datastructures import State
from litestar.params import Body
from litestar.response import Stream
from pydantic import BaseModel, ConfigDict, Field

from gateway.core import clock
from gateway.core.errors import BadRequest, Overloaded
from gateway.corrections import Corrections
from gateway.ledger import query
from gateway.ledger.reports import BadQuery, LedgerUnavailable, Slice, UnknownZone
from gateway.metering import listing, prices
from gateway.metering.prices import PriceBook
from gateway.metering.rows import PriceFileError
from gateway.reconcile import Ask, reconcile
from gateway.rerate import Rerating, Tally, audit_detail
from gateway.services import Services
from gateway.web.admin import admin_of

log = logging.getLogger("tollway.books")
_running: set[asyncio.Task[None]] = set()


class Range(BaseModel):
    """Days, both included, and whose entries."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    first: str = Field(alias="from")
    last: str = Field(alias="to")
    tz: str = "UTC"
    team: str | None = None
    model: str | None = None
    dry_run: bool = False

    def slice(self) -> Slice:
        words = {"since": self.first, "until": self.last, "tz": self.tz, "team": self.team, "model": self.model}
        try:
            return query.slice_of({name: word for name, word in words.items() if word is not None}, clock.now_us())
        except (BadQuery, UnknownZone) as error:
            raise BadRequest(str(error)) from error


@post("/tollway/admin/rerate", status_code=200)
async def rerate(request: Request[Any, Any, State], state: State, data: Annotated[Range, Body()]) -> Stream:
    """Price the entries of a range by today's price files and book the differences."""
    services: Services = state.services
    actor, part, book = admin_of(request).key_id, data.slice(), await _book(services)
    await services.ledger.flush(5.0)
    backends = services.settings.backends.items()
    run = Rerating(
        reports=services.reports,
        ledger=Corrections(services),
        book=book,
        regions={name: backend.region for name, backend in backends},
        batch_lanes={(name, lane) for name, backend in backends for lane, how in backend.lanes.items() if how.batch},
        dry_run=data.dry_run,
    )
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    task = asyncio.create_task(_rerate(services, run, part, actor, lines), name="rerate")
    _running.add(task)
    task.add_done_callback(_running.discard)
    return Stream(_lines(lines), media_type="application/x-ndjson")


async def _rerate(
    services: Services, run: Rerating, part: Slice, actor: str, lines: asyncio.Queue[bytes | None]
) -> None:
    tally, started, error = Tally(), time.monotonic(), None
    try:
        async for tally in run.run(part):
            lines.put_nowait(orjson.dumps({"done": False, **tally.json()}))
            await services.ledger.flush(5.0)
    except Exception as failure:
        log.exception("re-rating stopped")
        error = f"stopped after {tally.looked} entries ({type(failure).__name__}); what was booked stays, run it again"
    try:
        if not run.dry_run:
            await services.key_table.audit(actor, "ledger.rerate", "ledger", audit_detail(part, tally, started))
    except Exception:
        log.exception("the audit row of a re-rating could not be written")
        error = error or "the corrections are booked, the audit row could not be written; see the log"
    newer = bool(listing.diff(services.prices, run.book))
    lines.put_nowait(orjson.dumps({"done": True, "dry_run": run.dry_run, "restart": newer, "error": error, **tally.json()}))
    lines.put_nowait(None)


async def _lines(lines: asyncio.Queue[bytes | None]) -> AsyncIterator[bytes]:
    while (line := await lines.get()) is not None:
        yield line + b"\n"


@post("/tollway/admin/reconcile", status_code=200)
async def compare(request: Request[Any, Any, State], state: State, data: Annotated[Ask, Body()]) -> dict[str, Any]:
    """A provider's bill, line by line, against the ledger: gaps by cause."""
    services: Services = state.services
    admin_of(request)
    await services.ledger.flush(5.0)
    book = await _book(services)
    try:
        return await asyncio.to_thread(lambda: reconcile(data, services.reports, book).json())
    except LedgerUnavailable as error:
        raise Overloaded(f"the ledger cannot be read right now: {error}", retry_after_s=2) from error
    except (BadQuery, UnknownZone, ValueError) as error:
        raise BadRequest(str(error)) from error


async def _book(services: Services) -> PriceBook:
    """The price files as they are now."""
    try:
        return await asyncio.to_thread(prices.load, services.settings.prices)
    except PriceFileError as error:
        raise BadRequest(str(error)) from error


HANDLERS = (rerate, compare)
