"""Files that a prompt shows to the model, and where pictures come from, in the words of each dialect.

    Anthropic    {"type": "document", "source": {"type": "base64" | "url" | "text" | "content" | "file", ...}, "title": ...}
    chat         {"type": "file", "file": {"file_data": data URL, "filename": ...} | {"file_id": ...}}
    responses    {"type": "input_file", "file_data" | "file_url" | "file_id": ..., "filename": ...}

A file that a provider stores (`file_id`) is there for nobody else. Nothing is fetched here: an address goes where the API takes
one, and is refused elsewhere.
"""
from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from gateway.core.prompt import Document, Json
from gateway.dialects.facts import refuse

_NAME = "document.pdf"
"""OpenAI's APIs want a name beside the bytes."""
_PDF = "application/pdf"
_TEXTS = ("text/plain", "text/markdown", "text/csv", "text/html", "application/json")
"""What Anthropic takes as plain text, whatever it is called elsewhere."""


def url_of(where: str, source: Mapping[str, Any]) -> str:
    """Anthropic's source of a picture or a file as one address. Raises `BadRequest` for stored ones."""
    match source.get("type"):
        case "base64":
            return f"data:{source['media_type']};base64,{source['data']}"
        case "url":
            return str(source["url"])
    raise refuse(where, f"a source of type {source.get('type')!r}")


def source_of(url: str) -> dict[str, Json]:
    """The other way round."""
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    kind, data = _data(url)
    return {"type": "base64", "media_type": kind, "data": data}


def of_openai(where: str, wire: Mapping[str, Any], cache: Mapping[str, Json] | None) -> Document:
    """A chat file or a responses input_file. Raises `BadRequest` for stored ones, and for bytes of no known type."""
    url = wire.get("file_data") or wire.get("file_url")
    if not url:
        raise refuse(where, "a file that a provider has stored")
    if not url.startswith(("data:", "https://", "http://")):
        raise refuse(where, "file_data that is not a data: URL")
    return Document(url=url, name=wire.get("filename"), cache=cache)


def to_chat(document: Document) -> dict[str, Json]:
    if not document.url.startswith("data:"):
        raise refuse("messages", "a file by its address")
    return {"filename": document.name or _NAME, "file_data": document.url}


def to_responses(document: Document) -> dict[str, Json]:
    if not document.url.startswith("data:"):
        return {"file_url": document.url}
    return {"filename": document.name or _NAME, "file_data": document.url}


def to_anthropic(document: Document) -> dict[str, Json]:
    titled = {} if document.name is None else {"title": document.name}
    if not document.url.startswith("data:"):
        return {"type": "document", "source": {"type": "url", "url": document.url}, **titled}
    kind, data = _data(document.url)
    if kind == _PDF:
        return {"type": "document", "source": {"type": "base64", "media_type": kind, "data": data}, **titled}
    if kind not in _TEXTS:
        raise refuse("messages", f"a file of type {kind!r}")
    text = base64.b64decode(data).decode()
    return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}, **titled}


def _data(url: str) -> tuple[str, str]:
    """Media type and base64 text of a data URL."""
    kind, _, data = url[5:].partition(",")
    if not kind.endswith(";base64"):
        raise refuse("messages", "a data URL that is not base64")
    return kind.removesuffix(";base64").split(";")[0], data
