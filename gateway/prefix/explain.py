"""Why a prompt was not read from a cache: the first difference to the nearest earlier one, its kind and what it lost.

The nearest earlier prompt is the conversation of the same domain that shares most of this one's bytes. A prompt that only
goes on from it lost its prefix for a reason outside the text (another lane, too late, too short, dropped by the provider);
else the first part that differs says what was changed, and within a text its pieces say where. Only the caller's own
isolation domain is looked at. A new conversation that merely shares its beginning is no miss.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.part import Part
from gateway.dialects.marking import unmarked
from gateway.dialects.parts import role_of
from gateway.prefix.difference import Difference, between
from gateway.prefix.history import USUAL, History, Sent, Talk, split_tools
from gateway.prefix.outline import likeness

MINIMUM_TOKENS = {"openai": 1_024, "azure": 1_024, "anthropic": 1_024, "bedrock": 1_024, "qwen": 1_024, "google": 1_024}
"""What a provider caches at least; some models ask for more (provider-caching, 4.2, 6.1, 8.1)."""
_ALIKE = 0.5
_SETTINGS = frozenset({
    "response_format", "parallel_tool_calls", "reasoning_effort", "verbosity", "text", "reasoning", "output_config",
    "output_format",
})  # fmt: skip
_TALK = frozenset({"messages", "input"})


@dataclass(frozen=True, slots=True)
class Miss:
    """`kind` is a word of `KINDS` (advice.py); `path:start:end` is the place in this request, characters of a text.

    `would_hit_tokens` is what would have been read but for it, `lost_tokens` what of that was not.
    """

    kind: str
    path: str
    start: int
    end: int
    would_hit_tokens: int
    lost_tokens: int
    earlier_us: int
    """When the earlier prompt was sent."""


def explain(history: History, sent: Sent, read: int) -> Miss | None:
    """None where nothing was missed: what was there was read, or nothing like this was sent before. `read`: tokens."""
    chain, tokens = sent.chain, sent.tokens
    if not chain.parts or tokens <= 0:
        return None
    ids = chain.names
    sizes = [part.block.weight for part in chain.parts]
    earlier = _nearest(history, sent, sizes)
    if earlier is None:
        return None
    same = next((n for n, (a, b) in enumerate(zip(earlier.ids, ids, strict=False)) if a != b), min(len(ids), len(earlier.ids)))
    if same == len(earlier.ids) or same == len(ids):
        shared = earlier.tokens if same == len(earlier.ids) else tokens * sum(sizes[:same]) // max(sum(sizes), 1)
        kind = _outside(earlier, sent, shared)
        return _miss(kind, "/model" if kind == "model" else "", 0, 0, min(shared, tokens), read, earlier)
    found = _first_difference(history, sent, earlier, same)
    if found is None:
        return None
    kept = _kept(earlier, ids, sizes, same)
    if earlier.model != sent.model:
        found = Difference("model", "/model", 0, 0)
    return _miss(found.kind, found.path, found.start, found.end, tokens * kept // max(sum(sizes), 1), read, earlier)


def _miss(kind: str, path: str, start: int, end: int, would: int, read: int, earlier: Talk) -> Miss | None:
    if read >= USUAL * would:
        return None
    return Miss(kind, path, start, end, would, would - read, earlier.at_us)


def _outside(earlier: Talk, sent: Sent, shared: int) -> str:
    """Why a prompt whose text only went on was not read."""
    if earlier.model != sent.model:
        return "model"
    if shared < MINIMUM_TOKENS.get(sent.provider, 0):
        return "below_minimum"
    if earlier.pool != sent.pool:
        return "other_lane"
    return "expiry" if sent.at_us - earlier.at_us > sent.ttl_s * 1e6 else "dropped"


def _nearest(history: History, sent: Sent, sizes: Sequence[int]) -> Talk | None:
    """The conversation with most bytes in common; where none has any, one whose first part is alike."""
    weight: dict[int, int] = {}
    for name, size in zip(sent.chain.names, sizes, strict=True):
        weight[name] = weight.get(name, 0) + size
    best, most = None, 0
    candidates = history.candidates(sent)
    for talk in candidates:
        shared = sum(weight.get(name, 0) for name in set(talk.ids))
        shared += talk.session == sent.chain.session
        if shared > most:
            best, most = talk, shared
    if best is not None:
        return best
    first = history.look(_value(sent, 0)).outline.pieces
    for talk in candidates:
        old = history.outline(sent.domain, talk.ids[0])
        if old is not None and likeness(old.pieces, first) >= _ALIKE:
            return talk
    return None


def _kept(earlier: Talk, ids: Sequence[int], sizes: Sequence[int], same: int) -> int:
    """Bytes of this prompt that would have been read had nothing changed: up to the last part that was there before."""
    known = set(earlier.ids)
    last = max((n for n in range(len(ids)) if ids[n] in known), default=-1)
    return sum(sizes[: max(last, same) + 1])


def _value(sent: Sent, at: int) -> bytes:
    """Part `at` as it counts for a cache: without marks."""
    part = sent.chain.parts[at]
    return unmarked(sent.body[part.start:part.end])


def _first_difference(history: History, sent: Sent, earlier: Talk, at: int) -> Difference | None:
    """What became of part `at`; None where two conversations only part ways there."""
    domain, ids, part, value = sent.domain, sent.chain.names, sent.chain.parts[at], _value(sent, at)
    old, field = earlier.ids[at], earlier.fields[at]
    if part.field != field:
        return _other_field(part, field)
    if field == "tools":
        return _tools(history, domain, old, value)
    if field in _SETTINGS:
        return Difference("settings", part.path, 0, 0)
    later, before = set(ids[at + 1:]), set(earlier.ids[at + 1:])
    if old in later and ids[at] in before:
        return Difference("order", part.path, 0, 0)
    if old in later:
        return Difference("inserted", part.path, 0, 0)
    if ids[at] in before:
        return Difference("cut", part.path, 0, 0)
    known = history.outline(domain, old)
    if known is None:
        return None
    talk = field in _TALK and role_of(sent.body, part) not in ("system", "developer")
    found = between(known, value, part.path, talk=talk, look=history.look, pause=history.pause)
    goes_on = bool(later & before)
    return found if goes_on or likeness(known.pieces, history.look(value).outline.pieces) >= _ALIKE else None


def _other_field(part: Part, field: str) -> Difference:
    if "tools" in (part.field, field):
        return Difference("tool_added" if part.field == "tools" else "tool_removed", "/tools", 0, 0)
    if part.field in _SETTINGS or field in _SETTINGS:
        return Difference("settings", f"/{part.field if part.field in _SETTINGS else field}", 0, 0)
    return Difference("system_added" if part.field not in _TALK else "system_removed", part.path, 0, 0)


def _tools(history: History, domain: str, old: int, value: bytes) -> Difference | None:
    """The first tool that differs: another order, one more, one less, or another text."""
    before, after = history.tools(domain, old), split_tools(value)
    if not before or not after:
        known = history.outline(domain, old)
        return None if known is None else between(known, value, "/tools", talk=False, look=history.look, pause=history.pause)
    was, now = [name for name, _ in before], [name for name, _, _ in after]
    at = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b[:2]), min(len(was), len(now)))
    path = f"/tools/{at}"
    if set(was) != set(now):
        added = at < len(now) and now[at] not in was
        return Difference("tool_added" if added or len(now) > len(was) else "tool_removed", path, 0, 0)
    if was != now:
        return Difference("tool_order", path, 0, 0)
    known = history.outline(domain, before[at][1]) if at < len(before) else None
    if at == len(before) or known is None:
        return Difference("json_form", "/tools", 0, 0)
    return between(known, after[at][2], path, talk=False, look=history.look, pause=history.pause)
