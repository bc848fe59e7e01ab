"""Two checks of the demo's own: the ledger's tokens are the engine's, and from the second turn on the cache has a part.

Both the ledger and the engine only count upwards, so each is read before and after, and the differences are compared,
exactly and for each service tier. Calls of others meanwhile are in both and do no harm; calls that were cut off are known
to the ledger by an estimate only, so then nothing is compared.
"""
from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from gateway.demo.bill import Asked, Bill
from gateway.demo.replay import Turn

_SERIES = re.compile(r"^tollway_engine:(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_TIER = re.compile(r'service_tier="([^"]*)"')
_COUNTERS = ("prompt_tokens_total", "prompt_tokens_cached_total", "generation_tokens_total")
_CLASSES = ("input_total", "cache_read", "output")
NAMES = ("prompt", "cached", "output")
Tokens = tuple[int, int, int]
"""Prompt, of it from the cache, output."""


class NoEngine(Exception):
    """There is no engine whose counters could be read; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`ok` is None where the check could not be made; `text` says why, or what was found."""

    name: str
    ok: bool | None
    text: str
    figures: Mapping[str, Any]

    def json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Tokens by service tier, as both sides have them at one moment."""

    ledger: Mapping[str, Tokens]
    engine: Mapping[str, Tokens]
    estimated: int
    """The ledger's attempts whose tokens are not the engine's own word."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The embedded engine that `tollway up` runs, and its name among the gateway's backends."""

    url: str
    backend: str

    @classmethod
    def of(cls, data: Path) -> Engine:
        """As DATA/run.json tells it while `tollway up` runs. Raises `NoEngine`."""
        path = data / "run.json"
        try:
            told = json.loads(path.read_text(encoding="utf-8"))["engine"]
            return cls(told["url"], told["backend"])
        except OSError:
            raise NoEngine(f"{path} is not there, as it is while `tollway up` runs; name its folder with --data") from None
        except (ValueError, KeyError, TypeError):
            raise NoEngine(f"{path} names no engine") from None

    def read(self, gateway: Asked) -> Reading:
        """Both sides now. Raises `NoEngine`."""
        words = {"report": "spend", "by": "tier", "backend": self.backend}
        sums = gateway.ask("GET", "/tollway/usage", params=words)
        ledger = {str(row["tier"]): tuple(int(row[name]) for name in _CLASSES) for row in sums["rows"]}
        return Reading(ledger=ledger, engine=self._counters(), estimated=sums["total"]["estimated"])  # type: ignore[arg-type]

    def _counters(self) -> dict[str, Tokens]:
        try:
            text = httpx.get(f"{self.url}/metrics", timeout=10.0, trust_env=False).raise_for_status().text
        except httpx.HTTPError as error:
            raise NoEngine(f"the engine does not tell its counters ({type(error).__name__})") from error
        found: dict[str, list[int]] = {}
        for name, labels, value in _SERIES.findall(text):
            if name in _COUNTERS and (tier := _TIER.search(labels)):
                found.setdefault(tier[1], [0, 0, 0])[_COUNTERS.index(name)] += int(float(value))
        if not found and "tollway_engine:" not in text:
            raise NoEngine("what answers at the engine's address is no Tollway engine")
        return {tier: (a, b, c) for tier, (a, b, c) in found.items()}


def ledger_is_engine(before: Reading, after: Reading, cut_off: int) -> Check:
    """The ledger's token sums equal the engine's counters, to the token."""
    ledger, engine = _grown(before.ledger, after.ledger), _grown(before.engine, after.engine)
    figures = {
        side: {tier: dict(zip(NAMES, tokens, strict=True)) for tier, tokens in sorted(grown.items())}
        for side, grown in (("ledger", ledger), ("engine", engine))
    }
    name = "ledger_equals_engine"
    if guessed := cut_off or after.estimated - before.estimated:
        text = f"not compared with the engine's counters: calls that were cut off are in the ledger by estimate ({guessed})"
        return Check(name=name, ok=None, text=text, figures=figures)
    if ledger == engine:
        return Check(name=name, ok=True, text=f"ledger = engine's own counters, to the token: {_said(ledger)}", figures=figures)
    text = f"ledger and engine's own counters differ: ledger {_said(ledger)}; engine {_said(engine)}"
    return Check(name=name, ok=False, text=text, figures=figures)


class Comparison:
    """The first check: `begin` before the first call, `end` after the last."""

    def __init__(self, engine: Engine | None, before: Reading | None, why_not: str = "") -> None:
        self._engine = engine
        self._before = before
        self._why_not = why_not

    @classmethod
    def begin(cls, gateway: Asked, data: Path) -> Comparison:
        try:
            engine = Engine.of(data)
            return cls(engine, engine.read(gateway))
        except NoEngine as reason:
            return cls(None, None, str(reason))

    def end(self, gateway: Asked, cut_off: int) -> Check:
        why_not = self._why_not
        if self._engine is not None and self._before is not None:
            try:
                return ledger_is_engine(self._before, self._engine.read(gateway), cut_off)
            except NoEngine as reason:
                why_not = str(reason)
        text = f"ledger not compared with the engine's counters: {why_not}"
        return Check(name="ledger_equals_engine", ok=None, text=text, figures={})


def cached_from_second_turn(turns: Sequence[Turn], bill: Bill) -> Check:
    """Each answered turn after a session's first read some of its prompt from the cache, says the ledger."""
    later = [turn for turn in turns if turn.number > 1 and turn.code is None and turn.call_id is not None]
    cold = [turn for turn in later if not bill.calls.get(turn.call_id or "", {}).get("cache_read")]
    figures = {"turns": len(later), "without": len(cold), "calls": [turn.call_id for turn in cold]}
    text = f"cached tokens > 0 in {len(later) - len(cold)} of {len(later)} turns after a session's first"
    if cold:
        text += "; not in " + ", ".join(f"{t.team} {t.session} turn {t.number}" for t in cold[:5])
        text += " and others" if len(cold) > 5 else ""
    return Check(name="cached_from_second_turn", ok=not cold if later else None, text=text, figures=figures)


def _grown(before: Mapping[str, Tokens], after: Mapping[str, Tokens]) -> dict[str, Tokens]:
    """Differences by tier, without the tiers in which nothing happened."""
    nothing = (0, 0, 0)
    grown = {}
    for tier, now in after.items():
        a, b, c = (x - y for x, y in zip(now, before.get(tier, nothing), strict=True))
        if a or b or c:
            grown[tier] = (a, b, c)
    return grown


def _said(grown: Mapping[str, Tokens]) -> str:
    parts = [
        f"{tier} " + ", ".join(f"{name} {count:,}" for name, count in zip(NAMES, tokens, strict=True))
        for tier, tokens in sorted(grown.items())
    ]
    return "; ".join(parts) or "nothing"
