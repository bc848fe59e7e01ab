"""The life of one call, top to bottom.

    plan (`planning.py`) -> for each lane in turn: hold, journal, attempt, settle

From the first attempt on every try leaves exactly one ledger entry, whatever happens; a call outlives its client.
"""
from __future__ import annotations

import hashlib
import hmac
import random
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from msgspec.structs import replace

from gateway import caching, deadlines, dialects
from gateway.admission import is_patient
from gateway.attempt import Attempt, DeadlineExceeded, Outcome, TryNext
from gateway.backends import media
from gateway.backends.engines.figures import Intent
from gateway.backends.engines.live import urgency
from gateway.backends.fields import told
from gateway.backends.fleet import Target
from gateway.booking import Booking, Plan, headers_of
from gateway.budgets import Refused
from gateway.core.call import Call, Tenant
from gateway.core.errors import BadRequest, GatewayError, Overloaded
from gateway.fan_out import together
from gateway.hedging import Race, Side
from gateway.holds import Asked, Holds
from gateway.idempotency import HEADER
from gateway.planning import DEADLINE, Planning, milliseconds
from gateway.relay import Client
from gateway.services import Services
from router_policies.downgrade import downgraded
from router_policies.hedge import hedge, said
from router_policies.rules import Policy
from router_policies.types import Ranked

_CONTROL = bytes(range(32)) + b"\x7f"
_BACKOFF_S, _MAX_BACKOFF_S = 0.1, 2.0


class Pipeline:
    """Serves calls with one set of services."""

    def __init__(self, via: Services, holds: Holds) -> None:
        self.planning = Planning(via)
        self._via = via
        self._holds = holds

    def patient(self, tenant: Tenant, headers: Mapping[str, str]) -> bool:
        """Whether nobody waits for a call, as far as its head tells."""
        return is_patient(self._via.policies.current.for_team(tenant.team), headers.get("x-tollway-class"))

    async def serve(self, call: Call, client: Client, policy: Policy | None = None) -> None:
        """Answers one call through `client`. Raises `GatewayError` only if nothing has been sent out. `policy`: in place of the
        team's, for what decides by a part of it."""
        via = self._via
        policy = policy or via.trials.policy(via.policies.current, call.tenant.team, call.run or call.id)
        if call.run is not None:
            via.traffic.began(call.run)
        try:
            if call.sketch.previous_id is not None:
                await via.stored.recall(call.sketch.previous_id)
            plan = self.planning.plan(call, policy)
            if HEADER in call.headers:
                await via.idempotency.once(call, client, lambda to: self._attempts(plan, policy, to, call))
            else:
                await self._attempts(plan, policy, client, call)
        finally:
            if call.run is not None:
                via.traffic.ended(call.run)

    async def _attempts(self, plan: Plan, policy: Policy, client: Client, call: Call, number: int = 0) -> None:
        """Walks the ranking until a lane answers; it is never ranked again. Lanes that only want a moment may be asked anew."""
        settings, last = self._via.settings, None
        tries: Sequence[Ranked] = plan.decision.ranked[: settings.max_attempts]
        deadline = self._deadline(plan, policy, client)
        race: Race | None = None
        for turn in range(1 + settings.retries):
            again: list[Ranked] = []
            left, anew = [*reversed(tries)], False
            while left:
                ranked, may, anew = left.pop(), anew, False
                if race is not None and ranked.lane.key == race.asked:
                    continue
                if not (may or self._may_try(plan, ranked, number, deadline)):
                    continue
                number += 1
                try:
                    if number == 1 and plan.decision.klass.hedge:
                        race = Race(client, drain=policy.hang_up == "drain")
                        await self._hedged(plan, policy, ranked, race, deadline)
                    else:
                        await self._attempt(plan, policy, ranked, number, client, deadline)
                    return
                except Refused as no:
                    lower = downgraded(policy, no.rule.name, call.sketch.model)
                    if lower is None:
                        raise
                    await self._attempts(self.planning.lower(call, lower, no), lower, client, call, number - 1)
                    return
                except TryNext as refusal:
                    last, anew = refusal, refusal.anew
                    if anew:
                        left.append(ranked)
                    elif refusal.again:
                        again.append(ranked)
                except BadRequest as error:  # what this lane's dialect cannot say, another's may
                    last = last if number > 1 and last is not None else TryNext(error)
                number += race is not None and number == 1 and race.asked is not None
            last = last or TryNext(self._resting(plan.decision.ranked))
            wait_s = _wait_s(last, turn, settings.max_retry_wait_ms / 1e3)
            if wait_s is not None and deadline is not None and time.monotonic() + wait_s > deadline - deadlines.LEAST_S:
                break
            if not again or wait_s is None or turn == settings.retries or client.gone:
                break
            tries = again
            await client.pause(wait_s)
        if client.gone or last is None:
            return
        if last.answer is None:
            raise last.error
        status, body, headers = last.answer
        await client.respond(status, [*headers, (b"x-should-retry", b"false")], body)

    def _resting(self, lanes: Sequence[Ranked]) -> Overloaded:
        """Where none of them may be asked now, with the time until one may."""
        now = time.monotonic()
        rest_s = min([self._via.fleet.probes[one.lane.key].rest_s(now) for one in lanes], default=0.0)
        return Overloaded("no lane can take the call right now", retry_after_s=rest_s)

    async def _hedged(self, plan: Plan, policy: Policy, ranked: Ranked, race: Race, deadline: float | None) -> None:
        """The first attempt, and another beside it where the first is silent and that is worth what it costs."""
        call = plan.call
        found = hedge(plan.decision, ranked, stream=call.sketch.stream, siblings=self._via.traffic.siblings(call.run))
        if found is None:
            await self._attempt(plan, policy, ranked, 1, race.client, deadline)
            return
        second = found.second
        reason = f"{plan.decision.reason}; {said(found, ranked)}"
        beside = replace(plan, decision=replace(plan.decision, reason=reason))

        def may() -> bool:
            race.asked = second.lane.key if self._may_try(plan, second, 1, deadline) else None
            return race.asked is not None

        await race.run(
            found.after_s, lambda side: self._attempt(plan, policy, ranked, 1, side, deadline), may,
            lambda side: self._attempt(beside, policy, second, 2, side, deadline),
        )  # fmt: skip

    def _deadline(self, plan: Plan, policy: Policy, client: Client) -> float | None:
        """By when (monotonic) the call must be answered; see `deadlines.py`. Its time runs from when its bytes came to this
        machine, though the loop may have come to them late."""
        headers, klass = plan.call.headers, plan.decision.klass
        asked = milliseconds(headers.get(DEADLINE)) if DEADLINE in headers and policy.client_may.set_deadline else None
        if klass.total_deadline_ms is None and asked is None and deadlines.HEADER not in headers:
            return None
        allowed_s = deadlines.allowed_s(headers, klass.total_deadline_ms, asked)
        if allowed_s is None:
            return None
        arrived_s = client.arrived_s()
        return min(plan.call.came_s, plan.call.came_s if arrived_s is None else arrived_s) + allowed_s

    def _may_try(self, plan: Plan, ranked: Ranked, made: int, deadline: float | None) -> bool:
        """Whether the next attempt may go there: time is left, the lane is not being left alone, and of further tries the
        backend has seen few. Raises `DeadlineExceeded` if there is no time for a first one."""
        now, fleet = time.monotonic(), self._via.fleet
        if deadline is not None and deadlines.too_late(now, plan.call.came_s, deadline):
            if made:
                return False
            raise DeadlineExceeded("the call's deadline passed before a model backend could be asked")
        if not fleet.probes[ranked.lane.key].admit(now):
            return False
        budget = fleet.retries[ranked.lane.backend]
        if made:
            return budget.take(now)
        budget.call(now, again_by_client=plan.call.headers.get("x-stainless-retry-count", "0") != "0")
        return True

    async def _attempt(
        self, plan: Plan, policy: Policy, ranked: Ranked, number: int, client: Client, deadline: float | None
    ) -> None:
        via, target, model = self._via, self._via.fleet.road(ranked.lane.key, plan.call.dialect), ranked.upstream_model
        predicted = plan.cached[ranked.lane.key]
        left = target.left_out(plan.call.dialect, plan.call.body, plan.call.sketch.spans)
        booking = Booking(
            plan=plan, via=via, number=number, id=f"{plan.call.id}-{number}", ranked=ranked, target=target,
            predicted_read_tokens=predicted, left_out=left,
        )
        set_fields = {**dict.fromkeys(left), **target.set_fields}
        if via.live.watches or target.cache_salt:
            booking.target = target = via.live.prepare(target, self._intent(plan, target), set_fields)
        if plan.output_cap is not None:
            set_fields[dialects.limit_field(target.dialect, model)] = plan.output_cap
        attempt = Attempt(
            call=plan.call,
            target=target,
            upstream_model=model,
            set_fields=set_fields,
            settle=client.settling(booking.settle) if isinstance(client, Side) else booking.settle,
            headers=_answer_headers(plan, ranked, left),
            stop_on_hang_up=policy.hang_up == "cancel" or isinstance(client, Side),
            keepalive_s=via.settings.keepalive_ms / 1e3,
            deadline=deadline,
            late_s=lambda: via.admission.late_s,
        )
        if target.data_only:
            media.check(plan.call.body, plan.parts)
        booking.planned = caching.plan(
            via.planner, policy, plan.call, plan.parts, plan.chain, target, model,
            render=attempt.request, first=number == 1,
        )  # fmt: skip
        if booking.planned is None:
            await self._send(plan, policy, ranked, booking, attempt, set_fields, client)
            return
        set_fields.update(booking.planned.fields)
        if booking.planned.object is not None and booking.planned.head is not None:
            attempt.refused = partial(via.planner.heads.keep, booking.planned.head.name, None)
        async with together(
            via.planner, booking.planned, plan.call.at_us, plan.decision.klass, policy.cache.fan_out_wait_ms, deadline
        ) as attempt.begun:
            await self._send(plan, policy, ranked, booking, attempt, set_fields, client)

    def _intent(self, plan: Plan, target: Target) -> Intent:
        """What an engine of one's own is told beside the prompt."""
        tenant, klass = plan.call.tenant, plan.decision.klass
        return Intent(
            salt=cache_salt(self._via.salt, tenant.team) if target.cache_salt else None,
            urgency=urgency(klass.value_usd_per_hour), session=plan.chain.session, team=tenant.team, objective=klass.name,
        )  # fmt: skip

    async def _send(
        self, plan: Plan, policy: Policy, ranked: Ranked, booking: Booking, attempt: Attempt, set_fields: dict[str, Any],
        client: Client,
    ) -> None:
        via, target = self._via, booking.target
        request = attempt.request()
        reads_object = booking.planned is not None and booking.planned.object is not None
        size = len(request) + len(plan.call.body) * reads_object  # what is read there is paid for, and travels no more
        asked = Asked(booking.id, plan.call, ranked, target, size, plan.attached, booking.number == 1, attempt.deadline)
        booking.hold, limit, booking.stretch = await self._holds.take(policy, asked)
        attempt.stretch = booking.stretch
        if limit is not None:
            set_fields[dialects.limit_field(target.dialect, ranked.upstream_model)] = limit
            request = attempt.request()
        booking.sent = request
        booking.open()
        stream = plan.call.sketch.stream
        if stream:
            via.progress.began(booking.id, lambda: attempt.outcome.produced, booking.renew)
        try:
            await attempt.run(request, via.upstream, client)
        except (GatewayError, TryNext) as error:
            what = error.error if isinstance(error, TryNext) else error
            what.headers = [*attempt.headers, *(headers_of(booking.entry) if booking.entry else ())]
            raise
        finally:
            if stream:
                via.progress.ended(booking.id)
            if booking.entry is None:  # a fault of ours: the attempt is booked all the same
                await booking.settle(Outcome(status="cut", error="the gateway failed on this call", sent=True))


def _wait_s(last: TryNext, turn: int, most_s: float) -> float | None:
    """How long to wait before asking again: what the backend says, else a little at random; None if that is too long."""
    if last.retry_after_s is not None:
        return last.retry_after_s if last.retry_after_s <= most_s else None
    return min(random.uniform(0, min(_BACKOFF_S * 2**turn, _MAX_BACKOFF_S)), most_s)


def cache_salt(secret: bytes, team: str) -> str:
    """What keeps the prefixes of teams apart in an engine of one's own."""
    return hmac.new(secret, f"cache_salt\0{team}".encode(), hashlib.sha256).hexdigest()[:32]


def _answer_headers(plan: Plan, ranked: Ranked, left_out: Sequence[str]) -> list[tuple[bytes, bytes]]:
    decision, lane = plan.decision, ranked.lane
    route = _route_headers(lane.backend, lane.name, decision.klass.name, decision.reason)
    dropped = [(b"x-tollway-dropped", told(left_out).encode("ascii"))] if left_out else []
    return [(b"x-tollway-call", plan.call.id.encode("ascii")), *route, *dropped]


@lru_cache(1_024)
def _route_headers(backend: str, lane: str, klass: str, reason: str) -> tuple[tuple[bytes, bytes], ...]:
    return (
        (b"x-tollway-backend", _header_safe(backend)),
        (b"x-tollway-lane", _header_safe(lane)),
        (b"x-tollway-class", _header_safe(klass)),
        (b"x-tollway-reason", _header_safe(reason)),
    )


def _header_safe(text: str) -> bytes:
    return text.encode("ascii", "replace").translate(None, _CONTROL)[:1000]
