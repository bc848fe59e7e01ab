"""A prompt's beginning (tools, system prompt) that is written into the provider's cache ahead of the conversations that will
have it: which part of a prompt that is, what it costs, and how the request says so.
"""
from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from gateway.planner.asking import Laid, Own, at_marks
from gateway.planner.caches import CacheRules
from gateway.planner.choice import Choice, Rates
from gateway.planner.held import name_of
from gateway.planner.places import Page, Place, places
from gateway.planner.values import SHARED, Beginning, Life, Planned, Stored


def beginning(laid: Laid, rates: Rates, pool: str) -> Beginning | None:
    """The longest one that an earlier request had as well; None: there is none, or it is too short to be stored."""
    found = [n for n, place in enumerate(laid.places) if place.kind in SHARED and place.part <= laid.sent]
    if not found or found[-1] < laid.reach:
        return None
    place, tokens = laid.places[found[-1]], laid.tokens[found[-1]]
    lives = [
        Life(name, seconds, tokens * write * rates.input_usd)
        for (name, seconds), write in zip(laid.rules.lives.items(), rates.writes, strict=False)
    ]
    saved_usd = tokens * (rates.writes[0] - rates.read) * rates.input_usd
    return Beginning(name_of(pool, place.key), tokens, place.part + 1, _may(lives, laid.own, place), saved_usd)


def _may(lives: Sequence[Life], own: Own, place: Place) -> tuple[Life, ...]:
    """Lifetimes that can be asked for beside the client's own marks."""
    if own.behind == place.part:
        return tuple(lives[1:])
    return tuple(lives[: 1 if any([part <= place.part for part in own.parts]) else None])


def written(page: Page, rules: CacheRules, own: Own, bytes_per_token: float, lifetime: str, base: Planned) -> Planned:
    """Has everything before the first message stored for that long, and nothing behind it."""
    found = [place for place in places(page, "opening", -1) if place.kind in SHARED]
    tokens = [round(place.end_bytes / bytes_per_token) for place in found]
    reach = next((n for n, end in enumerate(tokens) if end >= rules.minimum_tokens), None)
    if reach is None:
        return base
    life_s, last = rules.lives.get(lifetime, next(iter(rules.lives.values()))), len(found) - 1
    long = last if life_s > next(iter(rules.lives.values())) else -1
    stored = [Stored(page.keys[n], life_s, round(page.ends[n] / bytes_per_token)) for n in own.parts]
    laid = Laid(page, rules, own, found, tokens, held=-1, held_long=False, reach=reach)
    return at_marks(laid, Choice(last, long, 0.0), replace(base, stored=stored))
