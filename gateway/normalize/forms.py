"""Forms of the same thing, and which of them stands for all: the one that an isolation domain sent first.

Two tool lists are of one kind if their canonical JSON is the same: read strictly, which leaves white space and string
escapes aside, or as sets, which also leaves aside the order of the tools and of the keys of their JSON. The order of
properties stays part of a kind where the tool is strict, since it is then the order in which the model writes.
"""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import orjson

_MAX_KINDS = 50_000
_MAX_BYTES, _ENTRY_BYTES = 32 * 1024 * 1024, 256


class Forms:
    """Bounded, least recently used out first."""

    def __init__(self) -> None:
        self._kind_of: OrderedDict[bytes, bytes | None] = OrderedDict()
        self._first: OrderedDict[bytes, bytes] = OrderedDict()
        self._values: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0
        self.fresh: dict[bytes, tuple[bytes, bytes]] | None = None
        """Kind -> the form that stands for it, and its bytes."""

    def kind(self, domain: str, value: bytes, *, sets: bool) -> tuple[bytes, bytes] | None:
        """(form, kind) of a tool list, both as digests; None if it is no list of objects. A known form costs one hash."""
        root = f"{sets}\0{domain}\0".encode("utf-8", "replace")
        form = sha256(root + value).digest()[:16]
        if form in self._kind_of:
            self._kind_of.move_to_end(form)
            kind = self._kind_of[form]
        else:
            text = canonical(value, sets=sets)
            kind = None if text is None else sha256(root + text).digest()[:16]
            self._kind_of[form] = kind
            if len(self._kind_of) > _MAX_KINDS:
                self._kind_of.popitem(last=False)
        return None if kind is None else (form, kind)

    def first(self, kind: bytes, form: bytes, value: bytes) -> bytes:
        """The form that stands for a kind in its domain: this one, if it is the first or the other was forgotten."""
        known = self._first.get(kind)
        if known is None or known not in self._values:
            self._first[kind] = known = form
            if len(self._first) > _MAX_KINDS:
                self._first.popitem(last=False)
            self.keep(form, value)
            if self.fresh is not None:
                self.fresh[kind] = (form, value)
        return known

    def take(self, pairs: Iterable[tuple[bytes, tuple[bytes, bytes]]]) -> None:
        """Forms that other processes saw first; what is known here stays."""
        for kind, (form, value) in pairs:
            known = self._first.get(kind)
            if known is None or known not in self._values:
                self._first[kind] = form
                if len(self._first) > _MAX_KINDS:
                    self._first.popitem(last=False)
            self.keep(form, value)

    def keep(self, form: bytes, value: bytes) -> None:
        if form in self._values:
            self._values.move_to_end(form)
            return
        self._values[form] = value
        self._bytes += len(value) + _ENTRY_BYTES
        while self._bytes > _MAX_BYTES and len(self._values) > 1:
            _, gone = self._values.popitem(last=False)
            self._bytes -= len(gone) + _ENTRY_BYTES

    def value(self, form: bytes) -> bytes | None:
        """The bytes of a form, if they are still known."""
        found = self._values.get(form)
        if found is not None:
            self._values.move_to_end(form)
        return found


def canonical(value: bytes, *, sets: bool) -> bytes | None:
    """One text for all forms of a kind; None for what is no list of objects, or repeats a name."""
    try:
        tools = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        return None
    if not sets:
        return orjson.dumps(tools)
    names = [name_of(tool) for tool in tools]
    if len(set(names)) < len(names):  # which of two is meant may hang on their order
        return b"\0" + orjson.dumps(tools)
    return b"\n".join(sorted(orjson.dumps(_keyed(tool), option=orjson.OPT_SORT_KEYS) for tool in tools))


def name_of(tool: dict[str, Any]) -> str:
    """A tool's name in any dialect; tools without one are known by their type."""
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else tool.get("name")
    return name if isinstance(name, str) else f"\0{tool.get('type')}"


def _keyed(tool: dict[str, Any]) -> Any:
    """The tool with the order of its properties made part of it, if it is strict."""
    function = tool.get("function")
    strict = tool.get("strict") is True or (isinstance(function, dict) and function.get("strict") is True)
    return _ordered(tool) if strict else tool


def _ordered(value: Any) -> Any:
    if isinstance(value, list):
        return [_ordered(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _ordered(item) for key, item in value.items()}
    properties = value.get("properties")
    return {**found, "\0order": list(properties)} if isinstance(properties, dict) else found
