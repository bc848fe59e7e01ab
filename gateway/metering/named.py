"""Price rows by the ids that entries name -> what a token of each class costs under them."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

from gateway.core.usage import WRITE_TTLS
from gateway.metering.charge import WRITES
from gateway.metering.prices import PriceBook
from gateway.metering.rows import PriceFileError, Row

TokenRates = Mapping[str, int]
"""`input`, `cached`, `write_5m` and so on, `output` -> pico-dollars a token, the surcharge of a place included."""


def named(load: Callable[[], PriceBook]) -> Callable[[Sequence[str]], TokenRates | None]:
    """A function from ids of rows to rates; None where several rows were used together, or one is no longer there. The book is
    loaded when a row is asked for that was not there before; rows that have left it stay known."""
    rows, unknown = dict[str, Row](), set[str]()

    def rates(ids: Sequence[str]) -> TokenRates | None:
        if any(id not in rows and id not in unknown for id in ids):
            with contextlib.suppress(PriceFileError):       # its files are being edited: what was known stays so
                rows.update({row.id: row for row in load().rows()})
            unknown.update(id for id in ids if id not in rows)
        known = [rows[id] for id in ids if id in rows]
        if len(known) != 1 or len(ids) > 2:
            return None
        num, den = _surcharge(ids[1]) if len(ids) == 2 else (1, 1)
        return {name: rate * num // den for name, rate in _classes(known[0]).items()}

    return rates


def _classes(row: Row) -> dict[str, int]:
    def first(*names: str) -> int:
        return next((row.rates[name] for name in names if name in row.rates), 0)

    writes = {f"write_{ttl}": first(*WRITES.get(ttl, (f"write_{ttl}",))) for ttl in WRITE_TTLS}
    return {"input": first("input"), "cached": first("cached"), **writes, "output": first("output")}


def _surcharge(id: str) -> tuple[int, int]:
    """The factor at the end of `provider@region:eu*x11/10`."""
    num, _, den = id.rpartition("x")[2].partition("/")
    return int(num), int(den)
