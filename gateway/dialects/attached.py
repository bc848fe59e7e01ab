"""What a prompt holds beside text: images, sound, files, and what it only names by address or id.

A provider counts an image by its size in pixels, not by the bytes in which it travels, and a linked file by what is in it. So
neither the bytes of a request bound its tokens nor do they tell them where something like this is attached. Only places are
looked at where a dialect has contents; what stands elsewhere is text.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gateway.core.part import NOTHING, Attached, Part

_TALKS = frozenset({"messages", "input"})
_IMAGES = frozenset({"image_url", "input_image", "image", "computer_screenshot", "image_generation_call"})
_SOUND = frozenset({"input_audio", "audio", "audio_url"})
_FILES = frozenset({
    "file", "input_file", "document", "container_upload", "video", "video_url", "input_video",
})  # fmt: skip
_PLAIN = (".txt", ".md", ".csv", ".json", ".xml", ".html", ".py", ".yaml", ".log")
_RECALLED = "item_reference"
_KINDS = _IMAGES | _SOUND | _FILES | {_RECALLED}
_INNER = ("content", "output")
"""Fields of a message, an item or a tool's result that hold contents."""
_WORDS = frozenset({b"", b'"text"', b'"message"', b'"input_text"', b'"output_text"', b'"function_call_output"'})
"""Kinds, as they are written, of what is words but for what stands in those fields."""
_NONE = (b"", b"null")
_LINKS = frozenset({"url", "uri", "file_id", "file_url", "file_uri"})


class _Thing(msgspec.Struct):
    """A message, an item or a content, as far as it tells whether to look closer."""

    type: Any = None
    content: msgspec.Raw = msgspec.Raw()
    output: msgspec.Raw = msgspec.Raw()
    audio: msgspec.Raw = msgspec.Raw()


_thing, _things = msgspec.json.Decoder(_Thing), msgspec.json.Decoder(list[_Thing])


def attached(body: bytes, parts: Sequence[Part]) -> Attached:
    """Of all messages together."""
    found = NOTHING
    for part in parts:
        one = part.block.attached
        if one is None:
            one = part.block.attached = attached_to(body[part.start:part.end])
        if one is not NOTHING and part.field in _TALKS:
            found = _sum(found, one)
    return found


def attached_to(value: bytes) -> Attached:
    """A message, an item or a list of contents."""
    if value.startswith(b'"') or not _names_kinds(value) or _is_text(value):
        return NOTHING
    try:
        talk = msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return NOTHING
    found = NOTHING
    for content in _contents(talk if isinstance(talk, list) else [talk]):
        if (one := _one(content)) != NOTHING:
            found = _sum(found, one)
    return found


def only_words(value: bytes, places: Mapping[str, tuple[int, int]]) -> bool:
    """Whether the fields of an object say by themselves that nothing is attached to it; `places`: of their values."""
    if "audio" in places or value[slice(*places.get("type", (0, 0)))] not in _WORDS:
        return False
    return all([value.startswith(b'"', places[name][0]) for name in _INNER if name in places])


def _names_kinds(value: bytes) -> bool:
    """Whether anything may say what it is; an escape may hide that."""
    return b'"type"' in value or b'"audio"' in value or b"\\u" in value


def _is_text(value: bytes) -> bool:
    """Whether there is nothing but text, by the names of what there is; False also where that cannot be told."""
    try:
        things = _things.decode(value) if value.startswith(b"[") else [_thing.decode(value)]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    inner = [bytes(raw) for thing in things for raw in (thing.content, thing.output)]
    named = any([(isinstance(thing.type, str) and thing.type in _KINDS) or bytes(thing.audio) not in _NONE for thing in things])
    return not named and all([_is_text(each) for each in inner if each.startswith((b"[", b"{"))])


def _contents(things: list[Any]) -> Iterator[dict[str, Any]]:
    """Everything that may be a content, outer ones first."""
    left = [things]
    while left:
        for thing in left.pop():
            if isinstance(thing, dict):
                yield thing
                left += [each if isinstance(each, list) else [each] for name in _INNER if (each := thing.get(name))]
                source = thing.get("source")
                if isinstance(source, dict) and isinstance(inner := source.get("content"), list):  # of a document
                    left.append(inner)


def _one(content: dict[str, Any]) -> Attached:
    kind = content.get("type")
    if kind in _IMAGES:
        return Attached(images=1, image_bytes=sum(len(text) for name, text in _texts(content) if _is_embedded(name, text)))
    if kind in _SOUND:
        return _held(content)._replace(sounds=1)
    if isinstance(content.get("audio"), dict):  # an earlier spoken answer, by its id
        return Attached(sounds=1, recalled=1)
    if kind == _RECALLED:
        return Attached(recalled=1)
    return _held(content) if kind in _FILES else NOTHING


def _held(content: dict[str, Any]) -> Attached:
    """Of a file, a sound or a film; plain text that stands in a file counts as text."""
    texts = list(_texts(content))
    linked = any(name in _LINKS and not text.startswith("data:") for name, text in texts)
    kinds = [text for name, text in texts if name in ("type", "media_type", "filename")]
    if any(kind.startswith("text") or kind.endswith(_PLAIN) for kind in kinds):
        return Attached(linked=int(linked))
    size = sum(len(text) for name, text in texts if _is_file(name, text))
    return Attached(linked=int(linked), files=int(size > 0), file_bytes=size)


def _is_file(name: str, text: str) -> bool:
    return not text.startswith("data:text/") and (name in ("data", "file_data") or text.startswith("data:"))


def _is_embedded(name: str, text: str) -> bool:
    return text.startswith("data:image/") or name in ("data", "result")


def _texts(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Its strings, and those of the objects in it, with their names; a bare address under a kind's name counts as `url`."""
    for name, value in content.items():
        if isinstance(value, str):
            yield "url" if name.endswith("_url") else name, value
        elif isinstance(value, dict):
            yield from ((inner, text) for inner, text in value.items() if isinstance(text, str))


def _sum(one: Attached, other: Attached) -> Attached:
    return Attached(*[a + b for a, b in zip(one, other, strict=True)])
