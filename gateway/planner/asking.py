"""How a choice is said to the provider: marks in the request's blocks, or a lifetime; and what the client has said itself."""
from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from gateway.dialects.splice import Edit
from gateway.planner import marks
from gateway.planner.caches import BREAKPOINT, MARK, CacheRules
from gateway.planner.choice import Choice, Rates, Segment, to_go
from gateway.planner.places import Page, Place
from gateway.planner.values import Planned, Stored

_LONG = re.compile(rb'"ttl"\s*:\s*"(?!5m")')
"""A lifetime in a client's mark that is not the short one."""
_RANK = {
    "end": 0, "held": 1, "long": 2, "system": 3, "before": 4, "before_turn": 4, "before_slow": 4, "again": 5, "often": 5,
    "head": 6, "tools": 7,
}  # fmt: skip



class Own(NamedTuple):
    """What the client has marked itself: parts with its marks, how many more there may be, and behind which part."""

    parts: Sequence[int] = ()
    free: int = 4
    behind: int = -1


def clients_own(page: Page, rules: CacheRules) -> Own | None:
    """None: what the client asked for stands as it is, since nothing may be or need be added to it."""
    if "prompt_cache_options" in page.spans:
        return None
    mark = b'"%s"' % (rules.mark or "").encode()
    if rules.mark in page.spans:
        return None
    if not page.marked or rules.mark is None or mark not in page.body:
        return Own(free=rules.most_marks)
    free = rules.most_marks - page.body.count(mark)
    if rules.ends_are_marked or free <= 0:
        return None
    parts = [n for n, part in enumerate(page.parts) if part.block.marked and mark in page.body[part.start : part.end]]
    long = [n for n in parts if _LONG.search(page.body, page.parts[n].start, page.parts[n].end)]
    return Own(parts, free, max(long, default=-1)) if parts else None


class Laid(NamedTuple):
    """A prompt cut at the places where a mark may stand. `tokens`: of all of it up to each; `held`: the last place that the
    cache has (-1: none), `held_long` for the long lifetime; before `reach` nothing would be stored; `sent`: the last part up to
    which an earlier request had it."""

    page: Page
    rules: CacheRules
    own: Own
    places: Sequence[Place]
    tokens: Sequence[int]
    held: int
    held_long: bool
    reach: int
    sent: int = -1

    def stored(self, life_s: float) -> list[Stored]:
        """All of it, for that long."""
        return [Stored(place.key, life_s, end) for place, end in zip(self.places, self.tokens, strict=True)]

    @property
    def held_key(self) -> int:
        return self.places[self.held].key if self.held >= 0 else 0


def at_marks(laid: Laid, choice: Choice, base: Planned) -> Planned:
    """Marks at the chosen places, or the word that nothing is to be stored."""
    page, rules, last = laid.page, laid.rules, len(laid.places) - 1
    lives = list(rules.lives.items())
    edits: list[Edit] = []
    stored: list[Stored] = list(base.stored)
    receipts = list(base.receipts)
    for index in _worth_a_mark(laid, choice):
        name, life_s = lives[1 if index <= choice.last_long else 0]
        place, whole = laid.places[index], Stored(laid.places[index].key, life_s, laid.tokens[index])
        if index < laid.reach:
            continue
        if rules.ends_are_marked and index == choice.last == last and choice.last_long < index:
            stored.append(whole)  # the provider does it by itself
            continue
        edit = _edit(page, place, _mark(rules, name, default=name == lives[0][0]))
        if edit is None:
            continue
        edits.append(edit)
        stored.append(whole)
        receipts.append({"pass": "cache_mark", "place": _name(page, place), "before": "", "after": name})
    fields = marks.fields(page.body, page.spans, edits)
    if rules.ends_are_marked and choice.last < last:
        fields["prompt_cache_options"] = b'{"mode":"explicit"}'
        receipts.append({"pass": "cache_mark", "place": "prompt_cache_options", "before": "", "after": "explicit"})
    return replace(
        base,
        fields={**base.fields, **{name: msgspec.Raw(value) for name, value in fields.items()}},
        receipts=receipts,
        stored=sorted(stored, key=attrgetter("tokens")),
        held=laid.held_key,
    )


def for_lifetime(laid: Laid, segments: Sequence[Segment], rates: Rates) -> Choice:
    """The provider stores everything; only for how long can be chosen."""
    fresh = [(each.tokens, to_go(each, rates).stored) for each in segments[laid.held + 1 :]]
    costs = [sum([tokens * cost[n] for tokens, cost in fresh]) for n in range(len(rates.writes))]
    last = len(laid.places) - 1
    return Choice(last, last if costs.index(min(costs)) else -1, min(costs))


def with_lifetime(laid: Laid, choice: Choice, base: Planned) -> Planned:
    """The choice in the request's field; the short time need not be said."""
    rules = laid.rules
    short, asked = next(iter(rules.lives)), list(rules.lives)[choice.last_long >= 0]
    base = replace(base, stored=laid.stored(rules.lives[asked]), held=laid.held_key)
    if asked == short or rules.lifetime_field is None:
        return base
    receipt = {"pass": "cache_mark", "place": rules.lifetime_field, "before": "", "after": asked}
    value = msgspec.Raw(msgspec.json.encode({"mode": "implicit", "ttl": asked}))
    return replace(base, fields={**base.fields, rules.lifetime_field: value}, receipts=[*base.receipts, receipt])


def _worth_a_mark(laid: Laid, choice: Choice) -> list[int]:
    """Of the places up to the last that is stored, the ones that get the marks there are: the end, what is held, what is
    shared."""
    found, held, own = laid.places, laid.held, laid.own
    last = max(choice.last, held)
    if last < 0:
        return []
    rank = {index: _RANK.get(found[index].kind, 9) for index in range(last + 1)}
    for index, name in ((choice.last_long, "long"), (held, "held"), (last, "end")):
        if index >= 0:
            rank[index] = _RANK[name]
    may = [index for index in rank if found[index].part > own.behind and found[index].part not in own.parts]
    return sorted(sorted(may, key=lambda index: (rank[index], -index))[: own.free])


def _edit(page: Page, place: Place, mark: bytes) -> Edit | None:
    part = page.parts[place.part]
    span = part.span
    if place.kind == "tools":
        return marks.on_last_tool(page.body, span, mark) if page.dialect == "anthropic_messages" else None
    if part.field == "system":
        return marks.on_content(page.body, span, mark, page.dialect) if part.item < 0 else marks.on_block(page.body, span, mark)
    value = marks.content(page.body, span)
    return None if value is None else marks.on_content(page.body, value, mark, page.dialect, place.block)


def _mark(rules: CacheRules, life: str, *, default: bool) -> bytes:
    kind = b'"type":"ephemeral"' if rules.mark == MARK else b'"mode":"explicit"'
    ttl = b"" if default else b',"ttl":"%s"' % life.encode()
    return b'"%s":{%s%s}' % ((rules.mark or BREAKPOINT).encode(), kind, ttl)


def _name(page: Page, place: Place) -> str:
    """As a JSON Pointer; a content's last block is `-1`."""
    part = page.parts[place.part]
    if part.field == "tools":
        return "/tools/-1"
    return part.path if part.field == "system" else f"{part.path}/content/{place.block}"
