"""Which addresses of pictures, sound and files a request may carry to an engine that would fetch them from inside our network.

A provider fetches from its own network, so its addresses travel. An engine of one's own stands among our machines: one that
is told `http://169.254.169.254/` asks the cloud for our credentials. So only `data:` goes there, unless the operator says
otherwise (`media_urls: pass`). What a tool was called with is not an address to fetch and is left alone.
"""
from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from gateway.core.errors import BadRequest
from gateway.core.part import Part

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


class _Message(msgspec.Struct):
    """A message whose content is not looked into unless it has parts: words alone name nothing to fetch."""

    content: msgspec.Raw = msgspec.Raw(b"")


_message = msgspec.json.Decoder(_Message).decode


def check(body: bytes, parts: Sequence[Part]) -> None:
    """Raises `UrlNotAllowed` if a part of the prompt names anything but `data:` to be fetched."""
    for part in parts:
        if part.block.content_fetches is False and part.field == "messages":
            continue
        if part.field in _SAID and (_content_fetches(body, part) if part.field == "messages" else _fetches(body, part)):
            text = "this model runs on an engine that fetches nothing: send pictures and files as data: URLs"
            raise UrlNotAllowed(text, param="messages")


def _content_fetches(body: bytes, part: Part) -> bool:
    block = part.block
    if block.content_fetches is None:
        value = body[part.start:part.end]   # the words below stand in the names of whatever is fetched
        if b"\\" in value or b"url" in value or b"image" in value or b"video" in value or b"audio" in value:
            with suppress(msgspec.MsgspecError):  # an odd shape: look at all of it
                value = bytes(_message(value).content)
            block.content_fetches = _foreign(value)
        else:
            block.content_fetches = False
    return block.content_fetches


def _fetches(body: bytes, part: Part) -> bool:
    block = part.block
    if block.fetches is None:
        block.fetches = _foreign(body[part.start:part.end])
    return block.fetches


def _foreign(value: bytes) -> bool:
    """Whether it names an address that is no `data:`."""
    if value[:1] not in (b"[", b"{"):
        return False
    return not all(address.lstrip().lower().startswith("data:") for address in _addresses(msgspec.json.decode(value)))


def _addresses(part: Any) -> Iterator[str]:
    if isinstance(part, list):
        for each in part:
            yield from _addresses(each)
    elif isinstance(part, dict) and part.get("type") != "tool_use":
        for name, value in part.items():
            if name in _FETCHED:
                yield from _named(value)
            elif name == "source" and isinstance(value, dict) and isinstance(value.get("url"), str):
                yield value["url"]
            elif isinstance(value, list | dict):
                yield from _addresses(value)


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (address for key in ("url", "uri") if isinstance(address := value.get(key), str))
    elif isinstance(value, list):
        for each in value:
            yield from _named(each)
