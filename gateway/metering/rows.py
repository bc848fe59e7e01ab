"""Price files: TOML text to `Row` values. One row is what one provider charges for one model from one day on.

Money here is integers: a rate is micro-dollars per million tokens, so tokens times rate is pico-dollars; a fee is
pico-dollars for one unit. What would surprise you: numbers must be written as strings ("0.25"), because a TOML float has
already lost digits by the time we see it. The format, for people, is in `docs/prices.md`.
"""
from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

RATES = (
    "input", "cached", "write", "write_5m", "write_30m", "write_1h", "write_12h", "output",
    "audio_in", "cached_audio_in", "audio_out", "image_in", "cached_image_in", "image_out",
)
"""Columns in dollars per million tokens. `write` is for a provider that has one price for cache writes."""
FEES = {"web_search": "web_search_requests", "file_search": "file_search_calls", "storage": "stored_token_hours"}
"""Columns in dollars per 1,000 units, and the unit's name in `TokenUsage.other`."""
_FACTS = (
    "model", "tier", "region", "over", "upto", "valid_from", "valid_to", "hours", "days", "not_on", "source", "checked_on",
    "extreme",
)
_SECTION = ("source", "checked_on", "like", "rows", "aliases", "regions", "limits")
_REGION = ("region", "models", "factor", "source")
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MICRO, _PICO_PER_UNIT = 1_000_000, 10**12 // 1000
_HOURS = re.compile(r"([01]\d|2[0-4]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)")
FOREVER = 2**62
EXTREME_USD = 10_000
"""Per million tokens; a hundred times the dearest that anybody asks, so a price above it was meant per token."""


class PriceFileError(ValueError):
    """A price file that cannot be read; the message names the file, the place and, for a typo, the nearest word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One dated row. Times are microseconds since the epoch, UTC; `from_us` is the first, `to_us` the first after."""

    id: str
    """`provider/model@first-day`, with `#tier`, `#region:..`, `#hours` and `>band` where they apply."""
    provider: str
    model: str
    tier: str = "default"
    region: str | None = None
    over: int = 0
    """The row is for prompts of more input tokens (cached and written ones count) than this."""
    upto: int | None = None
    """Nothing is known for prompts of more input tokens than this."""
    from_us: int = -FOREVER
    to_us: int = FOREVER
    hours: tuple[tuple[int, int], ...] = ()
    """Minutes of the UTC day, first included, last not; empty: all day."""
    days: frozenset[int] = frozenset(range(7))
    """Weekdays (Monday is 0) on which `hours` count."""
    not_on: frozenset[date] = frozenset()
    """Days, e.g. public holidays, on which they do not."""
    rates: Mapping[str, int]
    fees: Mapping[str, int] = field(default_factory=dict)
    source: str = ""
    checked_on: date | None = None

    def active(self, at_us: int) -> bool:
        if not self.from_us <= at_us < self.to_us:
            return False
        if not self.hours:
            return True
        at = datetime.fromtimestamp(at_us // 1_000_000, UTC)
        minute = at.hour * 60 + at.minute
        return at.weekday() in self.days and at.date() not in self.not_on and any(a <= minute < b for a, b in self.hours)

    @property
    def version(self) -> tuple[bool, int]:
        """What decides between active rows of one selector: special hours first, then the later start."""
        return bool(self.hours), self.from_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A surcharge for a place of processing: every token rate times `factor`; fees are not touched."""

    region: str
    models: tuple[str, ...]
    num: int
    den: int

    def fits(self, model: str, region: str) -> bool:
        return self.region in ("*", region) and any(fnmatchcase(model, pattern) for pattern in self.models)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """All that one file says of one provider."""

    rows: tuple[Row, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    like: tuple[str, ...] = ()
    """Providers whose rows count here too, e.g. azure prices as openai does."""
    regions: tuple[Region, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    """Most output tokens that a model can give, by model name or pattern."""


PriceFile = Mapping[str, Section]


def read(path: Path, name: str = "", *, allow_extreme: bool = False) -> PriceFile:
    """Reads one file. `name` goes before the ids of its rows, so that an operator's row is never taken for ours."""
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PriceFileError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PriceFileError(f"{path}: {error}") from None
    return {provider: _Reader(path, text, provider, name, allow_extreme).section(body) for provider, body in data.items()}


def _selector(row: Row) -> tuple[str, str, str, int, str]:
    return row.model, row.tier, row.region or "", row.over, repr(row.hours)


class _Reader:
    """Reads one provider's part of a file and knows where it is, for the messages."""

    def __init__(self, path: Path, text: str, provider: str, name: str, allow_extreme: bool) -> None:
        self.allow_extreme = self.extreme = allow_extreme
        self.path, self.text, self.provider = path, text, provider
        self.prefix = f"{name}:" if name else ""
        self.at: tuple[str, int] | None = None
        """The row being read: its model, and which of the model's rows it is."""

    def fail(self, problem: str) -> NoReturn:
        raise PriceFileError(f"{self.path}: {self._place()}: {problem}")

    def known(self, body: object, words: Sequence[str]) -> dict[str, Any]:
        if not isinstance(body, dict):
            self.fail("must be a table")
        for key in body:
            if key not in words:
                near = difflib.get_close_matches(key, words, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(words)}"
                self.fail(f"unknown field {key!r}; {hint}")
        return body

    def section(self, body: object) -> Section:
        table = self.known(body, _SECTION)
        seen: dict[str, int] = {}
        rows = []
        for raw in table.get("rows", ()):
            model = raw.get("model", "") if isinstance(raw, dict) else ""
            seen[model] = nth = seen.get(model, 0) + 1
            self.at = model, nth
            rows.append(self._row(raw, table))
        self._no_overlap(rows)
        self.at = None
        return Section(
            rows=tuple(rows), aliases={k.lower(): str(v).lower() for k, v in table.get("aliases", {}).items()},
            like=tuple(table.get("like", ())), regions=tuple(map(self._region, table.get("regions", ()))),
            limits={k.lower(): int(v) for k, v in table.get("limits", {}).items()},
        )

    def _place(self) -> str:
        """Where we are: TOML's reader keeps no lines, so look for the text of the row."""
        if self.at is None:
            return f"[{self.provider}]"
        model, nth = self.at
        start = self.text.find(f"[{self.provider}]")
        hits = list(re.finditer(rf'\bmodel\s*=\s*["\']{re.escape(model)}["\']', self.text[max(start, 0):]))
        where = f"line {self.text.count(chr(10), 0, max(start, 0) + hits[nth - 1].start()) + 1}, " if len(hits) >= nth else ""
        return f"{where}[{self.provider}] row of {model!r}"

    def _row(self, raw: object, section: Mapping[str, Any]) -> Row:
        row = self.known(raw, (*_FACTS, *RATES, *FEES))
        model = row.get("model")
        if not isinstance(model, str) or not model:
            self.fail("a row needs a model")
        self.extreme = self.allow_extreme or row.get("extreme") is True
        rates = {column: self._micro(column, row[column]) for column in RATES if column in row}
        fees = {unit: self._scaled(column, row[column], _PICO_PER_UNIT) for column, unit in FEES.items() if column in row}
        if not rates and not fees:
            self.fail("has no price")
        tier, region, over = row.get("tier", "default"), row.get("region"), row.get("over", 0)
        since, hours = row.get("valid_from"), self._hours(row.get("hours", ""))
        name = f"{self.prefix}{self.provider}/{model}@{since or 'launch'}"
        return Row(
            id=name + (f"#{tier}" if tier != "default" else "") + (f"#region:{region}" if region else "")
            + ("#hours" if hours else "") + (f">{over}" if over else ""),
            provider=self.provider, model=model.lower(), tier=tier, region=region, over=over, upto=row.get("upto"),
            from_us=self._day(since, -FOREVER), to_us=self._day(row.get("valid_to"), FOREVER, plus=1), hours=hours,
            days=self._days(row.get("days", "mon-sun")), not_on=frozenset(row.get("not_on", ())), rates=rates, fees=fees,
            source=row.get("source", section.get("source", "")), checked_on=row.get("checked_on", section.get("checked_on")),
        )

    def _no_overlap(self, rows: Sequence[Row]) -> None:
        """A later row takes over from an earlier one; an earlier one that says it lasts longer contradicts it."""
        ordered = sorted(rows, key=lambda row: (_selector(row), row.from_us))
        for one, next_ in pairwise(ordered):
            if _selector(one) == _selector(next_) and one.from_us < next_.from_us < one.to_us < FOREVER:
                self.at = next_.model, 1
                self.fail(f"{one.id} has a valid_to after {next_.id} begins: two prices would be in force on one day")

    def _micro(self, column: str, value: object) -> int:
        micros = self._scaled(column, value, _MICRO)
        if micros > EXTREME_USD * _MICRO and not self.extreme:
            self.fail(
                f"{column} = {value!r} is more than {EXTREME_USD} USD per million tokens: prices are per million, not per "
                "token; write extreme = true into the row if it is meant"
            )
        return micros

    def _scaled(self, column: str, value: object, scale: int) -> int:
        if not isinstance(value, str):
            self.fail(f'{column} must be a decimal in quotes, e.g. {column} = "{value}": a bare number loses digits')
        try:
            amount = Decimal(value) * scale
        except InvalidOperation:
            self.fail(f"{column} = {value!r} is not a decimal number")
        if not amount.is_finite() or amount < 0 or amount != amount.to_integral_value():
            self.fail(f"{column} = {value!r} must be at least 0 and have at most {len(str(scale)) - 1} decimals")
        return int(amount)

    def _day(self, value: object, default: int, plus: int = 0) -> int:
        if value is None:
            return default
        if not isinstance(value, date) or isinstance(value, datetime):
            self.fail(f"{value!r} must be a date like 2026-04-01, without quotes")
        return int((datetime(value.year, value.month, value.day, tzinfo=UTC) + timedelta(days=plus)).timestamp()) * 1_000_000

    def _hours(self, text: str) -> tuple[tuple[int, int], ...]:
        spans = []
        for part in filter(None, text.replace(" ", "").split(",")):
            if not (match := _HOURS.fullmatch(part)):
                self.fail(f"hours {part!r} must look like 01:00-04:00 (UTC)")
            a, b, c, d = map(int, match.groups())
            spans.append((a * 60 + b, c * 60 + d))
        return tuple(spans)

    def _days(self, text: str) -> frozenset[int]:
        first, _, last = text.partition("-")
        if first not in _DAYS or (last and last not in _DAYS):
            self.fail(f"days {text!r} must look like mon-fri or sat")
        return frozenset(range(_DAYS.index(first), _DAYS.index(last or first) + 1))

    def _region(self, raw: object) -> Region:
        rule = self.known(raw, _REGION)
        if not {"region", "models", "factor"} <= rule.keys():
            self.fail("a region rule needs region, models and factor")
        factor = Decimal(self._micro("factor", rule["factor"])) / _MICRO
        num, den = factor.as_integer_ratio()
        return Region(region=rule["region"], models=tuple(map(str.lower, rule["models"])), num=num, den=den)
