"""The places of a request where a mark may be worth while: few, chosen by what tends to be shared.

Behind the tools; inside the system prompt before its last block, and behind it; behind the message before the last; inside
the last message before its last block (a document before a question); at the end; and wherever the cache is known to hold a
prefix.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from gateway.dialects.splice import Span
from gateway.planner import marks

_ROLE_FIRST = re.compile(rb'\{\s*+"role"\s*+:\s*+"(\w+)"')
_ROLE = re.compile(rb'"role"\s*+:\s*+"(\w+)"')
_ROUTED_BYTES = 1024
_BEFORE_MESSAGES = {
    "anthropic_messages": ("tools", "system"), "openai_chat": ("tools",), "openai_responses": ("tools", "instructions"),
}  # fmt: skip
"""Prompt fields that are one part each, before the messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A request in its backend's dialect: its prompt's parts in rendered order, and the prefix chain over them."""

    dialect: str
    body: bytes
    spans: Mapping[str, Span]
    parts: Sequence[Span]
    digests: Sequence[bytes]
    ends: Sequence[int]
    root: str
    """Isolation domain and model, which the chain begins with too."""

    @property
    def first_message(self) -> int:
        """Index of the first part that is a message."""
        return sum(name in self.spans for name in _BEFORE_MESSAGES.get(self.dialect, ()))

    def role(self, part: int) -> bytes:
        """Who speaks in a message; empty where nobody is named."""
        found = _ROLE_FIRST.match(self.body, *self.parts[part]) or _ROLE.search(self.body, *self.parts[part])
        return found[1] if found else b""

    @property
    def session(self) -> int:
        """Index of the part that tells conversations apart: the first message of a user."""
        first = self.first_message
        for index in range(first, len(self.parts)):
            if self.role(index) == b"user":
                return index
        return min(first, len(self.parts) - 1)


    @property
    def beginning(self) -> bytes:
        """What a provider routes by: the first bytes of the prompt, which stay the same where later ones do not."""
        start, end = self.parts[0]
        return blake2b(self.body[start : min(end, start + _ROUTED_BYTES)], digest_size=16).digest()

    @property
    def opening(self) -> bytes:
        """What all requests of a conversation have in common, whatever else changes: its first message of a user."""
        return blake2b(self.body[slice(*self.parts[self.session])], digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Place:
    """One place for a mark: after `part`, or inside it after `block` (-1: its last)."""

    kind: str
    part: int
    end_bytes: int
    digest: bytes
    block: int = -1


def places(page: Page, end_kind: str, held: int) -> list[Place]:
    """In the order in which the prompt is rendered. `held`: index of the part up to which the cache has it (-1: none)."""
    first, last = page.first_message, len(page.parts) - 1
    anthropic = page.dialect == "anthropic_messages"
    found = [_after(page, "tools", 0)] if anthropic and "tools" in page.spans else []
    end_of_system = first - 1 if anthropic else _system_end(page, first)
    if end_of_system < last and ("system" in page.spans if anthropic else end_of_system >= first):
        found += _inside(page, "head", end_of_system, page.parts[end_of_system] if anthropic else None)
        found.append(_after(page, "system", end_of_system))
    if held > end_of_system and held < last:
        found.append(_after(page, "turn", held))
    elif last - 1 > end_of_system and held < last - 1:
        found.append(_after(page, "before", last - 1))
    if last > end_of_system:
        found += _inside(page, "before", last, None)
        found.append(_after(page, end_kind, last))
    return found


def _system_end(page: Page, first: int) -> int:
    """The last of the system's messages at the beginning; the part before them if there is none."""
    index = first
    while index < len(page.parts) - 1 and page.role(index) in (b"system", b"developer"):
        index += 1
    return index - 1


def _after(page: Page, kind: str, part: int) -> Place:
    return Place(kind, part, page.ends[part], page.digests[part])


def _inside(page: Page, kind: str, part: int, value: Span | None) -> list[Place]:
    """Before the last block of a part that has several; `value`: its list of blocks, if that is all of it."""
    start, end = page.parts[part]
    if value is None:
        value = marks.content(page.body, page.parts[part])
    if value is None or not page.body.startswith(b"[", value[0]):
        return []
    blocks = marks.blocks(page.body, value)
    if len(blocks) < 2:
        return []
    cut = blocks[-2][1]
    before = page.digests[part - 1] if part else page.root.encode()
    digest = blake2b(before + page.body[start:cut], digest_size=16).digest()
    return [Place(kind, part, page.ends[part] - (end - cut), digest, len(blocks) - 2)]
