"""Brings the planner of prompt caches to a call: the page it reads, the policy's word, and what it learns from the answer."""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from gateway import dialects
from gateway.backends.fleet import Target
from gateway.core import levers
from gateway.core.call import Call
from gateway.core.part import Part
from gateway.core.usage import TokenUsage
from gateway.dialects.splice import Spans
from gateway.metering.prices import Offer, PriceBook
from gateway.normalize import subscription
from gateway.objects import with_object
from gateway.planner import Asker, Backend, Page, Planned, Planner, RatesOf, rules_of
from gateway.planner.caches import BREAKPOINT, CacheRules
from gateway.prefix.chain import Chain, chain
from router_policies.rules import Policy

_OPTIONS = "prompt_cache_options"
KEEP_WARM, PRE_WARM = "keep_warm", "pre_warm"
"""Clients of the calls that only keep a prefix from expiring, or write a prompt's beginning ahead of those that have it."""
LIFETIME = "lifetime"
"""Tag of the latter: for how long."""


def rates_of(book: PriceBook) -> RatesOf:
    """The price row in force now, base band."""

    def found(provider: str, model: str, tier: str | None) -> dict[str, int] | None:
        bands = book.bands(Offer(provider, model, None if tier == "auto" else tier), time.time_ns() // 1_000)
        return dict(bands[0].rates) if bands else None

    return found


def plan(
    planner: Planner, policy: Policy, call: Call, parts: Sequence[Part], links: Chain, target: Target, model: str, *,
    render: Callable[[], bytes], first: bool,
) -> Planned | None:
    """What the attempt should set; None: nothing. `render` gives the body that a backend of another dialect gets."""
    rules, cache, team = rules_of(target.provider, model, target.dialect), policy.cache, call.tenant.team
    if rules is None or len(call.body) < rules.minimum_tokens:  # a token has a byte at least: no cache takes it
        return None
    if not cache.plan or not links.keys or subscription(call.headers):
        return None
    session = bytes.fromhex(links.session)
    held = levers.held("cache", team, session, cache.hold_out)
    arms = [levers.arms(session, {"cache": held})] if cache.hold_out and session else []
    if held:
        return Planned(fields={}, receipts=arms, pool=target.pool, rules=rules)
    body, spans = call.body, call.sketch.spans
    if target.dialect != call.dialect:
        body = render()
        sketch = dialects.read(target.dialect, body, team)
        spans, parts = sketch.spans, sketch.parts
        links = chain(team, model, parts, session)
    page = Page(
        dialect=target.dialect, body=body, spans=spans, parts=parts, keys=links.keys, ends=links.ends, root=f"{team}\0{model}",
        session=links.session, marked=links.marked,
    )  # fmt: skip
    tier = target.set_fields.get("service_tier") or target.priced_as
    backend = Backend(target.provider, model, tier, target.pool)
    if call.client == PRE_WARM:
        return planner.ahead(page, backend, call.tags.get(LIFETIME, ""))
    planned = planner.plan(page, Asker(team, call.client), backend, call.at_us, first=first and not quiet(call))
    if planned is None:
        return None
    if cache.ask_diagnosis and call.dialect == target.dialect and _says_why(target, rules):
        planned = _asking(planner, planned, target, spans, links.session)
    if cache.store_usd_per_day and rules.objects and call.dialect == target.dialect and not quiet(call):
        planned = with_object(planner, planned, page, planner.head(page, backend), call.at_us)
    warm = planned.warm if cache.keep_warm_usd_per_day else None
    beginning = planned.beginning if cache.pre_warm_usd_per_day else None
    if not arms and warm is planned.warm and beginning is None is planned.beginning:
        return planned
    receipts = [*arms, *planned.receipts]
    return replace(planned, receipts=receipts, warm=warm, beginning=beginning, page=page if beginning else None)


def _asking(planner: Planner, planned: Planned, target: Target, spans: Spans, session: str) -> Planned:
    """The same, with the question why the cache missed, if it does, compared with the conversation's last answer; unless the
    client says something in that place itself."""
    last = planner.answers.last(target.pool, session)
    if target.dialect == "anthropic_messages":
        place, asked = "diagnostics", {"previous_message_id": last}
    else:
        said = planned.fields.get(_OPTIONS)
        place, asked = _OPTIONS, {**(msgspec.json.decode(said) if said else {}), "comparison_response_id": last}
    if place in spans:
        return planned
    if last is None and place == _OPTIONS:  # there is nothing to compare with yet
        return replace(planned, diagnosed=True)
    receipt = {"pass": "cache_diagnosis", "place": place, "before": "", "after": last or "null"}
    fields = {**planned.fields, place: msgspec.Raw(msgspec.json.encode(asked))}
    return replace(planned, fields=fields, receipts=[*planned.receipts, receipt], diagnosed=True)


def _says_why(target: Target, rules: CacheRules) -> bool:
    """Whether the provider says why its cache missed, if it is asked: Anthropic, and OpenAI from 5.6 on as responses."""
    if target.provider == "anthropic":
        return True
    return target.provider == "openai" and target.dialect == "openai_responses" and rules.mark == BREAKPOINT


def quiet(call: Call) -> bool:
    """Whether a call is one of the gateway's own: nothing is learnt from it about when prefixes are asked for."""
    return call.client in (KEEP_WARM, PRE_WARM)


def learn(planner: Planner, planned: Planned, tokens: TokenUsage, at_us: int) -> None:
    """The answer's counts: what was planned is stored now, or it was not."""
    planner.learn(
        planned, read_tokens=tokens.cache_read, input_tokens=tokens.input_total, at_us=at_us, written=tokens.cache_write
    )
