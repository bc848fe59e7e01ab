"""The places of a request where a mark may be worth while: few, chosen by what tends to be shared.

Behind the tools; inside the system prompt before its last block, and behind it; behind the message before the last; inside
the last message before its last block (a document before a question); at the end; and wherever the cache is known to hold a
prefix.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b

import msgspec

from gateway.core.part import Part
from gateway.dialects.parts import role_of
from gateway.dialects.splice import Span
from gateway.planner import marks

_ROUTED_BYTES = 1024
_BEFORE = {"opening": "before", "turn": "before_turn", "slow": "before_slow"}
_MESSAGES = frozenset({"messages", "input"})
_WORDS = re.compile(rb'"(?:content|text)"\s*:\s*"')


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A request in its backend's dialect: its prompt's parts in rendered order, and the prefix chain over them."""

    dialect: str
    body: bytes
    spans: Mapping[str, Span]
    parts: Sequence[Part]
    keys: Sequence[int]
    ends: Sequence[int]
    root: str
    """Isolation domain and model, which the chain begins with too."""
    marked: bool = True
    """Whether the client's own markers may stand in the body."""
    session: str = ""
    """Names the conversation, whatever changes around it; empty where that is not known."""

    @property
    def first_message(self) -> int:
        """Index of the first part that is a message."""
        return next((n for n, part in enumerate(self.parts) if part.field in _MESSAGES), len(self.parts))

    @property
    def opening(self) -> int:
        """Index of the part that tells conversations apart: the first message of a user."""
        first = self.first_message
        for index in range(first, len(self.parts)):
            if role_of(self.body, self.parts[index]) == "user":
                return index
        return min(first, len(self.parts) - 1)

    @property
    def beginning(self) -> bytes:
        """What a provider routes by: the first bytes of the prompt, which stay the same where later ones do not. A message's
        are those of its words, however they are wrapped."""
        start, end = self.parts[0].span
        if self.parts[0].field in _MESSAGES and (words := _WORDS.search(self.body, start, end)):
            start = words.end()
        return blake2b(self.body[start : min(end, start + _ROUTED_BYTES)], digest_size=16).digest()


class Place(msgspec.Struct, frozen=True):
    """One place for a mark: after `part`, or inside it after `block` (-1: its last)."""

    kind: str
    part: int
    end_bytes: int
    key: int
    block: int = -1


def places(page: Page, end_kind: str, held: int, sent: int = -1, *, marked: bool = True) -> list[Place]:
    """In the order in which the prompt is rendered. `held`: index of the part up to which the cache has it, `sent`: up to which
    an earlier request had it (-1: none). `marked`: what is stored ends at a mark, so only places that can bear one count."""
    first, last = page.first_message, len(page.parts) - 1
    fields = [part.field for part in page.parts[:first]]
    anthropic = page.dialect == "anthropic_messages"
    end_of_system = first - 1 if anthropic else _system_end(page, first)
    found = []
    if (anthropic or not marked) and "tools" in fields and last > fields.index("tools"):
        found.append(_after(page, "tools", fields.index("tools")))
    if end_of_system < last and ("system" in fields if anthropic else end_of_system >= first):
        if not anthropic:
            found += _inside(page, "head", end_of_system)
        elif fields.count("system") > 1:
            found.append(_after(page, "head", end_of_system - 1))
        found.append(_after(page, "system", end_of_system))
    if held > end_of_system and held < last:
        found.append(_after(page, "again", held))
    if max(end_of_system, held) < sent < last - 1:
        found.append(_after(page, "again", sent))
    before = _BEFORE[end_kind]
    for index in range(max(held, sent, end_of_system) + 1, last - 1)[-2:]:
        found.append(_after(page, before, index))
    if max(held, end_of_system) < last - 1:
        found.append(_after(page, before, last - 1))
    if last > end_of_system:
        found += _inside(page, before, last)
        found.append(_after(page, end_kind, last))
    return found


def _system_end(page: Page, first: int) -> int:
    """The last of the system's messages at the beginning; the part before them if there is none."""
    index = first
    while index < len(page.parts) - 1 and role_of(page.body, page.parts[index]) in ("system", "developer"):
        index += 1
    return index - 1


def _after(page: Page, kind: str, part: int) -> Place:
    return Place(kind, part, page.ends[part], page.keys[part])


def _inside(page: Page, kind: str, part: int) -> list[Place]:
    """Before the last block of a message that has several."""
    start, end = page.parts[part].span
    blocks, cut = inner(page.body, page.parts[part])
    if blocks < 2:
        return []
    before = page.keys[part - 1].to_bytes(8) if part else page.root.encode("utf-8", "replace")
    key = int.from_bytes(blake2b(before + page.body[start : start + cut], digest_size=8).digest())
    whole, earlier = page.ends[part], page.ends[part - 1] if part else 0
    return [Place(kind, part, max(whole - (end - start - cut), earlier), key, blocks - 2)]


def inner(body: bytes, part: Part) -> tuple[int, int]:
    """How many blocks a message's content has, and where in the message the last but one ends."""
    block = part.block
    if block.inner is None:
        value = marks.content(body, (part.start, part.end))
        found = marks.blocks(body, value) if value is not None else []
        block.inner = (len(found), found[-2][1] - part.start if len(found) > 1 else 0)
    return block.inner
