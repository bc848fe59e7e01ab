"""Everything that is decided about a call before its first byte goes out: pure but for the memories it reads.

    what the policy permits -> normalize -> prefix chain -> what each lane's cache holds -> rank lanes

`decide` itself is the policies'; here stands what it is asked, and what is said where no lane can serve.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from msgspec.structs import replace

from gateway import dialects
from gateway.booking import Plan
from gateway.budgets import Refused
from gateway.core import levers
from gateway.core.call import Call, Tenant
from gateway.core.errors import BadRequest, ContextLengthExceeded, Forbidden, GatewayError, ModelNotFound, Overloaded
from gateway.core.part import Attached, Part
from gateway.dialects.attached import attached
from gateway.dialects.parts import Conversation, assistant_text, conversation
from gateway.holds import choices
from gateway.lanes.traffic import Traffic, place_of
from gateway.lanes.trial import shadow_row
from gateway.metering import estimate
from gateway.missed import LEAST_TOKENS
from gateway.normalize import Normalized, View, idle, normalize, note
from gateway.prefix.chain import Chain, chain
from gateway.services import Services
from router_policies.globs import first_match, globs
from router_policies.policy import decide, resolve_model
from router_policies.rules import Limits, Policy
from router_policies.types import Ask, Decision, Lane, Ranked

DEADLINE = "x-tollway-deadline-ms"
_STORING, _STORED = "openai_responses", ("conversation", "prompt")
"""Fields that name what the provider keeps of a prompt."""
_OTHERS = "models"
"""OpenRouter's field for models that may answer instead."""
_DEFAULT_RETRY_S = 5.0
"""Where no lane says when it will take calls again."""
_SOON = frozenset({"healthy", "has_room"})
"""Filters whose no is for a moment."""
_EXACT = 1e6
_HOUR_US = 3_600_000_000


class Planning:
    """Makes plans with one set of services."""

    def __init__(self, via: Services) -> None:
        self._via = via

    def plan(self, call: Call, policy: Policy) -> Plan:
        """What to do for a call. Raises `GatewayError` where the policy does not permit it or no lane can serve."""
        via, sketch, team = self._via, call.sketch, call.tenant.team
        call = permitted(call, policy)
        cap = output_cap(call, policy)
        if cap is not None:
            call = replace(call, sketch=replace(sketch, max_output_tokens=cap))
        model = policy.models.aliases.get(sketch.model, sketch.model)
        lanes = self._lanes(call, model)
        talk = conversation(team, model, call.body, sketch.parts)
        done = self._normalized(call, policy, model, lanes, talk)
        if done.body is not call.body:
            call = replace(call, body=done.body, sketch=replace(call.sketch, spans=done.spans, parts=done.parts))
        links = chain(team, model, done.parts, talk.id)
        held = self._attached(call, done.parts)
        prompt_tokens = estimate.usual_input(len(call.body), held)
        others = policy.models.fallbacks.get(model)
        serving = [
            lane for lane in lanes if model in lane.models or (others and not lane.models.keys().isdisjoint(others))
        ]
        cached = self._cached(call, links, serving)
        ask = _ask(call, prompt_tokens, cached, links.session, via.traffic, learnt=via.learnt is not None)
        decision = decide(policy, ask, lanes, via.learnt, via.traffic.forecast)
        for rule in decision.rule_errors:
            via.metrics.rule_failed(team, rule)
        if not decision.ranked:
            now, probes = time.monotonic(), via.fleet.probes
            unspoken = call.dialect if model in via.fleet.models else None
            raise _nobody(decision, lanes, unspoken, lambda key: probes[key].rest_s(now))
        return Plan(
            call=call,
            decision=decision,
            changes=done.changes,
            chain=links,
            lanes_seen=self._seen(decision, ask, lanes),
            prompt_tokens=prompt_tokens,
            cached=cached,
            parts=done.parts,
            attached=held,
            output_cap=cap,
        )

    def _attached(self, call: Call, parts: Sequence[Part]) -> Attached:
        """What the prompt holds beside its text, what the provider has stored of the conversation among it."""
        held, earlier = attached(call.body, parts), call.sketch.previous_id
        if earlier is not None:
            tokens = self._via.stored.tokens(earlier)
            return held._replace(linked=held.linked + 1) if tokens is None else held._replace(earlier_tokens=tokens)
        if call.dialect != _STORING:
            return held
        spans = call.sketch.spans
        named = sum(name in spans and call.body[slice(*spans[name])] != b"null" for name in _STORED)
        return held._replace(linked=held.linked + named) if named else held

    def lower(self, call: Call, policy: Policy, no: Refused) -> Plan:
        """The plan after a budget said no. Raises that no where nothing cheaper can take the call."""
        try:
            plan = self.plan(call, policy)
        except GatewayError as error:
            raise no from error
        reason = f"downgraded, for budget {no.rule.name} is spent: {plan.decision.reason}"
        return replace(plan, decision=replace(plan.decision, reason=reason))

    def _cached(self, call: Call, links: Chain, lanes: Sequence[Lane]) -> dict[str, int]:
        """Lane -> tokens of this prompt that its pool should hold; an engine of one's own keeps its answers too. `lanes`: those
        that serve the model, or one that may stand in for it."""
        via, team = self._via, call.tenant.team
        if len(lanes) == 1 and len(call.body) < LEAST_TOKENS and not via.fleet.targets[lanes[0].key].cache_salt:
            return {lanes[0].key: 0}  # nothing to choose, and a token has a byte at least
        pools: dict[str, int] = {}
        for lane in lanes:
            if lane.backend not in pools:
                own = via.fleet.targets[lane.key].cache_salt
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


def permit_model(tenant: Tenant, model: str) -> None:
    """Raises `Forbidden` for a model that is not among those of the key."""
    if tenant.models and first_match(globs(tenant.models), model) is None:
        raise Forbidden(f"this key may not use the model {model[:100]!r}")


def said(call: Call, policy: Policy) -> Call:
    """The call without the words that the team's clients may not say."""
    return call if policy.client_may.set_tags or not call.tags else replace(call, tags={})


def permitted(call: Call, policy: Policy) -> Call:
    """The call as its client may say it. Raises `GatewayError` for what key or policy forbid, whoever would serve it."""
    permit_model(call.tenant, call.sketch.model)
    if _OTHERS in call.sketch.spans:
        _permit_others(call, policy)
    permit_size(policy.limits, len(call.body), choices(call), call.sketch.max_output_tokens)
    return said(call, policy)


def _permit_others(call: Call, policy: Policy) -> None:
    """Of the models that a request names to fall back on, each must be allowed too. Raises `Forbidden`, `BadRequest`."""
    try:
        named = orjson.loads(call.body[slice(*call.sketch.spans[_OTHERS])])
    except orjson.JSONDecodeError:
        raise BadRequest("models must be a list of names", param=_OTHERS) from None
    for model in named if isinstance(named, list) else ():
        if isinstance(model, str):
            permit_model(call.tenant, model)
            if (refusal := resolve_model(policy, model).refusal) is not None:
                raise Forbidden(refusal, param=_OTHERS)


def permit_size(limits: Limits, body_bytes: int, answers: int, output_tokens: int | None) -> None:
    """Raises `BadRequest` for what is more than the team's policy allows a call; `output_tokens`: as asked for, if at all."""
    if limits.max_body_bytes is not None and body_bytes > limits.max_body_bytes:
        raise BadRequest(f"the body has {body_bytes} bytes, the team's policy allows {limits.max_body_bytes}")
    if answers > (limits.max_choices or answers):
        raise BadRequest(f"the team's policy allows at most {limits.max_choices} answers a call", param="n")
    if limits.max_output_tokens is not None and output_tokens is not None and output_tokens > limits.max_output_tokens:
        raise BadRequest(f"the team's policy allows at most {limits.max_output_tokens} output tokens", param="max_tokens")


def output_cap(call: Call, policy: Policy) -> int | None:
    """The policy's limit for a call that generates and names none itself."""
    generates = call.dialect in dialects.TRANSLATED
    return policy.limits.max_output_tokens if generates and call.sketch.max_output_tokens is None else None


def _ask(
    call: Call, prompt_tokens: int, cached: Mapping[str, int], session: str, traffic: Traffic, *, learnt: bool
) -> Ask:
    sketch, headers, gap_s = call.sketch, call.headers, None
    if learnt:
        place = place_of(call.tenant.team, call.tenant.key_id, call.run, call.client, sketch.model, session)
        gap_s = traffic.turns.gap_s(place, call.at_us / 1e6, prompt_tokens)
    ask = Ask(
        team=call.tenant.team, project=call.tenant.project or "", model=sketch.model, path=call.path, headers=headers,
        stream=sketch.stream, tags=call.tags, client=call.client, has_tools=sketch.has_tools, prompt_bytes=len(call.body),
        prompt_tokens=prompt_tokens, cached=cached, session=session, hour=call.at_us // _HOUR_US % 24, draw=traffic.draw(),
    )  # fmt: skip
    return replace(  # in two steps: a call with more than fifteen names costs four times as much
        ask, max_output_tokens=sketch.max_output_tokens, wished_class=headers.get("x-tollway-class"),
        wished_tier=sketch.service_tier, deadline_ms=milliseconds(headers[DEADLINE]) if DEADLINE in headers else None,
        in_run=call.run is not None, gap_s=gap_s, siblings=0 if call.run is None else traffic.siblings(call.run),
    )  # fmt: skip


def milliseconds(text: str | None) -> float | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= 86_400_000:
        raise BadRequest("x-tollway-deadline-ms must be a whole number of milliseconds, at most a day")
    return float(text)


def _nobody(
    decision: Decision, lanes: tuple[Lane, ...], unspoken: str | None, rest_s: Callable[[str], float]
) -> GatewayError:
    """Why no lane can serve, as the caller should see it. `unspoken`: the dialect, if the model is there for others. `rest_s`:
    how long a lane is still left alone."""
    model = decision.model
    serving = [lane.key for lane in lanes if model in lane.models]
    if not serving and unspoken is not None and decision.denied is None:
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
    if not by.isdisjoint(_SOON):
        rests = [rest_s(key) if no.by == "healthy" else _DEFAULT_RETRY_S for key, no in reasons.items() if no.by in _SOON]
        return Overloaded(f"no lane can take the call right now: {text}", retry_after_s=min(rests))
    return Forbidden(f"the team's policy leaves no lane for this call: {text}")


def _lanes_seen(decision: Decision) -> tuple[dict[str, Any], ...]:
    """Every lane's figures as they stood, for `tollway why`."""
    return (
        *[_figures(one) for one in decision.ranked],
        *[{"lane": no.lane.key, "refused": no.reason} for no in decision.refused],
    )


def _figures(one: Ranked) -> dict[str, Any]:
    """To a nano-dollar, a tenth of a millisecond and a hundredth of a per cent; cheaper than `round`, for every lane of every
    call."""
    cost, wait, score, chance, rent = one.expected_cost_usd, one.expected_wait_s, one.score_usd, one.miss_chance, one.rent_usd
    if 0.0 <= cost < _EXACT and 0.0 <= wait < _EXACT and 0.0 <= score < _EXACT:
        cost, wait, score = int(cost * 1e9 + 0.5) / 1e9, int(wait * 1e4 + 0.5) / 1e4, int(score * 1e9 + 0.5) / 1e9
    else:
        cost, wait, score = round(cost, 9), round(wait, 4), round(score, 9)
    found = {
        "lane": one.lane.key, "expected_cost_usd": cost, "expected_wait_s": wait, "sum_usd": score,
        "miss_chance": round(chance, 4) if chance else 0.0, "note": one.note or None,
    }  # fmt: skip
    if rent:
        found["rent_usd"] = round(rent, 9)
    return found
