"""Which addresses of pictures, sound and files a request may carry to an engine that would fetch them from inside our network.

A provider fetches from its own network, so its addresses travel. An engine of one's own stands among our machines: one that
is told `http://169.254.169.254/` asks the cloud for our credentials. So only `data:` goes there, unless the operator says
otherwise (`media_urls: pass`). What a tool was called with is not an address to fetch and is left alone.
"""
from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Sequence
from typing import Any

from gateway.core.errors import BadRequest
from gateway.core.part import Part
from gateway.dialects.limits import TooDeep

_FETCHED = ("image_url", "video_url", "audio_url", "file_url", "image", "video", "audio")
_INSIDE = (".local", ".internal", ".lan", ".svc", ".localhost", ".home.arpa")
_SAID = frozenset({"messages", "input", "system"})
_LEAST_DOTS = 1


class UrlNotAllowed(BadRequest):
    code = "url_not_allowed"


def is_inside(host: str) -> bool:
    """Whether a host is one of ours by its looks: a private address, or a name that only an inner resolver knows."""
    try:
        return not ipaddress.ip_address(host.strip("[]")).is_global
    except ValueError:
        return host.count(".") < _LEAST_DOTS or host.lower().endswith(_INSIDE)


class _Object(list[tuple[str, Any]]):
    """A JSON object with all its pairs: of a key that stands there twice one reader takes the first value, another the last."""

    def all(self, name: str) -> list[Any]:
        return [value for key, value in self if key == name]


def check(body: bytes, parts: Sequence[Part]) -> None:
    """Raises `UrlNotAllowed` if a part of the prompt names anything but `data:` to be fetched."""
    for part in parts:
        if part.block.content_fetches is False and part.field == "messages":
            continue
        if part.field in _SAID and (_content_fetches(body, part) if part.field == "messages" else _fetches(body, part)):
            text = "this model runs on an engine that fetches nothing: send pictures and files as data: URLs"
            raise UrlNotAllowed(text, param="messages")
        if part.field == "tools" and _calls_out(body, part):
            raise UrlNotAllowed("this model runs on an engine that calls no tool servers", param="tools")


def _content_fetches(body: bytes, part: Part) -> bool:
    block = part.block
    if block.content_fetches is None:
        value = body[part.start:part.end]   # the words below stand in the names of whatever is fetched
        named = b"\\" in value or b"url" in value or b"image" in value or b"video" in value or b"audio" in value
        block.content_fetches = named and any([_foreign(each) for each in _contents(_read(value))])
    return block.content_fetches


def _fetches(body: bytes, part: Part) -> bool:
    block = part.block
    if block.fetches is None:
        block.fetches = _foreign(_read(body[part.start:part.end]))
    return block.fetches


def _calls_out(body: bytes, part: Part) -> bool:
    """Whether a tool, or one of a list, is on a server that the engine would have to call, by address or by a name it knows."""
    block = part.block
    if block.calls_out is None:
        block.calls_out = _names_server(body[part.start:part.end])
    return block.calls_out


def _names_server(tools: bytes) -> bool:
    if not any([word in tools for word in (b"server_url", b"connector_id", b'"mcp', b"\\")]):
        return False
    value = _read(tools)
    each = [value] if isinstance(value, _Object) else value if isinstance(value, list) else []
    return any([isinstance(tool, _Object) and _on_server(tool) for tool in each])


def _on_server(tool: _Object) -> bool:
    types = [kind for kind in tool.all("type") if isinstance(kind, str)]
    return any([kind.startswith("mcp") for kind in types]) or bool(tool.all("server_url") or tool.all("connector_id"))


def _read(value: bytes) -> Any:
    try:
        return json.loads(value, object_pairs_hook=_Object, parse_int=len, parse_float=len)
    except RecursionError:
        raise TooDeep("The request body is nested too deeply.") from None


def _contents(message: Any) -> list[Any]:
    """What a message says; all of it, where its shape is odd."""
    return message.all("content") if isinstance(message, _Object) else [message]


def _foreign(value: Any) -> bool:
    """Whether it names an address that is no `data:`."""
    return not all([address.lstrip().lower().startswith("data:") for address in _addresses(value)])


def _addresses(value: Any) -> Iterator[str]:
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, _Object):
            types = part.all("type")
            if types and all([kind == "tool_use" for kind in types]):
                continue
            for name, inner in part:
                if name in _FETCHED or (name == "source" and isinstance(inner, _Object)):
                    yield from _named(inner)
                if isinstance(inner, list):
                    left.append(inner)
        elif isinstance(part, list):
            left += part


def _named(value: Any) -> Iterator[str]:
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, _Object):
            yield from (address for key in ("url", "uri") for address in part.all(key) if isinstance(address, str))
        elif isinstance(part, list):
            left += part
