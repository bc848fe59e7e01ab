"""Which addresses of pictures, sound and files a request may carry to an engine that would fetch them from inside our network.

A provider fetches from its own network, so its addresses travel. An engine of one's own stands among our machines: one that
is told `http://169.254.169.254/` asks the cloud for our credentials. So only `data:` goes there, unless the operator says
otherwise (`media_urls: pass`). What a tool was called with is not an address to fetch and is left alone.
"""
from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gateway.core.errors import BadRequest

_FETCHED = ("image_url", "video_url", "audio_url", "file_url", "image", "video", "audio")
_SPOKEN = ("messages", "input", "system")
_HINTS = (b"_url", b'"url"', b'"image"', b'"video"', b'"audio"', b"\\u00")
"""Plain texts, since looking for six of them costs a tenth of one pattern."""
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


def check(body: bytes, spans: Sequence[tuple[int, int]]) -> None:
    """Raises `UrlNotAllowed` if a part of the prompt at these places names anything but `data:` to be fetched."""
    for start, end in spans:
        if any([body.find(hint, start, end) >= 0 for hint in _HINTS]):
            for address in _addresses(msgspec.json.decode(memoryview(body)[start:end])):
                if not address.lstrip().lower().startswith("data:"):
                    text = "this model runs on an engine that fetches nothing: send pictures and files as data: URLs"
                    raise UrlNotAllowed(text, param="messages")


def prompt_places(spans: Any) -> list[tuple[int, int]]:
    """Where the prompt stands in a body whose top-level fields have these places."""
    return [spans[name] for name in _SPOKEN if name in spans]


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
