"""Figures as text: money, milliseconds, tokens, shares, and CSV that is safe to open in a spreadsheet."""
from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
import pyarrow
from pyarrow import parquet

NONE = "-"


def usd(nanos: int | None) -> str:
    """Dollars, to the cent from a dollar on and to three figures below; what has no known price says so."""
    if nanos is None:
        return "not priced"
    dollars = nanos / 1e9
    if nanos == 0 or abs(dollars) >= 1:
        return f"{'-' if nanos < 0 else ''}${abs(dollars):,.2f}"
    return f"{'-' if nanos < 0 else ''}${abs(dollars):.{_places(abs(dollars))}f}"


def _places(dollars: float) -> int:
    """Decimal places that show three figures, cents at least and nano-dollars at most."""
    places = 2
    while places < 9 and dollars * 10 ** (places - 2) < 1:
        places += 1
    return places


def exact(nanos: int | None) -> str:
    """Dollars to the nano-dollar, for tooltips and tables."""
    if nanos is None:
        return "not priced"
    whole, rest = divmod(abs(nanos), 1_000_000_000)
    return f"{'-' if nanos < 0 else ''}${whole:,}.{rest:09d}"


def ms(value: float | None) -> str:
    if value is None:
        return NONE
    if value < 1_000:
        return f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms"
    return f"{value / 1_000:.2f} s" if value < 100_000 else f"{value / 60_000:,.1f} min"


def count(value: float) -> str:
    """Whole below ten thousand, then k, M, G."""
    if abs(value) < 10_000:
        return f"{value:,.0f}"
    for unit in ("k", "M"):
        value /= 1_000
        if abs(value) < 999.5:
            return f"{value:,.3g} {unit}"
    return f"{value / 1_000:,.3g} G"


def share(value: float | None) -> str:
    return NONE if value is None else f"{value * 100:.1f} %"


def change(now: float | None, before: float | None) -> str | None:
    """How much more or less than before, in per cent; None where nothing changed or there is nothing to compare with."""
    if now is None or not before:
        return None
    by = (now - before) / before * 100
    if abs(by) < 0.5:
        return None
    return f"{by:+,.0f} %" if abs(by) < 1_000 else f"{now / before:,.0f} times"


def points(now: float | None, before: float | None) -> str | None:
    """The change of a share, in percentage points; None where it is nothing or cannot be told."""
    if now is None or before is None or abs(now - before) < 0.0005:
        return None
    return f"{(now - before) * 100:+.1f} points"


def plain(text: str) -> str:
    """Data where Streamlit would read Markdown."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!$:~<>|^])", r"\\\1", text)


def to_csv(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> bytes:
    """Text that a spreadsheet would take for a formula gets an apostrophe in front."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([_cell(name) for name in columns])
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in columns])
    return out.getvalue().encode("utf-8")


def to_parquet(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> bytes:
    """The same rows with their types; money stays text, so that not a nano-dollar is lost."""
    table = pyarrow.table({name: [_flat(row.get(name)) for row in rows] for name in columns})
    out = io.BytesIO()
    parquet.write_table(table, out)
    return out.getvalue()


def to_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """A JSON object a line."""
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)


def _flat(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
