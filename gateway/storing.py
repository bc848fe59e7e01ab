"""Stores fixed beginnings of prompts as objects at a provider that rents storage (Gemini's `cachedContents`), where that is
worth it (`planner/heads.py`), extends them while it is, and deletes them when nobody may pay any more.

Off unless a team's policy says what it may cost a day. Making an object is an entry at the input price, each stretch of its
storage another (tier `storage`), both with the client and tag `stored_prefix`, paid from the team's budgets and from one of its
own. Storage is booked as it is granted, a quarter of an hour at a time. Calls read an object by `fields_of`; a provider that
does not know it any more is asked again without (`Attempt.refused`).
"""
from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import orjson
from msgspec.structs import replace as with_fields

from gateway import objects
from gateway.backends.fleet import Target
from gateway.backends.http import Stop
from gateway.backends.upstream import Broken, Unanswered, read
from gateway.budgets import Hold
from gateway.core import clock
from gateway.core.background import Background
from gateway.core.call import Call
from gateway.core.entry import Entry
from gateway.core.errors import GatewayError
from gateway.core.ids import new_id
from gateway.core.outcome import Status, TokensFrom
from gateway.core.usage import TokenUsage
from gateway.metering.charge import Priced
from gateway.metering.prices import Offer
from gateway.objects import Latest
from gateway.planner.heads import LEAST, Known, Rent, Stored
from gateway.services import Services
from gateway.stands import Stands
from gateway.warming import TAG, apart
from router_policies.rules import Policy

NAME, TIER = "stored_prefix", "storage"
LIFE_S, RENEW_S, _EVERY_S = 900.0, 60.0, 1.0
_COMPATIBLE = "/openai"
"""How Gemini's OpenAI-compatible address ends; objects are made at the one before it."""
_HOLD_US = 120_000_000
_log = logging.getLogger("tollway.storing")


_Bill = tuple[TokenUsage, str | None]
"""Tokens, and the tier whose price they have."""


class _Asked(NamedTuple):
    """`made`: whether something is computed, not only stored for longer."""

    method: str
    path: str
    body: dict[str, Any]
    made: bool = False


class Storing(Background):
    """One per process. What is stored when it is closed ends by itself: other processes may know of it."""

    task_name = "storing"

    def __init__(self, via: Services) -> None:
        self._via, self._heads, self._stands = via, via.planner.heads, Stands()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            if self._heads.known:
                await self.turn(clock.now_us())

    async def turn(self, now_us: int) -> None:
        """Makes, extends and deletes what is due."""
        for name, known in list(self._heads.known.items()):
            if known.latest is None:
                continue
            try:
                await self._look(name, known, now_us)
            except GatewayError as error:
                _log.info("a prefix is not stored: %s", error)
            except Exception:  # nobody waits for it
                _log.exception("a prefix could not be stored")

    async def _look(self, name: int, known: Known, now_us: int) -> None:
        latest: Latest = known.latest
        stored = self._heads.stored.get(name)
        if stored is not None and stored.until_us <= now_us:
            self._heads.keep(name, None)
            stored = None
        if stored is None and known.misses(now_us) < LEAST:
            return
        policy = self._via.policies.current.for_team(latest.call.tenant.team)
        if policy.cache.store_usd_per_day <= 0:
            if stored is not None:
                await self._delete(name, latest.target, stored)
            return
        rent = self._rent(latest, now_us)
        due = stored is None or stored.until_us - now_us < RENEW_S * 1e6
        if rent is None or not due or not known.worth(rent, now_us, new=stored is None):
            return
        if stored is None:
            await self._make(name, known, policy, now_us)
        else:
            await self._extend(name, known, policy, stored, now_us)

    def _rent(self, latest: Latest, now_us: int) -> Rent | None:
        """None: a price is not known."""
        target = latest.target
        rates = self._via.prices.rates(Offer(target.provider, latest.model, target.priced_as), now_us)
        hour = self._priced(latest, _storage(1_000_000, 3_600), TIER, now_us).cost_nanos
        if rates is None or hour is None or rates.uncached is None or rates.cached is None:
            return None
        return Rent((rates.uncached - rates.cached) / 1e12, hour / 1e15, rates.uncached / 1e12)

    async def _make(self, name: int, known: Known, policy: Policy, now_us: int) -> None:
        latest: Latest = known.latest
        made = objects.made_of(latest) if latest.target.base.endswith(_COMPATIBLE) else None
        asked = None if made is None else _Asked("POST", "/cachedContents", {**made, "ttl": f"{LIFE_S:.0f}s"}, made=True)
        body = None if asked is None else await self._paid(known, policy, asked, now_us)
        if body is None or not isinstance(stored := body.get("name"), str):
            known.latest = None  # another look when it has been missed as often again
            known.missed_us.clear()
        else:
            self._heads.keep(name, Stored(stored, now_us + int(LIFE_S * 1e6)))

    async def _extend(self, name: int, known: Known, policy: Policy, stored: Stored, now_us: int) -> None:
        ttl = {"ttl": f"{(stored.until_us - now_us) / 1e6 + LIFE_S:.0f}s"}
        body = await self._paid(known, policy, _Asked("PATCH", f"/{stored.object}?updateMask=ttl", ttl), now_us)
        self._heads.keep(name, None if body is None else Stored(stored.object, stored.until_us + int(LIFE_S * 1e6)))

    async def _delete(self, name: int, target: Target, stored: Stored) -> None:
        self._heads.keep(name, None)
        await self._send(target, _Asked("DELETE", f"/{stored.object}", {}))

    async def _paid(self, known: Known, policy: Policy, asked: _Asked, now_us: int) -> dict[str, Any] | None:
        """One request that costs something: held, journalled, sent and booked. The answer; None: the provider said no.
        Raises `GatewayError`: a budget has no room, or there was no answer."""
        via, latest = self._via, known.latest
        policy = apart(policy, NAME, policy.cache.store_usd_per_day)
        call = with_fields(
            latest.call, id=new_id("call_", now_us), client=NAME, tags={TAG: NAME}, at_us=now_us, run=None, parent_run=None,
            subgoal=None,
        )  # fmt: skip
        entries = self._entries(latest, call, policy, known.tokens, asked)
        held = sum([entry.cost_nanos or 0 for entry in entries])
        accounts = self._stands.accounts(policy, call, latest.model)
        hold = await via.budgets.hold(accounts, held, f"{call.id}-1", _HOLD_US, ())
        status: Status = "failed"
        try:
            for entry in entries:
                via.journal.open_attempt(entry)
            http, answer = await self._send(latest.target, asked)
            if http >= 300:
                _log.info("the provider does not store a prefix: %s", answer[:200])
                return None
            status, body = "ok", orjson.loads(answer)
            told = body.get("usageMetadata", {}).get("totalTokenCount")
            if type(told) is int and told > 0:
                known.tokens = told
                entries = self._entries(latest, call, policy, told, asked, "provider")
            return dict(body)
        except (Unanswered, Broken):
            status = "sent_unanswered"  # it may have been done, and would be billed
            raise
        finally:
            await self._book(entries, status, hold)

    async def _book(self, entries: Sequence[Entry], status: Status, hold: Hold) -> None:
        spent = 0
        for entry in entries:
            if status == "failed":
                entry = with_fields(entry, cost_nanos=0, uncached_cost_nanos=0, tokens=TokenUsage(uncached=0, output=0))
            await self._via.ledger.append(with_fields(entry, status=status))
            spent += entry.cost_nanos or 0
        self._via.budgets.post(hold, spent)

    async def _send(self, target: Target, asked: _Asked) -> tuple[int, bytes]:
        """Status and body, from the address beside the compatible one. Raises `UpstreamError`."""
        key = b"" if target.secret is None else target.secret.reveal().encode()
        headers = [(b"content-type", b"application/json"), (b"accept-encoding", b"identity"), (b"x-goog-api-key", key)]
        native = replace(target, base=target.base.removesuffix(_COMPATIBLE)).at(asked.path)
        body, stop = msgspec.json.encode(asked.body), Stop()
        answer = await self._via.upstream.send(native, body, headers, stop, asked.method)
        try:
            return answer.status, await read(answer, stop)
        finally:
            await answer.aclose()

    def _priced(self, latest: Latest, usage: TokenUsage, tier: str | None, now_us: int) -> Priced:
        target = latest.target
        offer = Offer(target.provider, latest.model, tier or target.priced_as, target.region)
        return self._via.prices.price(offer, usage, now_us)

    def _entries(
        self, latest: Latest, call: Call, policy: Policy, tokens: int, asked: _Asked, tokens_from: TokensFrom = "estimate"
    ) -> list[Entry]:
        """One for what was computed, if it was, and one for its storage."""
        made = [(TokenUsage(uncached=tokens, output=0), None)] if asked.made else []
        return [
            self._entry(latest, call, policy, f"{call.id}-{n}", bill, tokens_from)
            for n, bill in enumerate([*made, (_storage(tokens, LIFE_S), TIER)], 1)
        ]

    def _entry(
        self, latest: Latest, call: Call, policy: Policy, name: str, bill: _Bill, tokens_from: TokensFrom
    ) -> Entry:  # fmt: skip
        target, tenant, (usage, tier) = latest.target, call.tenant, bill
        priced = self._priced(latest, usage, tier, call.at_us)
        return Entry(
            id=name, call_id=call.id, attempt=int(name.rpartition("-")[2]), at_us=call.at_us, team=tenant.team,
            project=tenant.project, key_id=tenant.key_id, client=NAME, tags=call.tags, dialect=call.dialect, stream=False,
            model=call.sketch.model, upstream_model=latest.model, backend=target.backend, provider=target.provider,
            lane=target.lane, served_tier=tier, latency_class="batch", policy_version=policy.version,
            reason="a fixed beginning that many calls share is stored", status="orphaned", tokens=usage,
            tokens_from=tokens_from, cost_nanos=priced.cost_nanos, uncached_cost_nanos=priced.uncached_cost_nanos,
            price_rows=priced.rows,
        )  # fmt: skip


def _storage(tokens: int, seconds: float) -> TokenUsage:
    return TokenUsage(uncached=0, output=0, other={"stored_token_hours": -(-tokens * int(seconds) // 3_600)})
