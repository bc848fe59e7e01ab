"""A provider that bills: random traffic as the ledger books it, and the bill for the same traffic with faults put in.

Every fault is written down as (cause, day, key, model) with its dollars, so that a test can say how many were named rightly.
"""
from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

from gateway.core.usage import TokenUsage
from gateway.ledger import Entry
from gateway.ledger.days import day_start
from gateway.metering import prices
from gateway.metering.prices import Offer, PriceBook
from gateway.reconcile.lines import CLASSES, Line
from tests.ledger.generate import entry

PROVIDER = "maker"
FIRST, DAYS = date(2026, 10, 1), 30
KEYS = {"key_alpha": "alpha", "key_beta": "beta", "key_gamma": "gamma"}
"""The provider's name of a key, and our backend's."""
MODELS = ("large", "medium", "small")
_TIERS = {"default": "1", "priority": "2", "flex": "0.5", "batch": "0.5"}
_RATES = {"large": (5, 10, 30), "medium": (2, 4, 10), "small": (0.25, 0.5, 1.5)}
"""Input, an hour's write, output, dollars per million tokens; a read costs a tenth of input, a short write 1.25 of it."""


def price_file(models: Iterable[str] = MODELS) -> str:
    rows = []
    for model in models:
        given, hour, output = _RATES[model]
        for tier, factor in _TIERS.items():
            times = float(factor)
            columns = {"input": given, "cached": given / 10, "write_5m": given * 1.25, "write_1h": hour, "output": output}
            text = ", ".join(f'{name} = "{price * times:.6f}"' for name, price in columns.items())
            rows.append(f'  {{model = "{model}", tier = "{tier}", valid_from = 2026-01-01, {text}}},')
    region = 'regions = [{region = "us", models = ["*"], factor = "1.1"}]'
    return f"[{PROVIDER}]\n{region}\nrows = [\n" + "\n".join(rows) + "\n]\n"


def book(folder: Path) -> PriceBook:
    path = folder / "maker.toml"
    path.write_text(price_file())
    return prices.load([path], built_in=False)


@dataclass(frozen=True, kw_only=True)
class Call:
    """What the provider knows of one call."""

    day: date
    key: str
    model: str
    tier: str
    region: str
    tokens: TokenUsage

    def counts(self) -> dict[str, int]:
        written = {f"write_{ttl}": n for ttl, n in self.tokens.cache_write.items()}
        counts = {"uncached": self.tokens.uncached or 0, "cache_read": self.tokens.cache_read or 0, "output": self.tokens.output or 0}
        return {kind: n for kind, n in (counts | written).items() if n}


@dataclass(kw_only=True)
class Truth:
    """Faults by (cause, day, key, model): dollars, as the bill has more than the ledger."""

    faults: dict[tuple[str, str, str, str], int] = field(default_factory=lambda: defaultdict(int))

    def add(self, cause: str, call: Call, nanos: int) -> None:
        self.faults[cause, call.day.isoformat(), KEYS.get(call.key, call.key), call.model] += nanos


@dataclass(kw_only=True)
class World:
    book: PriceBook
    seed: int
    splits: frozenset[str] = frozenset({"key", "tier", "region"})
    """What the bill splits by."""
    per_block: int = 12
    rate: float = 0.25
    """Share of blocks (day, key, model) with a fault."""
    twice: float = 0.0
    """Share of these that have two of different causes."""
    step: str = "0.000001"
    """The smallest amount on a line of the bill."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.truth = Truth()
        self.entries: list[Entry] = []
        self.charges: dict[tuple[str, str, str, str, str, str], list[float]] = defaultdict(lambda: [0, 0])
        for n in range(DAYS):
            for key in KEYS:
                for model in MODELS:
                    self._block(FIRST + timedelta(days=n), key, model)

    # traffic

    def _block(self, day: date, key: str, model: str) -> None:
        calls = [self._call(day, key, model) for _ in range(self.per_block)]
        faults = self._faults()
        count = 0 if self.rng.random() >= self.rate else 2 if self.rng.random() < self.twice else 1
        struck: dict[int, str] = {}
        for fault in self.rng.sample(faults, count):
            struck |= dict.fromkeys(self.rng.sample(range(len(calls)), self.rng.randint(1, 4)), fault)
        for n, call in enumerate(calls):
            getattr(self, f"_{struck.get(n, 'plain')}")(call)
        if "price_row" in struck.values():
            self._misprice(calls)

    def _faults(self) -> list[str]:
        always = ["bypassed", "cut_stream", "ttl_split", "price_row"]
        return always + [name for name, split in (("tier", "tier"), ("batch", "tier"), ("region", "region")) if split in self.splits]

    def _call(self, day: date, key: str, model: str) -> Call:
        rng = self.rng
        prefix = rng.choice((0, 0, 2_048, 8_192))
        hit = rng.random() < 0.6
        usage = TokenUsage(
            uncached=rng.randint(50, 3_000), cache_read=prefix if hit else 0, output=rng.randint(20, 1_500),
            cache_write={} if hit or not prefix else {rng.choice(("5m", "1h")): prefix},
        )
        tier = rng.choice(("default", "default", "default", "flex"))
        return Call(day=day, key=key, model=model, tier=tier, region="", tokens=usage)

    def _plain(self, call: Call) -> None:
        self._bill(call)
        self._book(call)

    # faults

    def _bypassed(self, call: Call) -> None:
        self._bill(call)
        self.truth.add("bypassed", call, self._cost(call))

    def _tier(self, call: Call) -> None:
        self._moved("tier", call, tier="priority")

    def _batch(self, call: Call) -> None:
        self._moved("batch", call, tier="batch")

    def _region(self, call: Call) -> None:
        self._moved("region", call, region="us")

    def _ttl_split(self, call: Call) -> None:
        written = self.rng.randint(1_000, 9_000)
        booked = Call(**{**_fields(call), "tokens": _with(call.tokens, cache_read=0, cache_write={"5m": written})})
        billed = Call(**{**_fields(call), "tokens": _with(call.tokens, cache_read=0, cache_write={"1h": written})})
        self._book(booked)
        self._bill(billed)
        self.truth.add("ttl_split", call, self._cost(billed) - self._cost(booked))

    def _cut_stream(self, call: Call) -> None:
        """The client hung up: we guessed the prompt and what had come, the provider counted and went on a little."""
        into, out = call.tokens.input_total, call.tokens.output or 0
        guess = TokenUsage(
            uncached=round(into * self.rng.uniform(0.85, 1.15)), output=round(out * self.rng.uniform(0.4, 1.1)), flags=("input_estimated",)
        )
        booked = Call(**{**_fields(call), "tokens": guess})
        self._bill(call)
        self._book(booked, status="client_gone", tokens_from="estimate")
        self.truth.add("cut_stream", call, self._cost(call) - self._cost(booked))

    def _price_row(self, call: Call) -> None:
        self._plain(call)

    def _misprice(self, calls: list[Call]) -> None:
        """The provider's price of the day is another one, class by class."""
        for call in calls:
            for kind in call.counts():
                cell = self.charges[self._key(call, kind)]
                if len(cell) == 2:
                    factor = {"output": 1.2, "uncached": 1.05}.get(kind, 1.0)
                    self.truth.add("price_row", call, round(cell[1] * (factor - 1)))
                    cell[1] *= factor
                    cell.append(1)

    def _moved(self, cause: str, call: Call, **there: str) -> None:
        billed = Call(**{**_fields(call), **there})
        self._book(call)
        self._bill(billed)
        self.truth.add(cause, call, self._cost(billed) - self._cost(call))

    # books and bill

    def _cost(self, call: Call) -> int:
        cost = self._priced(call).cost_nanos
        assert cost is not None
        return cost

    def _priced(self, call: Call) -> prices.Priced:
        at_us = day_start(call.day, "UTC") + 43_200_000_000
        return self.book.price(Offer(PROVIDER, call.model, call.tier, call.region or None), call.tokens, at_us)

    def _book(self, call: Call, **over: object) -> None:
        n, priced = len(self.entries), self._priced(call)
        self.entries.append(entry(**{
            "id": f"c-{n}-1", "call_id": f"c-{n}", "at_us": day_start(call.day, "UTC") + self.rng.randrange(86_400_000_000), "backend": KEYS[call.key],
            "provider": PROVIDER, "model": call.model, "upstream_model": call.model, "served_model": f"{call.model}-2026-01-01",
            "served_tier": call.tier, "tokens": call.tokens, "cost_nanos": priced.cost_nanos, "uncached_cost_nanos": priced.uncached_cost_nanos,
            "price_rows": priced.rows, **over,
        }))  # fmt: skip

    def _key(self, call: Call, kind: str) -> tuple[str, str, str, str, str, str]:
        return call.day.isoformat(), call.key, call.model, call.tier, call.region, kind

    def _bill(self, call: Call) -> None:
        for kind, tokens in call.counts().items():
            name = kind.removeprefix("write_")
            part = {"cache_write": {name: tokens}} if kind.startswith("write") else {kind: tokens}
            alone = self._cost(Call(**{**_fields(call), "tokens": TokenUsage(**{"uncached": 0, "output": 0, **part})}))  # type: ignore[arg-type]
            cell = self.charges[self._key(call, kind)]
            cell[0] += tokens
            cell[1] += alone

    def lines(self, *, money: bool = True, tokens: bool = True) -> list[Line]:
        """The bill, amounts rounded to its step."""
        step = round(float(self.step) * 1e9)
        found = []
        for (day, key, model, tier, region, kind), (count, nanos, *_) in self.charges.items():
            assert kind in CLASSES
            found.append(Line(
                day=day, key=key, model=model, tier=tier if "tier" in self.splits else None,
                region=region if "region" in self.splits else None, kind=kind, tokens=int(count) if tokens else None,
                nanos=round(nanos / step) * step if money else None,
            ))  # fmt: skip
        return found


def anthropic_usage(lines: Iterable[Line]) -> dict[str, object]:
    """The bill as a page of Anthropic's usage report."""
    columns = {"uncached": "uncached_input_tokens", "cache_read": "cache_read_input_tokens", "output": "output_tokens"}
    days: dict[str, dict[tuple[str | None, ...], dict[str, object]]] = {}
    for line in lines:
        row = days.setdefault(line.day, {}).setdefault((line.key, line.model, line.tier, line.region), {
            "api_key_id": line.key, "workspace_id": None, "model": line.model, "context_window": None, "server_tool_use": {"web_search_requests": 0},
            "service_tier": "standard" if line.tier == "default" else line.tier, "inference_geo": line.region or "global",
            "uncached_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        })  # fmt: skip
        if line.kind in columns:
            row[columns[line.kind]] = line.tokens
        else:
            row["cache_creation"][f"ephemeral_{line.kind.removeprefix('write_')}_input_tokens"] = line.tokens  # type: ignore[index]
    data = [
        {"starting_at": f"{day}T00:00:00Z", "ending_at": f"{date.fromisoformat(day) + timedelta(days=1)}T00:00:00Z", "results": list(rows.values())}
        for day, rows in sorted(days.items())
    ]  # fmt: skip
    return {"data": data, "has_more": False, "next_page": None}


def _fields(call: Call) -> dict[str, object]:
    return {name: getattr(call, name) for name in ("day", "key", "model", "tier", "region", "tokens")}


def _with(usage: TokenUsage, **over: object) -> TokenUsage:
    return TokenUsage(**{"uncached": usage.uncached, "output": usage.output, **over})  # type: ignore[arg-type]
