"""Production arrival traces through the planner alone: its plans on Anthropic's rules, against one that knows the
future and three fixed plans.

Mooncake's traces name 512-token blocks by hashes that include all before them, so their prefixes are real. Azure's have
arrival times and lengths only: each call gets the app's system prompt of 1,500 tokens and a text of its own; stretched in
time, the same calls come slowly enough for lifetimes to matter.
"""
from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import click
import msgspec
import orjson
from rich.console import Console
from rich.table import Table

from benchmarks import prefix_informed
from benchmarks.prefix_chances import cut
from benchmarks.prefix_clairvoyant import Marked, by_marks
from benchmarks.prefix_oracle import Prices, bound, cost_of
from benchmarks.providers.marked import MarkedCache, MarkRules, Used
from benchmarks.providers.prompt import Block, Prompt
from gateway import dialects
from gateway.dialects import splice
from gateway.planner import Asker, Backend, Page, Planner
from gateway.prefix.chain import chain

_BLOCK_TOKENS, _SYSTEM_TOKENS, _BYTES_PER_TOKEN = 512, 1_500, 4
_MODEL = "claude-sonnet-4-6"
_LIVES = {"5m": 300.0, "1h": 3600.0}
_PRICES = Prices(read=0.1, writes={300.0: 1.25, 3600.0: 2.0})
_ROW = {"input": 3_000_000, "cached": 300_000, "write_5m": 3_750_000, "write_1h": 6_000_000}
_BEGINS_S = 1.0
"""From a call to its first token."""
_STRETCHED = (1, 500, 5_000)
_MOST_CALLS = 4_000


@dataclass(frozen=True, slots=True)
class Call:
    at_s: float
    blocks: tuple[tuple[str, int], ...]
    """Name and tokens of each piece of the prompt; equal beginnings are shared."""


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Regret:
    """Costs in uncached input tokens, all with the same requests."""

    trace: str
    calls: int
    bound: float
    oracle: float
    informed: float
    rules_aside: float
    planned: float
    always_5m: float
    always_1h: float
    never: float

    @property
    def over_oracle(self) -> float:
        return self.planned / self.oracle - 1

    @property
    def over_informed(self) -> float:
        return self.planned / self.informed - 1

    def as_row(self) -> dict[str, Any]:
        overs = {"over_oracle": self.over_oracle, "over_informed": self.over_informed}
        return {**asdict(self), **overs, "best_fixed": min(self.always_5m, self.always_1h, self.never)}


def traces(folder: Path) -> Iterator[Trace]:
    """Those that are in the folder."""
    for path in sorted(folder.glob("mooncake_*.jsonl")):
        yield Trace(path.stem, tuple(_read(path)))
    for path in sorted(folder.glob("azure_*.csv")):
        for factor in _STRETCHED:
            yield Trace(f"{path.stem} x{factor}", tuple(_azure(path, factor)))


def _read(path: Path) -> Iterator[Call]:
    with path.open(encoding="utf-8") as lines:
        for number, line in zip(range(_MOST_CALLS), lines, strict=False):
            try:
                yield _mooncake(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise _bad(path, number + 1, error) from error


def _bad(path: Path, line: int, error: Exception) -> click.ClickException:
    what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return click.ClickException(f"{path}:{line}: {what}")


def _mooncake(row: dict[str, Any]) -> Call:
    left, blocks = int(row["input_length"]), []
    for name in row["hash_ids"]:
        blocks.append((str(name), min(left, _BLOCK_TOKENS)))
        left -= _BLOCK_TOKENS
    return Call(row["timestamp"] / 1e3, tuple(block for block in blocks if block[1] > 0))


def _azure(path: Path, factor: int) -> Iterator[Call]:
    with path.open(encoding="utf-8") as lines:
        start: datetime | None = None
        for number, row in zip(range(_MOST_CALLS), csv.DictReader(lines), strict=False):
            try:
                at = datetime.fromisoformat(row["TIMESTAMP"][:26])
                own = max(int(row["ContextTokens"]) - _SYSTEM_TOKENS, 50)
            except (ValueError, KeyError, TypeError) as error:
                raise _bad(path, number + 2, error) from error
            start = start or at
            yield Call((at - start).total_seconds() * factor, (("system", _SYSTEM_TOKENS), (f"call {number}", own)))


def regret(trace: Trace) -> Regret:
    prompts = [(call.at_s, _prompt(call, {})) for call in trace.calls]
    short, long = _fixed(trace.calls, "5m"), _fixed(trace.calls, "1h")
    never = float(sum(prompt.tokens for _, prompt in prompts))
    found = cut(prompts, _PRICES.minimum, by_marks=True)
    known = prefix_informed.by_all([found], _PRICES)
    return Regret(
        trace=trace.name,
        calls=len(trace.calls),
        bound=bound(prompts, _PRICES),
        oracle=min(by_marks(prompts, _PRICES, Marked(MarkRules(ttls=_LIVES)), _BEGINS_S), short, long, never),
        informed=prefix_informed.by_marks(prompts, found, _PRICES, Marked(MarkRules(ttls=_LIVES)), known, _BEGINS_S),
        rules_aside=prefix_informed.informed(prompts, _PRICES, known=known(0)),
        planned=_planned(trace.calls),
        always_5m=short,
        always_1h=long,
        never=never,
    )


def _prompt(call: Call, marks: dict[int, str]) -> Prompt:
    blocks, tokens, digest = [], 0, b""
    for place, (name, size) in enumerate(call.blocks):
        digest = blake2b(digest + name.encode(), digest_size=16).digest()
        tokens += size
        blocks.append(Block(digest, tokens, marks.get(place), place + 1, "messages"))
    return Prompt(tuple(blocks))


class _Cache:
    """Anthropic's, with answers that begin after a moment."""

    def __init__(self) -> None:
        self._cache = MarkedCache(MarkRules(ttls=_LIVES))

    def cost(self, call: Call, marks: dict[int, str]) -> tuple[float, Used]:
        used = self._cache.serve("", _prompt(call, marks), call.at_s)
        used.begun(call.at_s + _BEGINS_S)
        return cost_of(used, _PRICES, _LIVES), used


def _fixed(calls: Sequence[Call], ttl: str) -> float:
    """Marks behind the first block, the block before the last, and the last: what a careful client sends."""
    cache = _Cache()
    ends = [{0, max(len(call.blocks) - 2, 0), len(call.blocks) - 1} for call in calls]
    return sum(cache.cost(call, dict.fromkeys(places, ttl))[0] for call, places in zip(calls, ends, strict=True))


def _planned(calls: Sequence[Call]) -> float:
    planner, cache, total = Planner(lambda provider, model, tier: _ROW), _Cache(), 0.0
    for call in calls:
        at_us = int(call.at_s * 1e6)
        page = _page(call)
        plan = planner.plan(page, Asker("team", "trace"), Backend("anthropic", _MODEL, None, "pool"), at_us)
        marks: dict[int, str] = {}
        if plan is not None:
            fields = {name: msgspec.json.encode(value) for name, value in plan.fields.items()}
            marks = _marks(orjson.loads(splice.change(page.body, page.spans, fields)))
        cost, used = cache.cost(call, marks)
        total += cost
        if plan is not None:
            planner.learn(plan, read_tokens=used.read, input_tokens=used.total, at_us=at_us, written=used.written)
    return total


def _page(call: Call) -> Page:
    """A request whose parts stand for the blocks: the first is the system prompt, the others are messages."""
    system, *rest = [name for name, _ in call.blocks]
    messages = [{"role": "user", "content": name} for name in rest] or [{"role": "user", "content": "-"}]
    body = orjson.dumps({"model": _MODEL, "max_tokens": 1, "system": system, "messages": messages})
    sketch = dialects.read("anthropic_messages", body)
    parts = sketch.parts
    links = chain("team", _MODEL, parts)
    ends, tokens = [], 0
    for _, size in call.blocks:
        tokens += size
        ends.append(tokens * _BYTES_PER_TOKEN)
    ends += [ends[-1]] * (len(parts) - len(ends))
    return Page(
        dialect="anthropic_messages", body=body, spans=sketch.spans, parts=parts, keys=links.keys, ends=ends, root="t"
    )


def _marks(body: dict[str, Any]) -> dict[int, str]:
    contents = [body["system"], *(message["content"] for message in body["messages"])]
    return {
        place: content[-1]["cache_control"].get("ttl", "default")
        for place, content in enumerate(contents) if isinstance(content, list) and "cache_control" in content[-1]
    }  # fmt: skip


def show(regrets: Sequence[Regret]) -> None:
    table = Table("trace", "calls", "planner over oracle", "all chances known", "rules aside", "always 5m", "always 1h",
                  "never", "planner over all chances known", "beats fixed plans")  # fmt: skip
    for one in regrets:
        plans = (one.planned, one.informed, one.rules_aside, one.always_5m, one.always_1h, one.never)
        over = [f"{cost / one.oracle - 1:+.1%}" for cost in plans]
        best = one.planned <= min(one.always_5m, one.always_1h, one.never) * 1.001
        table.add_row(one.trace, str(one.calls), *over, f"{one.over_informed:+.1%}", "yes" if best else "no")
    Console(width=max(Console().width, 120)).print(table)
