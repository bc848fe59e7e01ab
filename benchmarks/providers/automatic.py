"""Caches that need no asking: the longest stored prefix, in whole units, on the machine that the request is routed to.

`units`: prefixes are stored and found in steps of that many tokens (128 at OpenAI up to 5.5, 256 at Kimi, 16 in engines of
one's own). OpenAI routes by the first tokens and the request's `prompt_cache_key`; what comes faster than 15 a minute for one
such route goes on to other machines, which have their own caches. Engines hold a bounded number of units, the longest unused
go first.
"""
from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from benchmarks.providers.marked import NEVER_READY, Entry, Used
from benchmarks.providers.prompt import BYTES_PER_TOKEN, Prompt, Refused

_ROUTED_BYTES = 256 * BYTES_PER_TOKEN
_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AutomaticRules:
    """Numbers of one provider."""

    life_s: float
    """After the last use."""
    most_life_s: float = float("inf")
    """After the write, whatever the use."""
    units: int = 128
    minimum: int = 1024
    per_minute: int | None = None
    """Requests of one route that a machine takes; more overflow."""
    capacity_tokens: int | None = None
    paid_writes: Mapping[str, float] | None = None
    """Lifetimes that a request may ask for by `prompt_cache_options.ttl`, seconds; what is not read is then counted as
    written."""


@dataclass(slots=True)
class _Unit:
    entry: Entry
    gone_s: float


class AutomaticCache:
    """Units are named by all bytes of the prompt up to their end."""

    def __init__(self, rules: AutomaticRules) -> None:
        self.rules = rules
        self._held: OrderedDict[tuple[str, int, bytes], _Unit] = OrderedDict()
        self._routes: dict[bytes, deque[float]] = {}
        self._next_machine = 0

    def serve(self, domain: str, prompt: Prompt, at_s: float, body: Mapping[str, Any]) -> Used:
        """Counts one prompt and stores it. Raises `Refused` for a lifetime that there is not."""
        ttl, life_s = self._asked(body)
        machine = self._machine(domain, prompt, at_s, body)
        used, shared, reading = Used(), 0, True
        for digest in self._units(prompt):
            key = (domain, machine, digest)
            unit = self._held.get(key)
            fresh = unit is None or not unit.entry.ready_s <= at_s < min(unit.entry.until_s, unit.gone_s)
            reading = reading and not fresh
            if unit is None or fresh:
                unit = _Unit(Entry(ttl, at_s + life_s, NEVER_READY), at_s + self.rules.most_life_s)
                self._held[key] = unit
                used.entries.append(unit.entry)
            else:
                unit.entry.until_s = at_s + self._lives.get(unit.entry.ttl, self.rules.life_s)
            self._held.move_to_end(key)
            shared += reading
        self._bound()
        return self._counted(used, prompt, min(shared * self.rules.units, prompt.tokens), ttl)

    def _counted(self, used: Used, prompt: Prompt, shared: int, ttl: str) -> Used:
        used.read = shared if shared >= self.rules.minimum else 0
        rest = prompt.tokens - used.read
        if self.rules.paid_writes is not None and prompt.tokens >= self.rules.minimum:
            used.written[ttl] = max(prompt.tokens // self.rules.units * self.rules.units - used.read, 0)
            rest -= used.written[ttl]
        used.uncached = rest
        return used

    @property
    def _lives(self) -> Mapping[str, float]:
        return self.rules.paid_writes or {}

    def _asked(self, body: Mapping[str, Any]) -> tuple[str, float]:
        if self.rules.paid_writes is None:
            return "", self.rules.life_s
        ttl = (body.get("prompt_cache_options") or {}).get("ttl") or next(iter(self._lives))
        if ttl not in self._lives:
            raise Refused(f"prompt_cache_options.ttl: {ttl!r} is not supported")
        return ttl, self._lives[ttl]

    def _units(self, prompt: Prompt) -> list[bytes]:
        """A digest for each whole unit."""
        size, running, found = self.rules.units * BYTES_PER_TOKEN, blake2b(digest_size=16), []
        for start in range(0, len(prompt.text) - size + 1, size):
            running.update(prompt.text[start : start + size])
            found.append(running.digest())
        return found

    def _machine(self, domain: str, prompt: Prompt, at_s: float, body: Mapping[str, Any]) -> int:
        """The route's own machine while it keeps pace, else one of a few that have not seen the prefix lately."""
        if self.rules.per_minute is None:
            return 0
        key = str(body.get("prompt_cache_key") or "").encode()
        route = blake2b(domain.encode() + prompt.text[:_ROUTED_BYTES] + key, digest_size=8).digest()
        recent = self._routes.setdefault(route, deque())
        while recent and recent[0] <= at_s - _MINUTE_S:
            recent.popleft()
        recent.append(at_s)
        overflow = (len(recent) - 1) // self.rules.per_minute
        home = int.from_bytes(route[:4])
        if not overflow:
            return home
        self._next_machine += 1
        return home + 1 + self._next_machine % (overflow * 8)

    def _bound(self) -> None:
        most = self.rules.capacity_tokens
        while most is not None and len(self._held) * self.rules.units > most:
            self._held.popitem(last=False)
