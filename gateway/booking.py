"""Turns one attempt's outcome into its ledger entry, and tells everybody who has to know.

Order matters: the journal first, then the hold, then what may be lost (forecasts, figures, metrics). The entry is made when
the attempt is opened, as it would be booked if the process died then; settling it fills in what came of it.
"""
from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway import caching, late, objects
from gateway.attempt import Outcome
from gateway.backends.fields import receipt
from gateway.backends.fleet import Target
from gateway.budgets import Hold
from gateway.core import clock
from gateway.core.call import Call
from gateway.core.entry import Entry
from gateway.core.errors import NotBooked, Overloaded
from gateway.core.money import usd
from gateway.core.part import NOTHING, Attached, Part
from gateway.core.usage import TokenUsage
from gateway.lanes.traffic import place_of
from gateway.lanes.trial import missed as missed_deadline
from gateway.ledger.journal import JournalError
from gateway.metering import meter
from gateway.metering.prices import Offer
from gateway.metering.served import tier_of, with_lifetimes
from gateway.missed import LEAST_TOKENS, Answered
from gateway.normalize import Change
from gateway.planner import Planned
from gateway.prefix.chain import Chain
from gateway.services import Services
from gateway.stretch import Stretch, renew
from gateway.warming import Where
from router_policies.scorers.expected_wait import prefill_s
from router_policies.types import Decision, Ranked, Rates

_STORING = "openai_responses"
_COOLING = frozenset({429, 503, 529})
_STOPPED = frozenset({"client_gone", "lost"})
"""Ended from our side, which says nothing about the lane."""
_FINE = frozenset({"ok", "lost"})
_CACHE_TTL_S = 300.0
_OWN_CACHE_TTL_S = 86_400.0
_NOT_YET = TokenUsage()
_UNDER_WAY = Entry(
    id="", call_id="", attempt=0, at_us=0, team="", key_id="", dialect="", stream=False, model="", upstream_model="",
    backend="", provider="", lane="", latency_class="", policy_version="", reason="", status="orphaned", tokens_from="estimate",
)  # fmt: skip
"""What all attempts have in common before they are settled. It is filled in by steps: a call with more than fifteen names
costs four times as much."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided for a call: everything its attempts have in common."""

    call: Call
    decision: Decision
    changes: Sequence[Change]
    chain: Chain
    lanes_seen: tuple[Mapping[str, Any], ...]
    prompt_tokens: int
    """Estimate, before anything was counted."""
    cached: Mapping[str, int]
    """Lane -> tokens of this prompt that its cache should hold."""
    attached: Attached = NOTHING
    parts: Sequence[Part] = ()
    """The prompt's parts in rendered order; the chain is over them."""
    output_cap: int | None = None
    """The policy's limit, where the call names none of its own."""


class Booking(msgspec.Struct, kw_only=True):
    """One attempt on its way into the ledger; `settle` is what `Attempt` calls before its last byte."""

    plan: Plan
    via: Services
    number: int
    id: str
    ranked: Ranked
    target: Target
    predicted_read_tokens: int
    sent: bytes = b""
    """The request's body as it went out, for what only it shows."""
    left_out: Sequence[str] = ()
    """The client's fields that an engine of one's own does not get."""
    planned: Planned | None = None
    """What it asks of the provider's cache."""
    hold: Hold | None = None
    stretch: Stretch | None = None
    in_flight: bool = False
    opened: Entry | None = None
    entry: Entry | None = None

    def open(self) -> None:
        """OPEN in the journal: should the process die, this is what will be booked. Raises `Overloaded` if it takes nothing."""
        self.opened = self._opened()
        try:
            self.via.journal.open_attempt(self.opened)
        except JournalError as error:
            if self.hold is not None:
                self.via.budgets.post(self.hold, 0)
            refusal = Overloaded("the journal cannot be written, so no new call is taken", retry_after_s=5)
            refusal.code = "journal_full"
            raise refusal from error
        self.via.fleet.probes[self.target.key].in_flight += 1
        self.in_flight = True

    async def settle(self, outcome: Outcome) -> Sequence[tuple[bytes, bytes]]:
        """Books the attempt; returns the headers that tell its tokens and cost. Raises `NotBooked` where the journal's disk is
        broken, or too slow for the call's deadline: then nothing more of the answer may go out."""
        if self.entry is not None:
            return ()
        if self.in_flight:
            self.via.fleet.probes[self.target.key].in_flight -= 1
            self.in_flight = False
        if self.stretch is not None:
            self.hold = self.stretch.hold
        observed = outcome.observed
        metered = meter.told(observed.usage) or await self._estimated(outcome)
        if metered.tokens.cache_write:
            metered = replace(metered, tokens=with_lifetimes(self.target.provider, metered.tokens, self.sent))
        entry = self._entry(outcome, metered)
        if self._over(entry.cost_nanos):
            entry = replace(entry, tokens=replace(entry.tokens, flags=(*entry.tokens.flags, "over_hold")))
            self.via.metrics.over_hold(entry.team)
        self.entry = entry
        try:
            safe = await self._appended(entry, outcome.book_by_s)
        except JournalError as error:
            if self.hold is not None:
                self.via.budgets.post(self.hold, entry.cost_nanos)
            text = "the answer cannot be booked safely, so it is not given out; the operator's log says why"
            raise NotBooked(text) from error
        prompt_tokens = entry.tokens.input_total
        if observed.pending and observed.response_id:
            await late.keep(self.via, observed.response_id, entry, self.hold)
        elif self.hold is not None:
            used = prompt_tokens + (entry.tokens.output or 0) if entry.tokens.known else None
            self.via.budgets.post(self.hold, entry.cost_nanos, used)
        self._tell(outcome, entry, prompt_tokens)
        if not safe and outcome.status == "ok":
            raise NotBooked("the answer could not be booked safely before the call's deadline, so it is not given out")
        return headers_of(entry)

    async def _appended(self, entry: Entry, by_s: float | None) -> bool:
        """Writes the entry; whether the disk had it by then. If not it will have it all the same, unless the power fails."""
        if by_s is None:
            await self.via.ledger.append(entry)
            return True
        try:
            async with asyncio.timeout(max(by_s - time.monotonic(), 0.0)):
                await self.via.ledger.append(entry)
        except TimeoutError:
            return False
        return True

    async def renew(self) -> None:
        """The stream goes on: its hold is still needed."""
        await renew(self.via.budgets, self.hold if self.stretch is None else self.stretch.hold)

    def _over(self, cost_nanos: int | None) -> bool:
        """Whether more was spent than had been held."""
        hold = self.hold
        return hold is not None and cost_nanos is not None and cost_nanos > hold.amount_nanos and bool(hold.slots)

    async def _estimated(self, outcome: Outcome) -> meter.Metered:
        if outcome.observed.pending:
            return meter.Metered(_NOT_YET, "none")
        return await meter.weigh(
            outcome.observed,
            status=outcome.status,
            sent=outcome.sent or outcome.http_status is not None,
            prompt_tokens=self.plan.prompt_tokens,
            produced=outcome.produced,
            model=self.ranked.upstream_model,
        )

    def _opened(self) -> Entry:
        plan, target = self.plan, self.target
        call, decision, tenant = plan.call, plan.decision, plan.call.tenant
        asked = replace(
            _UNDER_WAY, id=self.id, call_id=call.id, attempt=self.number, at_us=call.at_us, team=tenant.team,
            project=tenant.project, key_id=tenant.key_id, client=call.client, session=plan.chain.session or None,
            dialect=call.dialect, stream=call.sketch.stream, model=call.sketch.model,
        )  # fmt: skip
        if call.run is not None or call.subgoal is not None or call.parent_run is not None or call.tags:
            asked = replace(asked, run=call.run, parent_run=call.parent_run, subgoal=call.subgoal, tags=call.tags)
        return replace(
            asked, upstream_model=self.ranked.upstream_model, backend=target.backend, provider=target.provider,
            lane=target.lane, latency_class=decision.klass.name, policy_version=decision.policy_version,
            reason=decision.reason, decision=plan.lanes_seen, receipts=self._receipts(),
            predicted_read_tokens=self.predicted_read_tokens, tokens=TokenUsage(uncached=plan.prompt_tokens),
            held_nanos=self._held,
        )  # fmt: skip

    def _receipts(self) -> tuple[Mapping[str, Any], ...]:
        """What became of the request on its way: normalized, left out, asked of a cache."""
        dropped = [receipt(self.left_out)] if self.left_out else []
        planned = self.planned.receipts if self.planned else ()
        return (*[change.receipt for change in self.plan.changes], *dropped, *planned)

    @property
    def _held(self) -> int | None:
        """What budgets count if no cost is told."""
        return self.hold.amount_nanos if self.hold is not None and self.hold.slots else None

    def _entry(self, outcome: Outcome, metered: meter.Metered) -> Entry:
        observed, target, tokens = outcome.observed, self.target, metered.tokens
        tier = observed.served_tier or target.set_fields.get("service_tier") or target.priced_as
        tier = tier_of(target.provider, tier, self.sent)
        status, cost, uncached_cost, rows = outcome.status, 0, 0, ()
        if tokens.known:
            model = observed.served_model or self.ranked.upstream_model
            offer = Offer(target.provider, model, tier, observed.region or target.region, target.batch)
            priced = self.via.prices.price(offer, tokens, self.plan.call.at_us)
            cost, uncached_cost, rows = priced.cost_nanos, priced.uncached_cost_nanos, priced.rows  # type: ignore[assignment]
            if cost is None and status == "ok":
                status = "unpriced"
        elif status in ("ok", "sent_unanswered") or observed.response_id:  # begun, so it may have been billed
            cost, uncached_cost, status = None, None, "unpriced" if status == "ok" else status  # type: ignore[assignment]
        return replace(
            self.opened or self._opened(),
            served_model=observed.served_model,
            served_tier=tier,
            status=status,
            http_status=outcome.http_status,
            error=outcome.error[:500] if outcome.error else None,
            first_token_ms=None if outcome.first_token_s is None else _ms(outcome.first_token_s),
            total_ms=_ms(outcome.total_s),
            tokens=tokens,
            tokens_from=metered.source,
            cost_nanos=cost,
            held_nanos=self._held if cost is None and not observed.pending else None,
            uncached_cost_nanos=uncached_cost,
            price_rows=rows,
        )

    def _rates(self) -> Rates:
        served = self.ranked.lane.models.get(self.plan.decision.model)
        return Rates() if served is None else served.rates

    def _tell(self, outcome: Outcome, entry: Entry, prompt_tokens: int) -> None:
        """Everybody who has to know how it went."""
        via, policies = self.via, self.via.policies.current
        self._tell_lane(outcome, entry)
        if policies.candidates:
            missed_it = missed_deadline(self.plan.decision, outcome.status in _FINE, entry.first_token_ms, entry.total_ms)
            via.trials.saw(policies, entry.team, entry.policy_version, entry.cost_nanos, missed_it)
        told = entry.tokens_from == "provider" and outcome.http_status == 200
        if told and (prompt_tokens >= LEAST_TOKENS or self.target.cache_salt or self.planned is not None):
            self._tell_caches(outcome, entry, prompt_tokens)
        if self.target.dialect == _STORING and outcome.observed.response_id:
            tokens = prompt_tokens + (entry.tokens.output or 0)
            via.stored.keep(outcome.observed.response_id, entry.team, entry.backend, tokens)
        via.metrics.attempt(entry, outcome.first_token_s, outcome.total_s)

    def _tell_lane(self, outcome: Outcome, entry: Entry) -> None:
        """Whether the lane answers, and how quickly."""
        via, target, tokens = self.via, self.target, entry.tokens
        probe = via.fleet.probes[target.key]
        if outcome.status == "ok":
            learnt = probe.answered(
                uncached_tokens=tokens.uncached, output_tokens=tokens.output, total_s=outcome.total_s,
                first_token_s=outcome.first_token_s if entry.stream else None, backlog_s=self.ranked.lane.backlog_s,
            )  # fmt: skip
            via.fleet.answered(target.key)
            if via.learnt is not None:
                place = place_of(entry.team, entry.key_id, entry.run, entry.client, entry.model, entry.session)
                via.traffic.turns.answered(place, entry.at_us / 1e6 + entry.total_ms / 1e3, self.plan.prompt_tokens)
            if learnt:
                via.traffic.answered(entry.team, self.plan.decision.model, entry.latency_class, tokens.output)
        elif outcome.http_status in _COOLING:
            probe.cool(f"answered {outcome.http_status}", outcome.retry_after_s)
            via.fleet.stale()
        elif not (outcome.status in _STOPPED or outcome.by_deadline) and (outcome.http_status or 500) >= 500:
            probe.failed(outcome.error or outcome.status)
            via.fleet.stale()

    def _tell_caches(self, outcome: Outcome, entry: Entry, prompt_tokens: int) -> None:
        """What of the prompt is in a cache now: told by the provider's own count."""
        via, target, tokens = self.via, self.target, entry.tokens
        chain, ttl_s, now_us = self.plan.chain, _ttl_s(target), clock.now_us()
        answer = None
        if target.cache_salt and outcome.produced is not None and outcome.status == "ok":
            answer = outcome.produced().encode("utf-8", "replace"), tokens.output or 0
        via.index.learn(
            entry.team, target.pool, chain, prompt_tokens, now_us, ttl_s, cached=tokens.cache_read, answer=answer,
            body=self.plan.call.body if target.cache_salt else None,
        )
        if target.pool in via.live.feeds:
            via.kv.learnt(entry.team, target.pool, chain, self.plan.call.body)
        via.misses.remember(
            Answered(
                id=entry.id, at_us=entry.at_us, domain=entry.team, chain=chain, model=entry.upstream_model,
                body=self.plan.call.body, pool=target.pool, provider=target.provider, tokens=prompt_tokens,
                read=tokens.cache_read, ttl_s=ttl_s, rates=self._rates(), diagnosis=outcome.observed.diagnosis,
            )
        )  # fmt: skip
        if (planned := self.planned) is None:
            return
        caching.learn(via.planner, planned, tokens, entry.at_us)
        call, where = self.plan.call, Where(target.backend, target.lane)
        if planned.diagnosed:
            via.planner.answers.keep(target.pool, chain.session, outcome.observed.response_id)
        if planned.head is not None:
            objects.came(
                via.planner, planned, planned.head, call, self.plan.parts, target, self.ranked.upstream_model,
                tokens.cache_read,
            )  # fmt: skip
        if planned.warm is not None:
            via.warmer.note(call, chain.session, where, planned)
        if planned.beginning is not None:
            wait_s = prefill_s(self.ranked.lane, planned.beginning.tokens)
            via.pre_warmer.note(call, where, planned, wait_s, self.plan.decision.klass.value_usd_per_s)


def _ms(seconds: float) -> float:
    """Milliseconds, to the microsecond."""
    return int(seconds * 1e6 + 0.5) / 1e3


def _ttl_s(target: Target) -> float:
    return _OWN_CACHE_TTL_S if target.cache_salt else _CACHE_TTL_S


def headers_of(entry: Entry) -> list[tuple[bytes, bytes]]:
    """`x-tollway-cost-usd` and `x-tollway-tokens`: always its four classes; what was not reported counts as none there. Neither
    where nothing is known yet."""
    tokens, cost = entry.tokens, usd(entry.cost_nanos)
    if cost is None and not tokens.known:
        return []
    told = b"uncached=%d,cached=%d,written=%d,output=%d" % (
        tokens.uncached or 0, tokens.cache_read or 0, tokens.written if tokens.cache_write else 0, tokens.output or 0
    )  # fmt: skip
    if cost is None:
        return [(b"x-tollway-tokens", told)]
    return [(b"x-tollway-tokens", told), (b"x-tollway-cost-usd", cost.encode("ascii"))]
