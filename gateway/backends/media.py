"""Which addresses of pictures, sound and files a request may carry to an engine that would fetch them from inside our network.

A provider fetches from its own network, so its addresses travel. An engine of one's own stands among our machines: one that
is told `http://169.254.169.254/` asks the cloud for our credentials. So only `data:` goes there, unless the operator says
otherwise (`media_urls: pass`). What a tool was called with is not an address to fetch and is left alone.
"""
from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from gateway.core.errors import BadRequest

_FETCHED = ("image_url", "video_url", "audio_url", "file_url", "image", "video", "audio")
_INSIDE = (".local", ".internal", ".lan", ".svc", ".localhost", ".home.arpa")
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


_messages = msgspec.json.Decoder(list[_Message]).decode


def check(body: bytes, spans: Mapping[str, tuple[int, int]]) -> None:
    """Raises `UrlNotAllowed` if a part of the prompt names anything but `data:` to be fetched. `spans`: of the top-level
    fields."""
    for part in _parts(body, spans):
        for address in _addresses(msgspec.json.decode(part)):
            if not address.lstrip().lower().startswith("data:"):
                text = "this model runs on an engine that fetches nothing: send pictures and files as data: URLs"
                raise UrlNotAllowed(text, param="messages")


def _parts(body: bytes, spans: Mapping[str, tuple[int, int]]) -> Iterator[bytes | memoryview]:
    """What of a prompt may name an address, as JSON."""
    for name in ("input", "system"):
        if name in spans:
            yield body[slice(*spans[name])]
    if "messages" in spans:
        whole = memoryview(body)[slice(*spans["messages"])]
        try:
            said = _messages(whole)
        except msgspec.MsgspecError:  # an odd shape: look at all of it
            yield whole
            return
        for message in said:
            content = bytes(message.content)
            if content[:1] in (b"[", b"{"):
                yield content


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
