"""Plans the prompt cache of a provider: where to mark, for how long, under which key, or nothing, by least expected cost.

`Planner.plan` looks at one request as its backend gets it and says which fields to set; it is called for each attempt, and
costs nothing for a provider that has nothing to plan (`caches.py`). What a client marked itself is never touched; where it
leaves marks free, they are used as well. A conversation under way keeps being read where it was stored, until that has expired.

Marks are lossless: they are no part of the text that the model sees.
"""
from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple

import msgspec

from gateway.core.errors import BadRequest
from gateway.dialects.splice import Edit
from gateway.planner import marks
from gateway.planner.caches import BREAKPOINT, MARK, CacheRules, rules_of
from gateway.planner.choice import Choice, Odds, Rates, Segment, least, to_go
from gateway.planner.cohorts import Cohorts, Leader
from gateway.planner.held import Held, Seen
from gateway.planner.keys import CacheKeys
from gateway.planner.places import Page, Place, places
from gateway.planner.reuse import ReuseBook

__all__ = ["Asker", "Backend", "Page", "Planned", "Planner", "RatesOf", "rules_of"]

_log = logging.getLogger("tollway")
_LONG = re.compile(rb'"ttl"\s*:\s*"(?!5m")')
"""A lifetime in a client's mark that is not the short one."""
_SLOW_S = 300.0
_BYTES_PER_TOKEN = 4.0
_LEARN_SHARE = 0.1
_RANK = {
    "end": 0, "held": 1, "long": 2, "system": 3, "before": 4, "before_turn": 4, "before_slow": 4, "again": 5, "head": 6,
    "tools": 7,
}  # fmt: skip

_THEN = dict.fromkeys(("opening", "turn", "slow", "before", "before_turn", "before_slow"), "again")
"""What comes again is of another kind from then on."""

RatesOf = Callable[[str, str, str | None], Mapping[str, int] | None]
"""(provider, model, tier) -> the price row's rates in force, by their names there; None: no row."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Whose experience counts: the isolation domain, the client's name."""

    domain: str
    client: str


@dataclass(frozen=True, slots=True)
class Backend:
    """Where the request goes. `pool`: what shares one cache."""

    provider: str
    model: str
    tier: str | None
    pool: str


class Stored(NamedTuple):
    """A prefix that is stored when the answer has begun."""

    key: int
    life_s: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What to set in the request, and what will then be stored where. `held_bytes`: the part that should be read."""

    fields: Mapping[str, msgspec.Raw]
    receipts: Sequence[Mapping[str, object]]
    pool: str
    stored: Sequence[Stored] = ()
    """Each prefix that is marked, or stored by the provider's own habit, in rendered order."""
    held: int = 0
    """Key of the prefix that should be read; 0: none."""
    end_bytes: int = 0
    rules: CacheRules = field(repr=False)
    model: str = ""
    saving_usd: float = 0.0
    """Per token that is read and not written."""


@dataclass(slots=True)
class Planner:
    """One per process."""

    rates_of: RatesOf
    reuse: ReuseBook = field(default_factory=ReuseBook)
    held: Held = field(default_factory=Held)
    seen: Seen = field(default_factory=Seen)
    keys: CacheKeys = field(default_factory=CacheKeys)
    cohorts: Cohorts = field(default_factory=Cohorts)
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
        own = _clients_own(page, rules)
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
        client, app = (asker.domain, asker.client, backend.model), str(page.keys[0])
        seen, waited_s = self.reuse.came(page.keys, now_us) if first else (-1, 0.0)
        held = self.held.deepest(backend.pool, page.keys, now_us)
        under_way = max(seen, held) >= page.opening
        end_kind = "opening" if not under_way else "slow" if waited_s > _SLOW_S else "turn"
        found = places(page, end_kind, held, self.seen.deepest(page.keys) if first else -1)
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
        held_place = max((n for n, place in enumerate(found) if self._has(backend.pool, place, held, now_us)), default=-1)
        lives = list(rules.lives.values())
        segments = []
        for place, size in zip(found, sizes, strict=True):
            now = then = self._odds(place.kind, client, app, size, lives)
            if place.kind in _THEN:
                then = self._odds(_THEN[place.kind], client, app, size, lives)
            segments.append(Segment(size, now, then))
        reach = next((n for n, end in enumerate(tokens) if end >= rules.minimum_tokens), None)
        if reach is None:
            return base
        base = replace(base, saving_usd=(rates.writes[0] - rates.read) * rates.input_usd)
        stored = [Stored(place.key, lives[0], end) for place, end in zip(found, tokens, strict=True)]
        if rates.automatic_read is not None and held_place < 0:
            alone = replace(base, pool=f"{backend.pool}\0automatic", stored=stored)  # the automatic cache is one of its own
            alone = replace(alone, saving_usd=(1.0 - rates.automatic_read) * rates.input_usd)
            if (under_way and waited_s <= lives[0]) or self.writer(alone):
                return alone  # it is there, or about to be, and a prompt with marks does not read it
        else:
            alone = base
        if rules.lifetime_field:
            long = rates if under_way else replace(rates, writes=rates.writes[:1])  # of an opening most never comes again
            return _lifetime(stored, segments, held_place, long, rules, base)
        choice = least(segments, held_place, rates, reach)
        if choice.last < 0 and rates.automatic_read is not None:
            return alone
        if own.parts:
            reached = [n for n, each in enumerate(found) if each.part <= max(own.parts)]
            choice = replace(choice, last=max(choice.last, *reached[-1:]))
            base = replace(base, stored=[Stored(page.keys[n], lives[0], round(page.ends[n] / ratio)) for n in own.parts])
        return _marks(page, found, stored, choice, held_place, reach, rules, base, own)

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


class Own(NamedTuple):
    """What the client has marked itself: parts with its marks, how many more there may be, and behind which part."""

    parts: Sequence[int] = ()
    free: int = 4
    behind: int = -1


def _clients_own(page: Page, rules: CacheRules) -> Own | None:
    """None: what the client asked for stands as it is, since nothing may be or need be added to it."""
    if "prompt_cache_options" in page.spans:
        return None
    mark = b'"%s"' % (rules.mark or "").encode()
    if rules.mark in page.spans:
        return None
    if not page.marked or rules.mark is None or mark not in page.body:
        return Own(free=rules.most_marks)
    free = rules.most_marks - page.body.count(mark)
    if rules.ends_are_marked or free <= 0:
        return None
    parts = [n for n, part in enumerate(page.parts) if part.block.marked and mark in page.body[part.start : part.end]]
    long = [n for n in parts if _LONG.search(page.body, page.parts[n].start, page.parts[n].end)]
    return Own(parts, free, max(long, default=-1)) if parts else None


def _marks(
    page: Page, found: Sequence[Place], all_stored: Sequence[Stored], choice: Choice, held: int, reach: int, rules: CacheRules,
    base: Planned, own: Own,
) -> Planned:  # fmt: skip
    """Marks at the chosen places, or the word that nothing is to be stored. Before `reach` nothing would be."""
    lives = list(rules.lives.items())
    whole = choice.last == len(found) - 1
    automatic_end = rules.ends_are_marked and whole
    edits: list[Edit] = []
    stored: list[Stored] = list(base.stored)
    receipts = list(base.receipts)
    for index in _worth_a_mark(found, choice, held, own):
        name, life_s = lives[1 if index <= choice.last_long else 0]
        place = found[index]
        if index < reach:
            continue
        if automatic_end and index == choice.last and choice.last_long < index:
            stored.append(all_stored[index]._replace(life_s=life_s))
            continue
        edit = _edit(page, place, _mark(rules, name, default=name == lives[0][0]))
        if edit is None:
            continue
        edits.append(edit)
        stored.append(all_stored[index]._replace(life_s=life_s))
        receipts.append({"pass": "cache_mark", "place": _name(page, place), "before": "", "after": name})
    fields = marks.fields(page.body, page.spans, edits)
    if rules.ends_are_marked and not whole:
        fields["prompt_cache_options"] = b'{"mode":"explicit"}'
        receipts.append({"pass": "cache_mark", "place": "prompt_cache_options", "before": "", "after": "explicit"})
    return replace(
        base,
        fields={**base.fields, **{name: msgspec.Raw(value) for name, value in fields.items()}},
        receipts=receipts,
        stored=sorted(stored, key=attrgetter("tokens")),
        held=found[held].key if held >= 0 else 0,
    )


def _lifetime(
    stored: Sequence[Stored], segments: Sequence[Segment], held: int, rates: Rates, rules: CacheRules, base: Planned
) -> Planned:
    """The provider stores everything; only for how long can be chosen, and the short time need not be said."""
    short = next(iter(rules.lives))
    fresh = [(each.tokens, to_go(each.now, each.then, rates).stored) for each in segments[held + 1 :]]
    costs = [sum([tokens * cost[n] for tokens, cost in fresh]) for n in range(len(rates.writes))]
    asked = list(rules.lives)[costs.index(min(costs))]
    life_s = rules.lives[asked]
    read = stored[held].key if held >= 0 else 0
    base = replace(base, stored=[each._replace(life_s=life_s) for each in stored], held=read)
    if asked == short or rules.lifetime_field is None:
        return base
    receipt = {"pass": "cache_mark", "place": rules.lifetime_field, "before": "", "after": asked}
    value = msgspec.Raw(msgspec.json.encode({"mode": "implicit", "ttl": asked}))
    return replace(base, fields={**base.fields, rules.lifetime_field: value}, receipts=[*base.receipts, receipt])


def _worth_a_mark(found: Sequence[Place], choice: Choice, held: int, own: Own) -> list[int]:
    """Of the places up to the last that is stored, the ones that get the marks there are: the end, what is held, what is
    shared."""
    last = max(choice.last, held)
    if last < 0:
        return []
    rank = {index: _RANK.get(found[index].kind, 9) for index in range(last + 1)}
    for index, name in ((choice.last_long, "long"), (held, "held"), (last, "end")):
        if index >= 0:
            rank[index] = _RANK[name]
    may = [index for index in rank if found[index].part > own.behind and found[index].part not in own.parts]
    return sorted(sorted(may, key=lambda index: (rank[index], -index))[: own.free])


def _edit(page: Page, place: Place, mark: bytes) -> Edit | None:
    start, end, name, _, _ = page.parts[place.part]
    span = (start, end)
    if place.kind == "tools":
        return marks.on_last_tool(page.body, span, mark) if page.dialect == "anthropic_messages" else None
    if name == "system":
        whole = page.parts[place.part].item < 0
        return marks.on_content(page.body, span, mark, page.dialect) if whole else marks.on_block(page.body, span, mark)
    value = marks.content(page.body, span)
    return None if value is None else marks.on_content(page.body, value, mark, page.dialect, place.block)


def _mark(rules: CacheRules, life: str, *, default: bool) -> bytes:
    kind = b'"type":"ephemeral"' if rules.mark == MARK else b'"mode":"explicit"'
    ttl = b"" if default else b',"ttl":"%s"' % life.encode()
    return b'"%s":{%s%s}' % ((rules.mark or BREAKPOINT).encode(), kind, ttl)


def _name(page: Page, place: Place) -> str:
    """As a JSON Pointer; a content's last block is `-1`."""
    part = page.parts[place.part]
    if part.field == "tools":
        return "/tools/-1"
    return part.path if part.field == "system" else f"{part.path}/content/{place.block}"
