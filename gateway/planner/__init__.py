"""Plans the prompt cache of a provider: where to mark, for how long, under which key, or nothing, by least expected cost.

`Planner.plan` looks at one request as its backend gets it and says which fields to set; it is called for each attempt, and
costs nothing for a provider that has nothing to plan (`caches.py`). What a client marked itself is never touched; where it
leaves marks free, they are used as well. A conversation under way keeps being read where it was stored, until that has expired.

Marks are lossless: they are no part of the text that the model sees.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from gateway.core.errors import BadRequest
from gateway.planner.answers import Answers
from gateway.planner.asking import Own, at_marks, clients_own, for_lifetime
from gateway.planner.caches import CacheRules, rules_of
from gateway.planner.choice import DOUBT, DOUBT_OF_SHARED, Odds, Rates, Segment, least
from gateway.planner.cohorts import Cohorts, Leader
from gateway.planner.held import Held, Seen
from gateway.planner.keys import CacheKeys
from gateway.planner.places import Page, Place, places
from gateway.planner.reuse import Came, Chance, ReuseBook
from gateway.planner.values import Asker, Backend, Planned, Stored, Warm

__all__ = ["Asker", "Backend", "Page", "Planned", "Planner", "RatesOf", "rules_of"]

_log = logging.getLogger("tollway")
_SLOW_S = 300.0
_SHARED = frozenset({"tools", "head", "system"})
_BYTES_PER_TOKEN = 4.0
_LEARN_SHARE = 0.1
_THEN = {**dict.fromkeys(("opening", "turn", "slow", "before", "before_turn", "before_slow"), "again"), "again": "often"}
"""What comes again is of another kind from then on."""

RatesOf = Callable[[str, str, str | None], Mapping[str, int] | None]
"""(provider, model, tier) -> the price row's rates in force, by their names there; None: no row."""


@dataclass(slots=True)
class Planner:
    """One per process."""

    rates_of: RatesOf
    reuse: ReuseBook = field(default_factory=ReuseBook)
    held: Held = field(default_factory=Held)
    seen: Seen = field(default_factory=Seen)
    keys: CacheKeys = field(default_factory=CacheKeys)
    cohorts: Cohorts = field(default_factory=Cohorts)
    answers: Answers = field(default_factory=Answers)
    _bytes_per_token: dict[str, float] = field(default_factory=dict)

    def plan(self, page: Page, asker: Asker, backend: Backend, now_us: int, *, first: bool = True) -> Planned | None:
        """What to set; None: nothing. `first`: the call's first attempt, from which reuse is learnt. Never raises."""
        rules = rules_of(backend.provider, backend.model, page.dialect)
        if rules is None or not page.keys:
            return None
        try:
            return self._plan(page, asker, backend, rules, now_us, first=first)
        except (BadRequest, msgspec.MsgspecError, ValueError, KeyError, IndexError, TypeError) as error:
            _log.warning("no cache plan for a request: %s: %s", type(error).__name__, error)
            return None

    def learn(self, planned: Planned, *, read_tokens: int | None, input_tokens: int, at_us: int) -> None:
        """The answer came: what was planned is stored, `at_us` being when the call came."""
        if input_tokens > 0 and planned.end_bytes:
            seen = planned.end_bytes / input_tokens
            known = self._bytes_per_token.get(planned.model, _BYTES_PER_TOKEN)
            self._bytes_per_token[planned.model] = known + _LEARN_SHARE * (seen - known)
        if planned.held and read_tokens == 0:
            self.held.forget(planned.pool, planned.held)
        self.begun(planned, at_us)

    def begun(self, planned: Planned, at_us: int) -> None:
        """The answer to a call that came at `at_us` has begun: what it stores can be read."""
        for each in planned.stored:
            self.held.store(planned.pool, each.key, at_us, each.life_s)

    def writer(self, planned: Planned) -> tuple[Leader, float] | None:
        """Who is writing the longest prefix that this call shares, and what reading it instead saves, dollars."""
        if planned.rules.writes_wait and len(self.cohorts):
            for each in reversed(planned.stored):
                leader = self.cohorts.writer((planned.pool, each.key))
                if leader is not None:
                    return leader, each.tokens * planned.saving_usd
        return None

    def lead(self, planned: Planned, now_us: int) -> Leader:
        """Leads for the prefixes that nobody has stored and nobody is writing."""
        cold = [(planned.pool, each.key) for each in planned.stored if not self.held.has(planned.pool, each.key, now_us)]
        return self.cohorts.lead(cold if planned.rules.writes_wait else ())

    def _plan(
        self, page: Page, asker: Asker, backend: Backend, rules: CacheRules, now_us: int, *, first: bool
    ) -> Planned | None:
        base = Planned(fields={}, receipts=(), pool=backend.pool, rules=rules, model=backend.model, end_bytes=page.ends[-1])
        if rules.key and "prompt_cache_key" not in page.spans:
            session = (page.session or str(page.keys[page.opening])).encode()
            key = self.keys.key(asker.domain.encode("utf-8", "replace") + page.beginning, session, now_us).decode()
            receipt = {"pass": "cache_key", "place": "prompt_cache_key", "before": "", "after": key}
            base = replace(base, fields={"prompt_cache_key": msgspec.Raw(msgspec.json.encode(key))}, receipts=[receipt])
        own = clients_own(page, rules)
        if own is not None:
            base = self._stored(page, asker, backend, rules, now_us, base, own, first=first)
        return base if base.fields or base.stored else None

    def _stored(
        self, page: Page, asker: Asker, backend: Backend, rules: CacheRules, now_us: int, base: Planned, own: Own, *,
        first: bool,
    ) -> Planned:  # fmt: skip
        rates = self._rates(backend, rules)
        if rates is None:
            return base
        if own.parts:
            # a long lifetime may not stand behind a short one, and with marks the automatic cache is out of reach
            rates = replace(rates, writes=rates.writes[:1], automatic_read=None)
        if rules.mark is None and rules.lifetime_field is None:
            return self._together(page, backend, rules, rates, base)
        client, app = _name_of(asker, backend.model), str(page.keys[0])
        came = self.reuse.came(page.keys, now_us) if first else Came()
        held = self.held.deepest(backend.pool, page.keys, now_us)
        under_way = max(came.deepest, held) >= page.opening
        goes_on = self.seen.talk(page.session, now_us) if first else False  # though what it said before may have changed
        end_kind = "opening" if not (under_way or goes_on) else "slow" if came.waited_s > _SLOW_S else "turn"
        found = places(page, end_kind, held, self.seen.deepest(page.keys) if first else -1)
        found = [replace(place, kind="often") if _came_often(place, came) else place for place in found]
        if not found:
            return base
        ratio = self._bytes_per_token.get(backend.model, _BYTES_PER_TOKEN)
        tokens = [round(place.end_bytes / ratio) for place in found]
        sizes = [end - before for before, end in zip([0, *tokens], tokens)]  # noqa: B905 - one more before than ends
        if first:
            inner = [place.key for place in found if place.block >= 0]
            if inner:
                self.reuse.came(inner, now_us)
            for place, size in zip(found, sizes, strict=True):
                self.reuse.wait_for(place.key, place.kind, client, app, size, now_us)
        held_place = max([n for n, place in enumerate(found) if self._has(backend.pool, place, held, now_us)], default=-1)
        if rules.writes_wait and len(self.cohorts):  # what a call is writing right now is waited for
            writing = [n for n, place in enumerate(found) if self.cohorts.writer((backend.pool, place.key))]
            held_place = max([held_place, *writing])
        lives = list(rules.lives.values())
        held_long = held_place >= 0 and self.held.life_s(backend.pool, found[held_place].key) > lives[0]
        segments = []
        for place, size in zip(found, sizes, strict=True):
            now = then = self._odds(place.kind, client, app, size, lives)
            if place.kind in _THEN:
                then = self._odds(_THEN[place.kind], client, app, size, lives)
            sure = place.kind in _SHARED or rules.lifetime_field  # one lifetime for all: there is no part to doubt more
            segments.append(Segment(size, now, then, DOUBT_OF_SHARED if sure else DOUBT))
        reach = next((n for n, end in enumerate(tokens) if end >= rules.minimum_tokens), None)
        if reach is None:
            return base
        base = replace(base, saving_usd=(rates.writes[0] - rates.read) * rates.input_usd)
        stored = [Stored(place.key, lives[0], end) for place, end in zip(found, tokens, strict=True)]
        if rates.automatic_read is not None and held_place < 0:
            alone = replace(base, pool=f"{backend.pool}\0automatic", stored=stored)  # the automatic cache is one of its own
            alone = replace(alone, saving_usd=(1.0 - rates.automatic_read) * rates.input_usd)
            if (under_way and came.waited_s <= lives[0]) or self.writer(alone):
                return alone  # it is there, or about to be, and a prompt with marks does not read it
        else:
            alone = base
        if rules.lifetime_field:
            # of an opening most never comes again, and what stands behind something short-lived goes with it
            may = under_way and (held_place < 0 or held_long)
            long = rates if may else replace(rates, writes=rates.writes[:1])
            return for_lifetime(stored, segments, held_place, long, rules, base)
        choice = least(segments, held_place, rates, reach, held_long=held_long)
        if choice.last < 0 and rates.automatic_read is not None:
            return alone
        if own.parts:
            reached = [n for n, each in enumerate(found) if each.part <= max(own.parts)]
            choice = replace(choice, last=max(choice.last, *reached[-1:]))
            base = replace(base, stored=[Stored(page.keys[n], lives[0], round(page.ends[n] / ratio)) for n in own.parts])
        planned = at_marks(page, found, stored, choice, held_place, reach, rules, base, own)
        if rules.silent and planned.stored:
            chance = self.reuse.chance(end_kind, client, app, sizes[-1])
            surer = tokens[held_place] if held_long else 0
            planned = replace(planned, warm=_warm(planned.stored, surer, lives, rates, chance))
        return planned

    def _odds(self, kind: str, client: tuple[str, ...], app: str, tokens: int, lives: Sequence[float]) -> Odds:
        chance = self.reuse.chance(kind, client, app, tokens)
        return Odds(tuple([chance.within(life) for life in lives]), chance.ever)

    def _together(self, page: Page, backend: Backend, rules: CacheRules, rates: Rates, base: Planned) -> Planned:
        """Nothing can be asked for; what the provider stores by itself matters only to calls that come together."""
        ratio = self._bytes_per_token.get(backend.model, _BYTES_PER_TOKEN)
        life_s = next(iter(rules.lives.values()))
        stored = [Stored(place.key, life_s, round(place.end_bytes / ratio)) for place in places(page, "opening", -1)]
        return replace(
            base,
            stored=[each for each in stored if each.tokens >= rules.minimum_tokens],
            saving_usd=(rates.writes[0] - rates.read) * rates.input_usd,
        )

    def _has(self, pool: str, place: Place, held: int, now_us: int) -> bool:
        """Whether the cache has the prefix that ends there; `held` is the last whole part that it has."""
        return place.part < held or (place.part == held and place.block < 0) or (
            place.block >= 0 and self.held.has(pool, place.key, now_us)
        )

    def _rates(self, backend: Backend, rules: CacheRules) -> Rates | None:
        """In terms of the input price; None: a price that matters is not known."""
        row = self.rates_of(backend.provider, backend.model, rules.explicit_tier or backend.tier)
        if not row or not row.get("input") or "cached" not in row:
            return None
        unit = row["input"]
        if rules.mark is None and rules.lifetime_field is None:
            return Rates(row["cached"] / unit, (1.0,), None, unit / 1e12)
        writes = [row.get(f"write_{life}", row.get("write")) for life in rules.lives]
        known = tuple(write / unit for write in writes if write is not None)
        if len(known) < len(writes):
            return None
        plain = self.rates_of(backend.provider, backend.model, backend.tier) if rules.automatic_read else None
        automatic = plain["cached"] / unit if plain and "cached" in plain else None
        return Rates(row["cached"] / unit, known, automatic, unit / 1e12)


def _warm(stored: Sequence[Stored], surer: int, lives: Sequence[float], rates: Rates, chance: Chance) -> Warm:
    """What is at stake when the end of a prompt expires: all of it, but for what lives longer (of what is held, `surer`)."""
    last = stored[-1]
    n = lives.index(last.life_s) if last.life_s in lives else 0
    longer = max([surer if n == 0 else 0, *[each.tokens for each in stored if each.life_s > last.life_s]])
    saved = max(last.tokens - longer, 0) * (rates.writes[n] - rates.read) * rates.input_usd
    return Warm(last.life_s, last.tokens * rates.read * rates.input_usd, saved, chance)


@lru_cache(4_096)
def _name_of(asker: Asker, model: str) -> tuple[str, ...]:
    """A client in a name that may be told to other processes."""
    named = "\0".join((asker.domain, asker.client, model)).encode("utf-8", "replace")
    return (blake2b(named, digest_size=8).hexdigest(),)


def _came_often(place: Place, came: Came) -> bool:
    """Whether what came again there had come again before."""
    return place.kind == "again" and came.kinds.get(place.key) in ("again", "often")
