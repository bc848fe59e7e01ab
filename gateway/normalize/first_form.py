"""The form of the tools that was seen first in a domain is the one that travels.

Some clients send the same tools in another order, or the same JSON with other white space or key order, from call to
call; each such difference is a new prefix to a cache. Two tool lists are the same if their canonical JSON is: at level
`lossless` that leaves only white space, string escapes and the like aside, from `equivalent` on also the order of keys
and of the tools themselves. Whatever a client sends consistently is therefore never touched.
"""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from hashlib import sha256

import orjson

_MARKER = b'"cache_control"'
_MAX_FORMS = 20_000
_MAX_BYTES, _ENTRY_BYTES = 32 * 1024 * 1024, 256


class FirstForms:
    """Digest of a form -> the form that stands for it; bounded, oldest out first."""

    def __init__(self) -> None:
        self._stands_for: OrderedDict[bytes, bytes] = OrderedDict()
        self._first: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0

    def resolve(self, level: str, domain: str, value: bytes) -> bytes | None:
        """The first form equal to `value` at this level, or None if `value` cannot be read. A known form costs one hash."""
        root = f"{level}\0{domain}\0".encode()
        seen = sha256(root + value).digest()
        form = self._stands_for.get(seen)
        if form is None:
            canonical = _canonical(value, sort=level != "lossless")
            if canonical is None:
                return None
            form = self._first_of(sha256(root + canonical).digest(), value)
            self._stands_for[seen] = form
            if len(self._stands_for) > _MAX_FORMS:
                self._stands_for.popitem(last=False)
        return form

    def _first_of(self, kind: bytes, value: bytes) -> bytes:
        form = self._first.get(kind)
        if form is not None:
            return form
        self._first[kind] = value
        self._bytes += len(value) + _ENTRY_BYTES
        while self._bytes > _MAX_BYTES:  # forgotten whole, so that no form stands for one that is gone
            _, gone = self._first.popitem(last=False)
            self._bytes -= len(gone) + _ENTRY_BYTES
            self._stands_for = OrderedDict((k, v) for k, v in self._stands_for.items() if v is not gone)
        return value


def first_form(
    memory: FirstForms, level: str, domain: str, body: bytes, spans: Mapping[str, tuple[int, int]]
) -> tuple[str, bytes] | None:
    """Lossless for the JSON form, equivalent for the order; tools that the client marked itself are left alone."""
    span = spans.get("tools")
    if span is None:
        return None
    value = body[slice(*span)]
    if _MARKER in value:
        return None
    form = memory.resolve(level, domain, value)
    return None if form is None or form == value else ("tools", form)


def _canonical(value: bytes, *, sort: bool) -> bytes | None:
    try:
        tools = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(tools, list):
        return None
    if not sort:
        return orjson.dumps(tools)
    return b"\n".join(sorted(orjson.dumps(tool, option=orjson.OPT_SORT_KEYS) for tool in tools))
