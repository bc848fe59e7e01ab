"""What knowing every chance is worth: plans that know how likely each kind of piece is asked for again, and when
(`prefix_chances`), but not which one will be.

`informed` leaves the provider's rules aside, as `prefix_oracle.bound` does: each piece is stored and renewed by itself.
`by_marks` and `by_lifetime` ask for what a request can ask for, and the simulated cache counts: so much can be had by knowing
these chances, if not more. What lies between them and the plan that knows the future (`prefix_clairvoyant`) is foresight.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from benchmarks.prefix_chances import Chances, Cut, Piece, Use, cut
from benchmarks.prefix_clairvoyant import Marks, Prompts
from benchmarks.prefix_oracle import Prices, cost_of
from benchmarks.providers.automatic import AutomaticCache
from benchmarks.providers.prompt import Prompt

Known = Callable[[int], Chances]
"""What is known when the prompt of that number comes."""
_SHARED = -1
"""The session of pieces that several ask for."""


def informed(prompts: Prompts, prices: Prices, *, by_marks: bool = True, known: Chances | None = None) -> float:
    """Cost in uncached input tokens, each piece by itself; `prompts` are (seconds, prompt) in order of time. `known`: by
    default the chances that these prompts show themselves."""
    found = cut(prompts, prices.minimum, by_marks=by_marks)
    chances = known or Chances(found.pieces, prices)
    return found.rest + sum(piece.tokens * _alone(piece, chances) for piece in found.pieces)


def by_all(cuts: Sequence[Cut], prices: Prices) -> Known:
    """The chances that all of some days show, which may be this one."""
    chances = Chances([piece for each in cuts for piece in each.pieces], prices)
    return lambda number: chances


def by_others(cuts: Sequence[Cut], sessions: Sequence[Sequence[int]], prices: Prices) -> Callable[[int], Known]:
    """The chances that all other sessions show, not the one at hand: where sessions are few, their own outcomes are most of
    what is called a chance. `sessions`: of each prompt of each day; the answer takes the number of a day."""
    of_session: dict[int, list[Piece]] = defaultdict(list)
    for each, named in zip(cuts, sessions, strict=True):
        for piece in each.pieces:
            asking = {named[at.number] for at in piece.uses}
            of_session[asking.pop() if len(asking) == 1 else _SHARED].append(piece)
    known = {
        session: Chances([piece for other, some in of_session.items() if other != session for piece in some], prices)
        for session in {session for named in sessions for session in named}
    }
    return lambda day: lambda number: known[sessions[day][number]]


def by_marks(prompts: Prompts, found: Cut, prices: Prices, cache: Marks, known: Known, begins_s: float = 0.0) -> float:
    """Cost in uncached input tokens by what a request's marks can ask for; `begins_s`: from a request to its first token."""
    names, total = {life_s: name for name, life_s in cache.lives.items()}, 0.0
    for number, ((at_s, prompt), uses) in enumerate(zip(prompts, found.uses, strict=True)):
        held = [n for n, block in enumerate(prompt.blocks) if cache.holds(block.digest, at_s)]
        marks = _marks(uses, held, known(number), list(names), cache.most_marks)
        if held and not prompt.blocks[held[-1]].markable and held[-1] < len(prompt.blocks) - 1:
            del marks[held[-1]]  # it is found without a mark
        blocks = tuple(replace(each, mark=names[marks[n]] if n in marks else None) for n, each in enumerate(prompt.blocks))
        used = cache.serve(Prompt(blocks, prompt.text), at_s)
        used.begun(at_s + begins_s)
        total += cost_of(used, prices, cache.lives)
    return total


def by_lifetime(
    prompts: Prompts, found: Cut, prices: Prices, lives: Mapping[str, float], cache: AutomaticCache, known: Known
) -> float:
    """The same where everything is stored and a request says for how long (Kimi)."""
    short, *longer = lives.items()
    total, long_until = 0.0, dict[bytes, float]()
    short_until = dict[bytes, float]()
    for number, ((at_s, prompt), uses) in enumerate(zip(prompts, found.uses, strict=True)):
        digests = [block.digest for block in prompt.blocks]
        in_long = max([n for n, digest in enumerate(digests) if long_until.get(digest, -1.0) > at_s], default=-1)
        held = max([n for n, digest in enumerate(digests) if short_until.get(digest, -1.0) > at_s], default=in_long)
        fresh = [(use.tokens, known(number).costs(use.kind)) for use in uses if use.block > max(held, in_long)]
        asked = short
        if in_long >= held:  # what stands behind something short-lived goes with it
            sums = [sum(tokens * costs[n] for tokens, costs in fresh) for n in range(1, 1 + len(lives))]
            asked = [short, *longer][sums.index(min(sums))]
        used = cache.serve("", prompt, at_s, {"prompt_cache_options": {"ttl": asked[0]}})
        used.begun(at_s)
        total += cost_of(used, prices, lives)
        for n, digest in enumerate(digests):
            life_s = asked[1] if n > max(held, in_long) else longer[0][1] if n <= in_long else short[1]
            (short_until if life_s == short[1] else long_until)[digest] = at_s + life_s
    return total


def _marks(uses: Sequence[Use], held: Sequence[int], chances: Chances, lives: Sequence[float], most: int) -> dict[int, float]:
    """Block -> lifetime: up to where it is worth storing, for how long, what is read, and where others may part from it.
    `held`: blocks up to which the cache has it."""
    deepest = max(held, default=-1)
    fresh = [use for use in uses if use.block > deepest]
    last, last_long = _ends([[use.tokens * cost for cost in chances.costs(use.kind)] for use in fresh])
    end, end_long = (fresh[n].block if n >= 0 else -1 for n in (last, last_long))
    chosen = {block for block in (deepest, end, end_long) if block >= 0}
    sums = accumulate(use.tokens for use in uses)
    parting = [
        (tokens * chances.parts(use.kind), use.block)
        for use, tokens in zip(uses, sums, strict=True) if use.block in held or deepest < use.block < end
    ]  # fmt: skip
    for worth, block in sorted(parting, reverse=True):
        if worth > 0 and len(chosen) < most:
            chosen.add(block)
    return {block: lives[block <= end_long] for block in chosen}


def _ends(costs: Sequence[Sequence[float]]) -> tuple[int, int]:
    """Up to which piece it is cheapest to store, and up to which of those for long; of each piece what it costs not stored, for
    short, and (if that can be asked for) for long. -1: none."""
    cost = least = sum(bare for bare, *_ in costs)
    last = last_long = long = -1
    longer = longest = 0.0
    for n, (bare, short, *rest) in enumerate(costs):
        cost += short - bare
        for each in rest[:1]:
            longer += each - short
            if longer < longest:
                longest, long = longer, n
        if cost + longest < least:
            least, last, last_long = cost + longest, n, long
    return last, last_long


def _alone(piece: Piece, chances: Chances) -> float:
    """What a token of the piece really cost under the best plan."""
    forms = chances.forms
    total, held, last_s = 0.0, -1, 0.0
    for _, at_s, kind, _ in piece.uses:
        if held >= 0 and at_s - last_s <= forms[held].life_s:
            total += forms[held].read
        else:
            costs = chances.costs(kind)
            held = costs.index(min(costs))
            total += forms[held].write
        last_s = at_s
    return total
