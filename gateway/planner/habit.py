"""What a client's calls would have cost as they came, or all sent in one other way: told from our own book of keys.

The habit is what the provider does unasked: store each prompt's end (OpenAI 5.6), all of it in a cache of its own (Qwen), or
all of it for minutes (Kimi). Where it stores nothing (Anthropic) each call costs its tokens by habit. Figures are in tokens
at the uncached input price.
"""
from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from gateway.planner.asking import Laid
from gateway.planner.caches import CacheRules
from gateway.planner.choice import Rates
from gateway.planner.held import Held
from gateway.planner.values import Asked, Stored


def has_a_habit(rules: CacheRules) -> bool:
    """Whether the provider stores something unasked."""
    return rules.ends_are_marked or rules.automatic_read or rules.lifetime_field is not None


def of_habit(rules: CacheRules, rates: Rates, total: int, read: int) -> float:
    """What a call costs without a plan, `read` tokens being in the cache then."""
    if rates.automatic_read is not None:
        return total - read * (1.0 - rates.automatic_read)
    if not has_a_habit(rules):
        return total
    return read * rates.read + (total - read) * (rates.writes[0] if total >= rules.minimum_tokens else 1.0)


def whole(asked: Asked, laid: Laid, bytes_per_token: float, life_s: float) -> list[Stored]:
    """What a cache that needs no marks stores, as far as others may ask for it: its head and its places."""
    page = asked.page
    head = [Stored(page.keys[n], life_s, round(page.ends[n] / bytes_per_token)) for n in range(page.opening + 1)]
    stored = {each.key: each for each in [*head, *laid.stored(life_s)] if each.tokens >= asked.rules.minimum_tokens}
    return sorted(stored.values(), key=attrgetter("tokens"))


def stored_by_habit(asked: Asked, laid: Laid, bytes_per_token: float) -> Sequence[Stored]:
    """What the provider stores unasked."""
    life_s = next(iter(asked.rules.lives.values()))
    return laid.stored(life_s)[-1:] if asked.rules.ends_are_marked else whole(asked, laid, bytes_per_token, life_s)


def would_read(held: Held, pool: str, asked: Asked, stored: Sequence[Stored]) -> int:
    """Up to which part a pool would have the prompt (-1: nothing) which is imagined only; `stored` is what this call would
    store there."""
    deepest = held.deepest(pool, asked.page.keys, asked.now_us)
    if asked.first:
        for each in stored:
            held.store(pool, each.key, asked.now_us, each.life_s)
    return deepest
