"""The life of one call, top to bottom.

    policy and class -> normalize -> prefix chain -> rank lanes -> for each lane in turn: hold, journal, attempt, settle

From the first attempt on every try leaves exactly one ledger entry, whatever happens; a call outlives its client.
"""
from __future__ import annotations

import hashlib
import hmac
import random
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from gateway import caching, deadlines, dialects
from gateway.admission import is_patient
from gateway.attempt import Attempt, Outcome, TryNext
from gateway.backends import media
from gateway.backends.engines.figures import Intent
from gateway.backends.engines.live import urgency
from gateway.backends.fleet import Target
from gateway.booking import Booking, Plan
from gateway.budgets import Refused
from gateway.core import levers
from gateway.core.call import Call, Tenant
from gateway.core.errors import (
    BadRequest,
    ContextLengthExceeded,
    Forbidden,
    GatewayError,
    ModelNotFound,
    Overloaded,
)
from gateway.dialects.parts import Conversation, assistant_text, conversation
from gateway.hedging import Race, Side
from gateway.holds import Holds, choices
from gateway.idempotency import HEADER
from gateway.lanes.traffic import Traffic, place_of
from gateway.lanes.trial import shadow_row
from gateway.missed import LEAST_TOKENS
from gateway.normalize import Normalized, View, idle, normalize, note
from gateway.prefix.chain import Chain, chain
from gateway.relay import Client
from gateway.services import Services
from router_policies.downgrade import downgraded
from router_policies.globs import first_match, globs
from router_policies.hedge import hedge, said
from router_policies.policy import decide
from router_policies.rules import Policy
from router_policies.types import Ask, Decision, Lane, Ranked

_BYTES_PER_TOKEN = 4
_DEFAULT_RETRY_S = 5.0
_CONTROL = bytes(range(32)) + b"\x7f"
_EXACT = 1e6
_HOUR_US = 3_600_000_000
DEADLINE = "x-tollway-deadline-ms"
_BACKOFF_S, _MAX_BACKOFF_S = 0.1, 2.0


class Pipeline:
    """Serves calls with one set of services."""

    def __init__(self, via: Services, holds: Holds) -> None:
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
        via.traffic.began(call.run)
        try:
            if call.sketch.previous_id is not None:
                await via.stored.recall(call.sketch.previous_id)
            plan = self.plan(call, policy)
            if HEADER in call.headers:
                await via.idempotency.once(call, client, lambda to: self._attempts(plan, policy, to, call))
            else:
                await self._attempts(plan, policy, client, call)
        finally:
            via.traffic.ended(call.run)

    def plan(self, call: Call, policy: Policy) -> Plan:
        """Everything that is decided before the first byte goes out; pure but for the memories it reads."""
        via, sketch, team = self._via, call.sketch, call.tenant.team
        _permit(call, policy)
        if not policy.client_may.set_tags:
            call = replace(call, tags={})
        cap = _output_cap(call, policy)
        if cap is not None:
            call = replace(call, sketch=replace(sketch, max_output_tokens=cap))
        model = policy.models.aliases.get(sketch.model, sketch.model)
        lanes = self._lanes(call, model)
        talk = conversation(team, model, call.body, sketch.parts)
        done = self._normalized(call, policy, model, lanes, talk)
        if done.body is not call.body:
            call = replace(call, body=done.body, sketch=replace(call.sketch, spans=done.spans, parts=done.parts))
        links = chain(team, model, done.parts, talk.id)
        prompt_tokens = max(len(call.body) // _BYTES_PER_TOKEN, 1)
        cached = self._cached(call, links, lanes)
        ask = _ask(call, prompt_tokens, cached, links.session, via.traffic, learnt=via.learnt is not None)
        decision = decide(policy, ask, lanes, via.learnt, via.traffic.forecast)
        for rule in decision.rule_errors:
            via.metrics.rule_failed(team, rule)
        if not decision.ranked:
            raise _nobody(decision, lanes, call.dialect if model in via.fleet.models else None)
        return Plan(
            call=call,
            decision=decision,
            changes=done.changes,
            chain=links,
            lanes_seen=self._seen(decision, ask, lanes),
            prompt_tokens=prompt_tokens,
            cached=cached,
            parts=done.parts,
            output_cap=cap,
        )

    def _lower(self, call: Call, policy: Policy, no: Refused) -> Plan:
        """The plan after a budget said no. Raises that no where nothing cheaper can take the call."""
        try:
            plan = self.plan(call, policy)
        except GatewayError as error:
            raise no from error
        reason = f"downgraded, for budget {no.rule.name} is spent: {plan.decision.reason}"
        return replace(plan, decision=plan.decision._replace(reason=reason))

    def _cached(self, call: Call, links: Chain, lanes: Sequence[Lane]) -> dict[str, int]:
        """Lane -> tokens of this prompt that its pool should hold; an engine of one's own keeps its answers too."""
        via, team, pools = self._via, call.tenant.team, dict[str, int]()
        short = len(lanes) < 2 and len(call.body) < LEAST_TOKENS  # nothing to choose, and a token has a byte at least
        for lane in lanes:
            if lane.backend not in pools:
                own = via.fleet.targets[lane.key].cache_salt
                if short and not own:
                    pools[lane.backend] = 0
                    continue
                said = (lambda n: assistant_text(call.body, links.parts[n])) if own else None
                pools[lane.backend] = via.index.predict(
                    team, lane.backend, links, call.at_us, said, call.body if own else None
                )
        return {lane.key: pools[lane.backend] for lane in lanes}

    def _seen(self, decision: Decision, ask: Ask, lanes: tuple[Lane, ...]) -> tuple[Mapping[str, Any], ...]:
        """Every lane's figures, and what a shadow policy would have done."""
        via, seen = self._via, _lanes_seen(decision)
        candidates = via.policies.current.candidates
        shadow = via.trials.shadow(via.policies.current, ask.team) if candidates else None
        return seen if shadow is None else (*seen, shadow_row(decide(shadow, ask, lanes, via.learnt, via.traffic.forecast)))

    def _lanes(self, call: Call, model: str) -> tuple[Lane, ...]:
        """The lanes that can serve this dialect; for a call that goes on from a stored answer, those of its backend."""
        via, lanes, earlier = self._via, self._via.fleet.lanes(call.dialect), call.sketch.previous_id
        if earlier is None:
            return lanes
        backend = via.stored.backend(earlier, call.tenant.team, param="previous_response_id")
        serving = [lane for lane in lanes if model in lane.models]
        own = [lane for lane in serving if via.fleet.road(lane.key, call.dialect).dialect == call.dialect]
        return tuple([lane for lane in own if lane.backend == backend] or own or lanes)

    def _normalized(
        self, call: Call, policy: Policy, model: str, lanes: Sequence[Lane], talk: Conversation
    ) -> Normalized:
        rules, via, sketch, team = policy.normalize, self._via, call.sketch, call.tenant.team
        parts = sketch.parts
        bypass = policy.client_may.bypass_normalize and "normalize" in call.headers.get("x-tollway-bypass", "")
        if rules.level == "off" or bypass:
            return Normalized(call.body, sketch.spans, parts, ())
        held = levers.held("normalize", team, talk.id, rules.hold_out)
        arms = [note(levers.arms(talk.id, {"normalize": held}))] if rules.hold_out and talk.id else []
        if held or idle(rules.level, sketch.spans, call.headers):
            return Normalized(call.body, sketch.spans, parts, arms)
        view = View(
            domain=team,
            level=rules.level,
            dialect=call.dialect,
            model=model,
            body=call.body,
            spans=sketch.spans,
            order=dialects.order(call.dialect),
            parts=parts,
            talk=talk,
            switches=rules.passes,
            headers=call.headers,
            native=lambda: any(via.fleet.road(one.key, call.dialect).native for one in lanes if model in one.models),
        )
        done = normalize(via.forms, view)
        return Normalized(done.body, done.spans, done.parts, [*arms, *done.changes]) if arms else done

    async def _attempts(self, plan: Plan, policy: Policy, client: Client, call: Call, number: int = 0) -> None:
        """Walks the ranking until a lane answers; it is never ranked again. Lanes that only want a moment may be asked anew."""
        settings, last = self._via.settings, None
        tries: Sequence[Ranked] = plan.decision.ranked[: settings.max_attempts]
        deadline = self._deadline(plan, policy)
        race: Race | None = None
        for turn in range(1 + settings.retries):
            again: list[Ranked] = []
            for ranked in tries:
                if (race is not None and ranked.lane.key == race.asked) or not self._may_try(plan, ranked, number, deadline):
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
                    await self._attempts(self._lower(call, lower, no), lower, client, call, number - 1)
                    return
                except TryNext as refusal:
                    last = refusal
                    again += [ranked] if refusal.again else []
                except BadRequest as error:  # what this lane's dialect cannot say, another's may
                    last = last if number > 1 and last is not None else TryNext(error)
                number += race is not None and number == 1 and race.asked is not None
            last = last or TryNext(Overloaded("no lane can take the call right now"))
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

    async def _hedged(self, plan: Plan, policy: Policy, ranked: Ranked, race: Race, deadline: float | None) -> None:
        """The first attempt, and another beside it where the first is silent and that is worth what it costs."""
        call = plan.call
        found = hedge(plan.decision, ranked, stream=call.sketch.stream, siblings=self._via.traffic.siblings(call.run))
        if found is None:
            await self._attempt(plan, policy, ranked, 1, race.client, deadline)
            return
        second = found.second
        reason = f"{plan.decision.reason}; {said(found, ranked)}"
        beside = replace(plan, decision=plan.decision._replace(reason=reason))

        def may() -> bool:
            race.asked = second.lane.key if self._may_try(plan, second, 1, deadline) else None
            return race.asked is not None

        await race.run(
            found.after_s, lambda side: self._attempt(plan, policy, ranked, 1, side, deadline), may,
            lambda side: self._attempt(beside, policy, second, 2, side, deadline),
        )  # fmt: skip

    def _deadline(self, plan: Plan, policy: Policy) -> float | None:
        """By when (monotonic) the call must be answered; see `deadlines.py`."""
        headers, klass = plan.call.headers, plan.decision.klass
        asked = _number(headers.get(DEADLINE)) if DEADLINE in headers and policy.client_may.set_deadline else None
        if klass.total_deadline_ms is None and asked is None and deadlines.HEADER not in headers:
            return None
        allowed_s = deadlines.allowed_s(headers, klass.total_deadline_ms, asked)
        if allowed_s is None:
            return None
        return time.monotonic() + allowed_s - (time.time_ns() // 1_000 - plan.call.at_us) / 1e6

    def _may_try(self, plan: Plan, ranked: Ranked, made: int, deadline: float | None) -> bool:
        """Whether the next attempt may go there: time is left, the lane is not being left alone, and of further tries the
        backend has seen few."""
        now, fleet = time.monotonic(), self._via.fleet
        if made and deadline is not None and now > deadline - deadlines.LEAST_S:
            return False
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
        booking = Booking(
            plan=plan, via=via, number=number, id=f"{plan.call.id}-{number}", ranked=ranked, target=target,
            predicted_read_tokens=predicted,
        )
        set_fields = dict(target.set_fields)
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
            headers=_answer_headers(plan, ranked),
            stop_on_hang_up=policy.hang_up == "cancel" or isinstance(client, Side),
            keepalive_s=via.settings.keepalive_ms / 1e3,
            deadline=deadline,
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
        async with caching.together(
            via.planner, booking.planned, plan.call.at_us, plan.decision.klass, policy.cache.fan_out_wait_ms
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
        booking.hold, limit, booking.stretch = await self._holds.take(
            plan.call, policy, ranked, target, booking.id, len(request), first=booking.number == 1, deadline=attempt.deadline
        )
        attempt.stretch = booking.stretch
        if limit is not None:
            set_fields[dialects.limit_field(target.dialect, ranked.upstream_model)] = limit
            request = attempt.request()
        booking.sent = request
        await booking.open()
        if plan.call.sketch.stream:
            via.progress.began(booking.id, lambda: attempt.outcome.produced, booking.renew)
        try:
            await attempt.run(request, via.upstream, client)
        finally:
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


def _permit(call: Call, policy: Policy) -> None:
    limits, models = policy.limits, call.tenant.models
    if models and first_match(globs(models), call.sketch.model) is None:
        raise Forbidden(f"this key may not use the model {call.sketch.model[:100]!r}")
    if limits.max_body_bytes is not None and len(call.body) > limits.max_body_bytes:
        raise BadRequest(f"the body has {len(call.body)} bytes, the team's policy allows {limits.max_body_bytes}")
    if (answers := choices(call)) > (limits.max_choices or answers):
        raise BadRequest(f"the team's policy allows at most {limits.max_choices} answers a call", param="n")
    asked = call.sketch.max_output_tokens
    if limits.max_output_tokens is not None and asked is not None and asked > limits.max_output_tokens:
        raise BadRequest(f"the team's policy allows at most {limits.max_output_tokens} output tokens", param="max_tokens")


def _output_cap(call: Call, policy: Policy) -> int | None:
    """The policy's limit for a call that generates and names none itself."""
    generates = call.dialect in dialects.TRANSLATED
    return policy.limits.max_output_tokens if generates and call.sketch.max_output_tokens is None else None


def _ask(
    call: Call, prompt_tokens: int, cached: Mapping[str, int], session: str, traffic: Traffic, *, learnt: bool
) -> Ask:
    sketch, gap_s = call.sketch, None
    if learnt:
        place = place_of(call.tenant.team, call.tenant.key_id, call.run, call.client, sketch.model)
        gap_s = traffic.turns.gap_s(place, call.at_us / 1e6, prompt_tokens)
    return Ask(
        team=call.tenant.team,
        project=call.tenant.project or "",
        model=sketch.model,
        path=call.path,
        headers=call.headers,
        stream=sketch.stream,
        tags=call.tags,
        client=call.client,
        has_tools=sketch.has_tools,
        prompt_bytes=len(call.body),
        prompt_tokens=prompt_tokens,
        max_output_tokens=sketch.max_output_tokens,
        wished_class=call.headers.get("x-tollway-class"),
        wished_tier=sketch.service_tier,
        deadline_ms=_number(call.headers.get(DEADLINE)),
        hour=call.at_us // _HOUR_US % 24,
        cached=cached,
        session=session,
        draw=traffic.draw(),
        in_run=call.run is not None,
        gap_s=gap_s,
        siblings=traffic.siblings(call.run),
    )


def _number(text: str | None) -> float | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= 86_400_000:
        raise BadRequest("x-tollway-deadline-ms must be a whole number of milliseconds, at most a day")
    return float(text)


def _nobody(decision: Decision, lanes: tuple[Lane, ...], unspoken: str | None) -> GatewayError:
    """Why no lane can serve, as the caller should see it. `unspoken`: the dialect, if the model is there for others."""
    model = decision.model
    serving = [lane.key for lane in lanes if model in lane.models]
    if not serving and unspoken is not None:
        return BadRequest(f"the model {model[:100]!r} is not served at {dialects.DIALECTS[unspoken].PATH}", param="model")
    if not serving:
        text = f"the model {model[:100]!r} does not exist here; GET /v1/models lists what there is"
        return ModelNotFound(text, param="model")
    if decision.denied is not None:
        return Forbidden(f"{decision.denied}; the team's policy file says which are")
    reasons = {no.lane.key: no for no in decision.refused if no.lane.key in serving}
    text = "; ".join(f"{key}: {no.reason}" for key, no in reasons.items())
    by = {no.by for no in reasons.values()}
    if by <= {"context_fits"}:
        return ContextLengthExceeded(f"the prompt is too long for {model}: {text}", param="messages")
    if by & {"healthy", "has_room"}:
        return Overloaded(f"no lane can take the call right now: {text}", retry_after_s=_DEFAULT_RETRY_S)
    return Forbidden(f"the team's policy leaves no lane for this call: {text}")


def _lanes_seen(decision: Decision) -> tuple[dict[str, Any], ...]:
    """Every lane's figures as they stood, for `tollway why`."""
    ranked = [
        {
            "lane": one.lane.key,
            "expected_cost_usd": _cut(one.expected_cost_usd, 1e9),
            "expected_wait_s": _cut(one.expected_wait_s, 1e4),
            "sum_usd": _cut(one.score_usd, 1e9),
            "miss_chance": _cut(one.miss_chance, 1e4),
            "note": one.note or None,
            **({"rent_usd": _cut(one.rent_usd, 1e9)} if one.rent_usd else {}),
        }
        for one in decision.ranked
    ]
    return (*ranked, *[{"lane": no.lane.key, "refused": no.reason} for no in decision.refused])


def _cut(figure: float, steps: float) -> float:
    """To the nearest of so many steps to one; cheaper than `round`, for every lane of every call."""
    return int(figure * steps + 0.5) / steps if 0.0 <= figure < _EXACT else round(figure, 9)


def _answer_headers(plan: Plan, ranked: Ranked) -> list[tuple[bytes, bytes]]:
    decision, lane = plan.decision, ranked.lane
    return [
        (b"x-tollway-call", plan.call.id.encode("ascii")),
        (b"x-tollway-backend", _header_safe(lane.backend)),
        (b"x-tollway-lane", _header_safe(lane.name)),
        (b"x-tollway-class", _header_safe(decision.class_name)),
        (b"x-tollway-reason", _header_safe(decision.reason)),
    ]


@lru_cache(1_024)
def _header_safe(text: str) -> bytes:
    return text.encode("ascii", "replace").translate(None, _CONTROL)[:1000]
