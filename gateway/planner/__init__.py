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
from gateway.planner.ahead import beginning, written
from gateway.planner.answers import Answers
from gateway.planner.arrivals import Arrivals
from gateway.planner.asking import Laid, Own, at_marks, clients_own, for_lifetime, with_lifetime
from gateway.planner.bets import Bets
from gateway.planner.caches import CacheRules, rules_of
from gateway.planner.choice import DOUBT, DOUBT_OF_SHARED, Choice, Odds, Rates, Segment, least
from gateway.planner.cohorts import Cohorts, Leader, Others
from gateway.planner.habit import has_a_habit, of_habit, stored_by_habit, whole, would_read
from gateway.planner.heads import Head, Heads
from gateway.planner.held import Held, Seen, Writing, name_of
from gateway.planner.keys import CacheKeys
from gateway.planner.likely import hopeful, sure
from gateway.planner.places import Page, Place, places
from gateway.planner.reuse import DOUBTS, PRIORS, WARY, Came, Chance, ReuseBook, Whose
from gateway.planner.terms import Terms
from gateway.planner.values import SHARED, Asked, Asker, Backend, Planned, Sight, Stored, Warm

__all__ = ["Asker", "Backend", "Page", "Planned", "Planner", "RatesOf", "rules_of"]

_log = logging.getLogger("tollway")
_SLOW_S = 300.0
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
    writing: Writing = field(default_factory=Writing)
    seen: Seen = field(default_factory=Seen)
    keys: CacheKeys = field(default_factory=CacheKeys)
    cohorts: Cohorts = field(default_factory=Cohorts)
    heads: Heads = field(default_factory=Heads)
    arrivals: Arrivals = field(default_factory=Arrivals)
    others: Others | None = None
    """Cohorts of all processes; None: this one is alone."""
    answers: Answers = field(default_factory=Answers)
    bets: Bets = field(default_factory=Bets)
    _bytes_per_token: dict[str, float] = field(default_factory=dict)

    def plan(self, page: Page, asker: Asker, backend: Backend, now_us: int, *, first: bool = True) -> Planned | None:
        """What to set; None: nothing. `first`: the call's first attempt, from which reuse is learnt. Never raises."""
        rules = rules_of(backend.provider, backend.model, page.dialect)
        if rules is None or not page.keys:
            return None
        try:
            planned = self._plan(Asked(page, asker, backend, rules, now_us, first, _whose(page, asker, backend.model, rules)))
        except (BadRequest, msgspec.MsgspecError, ValueError, KeyError, IndexError, TypeError) as error:
            _log.warning("no cache plan for a request: %s: %s", type(error).__name__, error)
            return None
        if self.others is None or planned is None or not planned.stored or not rules.writes_wait:
            return planned
        deepest = self.held.deepest(planned.pool, page.keys, now_us)
        return planned if deepest < 0 else replace(planned, held_tokens=round(page.ends[deepest] / self._ratio(backend)))

    def learn(
        self, planned: Planned, *, read_tokens: int | None, input_tokens: int, at_us: int,
        written: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        """The answer came: what was planned is stored, `at_us` being when the call came. `written`: tokens by
        lifetime; None: it is not known."""
        if planned.stake is not None and read_tokens is not None and written is not None and input_tokens > 0:
            self.bets.settle(planned.stake, input_tokens, read_tokens, written)
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

    def head(self, page: Page, backend: Backend) -> Head | None:
        """What stands before the user's first words, where that is long enough to be stored apart."""
        rules, first = rules_of(backend.provider, backend.model, page.dialect), page.opening
        if rules is None or not rules.objects or not first:
            return None
        tokens = round(page.ends[first - 1] / self._ratio(backend))
        return Head(name_of(backend.pool, page.keys[first - 1]), tokens, first) if tokens >= rules.minimum_tokens else None

    def ahead(self, page: Page, backend: Backend, lifetime: str) -> Planned | None:
        """What a call sets that only has its beginning stored, for that long; None: it cannot be asked for."""
        rules = rules_of(backend.provider, backend.model, page.dialect)
        own = None if rules is None or not rules.silent or not page.keys else clients_own(page, rules)
        if rules is None or own is None:
            return None
        base = Planned(fields={}, receipts=(), pool=backend.pool, rules=rules, model=backend.model, end_bytes=page.ends[-1])
        return written(page, rules, own, self._ratio(backend), lifetime, base)

    def cold(self, planned: Planned, now_us: int) -> list[Stored]:
        """The prefixes of a call that are to be written, in rendered order, where a burst would write each of them often."""
        if not planned.rules.writes_wait:
            return []
        return [each for each in planned.stored if not self.held.has(planned.pool, each.key, now_us)]

    def writer(self, planned: Planned) -> tuple[Leader, Stored] | None:
        """Who is writing the longest prefix that this call shares, and which that is."""
        if planned.rules.writes_wait and len(self.cohorts):
            for each in reversed(planned.stored):
                leader = self.cohorts.writer(name_of(planned.pool, each.key))
                if leader is not None:
                    return leader, each
        return None

    def worth_asking(self, planned: Planned, cold: Sequence[Stored]) -> bool:
        """Whether other processes may be writing, or want to read, what this call writes: more than a turn's own words."""
        if self.others is None or not cold:
            return False
        read = max([each.tokens for each in planned.stored if each not in cold], default=0)
        return cold[-1].tokens - max(read, planned.held_tokens) >= planned.rules.minimum_tokens

    def lead(self, planned: Planned, now_us: int) -> Leader:
        """Leads for the prefixes that nobody has stored and nobody is writing."""
        names = [name_of(planned.pool, each.key) for each in self.cold(planned, now_us)]
        if planned.rules.automatic_read:
            self.writing.tell(names, now_us)
        return self.cohorts.lead(names)

    def _plan(self, asked: Asked) -> Planned | None:
        page, backend, rules = asked.page, asked.backend, asked.rules
        base = Planned(fields={}, receipts=(), pool=backend.pool, rules=rules, model=backend.model, end_bytes=page.ends[-1])
        if rules.key and "prompt_cache_key" not in page.spans:
            session = (page.session or str(page.keys[page.opening])).encode()
            app = asked.asker.domain.encode("utf-8", "replace") + page.beginning
            key = self.keys.key(app, session, asked.now_us).decode()
            receipt = {"pass": "cache_key", "place": "prompt_cache_key", "before": "", "after": key}
            base = replace(base, fields={"prompt_cache_key": msgspec.Raw(msgspec.json.encode(key))}, receipts=[receipt])
        own, rates = clients_own(page, rules), self._rates(backend, rules)
        if own is not None and rates is not None:
            if own.parts:
                # a long lifetime may not stand behind a short one, and with marks the automatic cache is out of reach
                rates = replace(rates, writes=rates.writes[:1], automatic_read=None)
            base = replace(base, saving_usd=(rates.writes[0] - rates.read) * rates.input_usd)
            base = self._stored(asked, own, rates, base)
            if base.stake is not None:
                self.bets.enter(base.stake)
        return base if base.fields or base.stored or base.stake else None

    def _stored(self, asked: Asked, own: Own, rates: Rates, base: Planned) -> Planned:
        """What is to be stored, and how it is asked for."""
        page, rules = asked.page, asked.rules
        if rules.mark is None and rules.lifetime_field is None:
            return self._together(asked, base)
        sight = self._sight(asked)
        laid = self._laid(asked, own, sight)
        if laid is None:
            return base
        segments = self._segments(asked, laid)
        terms = self._terms(asked, laid, rates, sight)
        if rules.lifetime_field:
            may = laid.held < 0 or laid.held_long  # what stands behind something short-lived goes with it
            choice = terms.kept(for_lifetime(laid, segments, rates), self.bets) if may else terms.short
            return with_lifetime(laid, choice, terms.entered(base, choice))
        alone, elsewhere, short = base, 0, next(iter(rules.lives.values()))
        if rates.automatic_read is not None:
            pool = f"{base.pool}\0automatic"  # the automatic cache is one of its own
            saving = (1.0 - rates.automatic_read) * rates.input_usd
            alone = replace(base, pool=pool, stored=self._whole(asked, laid, short), saving_usd=saving)
            elsewhere = self._readable(asked, self.held.deepest(pool, page.keys, asked.now_us))
            alone = terms.entered(alone, by_habit=elsewhere == terms.read)
            terms.with_marks(self.bets, self._readable(asked, sight.came.deepest) if sight.came.waited_s <= short else 0)
            if laid.held < 0 and (
                (sight.under_way and sight.came.waited_s <= short)
                or any([self._is_coming(pool, each.key, asked.now_us) for each in alone.stored])
            ):
                return alone  # it is there, or about to be, and a prompt with marks does not read it
        best = least(segments, laid.held, rates, laid.reach, held_long=laid.held_long, elsewhere=elsewhere)
        choice = terms.covered(best, self.bets, segments[-1].now.within[0], under_way=sight.under_way)
        if choice.last < 0 and rates.automatic_read is not None:
            return alone
        return self._marked(asked, laid, choice, rates, terms.entered(base, choice), sight)

    def _readable(self, asked: Asked, deepest: int) -> int:
        """Tokens that are read where a cache has the prompt up to that part (-1: nothing), as the provider counts them."""
        rules, end_bytes = asked.rules, asked.page.ends[deepest] if deepest >= 0 else 0
        tokens = round(end_bytes / self._ratio(asked.backend)) // rules.step_tokens * rules.step_tokens
        return tokens if tokens >= rules.minimum_tokens else 0

    def _terms(self, asked: Asked, laid: Laid, rates: Rates, sight: Sight) -> Terms:
        """What the call would cost without plans, by what the provider would have stored so far."""
        rules, read = asked.rules, 0
        if has_a_habit(rules):
            read = self._would_read(asked, "habit", stored_by_habit(asked, laid, self._ratio(asked.backend)))
        habit = of_habit(rules, rates, laid.tokens[-1], read)
        terms = Terms(asked, laid, rates, habit, read, sure(asked.page, laid, sight))
        if rules.lifetime_field:
            terms.tried(self.bets, self._would_read(asked, "long", self._whole(asked, laid, list(rules.lives.values())[-1])))
        return terms

    def _would_read(self, asked: Asked, name: str, stored: Sequence[Stored]) -> int:
        """Tokens."""
        return self._readable(asked, would_read(self.held, f"{asked.backend.pool}\0{name}", asked, stored))

    def _is_coming(self, pool: str, key: int, now_us: int) -> bool:
        """Whether a call is writing it right now, of this process, or of another as far as is known."""
        name = name_of(pool, key)
        return self.cohorts.writer(name) is not None or self.writing.has(name, now_us)

    def _whole(self, asked: Asked, laid: Laid, life_s: float) -> list[Stored]:
        return whole(asked, laid, self._ratio(asked.backend), life_s)

    def _marked(
        self, asked: Asked, laid: Laid, choice: Choice, rates: Rates, base: Planned, sight: Sight
    ) -> Planned:
        page, lives = asked.page, list(asked.rules.lives.values())
        if laid.own.parts:
            reached = [n for n, each in enumerate(laid.places) if each.part <= max(laid.own.parts)]
            choice = replace(choice, last=max(choice.last, *reached[-1:]))
            ratio = self._ratio(asked.backend)
            base = replace(base, stored=[Stored(page.keys[n], lives[0], round(page.ends[n] / ratio)) for n in laid.own.parts])
        planned = at_marks(laid, choice, base)
        if not asked.rules.silent:
            return planned
        warm, begins = None, None
        if planned.stored:
            size = laid.tokens[-1] - (laid.tokens[-2] if len(laid.tokens) > 1 else 0)
            chance = self.reuse.chance(sight.end_kind, asked.whose, size)
            surer = laid.tokens[laid.held] if laid.held_long else 0
            warm = _warm(planned.stored, surer, lives, rates, chance)
        if asked.first and page.opening == len(page.parts) - 1:
            all_rates = self._rates(asked.backend, asked.rules) if laid.own.parts else rates
            begins = None if all_rates is None else beginning(laid, all_rates, base.pool)
        return replace(planned, warm=warm, beginning=begins)

    def _sight(self, asked: Asked) -> Sight:
        """What was seen of this prompt before; from a call's first attempt it is learnt that it has come."""
        page, now_us = asked.page, asked.now_us
        came = self.reuse.came(page.keys, now_us) if asked.first else Came()
        held = self.held.deepest(asked.backend.pool, page.keys, now_us)
        under_way = max(came.deepest, held) >= page.opening
        goes_on = self.seen.talk(page.session, now_us) if asked.first else False  # though what it said before may have changed
        end_kind = "opening" if not (under_way or goes_on) else "slow" if came.waited_s > _SLOW_S else "turn"
        return Sight(came, held, under_way, end_kind)

    def _laid(self, asked: Asked, own: Own, sight: Sight) -> Laid | None:
        """None: no place of it would be stored."""
        page, backend, rules, now_us = asked.page, asked.backend, asked.rules, asked.now_us
        sent = self.seen.deepest(page.keys) if asked.first else -1
        found = places(page, sight.end_kind, sight.held, sent, marked=not rules.lifetime_field)
        found = [replace(place, kind="often") if _came_often(place, sight.came) else place for place in found]
        ratio = self._ratio(backend)
        tokens = [round(place.end_bytes / ratio) for place in found]
        if asked.first:
            inner = [place.key for place in found if place.block >= 0]
            if inner:
                self.reuse.came(inner, now_us)
            for place, size in zip(found, _sizes(tokens), strict=True):
                self.reuse.wait_for(place.key, place.kind, asked.whose, size, now_us)
        held = self._held_place(backend.pool, asked, found)
        if rules.writes_wait and (len(self.cohorts) or len(self.writing)):  # what is being written is waited for
            writing = [n for n, place in enumerate(found) if self._is_coming(backend.pool, place.key, now_us)]
            held = max([held, *writing])
        held_long = held >= 0 and self.held.life_s(backend.pool, found[held].key) > next(iter(rules.lives.values()))
        reach = next((n for n, end in enumerate(tokens) if end >= rules.minimum_tokens), None)
        return None if reach is None else Laid(page, rules, own, found, tokens, held, held_long, reach, sent)

    def _segments(self, asked: Asked, laid: Laid) -> list[Segment]:
        lives, segments = list(asked.rules.lives.values()), []
        for place, size in zip(laid.places, _sizes(laid.tokens), strict=True):
            now = then = self._odds(place.kind, asked.whose, size, lives)
            if place.kind in _THEN:
                then = self._odds(_THEN[place.kind], asked.whose, size, lives)
            # one lifetime for all: there is no part to doubt more
            surer = place.kind in SHARED or asked.rules.lifetime_field
            segments.append(Segment(size, now, then, DOUBT_OF_SHARED if surer else DOUBT))
        return segments

    def _ratio(self, backend: Backend) -> float:
        """Bytes a token."""
        return self._bytes_per_token.get(backend.model, _BYTES_PER_TOKEN)

    def _odds(self, kind: str, whose: Whose, tokens: int, lives: Sequence[float]) -> Odds:
        chance = self.reuse.chance(kind, whose, tokens)
        return Odds(tuple([chance.within(life) for life in lives]), chance.ever)

    def _together(self, asked: Asked, base: Planned) -> Planned:
        """Nothing can be asked for; what the provider stores by itself matters only to calls that come together."""
        ratio, life_s = self._ratio(asked.backend), next(iter(asked.rules.lives.values()))
        found = places(asked.page, "opening", -1)
        stored = [Stored(place.key, life_s, round(place.end_bytes / ratio)) for place in found]
        return replace(base, stored=[each for each in stored if each.tokens >= asked.rules.minimum_tokens])

    def _held_place(self, pool: str, asked: Asked, found: Sequence[Place]) -> int:
        """Index of the last of these places up to which that cache has the prompt; -1: none."""
        held = self.held.deepest(pool, asked.page.keys, asked.now_us)
        for n in range(len(found) - 1, -1, -1):
            place = found[n]
            if place.part < held or (place.part == held and place.block < 0):
                return n
            if place.block >= 0 and self.held.has(pool, place.key, asked.now_us):
                return n
        return -1

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


def _sizes(tokens: Sequence[int]) -> list[int]:
    """Of each piece, from the tokens up to its end."""
    return [end - before for before, end in zip([0, *tokens], tokens)]  # noqa: B905 - one more before than ends


def _whose(page: Page, asker: Asker, model: str, rules: CacheRules) -> Whose:
    """Where the provider stores nothing unasked, requests that say nothing for themselves are a client of their own."""
    doubtful = not has_a_habit(rules) and not hopeful(page)
    prior = DOUBTS if doubtful else WARY if rules.automatic_read else PRIORS
    return Whose(_name_of(asker, model, "?" if doubtful else ""), str(page.keys[0]), prior)


@lru_cache(4_096)
def _name_of(asker: Asker, model: str, kind: str) -> str:
    """A client in a name that may be told to other processes."""
    named = "\0".join((asker.domain, asker.client, model)).encode("utf-8", "replace")
    return blake2b(named, digest_size=8).hexdigest() + kind


def _came_often(place: Place, came: Came) -> bool:
    """Whether what came again there had come again before."""
    return place.kind == "again" and came.kinds.get(place.key) in ("again", "often")
