"""What some backends cannot take, made so that they can: tool names of any length, lifetimes in cache markers, and thinking
that another provider's model did and that nobody has signed.

Bodies are changed in place, by whole JSON strings: a quote within a string is escaped, so what stands between two quotes is a
string of its own. Everything else keeps its bytes.
"""
from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from gateway.core.errors import GatewayError
from gateway.core.outcome import Observed
from gateway.dialects.relay import StreamRelay

_LONGEST_NAME: Mapping[str, int] = {"openai_chat": 64, "openai_responses": 64, "anthropic_messages": 128}
"""How long a tool's name may be by the API that a dialect comes from."""
_DIGEST = 8
_MARKER = re.compile(rb'("cache_control"\s*:\s*)(\{[^{}]*"ttl"[^{}]*\})')
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_MEMBER = rb'"(?:type"\s*:\s*"thinking"|signature"\s*:\s*""|thinking"\s*:\s*' + _STRING + rb")"
_THOUGHT = rb"\{\s*" + _MEMBER + rb"\s*,\s*" + _MEMBER + rb"\s*,\s*" + _MEMBER + rb"\s*\}"
_UNSIGNED = re.compile(rb"(?<=\[)\s*(?:" + _THOUGHT + rb"\s*,\s*)+|,\s*" + _THOUGHT, re.DOTALL)
_NOT_SIGNED = re.compile(rb'"signature"\s*:\s*""')
Names = Sequence[tuple[bytes, bytes]]
"""Names as the client gave them and as the backend gets them, both as JSON strings."""


class _Function(msgspec.Struct):
    name: Any = None


class _Tool(msgspec.Struct):
    name: Any = None
    function: _Function | None = None


class _Body(msgspec.Struct):
    tools: list[_Tool] | None = None


_tools = msgspec.json.Decoder(_Body).decode


class Takes(Protocol):
    """What a backend takes: its dialect, lifetimes in cache markers, and how long a tool's name may be (None: as long as its
    dialect says)."""

    @property
    def dialect(self) -> str: ...
    @property
    def cache_ttl(self) -> bool: ...
    @property
    def max_tool_name(self) -> int | None: ...


def accepted(body: bytes, client: str, target: Takes) -> bytes:
    """A request that came in the dialect `client`, without what the backend would refuse it for."""
    if client == target.dialect == "anthropic_messages":
        body = without_unsigned(body)
    return body if target.cache_ttl else without_ttl(body)


def names_for(body: bytes, client: str, target: Takes) -> Names:
    """The tools of a request whose names are too long for the backend."""
    most = target.max_tool_name or (_LONGEST_NAME.get(target.dialect) if client != target.dialect else None)
    return () if most is None else long_names(body, most)


def long_names(body: bytes, most: int) -> Names:
    """The tools of a request whose names have more than `most` characters."""
    try:
        tools = _tools(body).tools or ()
    except msgspec.MsgspecError:    # of a shape that only its provider knows
        return ()
    names = (tool.function.name if tool.function is not None else tool.name for tool in tools)
    return [(_string(name), _string(short(name, most))) for name in names if isinstance(name, str) and len(name) > most]


def short(name: str, most: int) -> str:
    """The same for the same name in every turn, and another for another."""
    return f"{name[:most - _DIGEST - 1]}_{hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]}"


def shorten(body: bytes, names: Names) -> bytes:
    for long, brief in names:
        body = body.replace(long, brief)
    return body


def restore(answer: bytes, names: Names) -> bytes:
    for long, brief in names:
        answer = answer.replace(brief, long)
    return answer


def without_ttl(body: bytes) -> bytes:
    """Cache markers without a lifetime: the backend's own holds."""
    return _MARKER.sub(_without_ttl, body) if b'"ttl"' in body else body


def without_unsigned(body: bytes) -> bytes:
    """A conversation in Anthropic's dialect without the thinking that was translated from elsewhere: its empty signature would
    be refused. A turn of nothing else stays as it is."""
    return _UNSIGNED.sub(b"", body) if b'"signature"' in body and _NOT_SIGNED.search(body) else body


def _without_ttl(found: re.Match[bytes]) -> bytes:
    marker = msgspec.json.decode(found[2])
    marker.pop("ttl", None)
    return found[1] + msgspec.json.encode(marker)


def _string(name: str) -> bytes:
    return msgspec.json.encode(name)


class Restored:
    """A stream that tells tools by the names that the client gave them. A relay gives out whole events, so no name is cut."""

    def __init__(self, relay: StreamRelay, names: Names) -> None:
        self._relay, self._names = relay, names

    @property
    def observed(self) -> Observed:
        return self._relay.observed

    @property
    def started(self) -> bool:
        return self._relay.started

    @property
    def ended(self) -> bool:
        return self._relay.ended

    @property
    def complete(self) -> bool:
        return self._relay.complete

    def feed(self, chunk: bytes) -> bytes:
        return restore(self._relay.feed(chunk), self._names)

    def finish(self) -> bytes:
        return restore(self._relay.finish(), self._names)

    def fail(self, error: GatewayError) -> bytes:
        return restore(self._relay.fail(error), self._names)

    def cut(self) -> bytes:
        return restore(self._relay.cut(), self._names)

    def produced(self) -> str:
        return self._relay.produced()
