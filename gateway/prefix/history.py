"""The latest prompt of each conversation, part by part, as outlines: what a later prompt is compared with.

Keyed by isolation domain: nobody is compared with another's prompts. Bounded by bytes, oldest out first; parts that
several conversations share are kept once. No text of a prompt is held.
"""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from gateway.core.errors import BadRequest
from gateway.dialects import splice
from gateway.dialects.marking import unmarked
from gateway.prefix.chain import Chain
from gateway.prefix.outline import Looked, Outline, look, part_id

MAX_BYTES = 32 * 1024 * 1024
_PART_BYTES, _TALK_BYTES = 24, 700
_RECENT = 8
USUAL = 0.8
"""A read of this share of what was there is a hit: caches count in blocks."""


class Sent(msgspec.Struct, kw_only=True):
    """A prompt as one attempt sent it, `at_us`, and how long its `pool` keeps it. `domain`: nobody else's is compared with it;
    `tokens`: its whole input by the provider's count."""

    domain: str
    chain: Chain
    model: str
    body: bytes
    pool: str
    provider: str
    at_us: int
    tokens: int
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Talk:
    """One conversation as it stood in its latest call."""

    session: str
    model: str
    pool: str
    at_us: int
    tokens: int
    fields: tuple[str, ...]
    ids: tuple[int, ...]
    keys: tuple[int, ...]


class _Function(msgspec.Struct):
    name: str = ""


class _Tool(msgspec.Struct):
    name: str = ""
    type: str = ""
    function: _Function | None = None


_tool = msgspec.json.Decoder(_Tool)


class History:
    """One per process; a domain's conversations by their session, and where each part was seen last."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.pause: Callable[[], None] = lambda: None
        """Called every few pieces of a part that is new: this is work that may take long."""
        self._talks: OrderedDict[tuple[str, str], Talk] = OrderedDict()
        self._seen: OrderedDict[tuple[str, int], tuple[str, str]] = OrderedDict()
        self._outlines: OrderedDict[tuple[str, int], Outline | tuple[tuple[str, int], ...]] = OrderedDict()
        self._recent: dict[str, list[tuple[str, str]]] = {}
        self._looked: dict[bytes, Looked] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._talks)

    def note(self, sent: Sent) -> None:
        """Keeps an answered prompt, and what of it is new."""
        domain, chain = sent.domain, sent.chain
        parts = chain.parts
        if not self.max_bytes or not parts:
            return
        ids, key = chain.names, (domain, chain.session)
        for part, name in zip(parts, ids, strict=True):
            if (domain, name) not in self._outlines:
                self._keep(domain, name, unmarked(sent.body[part.start:part.end]), part.field)
                self.pause()
            else:
                self._outlines.move_to_end((domain, name))
            self._seen[domain, name] = key
        gone = self._talks.pop(key, None)
        if gone is not None:
            self.bytes -= _TALK_BYTES + _PART_BYTES * len(gone.ids)
        fields = tuple(part.field for part in parts)
        self._talks[key] = Talk(chain.session, sent.model, sent.pool, sent.at_us, sent.tokens, fields, ids, chain.keys)
        self.bytes += _TALK_BYTES + _PART_BYTES * len(ids)
        recent = self._recent.setdefault(domain, [])
        if key in recent:
            recent.remove(key)
        recent.append(key)
        del recent[:-_RECENT]
        while self.bytes > self.max_bytes and self._talks:
            self._forget()
        self.done()

    def done(self) -> None:
        """The prompt at hand is not needed any more; `note` says so itself."""
        self._looked.clear()

    def look(self, value: bytes) -> Looked:
        """A part of the prompt at hand: taken apart once, though it is compared with others and then kept."""
        found = self._looked.get(value)
        if found is None:
            found = self._looked[value] = look(value, self.pause)
        return found

    def worth(self, sent: Sent, read: int) -> bool:
        """False if this prompt goes on from its conversation's last one and most of that was read: the usual turn."""
        talk = self._talks.get((sent.domain, sent.chain.session))
        if not self.max_bytes:
            return False
        return talk is None or talk.keys != sent.chain.keys[: len(talk.keys)] or read < USUAL * talk.tokens

    def candidates(self, sent: Sent) -> list[Talk]:
        """Earlier conversations that this prompt may go on from or share its beginning with, the same one first."""
        domain, ids = sent.domain, sent.chain.names
        keys = [(domain, sent.chain.session)]
        keys += [key for name in (*ids[:6], *ids[-6:]) if (key := self._seen.get((domain, name))) is not None]
        keys += reversed(self._recent.get(domain, []))
        return [talk for key in dict.fromkeys(keys) if (talk := self._talks.get(key)) is not None]

    def outline(self, domain: str, name: int) -> Outline | None:
        found = self._outlines.get((domain, name))
        return found if isinstance(found, Outline) else None

    def tools(self, domain: str, name: int) -> tuple[tuple[str, int], ...]:
        """(name, part id) of each tool of a list that was seen."""
        found = self._outlines.get((domain, name), ())
        return () if isinstance(found, Outline) else found

    def _keep(self, domain: str, name: int, value: bytes, field: str) -> None:
        if field == "tools" and (listed := split_tools(value)):
            for _, tool, each in listed:
                if (domain, tool) not in self._outlines:
                    self._put(domain, tool, self.look(each).outline)
            self._put(domain, name, tuple((title, tool) for title, tool, _ in listed))
        else:
            self._put(domain, name, self.look(value).outline)

    def _put(self, domain: str, name: int, what: Outline | tuple[tuple[str, int], ...]) -> None:
        self._outlines[domain, name] = what
        self.bytes += what.size if isinstance(what, Outline) else 200 + 120 * len(what)

    def _forget(self) -> None:
        """The oldest conversation, and the parts that were seen before it."""
        _, talk = self._talks.popitem(last=False)
        self.bytes -= _TALK_BYTES + _PART_BYTES * len(talk.ids)
        for _ in range(max(len(self._outlines) // max(len(self._talks), 1), 1)):
            if self._outlines:
                _, gone = self._outlines.popitem(last=False)
                self.bytes -= gone.size if isinstance(gone, Outline) else 200 + 120 * len(gone)
        while len(self._seen) > max(len(self._outlines), 1):
            self._seen.popitem(last=False)


def split_tools(value: bytes) -> list[tuple[str, int, bytes]]:
    """(name, part id, bytes) of each tool; nothing for what is no list of them."""
    try:
        places = splice.items(value, 0, len(value))
        found = [_tool.decode(value[start:end]) for start, end in places]
    except (msgspec.MsgspecError, BadRequest, UnicodeDecodeError, RecursionError):
        return []
    titles = [one.name or (one.function.name if one.function else "") or one.type for one in found]
    return [(title, part_id(value[a:b]), value[a:b]) for title, (a, b) in zip(titles, places, strict=True)]
