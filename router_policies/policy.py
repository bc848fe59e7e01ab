"""The decision: filters say no and why; least expected cost + value of time x expected wait ranks the rest.

Pure and deterministic: the same ask and the same lanes give the same decision, live and in a backtest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from router_policies.filters import FILTERS
from router_policies.presets import DEFAULT_OUTPUT_TOKENS
from router_policies.rules import Klass, Policy
from router_policies.scorers import expected_cost, expected_wait, miss_chance
from router_policies.sensitivity import Learnt, Verdict, classify
from router_policies.types import Ask, Decision, Lane, Ranked, Refused, Terms

_WORST_USD = 1e9
_REASON_CHARACTERS = 1_000


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


def decide(policy: Policy, ask: Ask, lanes: Sequence[Lane], learnt: Learnt | None = None) -> Decision:
    """Rank the lanes for one ask. Never raises: nobody able to serve is an empty ranking with reasons."""
    verdict = classify(policy, ask, learnt)
    resolved = resolve_model(policy, ask.model)
    terms = _terms(policy, ask, verdict.klass, resolved.model)
    if resolved.refusal is not None:
        refused = tuple(Refused(lane, resolved.refusal) for lane in lanes)
        return _decision(terms, verdict, (), refused, denied=resolved.refusal)
    ranked, refused = _rank(ask, lanes, terms)
    fallbacks = policy.models.fallbacks.get(resolved.model)
    if fallbacks:
        ranked, refused = _with_fallbacks(ask, lanes, terms, fallbacks, ranked, refused)
    return _decision(terms, verdict, ranked, refused)


def _with_fallbacks(
    ask: Ask, lanes: Sequence[Lane], terms: Terms, models: Iterable[str],
    ranked: tuple[Ranked, ...], refused: tuple[Refused, ...],
) -> tuple[tuple[Ranked, ...], tuple[Refused, ...]]:  # fmt: skip
    """Behind the lanes for the model itself, the lanes for each model that may stand in for it."""
    for model in models:
        if terms.policy.models.refusal(model) is not None:
            continue
        more, _ = _rank(ask, lanes, terms._replace(model=model))
        ranked += tuple(one._replace(note=one.note or f"fallback to {model}") for one in more)
    taken = {one.lane.key for one in ranked}
    return ranked, tuple(no for no in refused if no.lane.key not in taken)


def _terms(policy: Policy, ask: Ask, klass: Klass, model: str) -> Terms:
    forecast = DEFAULT_OUTPUT_TOKENS if ask.output_forecast_tokens is None else ask.output_forecast_tokens
    if ask.max_output_tokens is not None:
        forecast = min(forecast, ask.max_output_tokens)
    wished = ask.deadline_ms if policy.client_may.set_deadline else None
    totals = [ms for ms in (klass.total_deadline_ms, wished) if ms is not None]
    first = klass.first_token_deadline_ms
    return Terms(
        policy=policy, klass=klass, model=model, value_usd_per_s=klass.value_usd_per_s, output_tokens=forecast,
        first_token_deadline_s=None if first is None else first / 1000,
        total_deadline_s=min(totals) / 1000 if totals else None,
    )  # fmt: skip


def _rank(ask: Ask, lanes: Sequence[Lane], terms: Terms) -> tuple[tuple[Ranked, ...], tuple[Refused, ...]]:
    fit: list[tuple[bool, int, int, int, str, int, Ranked]] = []
    refused: list[Refused] = []
    for lane in lanes:
        for refuses in FILTERS:
            no = refuses(ask, lane, terms)
            if no is not None:
                refused.append(Refused(lane, no, refuses.__name__))
                break
        else:
            one = _weigh(ask, lane, terms)
            # Deadline first, then the sum (to the nano-dollar), then preference, then who is best known, then the name.
            late, place = one.miss_chance > terms.klass.epsilon, terms.klass.place(lane.name) or 0
            fit.append((late, round(one.score_usd * 1e9), place, -lane.samples, lane.key, len(fit), one))
    fit.sort()
    return tuple(row[-1] for row in fit), tuple(refused)


def _weigh(ask: Ask, lane: Lane, terms: Terms) -> Ranked:
    cost = expected_cost(ask, lane, terms)
    wait = expected_wait(ask, lane, terms)
    score = cost + terms.value_usd_per_s * wait
    if not score < _WORST_USD:  # a figure that is infinite or no number must not end up first, or stop the sort
        score = _WORST_USD
    if terms.first_token_deadline_s is None and terms.total_deadline_s is None:
        return Ranked(lane, terms.model, cost, wait, score, 0.0)
    chance, limit, note = miss_chance(ask, lane, terms), terms.klass.epsilon, ""
    if chance > limit:
        note = f"ranked last: misses its deadline with a chance of {chance:.0%}, more than {limit:.0%}"
    return Ranked(lane, terms.model, cost, wait, score, chance, note)


def _decision(
    terms: Terms, verdict: Verdict, ranked: tuple[Ranked, ...], refused: tuple[Refused, ...], denied: str | None = None
) -> Decision:
    total = terms.total_deadline_s
    return Decision(
        klass=verdict.klass, model=terms.model, ranked=ranked, refused=refused, denied=denied,
        reason=_one_line(denied or _reason(terms, verdict, ranked, refused)), policy_version=terms.policy.version,
        deadline_ms=None if total is None else total * 1000, rule_errors=verdict.errors,
    )  # fmt: skip


def _reason(terms: Terms, verdict: Verdict, ranked: tuple[Ranked, ...], refused: tuple[Refused, ...]) -> str:
    """For people: it goes into a header and into the ledger."""
    parts = [f"class {verdict.klass.name} ({verdict.source})", *verdict.notes]
    if not ranked:
        parts.append("no lane can serve: " + ("; ".join(f"{no.lane.key}: {no.reason}" for no in refused) or "none is there"))
        return "; ".join(parts)
    best = ranked[0]
    if len(ranked) == 1:
        parts.append(f"{best.lane.key} is the only lane that can serve {terms.model}")
    else:
        parts.append(_comparison(best, ranked[1], terms.value_usd_per_s))
    if best.note:
        parts.append(best.note)
    return "; ".join(parts)


def _comparison(best: Ranked, second: Ranked, value_usd_per_s: float) -> str:
    sums = f"{best.expected_cost_usd:.3g} + {value_usd_per_s * best.expected_wait_s:.3g} USD"
    against = f"against {second.score_usd:.3g} for {second.lane.key}"
    if second.note and not best.note:
        return f"{best.lane.key}: cost + wait {sums}, {against}, which is {second.note}"
    if round(best.score_usd * 1e9) == round(second.score_usd * 1e9):
        return f"{best.lane.key} is preferred at an equal sum of cost + wait: {sums}, {against}"
    return f"{best.lane.key} is least of cost + wait: {sums} {against}"


def _one_line(text: str) -> str:
    """Printable ASCII, whatever names the client or the fleet brought in."""
    if not (text.isascii() and text.isprintable()):
        text = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    return text[:_REASON_CHARACTERS]
