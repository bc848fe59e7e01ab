"""What a request's head says, read once: a connection that sends the same head again pays for the look at its length only.

A client's library sends one head with every call of a connection, but for the length of the body. `Known` remembers the bytes
of the last one around that length; a packet that begins with them needs neither the HTTP parser nor a second reading. `Heads`
does it for all connections. Whose key it is, is asked anew each time, for it may have been revoked since.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway.access.keys import key_id, mark_of
from gateway.access.origins import FORWARDED, Origin
from gateway.core.call import Tenant

KEY_HEADERS = ("x-api-key", "api-key", "x-goog-api-key")
_PRIVATE = frozenset({"authorization", "cookie", "proxy-authorization", *KEY_HEADERS})
_END = b"\r\n\r\n"
_MOST_DIGITS = 9
_MOST_BYTES = 4_096
"""Of a head that all connections remember."""
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,9})[ \t]*(?=\r\n|\Z)", re.IGNORECASE)
_ANY_LENGTH = re.compile(rb"\r\n(?:content-length|transfer-encoding|expect|upgrade)[ \t]*:", re.IGNORECASE)


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """A head, whoever sends it; what a `Call` takes over of it."""

    headers: Mapping[str, str]
    """Lower-case names; credentials and cookies taken out."""
    key: str | None
    """The key that is shown."""
    mark: bytes
    """What `KeyRing.tenant` knows it by."""
    client: str
    """The User-Agent's first product, lower case."""
    tags: Mapping[str, str]
    run: str | None
    parent_run: str | None
    subgoal: str | None
    forwarded: str | None
    """All lines of `X-Forwarded-For`."""
    sent: dict[Any, Any]
    """Memo of `backends.upstream`: what goes on of it, for each target."""


def read(raw_headers: Iterable[tuple[bytes, bytes]]) -> Head:
    """Names are lower case already."""
    raw_headers = list(raw_headers)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw_headers}
    forwarded = headers.get(FORWARDED)
    if forwarded is not None and len(headers) < len(raw_headers):  # the line of the nearest proxy is the last one
        forwarded = ",".join([value.decode("latin-1") for name, value in raw_headers if name == FORWARDED.encode()])
    key = presented_key(headers)
    if not _PRIVATE.isdisjoint(headers):
        headers = {name: value for name, value in headers.items() if name not in _PRIVATE}
    return Head(
        headers=headers,
        key=key,
        mark=mark_of(key),
        client=headers.get("user-agent", "").split(" ", 1)[0].lower()[:80],
        tags=tags(told) if (told := headers.get("x-tollway-tags")) else {},
        run=_name(headers.get("x-tollway-run")),
        parent_run=_name(headers.get("x-tollway-parent-run")),
        subgoal=_name(headers.get("x-tollway-subgoal")),
        forwarded=forwarded,
        sent={},
    )


class Visit(msgspec.Struct, frozen=True):
    """A request whose head has been read and whose caller is known."""

    dialect: str
    path: str
    head: Head
    origin: Origin
    tenant: Tenant
    at_us: int
    came_s: float
    """The same on the clock that never jumps."""
    body_bytes: int | None
    """As the head declares it; None where it says nothing."""


class Known(msgspec.Struct, frozen=True):
    """A head that came on this connection, without the digits of its length."""

    before: bytes
    after: bytes
    visit: Visit
    """The one with which it came."""
    keep_alive: bool

    def framed(self, data: bytes) -> tuple[int, int] | None:
        """Where the body begins in a packet that begins with this head, and how long it is; None for any other packet."""
        start = len(self.before)
        if not data.startswith(self.before):
            return None
        digits_end = data.find(b"\r", start, start + _MOST_DIGITS + 1)
        if digits_end < 0 or not data.startswith(self.after, digits_end):
            return None
        digits = data[start:digits_end]
        return (digits_end + len(self.after), int(digits)) if digits.isdigit() else None


class Heads:
    """Heads that came lately on any connection, by their bytes: where one carries calls of many clients, as behind a proxy, the
    head of the request before is another's."""

    def __init__(self, most: int = 1_024) -> None:
        self._most = most
        self._known: dict[tuple[bytes, bytes], Known] = {}

    def keep(self, known: Known) -> None:
        """In place of the one that was longest not asked for; an endless one is not kept."""
        if len(known.before) + len(known.after) > _MOST_BYTES:
            return
        if len(self._known) >= self._most:
            del self._known[next(iter(self._known))]
        self._known[known.before, known.after] = known

    def find(self, data: bytes) -> Known | None:
        """The one that a packet begins with; None: it has not come lately."""
        end = data.find(_END)
        place = _LENGTH.search(data, 0, end) if end > 0 else None
        if place is None:
            return None
        key = data[: place.start(1)], data[place.end(1) : end + len(_END)]
        found = self._known.pop(key, None)
        if found is not None:
            self._known[key] = found
        return found


def known(data: bytes, visit: Visit, *, keep_alive: bool) -> Known | None:
    """What to remember of a packet that began with this head; None where its framing is not the plain one."""
    end = data.find(_END)
    place = _LENGTH.search(data, 0, end) if data.startswith(b"POST /") else None
    if place is None or len(_ANY_LENGTH.findall(data, 0, end)) != 1:
        return None
    return Known(data[: place.start(1)], data[place.end(1) : end + len(_END)], visit, keep_alive)


def head_lines(status: int, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """An answer's head but for the empty line. Raises `ValueError` for a header with a line break in it."""
    lines = b"%b: %b\r\n" * len(headers) % tuple(chain.from_iterable(headers))
    if lines.count(b"\n") != len(headers) or lines.count(b"\r") != len(headers) or b"\0" in lines:
        raise ValueError("a header of an answer has a line break in it")
    return STATUS_LINE[status] + lines


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key a request shows, in `Authorization: Bearer` or a header of a provider's own: ours where an app sends several."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind == "Bearer" and headers.keys().isdisjoint(KEY_HEADERS):
        return token.strip()
    texts = [token if kind.lower() == "bearer" else "", *(headers.get(name, "") for name in KEY_HEADERS)]
    shown = [text.strip() for text in texts if text.strip()]
    return next((text for text in shown if key_id(text)), shown[0] if shown else None)


def tags(text: str) -> dict[str, str]:
    """`a=b,c=d`; what does not look like that is left out."""
    pairs = (pair.partition("=") for pair in text.split(",")[:20])
    return {k.strip()[:64]: v.strip()[:128] for k, eq, v in pairs if eq and k.strip() and (k + v).isprintable()}


def _name(text: str | None) -> str | None:
    return text[:128] if text and text.isprintable() else None
