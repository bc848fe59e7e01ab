"""The bytes of the journal: what a record is, how it is framed, and how far a damaged file can be read.

A frame is `length u32, crc32 u32, payload`, little-endian, with a MessagePack payload. Every file starts with a `Head`. A
reader stops at the first frame that is short or does not match its checksum; what follows it in that file is the cut tail.
"""
from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.core.usage import TokenUsage
from gateway.ledger import Entry

VERSION = 2
FRAME = struct.Struct("<II")
MAX_PAYLOAD = 16 * 1024 * 1024
"""No record is longer; a length above it is damage, not a reason to allocate."""
_LARGEST = 2**63 - 1


class Head(msgspec.Struct, tag=0, array_like=True, frozen=True):
    """First in every file. `settled` counts the writer's SETTLE records before this file."""

    version: int
    writer: str
    settled: int


class Opened(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """OPEN: an attempt is about to be sent. `entry` is what is booked of it should this be the last that is heard of it."""

    entry: Entry


class Progress(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """PROG: tokens generated so far, as the gateway counts them."""

    attempt_id: str
    output_tokens: int


class Settled(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """SETTLE: how the attempt ended, whole."""

    entry: Entry


class Projected(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """The writer's first `settled` SETTLE records are in the database."""

    settled: int


Record = Head | Opened | Progress | Settled | Projected


@dataclass(frozen=True, slots=True)
class Cut:
    """A file's unreadable end: `offset` is where the good part stops, `lost` how many bytes follow."""

    path: Path
    offset: int
    lost: int


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"the journal cannot hold a {type(value).__name__}")


_encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode
_decode = msgspec.msgpack.Decoder(Record).decode
_SETTLED = Settled.__struct_config__.tag


def frame(record: Record) -> bytes:
    try:
        payload = _encode(record)
    except (UnicodeEncodeError, OverflowError, TypeError, NotImplementedError):
        if not isinstance(record, Opened | Settled):
            raise
        payload = _encode(replace(record, entry=cleaned(record.entry)))
    return FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def read(path: Path) -> tuple[list[Record], Cut | None]:
    """All whole records of a file, and what is wrong with its end."""
    data = path.read_bytes()
    records: list[Record] = []
    end = 0
    for payload, after in _payloads(data):
        try:
            records.append(_decode(payload))
        except msgspec.MsgspecError:
            break
        end = after
    lost = len(data.rstrip(b"\0")) - end
    return records, None if lost <= 0 else Cut(path, end, lost)


def read_settled(path: Path, start: int, end: int | None, most: int) -> tuple[list[Entry], int | None]:
    """Entries of the SETTLE records from one offset to another (None: the file's end), at most so many, and the offset behind
    the last; None if that were all."""
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(-1 if end is None else end - start)
    entries: list[Entry] = []
    for payload, after in _payloads(data):
        if payload[1] == _SETTLED:              # a record is an array that begins with its tag; the others are not decoded
            entries.append(_decode(payload).entry)  # type: ignore[union-attr]
            if len(entries) == most:
                return entries, start + after
    return entries, None


def _payloads(data: bytes) -> Iterator[tuple[memoryview, int]]:
    view, at = memoryview(data), 0
    while at + FRAME.size <= len(data):
        length, checksum = FRAME.unpack_from(data, at)
        if not length:      # files are allocated ahead: nothing was written from here on
            return
        payload = view[at + FRAME.size : at + FRAME.size + length]
        if length > MAX_PAYLOAD or len(payload) < length or zlib.crc32(payload) != checksum:
            return
        at += FRAME.size + length
        yield payload, at


def cleaned(entry: Entry) -> Entry:
    """The entry with what no store can hold replaced, so that it is booked all the same: lone surrogates and NUL by a mark,
    whole numbers beyond 64 bits by the largest, objects by their text."""
    return msgspec.convert(_clean(entry), Entry)


def _clean(value: Any) -> Any:
    match value:
        case None | bool() | float():
            return value
        case str():
            return value.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
        case int():
            return max(-_LARGEST, min(_LARGEST, value))
        case Mapping():
            return {_clean(str(name)): _clean(item) for name, item in value.items()}
        case list() | tuple():
            return [_clean(item) for item in value]
        case Entry() | TokenUsage():
            return {name: _clean(getattr(value, name)) for name in value.__struct_fields__}
    return _clean(str(value))
