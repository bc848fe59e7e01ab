"""The decision: filters say no and why; least expected cost + value of time x expected wait ranks the rest.

Pure and deterministic: the same ask and the same lanes give the same decision, live and in a backtest. What depends on
policy, class, model and prices only is worked out once and kept (`Offer`); each lane is weighed once a call.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

import msgspec
from msgspec.structs import replace

from router_policies.filters import FIXED, LIVE, OF_LANE
from router_policies.live import Forecast
from router_policies.presets import OUTPUT_PRIOR
from router_policies.rules import Klass, Policy
from router_policies.scorers import expected_cost, filled, first_token_wait, miss_chance
from router_policies.sensitivity import Learnt, Verdict, classify
from router_policies.types import Ask, Decision, Filter, ForecastOf, Lane, Offer, Ranked, Refused, Terms

_WORST_USD = 1e9
_REASON_CHARACTERS = 1_000
_MAX_OFFERS = 1_000
P95 = 1.645  # of the standard normal
TIE = 0.01  # sums that are nearer than this share are equal: no estimate is better
_REPLICA_TIE = 0.03
WELL_KNOWN = 24  # answers after which one lane is as well known as another
COLD, STALE = 3, 25  # answers seen, or not seen for each lane there is, that make a lane worth a try
_COLD_SHARE = 5.0  # a lane that was hardly ever seen is tried this much more often than others of its name
_OTHER_TIER = 2.0  # a lane of another name is tried up to this many times the best sum: its price says that it differs
BOUND = 1.25  # calls in flight at a lane against the average of its like, above which its cache is no reason
_OF_CALL = tuple(refuses for refuses in LIVE if refuses not in OF_LANE)
_ROOM = 1.0  # and against its slots: nobody waits at a warm replica while its like have slots to spare


Row = tuple[bool, float, int, int, str, Ranked]
"""Late, sum, place, samples (negative), key: in the order of sorting."""


class Resolved(NamedTuple):
    """A model after aliases; `refusal` says why the team may not use it."""

    model: str
    refusal: str | None = None


def resolve_model(policy: Policy, name: str) -> Resolved:
    model = policy.models.aliases.get(name, name)
    return Resolved(model, policy.models.refusal(model))


def visible_models(policy: Policy, names: Iterable[str]) -> list[str]:
    """What `GET /v1/models` shows the team: the allowed ones of these, and aliases that lead to one of them."""
    allowed = {name: None for name in names if policy.models.refusal(name) is None}
    aliases = [alias for alias, model in policy.models.aliases.items() if model in allowed and alias not in allowed]
    return [*allowed, *aliases]


def decide(
    policy: Policy, ask: Ask, lanes: Sequence[Lane], learnt: Learnt | None = None, forecast: ForecastOf | None = None,
    *, worded: bool = True,
) -> Decision:  # fmt: skip
    """Rank the lanes for one ask. Never raises: nobody able to serve is an empty ranking with reasons. `worded`: whether the
    reason is written out, which a replay of a million calls does not need."""
    kind = _kind(policy, ask, learnt)
    model = kind.model
    length = OUTPUT_PRIOR if forecast is None else forecast(ask.team, model, kind.verdict.klass.name)
    terms = kind.terms
    if terms is None or length is not kind.length:
        terms = kind.terms = _terms(policy, ask, kind.verdict.klass, model, length)
        kind.length = length
    if kind.denied is not None:
        return _decision(terms, kind, [], [Refused(lane, kind.denied) for lane in lanes], worded)
    ranked, refused = _rank(ask, lanes, terms)
    fallbacks = policy.models.fallbacks.get(model)
    if fallbacks:
        ranked, refused = _with_fallbacks(ask, lanes, terms, fallbacks, ranked, refused)
    return _decision(terms, kind, ranked, refused, worded)


@dataclass(slots=True)
class _Kind:
    """What asks have in common that differ only in what they say: worked out once, unless a rule or what was learnt looks at
    each of them."""

    verdict: Verdict
    model: str
    denied: str | None
    terms: Terms | None = None
    length: Forecast | None = None
    """For which the terms hold."""
    only: dict[str, str] = field(default_factory=dict)
    """The reason where there is one lane, by its key."""


def _kind(policy: Policy, ask: Ask, learnt: Learnt | None) -> _Kind:
    if policy.rules or learnt is not None:
        return _new_kind(policy, ask, learnt)
    key = (
        ask.model, ask.project, ask.wished_class, ask.wished_tier, ask.max_output_tokens, ask.deadline_ms, ask.siblings,
        ask.output_forecast_tokens,
    )  # fmt: skip
    found: _Kind | None = policy.kinds.get(key)
    if found is None:
        if len(policy.kinds) >= _MAX_OFFERS:
            policy.kinds.clear()
        found = policy.kinds[key] = _new_kind(policy, ask, None)
    return found


def _new_kind(policy: Policy, ask: Ask, learnt: Learnt | None) -> _Kind:
    model = policy.models.aliases.get(ask.model, ask.model)
    return _Kind(classify(policy, ask, learnt), model, policy.models.refusal(model))


def _with_fallbacks(
    ask: Ask, lanes: Sequence[Lane], terms: Terms, models: Iterable[str], ranked: list[Ranked], refused: list[Refused]
) -> tuple[list[Ranked], list[Refused]]:
    """Behind the lanes for the model itself, the lanes for each model that may stand in for it."""
    for model in models:
        if terms.policy.models.refusal(model) is not None:
            continue
        more, _ = _rank(ask, lanes, replace(terms, model=model))
        ranked += [replace(one, note=one.note or f"fallback to {model}") for one in more]
    taken = {one.lane.key for one in ranked}
    return ranked, [no for no in refused if no.lane.key not in taken]


def _terms(policy: Policy, ask: Ask, klass: Klass, model: str, length: Forecast) -> Terms:
    if ask.output_forecast_tokens is not None:
        length = Forecast(ask.output_forecast_tokens, length.spread)
    tokens, spread, most = length.tokens, length.spread, ask.max_output_tokens
    wished = ask.deadline_ms if policy.client_may.set_deadline else None
    first, total = klass.first_token_deadline_ms, klass.total_deadline_ms
    if wished is not None and (total is None or wished < total):
        total = wished
    if most is not None:
        tokens = min(tokens, float(most))
        if total is not None and tokens > 0.0:  # what cannot become longer does not make a deadline less sure
            spread = min(spread, math.log(most / tokens) / P95)
    return Terms(
        policy, klass, model, klass.value_usd_per_s / (1 + ask.siblings), tokens, spread,
        None if first is None else first / 1000, None if total is None else total / 1000,
    )  # fmt: skip


def _rank(ask: Ask, lanes: Sequence[Lane], terms: Terms) -> tuple[list[Ranked], list[Refused]]:
    offers = _offers(terms)
    standing = offers.standing
    if standing is None or standing.lanes is not lanes:
        standing = _standing(ask, lanes, terms, offers)
    ranked: list[Ranked] = []
    places: list[int] = []
    refused = standing.refused
    timed = terms.first_token_deadline_s is not None or terms.total_deadline_s is not None
    for lane, offer, filters in standing.open:
        for refuses in filters:
            no = refuses(ask, lane, terms)
            if no is not None:
                refused = [*refused, Refused(lane, no, refuses.__name__)]
                break
        else:
            ranked.append(_weigh(ask, lane, offer, terms, timed))
            places.append(offer.place)
    if refused is not standing.refused:
        order = {lane.key: n for n, lane in enumerate(lanes)}
        refused.sort(key=lambda no: order[no.lane.key])
    if len(ranked) < 2:
        return ranked, refused
    epsilon = terms.klass.epsilon
    fit = [
        (one.miss_chance > epsilon, one.score_usd, place, -one.lane.samples, one.lane.key, one)
        for one, place in zip(ranked, places, strict=True)
    ]
    fit.sort()  # deadline first, then the sum, then preference, then who is best known, then the name
    return _settled(ask, fit, terms, timed), refused


class _Standing(msgspec.Struct, frozen=True):
    """How lanes stand with a policy, a class and a model, before a call is looked at."""

    lanes: Sequence[Lane]
    open: list[tuple[Lane, Offer, Sequence[Filter]]]
    """Those that may serve, with the filters that are left to ask."""
    refused: list[Refused]


@dataclass(slots=True)
class _Offers:
    """What one policy, class and model make of each lane."""

    by_lane: dict[str, Offer] = field(default_factory=dict)
    standing: _Standing | None = None
    """Of the lanes that were looked at last: many calls see the same look at them."""


def _offers(terms: Terms) -> _Offers:
    memo = terms.policy.offers
    key = (id(terms.klass), terms.model)
    found: _Offers | None = memo.get(key)
    if found is None:
        if len(memo) >= _MAX_OFFERS:
            memo.clear()
        found = memo[key] = _Offers()
    return found


def _standing(ask: Ask, lanes: Sequence[Lane], terms: Terms, offers: _Offers) -> _Standing:
    known, found = offers.by_lane, _Standing(lanes, [], [])
    for lane in lanes:
        offer = known.get(lane.key)
        if offer is None or offer.models is not lane.models:
            offer = known[lane.key] = _offer(ask, lane, terms)
        if offer.refused is not None:
            found.refused.append(replace(offer.refused, lane=lane))
        else:
            clear = all([refuses(ask, lane, terms) is None for refuses in OF_LANE])
            found.open.append((lane, offer, _OF_CALL if clear else LIVE))
    if type(lanes) is tuple:  # nobody can change it while it is remembered
        offers.standing = found
    return found


def _offer(ask: Ask, lane: Lane, terms: Terms) -> Offer:
    for refuses in FIXED:
        no = refuses(ask, lane, terms)
        if no is not None:
            return Offer(lane.models, Refused(lane, no, refuses.__name__))
    rates = filled(lane.models[terms.model].rates, terms.policy.ceiling_usd_per_mtok)
    return Offer(lane.models, None, terms.klass.place(lane.name) or 0, *rates)


def _weigh(ask: Ask, lane: Lane, offer: Offer, terms: Terms, timed: bool) -> Ranked:
    cost = expected_cost(ask, lane, offer, terms.output_tokens)
    first = first_token_wait(ask, lane)
    wait = first + terms.output_tokens * lane.seconds_per_output_token
    score = cost + terms.value_usd_per_s * wait
    rent = 0.0
    if lane.rent is not None:
        rent = lane.rent.uncached_tokens * offer.uncached_usd + lane.rent.output_tokens * offer.output_usd
        rent *= wait - lane.backlog_s
        score += rent
    if not score < _WORST_USD:  # a figure that is infinite or no number must not end up first, or stop the sort
        score = _WORST_USD
    if not timed:
        return Ranked(lane, terms.model, cost, wait, score, 0.0, "", first, rent)
    chance, limit, note = miss_chance(ask, lane, terms, first), terms.klass.epsilon, ""
    if chance > limit:
        note = f"ranked last: misses its deadline with a chance of {chance:.0%}, more than {limit:.0%}"
    return Ranked(lane, terms.model, cost, wait, score, chance, note, first, rent)


def _settled(ask: Ask, fit: list[Row], terms: Terms, timed: bool) -> list[Ranked]:
    """The order after ties, the bound on a lane's load, and the try of a stale lane."""
    best = fit[0]
    near = best[1] + TIE * abs(best[1]) + 5e-10
    if best[5].lane.slots is not None:
        near = _near_replicas(fit, near)
    if fit[1][1] <= near and fit[1][0] == best[0]:
        tied = [row for row in fit if row[1] <= near and row[0] == best[0]]
        tied.sort(key=lambda row: (
            row[2], -(min(-row[3], WELL_KNOWN) // 8), _busy(ask, row[5].lane), -_own(ask.session, row[4]), row[1], *row[3:5]
        ))  # fmt: skip
        fit = tied + [row for row in fit if row[1] > near or row[0] != best[0]]
    ranked = [row[5] for row in fit]
    if ranked[0].lane.slots is not None:
        ranked = _bounded(ranked)
    if ask.draw < terms.policy.explore * _COLD_SHARE:
        ranked = _explored(ask, ranked, terms, timed)
    return ranked


def _near_replicas(fit: list[Row], near: float) -> float:
    """Up to where replicas of one pool are equal: what was learnt of one of them strays by more than that of a whole tier."""
    best, reach = fit[0], fit[0][1] + _REPLICA_TIE * abs(fit[0][1])
    for row in fit[1:]:
        if row[1] > reach or row[5].lane.slots is None or row[5].lane.name != best[5].lane.name:
            break
        near = max(near, row[1])
    return near


def _busy(ask: Ask, lane: Lane) -> int:
    """Of replicas that are equally warm the idler one: a hot prefix is not to fill one after the other to the brim."""
    return lane.in_flight if lane.slots is not None and lane.key in ask.cached else 0


def _own(session: str, lane_key: str) -> int:
    """Rendezvous: each session has a lane of its own among any lanes, and keeps it when others come or go."""
    return crc32(f"{session}\0{lane_key}".encode("utf-8", "replace")) if session else 0


def _bounded(ranked: list[Ranked]) -> list[Ranked]:
    """A pool's lane that has more than its share in flight steps back behind the next that has not, warm cache or no."""
    alike = [one.lane for one in ranked if one.lane.slots is not None and one.lane.name == ranked[0].lane.name]
    bound = BOUND * (1 + sum(lane.in_flight for lane in alike)) / len(alike)
    if len(alike) == 1 or ranked[0].lane.in_flight < max(bound, _ROOM * (ranked[0].lane.slots or 1)):
        return ranked
    over = [one for one in ranked if one.lane.slots is not None and one.lane.in_flight >= max(bound, _ROOM * one.lane.slots)]
    free = [one for one in ranked if one not in over]
    note = "has more than its share of the calls"
    return free + [replace(one, note=one.note or note) for one in over] if free and not free[0].note else ranked


def _explored(ask: Ask, ranked: list[Ranked], terms: Terms, timed: bool) -> list[Ranked]:
    """Puts a lane first whose figures are stale and which could win if it were quick; not where a deadline is at risk."""
    best = ranked[0]
    if ask.cached and 2 * ask.cached.get(best.lane.key, 0) >= ask.prompt_tokens:
        return ranked  # a warm cache is worth more than a look elsewhere
    stale = STALE * len(ranked)
    for one in sorted(ranked[1:], key=lambda one: (min(one.lane.samples, COLD), -one.lane.unseen)):
        lane, alike = one.lane, one.lane.name == best.lane.name
        cold = lane.samples < COLD
        share = terms.policy.explore * (_COLD_SHARE if cold and alike else 1.0)
        if ask.draw >= share or not (cold or lane.unseen >= stale) or one.note:
            continue
        if one.expected_cost_usd >= best.score_usd or not (alike or one.score_usd <= _OTHER_TIER * best.score_usd):
            continue
        if timed and (cold or one.miss_chance > terms.klass.epsilon):
            continue
        said = f"tried because its figures are {'hardly known' if cold else 'stale'}"
        return [replace(one, note=said), *(other for other in ranked if other is not one)]
    return ranked


def _decision(terms: Terms, kind: _Kind, ranked: list[Ranked], refused: list[Refused], worded: bool) -> Decision:
    total, verdict, reason = terms.total_deadline_s, kind.verdict, ""
    if worded:
        only = ranked[0].lane.key if len(ranked) == 1 and not ranked[0].note else ""
        reason = kind.only.get(only, "")
        if not reason:
            reason = _one_line(kind.denied or _reason(terms, verdict, ranked, refused))
            if only:
                kind.only[only] = reason
    return Decision(
        verdict.klass, terms.model, tuple(ranked), tuple(refused), reason, terms.policy.version, kind.denied,
        None if total is None else total * 1000, verdict.errors,
    )  # fmt: skip


def _reason(terms: Terms, verdict: Verdict, ranked: list[Ranked], refused: list[Refused]) -> str:
    """For people: it goes into a header and into the ledger."""
    said = f"class {verdict.klass.name} ({verdict.source})"
    if verdict.notes:
        said = "; ".join((said, *verdict.notes))
    if not ranked:
        why = "; ".join(f"{no.lane.key}: {no.reason}" for no in refused) or "none is there"
        return f"{said}; no lane can serve: {why}"
    best = ranked[0]
    if len(ranked) == 1:
        said = f"{said}; {best.lane.key} is the only lane that can serve {terms.model}"
    else:
        said = f"{said}; {_comparison(best, ranked[1], terms.value_usd_per_s)}"
    return f"{said}; {best.note}" if best.note else said


def _comparison(best: Ranked, second: Ranked, value_usd_per_s: float) -> str:
    lane, cost, against = best.lane.key, best.expected_cost_usd, second.score_usd
    sums = f"{cost:.3g} + {value_usd_per_s * best.expected_wait_s:.3g} USD"
    if best.rent_usd:
        sums = f"{sums} and {best.rent_usd:.3g} USD for a crowded slot,"
    if second.note and not best.note:
        return f"{lane}: cost + wait {sums}, against {against:.3g} for {second.lane.key}, which is {second.note}"
    if against - best.score_usd > TIE * abs(best.score_usd) + 5e-10:
        return f"{lane} is least of cost + wait: {sums} against {against:.3g} for {second.lane.key}"
    if best.note:
        return f"{lane}: cost + wait {sums}, against {against:.3g} for {second.lane.key}"
    return f"{lane} is preferred at an equal sum of cost + wait: {sums}, against {against:.3g} for {second.lane.key}"


def _one_line(text: str) -> str:
    """Printable ASCII, whatever names the client or the fleet brought in."""
    if not (text.isascii() and text.isprintable()):
        text = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    return text[:_REASON_CHARACTERS]
