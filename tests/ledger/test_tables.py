"""Columns and fields agree; money and times are whole numbers."""
from __future__ import annotations

from sqlalchemy import BigInteger

from gateway.ledger.tables import COLUMNS, LEDGER, entry_of, values_of
from tests.ledger.generate import entry


def test_every_column_has_a_value() -> None:
    """A field added to the table and not to `values_of` would be noticed here."""
    assert sorted(COLUMNS) == sorted(column.name for column in LEDGER.columns)
    assert len(values_of(entry())) == len(COLUMNS)


def test_a_row_gives_the_entry_back() -> None:
    """JSON columns arrive decoded."""
    row = dict(zip(COLUMNS, values_of(entry()), strict=True))
    row |= {"tags": {}, "decision": [], "receipts": [], "other": {}, "flags": [], "price_rows": ["openai/gpt-5.5@2026-04-01"]}
    assert entry_of(row) == entry()


def test_money_and_times_are_64_bit_whole_numbers() -> None:
    """SQLite loses zones of datetimes, and floats do not add up."""
    whole = [c.name for c in LEDGER.columns if c.name.endswith(("_us", "_nanos", "_tokens")) or c.name.startswith("write_")]
    assert len(whole) == 10
    assert all(isinstance(LEDGER.c[name].type, BigInteger) for name in whole)
