"""What `tollway prices` prints: the rows in force, what is wrong with a file, and what a newer file would change."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from gateway.metering.prices import BUILT_IN, PROVIDERS, Offer, PriceBook
from gateway.metering.rows import FEES, FOREVER, PriceFile, PriceFileError, Row, read


@dataclass(frozen=True, slots=True)
class Change:
    """One row that differs between two books; `before` None: it is new, `after` None: it is gone (rows should never go)."""

    row: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


def show(book: PriceBook, provider: str, model: str, at_us: int) -> list[dict[str, Any]]:
    """The rows in force for a model, every tier, region and band, as they would be written."""
    selectors = {(row.tier, row.region) for row in book.rows(provider, model)}
    order = sorted(selectors, key=lambda each: (each[0] != "default", each[0], each[1] or ""))
    return [written(row) for tier, region in order for row in book.bands(Offer(provider, model, tier, region), at_us)]


def nearest(book: PriceBook, provider: str, model: str) -> list[str]:
    """Known names near one that is not priced, for the message."""
    names = {row.model for row in book.rows(provider)} or {row.provider for row in book.rows()}
    return get_close_matches(model.lower() if model else provider, sorted(names), 3)


def diff(old: PriceBook, new: PriceBook) -> list[Change]:
    """Rows that are new, changed or gone, by id."""
    before, after = ({row.id: written(row) for row in book.rows()} for book in (old, new))
    return [
        Change(name, before.get(name), after.get(name)) for name in sorted({*before, *after})
        if _money(before.get(name)) != _money(after.get(name))
    ]


def warnings(paths: Iterable[Path]) -> list[str]:
    """What is allowed and perhaps not meant."""
    found: list[str] = []
    for path in paths:
        for section in read(path, path.stem, allow_extreme=True).values():
            found += [
                f"{path}: {row.id}: cached_price_missing: cached tokens are charged as input"
                for row in section.rows if "input" in row.rates and "cached" not in row.rates
            ]  # fmt: skip
    return found


def check(paths: Iterable[Path] = BUILT_IN, *, allow_extreme: bool = False) -> list[str]:
    """What is wrong with price files; one line for each problem, empty where all is well."""
    problems: list[str] = []
    known: set[str] = set(PROVIDERS)
    files: list[tuple[Path, PriceFile]] = []
    for path in paths:
        try:
            files.append((path, read(path, path.stem, allow_extreme=allow_extreme)))
        except PriceFileError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{path}: {error.strerror}")
    for path in BUILT_IN:
        known |= read(path).keys()
    for path, file in files:
        problems += [f"{path}: {problem}" for problem in _problems(file, known | file.keys())]
    return problems


def written(row: Row) -> dict[str, Any]:
    """A row as an operator would write it, with its id; money as decimal strings."""
    return {
        "id": row.id, "provider": row.provider, "model": row.model, "tier": row.tier, "region": row.region,
        "over": row.over, "upto": row.upto,
        "valid_from": _date(row.from_us), "valid_to": _date(row.to_us, back=1),
        "prices": {name: _decimal(micros, 1_000_000) for name, micros in row.rates.items()}
        | {column: _decimal(row.fees[unit], 10**9) for column, unit in FEES.items() if unit in row.fees},
        "hours": [f"{a // 60:02d}:{a % 60:02d}-{b // 60:02d}:{b % 60:02d}" for a, b in row.hours],
        "source": row.source, "checked_on": row.checked_on.isoformat() if row.checked_on else None,
    }


def _problems(file: PriceFile, known: set[str]) -> Iterator[str]:
    for provider, section in file.items():
        for other in section.like:
            if other not in known:
                yield f"[{provider}] is like {other!r}, which no file knows{_hint(other, known)}"
        models = {row.model for row in section.rows}
        for alias, model in section.aliases.items():
            if model not in models:
                yield f"[{provider}] alias {alias!r} points to {model!r}, which has no row here{_hint(model, models)}"
        for name, times in Counter(row.id for row in section.rows).items():
            if times > 1:
                yield f"[{provider}] {name} stands there {times} times: a changed price is a new row with a later valid_from"
        yield from (f"[{provider}] {row.id}: {problem}" for row in section.rows if (problem := _problem(row, section.rows)))


def _problem(row: Row, rows: Iterable[Row]) -> str | None:
    if row.from_us >= row.to_us:
        return "valid_to lies before valid_from"
    if row.upto is not None and row.upto <= row.over:
        return f"upto {row.upto} is not above over {row.over}"
    same = [r for r in rows if (r.model, r.tier, r.region, r.version) == (row.model, row.tier, row.region, row.version)]
    if all(r.over for r in same):
        return "a band needs a row without `over` for the same model, tier, region and valid_from"
    return None


def _hint(word: str, words: Iterable[str]) -> str:
    near = get_close_matches(word, sorted(words), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _money(row: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return None if row is None else {key: value for key, value in row.items() if key not in ("source", "checked_on")}


def _decimal(amount: int, scale: int) -> str:
    text = f"{Decimal(amount) / scale:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _date(at_us: int, back: int = 0) -> str | None:
    if abs(at_us) >= FOREVER:
        return None
    return (datetime.fromtimestamp(at_us // 1_000_000, UTC) - timedelta(days=back)).date().isoformat()
